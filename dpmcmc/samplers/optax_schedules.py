"""Functions of optax by name. Its signatures say which arguments there are."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from dpmcmc.errors import REST, InputError, meant, shown
from dpmcmc.samplers.schedules import PerStep, Schedule

#: How the name of a schedule of optax begins in a YAML.
OPTAX = "optax:"


def made_by_optax(
    kind: str,
    name: str,
    known: Mapping[str, Callable[..., Any]],
    given: Mapping[str, Any],
) -> Any:
    """Return what a function of optax makes of its arguments.

    Args:
        kind: argument that names the function.
        name: of the function.
        known: functions of optax that may be named.
        given: arguments by name.

    Raises:
        InputError: no such function, an argument that it does not have or lacks, or a value that it does not take.
    """
    if name not in known:
        raise InputError(
            f"{kind} must be a function of optax {_PURPOSES[kind]}, one of {', '.join(sorted(known))}"
            f"{meant(name, known)}, got {name!r}",
            kind,
        )
    parameters = inspect.signature(known[name]).parameters
    for key, value in given.items():
        if key not in parameters:
            raise InputError(
                f"{key} is no argument of optax.{name}{meant(key, parameters)}, which takes {', '.join(parameters)}",
                key,
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{key} must be a finite number, got {value}", key)
        if isinstance(value, str) and _is_of_a_number(parameters[key]):
            raise InputError(f"{key} must be a number, got {shown(value)}", key)
    for key, parameter in parameters.items():
        if parameter.default is parameter.empty and key not in given:
            raise InputError(f"{key} is required by optax.{name}; give it", key)
    try:
        return known[name](**{key: _numbered(value) for key, value in given.items()})
    except Exception as error:  # optax checks its arguments in its own ways
        raise InputError(f"optax.{name} does not take these arguments ({error})", kind) from None


#: The task of a function of optax, by the argument that names it.
_PURPOSES = {
    "rule": "that steps on a gradient alone",
    "schedule": "that makes a schedule",
}


def _is_of_a_number(parameter: inspect.Parameter) -> bool:
    """Return whether an argument of a function of optax takes a number and no word."""
    kinds = get_args(parameter.annotation) or (parameter.annotation,)
    return str not in kinds and not {int, float}.isdisjoint(kinds)


def _numbered(value: Any) -> Any:
    """Return a mapping with its steps as whole numbers, which are text as the keys of a YAML."""
    if not isinstance(value, Mapping) or not all(str(key).isdecimal() for key in value):
        return value
    return {int(key): part for key, part in value.items()}


def arguments_said(given: Mapping[str, Any]) -> list[str]:
    """Return arguments as Python writes them in a call."""
    return [f"{key}={value!r}" for key, value in given.items()]


@dataclass(frozen=True, repr=False)
class OptaxSchedule:
    """A schedule of optax by its name.

    Args:
        schedule: ``optax:`` and the name of a function of optax that makes a schedule, such as
            optax:cosine_decay_schedule; further keys are its arguments. In Python ``optax:`` may be left out.
        arguments: the function's arguments, by their names; step sizes are those on the MEAN loss.

    Raises:
        ValueError: an unknown name, or arguments that the function does not take.

    Example:
        >>> from dpmcmc.samplers import OptaxSchedule
        >>> schedule = OptaxSchedule("linear_schedule", init_value=4.0, end_value=2.0, transition_steps=10)
        >>> [float(schedule(t)) for t in (0, 5, 20)]
        [4.0, 3.0, 2.0]
    """

    schedule: str
    arguments: tuple[tuple[str, Any], ...] = dataclasses.field(default=(), metadata=REST)

    def __init__(
        self,
        schedule: str,
        arguments: Mapping[str, Any] | tuple[tuple[str, Any], ...] = (),
        **more: Any,
    ) -> None:
        every = tuple(sorted((dict(arguments) | more).items()))
        named = str(schedule).removeprefix(OPTAX)
        object.__setattr__(self, "schedule", named)
        object.__setattr__(self, "arguments", every)
        made = self._made()
        try:
            float(made(0))
        except Exception as error:  # optax checks its arguments only as it uses them
            raise InputError(
                f"optax.{self.schedule} does not take these arguments ({error})",
                "schedule",
            ) from None

    def __hash__(self) -> int:
        return hash(repr(self))  # an argument may be a mapping

    def __repr__(self) -> str:
        return f"optax.{self.schedule}({', '.join(arguments_said(dict(self.arguments)))})"

    def __call__(self, t: PerStep) -> PerStep:
        """Step size at step t."""
        return self._made()(t)

    def _made(self) -> Schedule:
        known = _schedules_of_optax()
        return made_by_optax("schedule", self.schedule, known, dict(self.arguments))


@functools.cache
def _schedules_of_optax() -> dict[str, Callable[..., Any]]:
    """Functions of optax that make a schedule of numbers, by name."""
    import optax  # it takes as long to import as all samplers

    return {
        name: made
        for name, made in vars(optax.schedules).items()
        if inspect.isfunction(made)
        and inspect.signature(made, eval_str=True).return_annotation == optax.Schedule
        and name != "join_schedules"  # it takes functions
    }
