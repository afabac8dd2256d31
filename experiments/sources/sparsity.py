r"""Columns that matter: a sparse posterior of a noise-aware release, beside best-subset selection by the exponential
mechanism (thesis, Example 2.22, and its outlook on known sparsity, chapter 11).

    python -m experiments.sources.sparsity [--quick] --out DIR

**The posterior.** The release is XᵀX and Xᵀy with noise, (ε, δ)-DP; all that follows costs nothing more. A coefficient
is 0 or normal (Mitchell and Beauchamp 1988), and the released u has the law of ``dpmcmc/inference/evidence.py``:

    θ_j = 0 with probability 1 − π, else θ_j ~ N(0, v²);      u = Hθ + e,   e ~ N(0, 𝒞)                         (1)

The support S is the set of coefficients that are not 0. With A = H𝒞⁻¹H, b = H𝒞⁻¹u and V = v²I the density of u given S
is, up to a constant,

    log p(u|S) = ½ b_Sᵀ(A_SS + V_S⁻¹)⁻¹b_S − ½ log|V_S A_SS + I|.

All 2^d supports, or all of s columns where s is known, are enumerated. 𝒞 holds the variance of the score, the noise of
privacy, and the error of Ĥ, which multiplies θ. The last part is that of the posterior under the normal prior, which is
wider than the sparse one. So 𝒞 is rather too large, and a coefficient that the noise nearly hides gets rather too small
an inclusion probability.

**The baseline** releases one support S of s columns with probability ∝ exp(−c·F_S),

    F_S = min over ‖θ‖ <= R, θ zero outside S, of Σ ½(y − x·θ)²,      c = ε/(k·B),   B = ½(Y + bR)².

It is ε-DP. A record's loss lies in [0, B] on the ball ‖θ‖ <= R, for ‖x‖ <= b and |y| <= Y. Let G be the sum without the
record that differs. Then min G <= min(G + ℓ) <= min G + B for each S, so adding a record raises F_S by [0, B], and a
replaced one moves it by [−B, B]. These changes vary over S by k·B at most, with k = 2 for replace_one and 1 else, and
the log probability of S moves by c times that at most. The sensitivity of the minimum is that of one loss.

Left, how often a method names the true support: the probability of the exponential mechanism's draw, and the frequency
at which the most probable support is the true one. Right, coefficients drawn from the prior: the frequency at which a
coefficient is not 0 against the inclusion probability that was said, with the noise of the release in the likelihood
and, a planted fault, without it. The data are generated.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import softmax

from dpmcmc.inference import Evidence
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.mechanisms.vote import weights_of
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.query.randomness import streams_of
from dpmcmc.targets import LinearRegression
from experiments.pictures import BLUE, GREY, RED, SKY, on_epsilon, points, saved
from experiments.sources.script import script

EXPONENTIAL = "exponential mechanism"
KNOWN, UNKNOWN = "release, number of columns known", "release, number of columns unknown"
WITH, WITHOUT = "with the noise of the release", "noise of the release ignored"
#: n, d, s, the size of the s coefficients, σ of y given x, public bounds of rows and labels, and radius of the ball.
N, D, SIZE, COEFFICIENT, NOISE_SCALE, BOUND, RADIUS = 5000, 10, 3, 0.37, 0.3, 1.0, 1.0
DELTA, EPSILONS, REPEATS = 1e-6, (0.1, 0.17, 0.3, 0.55, 1.0), 200
#: Spike and slab: probability that a coefficient is not 0, and its standard deviation.
INCLUSION, SLAB = 0.3, 0.5
#: ε, data sets and bins of the right panel.
CALIBRATION_EPSILON, CALIBRATION_REPEATS, BINS = 0.3, 600, 8


class SparsePosterior(NamedTuple):
    """Supports (k, d), the most probable first, their probabilities (k,), and means of θ given each (k, d)."""

    supports: np.ndarray
    probabilities: np.ndarray
    means: np.ndarray

    @property
    def inclusion(self) -> np.ndarray:
        """Posterior probability that each coefficient is not 0, (d,)."""
        return np.minimum(self.probabilities @ self.supports, 1.0)

    def probability(self, support: np.ndarray) -> float:
        """Return the posterior probability of a support, (d,) bool."""
        return float(self.probabilities[np.all(self.supports == support, axis=1)].sum())


def supports_of(d: int, size: int | None) -> np.ndarray:
    """Return every support of ``size`` columns, or every support, (k, d) bool."""
    every = np.array(list(itertools.product((False, True), repeat=d)))
    return every if size is None else every[every.sum(axis=1) == size]


def sparse_posterior(evidence: Evidence, inclusion: float, slab: float, size: int | None = None) -> SparsePosterior:
    """Return the posterior under a spike and slab by enumeration; ``size`` columns where that is known."""
    informed = np.linalg.solve(evidence.covariance, evidence.curvature)
    precision = evidence.curvature @ informed
    pull = informed.T @ evidence.statistic
    supports = supports_of(len(pull), size)
    logs, means = np.zeros(len(supports)), np.zeros(supports.shape)
    odds = np.log(inclusion) - np.log1p(-inclusion) - np.log(slab)
    for row, support in enumerate(supports):
        at = np.flatnonzero(support)
        root = np.linalg.cholesky(precision[np.ix_(at, at)] + np.eye(len(at)) / slab**2)
        half = np.linalg.solve(root, pull[at])
        logs[row] = 0.5 * half @ half - np.sum(np.log(np.diag(root))) + odds * len(at)
        means[row, at] = np.linalg.solve(root.T, half)
    probabilities = softmax(logs)
    order = np.argsort(-probabilities, kind="stable")
    return SparsePosterior(supports[order], probabilities[order], means[order])


def subset_losses(x: np.ndarray, y: np.ndarray, size: int, radius: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the supports of ``size`` columns, (M, d) bool, and F_S less Σ ½y², (M,)."""
    gram, moment = x.T @ x, x.T @ y
    supports = supports_of(x.shape[1], size)
    losses = np.zeros(len(supports))
    for number, support in enumerate(supports):
        at = np.flatnonzero(support)
        values, vectors = np.linalg.eigh(gram[np.ix_(at, at)])
        theta = ball_minimiser(np.maximum(values, 0.0), vectors.T @ moment[at], radius)
        losses[number] = 0.5 * values @ theta**2 - theta @ (vectors.T @ moment[at])
    return supports, losses


