"""The picture of Figure 3.1."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes

from experiments.pictures import BLUE, PURPLE, RED, saved
from experiments.two_dimensions.measures import Found, label
from experiments.two_dimensions.methods import PRINTED, SAME_STEP, SAMPLERS
from experiments.two_dimensions.problem import Problem
from experiments.two_dimensions.settings import Settings

_PLAIN, _PRIVATE, _CLAIMED = BLUE, RED, PURPLE
#: Points of a run that are drawn: more hide the contours.
_SHOWN = 500


def draw(path: Path, settings: Settings, problem: Problem, found: list[Found], note: str | None) -> None:
    """The picture: trajectories and their ends above, samples below, all against contours of the posterior."""
    by_name: dict[str, list[Found]] = {}
    for one in found:
        by_name.setdefault(one.method.name, []).append(one)
    promise = settings.privacy
    says = (
        f"At ε = {promise.epsilon:g} private draws match plain ones; DP-SGLD as printed has half the posterior's "
        "covariance"
    )
    about = (
        f"Bayesian linear regression, N = {problem.num_records:,}, δ = {promise.delta:.0e}. ".replace("e-0", "e-")
        + "Grey: the exact posterior, by the share inside (above left: by distance in its standard deviations). "
        "Dashed: 90 % by the draws' own mean and covariance"
    )
    with saved(path, (10.6, 9.2), says, about, note) as figure:
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


def _contours(axis: Axes, problem: Problem, limits: tuple[np.ndarray, np.ndarray], levels: dict[float, str]) -> None:
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


def _draw_trajectories(axis: Axes, problem: Problem, by_name: dict[str, list[Found]]) -> None:
    printed = by_name[PRINTED][0]
    private, plain = by_name[SAME_STEP]
    ends = np.stack([np.zeros(2), problem.mean])
    centre = ends.mean(axis=0)
    half = 0.65 * np.ptp(ends, axis=0).max() * np.array([1.35, 1.0])
    limits = centre - half, centre + half
    far = problem.distance(np.zeros(2))
    rings = {r: f"{r:g}σ" for r in (3.0, *np.arange(8.0, 1.1 * far, 6.0))}
    _contours(axis, problem, limits, rings)
    names = []
    for one, colour, name in (
        (plain, _PLAIN, "SGLD"),
        (private, _PRIVATE, "DP-SGLD, T = 1"),
        (printed, _CLAIMED, "DP-SGLD as printed"),
    ):
        path = np.concatenate([np.zeros((1, 2)), one.draws[0]])
        axis.plot(*path.T, color=colour, lw=0.9, alpha=0.75)
        names.append((f"{name}: {label(one)}", colour))
    axis.plot(0, 0, "o", color="k", ms=6, zorder=5)
    axis.annotate("start: the prior mean", (0, 0), (8, -3), textcoords="offset points", fontsize=8.5, va="top")
    axis.plot(*problem.mean, "+", color="k", ms=9, mew=1.4, zorder=5)
    axis.annotate("posterior mean", problem.mean, (38, -3), textcoords="offset points", fontsize=8.5, zorder=6)
    _title(axis, f"One chain each, {printed.method.plan.steps:,} steps of the same size", names)


def _draw_ends(axis: Axes, problem: Problem, by_name: dict[str, list[Found]]) -> None:
    names = []
    for one, colour, name in (
        (by_name[SAME_STEP][0], _PRIVATE, "T = 1"),
        (by_name[PRINTED][0], _CLAIMED, "as printed"),
    ):
        temperature = one.rows[-1]["temperature"]
        names.append((f"{name}: covariance {temperature:.2f} of the posterior's", colour))
        # Ends of the tail alone: neighbours on a path are nearly the same point.
        points = one.kept[:, :: max(1, one.kept.shape[1] // 8)].reshape(-1, 2)
        _cloud(axis, points, colour, *one.pooled)
    _contours(axis, problem, _near(problem), _MASSES)
    tail = by_name[PRINTED][0].method.tail
    _title(axis, f"Last {100 * tail:.0f} % of {len(by_name[PRINTED][0].draws)} chains each", names)


def _draw_samples(axis: Axes, problem: Problem, name: str, pair: list[Found]) -> None:
    names = []
    for one, colour in zip(pair, (_PLAIN, _PRIVATE), strict=True):
        temperature = one.rows[-1]["temperature"]
        points = one.kept[0]
        shown = np.unique(np.linspace(0, len(points) - 1, _SHOWN).astype(int))
        _cloud(axis, points[shown], colour, *one.pooled)
        names.append((f"{label(one)}: T = {temperature:.2f}", colour))
    _contours(axis, problem, _near(problem), _MASSES)
    off = np.mean([row["covariance_error"] for row in pair[-1].rows[:-1]])
    _title(axis, f"{name}: private covariance off by {100 * off:.0f} %", names)


def _cloud(axis: Axes, points: np.ndarray, colour: str, mean: np.ndarray, covariance: np.ndarray) -> None:
    """Draws, and the ellipse that holds 90 % of the normal with their mean and covariance."""
    axis.plot(*points.T, "o", ms=2.4, mew=0, alpha=0.4, color=colour)
    turn = np.linspace(0, 2 * np.pi, 181)
    circle = _mass(0.9) * np.stack([np.cos(turn), np.sin(turn)])
    axis.plot(*(mean[:, None] + np.linalg.cholesky(covariance) @ circle), color=colour, lw=1.6, ls="--", zorder=4)


def _title(axis: Axes, title: str, names: list[tuple[str, str]]) -> None:
    """Write a title, and under it, above the axis, each name in its colour: nothing of a cloud is hidden."""
    axis.set_title(title, loc="left", pad=6 + 12 * len(names))
    for line, (name, colour) in enumerate(reversed(names)):
        axis.annotate(
            name, (0, 1), (0, 4 + 12 * line), xycoords="axes fraction", textcoords="offset points", color=colour,
            fontsize=9, weight="bold",
        )  # fmt: skip
