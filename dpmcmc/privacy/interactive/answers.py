r"""Sums of a bounded φ over the records, with noise, for questions that are chosen after seeing the answers.

``GaussianAnswers``, the estimator of Wang, Lei and Fienberg (2016; thesis, ch. 10) for k adaptive means: for φ in
[0, 1] with a standard deviation of at most s, a mean over n records has variance σ² = s²/n at most, and

    A_i = mean φ_i + N(0, w²),     w² = √(k−1) σ²,     i = 1, …, k

An analyst may ask k−1 questions, and then for the direction in which chance has moved the answers. The last answer then
has mean squared error 2√(k−1) σ², where means without noise have (k−1) σ² (``experiments/adaptive_answers.py``). The
thesis sets w = 0 in the last round, which has no guarantee; here the last answer has its noise too. One replaced record
moves a mean by 1/n: each answer is a Gaussian release of μ = 1/(nw), whatever was asked before, so all are μ-GDP with
μ² = k/(n²w²) (Dong, Roth and Su 2022, Corollary 3.3). With a flat prior and φ ~ N(θ, σ²), an answer is a draw of the
posterior of θ at temperature √(k−1).

``LaplaceAnswers``, the Laplace mechanism: Σ φ for vectors φ with ‖φ‖₁ <= b, plus discrete Laplace noise of scale Δk/ε a
coordinate, Δ = 2b under replace_one and b else. Proof: a shift of the integer x of noise of scale s by m costs a ratio
of e^{|m|/s} at most, and the shifts of the coordinates add up to Δ, so an answer costs ε/k; k adaptive ones cost ε. The
largest error of d coordinates is at most (Δk/ε) log(d/β) with probability 1 − β, up to a grid step.

φ sees one record at a time. Its values are clipped, and rounded record by record to multiples of 2^-20 (of b), toward
zero for vectors: sums are whole numbers, their sensitivity is exact, and so is the noise (``above_threshold.py``,
``accounting/gaussian.py``).

Claim: k adaptive answers cost one Gaussian release of μ² = k/(n²w²), or ε where their noise is Laplace's.
Proof: sums of whole numbers, whose sensitivity is exact.
Held by: test_all_answers_cost_one_gaussian, test_neighbours_differ_by_one_nth,
test_the_log_ratio_of_the_law_is_epsilon, test_neighbours_differ_by_the_sensitivity_and_no_more,
"one of k Gaussian answers charged"
"""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Callable
from fractions import Fraction
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike

from dpmcmc.errors import InputError, shown
from dpmcmc.privacy.accounting.charging import check_delta
from dpmcmc.privacy.accounting.events import Adjacency
from dpmcmc.privacy.accounting.gaussian import draws_event
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.interactive import above_threshold
from dpmcmc.privacy.interactive.above_threshold import (
    Charge,
    Ledger,
    Once,
    check_count,
    check_positive,
    is_number,
    pure,
)
from dpmcmc.privacy.interactive.thresholdout import (
    ONE,
    BudgetSpent,
    count_of,
    each,
    total,
)
from dpmcmc.privacy.query.gaussian_release import gaussian_event, gaussian_release
from dpmcmc.privacy.query.randomness import new_key
from dpmcmc.storage.pytree import PyTree

_Total = TypeVar("_Total")
_Answer = TypeVar("_Answer")


