r"""AdaOPS (Wang 2018; thesis, Algorithm 6), corrected, with its proof; beside other one-shot linear regressions.

    python -m experiments.sources.adaops [--quick] --out DIR

One draw θ ~ N(θ̂, H⁻¹/γ) of a ridge posterior, H = XᵀX + λI and θ̂ = H⁻¹Xᵀy, whose λ and γ are chosen privately. Public
are ‖x‖ <= b, |y| <= Y, d and N (under ``add_remove`` the larger of the two). k records' terms differ between
neighbours: 2 for ``replace_one``, 1 otherwise.

**Budget.** μ is the largest Gaussian-DP parameter with δ_Gauss(ε) <= .95 δ. μ² is shared: eigenvalue .1, residual .1,
draw .8. Three bounds may fail, each with probability φ/3, φ = .05 δ/(1 + e^ε), and q = −Φ⁻¹(φ/3).

**1. The smallest eigenvalue.** Adding a row moves each eigenvalue of XᵀX by [0, b²] (Weyl), so replacing one moves it
by b² at most. Released: v = λ_min + σ₁Z, σ₁ = b²/μ₁. Then low = max(0, v − qσ₁ − b²) exceeds the λ_min of either
neighbour with probability φ/3 at most. λ is a function of low, and h = low + λ is below λ_min(H) on both.

**2. A bound on residuals.** H'(θ̂' − θ̂) = x'(y' − x'·θ̂) − x(y − x·θ̂), and a residual at θ̂ is at most B = Y + b‖θ̂‖. So
‖θ̂' − θ̂‖ <= kbB/h, and log B has sensitivity log(1 + kb²/h). Released: w = log B + σ₂Z, and

    R = min( exp(w + qσ₂ + log(1 + kb²/h)),  Y(1 + b√N · max_{s² >= low} s/(s² + λ)) ).

The first is below a neighbour's B with probability φ/3 at most; the second needs no release: ‖θ̂‖ <= ‖H⁻¹Xᵀ‖·Y√N.

**3. The draw.** Let K be the convex set of θ with |y − x·θ| <= R' for each record that differs. On K both potentials
(γ/2)(‖y − Xθ‖² + λ‖θ‖²) are γh-strongly convex, and their difference is kγbR'-Lipschitz. Two such densities are at
least as hard to tell apart as N(0, 1) and N(G/√m, 1), G = kγbR' and m = γh (Gopi, Lee and Liu 2022, Theorem 4). With
R' = R + t·b/√(γh) each slab is left with probability 2Φ(−t) at most, and 2kΦ(−t) = φ/3. So

    μ₃ = kbR'√(γ/h) = k(bR√(γ/h) + t·b²/h),    γ = h((μ₃/k − tb²/h)/(bR))².

**Together.** Let M̃ return a constant where a bound failed, and draw from the restricted law elsewhere. On the pair M̃ is
μ-GDP, and AdaOPS is within total variation φ of it on both data sets: (ε, δ_Gauss(ε) + (1 + e^ε)φ)-DP at every ε. M̃
belongs to the pair, so a group pays φ for each of its records. A draw is exact up to float64 rounding. A public
``ridge`` leaves stage 1 out: low = 0 and h = λ ("OPS, fixed ridge").

**Corrections of the print**

* λ = min{0, …} makes λ negative; here it is at least the target's own.
* Eigenvalue noise √log(4/δ)/(ε/2): its δ at ε/2 is 1.83e-6 for 5e-7 (ε = 1, δ = 1e-6); here the exact Gaussian.
* The offset log(4/δ)/(ε/2) fails with 4.8e-5 for δ = 1e-6, which is not charged; here q·σ₁ + b², charged.
* A residual <= √(2dκ) may be 2 for d = κ = 1; here R above.
* The quantile √log(2/δ) needs √(2 log(2/δ)), and one direction is said to give both; here slabs, and Gaussian DP.
* λ and γ are functions of n, with neighbours of n and n + 1: two mechanisms, not one; here N is public.
* Half of ε is spent on each stage; here μ² is shared.

The slides of the defence show 36 tables; here are one real and two generated ones, without NoisySGD. The error of a
release θ is √((θ − θ̂)ᵀXᵀX(θ − θ̂)/N) relative to that of θ = 0. Methods with a ridge of their own get the best one in
hindsight at each ε, which is not charged.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.special import ndtri

import dpmcmc
from dpmcmc.inference.decompositions import eigh
from dpmcmc.mechanisms import AdaSSP, SufficientStatistics
from dpmcmc.mechanisms.one_shot import PrivacySpec
from dpmcmc.mechanisms.statistics import gram_and_moment, linear_bounds, rounding
from dpmcmc.privacy import CalibrationError, Event, Guarantee
from dpmcmc.privacy.accounting import noise_tables
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.query.gaussian_release import gaussian_release, mu_std, standard_normal
from dpmcmc.privacy.query.randomness import Streams, streams_of
from dpmcmc.targets import LinearRegression
from experiments.pictures import name_ends, on_epsilon, points, saved
from experiments.ridge_perturbation import Ridge, objective_std, output_std, perturb_objective, perturb_output
from experiments.sources.script import script

ADJACENCY = "replace_one"
#: Shares of μ² of stages 1 and 2, and share of δ for what may fail.
SHARES, FAILURE = (0.1, 0.1), 0.05
#: λ is looked for on this grid, in units of the least curvature that any draw needs.
GRID = np.concatenate([[0.0], np.geomspace(1e-5, 1e5, 601)])
#: Released noise is on a grid of 2^-30 of its std; quantiles leave room for it.
ROOM = 1 + 2.0**-20


class Chosen(NamedTuple):
    """Settings that the private stages chose, which may be published: λ, h, R, and γ."""

    ridge: float
    curvature: float
    residual: float
    precision: float


class AdaOPS(NamedTuple):
    """Public constants of a release, and the formulas of its stages; none of them reads a record.

    Attributes:
        target: linear regression with its public bounds.
        row: bound b.
        label: bound Y.
        size: d.
        num_records: the larger N of two neighbours.
        moved: k.
        mus: of the stages: eigenvalue, residual, draw.
        failure: probability that each of three bounds may fail with.
        ridge: public λ; None: chosen from the private eigenvalue.
        guarantee: of the release, from the accountant's events.
    """

    target: LinearRegression
    row: float
    label: float
    size: int
    num_records: int
    moved: float
    mus: tuple[float, float, float]
    failure: float
    ridge: float | None
    guarantee: Guarantee

    @property
    def quantile(self) -> float:
        """Quantile q of stages 1 and 2."""
        return -float(ndtri(self.failure)) * ROOM

    @property
    def slab_quantile(self) -> float:
        """Quantile t, for two sides of each slab."""
        return -float(ndtri(self.failure / (2 * self.moved))) * ROOM

    @property
    def least_curvature(self) -> float:
        """Curvature h at which the slabs alone cost the share of the draw: k·t·b²/h = μ₃."""
        return self.moved * self.slab_quantile * self.row**2 / self.mus[2]

    @property
    def eigenvalue_noise(self) -> float:
        """Noise std σ₁."""
        return mu_std(self.row**2 + 2 * rounding(self.size) * self.num_records * self.row**2, 1, self.mus[0])

    def low(self, noisy: float) -> float:
        """Return a bound below λ_min(XᵀX) of both neighbours."""
        unsure = rounding(self.size) * self.num_records * self.row**2
        return max(0.0, noisy - self.quantile * self.eigenvalue_noise - self.row**2 - unsure)

    def choose_ridge(self, low: float) -> float:
        """Return λ of least excess risk, by public bounds on the noise and on shrinking prior-sized coefficients.

        Any function of ``low`` is private. This one bounds E‖X(θ − θ*)‖²/d by 1/γ + prior_scale²·max sλ²/(s + λ)² over
        eigenvalues s >= low, at the residual Y + b·prior_scale·√d where stage 2 may find it.
        """
        target = self.target
        ridges = np.maximum((target.noise_scale / target.prior_scale) ** 2, self.least_curvature * GRID)
        usual = self.label + self.row * target.prior_scale * math.sqrt(self.size) if self.mus[1] else math.inf

        def risk(ridge: float) -> float:
            h = low + ridge
            if not h > self.least_curvature * (1 + 1e-6):
                return math.inf
            residual = min(usual, self.residual_bound(low, ridge))
            shrunk = ridge / 4 if low <= ridge else low * (ridge / h) ** 2
            return 1 / self.precision(h, residual) + shrunk * target.prior_scale**2

        return float(min(ridges, key=risk))

    def residual_bound(self, low: float, ridge: float) -> float:
        """Return R of the worst case."""
        largest = math.sqrt(low) / (low + ridge) if low > ridge else 0.5 / math.sqrt(ridge)
        return self.label * (1 + self.row * math.sqrt(self.num_records) * largest)

    def residual_noise(self, low: float, ridge: float) -> tuple[float, float, float]:
        """Return (σ₂, the sensitivity of log B, its rounding error: the condition number of H times its parts')."""
        sensitivity = math.log1p(self.moved * self.row**2 / (low + ridge))
        unsure = 2 * rounding(self.size) * (self.num_records * self.row**2 + ridge) / (low + ridge)
        return mu_std(sensitivity + 2 * unsure, 1, self.mus[1]), sensitivity, unsure

    def precision(self, curvature: float, residual: float) -> float:
        """Return γ."""
        left = self.mus[2] / self.moved - self.slab_quantile * self.row**2 / curvature
        return curvature * (left / (self.row * residual)) ** 2 * (1 - 1e-9)


def adaops(
    target: LinearRegression,
    num_records: int,
    epsilon: float,
    delta: float,
    *,
    ridge: float | None = None,
    shares: tuple[float, float] = SHARES,
    adjacency: str = ADJACENCY,
) -> AdaOPS:
    """Settle the share of every stage; reads no record.

    Raises:
        CalibrationError: a ``ridge`` so small that no temperature is private; an ε beyond 700.
    """
    if epsilon > 700:
        raise CalibrationError(f"epsilon: adaops takes at most 700, got {epsilon:g}", "epsilon")
    spec = PrivacySpec(num_records, epsilon, delta, Adjacency(adjacency))
    left = spec.of_events.delta
    failure = FAILURE * left / (1 + math.exp(epsilon))
    mu = gaussian_mu(epsilon, (1 - FAILURE) * left) * (1 - 1e-9)
    first = 0.0 if ridge is not None else shares[0]
    mus = (mu * math.sqrt(first), mu * math.sqrt(shares[1]), mu * math.sqrt(1 - first - shares[1]))
    events = [Event("gaussian", spec.moved / one, 1.0, 1) for one in mus[:2] if one]
    events += [Event("posterior_draw", spec.moved / mus[2], 1.0, 1), Event("approximate_draw", 0.0, failure, 1)]
    guarantee = Guarantee.from_events(
        (*events, *noise_tables.releases_event(tuple(events))),
        delta=delta,
        adjacency=spec.adjacency,
        accountant="one_sample",
        release="one_sample",
        assumptions=("draws are exact, which they are up to float64 rounding.",),
    )
    found = AdaOPS(
        target, *linear_bounds(target, "adaops")[1:4], spec.most_records, spec.moved, mus, failure / 3, ridge, guarantee
    )
    if ridge is not None and not ridge > found.least_curvature:
        raise CalibrationError(f"ridge: {ridge:g} is too small; give one well above {found.least_curvature:.4g}")
    return found


def draw(made: AdaOPS, x: np.ndarray, y: np.ndarray, streams: Streams) -> tuple[Chosen, np.ndarray]:
    """Return (the settings that the private stages chose, the draw (d,)); one guarantee covers both.

    Args:
        made: by :func:`adaops`.
        x: rows (N, d) within the row bound.
        y: labels (N,) within the label bound.
        streams: secret keys.
    """
    eigenvalue_key, residual_key = jax.random.split(streams.noise)
    gram, exact_moment = gram_and_moment({"x": x, "y": y}, made.target)
    values, vectors = eigh(gram.floats)
    moment = vectors.T @ exact_moment.floats
    low, ridge = 0.0, made.ridge
    if ridge is None:
        low = made.low(float(gaussian_release(values[:1], made.eigenvalue_noise, eigenvalue_key)[0]))
        ridge = made.choose_ridge(low)
    curvatures = np.maximum(values, 0.0) + ridge
    centre = moment / curvatures
    residual = made.residual_bound(low, ridge)
    if made.mus[1]:
        size = made.label + made.row * float(np.linalg.norm(centre))
        noise, sensitivity, unsure = made.residual_noise(low, ridge)
        noisy = float(gaussian_release(np.log([size]), noise, residual_key)[0])
        residual = min(residual, math.exp(min(noisy + made.quantile * noise + sensitivity + unsure, 700.0)))
    chosen = Chosen(ridge, low + ridge, residual, made.precision(low + ridge, residual))
    normal = standard_normal(streams.dynamics, centre.shape)
    return chosen, vectors @ (centre + normal / np.sqrt(chosen.precision * curvatures))


#: Methods in the order of the legend: colour, marker, dashes.
LOOKS = {
    "AdaOPS": ("C0", "o", "-"),
    "OPS, fixed ridge": ("C5", "h", "--"),
    "AdaSSP": ("C1", "s", "-"),
    "sufficient statistics": ("C2", "^", "-"),
    "objective perturbation": ("C3", "v", "--"),
    "output perturbation": ("0.35", "x", "--"),
}
EPSILONS, REPEATS, SEED = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0), 30, 20151127
RIDGES = tuple(one * 10.0**k for k in range(5) for one in (1, 2, 5))[:14]
#: Scale of the last column of a generated design (columns' scales fall geometrically), of N = 20,000 rows and d = 10.
DESIGNS: dict[str, float | None] = {"diabetes": None, "isotropic": 1.0, "skewed": 0.05}


