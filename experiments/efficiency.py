r"""Mean squared error of private linear regression over the Cramér–Rao bound, against n.

    python -m experiments.efficiency [--quick] [--out DIR] [--config configs/figures/efficiency.yaml]

y = Xθ₀ + N(0, σ²), and no unbiased estimate is nearer to θ₀ on average than σ²tr(XᵀX)⁻¹. A draw from N(θ̂, H⁻¹/γ),
H = XᵀX + λI and θ̂ = H⁻¹Xᵀy, has

    E‖θ − θ₀‖² = σ²tr(H⁻¹XᵀXH⁻¹) + tr(H⁻¹)/γ + λ²‖H⁻¹θ₀‖²                 (thesis, Proposition 5.17.3, corrected)

since θ − θ₀ = H⁻¹Xᵀ(y − Xθ₀) − λH⁻¹θ₀ + draw, and the three parts are independent or constant. The print has
σ²tr(H⁻¹)(1 + 1/γ) for the first two terms: the draw's own variance has no σ², and XᵀX is not H. OPS at temper ρ and
prior N(0, I/m) is the case γ = ρ/σ², λ = mσ²/ρ (λ = mσ² as the thesis prints it, with a prior that is tempered too). As
n grows at a fixed γ the ratio tends to 1 + 1/(γσ²), which is 1 + 1/ρ for OPS.

Written: ``results.csv``, one row for each n, ε and method, and ``efficiency.png``. Runs are seeded; the guarantee is
the plan's, which a run under a secret key carries.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field

from dpmcmc.mechanisms import OPS, AdaSSP, NoiseAware, SufficientStatistics
from dpmcmc.privacy import CalibrationError
from dpmcmc.privacy.query.randomness import streams_of
from dpmcmc.targets import LinearRegression
from experiments.commands import command, folder_for
from experiments.figure_files import FigureSection, arguments_of, load, report, write_table
from experiments.panel.printed import ops_plan
from experiments.pictures import BLUE, DARK, GREEN, GREY, ORANGE, PURPLE, RED, SKY, name_ends, points, saved
from experiments.ridge_perturbation import Ridge, objective_std, perturb_objective
from experiments.sources import adaops

NOT_PRIVATE = "posterior draw, not private"
#: Methods in the order of the legend: colour, marker.
LOOKS: dict[str, tuple[str, str]] = {
    "OPS (4B)": (ORANGE, "o"),
    "OPS (range)": (RED, "s"),
    "OPS (GDP)": (DARK, "h"),
    "AdaOPS": (BLUE, "D"),
    "AdaSSP": (PURPLE, "^"),
    "sufficient statistics": (GREEN, "v"),
    "noise-aware": (SKY, "P"),
    "objective perturbation": (GREY, "x"),
    NOT_PRIVATE: ("k", "."),
}
COLUMNS = (
    "epsilon", "delta", "adjacency", "num_records", "num_features", "method", "repeats", "ratio", "ratio_error",
    "predicted", "limit", "regret", "regret_predicted", "guarantee_epsilon",
)  # fmt: skip


class Quick(FigureSection):
    """Settings that ``--quick`` shortens."""

    num_records: list[int] = Field(description="n.")
    repeats: int = Field(gt=1, description="Runs of each.")


class Settings(FigureSection):
    """The whole YAML."""

    name: str = Field(description="Names the picture.")
    seed: int = Field(ge=0, description="Seed of designs, labels and noise.")
    num_records: list[int] = Field(description="n.")
    epsilons: list[float] = Field(description="ε.")
    repeats: int = Field(gt=1, description="Runs of each method at each n and ε.")
    num_features: int = Field(gt=0, description="d.")
    noise_scale: float = Field(gt=0, description="σ.")
    truth_norm: float = Field(gt=0, description="‖θ₀‖.")
    label_bound: float = Field(gt=0, description="Y.")
    delta: float = Field(gt=0, lt=1, description="δ.")
    adjacency: str = Field("replace_one", description="Definition of a neighbour.")
    prior_scale: float = Field(gt=0, description="Prior standard deviation of a coefficient.")
    radius: float = Field(gt=0, description="OPS draws within it.")
    ridges: list[float] = Field(description="Ridges that objective perturbation chooses from in hindsight.")
    quick: Quick = Field(description="Settings that --quick shortens.")

    def shortened(self) -> Settings:
        """Return the settings of ``--quick``: every method and ε."""
        return self.model_copy(update={"num_records": self.quick.num_records, "repeats": self.quick.repeats})


def ridge_draw_mse(gram: np.ndarray, truth: np.ndarray, noise_scale: float, ridge: float, precision: float) -> float:
    """E‖θ − θ₀‖² of a draw from N(θ̂, H⁻¹/γ), by the formula above.

    Args:
        gram: XᵀX, (d, d).
        truth: θ₀, (d,).
        noise_scale: σ of y given x.
        ridge: λ.
        precision: γ; infinite for θ̂ itself.
    """
    inverse = np.linalg.inv(gram + ridge * np.eye(len(gram)))
    bias = ridge * inverse @ truth
    return float(noise_scale**2 * np.trace(inverse @ gram @ inverse) + np.trace(inverse) / precision + bias @ bias)


def draw_regret(gram: np.ndarray, ridge: float, precision: float) -> float:
    """E ½‖y − Xθ‖² − ½‖y − Xθ̂‖² over a draw from N(θ̂, H⁻¹/γ), whatever y is: tr(XᵀXH⁻¹)/2γ, at most d/2γ.

    Args:
        gram: XᵀX, (d, d).
        ridge: λ.
        precision: γ.
    """
    return float(np.trace(np.linalg.solve(gram + ridge * np.eye(len(gram)), gram)) / (2 * precision))


class Design(NamedTuple):
    """Rows, their public bounds, and the truth."""

    x: np.ndarray
    gram: np.ndarray
    truth: np.ndarray
    target: LinearRegression

    @property
    def cramer_rao(self) -> float:
        """σ²tr(XᵀX)⁻¹."""
        return self.target.noise_scale**2 * float(np.trace(np.linalg.inv(self.gram)))

    def records(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw labels for the rows."""
        assert self.target.label_bound is not None
        y = self.x @ self.truth + self.target.noise_scale * rng.normal(size=len(self.x))
        return {"x": self.x, "y": np.clip(y, -self.target.label_bound, self.target.label_bound)}


