"""Calibrators: from a target (ε, δ) to the noise multiplier a run needs. One file each.

* ``numeric``     smallest z any accountant accepts, given the noise the sampler already adds;
* ``closed_form`` the thesis's formula, constant corrected;
* ``free``        adds nothing and reports what the unmodified sampler gives.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpmcmc.errors import CalibrationError, InputError
from dpmcmc.privacy.accounting import Event
from dpmcmc.privacy.accounting.account import check_run, per_step
from dpmcmc.privacy.accounting.sampling import Sampling
from dpmcmc.privacy.calibration import closed_form, numeric

CALIBRATORS = ("numeric", "closed_form", "free")

__all__ = ["CALIBRATORS", "CalibrationError", "calibrate"]


def calibrate(
    *,
    epsilon: float,
    delta: float,
    steps: int,
    sampling: Sampling,
    num_records: int,
    chains: int = 1,
    adjacency: str = "replace_one",
    accountant: str = "pld",
    release: str = "trace",
    calibrator: str = "numeric",
    floor: float | Sequence[float] | np.ndarray = 0.0,
    multiples: tuple[float, ...] = (1.0,),
    beside: tuple[Event, ...] = (),
) -> float:
    """Noise multiplier z such that a run whose steps have max(z, floor_t) meets (ε, δ).

    Args:
        epsilon: target, > 0.
        delta: total target δ in (0, 1).
        steps: per chain.
        sampling: ``Poisson(b)``, ``FixedSize(b)`` or ``Full()``.
        num_records: N, public.
        chains: each is charged.
        adjacency: see :func:`dpmcmc.privacy.account`.
        accountant: see :func:`dpmcmc.privacy.account`.
        release: see :func:`dpmcmc.privacy.account`.
        calibrator: ``numeric``, ``closed_form`` (fixed_size and full under replace_one) or ``free`` (returns 0).
        floor: noise multiplier the sampler's own noise amounts to, a number or one per step. Privacy it
            already pays for is not paid twice.
        multiples: noise multiplier of each minibatch of a step, as multiples of z; more than one, or not 1, where a
            step releases more than its gradient (``second_moment.multiples``).

    Returns:
        z >= 0, on the private side of the target; 0 where the floor alone meets it.

    Raises:
        CalibrationError: a condition fails or the target is out of reach.
        UnsupportedCombination: no derivation for the combination.
        ValueError: impossible numbers.
    """
    if not epsilon > 0 or not np.isfinite(epsilon):
        raise InputError(f"epsilon must be a finite number > 0, got {epsilon}")
    check_run(steps, chains, delta)
    sampling.validate(num_records)
    floors = per_step(floor, steps, "floor")
    if calibrator == "free":
        return 0.0
    if calibrator == "closed_form":
        if adjacency != "replace_one" or release != "trace" or beside:
            raise CalibrationError(
                "calibrator closed_form is derived for adjacency replace_one and release trace alone; use calibrator "
                "numeric."
            )
        # Every minibatch of a step is one of the formula's steps, with at least its noise.
        alone = closed_form.noise_multiplier(
            epsilon=epsilon,
            delta=delta,
            steps=steps * chains * len(multiples),
            sampling=sampling,
            num_records=num_records,
        )
        return alone / min(multiples)
    if calibrator != "numeric":
        raise InputError(f"unknown calibrator {calibrator!r}; known: {', '.join(CALIBRATORS)}")
    return numeric.noise_multiplier(
        epsilon=epsilon,
        delta=delta,
        floors=floors,
        sampling=sampling,
        num_records=num_records,
        chains=chains,
        adjacency=adjacency,
        accountant=accountant,
        release=release,
        multiples=multiples,
        beside=beside,
    )