class Problem(NamedTuple):
    """Records, their target and δ, and the reference of errors: θ̂ and XᵀX/N."""

    target: LinearRegression
    records: dict[str, np.ndarray]
    delta: float
    estimate: np.ndarray
    second_moment: np.ndarray

    def error(self, theta: np.ndarray) -> float:
        """Relative distance in prediction of (d,) to θ̂."""
        gap = theta - self.estimate
        return float(np.sqrt(gap @ self.second_moment @ gap / (self.estimate @ self.second_moment @ self.estimate)))


def problem_of(name: str, num_records: int = 20_000, seed: int = SEED) -> Problem:
    """Load or generate records; coefficients have one size, so a column's signal is as strong as its scale."""
    weakest = DESIGNS[name]
    noise, label, delta = (0.6, 2.0, 1e-4) if weakest is None else (0.3, 1.0, 1e-6)
    if weakest is None:
        records = dpmcmc.data.load(name).train
        x, y = (np.asarray(records[key], np.float64) for key in "xy")
    else:
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(num_records, 10)) * np.geomspace(1, weakest, 10)
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        y = x @ (rng.choice([-1.0, 1.0], 10) * 0.5) + noise * rng.normal(size=len(x))
        y = np.clip(y, -label, label)
    x *= np.minimum(1.0, (1 - 1e-12) / np.linalg.norm(x, axis=1, keepdims=True))
    target = LinearRegression(1.0, noise, label, num_features=x.shape[1], row_bound=1.0)
    estimate = target.posterior({"x": x, "y": y})[0]
    return Problem(target, {"x": x, "y": y}, delta, estimate, x.T @ x / len(x))