def make_design(settings: Settings, num_records: int, rng: np.random.Generator) -> Design:
    """Draw rows and coefficients."""
    d = settings.num_features
    x = rng.normal(size=(num_records, d))
    x *= (1 - 1e-12) / np.linalg.norm(x, axis=1, keepdims=True)
    truth = rng.choice([-1.0, 1.0], d) * settings.truth_norm / math.sqrt(d)
    target = LinearRegression(
        settings.prior_scale, settings.noise_scale, settings.label_bound, num_features=d, row_bound=1.0
    )
    return Design(x, x.T @ x, truth, target)


#: (records, seed) -> an estimate (d,), and the (λ, γ) of the normal law that it is a draw of, or None.
Draw = Callable[[dict[str, np.ndarray], int], tuple[np.ndarray, tuple[float, float] | None]]


class Method(NamedTuple):
    """An estimator of θ₀, and its ε; no ε without privacy."""

    name: str
    draw: Draw
    guarantee_epsilon: float | None


def methods(design: Design, settings: Settings, epsilon: float) -> list[Method]:
    """Return every private method, planned for this ε."""
    target = design.target
    promise: dict[str, Any] = {
        "num_records": len(design.x),
        "epsilon": epsilon,
        "delta": settings.delta,
        "adjacency": settings.adjacency,
    }
    own_ridge = (target.noise_scale / target.prior_scale) ** 2
    out = []
    radius = settings.radius
    plans = {
        "OPS (4B)": ops_plan(radius, target, **promise),
        "OPS (range)": OPS("range", radius=radius).plan(target, **promise),
        "OPS (GDP)": OPS("gdp", radius=radius).plan(target, **promise),
    }
    for name, plan in plans.items():
        temper = plan.settings["temper"]
        # A prior that is tempered too keeps its ridge.
        law = own_ridge * plan.settings.get("prior_temper", 1.0) / temper, temper / target.noise_scale**2
        out.append(Method(name, _exact(law, radius), plan.guarantee.epsilon))
    made = adaops.adaops(target, len(design.x), epsilon, settings.delta, adjacency=settings.adjacency)

    def adaptive(records: dict[str, np.ndarray], seed: int) -> tuple[np.ndarray, tuple[float, float]]:
        chosen, found = adaops.draw(made, records["x"], records["y"], streams_of(seed)[0])
        return found, (chosen.ridge, chosen.precision)

    out.append(Method("AdaOPS", adaptive, made.guarantee.epsilon))
    for name, mechanism in (
        ("AdaSSP", AdaSSP()),
        ("sufficient statistics", SufficientStatistics()),
        ("noise-aware", NoiseAware(draws=400)),
    ):
        out.append(_planned(name, mechanism, mechanism.plan(target, **promise)))
    out.append(_objective(design, settings, epsilon))
    return out


