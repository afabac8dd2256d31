r"""The first values of a stream above a threshold, at one price for the whole stream.

    T̂ = T + Lap(Δ/ε₁) once;   per value  v_i + Lap(2cΔ/ε₂) > T̂ ?   False, False, …, True; halt at the c-th True
    where answers are asked for, a True comes with v_i + Lap(cΔ/ε₃)

is (ε₁ + ε₂ + ε₃, 0)-DP however many values are asked, each of sensitivity Δ and chosen after seeing the answers (Lyu,
Su and Li 2017, Algorithm 7). Proof, on the integers: let v and v' be the values on neighbours, and fix the answers.
Given T̂ = t their probability is a product over the values: P(v_i + Z <= t) for each False, and P(v_i + Z > t) times the
probability of the noisy value for each True. On the neighbour take T̂ = t + Δ, at a price of ε₁. No False is less
probable then, for v_i' <= v_i + Δ. A True needs Z larger by at most 2Δ, at a price of 2Δ·ε₂/(2cΔ) = ε₂/c. Its noisy
value costs ε₃/c. The c of them cost ε₂ + ε₃. A stream of nothing but False costs ε₁ alone. Sum over t.

One hit has ε₁ = ε₂ = ε/2, Lap(2Δ/ε) and Lap(4Δ/ε) (Dwork and Roth 2014, Theorem 3.23). Both scales are needed: with
either halved the loss exceeds ε (``tests/test_above_threshold.py``). Several hits have ε₁ : ε₂ = 1 : (2c)^⅔, which
minimises the variance of v_i − T̂; every split is a proof. Halting and starting again with a new T̂, c times at ε/c each,
costs the same and has Lap(2cΔ/ε) on the threshold too: T̂ is kept here. Monotone values need half the noise; this is not
used.

Values are rounded to a public grid first. This, and their own rounding errors up to half a grid step each, is charged
as one grid step of sensitivity: enough for float64, and not for float32, which is refused. Noise is exact
(``above_threshold.py``).

Claim: A stream of questions costs ε, however many are asked.
Proof: Lyu, Su and Li 2017, Algorithm 7, on integers.
Held by: test_the_loss_of_a_stream_is_epsilon_and_no_more,
test_several_hits_and_their_answers_lose_epsilon_and_no_more, test_rounding_is_charged, test_it_halts,
"AboveThreshold with half its noise", "AboveThreshold with one hit's noise for several",
"AboveThreshold goes on after True", "AboveThreshold survives a fork", "two answers at once"
"""

from __future__ import annotations

import contextlib
import math
import numbers
import os
import threading
from collections.abc import Callable, Iterator
from fractions import Fraction
from secrets import randbelow
from typing import Any, NoReturn, Protocol, TypeVar

import numpy as np

from dpmcmc.errors import InputError, shown
from dpmcmc.privacy.accounting import Event
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.storage.fingerprint import fingerprint
from dpmcmc.storage.pytree import PyTree

_Answer = TypeVar("_Answer")

# ----------------------------------------------------------------------------------------------------
# Cost of an interactive release: one guarantee for all its answers, reserved before a record is looked at.


class Ledger(Protocol):
    """Methods that are needed of a ledger (``dpmcmc.privacy.ledger``)."""

    def reserve(self, guarantee: Guarantee, label: str) -> Any:
        """Return a receipt; raise if the budget does not allow the guarantee."""

    def identify(self, fingerprint: Callable[[bytes], str]) -> None:
        """Raise if the records are not those that the ledger is about."""

    def settle(self, receipt_or_id: Any, outcome: str) -> None:
        """Record the outcome of a reservation."""


def pure(epsilon: float, count: int, adjacency: str, *assumptions: str) -> Guarantee:
    """Return the guarantee of ``count`` releases, adaptively chosen, of ``epsilon`` each and δ = 0."""
    return Guarantee.from_events(
        (Event("pure", 0.0, 1.0, count, epsilon=epsilon),),
        delta=0.0,
        adjacency=adjacency,
        accountant="one_sample",
        release="estimate",
        assumptions=assumptions,
    )


