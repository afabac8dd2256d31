"""Promise that a run is asked for: the ``privacy:`` section of a configuration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from dpmcmc.errors import InputError, UnsupportedCombination, check_fields
from dpmcmc.privacy.accounting import (
    TRACE_ACCOUNTANTS,
)
from dpmcmc.privacy.accounting.own import OwnAccountant, is_ones_own, named

AdjacencyName = Literal["replace_one", "add_remove", "zero_out"]
#: Accountants of a sampler's trace.
TraceAccountant = Literal["pld", "rdp", "advanced"]
#: A name; or a function (events, adjacency, delta) -> ε, or its name ``module:attribute`` (``own.py``).
Accountant = TraceAccountant | str | Callable[..., float]
CalibratorName = Literal["numeric", "closed_form", "free"]
#: A name; or a function (queries, promise) -> noise multiplier, a number or one a step.
Calibrator = CalibratorName | Callable[..., Any]
Clipping = Literal["residual", "label_blind"]


@dataclass(frozen=True)
class Privacy:
    """Promised guarantee, and how it is computed.

    Args:
        epsilon: target ε; left out with calibrator free, which reports it.
        delta: total δ, below 1/N; 0 with a mechanism whose release is pure ε-DP (ops of form range), and refused
            elsewhere.
        adjacency: definition of a neighbour: one record replaced, present or absent, or zeroed.
        release: all that may be published: trace, every iterate. Leave it out with a mechanism, which has a release of
            its own: certified_ops a last iterate, ops posterior draws.
        accountant: how ε is computed. A function (events, adjacency, delta) -> float at the top of a module serves too,
            as ``module:attribute`` in a YAML. Its ε is your word: the guarantee says so among its assumptions, and one
            below a lower bound of the library's is refused.
        calibrator: how the noise is chosen. A function (queries, promise) -> noise multiplier, a number or one a step,
            serves too; in a YAML its name is ``module:attribute``. No proof rests on it: what is added is charged, and
            what exceeds ε is refused.
        clip: C, the l2 norm each record's gradient is clipped to. Beyond its bounds float32 has no grid for exact sums.
        clipping: residual shrinks each gradient by its own norm, which biases the draws; label_blind by the largest
            norm that any label would give it, which does not. Label_blind is the default of targets with bounded
            labels (logistic and softmax regression), and other targets refuse it.
        hardened: true, or left out: keys are ChaCha20's, and noise is drawn in integers, proved bit by bit. An ε above
            the largest that is proved (30 to 50) is refused, and so is false.

    Raises:
        ValueError: a value outside these.

    Example:
        >>> from dpmcmc import Privacy
        >>> privacy = Privacy(epsilon=1.0, delta=1e-5, clip=0.5)
        >>> privacy.adjacency, privacy.accountant
        ('replace_one', 'pld')
    """

    epsilon: Annotated[float, Gt(0), Le(1e6)] | None = None
    delta: Annotated[float, Ge(0), Lt(1)] = 1e-6
    adjacency: AdjacencyName = "replace_one"
    release: Literal["trace"] = "trace"
    accountant: Accountant = "pld"
    calibrator: Calibrator = "numeric"
    clip: Annotated[float, Ge(1e-9), Le(1e9)] = 1.0
    clipping: Clipping | None = None
    hardened: bool | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "accountant", checked_accountant(self.accountant))
        refuse_floats(self.hardened)
        if self.calibrator != "free" and self.epsilon is None:
            raise InputError(
                f"calibrator {named(self.calibrator)} needs epsilon; only free reports it instead of taking it",
                "epsilon",
            )
        if self.calibrator == "free" and self.epsilon is not None:
            raise InputError(
                "calibrator free adds no noise for privacy and reports epsilon: leave epsilon out",
                "epsilon",
            )


def checked_accountant(accountant: Accountant) -> str:
    """Return the name of an accountant of a trace.

    Raises:
        UnsupportedCombination: there is no such name, or the function cannot be found by its own.
    """
    name = named(accountant)
    if not isinstance(accountant, str):
        OwnAccountant(name)
    elif not is_ones_own(name) and name not in TRACE_ACCOUNTANTS:
        raise UnsupportedCombination(
            f"unknown accountant {name!r}; known: {', '.join(TRACE_ACCOUNTANTS)}, or a function at the top of a module "
            "of yours, which a YAML names as module:attribute.",
            "accountant",
        )
    return name


def refuse_floats(hardened: bool | None) -> None:
    """Refuse ``hardened: false``; true and None, which mean the same, are accepted."""
    if hardened is False:
        raise InputError(
            "hardened: false asks for noise from floats, and a private run always takes noise in integers; leave the "
            "key out, or set privacy to null for a run without a guarantee",
            "hardened",
        )


def check_delta(delta: float, num_records: int) -> None:
    """Refuse a δ outside (0, 1/N)."""
    if not 0 < delta < 1 / num_records:
        raise InputError(
            f"delta {delta:g} does not lie strictly between 0 and 1/num_records = {1 / num_records:.3g}, at which "
            "publishing one random record outright would meet it",
            "delta",
        )
