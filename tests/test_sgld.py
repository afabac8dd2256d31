"""SGLD at its largest steps, and the check that must fail. The matrix of its law is in ``test_stationarity.py``."""

import dataclasses

import numpy as np
import pytest

import dpmcmc
from dpmcmc.testing import check_sampler, check_stationary_variance

N = 1000


def exact_law(eta, temperature):
    return lambda w: (temperature / w) * 2 / (2 - eta * w)


def test_sgld_variance_matches_its_discretised_law_at_half_the_stable_step():
    curvature = np.array([1.0, 0.5, 0.25, 0.1]) * 40.0
    eta, temperature = 1.0 / curvature.max(), 4.0
    sampler = dpmcmc.SGLD(step_size=N * eta, temperature=temperature).bind(N)
    # ηw from .1 to 1: 1024 chains over 200 steps are 1024·200·.1 = 20 000 independent draws, 4 errors of Var 4 %.
    check_stationary_variance(sampler, curvature, exact_law(eta, temperature), tolerance=0.04, steps=400, chains=1024)


@pytest.mark.slow
def test_public_check_passes_sgld_and_catches_a_wrong_noise():
    check_sampler(dpmcmc.SGLD(step_size=1.0), chains=256)

    @dataclasses.dataclass(frozen=True)
    class Cold(dpmcmc.SGLD):
        def noise_std(self, t):
            return super().noise_std(t) / 2**0.5

    with pytest.raises(AssertionError, match="off by"):
        check_sampler(Cold(step_size=1.0), chains=256)