class _Answers(Once):
    """A budget of answers about one set of records, at one price.

    Args:
        records: private records, a pytree with leaves (n, ...).
        queries: k.
    """

    _charge: Charge

    def __init__(self, records: PyTree, queries: int) -> None:
        super().__init__()
        check_count("queries", queries)
        self._records = records
        self._count = count_of("records", records)
        #: Answers that are left.
        self.left = int(queries)

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee of all answers together."""
        return self._charge.guarantee

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.left} answers left)"

    def _answer(self, look: Callable[[], _Total], noisy: Callable[[_Total], _Answer]) -> _Answer:
        """Return what ``noisy`` makes of what ``look`` sees, once the price of all answers is reserved."""
        with self._answering():
            self._check_left()
            self._charge.reserve()
            seen = look()
            # φ may itself have asked.
            self._check_left()
            self.left -= 1
            answer = noisy(seen)
            self._charge.settle()
            return answer

    def _check_left(self) -> None:
        if self.left < 1:
            raise BudgetSpent(
                f"{type(self).__name__} has answered as often as was paid for; another one costs another epsilon"
            )


class GaussianAnswers(_Answers):
    """Answers k adaptive questions about means, with the noise that a minimax estimator of them needs.

    Args:
        records: private records, a pytree with leaves (n, ...); n is public.
        queries: k >= 2, the number of questions, fixed before the first.
        std: s, a PUBLIC bound on the standard deviation of φ over one record, at most 1/2; no guarantee rests on it.
        delta: δ at which ``guarantee`` states ε; below 1/n.
        ledger: the ledger in which the price is reserved before the first record is looked at, or None.
        label: name of the release in the ledger.

    Attributes:
        noise_std: w, of each answer.

    Raises:
        ValueError: numbers that cannot be, or records without rows.

    Example:
        >>> import numpy as np
        >>> from dpmcmc.privacy.interactive import GaussianAnswers
        >>> desk = GaussianAnswers({"y": np.full(10_000, 0.25)}, queries=10, std=0.5, delta=1e-6)
        >>> round(desk.noise_std, 4)
        0.0087
        >>> abs(desk.ask(lambda record: record["y"]) - 0.25) < 0.1
        True
        >>> round(desk.guarantee.epsilon, 3)  # of all ten
        0.135
    """

    def __init__(
        self,
        records: PyTree,
        queries: int,
        std: float,
        *,
        delta: float,
        ledger: Ledger | None = None,
        label: str = "gaussian answers",
    ) -> None:
        super().__init__(records, queries)
        if queries < 2:
            raise InputError(
                "queries: one question needs no noise against overfitting, so none is proved here; "
                "take LaplaceAnswers, or ask two"
            )
        if not (is_number(std) and 0 < std <= 0.5):
            raise InputError(
                f"std must lie in (0, 1/2], the standard deviations that values in [0, 1] have, got {shown(std)}"
            )
        check_delta(delta, self._count)
        self.noise_std = std * math.sqrt(math.sqrt(queries - 1) / self._count)
        #: Noise std of the sum, in grid steps.
        self._std = self.noise_std * self._count * ONE
        one = gaussian_event(self._std, ONE, 1, Adjacency.REPLACE_ONE)
        self._charge = Charge(
            Guarantee.from_events(
                (dataclasses.replace(one, count=self.left), draws_event(self.left)),
                delta=delta,
                adjacency=Adjacency.REPLACE_ONE,
                accountant="one_sample",
                release="estimate",
            ),
            ledger,
            label,
            records,
        )

    def ask(self, phi: Callable[[PyTree], float]) -> float:
        """Return the mean of ``phi`` with noise.

        Args:
            phi: function of ONE record, a number in [0, 1]; a value outside is clipped, and NaN counts as 0.

        Raises:
            BudgetSpent: all answers are given; nothing is looked at.
            ValueError: in a process that was forked from the one that made this.
        """
        return self._answer(
            lambda: total(phi, self._records, self._count),
            lambda steps: self._noisy(steps) / (self._count * ONE),
        )

    def _noisy(self, steps: int) -> float:
        # A float64 holds every sum of fewer than 2^33 records.
        value = np.array([steps], np.float64)
        return float(gaussian_release(value, self._std, new_key(secrets.token_bytes(32)))[0])


class LaplaceAnswers(_Answers):
    """Answers one or more questions about sums of vectors, at a pure ε.

    A mean of φ in [0, 1] is 1/2 + ask(φ − 1/2)/n with bound 1/2, which makes Δ = 1 under replace_one, too.

    Args:
        records: private records, a pytree with leaves (n, ...).
        epsilon: ε of all answers together, with δ = 0.
        bound: b, the largest ‖φ‖₁ of one record; a longer vector is scaled to it.
        queries: k, the number of questions, fixed before the first; each has ε/k.
        adjacency: replace_one | add_remove | zero_out. Only under ``add_remove`` is n private.
        ledger: the ledger in which the price is reserved before the first record is looked at, or None.
        label: name of the release in the ledger.

    Attributes:
        scale: of the noise of each coordinate, Δk/ε.

    Raises:
        ValueError: numbers that cannot be, or records without rows.

    Example:
        >>> import numpy as np
        >>> from dpmcmc.privacy.interactive import LaplaceAnswers
        >>> eyes = {"colour": np.array([0, 2, 2, 1] * 250)}
        >>> histogram = LaplaceAnswers(eyes, epsilon=1.0, bound=1.0).ask(lambda record: np.eye(3)[record["colour"]])
        >>> bool(np.abs(histogram - [250, 250, 500]).max() < 60)
        True
    """

    def __init__(
        self,
        records: PyTree,
        epsilon: float,
        bound: float,
        queries: int = 1,
        adjacency: str = "replace_one",
        *,
        ledger: Ledger | None = None,
        label: str = "laplace answers",
    ) -> None:
        super().__init__(records, queries)
        for name, number in (("epsilon", epsilon), ("bound", bound)):
            check_positive(name, number)
        moved = 2 if Adjacency(adjacency) == Adjacency.REPLACE_ONE else 1
        self._bound = bound
        self._scale = moved * ONE * self.left / Fraction(epsilon)
        self.scale = float(self._scale / ONE) * bound
        self._charge = Charge(pure(epsilon, 1, adjacency), ledger, label, records)

    def ask(self, phi: Callable[[PyTree], ArrayLike]) -> np.ndarray:
        """Return Σ ``phi`` over the records with noise, in the shape of ``phi``.

        Args:
            phi: function of ONE record, an array of a shape that is the same for all and public; where it is not
                finite, it counts as 0.

        Raises:
            BudgetSpent: all answers are given; nothing is looked at.
            ValueError: ``phi`` has several shapes, which the data holder is told, and nobody else; in a process that
                was forked from the one that made this.
        """
        return self._answer(lambda: self._summed(phi), self._noisy)

    def _summed(self, phi: Callable[[PyTree], ArrayLike]) -> np.ndarray:
        """Return Σ φ in grid steps, int64: each record has at most ``ONE`` of them."""
        values = [np.asarray(phi(r), np.float64) for r in each(self._records, self._count)]
        if len({value.shape for value in values}) != 1:
            raise InputError("phi: its values have several shapes; return one shape for every record")
        stacked = np.stack(values)
        rows = np.where(np.isfinite(stacked), stacked, 0.0).reshape(len(values), -1)
        # Truncated steps are whole, so a rounding of this quotient cannot bring a row beyond ONE.
        with np.errstate(over="ignore"):  # an infinite norm makes the row 0
            norms = np.abs(rows).sum(axis=1, keepdims=True)
        longest = np.maximum(norms, self._bound)
        return np.trunc(rows / longest * ONE).astype(np.int64).sum(axis=0).reshape(values[0].shape)

    def _noisy(self, steps: np.ndarray) -> np.ndarray:
        noisy = [int(step) + above_threshold.sample(self._scale) for step in steps.flat]
        return np.array(noisy, np.float64).reshape(steps.shape) * (self._bound / ONE)
