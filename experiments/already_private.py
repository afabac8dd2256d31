r"""Inference on data that are private already: post-processing, so it costs nothing more (McMillan, chapters 7 and 8).

    python -m experiments.already_private [--quick] [--out DIR] [--config configs/figures/already_private.yaml]

Sensors measure y = M f and publish y + N(0, s²I). Sources f and f' are neighbours where one unit source moves to the
next place. So s = Δ₂/μ with Δ₂ = max ‖M_i − M_j‖ over neighbouring columns, and μ that of (ε, δ)
(``accounting/gaussian.py``). The likelihood N(y; M f, s²I) is exact, and any sampler may use it without more noise.

* *Rod*: heat of two unit sources spreads for a time T. The posterior of their places, by enumeration of pairs, and the
  source's estimate, basis pursuit by Bregman iteration, which knows of sparseness alone.
* *Sensitivity*: Δ₂ of the rod against T.
* *Graph*: heat exp(−τL) on a block model. The posterior of the place of its one source, by enumeration.
* *Map*: counts on a grid, one person each, with Gaussian noise. The posterior of a Gaussian Markov random field has the
  mean (I + λL)⁻¹y, which is Laplacian smoothing.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from pydantic import Field

from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from experiments.commands import command, folder_for
from experiments.figure_files import FigureSection, arguments_of, load, report, write_table
from experiments.pictures import BLUE, GREY, ORANGE, on_epsilon, saved

COLUMNS = ("panel", "quantity", "at", "value", "error")
#: Level of intervals.
LEVEL = 0.9


class Rod(FigureSection):
    """Sources and sensors on [0, 1]."""

    sources: int = Field(gt=1, description="n.")
    sensors: int = Field(gt=1, description="m.")
    time: float = Field(gt=0, description="T.")
    noise_std: float = Field(gt=0, description="s.")
    peaks: list[float] = Field(description="Places of unit sources.")
    seed: int = Field(ge=0, description="Seed of the noise.")


class Sensitivity(FigureSection):
    """A rod whose Δ₂ is computed."""

    sensors: int = Field(gt=1, description="m.")
    sources: int = Field(gt=1, description="n.")
    times: list[float] = Field(description="T.")


class Graph(FigureSection):
    """A block model of two halves."""

    vertices: int = Field(gt=3, description="n.")
    within: float = Field(gt=0, lt=1, description="Chance of an edge within a half.")
    between: float = Field(gt=0, lt=1, description="Chance of an edge between the halves.")
    time: float = Field(gt=0, description="τ.")
    delta: float = Field(gt=0, lt=1, description="δ.")
    epsilons: list[float] = Field(description="ε.")
    repeats: int = Field(gt=1, description="Releases at each ε.")
    seed: int = Field(ge=0, description="Seed of graph and noise.")


class Map(FigureSection):
    """Counts on a square grid."""

    side: int = Field(gt=2, description="Cells of a side.")
    people: int = Field(gt=0, description="Expected people on the whole map.")
    delta: float = Field(gt=0, lt=1, description="δ.")
    epsilons: list[float] = Field(description="ε.")
    repeats: int = Field(gt=1, description="Maps at each ε.")
    seed: int = Field(ge=0, description="Seed of people and noise.")


class Quick(FigureSection):
    """Settings that ``--quick`` shortens."""

    repeats: int = Field(gt=1, description="Releases of graph and map.")


class Settings(FigureSection):
    """The whole YAML."""

    name: str = Field(description="Names the picture.")
    rod: Rod = Field(description="Figure 8.1.")
    sensitivity: Sensitivity = Field(description="Figure 8.2.")
    graph: Graph = Field(description="Figure 8.3.")
    map: Map = Field(description="Counts on a grid.")
    quick: Quick = Field(description="Settings that --quick shortens.")


# ----------------------------------------------------------------------------------------------------
# The view of the sensors, and how much a neighbour moves it.


def heat(sensors: int, sources: int, time: float) -> np.ndarray:
    """The heat kernel on [0, 1]: sensor i/m sees g_T(i/m − j/n) of source j/n, (m, n)."""
    at = np.arange(1, sensors + 1)[:, None] / sensors
    origin = np.arange(1, sources + 1) / sources
    return np.exp(-((at - origin) ** 2) / (4 * time)) / math.sqrt(4 * math.pi * time)


def next_to(kernel: np.ndarray) -> float:
    """Δ₂ where a unit source moves to the next column: the largest ‖M_i − M_{i+1}‖."""
    return float(np.linalg.norm(np.diff(kernel, axis=1), axis=0).max())


def along_edges(kernel: np.ndarray, edges: np.ndarray) -> float:
    """Δ₂ where a unit source moves along an edge, (edges, 2)."""
    return float(np.linalg.norm(kernel[:, edges[:, 0]] - kernel[:, edges[:, 1]], axis=0).max())


def laplacian(adjacency: np.ndarray) -> np.ndarray:
    """L = degrees − adjacency."""
    return np.diag(adjacency.sum(axis=0)) - adjacency


def diffusion(adjacency: np.ndarray, time: float) -> np.ndarray:
    """exp(−τL)."""
    values, vectors = np.linalg.eigh(laplacian(adjacency))
    return (vectors * np.exp(-time * values)) @ vectors.T


def block_model(rng: np.random.Generator, settings: Graph) -> np.ndarray:
    """Adjacency of two halves, (n, n); vertices without an edge get one to the next of their half."""
    n = settings.vertices
    half = np.arange(n) < n // 2
    chance = np.where(half[:, None] == half, settings.within, settings.between)
    upper = np.triu(rng.random((n, n)) < chance, 1)
    alone = np.flatnonzero(~(upper | upper.T).any(axis=0))
    upper[alone, np.where(half[alone], (alone + 1) % (n // 2), n // 2 + (alone + 1) % (n - n // 2))] = True
    return (upper | upper.T).astype(np.float64)


# ----------------------------------------------------------------------------------------------------
# Recovery.


def basis_pursuit(kernel: np.ndarray, seen: np.ndarray, noise_std: float, strength: float = 1.0) -> np.ndarray:
    """The source's estimate: least ‖f‖₁ on [0, 1] within the noise, by adding back the residual (Algorithm 2).

    It stops at the radius that Lemma 8.1 proves with probability 1 − e⁻¹, σ√(m + 2√m + 2), where σ√m is printed.
    """
    m, n = kernel.shape
    radius = noise_std * math.sqrt(m + 2 * math.sqrt(m) + 2)
    target = seen.copy()
    found = np.zeros(n)

    def potential(f: np.ndarray) -> tuple[float, np.ndarray]:
        residual = kernel @ f - target
        return f.sum() + strength * residual @ residual, 1 + 2 * strength * kernel.T @ residual

    for _ in range(50):
        fitted = scipy.optimize.minimize(potential, found, jac=True, method="L-BFGS-B", bounds=[(0, 1)] * n)
        found = fitted.x
        residual = seen - kernel @ found
        if np.linalg.norm(residual) <= radius:
            break
        target = target + residual
    return found


def pairs_of_sources(kernel: np.ndarray, seen: np.ndarray, noise_std: float) -> np.ndarray:
    """Posterior of the places of two unit sources, every pair alike at first, (n, n); entries i < j sum to 1."""
    both = kernel[:, :, None] + kernel[:, None, :]
    misfit = ((seen[:, None, None] - both) ** 2).sum(axis=0) / (2 * noise_std**2)
    misfit[np.tril_indices(kernel.shape[1])] = np.inf
    return scipy.special.softmax(-misfit)


def moved_mass(first: np.ndarray, second: np.ndarray) -> float:
    """Earth mover's distance between two measures on an even grid of [0, 1], each scaled to mass 1."""
    gap = np.cumsum(first / first.sum() - second / second.sum())
    return float(np.abs(gap).sum() / len(first))


