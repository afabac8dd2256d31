"""Proved lower bounds on ε from scores of runs on two neighbouring data sets.

``clopper_pearson``  A threshold that is chosen on one half of the runs is applied to the other half, whose two error
                     rates have exact binomial bounds (Nasr et al. 2021, arXiv 2101.04535).
``advantage``        The same bounds on the total variation between the two laws, which a claim states too: it is δ at
                     ε = 0. A thousand runs say much about it, and little about a δ of 1e-6.
``one_run``          Many records in one run, each in or out by a fair coin (Steinke, Nasr and Jagielski 2023, arXiv
                     2305.08846, Theorem 5.2).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import stats
from scipy.special import expit

from dpmcmc.errors import InputError
from dpmcmc.privacy.accounting.bisection import largest

#: Shares of the canaries that are guessed. They are fixed in advance, and each has its share of the significance.
_GUESSED = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125)
#: An ε that no run shows.
_MOST_EPSILON = 50.0

#: (upper bounds on P[inside < threshold], on P[outside >= threshold]) -> what they show.
Worth = Callable[[np.ndarray, np.ndarray], np.ndarray]


def clopper_pearson(inside: np.ndarray, outside: np.ndarray, delta: float, significance: float) -> float:
    """Return a lower bound on ε at ``delta``, larger than the truth with probability at most ``significance``.

    Args:
        inside: scores of independent runs on one data set, (n,); higher where a run looks like it.
        outside: scores of runs on its neighbour, (n',).
        delta: of the claim.
        significance: one minus confidence.

    Raises:
        ValueError: fewer than two runs of either, or scores that are not finite.
    """

    def epsilon(miss: np.ndarray, alarm: np.ndarray) -> np.ndarray:
        with np.errstate(divide="ignore"):
            there = np.log(np.maximum(1 - miss - delta, 0)) - np.log(alarm)
            back = np.log(np.maximum(1 - alarm - delta, 0)) - np.log(miss)
        return np.maximum(np.maximum(there, back), 0.0)

    return _shown(inside, outside, epsilon, significance)


def advantage(inside: np.ndarray, outside: np.ndarray, significance: float) -> float:
    """Return a lower bound on the total variation between the laws of runs; arguments as of ``clopper_pearson``."""
    return _shown(inside, outside, lambda miss, alarm: np.maximum(1 - miss - alarm, 0.0), significance)


def _shown(inside: np.ndarray, outside: np.ndarray, worth: Worth, significance: float) -> float:
    """Return what the second half of the runs shows at the threshold that shows most on the first half."""
    _check(inside, outside)
    half = len(inside) // 2
    half_outside = len(outside) // 2

    def rates(thresholds: np.ndarray, part: slice, part_outside: slice) -> tuple[np.ndarray, np.ndarray]:
        below = np.searchsorted(np.sort(inside[part]), thresholds)
        below_outside = np.searchsorted(np.sort(outside[part_outside]), thresholds)
        n = len(outside[part_outside])
        miss = _upper(below, len(inside[part]), significance / 2)
        return miss, _upper(n - below_outside, n, significance / 2)

    thresholds = np.unique(np.concatenate([inside[:half], outside[:half_outside]]))
    most = int(np.argmax(worth(*rates(thresholds, slice(half), slice(half_outside)))))
    found = worth(*rates(thresholds[most : most + 1], slice(half, None), slice(half_outside, None)))
    return float(found[0])


def _upper(count: np.ndarray, trials: int, significance: float) -> np.ndarray:
    """Return Clopper and Pearson's upper bound on a probability."""
    with np.errstate(invalid="ignore"):
        bound = stats.beta.ppf(1 - significance, count + 1, trials - count)
    return np.where(count < trials, bound, 1.0)


def one_run(scores: np.ndarray, coins: np.ndarray, delta: float, significance: float) -> float:
    """Return a lower bound on ε at ``delta`` from one run with many canaries.

    The r/2 highest scores are guessed to be in and the r/2 lowest to be out, r fixed beforehand: the theorem needs a
    number of guesses that does not depend on the data. The best of several r is taken, each at its share of the
    significance.

    Args:
        scores: of each canary, (m,); higher where it looks to be in.
        coins: independent fair coins, (m,) bool: whether it was.
        delta: of the claim, per canary.
        significance: one minus confidence.

    Raises:
        ValueError: fewer than 2 canaries, or scores that are not finite.
    """
    _check(scores, coins)
    m = len(scores)
    order = np.argsort(scores, kind="stable")
    best = 0.0
    for share in _GUESSED:
        half = max(1, int(share * m) // 2)
        right = int(np.sum(coins[order[-half:]]) + np.sum(~coins[order[:half]]))

        def refuted(epsilon: float, guesses: int = 2 * half, right: int = right) -> bool:
            return _p_value(m, guesses, right, epsilon, delta) <= significance / len(_GUESSED)

        if refuted(best):
            best = largest(refuted, best, _MOST_EPSILON)
    return best


def _p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Return a bound on the probability that so many guesses are right, if each canary's (ε, δ) is true."""
    law = stats.binom(guesses, expit(epsilon))
    # A failure of probability δ may turn i wrong guesses into right ones, at a cost of i.
    i = np.arange(1, right + 1)
    turned = np.max(np.cumsum(law.pmf(right - i)) / i, initial=0.0)
    return float(law.sf(right - 1) + 2 * canaries * delta * turned)


def _check(inside: np.ndarray, outside: np.ndarray) -> None:
    if min(len(inside), len(outside)) < 2:
        raise InputError(f"runs: at least 2 are needed, got {min(len(inside), len(outside))}")
    if not (np.all(np.isfinite(inside)) and np.all(np.isfinite(outside))):
        raise InputError("scores: some are not finite; shorten the run with --steps")
