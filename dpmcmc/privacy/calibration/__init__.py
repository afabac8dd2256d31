"""Calibrators: from a target (ε, δ) to the noise multiplier a run needs. One file each.

* ``numeric``     smallest z any accountant accepts, given the noise the sampler already adds (``remembered`` on disk);
* ``closed_form`` the thesis's formula, constant corrected;
* ``free``        adds nothing and reports what the unmodified sampler gives;
* a function of the user's, (queries, promise) -> z, a number or one a step. Nothing rests on it: the plan charges
  max(own noise, z) by the accountant, and refuses what exceeds the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from dpmcmc.errors import CalibrationError, InputError, quoted
from dpmcmc.privacy.accounting.charging import Schedule
from dpmcmc.privacy.accounting.cost_of_run import check_counts, per_step
from dpmcmc.privacy.accounting.own import named
from dpmcmc.privacy.accounting.promise import Accountant, AdjacencyName, CalibratorName, Privacy
from dpmcmc.privacy.accounting.sampling import Sampling
from dpmcmc.privacy.calibration import closed_form, numeric

__all__ = ["CalibrationError", "asked_noise", "calibrate"]


def calibrate(
    *,
    epsilon: float,
    delta: float,
    steps: int,
    sampling: Sampling,
    num_records: int,
    chains: int = 1,
    adjacency: AdjacencyName = "replace_one",
    accountant: Accountant = "pld",
    release: Literal["trace"] = "trace",
    calibrator: CalibratorName = "numeric",
    floor: float | Sequence[float] | np.ndarray = 0.0,
    multiples: tuple[float, ...] = (1.0,),
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
        release: trace: every iterate may be published.
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
    check_counts(steps, chains)
    sampling.validate(num_records)
    schedule = Schedule(per_step(floor, steps, "floor"), sampling, num_records, chains, multiples)
    # A promise with calibrator free states no epsilon.
    searching = "numeric" if calibrator == "free" else calibrator
    promise = Privacy(epsilon, delta, adjacency, release, accountant, searching)
    return 0.0 if calibrator == "free" else float(asked_noise(schedule, promise))


def asked_noise(schedule: Schedule, privacy: Privacy) -> float | np.ndarray:
    """Noise multiplier that the calibrator asks for: a number, or one a step where a user's function says so.

    Args:
        schedule: queries, with the noise that each step has already.
        privacy: promise, and its calibrator.

    Raises:
        CalibrationError, UnsupportedCombination: as :func:`calibrate`.
        InputError: a user's function fails, or returns what is no noise.
    """
    own = privacy.calibrator
    if own == "free":
        return 0.0
    if isinstance(own, str):
        room = closed_form if own == "closed_form" else numeric
        return room.noise_multiplier(schedule, privacy)
    name = named(own)
    try:
        found = np.asarray(own(schedule, privacy), np.float64)
    except Exception as error:  # a user's function may raise anything
        raise InputError(f"calibrator {name} says: {quoted(error)}", "calibrator") from None
    steps = schedule.noise_multipliers.shape
    if found.shape not in ((), steps) or not np.all(np.isfinite(found) & (found >= 0)):
        raise InputError(
            f"calibrator {name} must return a finite noise multiplier >= 0, a number or one for each of the "
            f"{steps[0]:,} steps",
            "calibrator",
        )
    return float(found) if found.ndim == 0 else found