class Charge:
    """A guarantee on its way through a ledger; with no ledger, nothing happens.

    Args:
        guarantee: guarantee of all answers.
        ledger: the ledger, or None.
        label: name of the release in the ledger.
        records: the records that are asked about, a pytree; the ledger must be about them.

    Raises:
        ValueError: a ledger, and no records.
    """

    def __init__(self, guarantee: Guarantee, ledger: Ledger | None, label: str, records: PyTree) -> None:
        if ledger is not None and records is None:
            raise InputError(
                "records: give those that are asked about, for the ledger to tell whether they are its own"
            )
        self.guarantee = guarantee
        self._ledger = ledger
        self._label = label
        self._records = records
        self._receipt: Any = None
        self._reserved = self._settled = False

    def reserve(self) -> None:
        """Reserve the price before the first look; if the ledger raises, nothing has been looked at."""
        if self._ledger is not None and not self._reserved:
            self._receipt = self._ledger.reserve(self.guarantee, self._label)
            try:
                self._ledger.identify(lambda key: fingerprint(key, self._records))
            except BaseException:
                self._ledger.settle(self._receipt, "void")
                raise
        self._reserved = True

    def settle(self) -> None:
        """Settle before the first answer leaves: the whole price is spent by then."""
        if self._ledger is not None and not self._settled:
            self._ledger.settle(self._receipt, "released")
        self._settled = True


# ----------------------------------------------------------------------------------------------------
# The discrete Laplace distribution, drawn exactly.
#
#     P(X = x) = (1 − e^{−1/s})/(1 + e^{−1/s}) · e^{−|x|/s},   x a whole number, s > 0 rational
#
# Canonne, Kamath and Steinke (2020), Algorithms 1 and 2: only whole numbers from the operating system's entropy are
# compared, and no logarithm is taken, so the law is this one to the last bit, tails included. A shift of an integer by
# K costs a ratio of at most e^{K/s}, as for the continuous law. Running time depends on what is drawn.


def sample(scale: Fraction) -> int:
    """Return one draw; ``scale`` is s.

    Raises:
        ValueError: scale not positive.
    """
    if not scale > 0:
        raise InputError(f"scale must be > 0, got {scale}")
    t = scale.numerator
    s = scale.denominator
    while True:
        # Geometric with ratio e^{−1/t}: the remainder by rejection, then whole multiples of t.
        remainder = randbelow(t)
        if not _bernoulli_exp(remainder, t):
            continue
        multiples = 0
        while _bernoulli_exp(1, 1):
            multiples += 1
        size = (remainder + t * multiples) // s
        negative = randbelow(2) == 1
        if negative and size == 0:  # zero must not count twice
            continue
        return -size if negative else size


def _bernoulli_exp(numerator: int, denominator: int) -> bool:
    """Return True with probability e^{−γ}, γ = numerator/denominator in [0, 1].

    A run of Bernoulli(γ/k), k = 1, 2, …, has length at least k with probability γ^k/k!; so it ends at an odd k with
    probability 1 − γ + γ²/2 − … .
    """
    k = 1
    while randbelow(denominator * k) < numerator:
        k += 1
    return k % 2 == 1


class Halted(RuntimeError):
    """A stream was asked again after its last True; another stream costs another ε.

    Example:
        >>> from dpmcmc.privacy.interactive import AboveThreshold
        >>> stream = AboveThreshold(threshold=0.9, epsilon=0.5, sensitivity=1e-5)
        >>> stream.above(0.99)
        True
        >>> stream.above(0.99)
        Traceback (most recent call last):
            ...
        dpmcmc.privacy.interactive.above_threshold.Halted: AboveThreshold has halted at its last True;...
    """


