r"""AboveThreshold and the sparse vector technique: the first values of a stream above a threshold, at one price.

    python -m experiments.sources.above_threshold [--quick] [--out DIR]

    T̂ = T + Lap(Δ/ε₁) once;   per value  v_i + Lap(2cΔ/ε₂) > T̂ ?   False, False, …, True; halt at the c-th True
    where answers are asked for, a True comes with v_i + Lap(cΔ/ε₃)

is (ε₁ + ε₂ + ε₃, 0)-DP however many values are asked, each of sensitivity Δ and chosen after seeing the answers (Lyu,
Su and Li 2017, Algorithm 7). Proof, on the integers: let v and v' be the values on neighbours, and fix the answers.
Given T̂ = t their probability is a product over the values: P(v_i + Z <= t) for each False, and P(v_i + Z > t) times the
probability of the noisy value for each True. On the neighbour take T̂ = t + Δ, at a price of ε₁. No False is less
probable then, for v_i' <= v_i + Δ. A True needs Z larger by at most 2Δ, at a price of 2Δ·ε₂/(2cΔ) = ε₂/c. Its noisy
value costs ε₃/c. The c of them cost ε₂ + ε₃. Sum over t.

One hit has ε₁ = ε₂ = ε/2, Lap(2Δ/ε) and Lap(4Δ/ε) (Dwork and Roth 2014, Theorem 3.23). Several hits have
ε₁ : ε₂ = 1 : (2c)^⅔, which minimises the variance of v_i − T̂. The notes halt and start again with a new T̂, c times at
ε/c each: the same ε, and more noise. The table has the variances of both, and the largest loss of a stream by exact
enumeration of the laws, which is ε and no more. With half the noise it is larger, so both scales are needed.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from experiments.sources.discrete_laplace import log_law, log_tails, sample
from experiments.sources.script import script


class Halted(RuntimeError):
    """A stream was asked again after its last True; another stream costs another ε."""


class AboveThreshold:
    """The mechanism on whole numbers.

    Args:
        threshold: T.
        epsilon: ε > 0 of the stream, exact.
        sensitivity: Δ >= 1, whole.
        hits: c, the True after which it halts.
        answers: ε₃/ε, in [0, 1).
    """

    def __init__(
        self, threshold: int, epsilon: Fraction, sensitivity: int, hits: int = 1, answers: Fraction = Fraction(0)
    ) -> None:
        # ε₁ and ε₂; any split of ε is a proof, so the float in it rounds no guarantee.
        decisions = epsilon * (1 - answers)
        ratio = 1.0 if hits == 1 else (2 * hits) ** (2 / 3)
        first = decisions * max(Fraction(1 / (1 + ratio)).limit_denominator(1000), Fraction(1, 1000))
        self.threshold_scale = sensitivity / first
        self.query_scale = 2 * hits * sensitivity / (decisions - first)
        self.answer_scale = hits * sensitivity / (epsilon * answers) if answers else None
        self.left = hits
        self._threshold = threshold + sample(self.threshold_scale)

    def above(self, value: int) -> bool:
        """Return whether the noisy value is above the noisy threshold; raise Halted after the last hit."""
        if not self.left:
            raise Halted("this stream has halted at its last True; what comes after it is not covered: make another")
        hit = value + sample(self.query_scale) > self._threshold
        self.left -= hit
        return hit

    def ask(self, value: int) -> int | None:
        """Return the value with noise of its own if it is :meth:`above`, else None."""
        assert self.answer_scale is not None
        return value + sample(self.answer_scale) if self.above(value) else None


def log_probability(mechanism: AboveThreshold, values: np.ndarray, hits: int) -> float:
    """Return log P(False for all but the last so many, then True), threshold 0."""
    s, q = float(mechanism.threshold_scale), float(mechanism.query_scale)
    t = np.arange(-int(60 * max(s, q)), int(60 * max(s, q)) + 1)
    total = log_law(t, s)
    below = len(values) - hits
    for part, above in ((values[:below], 0), (values[below:], 1)):
        for value, count in zip(*np.unique(part, return_counts=True), strict=True):
            total = total + count * log_tails(t - value, q)[above]
    return float(np.logaddexp.reduce(total))


def largest_loss(mechanism: AboveThreshold, steps: int, k: int, hits: int = 1) -> float:
    """Return the largest log-ratio over values and the worst neighbours: all False by one side, each True by the other.

    Args:
        mechanism: with the scales to be judged.
        steps: Δ.
        k: values of the stream.
        hits: c.
    """
    worst, q = 0.0, float(mechanism.query_scale)
    for low in np.linspace(-8 * q, 8 * q, 9).astype(int):
        for last in np.linspace(-24 * q, 8 * q, 9).astype(int):
            before = np.append(np.full(k - hits, low), np.full(hits, last))
            for sign in (1, -1):
                after = before + np.append(np.full(k - hits, sign * steps), np.full(hits, -sign * steps))
                ratio = log_probability(mechanism, before, hits) - log_probability(mechanism, after, hits)
                worst = max(worst, abs(ratio))
        never = [log_probability(mechanism, np.full(k, low + d), 0) for d in (0, steps)]
        worst = max(worst, abs(never[1] - never[0]))
    if mechanism.answer_scale is not None:
        # A noisy value is drawn after its True: its largest log-ratio adds to that of the decisions, and is attained.
        scale = float(mechanism.answer_scale)
        x = np.arange(-int(20 * scale), int(20 * scale))
        worst += hits * float(np.abs(log_law(x, scale) - log_law(x + steps, scale)).max())
    return worst


def rows(k: int) -> list[dict[str, Any]]:
    """Return the rows of results.csv: the stated noise, and each scale too small by half."""
    found = []
    epsilon = Fraction(2)
    for hits, answers in ((1, Fraction(0)), (2, Fraction(0)), (3, Fraction(1, 2))):
        for noise in ("stated", "threshold_scale halved", "query_scale halved"):
            mechanism = AboveThreshold(0, epsilon, 1, hits, answers)
            again = AboveThreshold(0, epsilon / hits, 1, 1, answers)
            if noise != "stated":
                name = noise.split()[0]
                setattr(mechanism, name, getattr(mechanism, name) / 2)
            found.append({
                "hits": hits,
                "answers": float(answers),
                "noise": noise,
                "epsilon": float(epsilon),
                "loss": largest_loss(mechanism, 1, k, hits),
                "variance": variance(mechanism),
                "variance_again": variance(again),
            })  # fmt: skip
    return found


def variance(mechanism: AboveThreshold) -> float:
    """Return the variance of v_i − T̂, for a large scale."""
    return 2 * float(mechanism.threshold_scale) ** 2 + 2 * float(mechanism.query_scale) ** 2


SAID = (
    "{hits} hits, {noise} noise: largest loss {loss:.4f} of ε = {epsilon:g}; variance {variance:.4g}, "
    "{variance_again:.4g} with a new threshold for each hit"
)
main = script(
    "above_threshold",
    "The loss of a stream of decisions, by exact enumeration.",
    lambda quick: rows(50 if quick else 1000),
    SAID,
)

if __name__ == "__main__":
    raise SystemExit(main())
