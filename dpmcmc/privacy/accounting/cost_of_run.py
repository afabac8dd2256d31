"""``account``: what a run of noisy queries costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, overload

import numpy as np

from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.privacy.accounting import (
    Adjacency,
    Event,
    noisy_descent,
)
from dpmcmc.privacy.accounting.charging import Schedule, charged_guarantee
from dpmcmc.privacy.accounting.conversions import Bracket
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.promise import Accountant, AdjacencyName, Privacy
from dpmcmc.privacy.accounting.sampling import Full, Sampling


@dataclass(frozen=True)
class Problem:
    """Public constants that bound the last iterate of a noisy descent on F = Σ losses − log prior.

    Args:
        step_size: learning rate on the MEAN loss, constant; the step on F is step_size / N.
        strong_convexity: m > 0 of F, for instance the prior's precision.
        smoothness: M of F: N times the largest curvature of a record's loss, and the prior's.
        lipschitz: L, bound on the norm of a record's gradient.
        clip: C of the query that adds the noise, whose multiplier is noise std / C.

    Raises:
        UnsupportedCombination: a clip below L, which can be active: clipped gradients are those of no convex function.

    Example:
        >>> from dpmcmc import Full
        >>> from dpmcmc.privacy import Problem, account
        >>> problem = Problem(step_size=0.1, strong_convexity=1.0, smoothness=251.0, lipschitz=1.0, clip=1.0)
        >>> last = {"accountant": "last_iterate", "release": "last_iterate", "problem": problem}
        >>> guarantee = account(100.0, steps=1000, sampling=Full(), num_records=1000, delta=1e-5, **last)
        >>> round(guarantee.epsilon, 2)
        2.59
    """

    step_size: float
    strong_convexity: float
    smoothness: float
    lipschitz: float
    clip: float

    def __post_init__(self) -> None:
        if not 0 < self.lipschitz <= self.clip:
            raise UnsupportedCombination(
                f"release last_iterate needs clipping that is never active: clip {self.clip:g} must be at least the "
                f"gradient bound {self.lipschitz:g} > 0."
            )


@overload
def account(
    noise_multiplier: float | Sequence[float] | np.ndarray,
    *,
    steps: int,
    sampling: Sampling,
    num_records: int,
    delta: float,
    chains: int = 1,
    adjacency: AdjacencyName = "replace_one",
    accountant: Accountant | Literal["last_iterate"] = "pld",
    release: Literal["trace", "last_iterate"] = "trace",
    problem: Problem | None = None,
    bracket: Literal[False] = False,
) -> Guarantee: ...


@overload
def account(
    noise_multiplier: float | Sequence[float] | np.ndarray,
    *,
    steps: int,
    sampling: Sampling,
    num_records: int,
    delta: float,
    chains: int = 1,
    adjacency: AdjacencyName = "replace_one",
    accountant: Accountant | Literal["last_iterate"] = "pld",
    release: Literal["trace", "last_iterate"] = "trace",
    problem: Problem | None = None,
    bracket: Literal[True],
) -> Bracket: ...


def account(
    noise_multiplier: float | Sequence[float] | np.ndarray,
    *,
    steps: int,
    sampling: Sampling,
    num_records: int,
    delta: float,
    chains: int = 1,
    adjacency: AdjacencyName = "replace_one",
    accountant: Accountant | Literal["last_iterate"] = "pld",
    release: Literal["trace", "last_iterate"] = "trace",
    problem: Problem | None = None,
    bracket: bool = False,
) -> Guarantee | Bracket:
    """The guarantee of ``steps`` noisy gradient queries per chain.

    Charges what the library's own query and generator would be charged (``charging.py``), so the result is
    that of a plan with these settings; for release ``last_iterate``, of ``mechanisms.CertifiedOPS``, whose float64
    steps keep the theorem's contraction up to what is charged.

    Args:
        noise_multiplier: std of the noise on the clipped sum / clip norm, for every adjacency; a number, or one
            per step.
        steps: per chain.
        sampling: ``Poisson(b)``, ``FixedSize(b)`` or ``Full()``.
        num_records: N, public.
        delta: total δ in (0, 1).
        chains: independent chains on the same data; each is charged.
        adjacency: ``replace_one`` | ``add_remove`` | ``zero_out``.
        accountant: ``pld`` | ``rdp`` | ``advanced`` | ``last_iterate``, or a function as for :class:`Privacy`.
        release: ``trace``, or ``last_iterate``: only the last step of each chain leaves.
        problem: what release ``last_iterate`` rests on.
        bracket: return ``Guarantee.bracket()``, the pair (lower, upper) of bounds on ε.

    Returns:
        Guarantee, or with ``bracket`` its bounds on ε; ε is infinite for a step without noise.

    Raises:
        UnsupportedCombination: no derivation for the combination.
        ValueError: wrong lengths or ranges.
    """
    check_counts(steps, chains)
    sampling.validate(num_records)
    schedule = Schedule(
        per_step(noise_multiplier, steps, "noise_multiplier"),
        sampling,
        num_records,
        chains,
    )
    if release == "last_iterate" or accountant == "last_iterate":
        if release != "last_iterate":
            raise UnsupportedCombination(
                f"accountant last_iterate covers release last_iterate, not {release}: use accountant pld."
            )
        guarantee = Guarantee.from_events(
            (_last_iterate(schedule, problem),),
            delta=delta,
            adjacency=adjacency,
            accountant="last_iterate",
            release=release,
        )
        return guarantee.bracket() if bracket else guarantee
    if release != "trace":
        raise UnsupportedCombination(
            f"release {release!r} is not that of noisy queries; account covers trace and last_iterate, and the room "
            "mechanisms the others."
        )
    Adjacency(adjacency)  # refuses an unknown one as a combination, as the accountant is
    promise = Privacy(delta=delta, adjacency=adjacency, accountant=accountant, calibrator="free")
    guarantee = charged_guarantee(schedule, promise)[0]
    return guarantee.bracket() if bracket else guarantee


def _last_iterate(schedule: Schedule, problem: Problem | None) -> Event:
    """Event of a noisy descent (``noisy_descent.py``); every condition of the theorem that fails is named."""
    if not isinstance(schedule.sampling, Full):
        raise UnsupportedCombination(
            "release last_iterate needs full batches (sampling full): no theorem here covers the last iterate of "
            "minibatch steps."
        )
    if problem is None:
        raise UnsupportedCombination(
            "release last_iterate rests on a strongly convex, smooth potential with bounded gradients: give problem="
            "Problem(step_size, strong_convexity, smoothness, lipschitz, clip)."
        )
    z = schedule.noise_multipliers
    if np.ptp(z) > 0:
        raise UnsupportedCombination("release last_iterate needs the same noise multiplier at every step.")
    eta = problem.step_size / schedule.num_records
    c = noisy_descent.contraction(eta, problem.strong_convexity, problem.smoothness)
    return Event(
        "noisy_descent",
        float(z[0]) / (1 + KAPPA),
        1.0,
        schedule.chains,
        steps=len(z),
        contraction=c,
    )


def per_step(values: float | Sequence[float] | np.ndarray, steps: int, name: str) -> np.ndarray:
    """(steps,) float64 from a number or an array of that length.

    Raises:
        ValueError: another length, negative or not finite.
    """
    array = np.asarray(values, np.float64)
    if array.ndim == 0:
        array = np.full(steps, float(array))
    if array.shape != (steps,):
        raise InputError(f"{name} must be a number or have one entry per step ({steps}), got {array.shape}")
    if not np.all(np.isfinite(array)) or np.any(array < 0):
        raise InputError(f"{name} must be finite and >= 0")
    return array


def check_counts(steps: int, chains: int) -> None:
    """Raise ValueError unless steps >= 1 and chains >= 1."""
    if steps < 1 or chains < 1:
        raise InputError(f"steps and chains must be at least 1, got {steps} and {chains}")