def ball_minimiser(values: np.ndarray, pull: np.ndarray, radius: float) -> np.ndarray:
    """Return the minimiser of ½Σ values·t² − pull·t over ‖t‖ <= radius, (k,)."""

    def excess(ridge: float) -> float:
        return float(np.linalg.norm(pull / (values + ridge))) - radius

    tiny = 1e-12 * (1 + values.max())
    if excess(tiny) <= 0:
        return pull / (values + tiny)
    return pull / (values + brentq(excess, tiny, float(np.linalg.norm(pull)) / radius))


def coefficient_of(epsilon: float, adjacency: str = "replace_one") -> float:
    """Return c."""
    bound = 0.5 * (BOUND + BOUND * RADIUS) ** 2
    return epsilon / (Adjacency(adjacency).sensitivity * bound)


def probabilities_of(losses: np.ndarray, coefficient: float) -> np.ndarray:
    """Return the probability of each support under the exponential mechanism, (M,)."""
    weights = weights_of(-coefficient * (losses - losses.min()))
    return np.array([weight / sum(weights) for weight in weights])


def released(epsilon: float, seeds: tuple[int, ...], repeats: int) -> Iterator[tuple[Any, np.ndarray, Evidence]]:
    """Yield (records, true θ, released evidence) of fresh data sets; with two ``seeds`` θ is drawn from the prior."""
    target = LinearRegression(SLAB, NOISE_SCALE, BOUND, num_features=D, row_bound=BOUND)
    plan: Plan = NoiseAware(draws=1).plan(target, num_records=N, epsilon=epsilon, delta=DELTA)
    for repeat in range(repeats):
        rng = np.random.default_rng([*seeds, repeat])
        if len(seeds) > 1:
            there = rng.random(D) < INCLUSION
            theta = np.where(there, SLAB * rng.normal(size=D), 0.0)
        else:
            theta = np.zeros(D)
            theta[rng.choice(D, SIZE, replace=False)] = COEFFICIENT * rng.choice([-1.0, 1.0], SIZE)
        x = rng.normal(size=(N, D))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        y = np.clip(x @ theta + NOISE_SCALE * rng.normal(size=N), -BOUND, BOUND)
        records = {"x": x, "y": y}
        evidence = plan.mechanism.drawn(plan, records, streams_of(repeat)[0]).evidence
        assert isinstance(evidence, Evidence)
        yield records, theta, evidence