class Once:
    """Base of streams of one process that cannot be copied, and answer one question at a time.

    The same noise on two streams cancels, and a forked process has its parent's noise. Two threads that were answered
    at once could both be the first True, or spend the same answer of a budget.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._taken = threading.RLock()

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


_NOTHING = Fraction(0)


class WholeNumbers(Once):
    """AboveThreshold on whole numbers, the mechanism that is proved above.

    Args:
        threshold: T.
        epsilon: ε > 0 of the stream, exact.
        sensitivity: Δ >= 1, whole.
        hits: c, the True after which it halts.
        answers: ε₃/ε, in [0, 1).
    """

    def __init__(
        self,
        threshold: int,
        epsilon: Fraction,
        sensitivity: int,
        hits: int = 1,
        answers: Fraction = _NOTHING,
    ) -> None:
        super().__init__()
        # ε₁ and ε₂; any split of ε is a proof, so the float in it rounds no guarantee.
        decisions = epsilon * (1 - answers)
        ratio = 1.0 if hits == 1 else (2 * hits) ** (2 / 3)
        share = Fraction(1 / (1 + ratio)).limit_denominator(1000)
        first = decisions * max(share, Fraction(1, 1000))
        self.threshold_scale = sensitivity / first
        self.query_scale = 2 * hits * sensitivity / (decisions - first)
        self.answer_scale = hits * sensitivity / (epsilon * answers) if answers else None
        self.halted = False
        self._left = hits
        self._threshold = threshold + sample(self.threshold_scale)

    def above(self, value: int) -> bool:
        """Return whether the noisy value is above the noisy threshold; at the last hit the stream halts.

        Raises:
            Halted: it has halted.
            ValueError: in a forked process.
        """
        with self._answering():
            if self.halted:
                raise Halted(
                    "this stream has halted at its last True; what comes after it is not covered: make another"
                )
            hit = value + sample(self.query_scale) > self._threshold
            self._left -= hit
            self.halted = self._left == 0
            return hit

    def ask(self, value: int) -> int | None:
        """Return the value with noise of its own if it is :meth:`above`, else None; raises as that."""
        assert self.answer_scale is not None
        with self._answering():
            return value + sample(self.answer_scale) if self.above(value) else None


def check_count(name: str, value: float) -> None:
    """Refuse what is no whole number >= 1."""
    if not is_number(value) or value < 1 or value % 1:
        raise InputError(f"{name} must be a whole number >= 1, got {shown(value)}")


def check_positive(name: str, value: float) -> None:
    """Refuse what is no finite number > 0."""
    if not (is_number(value) and value > 0):
        raise InputError(f"{name} must be a finite number > 0, got {shown(value)}")


def is_number(value: object) -> bool:
    """Return whether a value is a finite real number."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return real and math.isfinite(value)  # type: ignore[arg-type]


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
    """Says of each value of a stream whether it is above a threshold, up to the first that is, or the c-th.

    Args:
        threshold: T, public.
        epsilon: ε of all answers together, with δ = 0.
        sensitivity: Δ, the largest move of ONE value between neighbouring data sets.
        ledger: the ledger in which the price is reserved before the first value is looked at, or None.
        records: the records that values are computed from, a pytree; needed with a ledger, which must be about them.
        adjacency: adjacency of the sensitivity.
        grid: public grid that values are rounded to; by default a power of two, at most Δ/1024.
        label: name of the stream in the ledger.
        hits: c >= 1, after how many True it halts.
        answers: share of ε for the noisy values of hits, which :meth:`ask` returns, in [0, 1).

    Raises:
        ValueError: a ledger without records, or a number that cannot be.

    Example:
        >>> from dpmcmc.privacy.interactive import AboveThreshold
        >>> stream = AboveThreshold(threshold=0.9, epsilon=0.5, sensitivity=1e-5)
        >>> [stream.above(score) for score in (0.2, 0.5, 0.99)]
        [False, False, True]
        >>> stream.guarantee.epsilon
        0.5
        >>> stream = AboveThreshold(0.9, epsilon=0.5, sensitivity=1e-5, hits=2, answers=0.5)
        >>> answers = [stream.ask(score) for score in (0.2, 0.99, 0.5, 0.97)]
        >>> [answer if answer is None else round(answer, 1) for answer in answers]
        [None, 1.0, None, 1.0]
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
        hits: int = 1,
        answers: float = 0.0,
    ) -> None:
        super().__init__()
        check_count("hits", hits)
        if not (is_number(answers) and 0 <= answers < 1):
            raise InputError(f"answers: the share of epsilon must lie in [0, 1), got {shown(answers)}")
        for name, number in (
            ("epsilon", epsilon),
            ("sensitivity", sensitivity),
            ("grid", grid),
        ):
            if number is not None:
                check_positive(name, number)
        if not is_number(threshold):
            raise InputError(f"threshold must be a finite number, got {shown(threshold)}")
        # frexp is exact, and gives a power of two in (Δ/2048, Δ/1024].
        self.grid = Fraction(2) ** (math.frexp(sensitivity)[1] - 11) if grid is None else Fraction(grid)
        self.threshold = threshold
        self.epsilon = epsilon
        self.sensitivity = sensitivity
        self.hits = int(hits)
        self.answers = answers
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
        """Whether the last True has been said."""
        return self._stream is not None and self._stream.halted

    def __repr__(self) -> str:
        stated = f"threshold={self.threshold}, epsilon={self.epsilon}, sensitivity={self.sensitivity}"
        return f"AboveThreshold({stated}, hits={self.hits}, answers={self.answers})"

    def begin(self) -> None:
        """Reserve the price and draw the threshold's noise; :meth:`above` does so by itself."""
        with self._answering():
            if self._stream is None:
                self._charge.reserve()
                self._stream = WholeNumbers(
                    self._rounded(self.threshold),
                    Fraction(self.epsilon),
                    self.steps,
                    self.hits,
                    Fraction(self.answers),
                )

    def above(self, value: float | Fraction | Callable[[], float | Fraction]) -> bool:
        """Return whether ``value``, with noise, is above the noisy threshold.

        Args:
            value: a number of the stated sensitivity, computed in float64 or as a Fraction, or a function of no
                arguments that computes it. A function is called after the price is reserved.

        Raises:
            Halted: the last True has been said.
            ValueError: a value that is not finite, which has no sensitivity, or of a type coarser than the grid
                (float32). The data holder is told, nobody else. Also in a process that was forked from the stream's.
        """
        return self._answered(value, WholeNumbers.above)

    def ask(self, value: float | Fraction | Callable[[], float | Fraction]) -> float | None:
        """Return ``value`` with noise if it is above the threshold, as :meth:`above` decides, else None.

        Args:
            value: as there.

        Raises:
            Halted: as there.
            ValueError: as there, or ``answers`` is 0.
        """
        if not self.answers:
            raise InputError("answers: no share of epsilon is left for the values of hits; give one, or ask above()")
        answer = self._answered(value, WholeNumbers.ask)
        return None if answer is None else float(answer * self.grid)

    def _answered(
        self,
        value: float | Fraction | Callable[[], float | Fraction],
        ask: Callable[[WholeNumbers, int], _Answer],
    ) -> _Answer:
        """Return what the stream of whole numbers answers about a value, once the price is reserved."""
        with self._answering():
            if self.halted:
                raise Halted("AboveThreshold has halted at its last True; another stream costs another epsilon")
            self.begin()
            assert self._stream is not None
            number = exact("value", value() if callable(value) else value, self.grid)
            answer = ask(self._stream, self._rounded(number))
            self._charge.settle()
            return answer

    def _rounded(self, value: float | Fraction) -> int:
        """Nearest grid step, halves up."""
        return math.floor(Fraction(value) / self.grid + Fraction(1, 2))


