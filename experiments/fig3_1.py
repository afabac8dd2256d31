r"""Figure 3.1 of the thesis: samplers on a generated Bayesian linear regression in two dimensions.

    python -m experiments.fig3_1 [--quick] [--out DIR] [--config configs/figures/fig3_1.yaml]

Left, chains from the prior mean to the posterior. DP-SGLD as printed (Algorithm 3) moves by

    θ' = θ − η g + N(0, max(V η², η)),     V = 128 (N T L²/(τ ε²)) log(2.5 N T/(τ δ)) log(2/δ),

here at η = 1/V, the largest step at which it adds no noise for privacy. The pair (drift η, variance η) keeps
temperature 1/2, and its covariance is half the posterior's. Beside it, SGLD with the same step and minibatches at
temperature 1, private and not.

Right, SGLD, SGHMC and SGNHT at ε, against the exact posterior: minibatches heat SGLD and SGHMC, not SGNHT. Each has the
largest step at which the noise that privacy needs is that of its own dynamics at temperature 1 (``step_size: auto``).

The error of a mean is the largest over coordinates, in standard deviations of the posterior; that of a covariance Ĉ is
‖Ĉ − Σ‖_F/‖Σ‖_F; the temperature is tr(Σ⁻¹Ĉ)/2. A long run has its own mean. The chains on the left last a few
relaxation times, so Ĉ is about the mean over repeats at the same step, free of what is left of the common start.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure
from pydantic import Field
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import dpmcmc
from dpmcmc.cli.out_folder import folder_for
from dpmcmc.cli.refusals import CommandError, command
from dpmcmc.engine.sweep import sample_all
from dpmcmc.privacy import round_up
from dpmcmc.privacy.calibration import closed_form
from experiments.arguments import Parser
from experiments.figure_files import FigureSection, load, report

_CONFIG = Path(__file__).parents[1] / "configs" / "figures" / "fig3_1.yaml"
#: The constant that the thesis prints in V; its own proof needs 256.
_PRINTED = 128.0
#: Points kept of a chain on the left.
_POINTS = 800

PRINTED = "DP-SGLD as printed"
SAME_STEP = "SGLD at the printed step"
SMALL_STEP = "SGLD at a smaller step"
SAMPLERS = ("SGLD", "SGHMC", "SGNHT")

COLUMNS = (
    "method",
    "private",
    "epsilon",
    "delta",
    "repeat",
    "mean_error",
    "covariance_error",
    "temperature",
    "guarantee_epsilon",
    "assumptions",
    "plan_temperature",
    "minibatch_temperature",
    "relaxation_times",
    "step_size",
    "steps",
    "batch_size",
    "draws",
    "clipped_share",
)


class Regression(FigureSection):
    """The generated data."""

    num_records: int = Field(gt=0, description="N.")
    seed: int = Field(ge=0, description="Seed of coefficients and records.")
    prior_scale: float = Field(gt=0, description="Scale of the prior, and of the coefficients' own law.")
    noise_scale: float = Field(gt=0, description="Scale of y given x.")
    correlation: float = Field(gt=-1, lt=1, description="Correlation of the normals whose directions are the rows.")


class Promise(FigureSection):
    """Promise of private runs."""

    epsilon: float = Field(gt=0, description="ε.")
    delta: float = Field(gt=0, lt=1, description="δ, below 1/N.")
    adjacency: str = Field("replace_one", description="Definition of a neighbour.")
    clip_residual: float = Field(gt=0, description="Residual, in noise scales, from which a gradient is clipped.")


class Samples(FigureSection):
    """The runs on the right."""

    steps: int = Field(gt=0, description="Steps of each run.")
    batch_size: int = Field(gt=0, description="Expected, Poisson.")
    burn_in: float = Field(ge=0, lt=1, description="Share of the steps before the first kept draw.")
    thin: int = Field(gt=0, description="Steps from one draw to the next.")
    friction: float = Field(gt=0, le=1, description="Friction of SGHMC and SGNHT.")
    small_step: float = Field(gt=0, lt=1, description="Share of SGLD's step that the second SGLD takes.")
    repeats: int = Field(gt=0, description="Private runs.")
    plain_repeats: int = Field(gt=0, description="Runs without privacy.")
    small_repeats: int = Field(gt=0, description="Runs of the second SGLD.")


class Trajectories(FigureSection):
    """The chains on the left."""

    passes: float = Field(gt=0, description="T.")
    tail: float = Field(gt=0, lt=1, description="Share of a chain that its covariance is measured on.")
    repeats: int = Field(gt=1, description="Private chains, each a run of its own.")
    plain_repeats: int = Field(gt=1, description="Chains without privacy.")


class Quick(FigureSection):
    """Settings that ``--quick`` shortens; every method stays."""

    num_records: int = Field(gt=0, description="N.")
    steps: int = Field(gt=0, description="On the right.")
    batch_size: int = Field(gt=0, description="On the right.")
    repeats: int = Field(gt=0, description="On the right.")
    trajectories: int = Field(gt=1, description="Chains on the left, of each method.")


class Settings(FigureSection):
    """The whole YAML."""

    name: str = Field(description="Names the picture.")
    regression: Regression = Field(description="The data.")
    privacy: Promise = Field(description="Promise of private runs.")
    samples: Samples = Field(description="Right.")
    trajectories: Trajectories = Field(description="Left.")
    noise_seed: int | None = Field(None, description="None: secret noise.")
    quick: Quick = Field(description="Settings that --quick shortens.")

    def shortened(self) -> Settings:
        """Return the settings of ``--quick``."""
        body = self.quick
        samples = {
            "steps": body.steps,
            "batch_size": body.batch_size,
            "repeats": body.repeats,
            "plain_repeats": 1,
            "small_repeats": 1,
        }
        return self.model_copy(
            update={
                "regression": self.regression.model_copy(update={"num_records": body.num_records}),
                "samples": self.samples.model_copy(update=samples),
                "trajectories": self.trajectories.model_copy(
                    update={"repeats": body.trajectories, "plain_repeats": body.trajectories}
                ),
            }
        )


@dataclass(frozen=True)
class Problem:
    """A generated regression, and its exact posterior: mean (2,), covariance (2, 2) and its inverse."""

    target: dpmcmc.targets.LinearRegression
    records: dict[str, np.ndarray]
    mean: np.ndarray
    covariance: np.ndarray
    precision: np.ndarray

    @property
    def num_records(self) -> int:
        """N."""
        return len(self.records["y"])

    @property
    def curvature(self) -> float:
        """Mean curvature of the potential."""
        return float(np.trace(self.precision)) / 2

    def distance(self, point: np.ndarray) -> float:
        """Distance of a point to the posterior mean, in posterior standard deviations along the way."""
        return float(np.sqrt((point - self.mean) @ self.precision @ (point - self.mean)))

    def clipped_share(self, clip: float) -> float:
        """Share of the records whose gradient at the posterior mean exceeds the clip norm. Reads every record."""
        x, y = self.records["x"], self.records["y"]
        norms = np.abs(x @ self.mean - y) * np.linalg.norm(x, axis=1) / self.target.noise_scale**2
        return float(np.mean(norms > clip))


def make_problem(regression: Regression) -> Problem:
    """Draw coefficients and records from public seeds."""
    rng = np.random.default_rng(regression.seed)
    coefficients = regression.prior_scale * rng.normal(size=2)
    rho = regression.correlation
    x = rng.normal(size=(regression.num_records, 2)) @ np.linalg.cholesky(np.array([[1, rho], [rho, 1]])).T
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = x @ coefficients + regression.noise_scale * rng.normal(size=len(x))
    records = {"x": x.astype(np.float32), "y": y.astype(np.float32)}
    target = dpmcmc.targets.LinearRegression(regression.prior_scale, regression.noise_scale)
    mean, covariance = target.posterior(records)
    return Problem(target, records, mean, covariance, np.linalg.inv(covariance))


@dataclass(frozen=True)
class Method:
    """One line of the figure: a plan, how often it runs, and what is kept of it.

    Attributes:
        name: as in the table.
        plan: of every run.
        repeats: how many.
        epsilon: asked for, or claimed; None without privacy.
        claimed: whether ε is the source's claim, which the guarantee is not.
        tail: share of the draws that count, the rest being the way there.
    """

    name: str
    plan: dpmcmc.Plan
    repeats: int
    epsilon: float | None
    claimed: bool = False
    tail: float | None = None

    @property
    def private(self) -> bool:
        """Whether its gradients are clipped and charged."""
        return self.plan.privacy is not None


def methods(settings: Settings, problem: Problem) -> list[Method]:
    """Every line of the figure, planned."""
    return [*_trajectories(settings, problem), *_samples(settings, problem)]


def clip_norm(settings: Settings) -> float:
    """C, from public constants: ‖x‖ = 1, and a residual of ``clip_residual`` noise scales."""
    return settings.privacy.clip_residual / settings.regression.noise_scale


def _trajectories(settings: Settings, problem: Problem) -> list[Method]:
    promise, size, records = settings.privacy, settings.trajectories, problem.num_records
    batch, clip = round(math.sqrt(records)), clip_norm(settings)
    steps = int(records * size.passes / batch)
    printed = closed_form.formula(
        epsilon=promise.epsilon, delta=promise.delta, steps=steps, rate=batch / records, constant=_PRINTED
    )
    # η = 1/V, where V η² = η: the formula's z is √V·τ/(N·L).
    step_size = records / (printed * clip * records / batch) ** 2
    common: dict[str, Any] = {
        "num_records": records,
        "sampling": dpmcmc.FixedSize(batch),
        "steps": steps,
        "thin": max(1, steps // _POINTS),
    }
    free = dpmcmc.Privacy(
        delta=promise.delta, adjacency=promise.adjacency, accountant="rdp", calibrator="free", clip=clip
    )
    asked = dpmcmc.Privacy(
        epsilon=promise.epsilon, delta=promise.delta, adjacency=promise.adjacency, accountant="rdp", clip=clip
    )
    as_printed = dpmcmc.plan(problem.target, sampler=dpmcmc.SGLD(step_size, 0.5), privacy=free, **common)
    private = dpmcmc.plan(problem.target, sampler=dpmcmc.SGLD(step_size), privacy=asked, **common)
    plain = dpmcmc.plan(problem.target, sampler=dpmcmc.SGLD(step_size), **common)
    return [
        Method(PRINTED, as_printed, size.repeats, promise.epsilon, claimed=True, tail=size.tail),
        Method(SAME_STEP, private, size.repeats, promise.epsilon, tail=size.tail),
        Method(SAME_STEP, plain, size.plain_repeats, None, tail=size.tail),
    ]


def _samples(settings: Settings, problem: Problem) -> list[Method]:
    promise, size = settings.privacy, settings.samples
    common: dict[str, Any] = {
        "num_records": problem.num_records,
        "sampling": dpmcmc.Poisson(size.batch_size),
        "steps": size.steps,
        "burn_in": int(size.burn_in * size.steps),
        "thin": size.thin,
    }
    privacy = dpmcmc.Privacy(
        epsilon=promise.epsilon, delta=promise.delta, adjacency=promise.adjacency, clip=clip_norm(settings)
    )

    def pair(name: str, sampler: Any, plain_repeats: int, repeats: int) -> list[Method]:
        private = dpmcmc.plan(problem.target, sampler=sampler, privacy=privacy, **common)
        out = [Method(name, private, repeats, promise.epsilon)]
        if plain_repeats:
            plain = dpmcmc.plan(problem.target, sampler=private.sampler, **common)
            out.insert(0, Method(name, plain, plain_repeats, None))
        return out

    momentum = {"friction": size.friction}
    out = pair("SGLD", dpmcmc.SGLD("auto"), size.plain_repeats, size.repeats)
    out += pair("SGHMC", dpmcmc.SGHMC("auto", **momentum), size.plain_repeats, size.repeats)
    out += pair("SGNHT", dpmcmc.SGNHT("auto", **momentum), size.plain_repeats, size.repeats)
    smaller = size.small_step * out[0].plan.sampler.step_size  # type: ignore[attr-defined]
    return out + pair(SMALL_STEP, dpmcmc.SGLD(smaller), 0, size.small_repeats)


@dataclass(frozen=True)
class Found:
    """Results of a method's runs: every kept draw (repeats, draws, 2), and rows of the table."""

    method: Method
    draws: np.ndarray
    rows: list[dict[str, Any]]

    @property
    def kept(self) -> np.ndarray:
        """The draws that count, (repeats, kept, 2)."""
        return _tail(self.method, self.draws)

    @property
    def pooled(self) -> tuple[np.ndarray, np.ndarray]:
        """(mean (2,), covariance (2, 2)) of all runs together."""
        means, covariances = moments(self.method, self.draws)
        return means.mean(axis=0), covariances.mean(axis=0)

    @property
    def guarantee_epsilon(self) -> float | None:
        """ε that the accountant proves for one run."""
        return self.rows[0]["guarantee_epsilon"]