def run_rod(settings: Rod) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Rows of Figure 8.1, and what is drawn of it."""
    rng = np.random.default_rng(settings.seed)
    kernel = heat(settings.sensors, settings.sources, settings.time)
    truth = np.zeros(settings.sources)
    truth[[round(place * settings.sources) - 1 for place in settings.peaks]] = 1.0
    seen = kernel @ truth + settings.noise_std * rng.standard_normal(settings.sensors)
    pairs = pairs_of_sources(kernel, seen, settings.noise_std)
    pursued = basis_pursuit(kernel, seen, settings.noise_std)
    chances = pairs.sum(axis=0) + pairs.sum(axis=1)
    found = np.zeros(settings.sources)
    found[list(np.unravel_index(pairs.argmax(), pairs.shape))] = 1.0
    rows = [
        row("rod", "moved mass, likeliest pair", settings.time, moved_mass(found, truth)),
        row("rod", "moved mass, posterior mean", settings.time, moved_mass(chances, truth)),
        row("rod", "moved mass, basis pursuit", settings.time, moved_mass(pursued, truth)),
    ]
    return rows, {"truth": truth, "chances": chances, "pursued": pursued}


def run_sensitivity(settings: Sensitivity) -> list[dict[str, Any]]:
    """Rows of Figure 8.2: Δ₂·n/√m against T."""
    scale = settings.sources / math.sqrt(settings.sensors)
    return [
        row("sensitivity", "adjacent", time, scale * next_to(heat(settings.sensors, settings.sources, time)))
        for time in settings.times
    ]


def run_graph(settings: Graph) -> list[dict[str, Any]]:
    """Rows of Figure 8.3: the posterior probability of the source's half, and of the source itself."""
    rng = np.random.default_rng(settings.seed)
    adjacency = block_model(rng, settings)
    kernel = diffusion(adjacency, settings.time)
    moved = along_edges(kernel, np.argwhere(np.triu(adjacency)))
    left = np.arange(settings.vertices) < settings.vertices // 2
    rows = [row("graph", "sensitivity", settings.time, moved)]
    for epsilon in settings.epsilons:
        std = moved / gaussian_mu(epsilon, settings.delta)
        halves = []
        places = []
        for _ in range(settings.repeats):
            source = int(rng.integers(settings.vertices // 2))
            seen = kernel[:, source] + std * rng.standard_normal(settings.vertices)
            chances = scipy.special.softmax(-((seen[:, None] - kernel) ** 2).sum(axis=0) / (2 * std**2))
            halves.append(chances[left].sum())
            places.append(chances[source])
        rows.append(row("graph", "its half", epsilon, *with_error(halves)))
        rows.append(row("graph", "the source", epsilon, *with_error(places)))
    return rows


def grid_graph(side: int) -> np.ndarray:
    """Adjacency of a square grid, (side², side²)."""
    line = np.eye(side, k=1) + np.eye(side, k=-1)
    return np.kron(line, np.eye(side)) + np.kron(np.eye(side), line)


def smoothed(noisy: np.ndarray, graph: np.ndarray, noise_variance: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean and standard deviation of each cell, and the λ of largest evidence.

    The prior is N(m, s²/λ·L⁺) around the map's mean, flat in it: the mean is (I + λL)⁻¹y and the covariance
    s²(I + λL)⁻¹.
    """
    values, vectors = np.linalg.eigh(laplacian(graph))
    part = (vectors.T @ noisy)[1:] ** 2
    values = np.maximum(values, 0.0)

    def misfit(log_strength: float) -> float:
        variances = noise_variance * (1 + 1 / (math.exp(log_strength) * values[1:]))
        return float(np.sum(np.log(variances) + part / variances))

    found = scipy.optimize.minimize_scalar(misfit, bounds=(-10, 10), method="bounded")
    shrunk = 1 / (1 + math.exp(found.x) * values)
    mean = vectors @ (shrunk * (vectors.T @ noisy))
    deviation = np.sqrt(noise_variance * np.square(vectors) @ shrunk)
    return mean, deviation, math.exp(found.x)


def run_map(settings: Map) -> list[dict[str, Any]]:
    """Rows of the map: root mean squared errors of a cell, and coverage of its interval."""
    rng = np.random.default_rng(settings.seed)
    at = (np.arange(settings.side) + 0.5) / settings.side
    hills = np.exp(-((at[:, None] - 0.3) ** 2 + (at - 0.4) ** 2) / 0.02)
    hills = hills + 0.7 * np.exp(-((at[:, None] - 0.7) ** 2 + (at - 0.7) ** 2) / 0.05) + 0.1
    expected = (settings.people * hills / hills.sum()).ravel()
    graph = grid_graph(settings.side)
    reach = float(scipy.special.ndtri((1 + LEVEL) / 2))
    rows = []
    for epsilon in settings.epsilons:
        # One person who moves changes two counts by one each.
        std = math.sqrt(2) / gaussian_mu(epsilon, settings.delta)
        raw = []
        better = []
        covered = []
        for _ in range(settings.repeats):
            counts = rng.poisson(expected)
            noisy = counts + std * rng.standard_normal(len(counts))
            mean, deviation, _ = smoothed(noisy, graph, std**2)
            raw.append(math.sqrt(np.mean((noisy - counts) ** 2)))
            better.append(math.sqrt(np.mean((mean - counts) ** 2)))
            covered.append(np.mean(np.abs(mean - counts) <= reach * deviation))
        rows.append(row("map", "noisy", epsilon, *with_error(raw)))
        rows.append(row("map", "smoothed", epsilon, *with_error(better)))
        rows.append(row("map", "coverage", epsilon, *with_error(covered)))
    return rows


def row(panel: str, quantity: str, at: float, value: float, error: float | None = None) -> dict[str, Any]:
    """A row of results.csv."""
    return {"panel": panel, "quantity": quantity, "at": at, "value": float(value), "error": error}


def with_error(values: list[float]) -> tuple[float, float]:
    """(mean, its standard error)."""
    return float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values)))


def run(settings: Settings) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Rows of results.csv, and what is drawn of the rod."""
    rows, rod = run_rod(settings.rod)
    rows += [*run_sensitivity(settings.sensitivity), *run_graph(settings.graph), *run_map(settings.map)]
    return rows, rod


def of(rows: list[dict[str, Any]], panel: str, quantity: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(at, values, errors) of one line."""
    found = [r for r in rows if (r["panel"], r["quantity"]) == (panel, quantity)]
    return tuple(np.array([r[key] or 0.0 for r in found], np.float64) for key in ("at", "value", "error"))  # type: ignore[return-value]


def draw(
    path: Path, settings: Settings, rows: list[dict[str, Any]], rod: dict[str, np.ndarray], note: str | None
) -> None:
    """Four panels."""
    says = "Data that are private already: the posterior costs nothing more, and knows the noise"
    about = f"Rod: T = {settings.rod.time:g}, s = {settings.rod.noise_std:g}. Graph: τ = {settings.graph.time:g}, δ = "
    about += f"{settings.graph.delta:g}. Map: {settings.map.people:,} people, δ = {settings.map.delta:g}"
    with saved(path, (9.0, 6.6), says, about, note) as figure:
        ((first, second), (third, fourth)) = figure.subplots(2, 2)
        places = np.arange(1, settings.rod.sources + 1) / settings.rod.sources
        first.bar(places, rod["chances"], width=0.01, color=BLUE, label="chance that one of the two is here")
        first.plot(places, rod["pursued"], color=ORANGE, ls="--", label="strength, by basis pursuit")
        for place in places[rod["truth"] > 0]:
            first.axvline(place, color=GREY, lw=1, ls=":")
        first.set_ylim(0, 1.4 * rod["chances"].max())
        first.set_xlabel("place (dotted: the truth)")
        first.set_ylabel("probability, or strength")
        first.set_title("sources of heat on a rod")
        first.legend(frameon=False, fontsize=8)
        times, moved, _ = of(rows, "sensitivity", "adjacent")
        second.loglog(times, moved, color=BLUE, marker="o", label="Δ₂, computed")
        for slope, at, name in ((-0.75, 0, "$T^{-0.75}$"), (-1.5, -1, "$T^{-1.5}$, as printed")):
            second.loglog(
                times, moved[at] * (times / times[at]) ** slope, color=GREY, ls=":" if at else "--", label=name
            )
        second.set_xlabel("time T")
        second.set_ylabel("Δ₂ · n/√m")
        second.set_title("sensitivity of the rod")
        second.legend(frameon=False, fontsize=8)
        for name, colour in (("its half", BLUE), ("the source", ORANGE)):
            epsilons, chances, errors = of(rows, "graph", name)
            third.errorbar(epsilons, chances, 2 * errors, color=colour, marker="o", capsize=2, label=name)
        third.axhline(0.5, color=GREY, lw=0.8, ls=":", label="either half alike")
        on_epsilon(third, settings.graph.epsilons)
        third.set_ylabel("posterior probability")
        third.set_title("where the source on a graph is")
        third.legend(frameon=False, fontsize=8)
        for name, colour in (("noisy", GREY), ("smoothed", BLUE)):
            epsilons, sizes, errors = of(rows, "map", name)
            fourth.errorbar(epsilons, sizes, 2 * errors, color=colour, marker="o", capsize=2, label=name)
        on_epsilon(fourth, settings.map.epsilons)
        fourth.set_yscale("log")
        fourth.set_yticks([2, 5, 10, 20, 40], ["2", "5", "10", "20", "40"])
        fourth.minorticks_off()
        fourth.set_ylabel("error of a cell's count")
        fourth.set_title("a private map")
        fourth.legend(frameon=False, fontsize=8)


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Every number in a line."""
    return [
        f"{r['panel']}, {r['quantity']} at {r['at']:g}: {r['value']:.4g}"
        + (f" ± {r['error']:.2g}" if r["error"] is not None else "")
        for r in rows
    ]


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    arguments = arguments_of("already_private", "Infer from data that are private already.", argv)
    settings = load(arguments.config, Settings)
    if arguments.quick:
        quick = settings.quick
        settings = settings.model_copy(
            update={
                "graph": settings.graph.model_copy(update={"repeats": quick.repeats}),
                "map": settings.map.model_copy(update={"repeats": quick.repeats}),
            }
        )
    with folder_for(arguments.out):
        rows, rod = run(settings)
        write_table(arguments.out / "results.csv", COLUMNS, rows)
        note = "Quick: fewer repeats" if arguments.quick else None
        draw(arguments.out / f"{settings.name}.png", settings, rows, rod, note)
        report(summary(rows), arguments.out)


if __name__ == "__main__":
    raise SystemExit(main())
