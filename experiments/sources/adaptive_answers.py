r"""Adaptive questions about means, answered with Gaussian noise, and without any (thesis, chapter 10).

    python -m experiments.sources.adaptive_answers [--quick] [--out DIR]

For φ in [0, 1] with a standard deviation of at most s, a mean over n records has variance σ² = s²/n at most, and

    A_i = mean φ_i + N(0, w²),     w² = √(k−1) σ²,     i = 1, …, k

answers k questions that are chosen after seeing the answers. One replaced record moves a mean by 1/n: each answer is a
Gaussian release of μ = 1/(nw), whatever was asked before, so all are μ-GDP with μ² = k/(n²w²) (Dong, Roth and Su 2022,
Corollary 3.3). The thesis sets w = 0 in the last round, which has no guarantee; here the last answer has its noise too.
Values are rounded record by record to multiples of 2^-20, so that their sum and its noise are whole numbers. With a
flat prior and φ ~ N(θ, σ²), an answer is a draw of the posterior of θ at temperature √(k−1).

The adversary of the thesis's chapter 10 asks for k−1 independent statistics φ_i ~ N(0, σ²), gets A_i = φ_i + N(0, w²),
and asks at last for φ_k = Σ A_iφ_i/‖A‖, whose true mean is 0, too. Given the answers, φ_k is normal with

    mean  ‖A‖σ²/(σ² + w²),  whose mean square is (k−1)σ⁴/(σ² + w²),     and variance  σ²w²/(σ² + w²)

With w² = √(k−1)σ² on all k answers the last one has a mean squared error of exactly 2√(k−1)σ², below the bound
(2√(k−1) + 1)σ². Without noise it is (k−1)σ². Games on records have x = 1/2 ± s with
s = 1/(2√(k−1)), so that every direction of norm 1 stays in [0, 1] and nothing is clipped.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
from pathlib import Path
from typing import Any

import numpy as np

from dpmcmc.privacy import Guarantee
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.noise_tables import draws_event
from dpmcmc.privacy.query.chacha import new_key
from dpmcmc.privacy.query.gaussian_release import gaussian_event, gaussian_release
from experiments.pictures import BLUE, DARK, ORANGE, points, saved
from experiments.sources.script import script

#: Values of the column ``answers``.
NOISY, PLAIN, PLAYED = "noisy", "plain", "library"
#: Simulated games in Gaussian statistics: k, and how many.
QUERIES, REPEATS = (5, 17, 65, 257), 20_000
#: Games on records: k, n, and how many.
PLAYED_QUERIES, PLAYED_RECORDS, PLAYED_REPEATS = (5, 17), 50, 1000
#: Public facts that the stated ε is of: n, s, δ.
NUM_RECORDS, STD, DELTA = 1000, 0.5, 1e-6
#: One record's largest value, in grid steps.
ONE = 1 << 20


class GaussianAnswers:
    """Answers k adaptive questions about means of values in [0, 1].

    Args:
        num_records: n.
        queries: k >= 2.
        std: s, a PUBLIC bound on the standard deviation of φ over one record; no guarantee rests on it.
        delta: δ at which ``guarantee`` states ε.
    """

    def __init__(self, num_records: int, queries: int, std: float, delta: float) -> None:
        self.left = queries
        self.noise_std = std * math.sqrt(math.sqrt(queries - 1) / num_records)
        #: Noise std of the sum, in grid steps.
        self._std = self.noise_std * num_records * ONE
        one = gaussian_event(self._std, ONE, 1, Adjacency.REPLACE_ONE)
        self.guarantee = Guarantee.from_events(
            (dataclasses.replace(one, count=queries), draws_event(queries)),
            delta=delta, adjacency=Adjacency.REPLACE_ONE, accountant="one_sample", release="estimate",
        )  # fmt: skip

    def ask(self, values: np.ndarray) -> float:
        """Return the mean of φ with noise; ``values`` are φ of each record, clipped to [0, 1], (n,)."""
        if not self.left:
            raise RuntimeError("as many answers were given as were paid for; another one costs another epsilon")
        self.left -= 1
        steps = np.rint(np.clip(np.nan_to_num(values, nan=0.0), 0, 1) * ONE).sum(keepdims=True)
        noisy = gaussian_release(steps, self._std, new_key(secrets.token_bytes(32)))
        return float(noisy[0]) / (len(values) * ONE)


def closed(queries: int, variance: float) -> tuple[float, float]:
    """(mean square of the bias, mean squared error of the last answer), in σ², where the noise has this variance."""
    bias = (queries - 1) / (1 + variance)
    return bias, bias + variance / (1 + variance) + variance


def simulated(queries: int, variance: float, repeats: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Squared bias given the answers, and squared error of the last answer, in σ²; (repeats,) each."""
    statistics = rng.standard_normal((repeats, queries - 1))
    answers = statistics + math.sqrt(variance) * rng.standard_normal(statistics.shape)
    norm = np.linalg.norm(answers, axis=1)
    last = np.einsum("rk,rk->r", answers, statistics) / norm + math.sqrt(variance) * rng.standard_normal(repeats)
    return (norm / (1 + variance)) ** 2, last**2


