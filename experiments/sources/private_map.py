r"""A private map, smoothed: the posterior of a Gaussian Markov random field costs nothing more (thesis, 6b and 7b).

    python -m experiments.sources.private_map [--quick] [--out DIR]

Counts of people on a grid are published with noise N(0, s²). One person who moves changes two counts by one each, so
s = √2/μ with μ that of (ε, δ). Under the prior N(m, s²/λ·L⁺) around the map's mean m, flat in it, the posterior has the
mean (I + λL)⁻¹y, which is Laplacian smoothing, and the covariance s²(I + λL)⁻¹; L is the Laplacian of the grid. λ is
that of largest evidence. The table has the root mean squared errors of a cell, and the coverage of its 90 % interval.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from experiments.pictures import BLUE, GREY, on_epsilon, points, saved
from experiments.sources.already_private import SAID, mean_row, of_line
from experiments.sources.script import script

#: Cells of a side of the map, expected people on it, δ and ε.
SIDE, PEOPLE, DELTA, EPSILONS = 20, 20_000, 1e-5, (0.1, 0.3, 1.0, 3.0)
#: Level of intervals.
LEVEL = 0.9


def laplacian(side: int) -> np.ndarray:
    """L = degrees − adjacency of a square grid, (side², side²)."""
    along = np.eye(side, k=1) + np.eye(side, k=-1)
    adjacency = np.kron(along, np.eye(side)) + np.kron(np.eye(side), along)
    return np.diag(adjacency.sum(axis=0)) - adjacency


def smoothed(noisy: np.ndarray, graph: np.ndarray, noise_variance: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Mean and standard deviation of each cell, and the λ of largest evidence; ``graph`` is a Laplacian."""
    values, vectors = np.linalg.eigh(graph)
    part = (vectors.T @ noisy)[1:] ** 2
    values = np.maximum(values, 0.0)

    def misfit(log_strength: float) -> float:
        variances = noise_variance * (1 + 1 / (math.exp(log_strength) * values[1:]))
        return float(np.sum(np.log(variances) + part / variances))

    found = scipy.optimize.minimize_scalar(misfit, bounds=(-10, 10), method="bounded")
    shrunk = 1 / (1 + math.exp(found.x) * values)
    mean = vectors @ (shrunk * (vectors.T @ noisy))
    return mean, np.sqrt(noise_variance * np.square(vectors) @ shrunk), math.exp(found.x)


def run(repeats: int) -> list[dict[str, Any]]:
    """Rows of results.csv."""
    rng = np.random.default_rng(2)
    at = (np.arange(SIDE) + 0.5) / SIDE
    hills = np.exp(-((at[:, None] - 0.3) ** 2 + (at - 0.4) ** 2) / 0.02)
    hills = hills + 0.7 * np.exp(-((at[:, None] - 0.7) ** 2 + (at - 0.7) ** 2) / 0.05) + 0.1
    expected = (PEOPLE * hills / hills.sum()).ravel()
    graph = laplacian(SIDE)
    reach = float(scipy.special.ndtri((1 + LEVEL) / 2))
    rows = []
    for epsilon in EPSILONS:
        std = math.sqrt(2) / gaussian_mu(epsilon, DELTA)
        found: dict[str, list[float]] = {"noisy": [], "smoothed": [], "coverage": []}
        for _ in range(repeats):
            counts = rng.poisson(expected)
            noisy = counts + std * rng.standard_normal(len(counts))
            mean, deviation, _ = smoothed(noisy, graph, std**2)
            found["noisy"].append(math.sqrt(np.mean((noisy - counts) ** 2)))
            found["smoothed"].append(math.sqrt(np.mean((mean - counts) ** 2)))
            found["coverage"].append(float(np.mean(np.abs(mean - counts) <= reach * deviation)))
        rows += [mean_row("map", quantity, epsilon, values) for quantity, values in found.items()]
    return rows


def draw(path: Path, rows: list[dict[str, Any]], note: str | None) -> None:
    """Errors of a cell against ε."""
    says = "A smoothed private map is nearer to the counts, at no further cost"
    about = f"{PEOPLE:,} people, δ = {DELTA:g}; bars: two standard errors"
    with saved(path, (5.2, 4.0), says, about, note) as figure:
        axis = figure.subplots()
        for name, colour in (("noisy", GREY), ("smoothed", BLUE)):
            points(axis, of_line(rows, name), "at", "value", "error", color=colour, label=name)
        on_epsilon(axis, EPSILONS)
        axis.set(yscale="log", ylabel="error of a cell's count")
        axis.set_yticks([2, 5, 10, 20, 40], ["2", "5", "10", "20", "40"])
        axis.minorticks_off()
        axis.legend(frameon=False, fontsize=8)


main = script("private_map", "Smooth a private map.", lambda quick: run(10 if quick else 100), SAID, draw)

if __name__ == "__main__":
    raise SystemExit(main())
