"""Lower bounds on ε from scores of runs on two neighbouring data sets.

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
from dataclasses import dataclass
from types import ModuleType
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Ge, Gt, Lt
from scipy import stats
from scipy.optimize import brentq
from scipy.special import ndtr

from dpmcmc.errors import Checked, InputError
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
            f"method: {method} needs jax-privacy, which is not installed; run pip install jax-privacy"
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
    inside: np.ndarray,
    outside: np.ndarray,
    claims: Sequence[tuple[float, float]],
    significance: float,
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
    p = min(
        stats.normaltest(inside).pvalue,
        stats.normaltest(outside).pvalue,
        stats.bartlett(inside, outside).pvalue,
    )
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
    below: np.ndarray,
    below_outside: np.ndarray,
    sizes: tuple[int, int],
    e_epsilon: np.ndarray,
    delta: np.ndarray,
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


# ------------------------------------------------------------------------------------
# The black-box tester of approximate DP of McMillan (dissertation 2018, Part IV, Algorithm 4), corrected.
#
# For laws p, q on n outcomes, δ_ε = Σ max(0, p_i − e^ε q_i). The tester draws Poisson(λ) runs of either,
#
#     λ = max(4n, 24)(1 + e^{2ε})/α²,      z = Σ_i max(0, x_i − e^ε y_i)/λ,
#
# and accepts (ε, δ) iff z < δ + α in BOTH orders. With error at most 1/3 it accepts what is (ε, δ)-DP on this pair,
# and rejects what is not even (ε, δ + 2α)-DP. Counts of Poisson(λ) runs are independent Poissons, so
#
#     0 <= E z − δ_ε <= √(n(1 + e^{2ε})/λ) <= α/2   (Jensen; Cauchy–Schwarz),       Var z <= (1 + e^{2ε})/λ <= α²/24
#
# and Chebyshev's inequality leaves 1/6 an order. Corrections of the printed algorithm: two independent sample sizes
# (one shared r makes the counts dependent), division by λ and not by r, both orders (24 in place of 12), the sum over
# outcomes. The same two facts bound δ_ε from below at any confidence. The verdict here uses that bound, since an error
# of 1/3 is too large.
#
# No such tester exists for δ = 0 (Theorem 10.5), and none needs fewer than about 1/α² runs: δ below 1e-3 is out of
# reach.


class Histogram(NamedTuple):
    """Findings of the tester.

    Attributes:
        epsilon: at which the claim was tested.
        runs: on one data set and on its neighbour.
        statistic: z, the larger of the two orders.
        accepted: the tester's answer, wrong with probability at most 1/3.
        delta_lower: lower bound on the true δ at ``epsilon``, at the confidence asked for.
    """

    epsilon: float
    runs: tuple[int, int]
    statistic: float
    accepted: bool
    delta_lower: float

    def epsilon_lower(self, delta: float) -> float:
        """Return a lower bound on ε at ``delta``.

        An (ε*, δ)-DP pair has δ_ε <= 1 − (1 − δ)(1 + e^ε)/(1 + e^ε*), the trade-off of its extreme pair.
        """
        if self.delta_lower <= delta:
            return 0.0
        if self.delta_lower >= 1:
            return math.inf
        odds = (1 - delta) * (1 + math.exp(self.epsilon)) / (1 - self.delta_lower) - 1
        return max(0.0, math.log(odds)) if odds > 0 else 0.0


@dataclass(frozen=True)
class Tester(Checked):
    """The tester of claims at one ε.

    Args:
        epsilon: ε of the claims.
        bins: n, outcomes.
        alpha: resolution in (0, 1).

    Raises:
        ValueError: a value outside these.
    """

    epsilon: Annotated[float, Ge(0), Lt(300)]
    bins: Annotated[int, Ge(2)]
    alpha: Annotated[float, Gt(0), Lt(1)]

    @property
    def expected(self) -> float:
        """Expected runs λ on each of the two data sets."""
        return max(4 * self.bins, 24) * (1 + math.exp(2 * self.epsilon)) / self.alpha**2

    def judge(
        self,
        counts: np.ndarray,
        neighbour_counts: np.ndarray,
        *,
        delta: float,
        significance: float,
    ) -> Histogram:
        """Judge the claim (ε, δ) by counts of outcomes.

        Args:
            counts: (n,) of Poisson(λ) runs on one data set.
            neighbour_counts: (n,) of an INDEPENDENT Poisson number of runs on its neighbour.
            delta: of the claim.
            significance: of ``delta_lower``, shared by the two orders.
        """
        factor = math.exp(self.epsilon)
        x = np.asarray(counts, np.float64)
        y = np.asarray(neighbour_counts, np.float64)
        z = (
            max(
                np.sum(np.maximum(0, x - factor * y)),
                np.sum(np.maximum(0, y - factor * x)),
            )
            / self.expected
        )
        variance = (1 + factor**2) / self.expected
        lower = z - math.sqrt(len(x) * variance) - math.sqrt(variance / (significance / 2))
        return Histogram(
            self.epsilon,
            (int(x.sum()), int(y.sum())),
            float(z),
            bool(z < delta + self.alpha),
            float(min(max(lower, 0.0), 1.0)),
        )


def bin_counts(scores: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return counts of scores between public edges, (len(edges) + 1,)."""
    return np.bincount(np.searchsorted(edges, scores), minlength=len(edges) + 1)


def edges_of(pilot: np.ndarray, bins: int) -> np.ndarray:
    """Return bins − 1 edges at the quantiles of runs that are not tested themselves."""
    return np.quantile(pilot, np.arange(1, bins) / bins)