def draw_from(law: tuple[float, float], records: dict[str, np.ndarray], radius: float, seed: int) -> np.ndarray:
    """Return one exact draw from N(θ̂, H⁻¹/γ) on ‖θ‖ <= radius, (d,), by rejection."""
    ridge, precision = law
    x = np.asarray(records["x"], np.float64)
    hessian = x.T @ x + ridge * np.eye(x.shape[1])
    mean = np.linalg.solve(hessian, x.T @ records["y"])
    root = np.linalg.cholesky(np.linalg.inv(hessian) / precision)
    rng = np.random.default_rng(seed)
    while True:
        candidates = mean + rng.standard_normal((4096, len(mean))) @ root.T
        inside = candidates[np.linalg.norm(candidates, axis=1) <= radius]
        if len(inside):
            return inside[0]


def _exact(law: tuple[float, float], radius: float) -> Draw:
    return lambda records, seed: (draw_from(law, records, radius, seed), law)


def _planned(name: str, mechanism: Any, plan: Any) -> Method:
    def draw(records: dict[str, np.ndarray], seed: int) -> tuple[np.ndarray, None]:
        # Several draws stand for a posterior, whose mean is the estimate.
        return np.mean(mechanism.draw(plan, records, streams_of(seed)[0]), axis=0), None

    return Method(name, draw, plan.guarantee.epsilon)


def _objective(design: Design, settings: Settings, epsilon: float) -> Method:
    """Objective perturbation (``ridge_perturbation.py``) with the ridge of least expected error."""
    label, size = settings.label_bound, settings.num_features
    best = (math.inf, 0.0, 0.0)
    for ridge in settings.ridges:
        facts = Ridge(1.0, label, size, len(design.x), ridge, settings.adjacency)
        with contextlib.suppress(CalibrationError):  # too small a ridge for this ε
            std = objective_std(facts, epsilon, settings.delta)
            inverse = np.linalg.inv(design.gram + ridge * np.eye(size))
            error = ridge_draw_mse(design.gram, design.truth, settings.noise_scale, ridge, math.inf)
            best = min(best, (error + std**2 * float(np.sum(inverse**2)), ridge, std))
    _, ridge, std = best
    facts = Ridge(1.0, label, size, len(design.x), ridge, settings.adjacency)
    draw: Draw = lambda records, seed: (perturb_objective(facts, std, records, seed), None)  # noqa: E731
    return Method("objective perturbation", draw, epsilon)


def not_private(design: Design) -> Method:
    """One draw from the posterior as it is: OPS at temper 1."""
    target = design.target
    law = (target.noise_scale / target.prior_scale) ** 2, target.noise_scale**-2

    def draw(records: dict[str, np.ndarray], seed: int) -> tuple[np.ndarray, tuple[float, float]]:
        mean, covariance = target.posterior(records)
        return np.random.default_rng(seed).multivariate_normal(mean, covariance, method="cholesky"), law

    return Method(NOT_PRIVATE, draw, None)


