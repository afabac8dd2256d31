"""Ledgers that the tests of this folder are about."""

import pytest

from dpmcmc.privacy import Ledger
from tests.ledger.ledgers import TERMS, release


@pytest.fixture
def path(tmp_path):
    return tmp_path / "test.ledger"


@pytest.fixture
def ledger(path):
    return Ledger.init(path, **TERMS)


@pytest.fixture
def fifth(ledger):
    """A run of which five fit, and six do not."""
    return release(ledger.terms.additive.gaussian(ledger.terms.budget / 5.5))


@pytest.fixture
def used(ledger, fifth):
    for k in range(4):
        ledger.reserve(fifth, f"run {k}")
    return ledger
