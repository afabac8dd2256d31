r"""The black-box tester of approximate privacy of McMillan (dissertation 2018, Part IV, Algorithm 4), corrected.

    python -m experiments.sources.histogram_tester [--quick] [--out DIR]

For laws p, q on n outcomes let δ_ε = Σ max(0, p_i − e^ε q_i). The tester draws Poisson(λ) runs of either,

    λ = max(4n, 24)(1 + e^{2ε})/α²,      z = Σ_i max(0, x_i − e^ε y_i)/λ,

and accepts (ε, δ) iff z < δ + α in both orders. With error at most 1/3 it accepts what is (ε, δ)-DP on this pair, and
rejects what is not even (ε, δ + 2α)-DP. Counts of Poisson(λ) runs are independent Poissons, so

    0 <= E z − δ_ε <= √(n(1 + e^{2ε})/λ) <= α/2   (Jensen; Cauchy and Schwarz),    Var z <= (1 + e^{2ε})/λ <= α²/24

and Chebyshev's inequality leaves 1/6 an order. Corrections of the printed algorithm: two independent sample sizes (one
shared size makes the counts dependent), division by λ and not by the size, both orders (24 in place of 12), and the sum
over outcomes. The same two facts bound δ_ε from below at any confidence. No such tester exists for δ = 0 (Theorem
10.5), and none needs fewer than about 1/α² runs, so a δ below 1e-3 is out of reach.

The script tests full-batch steps of SGLD by this library: the claim that their plan makes, and a tenth of its ε. The
outcome is the likelihood ratio of a step, in bins whose edges are public.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import dpmcmc
from dpmcmc.audit.neighbours import probe
from dpmcmc.audit.scores import source
from experiments.sources.script import script

#: Bins, resolution α, and the ε at which curves are tested: few runs show most where ε is 0.
BINS, ALPHA, AT = 4, 0.15, 0.0
SIGNIFICANCE = 0.05
#: ε of the plans, and runs that settle the bins.
EPSILONS, PILOT = (2.0, 8.0), 500


class Finding(NamedTuple):
    """z, the larger of the two orders; the answer, wrong with probability at most 1/3; a lower bound on the true δ."""

    statistic: float
    accepted: bool
    delta_lower: float


@dataclass(frozen=True)
class Tester:
    """The tester of claims at one ε >= 0, on n = ``bins`` outcomes, of resolution ``alpha`` in (0, 1)."""

    epsilon: float
    bins: int
    alpha: float

    @property
    def expected(self) -> float:
        """Expected runs λ on each of the two data sets."""
        return max(4 * self.bins, 24) * (1 + math.exp(2 * self.epsilon)) / self.alpha**2

    def judge(self, counts: np.ndarray, neighbour_counts: np.ndarray, delta: float, significance: float) -> Finding:
        """Judge the claim (ε, δ) by counts of outcomes, (n,) each, of independent Poisson(λ) numbers of runs."""
        factor = math.exp(self.epsilon)
        x, y = (np.asarray(part, np.float64) for part in (counts, neighbour_counts))
        orders = (np.sum(np.maximum(0, x - factor * y)), np.sum(np.maximum(0, y - factor * x)))
        z = float(max(orders)) / self.expected
        variance = (1 + factor**2) / self.expected
        lower = z - math.sqrt(len(x) * variance) - math.sqrt(variance / (significance / 2))
        return Finding(z, z < delta + self.alpha, min(max(lower, 0.0), 1.0))


def bin_counts(scores: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return counts of scores between edges, (len(edges) + 1,)."""
    return np.bincount(np.searchsorted(edges, scores), minlength=len(edges) + 1)


def rows(seed: int = 1, epsilons: tuple[float, ...] = EPSILONS) -> list[dict[str, Any]]:
    """Return the rows of results.csv: of each plan, its own claim and a tenth of its ε."""
    rng, tester, found = np.random.default_rng(seed), Tester(AT, BINS, ALPHA), []
    target = dpmcmc.targets.LogisticRegression(num_features=2, row_bound=1.0)
    for epsilon in epsilons:
        plan, less = (
            dpmcmc.plan(
                target,
                num_records=200,
                sampler=dpmcmc.SGLD(step_size=1e4),
                steps=1,
                privacy=dpmcmc.Privacy(epsilon=asked, delta=1e-5),
            )
            for asked in (epsilon, epsilon / 10)
        )
        model, neighbours = probe(plan)
        scores = source(plan, model, neighbours, seed)
        sides = (np.ones(1, bool), np.zeros(1, bool))
        pilot = np.concatenate([scores(side, PILOT)[:, 0] for side in sides])
        edges = np.quantile(pilot, np.arange(1, BINS) / BINS)
        sizes = rng.poisson(tester.expected, 2)
        # Both sides run equally often, so that one program serves both; runs beyond a sample's size are dropped.
        runs = [scores(side, int(sizes.max()))[:size, 0] for side, size in zip(sides, sizes, strict=True)]
        counts = [bin_counts(one, edges) for one in runs]
        for claim in (plan.guarantee, less.guarantee):
            assert claim is not None
            delta = claim.delta_at(AT)
            answer = tester.judge(*counts, delta=delta, significance=SIGNIFICANCE)
            found.append({
                "epsilon": epsilon,
                "claimed_epsilon": claim.epsilon,
                "delta_claimed": delta,
                "runs": int(sizes.sum()),
                **answer._asdict(),
            })  # fmt: skip
    return found


SAID = (
    "a step of ε = {epsilon:g}, claim ε = {claimed_epsilon:.3g}: δ(0) claimed {delta_claimed:.3g}, shown at least "
    "{delta_lower:.3g} by {runs:,} runs; accepted: {accepted}"
)
main = script(
    "histogram_tester",
    "McMillan's tester of approximate privacy on steps of SGLD.",
    lambda quick: rows(epsilons=EPSILONS[-1:] if quick else EPSILONS),
    SAID,
)

if __name__ == "__main__":
    raise SystemExit(main())
