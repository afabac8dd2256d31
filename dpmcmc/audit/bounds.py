r"""Lower bounds on ε from scores of runs on two neighbouring data sets.

``clopper_pearson``  proved. A threshold chosen on one half of the runs is applied to the other half, whose two error
                     rates have exact binomial bounds (Nasr et al. 2021, arXiv 2101.04535; jax-privacy, ``Split``).
``claimed_curve`` proved. At one threshold the same two bounds test (ε, δ(ε)) at EVERY ε: a claim made at δ = 1e-6 is a
                     whole curve, and a few runs test it well where δ is large.
``gdp``              an ESTIMATE, for scores that are Gaussian: then the mechanism is at least μ-GDP on this pair.
``one_run``          proved. Many records in one run, each in or out by a fair coin (Steinke, Nasr and Jagielski 2023,
                     arXiv 2305.08846, Theorem 5.2).

Only those estimates of jax-privacy 2.0 that are confidence bounds are used. Its ``epsilon_from_gdp`` is not one: it
takes |Φ⁻¹(1 − FPR) − Φ⁻¹(FNR)| of UPPER bounds on the two rates, which is large where the bounds are wide. On scores of
one law (true ε 0, 1000 runs each, δ = 1e-5) it gives 3.9. ``threshold_strategy=Bonferroni`` divides by the number of
thresholds on the Pareto frontier of the data, which is less than the number that it searches.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

import numpy as np
from scipy import stats
from scipy.optimize import brentq
from scipy.special import ndtr

from dpmcmc.errors import InputError
from dpmcmc.privacy.accounting.gaussian import gaussian_epsilon

#: Level of the test that scores are Gaussian; three tests share it.
_NOT_GAUSSIAN = 1e-3
#: Shares of the canaries that are guessed. They are fixed in advance, and each has its share of the significance.
_GUESSED = (1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125)
#: Points of the law of a sample's standard deviation that gdp averages over.
_QUANTILES = 4096
#: Most thresholds that the first half of the runs chooses from.
_THRESHOLDS = 512


class MissingExtra(InputError):
    """An optional dependency that a method needs is not installed.

    Example:
        >>> from dpmcmc.audit import MissingExtra
        >>> from dpmcmc.errors import InputError
        >>> issubclass(MissingExtra, InputError)
        True
    """


class NotGaussian(InputError):
    """Scores contradict the one assumption of ``gdp``.

    Example:
        >>> import dpmcmc
        >>> from dpmcmc.audit import NotGaussian
        >>> from dpmcmc.errors import InputError
        >>> issubclass(NotGaussian, InputError)
        True
    """


def auditing(method: str) -> ModuleType:
    """Return the module ``jax_privacy.auditing``.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        return importlib.import_module("jax_privacy.auditing")
    except ImportError:
        raise MissingExtra(
            f"method: {method} needs jax-privacy, which is not installed; run pip install 'dpmcmc[audit]'"
        ) from None


def clopper_pearson(inside: np.ndarray, outside: np.ndarray, delta: float, significance: float) -> float:
    """Return a lower bound on ε at ``delta``, larger than the truth with probability at most ``significance``.

    Args:
        inside: scores of independent runs on one data set, (n,); higher where a run looks like it.
        outside: scores of runs on its neighbour, (n',).
        delta: of the claim.
        significance: one minus confidence.

    Raises:
        MissingExtra: jax-privacy is not installed.
        ValueError: fewer than two runs of either.
    """
    _check(inside, outside, 2)
    module = auditing("clopper_pearson")
    found = module.CanaryScoreAuditor(inside, outside).epsilon_clopper_pearson(
        significance, delta, one_sided=False, threshold_strategy=module.Split(seed=0)
    )
    return max(0.0, float(found))