#: Makes one release, (d,), from a seed.
Draw = Callable[[int], np.ndarray]


def one_draw(made: AdaOPS, records: dict[str, np.ndarray], seed: int) -> np.ndarray:
    """Return the draw of AdaOPS alone, (d,)."""
    return draw(made, records["x"], records["y"], streams_of(seed)[0])[1]


def one_release(mechanism: Any, plan: Any, records: dict[str, np.ndarray], seed: int) -> np.ndarray:
    """Return one release of a mechanism, (d,)."""
    return mechanism.draw(plan, records, streams_of(seed)[0])[0]


def methods(problem: Problem, epsilon: float) -> Iterator[tuple[str, float | str, float, Draw]]:
    """Yield (name, ridge where it is fixed, guaranteed ε, function that draws) of every method at this ε."""
    records, target, delta = problem.records, problem.target, problem.delta
    count = len(records["y"])

    made = adaops(target, count, epsilon, delta)
    yield "AdaOPS", "", made.guarantee.epsilon, partial(one_draw, made, records)
    for name, mechanism in (("AdaSSP", AdaSSP()), ("sufficient statistics", SufficientStatistics())):
        plan = mechanism.plan(target, num_records=count, epsilon=epsilon, delta=delta, adjacency=ADJACENCY)
        yield name, "", plan.guarantee.epsilon, partial(one_release, mechanism, plan, records)
    for ridge in RIDGES:
        with contextlib.suppress(CalibrationError):  # too small a ridge for this ε
            fixed = adaops(target, count, epsilon, delta, ridge=ridge)
            yield "OPS, fixed ridge", ridge, fixed.guarantee.epsilon, partial(one_draw, fixed, records)
        facts = Ridge(1.0, target.label_bound or 1.0, len(problem.estimate), count, ridge, ADJACENCY)
        for name, calibrate, perturb in (
            ("output perturbation", output_std, perturb_output),
            ("objective perturbation", objective_std, perturb_objective),
        ):
            with contextlib.suppress(CalibrationError):
                std = calibrate(facts, epsilon, delta)
                yield name, ridge, epsilon, partial(perturb, facts, std, records)


