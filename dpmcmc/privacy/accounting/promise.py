"""Promise that a run is asked for: the ``privacy:`` section of a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le, Lt

from dpmcmc.errors import InputError, check_fields

AdjacencyName = Literal["replace_one", "add_remove", "zero_out"]
#: Accountants of a sampler's trace.
TraceAccountant = Literal["pld", "rdp", "advanced"]
Release = Literal["trace", "last_iterate", "one_sample", "estimate"]
Calibrator = Literal["numeric", "closed_form", "free"]
Clipping = Literal["residual", "label_blind"]
#: Sentence of a run whose noise is computed in floating point.
UNHARDENED = (
    "noise is in floating point: the guarantee takes it for exactly Gaussian, which is not proved, and its "
    "generator is not claimed to be cryptographic; hardened: true takes noise that is proved"
)


@dataclass(frozen=True)
class Privacy:
    """Promised guarantee, and how it is computed.

    Args:
        epsilon: target ε; left out with calibrator free, which reports it.
        delta: total δ, below 1/N.
        adjacency: definition of a neighbour: one record replaced, present or absent, or zeroed.
        release: all that may be published; for a sampler's run trace, every iterate. Leave it out with a mechanism,
            which has a release of its own.
        accountant: how ε is computed.
        calibrator: how the noise is chosen.
        clip: C, the l2 norm each record's gradient is clipped to. Beyond its bounds float32 has no grid for exact sums.
        clipping: residual or label_blind. The first shrinks each gradient by its own norm, which biases the draws.
            The second shrinks it by the largest norm that any label would give it, which does not. It is the default
            of targets with bounded labels (logistic and softmax regression), and other targets refuse it.
        hardened: with true, keys are ChaCha20's, and noise is drawn in integers, proved bit by bit; a promise beyond
            that proof (an ε above 30 to 50) is taken for the largest that it covers. With false, noise is computed in
            floating point, which is not proved, from a generator that is not claimed to be cryptographic. Left out,
            noise is drawn in integers wherever that is proved, and the plan says where it is not.

    Raises:
        ValueError: a value outside these.

    Example:
        >>> from dpmcmc import Privacy
        >>> privacy = Privacy(epsilon=1.0, delta=1e-5, clip=0.5)
        >>> privacy.adjacency, privacy.accountant
        ('replace_one', 'pld')
    """

    epsilon: Annotated[float, Gt(0), Le(1e6)] | None = None
    delta: Annotated[float, Gt(0), Lt(1)] = 1e-6
    adjacency: AdjacencyName = "replace_one"
    release: Release = "trace"
    accountant: TraceAccountant = "pld"
    calibrator: Calibrator = "numeric"
    clip: Annotated[float, Ge(1e-9), Le(1e9)] = 1.0
    clipping: Clipping | None = None
    hardened: bool | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.calibrator != "free" and self.epsilon is None:
            raise InputError(
                f"calibrator {self.calibrator} needs epsilon; only free reports it instead of taking it", "epsilon"
            )
        if self.calibrator == "free" and self.epsilon is not None:
            raise InputError(
                "calibrator free adds no noise for privacy and reports epsilon: leave epsilon out", "epsilon"
            )


def check_delta(delta: float, num_records: int) -> None:
    """Refuse a δ outside (0, 1/N)."""
    if not 0 < delta < 1 / num_records:
        raise InputError(
            f"delta {delta:g} does not lie strictly between 0 and 1/num_records = {1 / num_records:.3g}, at which "
            "publishing one random record outright would meet it",
            "delta",
        )