def played(queries: int, num_records: int, repeats: int, rng: np.random.Generator) -> np.ndarray:
    """Squared errors of the last answer of games on records, in σ²; (repeats,)."""
    std = 0.5 / math.sqrt(queries - 1)
    errors = np.empty(repeats)
    for game in range(repeats):
        x = 0.5 + std * rng.choice([-1.0, 1.0], (num_records, queries - 1))
        # No promise beyond the game: the records are generated.
        desk = GaussianAnswers(num_records, queries, std, delta=0.5 / num_records)
        answers = np.array([desk.ask(column) for column in x.T]) - 0.5
        direction = answers / np.linalg.norm(answers)
        errors[game] = (desk.ask(0.5 + (x - 0.5) @ direction) - 0.5) ** 2 / (std**2 / num_records)
    return errors


def rows(repeats: int, played_repeats: int) -> list[dict[str, Any]]:
    """Rows of results.csv."""
    rng = np.random.default_rng(0)
    found = []
    for queries in QUERIES:
        epsilon = GaussianAnswers(NUM_RECORDS, queries, STD, DELTA).guarantee.epsilon
        for name, variance in ((NOISY, math.sqrt(queries - 1)), (PLAIN, 0.0)):
            bias, errors = simulated(queries, variance, repeats, rng)
            found.append(_row(queries, name, variance, errors, float(bias.mean())))
            if name == NOISY:
                found[-1]["epsilon"] = epsilon
    for queries in PLAYED_QUERIES:
        errors = played(queries, PLAYED_RECORDS, played_repeats, rng)
        found.append(_row(queries, PLAYED, math.sqrt(queries - 1), errors, None))
    return found


def _row(queries: int, name: str, variance: float, errors: np.ndarray, bias: float | None) -> dict[str, Any]:
    closed_bias, closed_error = closed(queries, variance)
    return {
        "queries": queries,
        "answers": name,
        "repeats": len(errors),
        "squared_bias": bias,
        "squared_bias_closed": closed_bias,
        "squared_error": float(errors.mean()),
        "squared_error_error": float(errors.std(ddof=1) / math.sqrt(len(errors))),
        "squared_error_closed": closed_error,
        "bound": 2 * variance + 1 if variance else None,
    }


def draw(path: Path, rows: list[dict[str, Any]], note: str | None) -> None:
    """Squared error against k: lines are closed forms, points games."""
    says = "With noise the error of adaptive answers grows as √k, without it as k"
    about = "games simulated in Gaussian statistics, and played on 50 records; generated data"
    grid = np.geomspace(min(QUERIES), max(QUERIES), 100)
    with saved(path, (7.2, 4.6), says, about, note) as figure:
        axis = figure.subplots()
        axis.plot(grid, grid - 1, color=ORANGE, label="means without noise: k − 1")
        axis.plot(grid, 2 * np.sqrt(grid - 1) + 1, color=DARK, ls=":", label="proved bound: 2√(k−1) + 1")
        axis.plot(grid, 2 * np.sqrt(grid - 1), color=BLUE, label="with noise √(k−1) σ²: 2√(k−1)")
        for name, colour, marker, label in (
            (PLAIN, ORANGE, "o", None),
            (NOISY, BLUE, "o", "simulated"),
            (PLAYED, BLUE, "x", "played on records"),
        ):
            found = [row for row in rows if row["answers"] == name]
            style = {"marker": marker, "ls": "none", "ms": 6, "color": colour, "label": label}
            points(axis, found, "queries", "squared_error", "squared_error_error", **style)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xticks(QUERIES, [str(k) for k in QUERIES])
        axis.minorticks_off()
        axis.set_xlabel("questions k, the last one along the direction of the noise in the data")
        axis.set_ylabel("mean squared error of the last answer, σ²")
        axis.legend(frameon=False, loc="upper left", fontsize=8.5)


SAID = (
    "k = {queries}, {answers}: squared error {squared_error:.3g} ± {squared_error_error:.2g} (closed form "
    "{squared_error_closed:.3g})"
)
main = script(
    "adaptive_answers",
    "Adaptive questions against noisy and plain means.",
    lambda quick: rows(2000, 40) if quick else rows(REPEATS, PLAYED_REPEATS),
    SAID,
    draw,
)

if __name__ == "__main__":
    raise SystemExit(main())