# ----------------------------------------------------------------------------------------------------
# When to stop a chain, by scores on held-out private records; charged once, however many scores are looked at.
#
# Two rules, each a stream for :class:`AboveThreshold`. Let Δ be a score's sensitivity for a FIXED model, 1/n for the
# accuracy on n records.
#
# * ``reach``: stop at the first score above a target. The value is the score: sensitivity Δ.
# * ``patience`` p: stop when the last p scores do not improve on the best before them by more than ``improvement``. The
#   value is  max(s_1, …, s_{t−p}) − max(s_{t−p+1}, …, s_t)  against −improvement. The largest of several numbers moves
#   by no more than the number that moves most, so its sensitivity is 2Δ.
#
# The scores themselves are never released. The models are those already published, so each value is a function of the
# held-out records and of what is public by then, as an adaptive stream may be.


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
        if patience is not None:
            check_count("patience", patience)
        self._patience = patience
        self._scores: list[Fraction] = []
        threshold = -improvement if reach is None else reach
        doubled = 1 if patience is None else 2
        self._above = AboveThreshold(
            threshold,
            epsilon,
            doubled * sensitivity,
            ledger,
            adjacency,
            records=records,
            label=label,
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
            earlier = self._scores[: -self._patience]
            latest = self._scores[-self._patience :]
            if not earlier:
                return False
            return self._above.above(max(earlier) - max(latest))
