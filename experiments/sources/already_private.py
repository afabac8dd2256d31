r"""Inference on data that are private already: post-processing, so it costs nothing more (McMillan, chapters 7 and 8).

    python -m experiments.sources.already_private [--quick] [--out DIR]

Sensors measure y = M f and publish y + N(0, s²I). Sources f and f' are neighbours where one unit source moves to the
next place. So s = Δ₂/μ with Δ₂ = max ‖M_i − M_j‖ over neighbouring columns, and μ that of (ε, δ)
(``accounting/gaussian.py``). The likelihood N(y; M f, s²I) is exact, and any sampler may use it without more noise.

* *Rod*, Figure 8.1: heat of two unit sources spreads for a time T. The posterior of their places, by enumeration of
  pairs, and the source's estimate, basis pursuit by Bregman iteration, which knows of sparseness alone.
* *Sensitivity*, Figure 8.2: Δ₂ of the rod against T.
* *Graph*, Figure 8.3: heat exp(−τL) on a block model. The posterior of the place of its one source, by enumeration.

A private map is in ``private_map.py``.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from experiments.pictures import BLUE, GREY, ORANGE, on_epsilon, points, saved
from experiments.sources.script import script

#: The line that is printed for each row.
SAID = "{panel}, {quantity} at {at:g}: {value:.4g}"
#: The rod: sources n, sensors m, time T, noise s and places of the sources, which Figure 8.1 states.
SOURCES, SENSORS, TIME, NOISE_STD, PEAKS = 100, 50, 0.05, 0.1, (0.24, 0.76)
#: n = m and T of Figure 8.2.
LONG_ROD, TIMES = 500, (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
#: The graph, as Figure 8.3 states it, except its shares of edges, which are swapped in print: n, chance of an edge
#: within a half and between the halves, τ and δ.
VERTICES, WITHIN, BETWEEN, TAU, DELTA = 500, 0.05, 0.001, 2.0, 0.1
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


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


def diffusion(adjacency: np.ndarray, time: float) -> np.ndarray:
    """exp(−τL), with L = degrees − adjacency."""
    values, vectors = np.linalg.eigh(np.diag(adjacency.sum(axis=0)) - adjacency)
    return (vectors * np.exp(-time * values)) @ vectors.T


def block_model(rng: np.random.Generator) -> np.ndarray:
    """Adjacency of two halves, (n, n); vertices without an edge get one to the next of their half."""
    n = VERTICES
    half = np.arange(n) < n // 2
    chance = np.where(half[:, None] == half, WITHIN, BETWEEN)
    upper = np.triu(rng.random((n, n)) < chance, 1)
    alone = np.flatnonzero(~(upper | upper.T).any(axis=0))
    upper[alone, np.where(half[alone], (alone + 1) % (n // 2), n // 2 + (alone + 1) % (n - n // 2))] = True
    return (upper | upper.T).astype(np.float64)


def basis_pursuit(kernel: np.ndarray, seen: np.ndarray, noise_std: float) -> np.ndarray:
    """The source's estimate: least ‖f‖₁ on [0, 1] within the noise, by adding back the residual (Algorithm 2).

    It stops at the radius that Lemma 8.1 proves with probability 1 − e⁻¹, σ√(m + 2√m + 2), where σ√m is printed.
    """
    m, n = kernel.shape
    radius = noise_std * math.sqrt(m + 2 * math.sqrt(m) + 2)
    target = seen.copy()
    found = np.zeros(n)

    def potential(f: np.ndarray) -> tuple[float, np.ndarray]:
        residual = kernel @ f - target
        return f.sum() + residual @ residual, 1 + 2 * kernel.T @ residual

    for _ in range(50):
        found = scipy.optimize.minimize(potential, found, jac=True, method="L-BFGS-B", bounds=[(0, 1)] * n).x
        residual = seen - kernel @ found
        if np.linalg.norm(residual) <= radius:
            break
        target = target + residual
    return found


def pairs_of_sources(kernel: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Posterior of the places of two unit sources, every pair alike at first, (n, n); entries i < j sum to 1."""
    both = kernel[:, :, None] + kernel[:, None, :]
    misfit = ((seen[:, None, None] - both) ** 2).sum(axis=0) / (2 * NOISE_STD**2)
    misfit[np.tril_indices(kernel.shape[1])] = np.inf
    return scipy.special.softmax(-misfit)


def moved_mass(first: np.ndarray, second: np.ndarray) -> float:
    """Earth mover's distance between two measures on an even grid of [0, 1], each scaled to mass 1."""
    places = np.arange(len(first)) / len(first)
    return float(scipy.stats.wasserstein_distance(places, places, first, second))


