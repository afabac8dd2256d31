r"""When to stop a chain, by scores on held-out private records; charged once, however many scores are looked at.

Two rules, each a stream for :class:`AboveThreshold`. Let Δ be a score's sensitivity for a FIXED model, 1/n for the
accuracy on n records.

* ``reach``: stop at the first score above a target. The value is the score: sensitivity Δ.
* ``patience`` p: stop when the last p scores do not improve on the best before them by more than ``improvement``. The
  value is  max(s_1, …, s_{t−p}) − max(s_{t−p+1}, …, s_t)  against −improvement. The largest of several numbers moves by
  no more than the number that moves most, so its sensitivity is 2Δ.

The scores themselves are never released. The models are those already published, so each value is a function of the
held-out records and of what is public by then, as an adaptive stream may be.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from dpmcmc.errors import InputError
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.interactive.above_threshold import AboveThreshold, Halted, Once, exact
from dpmcmc.privacy.interactive.charge import Ledger
from dpmcmc.storage.pytree import PyTree


class EarlyStopping(Once):
    """Says after each score whether to stop; larger scores are better.

    Args:
        epsilon: ε of all answers together, with δ = 0, for the records that are scored on.
        sensitivity: Δ of one score of a fixed model; 1/n for accuracy on n records under replace_one.
        reach: stop above this score; or
        patience: stop when so many scores in a row bring no improvement.
        improvement: smallest improvement that counts, for ``patience``.
        ledger: the ledger in which the price is reserved before the first score is looked at, or None.
        records: the records that are scored on, a pytree; needed with a ledger, which must be about them.
        adjacency: adjacency of the sensitivity.
        label: name of the stream in the ledger.

    Raises:
        ValueError: not exactly one rule, a ledger without records, or a number that cannot be.

    Example:
        >>> from dpmcmc.privacy.interactive import EarlyStopping
        >>> rule = EarlyStopping(epsilon=0.5, sensitivity=1e-5, reach=0.9)
        >>> [rule.stop(score) for score in (0.2, 0.5, 0.99)]
        [False, False, True]
    """

    def __init__(
        self,
        *,
        epsilon: float,
        sensitivity: float,
        reach: float | None = None,
        patience: int | None = None,
        improvement: float = 0.0,
        ledger: Ledger | None = None,
        records: PyTree = None,
        adjacency: str = "replace_one",
        label: str = "early stopping",
    ) -> None:
        super().__init__()
        if (reach is None) == (patience is None):
            raise InputError("give exactly one of reach (a score) and patience (a number of scores)")
        if reach is not None and improvement:
            raise InputError("improvement goes with patience, not with reach; leave it out")
        if patience is not None and (isinstance(patience, bool) or int(patience) != patience or patience < 1):
            raise InputError(f"patience must be a whole number >= 1, got {patience!r}")
        self._patience = patience
        self._scores: list[Fraction] = []
        threshold = -improvement if reach is None else reach
        doubled = 1 if patience is None else 2
        self._above = AboveThreshold(
            threshold, epsilon, doubled * sensitivity, ledger, adjacency, records=records, label=label
        )

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee of all answers together, for the records that are scored on."""
        return self._above.guarantee

    def stop(self, score: float | Fraction | Callable[[], float | Fraction]) -> bool:
        """Return whether to stop after this score.

        Args:
            score: score of the current published model, in float64 or as a Fraction, or a function of no arguments
                that computes it.

        Raises:
            Halted: it has said so before.
            ValueError: a score that is not finite, or of a type coarser than the grid (float32); in a process that was
                forked from the stream's.
        """
        with self._answering():
            if self._above.halted:
                raise Halted("it has said to stop; going on needs another EarlyStopping, at another epsilon")
            self._above.begin()
            number = exact("score", score() if callable(score) else score, self._above.grid)
            if self._patience is None:
                return self._above.above(number)
            self._scores.append(number)
            earlier, latest = self._scores[: -self._patience], self._scores[-self._patience :]
            if not earlier:
                return False
            return self._above.above(max(earlier) - max(latest))