def measure(design: Design, method: Method, repeats: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return the ratio, its standard error, and what the formulas say, over fresh labels and noise.

    θ − θ₀ is a + b, where a is the error of least squares. E‖a‖² is the Cramér–Rao bound, so the mean of ‖b‖² + 2a·b is
    what is left to measure.
    """
    bound = design.cramer_rao
    inverse = np.linalg.inv(design.gram)
    ratios = []
    found: dict[str, list[float]] = {"predicted": [], "limit": [], "regret": [], "regret_predicted": []}
    for _ in range(repeats):
        records = design.records(rng)
        theta, law = method.draw(records, int(rng.integers(2**31)))
        moment = design.x.T @ records["y"]
        error = inverse @ moment - design.truth
        rest = theta - design.truth - error
        ratios.append(1 + float(rest @ rest + 2 * error @ rest) / bound)
        if law is None:
            continue
        ridge, precision = law
        gap = theta - np.linalg.solve(design.gram + ridge * np.eye(len(theta)), moment)
        noise_scale = design.target.noise_scale
        found["predicted"].append(ridge_draw_mse(design.gram, design.truth, noise_scale, *law) / bound)
        found["limit"].append(1 + 1 / (precision * noise_scale**2))
        found["regret"].append(float(gap @ design.gram @ gap) / 2)
        found["regret_predicted"].append(draw_regret(design.gram, *law))
    return {
        "ratio": float(np.mean(ratios)),
        "ratio_error": float(np.std(ratios, ddof=1) / math.sqrt(repeats)),
        **{name: float(np.mean(values)) if values else "" for name, values in found.items()},
    }


def run(settings: Settings) -> list[dict[str, Any]]:
    """Return the rows of every n, ε and method."""
    rows: list[dict[str, Any]] = []
    for num_records in settings.num_records:
        rng = np.random.default_rng([settings.seed, num_records])
        design = make_design(settings, num_records, rng)
        for epsilon in (None, *settings.epsilons):
            planned = [not_private(design)] if epsilon is None else methods(design, settings, epsilon)
            for method in planned:
                rows.append(
                    {
                        "epsilon": "" if epsilon is None else epsilon,
                        "delta": settings.delta,
                        "adjacency": settings.adjacency,
                        "num_records": num_records,
                        "num_features": settings.num_features,
                        "method": method.name,
                        "repeats": settings.repeats,
                        **measure(design, method, settings.repeats, rng),
                        "guarantee_epsilon": "" if epsilon is None else method.guarantee_epsilon,
                    }
                )
    return rows


def picture(path: Path, settings: Settings, rows: list[dict[str, Any]], note: str | None) -> None:
    """Ratio against n, one panel an ε; dotted: the formula."""
    says = "Methods that adapt to the data become efficient as n grows; OPS with a fixed temper ρ stays at 1 + 1/ρ"
    about = (
        f"d = {settings.num_features}, σ = {settings.noise_scale:g}, δ = {settings.delta:g}, {settings.adjacency}, "
        f"{settings.repeats} runs; bars: one standard error; dotted: the formula for a draw; generated data"
    )
    with saved(path, (5.6 * len(settings.epsilons), 5.6), says, about, note) as figure:
        axes = np.atleast_1d(figure.subplots(1, len(settings.epsilons), sharey=True))
        for axis, epsilon in zip(axes, settings.epsilons, strict=True):
            ends = [(1.0, "Cramér–Rao", "0.4")]
            for name, (colour, marker) in LOOKS.items():
                of = [row for row in rows if row["method"] == name and row["epsilon"] in ("", epsilon)]
                sizes = [row["num_records"] for row in of]
                style = {"color": colour, "marker": marker, "lw": 1.3, "label": name}
                points(axis, of, "num_records", "ratio", "ratio_error", scale=1, **style)
                if of[0]["predicted"] != "":
                    axis.plot(sizes, [row["predicted"] for row in of], color=colour, ls=":", lw=1.0)
                ends.append((of[-1]["ratio"], name, colour))
            axis.axhline(1.0, color="0.4", lw=0.8)
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_ylim(0.7, 2 * max(row["ratio"] for row in rows))
            axis.set_xlabel("n")
            axis.set_title(f"ε = {epsilon:g}")
            name_ends(axis, ends)
        axes[0].set_ylabel("mean squared error over the Cramér–Rao bound")


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    arguments = arguments_of("efficiency", "Mean squared error over the Cramér–Rao bound, against n.", argv)
    settings = load(arguments.config, Settings)
    settings = settings.shortened() if arguments.quick else settings
    with folder_for(arguments.out):
        rows = run(settings)
        write_table(arguments.out / "results.csv", COLUMNS, rows)
        note = "quick: few repeats" if arguments.quick else None
        picture(arguments.out / f"{settings.name}.png", settings, rows, note)
    report(map("n = {num_records:,}, ε = {epsilon}, {method}: {ratio:.3g}".format_map, rows), arguments.out)


if __name__ == "__main__":
    raise SystemExit(main())