def _tail(method: Method, draws: np.ndarray) -> np.ndarray:
    return draws if method.tail is None else draws[:, -max(1, int(method.tail * draws.shape[1])) :]


def moments(method: Method, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(means (repeats, 2), covariances (repeats, 2, 2)) of the draws that count; see the top of the file."""
    kept = _tail(method, draws)
    # A mean over repeats takes a degree of freedom at every step; a run's own mean is over thousands of draws.
    together = method.tail is not None
    centre = kept.mean(axis=0, keepdims=True) if together else kept.mean(axis=1, keepdims=True)
    scale = len(kept) / (len(kept) - 1) if together else 1.0
    covariances = scale * np.einsum("rni,rnj->rij", kept - centre, kept - centre) / kept.shape[1]
    return kept.mean(axis=1), covariances


def run(settings: Settings, problem: Problem, console: Console) -> list[Found]:
    """Plan, sample and measure every method, with a progress bar kept outside the compiled code."""
    lines = methods(settings, problem)
    plans = [method.plan for method in lines for _ in range(method.repeats)]
    seed = settings.noise_seed
    keys = None if seed is None else [seed + i for i in range(len(plans))]
    columns = (
        TextColumn("sampling"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=sum(plan.steps for plan in plans))
        results = sample_all(
            plans, problem.records, keys=keys, progress=lambda done, total: bar.update(task, completed=done)
        )
    out = []
    for method in lines:
        of_method, results = results[: method.repeats], results[method.repeats :]
        for result in of_method:
            if isinstance(result, dpmcmc.DivergedError):
                raise CommandError(f"{method.name}: {result}", code=1)
        draws = np.concatenate([np.asarray(result.draws, np.float64) for result in of_method])
        out.append(Found(method, draws, _rows(settings, problem, method, draws, of_method[0].guarantee)))
    return out


def _rows(
    settings: Settings, problem: Problem, method: Method, draws: np.ndarray, guarantee: dpmcmc.Guarantee | None
) -> list[dict[str, Any]]:
    """A row per repeat, and one of all repeats together."""
    kept, plan = _tail(method, draws), method.plan
    clip = None if plan.privacy is None else plan.privacy.clip
    relaxations = plan.time * problem.curvature
    if not method.private:
        assumptions = "no privacy"
    elif method.claimed:
        assumptions = "epsilon is the source's claim"
    else:
        assumptions = "; ".join(guarantee.assumptions) if guarantee is not None else "noise seed is public"
    common = {
        "method": method.name,
        "private": method.private,
        "epsilon": method.epsilon,
        "delta": settings.privacy.delta if method.private else None,
        "guarantee_epsilon": None if guarantee is None else guarantee.epsilon,
        "assumptions": assumptions,
        "plan_temperature": float(plan.temperatures.max()),
        "minibatch_temperature": _minibatch_temperature(plan, relaxations),
        "relaxation_times": relaxations,
        "step_size": plan.sampler.step_size,  # type: ignore[attr-defined]
        "steps": plan.steps,
        "batch_size": plan.batch_size,
        "clipped_share": 0.0 if clip is None else problem.clipped_share(clip),
    }
    means, covariances = moments(method, draws)
    rows = [
        {**common, **_errors(problem, mean, covariance), "repeat": i, "draws": kept.shape[1]}
        for i, (mean, covariance) in enumerate(zip(means, covariances, strict=True))
    ]
    pooled = _errors(problem, means.mean(axis=0), covariances.mean(axis=0))
    return [*rows, {**common, **pooled, "repeat": "pooled", "draws": kept.shape[0] * kept.shape[1]}]


def _minibatch_temperature(plan: dpmcmc.Plan, relaxations: float) -> float:
    """Return what minibatches add to the plan's temperature, averaged over directions, if no thermostat takes it away.

    A minibatch adds about (N/b − 1)·Σ⁻¹ to the covariance of a gradient, for per-record gradients have second moment
    Σ⁻¹/N in a well-specified model; noise of variance v in a gradient is a temperature v·h/2, h the time of a step.
    """
    return relaxations / plan.steps * (plan.num_records / plan.batch_size - 1) / 2


def _errors(problem: Problem, mean: np.ndarray, covariance: np.ndarray) -> dict[str, float]:
    return {
        "mean_error": float(np.max(np.abs(mean - problem.mean) / np.sqrt(np.diag(problem.covariance)))),
        "covariance_error": float(np.linalg.norm(covariance - problem.covariance) / np.linalg.norm(problem.covariance)),
        "temperature": float(np.trace(problem.precision @ covariance)) / 2,
    }


STYLE: Any = {
    "figure.dpi": 100,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
    "axes.titlesize": 9.5,
    "legend.frameon": False,
    "legend.fontsize": 8,
}
_PLAIN, _PRIVATE, _CLAIMED = "C0", "C1", "#6a00a8"
#: Points of a run that are drawn: more hide the contours.
_SHOWN = 500


def draw(path: Path, settings: Settings, problem: Problem, found: list[Found], note: str | None) -> None:
    """The picture: trajectories and their ends above, samples below, all against contours of the posterior."""
    by_name: dict[str, list[Found]] = {}
    for one in found:
        by_name.setdefault(one.method.name, []).append(one)
    promise = settings.privacy
    with rc_context(STYLE):
        figure = Figure(figsize=(10.2, 8.5))
        grid = figure.add_gridspec(2, 6, height_ratios=(1.12, 1))
        above = [figure.add_subplot(grid[0, :3]), figure.add_subplot(grid[0, 3:])]
        below = [figure.add_subplot(grid[1, 2 * i : 2 * i + 2]) for i in range(3)]
        _draw_trajectories(above[0], problem, by_name)
        _draw_ends(above[1], problem, by_name)
        for axis, name in zip(below, SAMPLERS, strict=True):
            _draw_samples(axis, problem, name, by_name[name])
        for axis in (*above, *below):
            axis.set_xlabel("θ₁")
        for axis in (above[0], above[1], below[0]):
            axis.set_ylabel("θ₂")
        figure.suptitle(
            f"Bayesian linear regression, N = {problem.num_records:,}: ε = {promise.epsilon:g}, "
            f"δ = {promise.delta:.0e}".replace("e-0", "e-")
            + ("" if note is None else f"  ({note})"),
            fontsize=11,
        )
        figure.text(
            0.5,
            0.012,
            "grey: the exact posterior, by the share inside (above left: by distance in its standard deviations); "
            "dashed: 90 % by the draws' own mean and covariance",
            ha="center",
            fontsize=8,
        )
        figure.tight_layout(rect=(0, 0.03, 1, 1), h_pad=2.2)
        figure.savefig(path)


def _contours(axis: Any, problem: Problem, limits: tuple[np.ndarray, np.ndarray], levels: dict[float, str]) -> None:
    """Lines of equal posterior density; ``levels`` maps Mahalanobis distances to labels."""
    x, y = (np.linspace(limits[0][i], limits[1][i], 201) for i in range(2))
    offsets = np.stack(np.meshgrid(x, y), axis=-1) - problem.mean
    radius = np.sqrt(np.einsum("xyi,ij,xyj->xy", offsets, problem.precision, offsets))
    lines = axis.contour(x, y, radius, levels=list(levels), colors="0.35", linewidths=0.9, zorder=3)
    axis.clabel(lines, fmt=levels, fontsize=7.5)
    axis.set_xlim(x[0], x[-1])
    axis.set_ylim(y[0], y[-1])
    axis.set_aspect("equal", adjustable="box")


def _mass(share: float) -> float:
    """Mahalanobis radius that holds this share of a normal in the plane."""
    return math.sqrt(-2 * math.log(1 - share))


_MASSES = {_mass(0.5): "50 %", _mass(0.9): "90 %", _mass(0.99): "99 %"}


def _near(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Axes that are the same wherever samples are shown."""
    half = 3.9 * np.sqrt(np.max(np.diag(problem.covariance)))
    return problem.mean - half, problem.mean + half


def _label(one: Found) -> str:
    """A legend's entry: what was asked or claimed, and what is proved."""
    if not one.method.private:
        return "not private"
    proved = one.guarantee_epsilon
    said = "no guarantee" if proved is None else f"proved ε = {round_up(proved, 2)}"
    return f"claims ε = {one.method.epsilon:g}, {said}" if one.method.claimed else said


def _draw_trajectories(axis: Any, problem: Problem, by_name: dict[str, list[Found]]) -> None:
    printed, (private, plain) = by_name[PRINTED][0], by_name[SAME_STEP]
    ends = np.stack([np.zeros(2), problem.mean])
    centre, half = ends.mean(axis=0), 0.65 * np.ptp(ends, axis=0).max() * np.array([1.35, 1.0])
    limits = centre - half, centre + half
    far = problem.distance(np.zeros(2))
    rings = {r: f"{r:g}σ" for r in (3.0, *np.arange(8.0, 1.1 * far, 6.0))}
    _contours(axis, problem, limits, rings)
    for one, colour, name in (
        (plain, _PLAIN, "SGLD"),
        (private, _PRIVATE, "DP-SGLD, T = 1"),
        (printed, _CLAIMED, "DP-SGLD as printed"),
    ):
        path = np.concatenate([np.zeros((1, 2)), one.draws[0]])
        axis.plot(*path.T, color=colour, lw=0.9, alpha=0.75, label=f"{name}: {_label(one)}")
    axis.plot(0, 0, "o", color="k", ms=6, zorder=5)
    axis.annotate("start: the prior mean", (0, 0), (8, -3), textcoords="offset points", fontsize=8.5, va="top")
    axis.plot(*problem.mean, "+", color="k", ms=9, mew=1.4, zorder=5)
    axis.annotate("posterior mean", problem.mean, (38, -3), textcoords="offset points", fontsize=8.5, zorder=6)
    _legend(axis)
    axis.set_title(f"One chain each, {printed.method.plan.steps:,} steps of the same size")


def _draw_ends(axis: Any, problem: Problem, by_name: dict[str, list[Found]]) -> None:
    for one, colour, name in (
        (by_name[SAME_STEP][0], _PRIVATE, "T = 1"),
        (by_name[PRINTED][0], _CLAIMED, "as printed"),
    ):
        temperature = one.rows[-1]["temperature"]
        label = f"{name}: covariance {temperature:.2f} of the posterior's"
        # Ends of the tail alone: neighbours on a path are nearly the same point.
        points = one.kept[:, :: max(1, one.kept.shape[1] // 8)].reshape(-1, 2)
        _cloud(axis, points, colour, label, *one.pooled)
    _contours(axis, problem, _near(problem), _MASSES)
    _legend(axis)
    tail = by_name[PRINTED][0].method.tail
    axis.set_title(f"Last {100 * tail:.0f} % of {len(by_name[PRINTED][0].draws)} chains each")


def _draw_samples(axis: Any, problem: Problem, name: str, pair: list[Found]) -> None:
    for one, colour in zip(pair, (_PLAIN, _PRIVATE), strict=True):
        temperature = one.rows[-1]["temperature"]
        points = one.kept[0]
        shown = np.unique(np.linspace(0, len(points) - 1, _SHOWN).astype(int))
        _cloud(axis, points[shown], colour, f"{_label(one)}: T = {temperature:.2f}", *one.pooled)
    _contours(axis, problem, _near(problem), _MASSES)
    _legend(axis)
    off = np.mean([row["covariance_error"] for row in pair[-1].rows[:-1]])
    axis.set_title(f"{name}: private covariance off by {100 * off:.0f} %")


def _cloud(axis: Any, points: np.ndarray, colour: str, label: str, mean: np.ndarray, covariance: np.ndarray) -> None:
    """Draws, and the ellipse that holds 90 % of the normal with their mean and covariance."""
    axis.plot(*points.T, "o", ms=2.4, mew=0, alpha=0.4, color=colour, label=label)
    turn = np.linspace(0, 2 * np.pi, 181)
    circle = _mass(0.9) * np.stack([np.cos(turn), np.sin(turn)])
    axis.plot(*(mean[:, None] + np.linalg.cholesky(covariance) @ circle), color=colour, lw=1.6, ls="--", zorder=4)


def _legend(axis: Any) -> None:
    # Below: nothing of a cloud or a path is hidden.
    legend = axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.17), handlelength=1.2)
    for handle in legend.legend_handles:
        handle.set_alpha(1)
        handle.set_markersize(max(6.0, handle.get_markersize()))


def write_table(path: Path, found: list[Found]) -> None:
    """results.csv: a row per run, and one per method of all its runs together."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS)
        table.writeheader()
        for one in found:
            for row in one.rows:
                table.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})


def summary(found: list[Found]) -> list[str]:
    """A line per method: mean and spread over runs, and all runs together."""
    out = []
    for one in found:
        runs, pooled = one.rows[:-1], one.rows[-1]
        head = f"{one.method.name} ({'not private' if not one.method.private else _label(one)}), {len(runs)} runs"
        parts = []
        for key in ("mean_error", "covariance_error", "temperature"):
            values = np.array([row[key] for row in runs])
            spread = f" ± {values.std(ddof=1):.3f}" if len(values) > 1 else ""
            parts.append(f"{key.replace('_', ' ')} {values.mean():.3f}{spread} (pooled {pooled[key]:.3f})")
        out.append(f"{head}: {', '.join(parts)}")
    return out


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    parser = Parser(prog="python -m experiments.fig3_1", description="Redraw Figure 3.1.")
    parser.add_argument("--quick", action="store_true", help="under a minute: fewer records, steps and repeats")
    parser.add_argument("--config", type=Path, default=_CONFIG, help="YAML file")
    parser.add_argument("--out", type=Path, default=Path("runs/fig3_1"), metavar="DIR", help="folder to write in")
    arguments = parser.parse_args(argv)
    console = Console(highlight=False, soft_wrap=True, markup=False)
    settings = load(arguments.config, Settings)
    if arguments.quick:
        settings = settings.shortened()
    with folder_for(arguments.out):
        problem = make_problem(settings.regression)
        share = problem.clipped_share(clip_norm(settings))
        console.print(
            f"N = {problem.num_records:,}, started {problem.distance(np.zeros(2)):.1f} posterior standard deviations "
            f"away; {100 * share:.2f} % of the gradients are clipped at the posterior mean"
        )
        found = run(settings, problem, console)
        write_table(arguments.out / "results.csv", found)
        note = "quick: short runs" if arguments.quick else None
        draw(arguments.out / f"{settings.name}.png", settings, problem, found, note)
        report(summary(found), arguments.out)


if __name__ == "__main__":
    raise SystemExit(main())
