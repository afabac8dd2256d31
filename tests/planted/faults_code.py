"""Faults of what a config may run."""

from __future__ import annotations

import pytest

from dpmcmc.config import file as config_file
from dpmcmc.config import named_code
from tests.planted import Fault
from tests.planted import checks_code as checks

Patch = pytest.MonkeyPatch


def _declaration_not_checked(patch: Patch) -> None:
    patch.setattr(named_code, "_missing", lambda *_: "")


def _resume_trusts_the_folder(patch: Patch) -> None:
    patch.setattr(config_file, "refuse_foreign_code", lambda *_: None)


FAULTS = (
    Fault(
        "whatever a config names is called",
        "A name in a config is imported and called before anything says that it makes a sampler: os:system with a "
        "command passes for one.",
        _declaration_not_checked,
        (checks.a_name_alone_calls_nothing,),
    ),
    Fault(
        "resume imports what the folder names",
        "Run folders are passed on, and the config in one names a module of whoever wrote it.",
        _resume_trusts_the_folder,
        (checks.a_resumed_run_imports_nothing_unasked,),
    ),
)