def compare(epsilons: tuple[float, ...], repeats: int, num_records: int) -> list[dict[str, Any]]:
    """Return the rows of every design, ε and method, with the best ridge."""
    rows: list[dict[str, Any]] = []
    for name in DESIGNS:
        problem = problem_of(name, num_records)
        facts = {"design": name, "num_records": len(problem.records["y"]), "num_features": len(problem.estimate)}
        for epsilon in epsilons:
            best: dict[str, dict[str, Any]] = {}
            for method, ridge, guaranteed, release in methods(problem, epsilon):
                errors = [problem.error(release(SEED + i)) for i in range(repeats)]
                row = {
                    **facts,
                    "epsilon": epsilon,
                    "delta": problem.delta,
                    "adjacency": ADJACENCY,
                    "method": method,
                    "ridge": ridge,
                    "repeats": repeats,
                    "error": float(np.mean(errors)),
                    "error_std": float(np.std(errors, ddof=1)),
                    "guarantee_epsilon": guaranteed,
                }
                if method not in best or row["error"] < best[method]["error"]:
                    best[method] = row
            rows += best.values()
    return rows


def picture(path: Path, rows: list[dict[str, Any]], note: str | None) -> None:
    """Draw the error against ε, one panel a design."""
    says = "Noisy sufficient statistics, the simplest adaptive method, are nearest to the non-private estimate"
    about = f"{ADJACENCY}, {rows[0]['repeats']} runs; bars: one standard error; best fixed ridges in hindsight"
    epsilons = sorted({row["epsilon"] for row in rows})
    with saved(path, (4.4 * len(DESIGNS), 5.0), says, about, note) as figure:
        axes = figure.subplots(1, len(DESIGNS), sharey=True)
        for axis, design in zip(axes, DESIGNS, strict=True):
            here = [row for row in rows if row["design"] == design]
            for name, (colour, marker, dashes) in LOOKS.items():
                of = [row for row in here if row["method"] == name]
                style = {"color": colour, "marker": marker, "ls": dashes, "lw": 1.3}
                points(axis, of, "epsilon", "error", "error_std", scale=rows[0]["repeats"] ** -0.5, **style)
            axis.axhline(1.0, color="0.6", lw=0.8, ls=":")
            axis.set_yscale("log")
            on_epsilon(axis, epsilons)
            axis.set_title("{design}: N = {num_records:,}, d = {num_features}, δ = {delta:g}".format(**here[0]))
        axes[0].set_ylabel("distance to the ridge estimate (1: predicts nothing)")
        ends = [row for row in here if row["epsilon"] == epsilons[-1]]
        name_ends(axes[-1], [(row["error"], row["method"], LOOKS[row["method"]][0]) for row in ends])


main = script(
    "adaops",
    "AdaOPS beside the other one-shot methods of linear regression.",
    lambda quick: compare((0.1, 1.0, 10.0), 6, 4000) if quick else compare(EPSILONS, REPEATS, 20_000),
    "{design}, ε {epsilon:g}, {method}: error {error:.3g} ± {error_std:.2g}",
    picture,
)

if __name__ == "__main__":
    raise SystemExit(main())
