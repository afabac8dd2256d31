"""Noise of the Gaussian releases of a one-shot mechanism, as it is added."""

import numpy as np
import pytest

from dpmcmc.mechanisms import adassp, statistics
from dpmcmc.mechanisms.noise_aware import release
from dpmcmc.privacy.query import gram_release
from dpmcmc.privacy.query.integer_rows import Exact


def _size(value: np.ndarray | Exact) -> int:
    return np.size(value.steps if isinstance(value, Exact) else value)


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """Return a list that fills with the noise std of each Gaussian release and the number of its values, in order."""
    seen = []
    for module in (release, statistics, adassp, gram_release):
        whole = module.gaussian_release
        monkeypatch.setattr(
            module,
            "gaussian_release",
            lambda value, std, key, whole=whole: (
                seen.append((std, _size(value))),
                whole(value, std, key),
            )[1],
        )
    return seen
