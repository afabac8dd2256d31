r"""Thresholdout: a holdout that can be asked again and again without being overfitted (Dwork et al. 2015).

    python -m experiments.sources.thresholdout [--quick] [--out DIR]

    T̂ = T + Lap(4τ).   Per query φ: record -> [0, 1], with means E_t on the training and E_h on the n holdout records:
    |E_h φ − E_t φ| + Lap(8τ) > T̂ ?   no:  answer E_t φ
                                       yes: answer E_h φ + Lap(2τ), spend one of B, and redraw T̂ = T + Lap(4τ)
    B spent: refuse.

Between two hits this is AboveThreshold on |E_h φ − E_t φ|, of sensitivity 1/n: 2/(n·4τ) = 4/(n·8τ) gives 1/(2τn). The
answer of a hit is a Laplace release of sensitivity 1/n at scale 2τ: 1/(2τn). So B hits cost the HOLDOUT 2B adaptive
releases of 1/(2τn), B/(τn) at δ = 0. T̂ is T plus fresh noise each time, never the last T̂ plus noise, which would drift.
The training records have no guarantee from this: E_t φ is answered exactly.

Values of φ are clipped to [0, 1] and rounded to multiples of 2^-20 record by record: sums are whole numbers, their
sensitivity is exactly 2^20, and noise is exact. The experiment is the paper's: labels are pure noise, an analyst picks
the features that agree with them, and asks how good the classifier is. The truth is 1/2.

Early stopping is the same tool with one hit: AboveThreshold on the score of each published model on the holdout.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from dpmcmc.privacy import Event, Guarantee
from experiments.sources.above_threshold import AboveThreshold
from experiments.sources.discrete_laplace import sample
from experiments.sources.script import script

#: One record's largest value, in grid steps.
ONE = 1 << 20
#: Records of each half, and features, of the analyst's game.
RECORDS, FEATURES = 1000, 300
#: Answers of a question: values of φ on the training records and on the holdout, (n,) each -> an answer.
Desk = Callable[[np.ndarray, np.ndarray], float]


class BudgetSpent(RuntimeError):
    """The holdout has given as many answers as were paid for."""


def in_steps(values: np.ndarray) -> int:
    """Return the sum of values clipped to [0, 1] and rounded one by one, in grid steps; NaN counts as 0."""
    return int(np.rint(np.clip(np.nan_to_num(np.asarray(values, np.float64), nan=0.0), 0, 1) * ONE).sum())


class Thresholdout:
    """Answers queries about a mean, from the holdout only where training and holdout disagree.

    Args:
        size: n, of the holdout.
        threshold: T > 0, the disagreement that is tolerated.
        tolerance: τ > 0, the size of the noise.
        budget: B >= 1, answers that may come from the holdout.
    """

    def __init__(self, size: int, threshold: float, tolerance: float, budget: int) -> None:
        self.size, self.budget = size, budget
        #: ε of one test up to its hit, and of one answer from the holdout: 1/(2τn).
        self.epsilon = 1 / (2 * Fraction(tolerance) * size)
        self._threshold = math.floor(Fraction(threshold) * size * ONE)
        self.guarantee = Guarantee.from_events(
            (Event("pure", 0.0, 1.0, 2 * budget, epsilon=math.nextafter(float(self.epsilon), math.inf)),),
            delta=0.0, adjacency="replace_one", accountant="one_sample", release="estimate",
        )  # fmt: skip
        self._test: AboveThreshold | None = None

    def ask(self, on_train: np.ndarray, on_holdout: np.ndarray) -> float:
        """Return the mean of a question, near the population's; ``on_*`` are its values on the records."""
        if self.budget < 1:
            raise BudgetSpent("the holdout has answered as often as was paid for; a fresh one needs fresh records")
        test = self._test = self._test or AboveThreshold(self._threshold, self.epsilon, ONE)
        trained, held = in_steps(on_train), in_steps(on_holdout)
        if not test.above(abs(held - round(Fraction(trained * self.size, len(on_train))))):
            return trained / (len(on_train) * ONE)
        self.budget, self._test = self.budget - 1, None
        return (held + sample(ONE / self.epsilon)) / (self.size * ONE)


def play(desk: Desk, rng: np.random.Generator) -> tuple[float, float]:
    """Return (reported, true) accuracy of a classifier that an analyst picks by asking: the truth is 1/2."""
    train, holdout = (
        (rng.choice([-1.0, 1.0], (RECORDS, FEATURES)), rng.choice([-1.0, 1.0], RECORDS)) for _ in range(2)
    )
    margins = train[1] @ train[0] / RECORDS
    signs = np.zeros(FEATURES)
    for j in range(FEATURES):
        agrees = desk(*((1 + x[:, j] * y) / 2 for x, y in (train, holdout))) - 0.5
        if abs(agrees) > 0.5 / math.sqrt(RECORDS) and agrees * margins[j] > 0:
            signs[j] = np.sign(margins[j])
    # A tie is half right.
    return desk(*((1 + np.sign(x @ signs * y)) / 2 for x, y in (train, holdout))), 0.5


def rows(repeats: int) -> list[dict[str, Any]]:
    """Return the rows of results.csv: a holdout that answers everything, and one behind Thresholdout."""
    found = []
    for name in ("asked directly", "Thresholdout"):
        desks = [Thresholdout(RECORDS, 0.08, 0.001, 30) for _ in range(repeats)]
        ask: list[Desk] = [
            desk.ask if name == "Thresholdout" else lambda train, holdout: float(np.mean(holdout)) for desk in desks
        ]
        games = [play(each, np.random.default_rng(seed)) for seed, each in enumerate(ask)]
        guarded = name == "Thresholdout"
        found.append({
            "holdout": name,
            "reported": float(np.mean([reported for reported, _ in games])),
            "true": 0.5,
            "repeats": repeats,
            "answers_from_holdout": float(np.mean([30 - desk.budget for desk in desks])) if guarded else FEATURES + 1,
            "epsilon": desks[0].guarantee.epsilon if guarded else None,
        })  # fmt: skip
    return found


main = script(
    "thresholdout",
    "An analyst overfits a holdout, and does not overfit Thresholdout.",
    lambda quick: rows(2 if quick else 20),
    "{holdout}: reported accuracy {reported:.3f}, true {true:g}",
)

if __name__ == "__main__":
    raise SystemExit(main())
