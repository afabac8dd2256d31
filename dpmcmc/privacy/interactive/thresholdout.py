r"""A holdout that can be asked again and again without being overfitted (Dwork et al. 2015).

    T̂ = T + Lap(4τ).   Per query φ: record -> [0, 1], with means E_t on the training and E_h on the n holdout records:
    |E_h φ − E_t φ| + Lap(8τ) > T̂ ?   no:  answer E_t φ
                                       yes: answer E_h φ + Lap(2τ), spend one of B, and redraw T̂ = T + Lap(4τ)
    B spent: refuse.

Between two hits this is :mod:`above_threshold` on |E_h φ − E_t φ|, of sensitivity 1/n: 2/(n·4τ) = 4/(n·8τ) gives
1/(2τn). The answer of a hit is a Laplace release of sensitivity 1/n at scale 2τ: 1/(2τn). So B hits cost the HOLDOUT
2B adaptive releases of 1/(2τn), B/(τn) at δ = 0. T̂ is T plus fresh noise each time, never the last T̂ plus noise, which
would drift. The training records have no guarantee from this: E_t φ is answered exactly.

φ sees one record at a time, so no normalisation by other records can raise the sensitivity. Its values are clipped to
[0, 1] and rounded to multiples of 2^-20 record by record: sums are whole numbers, their sensitivity is exactly 2^20,
and noise is exact (``above_threshold.py``). No bound on accuracy is stated.

Claim: B hits cost the holdout B/(τn) at δ = 0.
Proof: an AboveThreshold between two hits, and a Laplace release at each.
Held by: test_the_price_is_b_over_tau_n, test_a_hit_loses_its_half_in_the_test_and_its_half_in_the_answer,
test_the_noise_has_the_stated_scales_and_the_threshold_is_redrawn
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from fractions import Fraction

import jax
import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.interactive import above_threshold
from dpmcmc.privacy.interactive.above_threshold import (
    Charge,
    Ledger,
    Once,
    WholeNumbers,
    check_count,
    check_positive,
    pure,
)
from dpmcmc.storage.pytree import PyTree

#: One record's largest value, in grid steps.
ONE = 1 << 20


class BudgetSpent(RuntimeError):
    """The holdout has given as many answers as were paid for.

    Example:
        >>> import numpy as np
        >>> from dpmcmc.privacy.interactive import Thresholdout
        >>> desk = Thresholdout({"y": np.zeros(1000)}, {"y": np.ones(1000)}, threshold=0.1, tolerance=0.01, budget=1)
        >>> answer = desk.ask(lambda record: record["y"])  # they disagree, so the holdout answers
        >>> desk.ask(lambda record: record["y"])
        Traceback (most recent call last):
            ...
        dpmcmc.privacy.interactive.thresholdout.BudgetSpent: the holdout has answered as often as was paid...
    """


class Thresholdout(Once):
    """Answers queries about the mean of φ, from the holdout only where training and holdout disagree.

    Args:
        train: training records, a pytree with leaves (N, ...); answers about them are exact.
        holdout: private records, a pytree with leaves (n, ...); n is public.
        threshold: T > 0, the disagreement that is tolerated.
        tolerance: τ > 0, the size of the noise.
        budget: B >= 1, answers that may come from the holdout.
        ledger: ledger of the holdout records, in which the price is reserved before the first one is looked at.
        label: name of the release in the ledger.

    Raises:
        ValueError: numbers that cannot be, or records without rows.

    Example:
        >>> import numpy as np
        >>> from dpmcmc.privacy.interactive import Thresholdout
        >>> train, holdout = {"y": np.zeros(1000)}, {"y": np.zeros(1000)}
        >>> desk = Thresholdout(train, holdout, threshold=0.1, tolerance=0.01, budget=2)
        >>> answer = desk.ask(lambda record: record["y"])
        >>> desk.guarantee.epsilon  # of all answers
        0.2
    """

    def __init__(
        self,
        train: PyTree,
        holdout: PyTree,
        threshold: float,
        tolerance: float,
        budget: int,
        ledger: Ledger | None = None,
        *,
        label: str = "thresholdout",
    ) -> None:
        super().__init__()
        for name, number in (("threshold", threshold), ("tolerance", tolerance)):
            check_positive(name, number)
        check_count("budget", budget)
        self._train = train
        self._holdout = holdout
        self._sizes = count_of("train", train), count_of("holdout", holdout)
        #: ε of one test up to its hit, and of one answer from the holdout: 1/(2τn).
        self._epsilon = 1 / (2 * Fraction(tolerance) * self._sizes[1])
        self._threshold = math.floor(Fraction(threshold) * self._sizes[1] * ONE)
        self.budget = int(budget)
        self._charge = Charge(
            pure(
                math.nextafter(float(self._epsilon), math.inf),
                2 * self.budget,
                "replace_one",
                "It is about the holdout records; the training records are answered about exactly.",
            ),
            ledger,
            label,
            holdout,
        )
        self._test: WholeNumbers | None = None

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee of all answers together, for the holdout records alone."""
        return self._charge.guarantee

    def __repr__(self) -> str:
        sizes = f"{self._sizes[0]} training and {self._sizes[1]} holdout records"
        return f"Thresholdout({sizes}, {self.budget} answers left)"

    def ask(self, phi: Callable[[PyTree], float]) -> float:
        """Return the mean of ``phi``, near the population's.

        Args:
            phi: function of ONE record, a number in [0, 1]; a value outside is clipped, and NaN counts as 0.

        Raises:
            BudgetSpent: the budget is used up; nothing is looked at.
            Halted: ``phi`` itself asked, and was answered from the holdout.
            ValueError: in a process that was forked from the one that made this.
        """
        with self._answering():
            if self.budget < 1:
                raise BudgetSpent("the holdout has answered as often as was paid for; a fresh one needs fresh records")
            self._charge.reserve()
            size, n = self._sizes
            test = self._test = self._test or WholeNumbers(self._threshold, self._epsilon, ONE)
            on_train = total(phi, self._train, size)
            on_holdout = total(phi, self._holdout, n)
            # The training mean in units of the holdout's sum; public as far as the holdout's guarantee goes.
            expected = round(Fraction(on_train * n, size))
            if not test.above(abs(on_holdout - expected)):
                self._charge.settle()
                return on_train / (size * ONE)
            self.budget -= 1
            self._test = None
            answer = on_holdout + above_threshold.sample(ONE / self._epsilon)
            self._charge.settle()
            return answer / (n * ONE)


def total(phi: Callable[[PyTree], float], records: PyTree, count: int) -> int:
    """Return the sum of the clipped, rounded values of φ, in grid steps."""
    return sum(in_steps(phi(record)) for record in each(records, count))


def in_steps(value: float) -> int:
    """Return a value clipped to [0, 1] and rounded, in grid steps; NaN counts as 0."""
    number = float(value)
    return 0 if math.isnan(number) else round(min(max(number, 0.0), 1.0) * ONE)


def each(records: PyTree, count: int) -> Iterator[PyTree]:
    """Yield the records, one at a time."""
    leaves, structure = jax.tree.flatten(records)
    arrays = [np.asarray(leaf) for leaf in leaves]
    for i in range(count):
        yield jax.tree.unflatten(structure, [array[i] for array in arrays])


def count_of(name: str, records: PyTree) -> int:
    """Return the number of records.

    Raises:
        ValueError: no arrays with one leading axis.
    """
    counts = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(records)}
    if len(counts) != 1 or counts in ({()}, {(0,)}):
        raise InputError(f"{name} must be arrays with one leading axis of records, at least one, got lengths {counts}")
    return int(next(iter(counts))[0])