class Curve(NamedTuple):
    """Evidence of runs about a claimed curve δ(ε), at the ε where the ratio of shown to claimed δ is largest.

    Attributes:
        epsilon: where.
        claimed: δ that is claimed there.
        shown: lower bound on the true δ there.
    """

    epsilon: float
    claimed: float
    shown: float

    @property
    def violated(self) -> bool:
        """Whether the runs contradict the claim."""
        return self.shown > self.claimed


def claimed_curve(
    inside: np.ndarray, outside: np.ndarray, claims: Sequence[tuple[float, float]], significance: float
) -> Curve:
    """Compare scores with several (ε, δ) claims about one mechanism.

    If all claims are true, some claim is found violated with probability at most ``significance``: the bounds on the
    two rates hold together, and every claim is compared with them.

    Args:
        inside, outside, significance: as for :func:`clopper_pearson`.
        claims: (ε, δ) pairs.

    Raises:
        ValueError: fewer than two runs of either, or no claim.
    """
    _check(inside, outside, 2)
    if not claims:
        raise InputError("claims: at least one (epsilon, delta) is needed")
    middle = len(inside) // 2
    middle_outside = len(outside) // 2
    first = np.sort(inside[:middle])
    first_outside = np.sort(outside[:middle_outside])
    thresholds = np.unique(np.concatenate([first, first_outside]))
    if len(thresholds) > _THRESHOLDS:
        thresholds = thresholds[np.linspace(0, len(thresholds) - 1, _THRESHOLDS).astype(int)]
    e_epsilon = np.exp(np.array([epsilon for epsilon, _ in claims]))[:, None]
    delta = np.array([delta for _, delta in claims])[:, None]
    threshold = thresholds[
        np.argmax(
            _surprise(
                np.searchsorted(first, thresholds),
                np.searchsorted(first_outside, thresholds),
                (middle, middle_outside),
                e_epsilon,
                delta,
            )
        )
    ]
    second = inside[middle:]
    second_outside = outside[middle_outside:]
    n = len(second)
    n_outside = len(second_outside)
    miss = float(_upper(np.sum(second < threshold), n, significance / 2))
    alarm = float(_upper(np.sum(second_outside >= threshold), n_outside, significance / 2))
    found = np.maximum(1 - miss - e_epsilon * alarm, 1 - alarm - e_epsilon * miss)[:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        at = int(np.argmax(np.where(found > 0, found / delta[:, 0], 0.0)))
    return Curve(claims[at][0], claims[at][1], max(0.0, float(found[at])))


def gdp(inside: np.ndarray, outside: np.ndarray, delta: float, significance: float) -> float:
    """Return an ESTIMATE of a lower bound on ε at ``delta``, assuming Gaussian scores of one variance.

    Under that assumption the scores are N(0, σ²) and N(μσ, σ²), t = difference of means over its standard error is
    noncentral t, and inverting its law bounds μ exactly; ε follows from μ by the Gaussian profile.

    Args:
        inside, outside, delta, significance: as for :func:`clopper_pearson`.

    Raises:
        NotGaussian: normality or equal variance is rejected at level 1e-3.
        ValueError: fewer than 20 runs of either.
    """
    _check(inside, outside, 20)
    n = len(inside)
    m = len(outside)
    p = min(stats.normaltest(inside).pvalue, stats.normaltest(outside).pvalue, stats.bartlett(inside, outside).pvalue)
    if not p >= _NOT_GAUSSIAN / 3:
        raise NotGaussian(
            f"method: gdp assumes Gaussian scores of one variance, which {n} + {m} runs contradict (p = {p:.1g}); use "
            "clopper_pearson"
        )
    freedom = n + m - 2
    pooled = math.sqrt(((n - 1) * np.var(inside, ddof=1) + (m - 1) * np.var(outside, ddof=1)) / freedom)
    error = math.sqrt(1 / n + 1 / m)
    t = float(np.mean(inside) - np.mean(outside)) / (pooled * error)
    # t = (N(c, 1))/√(χ²_ν/ν); averaged over quantiles of the denominator, since SciPy's series fails for large t.
    denominators = np.sqrt(stats.chi2.ppf((np.arange(_QUANTILES) + 0.5) / _QUANTILES, freedom) / freedom)

    def larger(noncentrality: float) -> float:
        """Probability of a larger t, less ``significance``."""
        return float(np.mean(ndtr(noncentrality - t * denominators))) - significance

    if larger(0.0) >= 0:
        return 0.0
    lowest = brentq(larger, 0.0, t + 1.0)
    return gaussian_epsilon(lowest * error, delta)


def one_run(scores: np.ndarray, coins: np.ndarray, delta: float, significance: float) -> float:
    """Return a lower bound on ε at ``delta`` from one run with many canaries.

    The r/2 highest scores are guessed to be in and the r/2 lowest to be out, r fixed beforehand: the theorem needs a
    number of guesses that does not depend on the data. The best of several r is taken, each at its share of the
    significance. jax-privacy gets guesses as right or wrong, because its own search lets the data choose r.

    Args:
        scores: of each canary, (m,); higher where it looks to be in.
        coins: independent fair coins, (m,) bool: whether it was.
        delta: of the claim, per canary.
        significance: one minus confidence.

    Raises:
        MissingExtra: jax-privacy is not installed.
        ValueError: fewer than 2 canaries.
    """
    _check(scores, coins, 2)
    module = auditing("one_run")
    m = len(scores)
    order = np.argsort(scores, kind="stable")
    best = 0.0
    for share in _GUESSED:
        half = max(1, int(share * m) // 2)
        right = int(np.sum(coins[order[-half:]]) + np.sum(~coins[order[:half]]))
        # A guessed canary scores 1 and one that abstains 0; each side needs some that abstain.
        rest = max(m - 2 * half, 0)
        guessed = np.r_[np.ones(right), np.zeros(rest - rest // 2)]
        wrong = np.r_[np.ones(2 * half - right), np.zeros(rest // 2)]
        if not (len(guessed) and len(wrong)):
            # One more canary that abstains weakens the bound by δ alone.
            guessed = np.r_[guessed, 0.0]
            wrong = np.r_[wrong, 0.0]
        found = module.CanaryScoreAuditor(guessed, wrong).epsilon_one_run(
            significance / len(_GUESSED), delta, threshold_strategy=module.Explicit(0.5)
        )
        best = max(best, float(found))
    return best


def _surprise(
    below: np.ndarray, below_outside: np.ndarray, sizes: tuple[int, int], e_epsilon: np.ndarray, delta: np.ndarray
) -> np.ndarray:
    """Return each threshold's evidence against the claim it contradicts most, in standard errors, (thresholds,)."""
    # Add one to each count, so that no rate is exactly 0.
    miss = (below + 1) / (sizes[0] + 2)
    alarm = 1 - (below_outside + 1) / (sizes[1] + 2)
    spread = miss * (1 - miss) / sizes[0]
    spread_outside = alarm * (1 - alarm) / sizes[1]
    one = (1 - miss - e_epsilon * alarm - delta) / np.sqrt(spread + e_epsilon**2 * spread_outside)
    other = (1 - alarm - e_epsilon * miss - delta) / np.sqrt(spread_outside + e_epsilon**2 * spread)
    return np.maximum(one, other).max(axis=0)


def _upper(count: np.ndarray, trials: int, significance: float) -> np.ndarray:
    """Return Clopper and Pearson's upper bound on a probability."""
    with np.errstate(invalid="ignore"):
        bound = stats.beta.ppf(1 - significance, count + 1, trials - count)
    return np.where(count < trials, bound, 1.0)


def _check(inside: np.ndarray, outside: np.ndarray, least: int) -> None:
    if min(len(inside), len(outside)) < least:
        raise InputError(f"runs: at least {least} are needed, got {min(len(inside), len(outside))}")
    if not (np.all(np.isfinite(inside)) and np.all(np.isfinite(outside))):
        raise InputError("scores: some are not finite; shorten the run with --steps")
