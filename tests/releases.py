"""Noise of the Gaussian releases of a one-shot mechanism, as it is added."""

from __future__ import annotations

import numpy as np
import pytest

from dpmcmc.mechanisms import MechanismPlan, release, sufficient
from dpmcmc.mechanisms.noise_aware import gradients, prior
from dpmcmc.privacy.query import gaussian_release
from dpmcmc.storage.pytree import PyTree


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """Return a list that fills with the noise std of each Gaussian release and the number of its values, in order."""
    seen = []
    for module in (prior, gradients, sufficient, gaussian_release):
        whole = module.gaussian_release
        monkeypatch.setattr(
            module,
            "gaussian_release",
            lambda value, std, key, whole=whole: (seen.append((std, np.size(value))), whole(value, std, key))[1],
        )
    return seen


def released_stds(plan: MechanismPlan, records: PyTree, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Return the noise stds of all releases of a draw, in their order."""
    seen = recorded(monkeypatch)
    release(plan, records, key=0)
    return np.array([std for std, _ in seen])
