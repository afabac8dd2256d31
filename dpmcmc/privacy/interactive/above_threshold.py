r"""The first of a stream of values above a threshold, at one price for the whole stream.

    T̂ = T + Lap(2Δ/ε) once;   per value  v_i + Lap(4Δ/ε) > T̂ ?   False, False, …, True and halt

is (ε, 0)-DP however many values are asked, each of sensitivity Δ and chosen after seeing the answers (Dwork and Roth
2014, Theorem 3.23; Lyu, Su and Li 2017, Theorem 2). Proof, on the integers: let v and v' be the values on neighbours.
Fix the noise of all values but the last, and let g be the largest noisy value before it. The answer is False, …, True
iff T̂ >= g and v_k + Z_k > T̂. On the neighbour g' <= g + Δ: moving T̂ up by Δ and Z_k by at most 2Δ keeps both, at a
price of Δ/(2Δ/ε) + 2Δ/(4Δ/ε) = ε. A stream of nothing but False moves T̂ alone. Both scales are needed: with either
halved the loss exceeds ε (``tests/test_above_threshold.py``). Monotone values need half the noise; this is not used.

Values are rounded to a public grid first. This, and their own rounding errors up to half a grid step each, is charged
as one grid step of sensitivity: enough for float64, and not for float32, which is refused. Noise is exact
(``discrete_laplace.py``).
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import NoReturn

import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.interactive import discrete_laplace
from dpmcmc.privacy.interactive.charge import Charge, Ledger, pure
from dpmcmc.storage.pytree import PyTree


class Halted(RuntimeError):
    """A stream was asked again after its first True; another stream costs another ε.

    Example:
        >>> from dpmcmc.privacy.interactive import AboveThreshold
        >>> stream = AboveThreshold(threshold=0.9, epsilon=0.5, sensitivity=1e-5)
        >>> stream.above(0.99)
        True
        >>> stream.above(0.99)
        Traceback (most recent call last):
            ...
        dpmcmc.privacy.interactive.above_threshold.Halted: AboveThreshold has halted at its first True;...
    """


class Once:
    """Base of streams of one process that cannot be copied, and answer one question at a time.

    The same noise on two streams cancels, and a forked process has its parent's noise. Two threads that were answered
    at once could both be the first True, or spend the same answer of a budget.
    """

    def __init__(self) -> None:
        self._process, self._taken = os.getpid(), threading.RLock()

    @contextlib.contextmanager
    def _answering(self) -> Iterator[None]:
        """Hold the stream for one answer.

        Raises:
            ValueError: in a process that was forked from the stream's.
        """
        # The lock of a forked process may be held by a thread that it does not have.
        if self._process != os.getpid():
            name = type(self).__name__
            raise InputError(
                f"this {name} is for one process, and a forked one has a copy of its noise; make another here"
            )
        with self._taken:
            yield

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or pickled: its noise is for one stream; make another"
        )


class WholeNumbers(Once):
    """AboveThreshold on whole numbers, the mechanism that is proved above.

    Args:
        threshold: T.
        epsilon: ε > 0 of the stream, exact.
        sensitivity: Δ >= 1, whole.
    """

    def __init__(self, threshold: int, epsilon: Fraction, sensitivity: int) -> None:
        super().__init__()
        self.threshold_scale = 2 * sensitivity / epsilon
        self.query_scale = 4 * sensitivity / epsilon
        self.halted = False
        self._threshold = threshold + discrete_laplace.sample(self.threshold_scale)

    def above(self, value: int) -> bool:
        """Return whether the noisy value is above the noisy threshold; if it is, the stream halts.

        Raises:
            Halted: it has halted.
            ValueError: in a forked process.
        """
        with self._answering():
            if self.halted:
                raise Halted(
                    "this stream has halted at its first True; what comes after it is not covered: make another"
                )
            self.halted = value + discrete_laplace.sample(self.query_scale) > self._threshold
            return self.halted


def exact(name: str, value: object, grid: Fraction) -> Fraction:
    """Return a value as a Fraction, if its own rounding error is at most half a grid step.

    Raises:
        ValueError: not one finite number, or one whose type is coarser than the grid.
    """
    number: object = value
    if hasattr(value, "dtype"):
        array = np.asarray(value)
        if array.size != 1 or not (array.dtype == np.float64 or np.issubdtype(array.dtype, np.integer)):
            raise InputError(
                f"{name} has type {array.dtype} and shape {array.shape}, whose rounding exceeds what is charged for: "
                "compute one number in float64, or as a Fraction of whole numbers"
            )
        number = array.item()
    if not isinstance(number, int | float | Fraction):
        raise InputError(f"{name} is a {type(value).__name__}: give one number, a float64 or a Fraction")
    if isinstance(number, float):
        if not math.isfinite(number):
            raise InputError(f"{name} is not finite: ask about a number that is finite on every data set")
        if math.ulp(number) > grid:
            raise InputError(
                f"{name} is too large for float64 to hold it to a grid step, {float(grid):g}: use a Fraction"
            )
    return Fraction(number)


class AboveThreshold(Once):
    """Says of each value of a stream whether it is above a threshold, up to the first that is.

    Args:
        threshold: T, public.
        epsilon: ε of all answers together, with δ = 0.
        sensitivity: Δ, the largest move of ONE value between neighbouring data sets.
        ledger: the ledger in which the price is reserved before the first value is looked at, or None.
        records: the records that values are computed from, a pytree; needed with a ledger, which must be about them.
        adjacency: adjacency of the sensitivity.
        grid: public grid that values are rounded to; by default a power of two, at most Δ/1024.
        label: name of the stream in the ledger.

    Raises:
        ValueError: a ledger without records, or a number that is not finite and positive (the threshold: finite).

    Example:
        >>> from dpmcmc.privacy.interactive import AboveThreshold
        >>> stream = AboveThreshold(threshold=0.9, epsilon=0.5, sensitivity=1e-5)
        >>> [stream.above(score) for score in (0.2, 0.5, 0.99)]
        [False, False, True]
        >>> stream.guarantee.epsilon
        0.5
    """

    def __init__(
        self,
        threshold: float,
        epsilon: float,
        sensitivity: float,
        ledger: Ledger | None = None,
        adjacency: str = "replace_one",
        *,
        records: PyTree = None,
        grid: float | None = None,
        label: str = "above threshold",
    ) -> None:
        super().__init__()
        for name, number in (("epsilon", epsilon), ("sensitivity", sensitivity), ("grid", grid)):
            if number is not None and not (number > 0 and math.isfinite(number)):
                raise InputError(f"{name} must be a finite number > 0, got {number}")
        if not math.isfinite(threshold):
            raise InputError(f"threshold must be finite, got {threshold}")
        # frexp is exact, and gives a power of two in (Δ/2048, Δ/1024].
        self.grid = Fraction(2) ** (math.frexp(sensitivity)[1] - 11) if grid is None else Fraction(grid)
        self.threshold, self.epsilon, self.sensitivity = threshold, epsilon, sensitivity
        #: In grid steps; rounding is monotone and commutes with whole steps, and one more covers the values' own.
        self.steps = math.ceil(Fraction(sensitivity) / self.grid) + 1
        self._charge = Charge(
            pure(
                epsilon,
                1,
                adjacency,
                f"Each value that was asked about differs by at most {sensitivity:g} between neighbours.",
            ),
            ledger,
            label,
            records,
        )
        self._stream: WholeNumbers | None = None

    @property
    def guarantee(self) -> Guarantee:
        """Guarantee of all answers together, however many."""
        return self._charge.guarantee

    @property
    def halted(self) -> bool:
        """Whether the first True has been said."""
        return self._stream is not None and self._stream.halted

    def __repr__(self) -> str:
        return f"AboveThreshold(threshold={self.threshold}, epsilon={self.epsilon}, sensitivity={self.sensitivity})"

    def begin(self) -> None:
        """Reserve the price and draw the threshold's noise; :meth:`above` does so by itself."""
        with self._answering():
            if self._stream is None:
                self._charge.reserve()
                self._stream = WholeNumbers(self._rounded(self.threshold), Fraction(self.epsilon), self.steps)

    def above(self, value: float | Fraction | Callable[[], float | Fraction]) -> bool:
        """Return whether ``value``, with noise, is above the noisy threshold.

        Args:
            value: a number of the stated sensitivity, computed in float64 or as a Fraction, or a function of no
                arguments that computes it. A function is called after the price is reserved.

        Raises:
            Halted: True has been said.
            ValueError: a value that is not finite, which has no sensitivity, or of a type coarser than the grid
                (float32). The data holder is told, nobody else. Also in a process that was forked from the stream's.
        """
        with self._answering():
            if self.halted:
                raise Halted("AboveThreshold has halted at its first True; another stream costs another epsilon")
            self.begin()
            assert self._stream is not None
            number = exact("value", value() if callable(value) else value, self.grid)
            answer = self._stream.above(self._rounded(number))
            self._charge.settle()
            return answer

    def _rounded(self, value: float | Fraction) -> int:
        """Nearest grid step, halves up."""
        return math.floor(Fraction(value) / self.grid + Fraction(1, 2))
