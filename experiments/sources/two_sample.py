r"""A test of whether two sets of chains have one law, of any order: higher orders see tails and spread.

    python -m experiments.sources.two_sample [--quick] [--out DIR]

The order-k Kolmogorov–Smirnov statistic (Wang, thesis section 8.5) is ‖H₂ᵀ(1_X/m − 1_Y/n)‖_∞ over the pooled, sorted
draws z_1 < … < z_{m+n}. H is the falling factorial basis of order k and H₂ its columns from k + 2 on:

    h_{k+1+j}(z) = Π_{l=1..k} (z − z_{j+l}) · 1{z >= z_{j+k+1}}.

Order 0 is the classical statistic. The product with Hᵀ takes O(k(m + n)) operations (Algorithm 9, which multiplies by
gaps; it is printed with a division). Draws are scaled to [0, 1] first. The law under the null depends on that of the
draws where k >= 1, so it is found by exchanging whole chains, which also allows for draws that depend on each other.

The table has the power of the source's Figures 8.3 to 8.6: against tails it rises with the order, against a shift it
falls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from experiments.sources.script import script

Pair = Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]


class TwoSample(NamedTuple):
    """Statistic, and the chance of one as large where both sets have one law."""

    statistic: float
    p_value: float


def two_sample(
    first: np.ndarray,
    second: np.ndarray,
    order: int = 3,
    exchanges: int = 999,
    seed: int = 0,
) -> TwoSample:
    """Test whether two sets of chains have one law, in one coordinate.

    Args:
        first: (chains, draws), or (draws,) that are independent.
        second: as ``first``; chains of the same length.
        order: k >= 0. 3 is the most sensitive to tails of the source's experiments.
        exchanges: of chains between the sets; the smallest p-value is 1/(exchanges + 1).
        seed: of the exchanges.
    """
    sets = [np.asarray(draws, np.float64) for draws in (first, second)]
    sets = [draws[:, None] if draws.ndim == 1 else draws for draws in sets]
    chains = np.concatenate(sets)
    count = len(sets[0])
    statistic = _Statistic(chains, order)
    observed = statistic(np.arange(len(chains)) < count)
    rng = np.random.default_rng(seed)
    more = 0
    for _ in range(exchanges):
        more += statistic(rng.permutation(len(chains)) < count) >= observed * (1 - 1e-12)
    return TwoSample(observed, (1 + more) / (1 + exchanges))


class _Statistic:
    """The statistic of any split of the same chains into two sets."""

    def __init__(self, chains: np.ndarray, order: int) -> None:
        pooled = chains.ravel()
        low = pooled.min()
        scaled = (pooled - low) / max(float(pooled.max() - low), 1e-300)
        self.places = np.argsort(scaled, kind="stable")
        self.points = scaled[self.places]
        self.of_chain = np.repeat(np.arange(len(chains)), chains.shape[1])[self.places]
        self.order = order
        # Order 0 looks at draws that are equal together.
        self.ends = np.append(np.diff(self.points) > 0, True)

    def __call__(self, in_first: np.ndarray) -> float:
        """Args: in_first: whether a chain is in the first set, (chains,) bool."""
        chosen = in_first[self.of_chain]
        weights = np.where(chosen, 1 / chosen.sum(), -1 / (~chosen).sum())
        sums = transposed_product(weights, self.points, self.order)[self.order + 1 :]
        if self.order == 0:
            # Entry j is the sum from draw j + 2 on, which counts where draw j + 1 is the last of its value.
            sums = sums[self.ends[:-1]]
        return float(np.abs(sums).max(initial=0.0))


def transposed_product(weights: np.ndarray, points: np.ndarray, order: int) -> np.ndarray:
    """Hᵀ·weights for the falling factorial basis over sorted points, (n,); Algorithm 9 with products of gaps."""
    out = np.array(weights, np.float64)
    n = len(out)
    for i in range(order + 1):
        if i:
            out[i:] *= points[i:] - points[: n - i]
        out[i:] = np.cumsum(out[i:][::-1])[::-1]
    return out


def tails(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw from N(0, 1) and from Student's t with three degrees of freedom."""
    return rng.normal(size=200), rng.standard_t(3, size=200)


def shift(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw from a Laplace law and from the same shifted by .5."""
    return rng.laplace(size=100), rng.laplace(0.5, size=100)


def power(pair: Pair, order: int, repeats: int, level: float = 0.05) -> float:
    """Return the share of pairs of sets that the test rejects at ``level``."""
    found = [
        two_sample(*pair(np.random.default_rng([order, i])), order, 99, i).p_value <= level for i in range(repeats)
    ]
    return float(np.mean(found))


def rows(repeats: int) -> list[dict[str, Any]]:
    """Return the rows of results.csv."""
    return [
        {"pair": name, "order": order, "power": power(pair, order, repeats), "repeats": repeats}
        for name, pair in (("tails", tails), ("shift", shift))
        for order in (0, 1, 3)
    ]


main = script(
    "two_sample",
    "Power of the order-k test against tails and against a shift.",
    lambda quick: rows(10 if quick else 100),
    "{pair}, order {order}: power {power:.2f}",
)

if __name__ == "__main__":
    raise SystemExit(main())
