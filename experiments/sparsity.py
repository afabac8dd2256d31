r"""Columns that matter: the sparse posterior of a noise-aware release, beside best-subset selection by the exponential
mechanism (thesis, Example 2.22).

    python -m experiments.sparsity [--quick] [--out DIR] [--config configs/figures/sparsity.yaml]

The release is XᵀX and Xᵀy with noise, (ε, δ)-DP; the posterior of every support follows from it at no further cost
(``inference/sparse.py``). The baseline releases one support S of s columns with probability ∝ exp(−c·F_S),

    F_S = min over ‖θ‖ <= R, θ zero outside S, of Σ ½(y − x·θ)²,      c = ε/(k·B),   B = ½(Y + bR)².

It is ε-DP. A record's loss lies in [0, B] on the ball ‖θ‖ <= R, for ‖x‖ <= b and |y| <= Y. Let G be the sum without the
record that differs. Then min G <= min(G + ℓ) <= min G + B for each S, so adding a record raises F_S by [0, B], and a
replaced one moves it by [−B, B]. These changes vary over S by k·B at most, with k = 2 for replace_one and 1 else, and
the log probability of S moves by c times that at most (``mechanisms/exponential.py``). The sensitivity of the minimum
is that of one loss. F_S is computed in floating point: a baseline on generated data, and no mechanism for private ones.

Left, how often a method names the true support: the probability of the exponential mechanism's draw, and the frequency
at which the most probable support is the true one. Right, coefficients drawn from the prior: the frequency at which a
coefficient is not 0 against the inclusion probability that was said, with the noise of the release in the likelihood
and, a planted fault, without it.
"""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
from pydantic import Field
from scipy.optimize import brentq

from dpmcmc.errors import InputError
from dpmcmc.inference import Evidence
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.mechanisms.base import MechanismPlan
from dpmcmc.mechanisms.exponential import weights_of
from dpmcmc.privacy.accounting.events import Adjacency
from dpmcmc.privacy.query.randomness import streams_of
from dpmcmc.targets import LinearRegression
from experiments.commands import command, folder_for
from experiments.figure_files import FigureSection, arguments_of, load, report, write_table
from experiments.pictures import BLUE, GREY, RED, SKY, on_epsilon, saved

COLUMNS = ("panel", "method", "epsilon", "delta", "said", "found", "found_error", "count")
#: Public bounds of rows and labels, and the radius of the ball.
BOUND, RADIUS = 1.0, 1.0
EXPONENTIAL = "exponential mechanism"
KNOWN, UNKNOWN = "release, number of columns known", "release, number of columns unknown"
WITH, WITHOUT = "with the noise of the release", "noise of the release ignored"


class PriorSection(FigureSection):
    """Spike and slab."""

    inclusion: float = Field(gt=0, lt=1, description="Probability that a coefficient is not 0.")
    slab: float = Field(gt=0, description="Standard deviation of one that is not 0.")


class Calibration(FigureSection):
    """The right panel."""

    epsilon: float = Field(gt=0, description="ε.")
    repeats: int = Field(gt=1, description="Data sets.")
    bins: int = Field(gt=1, description="Bins of the inclusion probability.")


class Quick(FigureSection):
    """Settings that ``--quick`` shortens."""

    repeats: int = Field(gt=1, description="Data sets of both panels.")


class Settings(FigureSection):
    """The whole YAML."""

    name: str = Field(description="Names the picture.")
    seed: int = Field(ge=0, description="Seed of everything drawn.")
    num_records: int = Field(gt=1, description="n.")
    dimension: int = Field(gt=1, le=15, description="d.")
    nonzero: int = Field(gt=0, description="s.")
    coefficient: float = Field(gt=0, description="Size of the coefficients that are not 0, on the left.")
    noise_scale: float = Field(gt=0, description="Scale of y given x, before y is clipped.")
    delta: float = Field(gt=0, lt=1, description="δ of the release.")
    epsilons: list[float] = Field(min_length=2, description="ε grid.")
    repeats: int = Field(gt=1, description="Data sets at each ε.")
    prior: PriorSection = Field(description="Prior of the coefficients.")
    calibration: Calibration = Field(description="The right panel.")
    quick: Quick = Field(description="Settings that --quick shortens.")

    @pydantic.model_validator(mode="after")
    def _selects(self) -> Settings:
        if self.nonzero > self.dimension:
            raise InputError(f"nonzero: must be at most dimension, {self.dimension}, got {self.nonzero}")
        return self

    def shortened(self) -> Settings:
        """Return the settings of ``--quick``."""
        fewer = {"repeats": self.quick.repeats}
        return self.model_copy(update={**fewer, "calibration": self.calibration.model_copy(update=fewer)})


