"""Smallest noise multiplier that any accountant accepts (``calibrator: numeric``).

ε falls as z grows, so the answer is a root. It is bracketed from the cheap Rényi answer, never from a small
z: a privacy-loss distribution at z near 0.01 asks for tens of gigabytes. The end of the bracket that meets
the target is returned, so the result is on the private side whatever the tolerance.

Claim: Calibrated noise meets its ε, and lies on the private side.
Proof: the end of the bracket that was tried and meets the target is returned.
Held by: test_numeric_answers_are_private_and_within_one_percent, test_numeric_inverts_any_accountant,
test_a_tampered_cache_is_not_believed, "calibrations remembered without the adjacency"
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from dpmcmc.errors import CalibrationError
from dpmcmc.privacy.accounting import (
    Adjacency,
    accountant_for,
    base_epsilon,
    overflow_probability,
)
from dpmcmc.privacy.accounting.charging import Schedule
from dpmcmc.privacy.accounting.own import is_ones_own
from dpmcmc.privacy.accounting.promise import Privacy
from dpmcmc.privacy.calibration.remembered import recall, remember

#: The answer's ε lies within this share below the target (or z within the same share of the root).
TOLERANCE = 2e-3
_LARGEST = 1e12


def noise_multiplier(schedule: Schedule, privacy: Privacy) -> float:
    """Smallest z with ε(max(z, the schedule's own noise)) <= epsilon; 0 where its own noise suffices.

    Raises:
        CalibrationError: no noise multiplier below 1e12 meets the target.
    """
    target = privacy.epsilon
    accountant = str(privacy.accountant)
    adjacency = Adjacency(privacy.adjacency)
    assert target is not None
    deviation = overflow_probability(schedule.composed_with)
    left = schedule.delta_left(privacy.delta)
    if deviation:
        left -= (1 + math.exp(min(target, 700.0))) * deviation
    if left <= 0:
        raise CalibrationError(
            f"delta {privacy.delta:g} is spent before the run: its start may deviate by {deviation:g}.",
            "delta",
        )
    floors = schedule.noise_multipliers

    def spent(z: float, name: str) -> float:
        events = schedule.with_noise(np.maximum(z, floors)).queries
        accountant_for(name, events, adjacency)
        return base_epsilon(name, (*schedule.composed_with, *events), adjacency, left)

    if floors.min() > 0 and spent(0.0, accountant) <= target:
        return 0.0
    inputs = _inputs(schedule, privacy)
    # A function of the user's may have changed since its answers were remembered.
    own = is_ones_own(accountant)
    remembered = None if own else recall(inputs)
    # A cache is a file anybody may edit: its answer counts only after it has been accounted again.
    if remembered is not None and remembered > 0 and spent(remembered, accountant) <= target:
        return remembered
    start = _root(lambda z: spent(z, "rdp"), target, 1.0) if accountant == "pld" else 1.0
    z = _root(lambda z: spent(z, accountant), target, start)
    if not own:
        remember(inputs, z)
    return z


def _inputs(schedule: Schedule, privacy: Privacy) -> dict[str, object]:
    """Everything that an answer depends on, as JSON."""
    return {
        "floors": _counted(schedule.noise_multipliers[schedule.asks]),
        "floors_between": _counted(schedule.noise_multipliers[~schedule.asks]),
        "sampling": repr(schedule.sampling),
        "num_records": schedule.num_records,
        "chains": schedule.chains,
        "multiples": list(schedule.multiples),
        "beside": [event.to_json() for event in schedule.composed_with],
        "epsilon": privacy.epsilon,
        "delta": privacy.delta,
        "adjacency": privacy.adjacency,
        "accountant": privacy.accountant,
        "tolerance": TOLERANCE,
    }


def _counted(floors: np.ndarray) -> list[list[float]]:
    """[value, how often] of each value."""
    return [[float(value), int(count)] for value, count in zip(*np.unique(floors, return_counts=True), strict=True)]


def _root(spent: Callable[[float], float], target: float, start: float) -> float:
    """z on the private side with ε(z) within TOLERANCE of target: secant in logarithms, kept in a bracket."""
    high = start
    at_high = spent(high)
    low = 0.0
    at_low = math.inf
    step = 1.6
    while at_high > target:
        low = high
        at_low = at_high
        high *= step
        step *= step
        if high > _LARGEST:
            raise CalibrationError(
                f"no noise multiplier below {_LARGEST:g} gives epsilon {target:g} (there it is {at_high:.3g}); "
                "use a larger epsilon or delta, or fewer steps.",
                "epsilon",
            )
        at_high = spent(high)
    exponent = 0.7
    while low == 0.0 and at_high < target * (1 - TOLERANCE):
        # Step toward the target by a guessed power law, further each time that falls short of it.
        trial = high * min(max(at_high / target, 1e-3), 0.9995) ** exponent
        exponent *= 1.7
        value = spent(trial)
        if value > target:
            low = trial
            at_low = value
        else:
            high = trial
            at_high = value
            if high < 1e-6:
                return high
    for iteration in range(60):
        if at_high >= target * (1 - TOLERANCE) or high <= low * (1 + 1e-6):
            break
        middle = math.sqrt(low * high)
        # Every third step bisects, so that a kink of the accountant cannot stall the secant.
        if math.isfinite(at_low) and at_high > 0 and iteration % 3 < 2:
            slope = (math.log(at_high) - math.log(at_low)) / (math.log(high) - math.log(low))
            if slope < 0:
                aim = math.log(target * (1 - TOLERANCE / 3))
                guess = math.exp(math.log(low) + (aim - math.log(at_low)) / slope)
                middle = min(max(guess, low * (high / low) ** 0.02), high * (low / high) ** 0.02)
        value = spent(middle)
        if value <= target:
            high = middle
            at_high = value
        else:
            low = middle
            at_low = value
    return high