def named(epsilon: float, repeats: int) -> list[dict[str, Any]]:
    """Return the left panel's rows at one ε: how often the true support is named, on the same data sets at each ε."""
    found: dict[str, list[tuple[float, float]]] = {EXPONENTIAL: [], KNOWN: [], UNKNOWN: []}
    for records, theta, evidence in released(epsilon, (0,), repeats):
        supports, losses = subset_losses(records["x"], records["y"], SIZE, RADIUS)
        chance = probabilities_of(losses, coefficient_of(epsilon))[np.all(supports == (theta != 0), axis=1)][0]
        found[EXPONENTIAL].append((chance, chance))
        for method, size in ((KNOWN, SIZE), (UNKNOWN, None)):
            posterior = sparse_posterior(evidence, INCLUSION, SLAB, size)
            hit = float(np.all(posterior.supports[0] == (theta != 0)))
            found[method].append((hit, posterior.probability(theta != 0)))
    rows = []
    for method, values in found.items():
        hits, said = np.array(values).T
        rows.append({
            "panel": "support",
            "method": method,
            "epsilon": epsilon,
            "delta": 0.0 if method == EXPONENTIAL else DELTA,
            "said": np.mean(said),
            "found": np.mean(hits),
            "found_error": np.std(hits, ddof=1) / np.sqrt(len(hits)),
            "count": len(hits),
        })  # fmt: skip
    return rows


def calibrated(epsilon: float, repeats: int) -> list[dict[str, Any]]:
    """Return the right panel's rows: inclusion probabilities that were said, and how often they held."""
    said: dict[str, list[np.ndarray]] = {WITH: [], WITHOUT: []}
    truths = []
    for _, theta, evidence in released(epsilon, (0, 1), repeats):
        truths.append(theta != 0)
        # Linear regression without noise: u = Xᵀy/φ, and H = 𝒞 = XᵀX/φ.
        noiseless = dataclasses.replace(evidence, covariance=evidence.curvature)
        for method, one in ((WITH, evidence), (WITHOUT, noiseless)):
            said[method].append(sparse_posterior(one, INCLUSION, SLAB).inclusion)
    rows = []
    true = np.concatenate(truths)
    for method, values in said.items():
        each = np.concatenate(values)
        bins = np.minimum((each * BINS).astype(int), BINS - 1)
        for number in np.unique(bins):
            inside = bins == number
            count, chance = int(inside.sum()), float(true[inside].mean())
            rows.append({
                "panel": "calibration",
                "method": method,
                "epsilon": epsilon,
                "delta": DELTA,
                "said": each[inside].mean(),
                "found": chance,
                "found_error": np.sqrt(max(chance * (1 - chance), 0.25 / count) / count),
                "count": count,
            })  # fmt: skip
    return rows


def rows(quick: bool) -> list[dict[str, Any]]:
    """Return the rows of results.csv."""
    repeats, others = (20, 20) if quick else (REPEATS, CALIBRATION_REPEATS)
    supports = [row for epsilon in EPSILONS for row in named(epsilon, repeats)]
    return supports + calibrated(CALIBRATION_EPSILON, others)


def picture(path: Path, rows: list[dict[str, Any]], note: str | None) -> None:
    """Draw how often the true support is named, and whether inclusion probabilities hold."""
    says = "One noise-aware release names the true columns at a third of the ε that the exponential mechanism needs"
    about = (
        f"Generated data: n = {N:,}, d = {D}, {SIZE} coefficients of {COEFFICIENT:g} that are not 0; release at "
        f"δ = 1e-6, exponential mechanism at 0; {rows[0]['count']} data sets"
    )

    def line(axis: Any, across: str, method: str, colour: str, dashes: str) -> None:
        of = [row for row in rows if row["method"] == method]
        points(axis, of, across, "found", "found_error", color=colour, ls=dashes, label=method)

    with saved(path, (10.4, 4.6), says, about, note) as figure:
        left, right = figure.subplots(1, 2)
        for method, colour, dashes in ((KNOWN, BLUE, "-"), (UNKNOWN, SKY, "-"), (EXPONENTIAL, GREY, "--")):
            line(left, "epsilon", method, colour, dashes)
        on_epsilon(left, EPSILONS)
        left.set_ylabel("probability that the true support is named")
        right.plot([0, 1], [0, 1], color=GREY, ls=":", lw=1, label="as said")
        for method, colour in ((WITH, BLUE), (WITHOUT, RED)):
            line(right, "said", method, colour, "none")
        right.set_xlabel(f"inclusion probability that is said (ε = {CALIBRATION_EPSILON:g})")
        right.set_ylabel("share of coefficients that are not 0")
        for axis, place in ((left, "lower right"), (right, "upper left")):
            axis.set_ylim(-0.02, 1.03)
            axis.legend(frameon=False, fontsize=8.5, loc=place)


main = script(
    "sparsity",
    "Draw which columns a private release names.",
    rows,
    "{panel}, ε {epsilon:g}, {method}: said {said:.3f}, found {found:.3f} ± {found_error:.2g} ({count})",
    picture,
)

if __name__ == "__main__":
    raise SystemExit(main())