def subset_losses(x: np.ndarray, y: np.ndarray, size: int, radius: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the supports of ``size`` columns, (M, d) bool, and F_S less Σ ½y², (M,)."""
    d = x.shape[1]
    gram = x.T @ x
    moment = x.T @ y
    chosen = list(itertools.combinations(range(d), size))
    supports = np.zeros((len(chosen), d), bool)
    losses = np.zeros(len(chosen))
    for number, places in enumerate(chosen):
        at = list(places)
        supports[number, at] = True
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


def records_of(rng: np.random.Generator, settings: Settings, theta: np.ndarray) -> dict[str, np.ndarray]:
    """Return records of a linear Gaussian model: rows of norm 1, labels clipped to [-1, 1]."""
    x = rng.normal(size=(settings.num_records, settings.dimension))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    noise = settings.noise_scale * rng.normal(size=len(x))
    return {"x": x, "y": np.clip(x @ theta + noise, -BOUND, BOUND)}


def plan_of(settings: Settings, epsilon: float) -> MechanismPlan:
    """Return the plan of the release."""
    target = LinearRegression(
        prior_scale=settings.prior.slab,
        noise_scale=settings.noise_scale,
        num_features=settings.dimension,
        row_bound=BOUND,
        label_bound=BOUND,
    )
    return NoiseAware(draws=1).plan(target, num_records=settings.num_records, epsilon=epsilon, delta=settings.delta)


def evidence_of(plan: MechanismPlan, records: dict[str, np.ndarray], seed: int) -> Evidence:
    """Return what is released."""
    evidence = plan.mechanism.drawn(plan, records, streams_of(seed)[0]).evidence
    assert isinstance(evidence, Evidence)
    return evidence


def left(settings: Settings) -> list[dict[str, Any]]:
    """Rows of the left panel."""
    rows = []
    prior = settings.prior
    for epsilon in settings.epsilons:
        plan = plan_of(settings, epsilon)
        found: dict[str, list[float]] = {EXPONENTIAL: [], KNOWN: [], UNKNOWN: []}
        said: dict[str, list[float]] = {EXPONENTIAL: [], KNOWN: [], UNKNOWN: []}
        for repeat in range(settings.repeats):
            # The same data sets at each ε.
            rng = np.random.default_rng([settings.seed, repeat])
            theta = np.zeros(settings.dimension)
            at = rng.choice(settings.dimension, settings.nonzero, replace=False)
            theta[at] = settings.coefficient * rng.choice([-1.0, 1.0], settings.nonzero)
            records = records_of(rng, settings, theta)
            supports, losses = subset_losses(records["x"], records["y"], settings.nonzero, RADIUS)
            exact = probabilities_of(losses, coefficient_of(epsilon))
            chance = float(exact[np.all(supports == (theta != 0), axis=1)][0])
            found[EXPONENTIAL].append(chance)
            said[EXPONENTIAL].append(chance)
            evidence = evidence_of(plan, records, repeat)
            for method, size in ((KNOWN, settings.nonzero), (UNKNOWN, None)):
                posterior = evidence.sparse_posterior(prior.inclusion, slab=prior.slab, size=size)
                found[method].append(float(np.all(posterior.supports[0] == (theta != 0))))
                said[method].append(posterior.probability(theta != 0))
        for method, values in found.items():
            rows.append(
                {
                    "panel": "support",
                    "method": method,
                    "epsilon": float(epsilon),
                    "delta": 0.0 if method == EXPONENTIAL else settings.delta,
                    "said": float(np.mean(said[method])),
                    "found": float(np.mean(values)),
                    "found_error": float(np.std(values, ddof=1) / np.sqrt(len(values))),
                    "count": len(values),
                }
            )
    return rows


def right(settings: Settings) -> list[dict[str, Any]]:
    """Rows of the right panel."""
    body = settings.calibration
    plan = plan_of(settings, body.epsilon)
    said: dict[str, list[np.ndarray]] = {WITH: [], WITHOUT: []}
    truths = []
    for repeat in range(body.repeats):
        rng = np.random.default_rng([settings.seed, 1, repeat])
        there = rng.random(settings.dimension) < settings.prior.inclusion
        theta = np.where(there, settings.prior.slab * rng.normal(size=len(there)), 0.0)
        truths.append(there)
        evidence = evidence_of(plan, records_of(rng, settings, theta), repeat)
        # Linear regression without noise: u = Xᵀy/φ, and H = 𝒞 = XᵀX/φ.
        noiseless = dataclasses.replace(evidence, covariance=evidence.curvature)
        for method, one in ((WITH, evidence), (WITHOUT, noiseless)):
            posterior = one.sparse_posterior(settings.prior.inclusion, slab=settings.prior.slab)
            said[method].append(posterior.inclusion)
    rows = []
    true = np.concatenate(truths)
    for method, values in said.items():
        each = np.concatenate(values)
        bins = np.minimum((each * body.bins).astype(int), body.bins - 1)
        for number in np.unique(bins):
            inside = bins == number
            count = int(inside.sum())
            chance = float(true[inside].mean())
            rows.append(
                {
                    "panel": "calibration",
                    "method": method,
                    "epsilon": float(body.epsilon),
                    "delta": settings.delta,
                    "said": float(each[inside].mean()),
                    "found": chance,
                    "found_error": float(np.sqrt(max(chance * (1 - chance), 0.25 / count) / count)),
                    "count": count,
                }
            )
    return rows


def of_method(rows: list[dict[str, Any]], method: str) -> dict[str, np.ndarray]:
    """Return the numbers of one method's rows."""
    return {key: np.array([row[key] for row in rows if row["method"] == method]) for key in COLUMNS[2:]}


def draw(path: Path, settings: Settings, rows: list[dict[str, Any]], note: str | None) -> None:
    """How often the true support is named, and whether inclusion probabilities hold."""
    says = "One noise-aware release names the true columns at a third of the ε that the exponential mechanism needs"
    about = (
        f"Generated data: n = {settings.num_records:,}, d = {settings.dimension}, {settings.nonzero} coefficients of "
        f"{settings.coefficient:g} that are not 0; release at δ = {settings.delta:.0e}, exponential mechanism at 0; "
        f"{settings.repeats} and {settings.calibration.repeats} data sets"
    ).replace("e-0", "e-")
    with saved(path, (10.4, 4.6), says, about, note) as figure:
        axes = figure.subplots(1, 2)
        for method, colour, dashes in ((KNOWN, BLUE, "-"), (UNKNOWN, SKY, "-"), (EXPONENTIAL, GREY, "--")):
            found = of_method(rows, method)
            axes[0].errorbar(
                found["epsilon"], found["found"], yerr=2 * found["found_error"], color=colour, ls=dashes, marker="o",
                ms=4, capsize=2, label=method,
            )  # fmt: skip
        on_epsilon(axes[0], settings.epsilons)
        axes[0].set_ylim(0, 1.03)
        axes[0].set_ylabel("probability that the true support is named")
        axes[0].legend(frameon=False, fontsize=8.5, loc="lower right")
        axes[1].plot([0, 1], [0, 1], color=GREY, ls=":", lw=1, label="as said")
        for method, colour in ((WITH, BLUE), (WITHOUT, RED)):
            found = of_method(rows, method)
            axes[1].errorbar(
                found["said"], found["found"], yerr=2 * found["found_error"], color=colour, ls="none", marker="o",
                ms=4, capsize=2, label=method,
            )  # fmt: skip
        axes[1].set_xlim(-0.02, 1.02)
        axes[1].set_ylim(-0.02, 1.03)
        axes[1].set_xlabel(f"inclusion probability that is said (ε = {settings.calibration.epsilon:g})")
        axes[1].set_ylabel("share of coefficients that are not 0")
        axes[1].legend(frameon=False, fontsize=8.5, loc="upper left")


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Lines for the console."""
    return [
        f"ε = {row['epsilon']:g}, {row['method']}: true support named {row['found']:.3f} ± {row['found_error']:.2g}, "
        f"its mean probability {row['said']:.3f}"
        if row["panel"] == "support"
        else f"ε = {row['epsilon']:g}, {row['method']}: inclusion said {row['said']:.3f}, found {row['found']:.3f} ± "
        f"{row['found_error']:.2g} ({row['count']} coefficients)"
        for row in rows
    ]


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    arguments = arguments_of("sparsity", "Draw which columns a private release names.", argv)
    settings = load(arguments.config, Settings)
    if arguments.quick:
        settings = settings.shortened()
    with folder_for(arguments.out):
        rows = left(settings) + right(settings)
        write_table(arguments.out / "results.csv", COLUMNS, rows)
        draw(arguments.out / f"{settings.name}.png", settings, rows, "quick: few repeats" if arguments.quick else None)
        report(summary(rows), arguments.out)


if __name__ == "__main__":
    raise SystemExit(main())