def run_rod() -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """Rows of Figure 8.1, and what is drawn of it."""
    rng = np.random.default_rng(0)
    kernel = heat(SENSORS, SOURCES, TIME)
    truth = np.zeros(SOURCES)
    truth[[round(place * SOURCES) - 1 for place in PEAKS]] = 1.0
    seen = kernel @ truth + NOISE_STD * rng.standard_normal(SENSORS)
    pairs = pairs_of_sources(kernel, seen)
    pursued = basis_pursuit(kernel, seen, NOISE_STD)
    chances = pairs.sum(axis=0) + pairs.sum(axis=1)
    likeliest = np.zeros(SOURCES)
    likeliest[list(np.unravel_index(pairs.argmax(), pairs.shape))] = 1.0
    found = {"likeliest pair": likeliest, "posterior mean": chances, "basis pursuit": pursued}
    rows = [row("rod", f"moved mass, {name}", TIME, moved_mass(of, truth)) for name, of in found.items()]
    return rows, {"truth": truth, "chances": chances, "pursued": pursued}


def run_sensitivity() -> list[dict[str, Any]]:
    """Rows of Figure 8.2: Δ₂·n/√m against T."""
    scale = math.sqrt(LONG_ROD)
    return [row("sensitivity", "adjacent", time, scale * next_to(heat(LONG_ROD, LONG_ROD, time))) for time in TIMES]


def run_graph(repeats: int) -> list[dict[str, Any]]:
    """Rows of Figure 8.3: the posterior probability of the source's half, and of the source itself."""
    rng = np.random.default_rng(1)
    adjacency = block_model(rng)
    kernel = diffusion(adjacency, TAU)
    moved = along_edges(kernel, np.argwhere(np.triu(adjacency)))
    left = np.arange(VERTICES) < VERTICES // 2
    rows = [row("graph", "sensitivity", TAU, moved)]
    for epsilon in EPSILONS:
        std = moved / gaussian_mu(epsilon, DELTA)
        halves, places = [], []
        for _ in range(repeats):
            source = int(rng.integers(VERTICES // 2))
            seen = kernel[:, source] + std * rng.standard_normal(VERTICES)
            chances = scipy.special.softmax(-((seen[:, None] - kernel) ** 2).sum(axis=0) / (2 * std**2))
            halves.append(chances[left].sum())
            places.append(chances[source])
        rows += [mean_row("graph", "its half", epsilon, halves), mean_row("graph", "the source", epsilon, places)]
    return rows


def row(panel: str, quantity: str, at: float, value: float, error: float | None = None) -> dict[str, Any]:
    """A row of results.csv."""
    return {"panel": panel, "quantity": quantity, "at": at, "value": float(value), "error": error}


def mean_row(panel: str, quantity: str, at: float, values: list[float]) -> dict[str, Any]:
    """A row of a mean and its standard error."""
    return row(panel, quantity, at, float(np.mean(values)), float(scipy.stats.sem(values)))


def rows_of(quick: bool) -> list[dict[str, Any]]:
    """Rows of results.csv."""
    return [*run_rod()[0], *run_sensitivity(), *run_graph(10 if quick else 200)]


def of_line(rows: list[dict[str, Any]], quantity: str) -> list[dict[str, Any]]:
    """Rows of one line of a picture."""
    return [row for row in rows if row["quantity"] == quantity]


def draw(path: Path, rows: list[dict[str, Any]], note: str | None) -> None:
    """Three panels."""
    rod = run_rod()[1]
    says = "Data that are private already: the posterior costs nothing more, and knows the noise"
    about = f"Rod: T = {TIME:g}, s = {NOISE_STD:g}. Graph: τ = {TAU:g}, δ = {DELTA:g}; bars: two standard errors"
    with saved(path, (13.0, 4.0), says, about, note) as figure:
        first, second, third = figure.subplots(1, 3)
        places = np.arange(1, SOURCES + 1) / SOURCES
        first.bar(places, rod["chances"], width=0.01, color=BLUE, label="chance that one of the two is here")
        first.plot(places, rod["pursued"], color=ORANGE, ls="--", label="strength, by basis pursuit")
        for place in places[rod["truth"] > 0]:
            first.axvline(place, color=GREY, lw=1, ls=":")
        first.set(
            xlabel="place (dotted: the truth)", ylabel="probability, or strength", title="sources of heat on a rod"
        )
        first.set_ylim(0, 1.4 * rod["chances"].max())
        moved = np.array([row["value"] for row in of_line(rows, "adjacent")])
        times = np.array(TIMES)
        second.loglog(times, moved, color=BLUE, marker="o", label="Δ₂, computed")
        for slope, at, name in ((-0.75, 0, "$T^{-0.75}$"), (-1.5, -1, "$T^{-1.5}$, as printed")):
            fitted = moved[at] * (times / times[at]) ** slope
            second.loglog(times, fitted, color=GREY, ls=":" if at else "--", label=name)
        second.set(xlabel="time T", ylabel="Δ₂ · n/√m", title="sensitivity of the rod")
        for name, colour in (("its half", BLUE), ("the source", ORANGE)):
            points(third, of_line(rows, name), "at", "value", "error", color=colour, label=name)
        third.axhline(0.5, color=GREY, lw=0.8, ls=":", label="either half alike")
        on_epsilon(third, EPSILONS)
        third.set(ylabel="posterior probability", title="where the source on a graph is")
        for axis in (first, second, third):
            axis.legend(frameon=False, fontsize=8)


main = script("already_private", "Infer from data that are private already.", rows_of, SAID, draw)

if __name__ == "__main__":
    raise SystemExit(main())
