r"""Any gradient rule of optax on the one noisy gradient of the query: private SGD, momentum, Adam and others.

    u_t, m_{t+1} = rule(g̃_t/N, m_t, θ_t),     θ_{t+1} = θ_t + u_t

g̃_t is the noisy gradient of the full potential, so that g̃_t/N is that of the MEAN loss, prior included. The learning
rate is the one that optax documents. The rule sees privatised gradients and nothing else. Its moments and its position
are post-processing, and the run is charged like that of any sampler with no noise of its own (Abadi et al. 2016 for
SGD).

An optimiser has no stationary law to keep: no temperature, no Langevin time, and no intervals from its iterates. The
mean of its last iterates predicts. Before an end the noisy gradients of the path give a posterior, whatever moved the
positions (``mechanisms/noise_aware/chain_end.py``). Adam's second moment contains the noise of privacy as well as the
gradient, so that its steps are shorter than without privacy.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Gt

from dpmcmc.errors import REST, InputError, check_fields, shown
from dpmcmc.privacy.query.query import PrivateGradient
from dpmcmc.privacy.query.second_moment import GRADIENT
from dpmcmc.samplers.base import Queries, SamplerOffers, tree_norm
from dpmcmc.samplers.optax_schedules import arguments_said, made_by_optax
from dpmcmc.samplers.schedules import PerStep, Schedule, check_every_step
from dpmcmc.storage.pytree import STATIC, PyTree, rebuilt

#: Arguments that are shares of an average that a rule keeps from step to step.
_SHARES = frozenset(("b1", "b2", "b3", "beta", "decay", "momentum", "rho"))


class Rule(Protocol):
    """An ``optax.GradientTransformation``."""

    @property
    def init(self) -> Callable[[PyTree], PyTree]:
        """Position -> state of the rule."""

    @property
    def update(self) -> Callable[..., tuple[PyTree, PyTree]]:
        """(gradient, state, position) -> (change of the position, next state)."""


class OptaxState(NamedTuple):
    """Position, and the state of the rule: its moments and its count of steps."""

    position: PyTree
    rule: PyTree


class OptaxInfo(NamedTuple):
    """Value at each step: ``gradient_norm`` of the noisy gradient."""

    gradient_norm: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class Optax(SamplerOffers):
    """An optimiser of optax, driven by the noisy gradient of the mean loss.

    Args:
        rule: name of a function of optax that makes a rule, such as adam, adamw, sgd or rmsprop; further keys are its
            arguments. In Python also an ``optax.GradientTransformation``.
        learning_rate: learning rate on the MEAN loss, a number or a schedule; left out where the function has a
            default.
        arguments: the function's other arguments, by their names.
        num_records: N, set by :meth:`bind`.

    Raises:
        ValueError: an unknown name, an argument that the function does not have, or a rule that needs more than a
            gradient.

    Example:
        >>> import dpmcmc
        >>> dpmcmc.samplers.Optax("adam", learning_rate=0.1, b1=0.8)
        Optax('adam', learning_rate=0.1, b1=0.8)
    """

    rule: str | Rule = dataclasses.field(metadata=STATIC)
    learning_rate: Annotated[float, Gt(0)] | Schedule | None = None
    arguments: tuple[tuple[str, Any], ...] = dataclasses.field(default=(), metadata=STATIC | REST)
    num_records: int | None = dataclasses.field(default=None, kw_only=True, metadata=STATIC)

    def __init__(
        self,
        rule: str | Rule,
        learning_rate: float | Schedule | None = None,
        arguments: Mapping[str, Any] | tuple[tuple[str, Any], ...] = (),
        *,
        num_records: int | None = None,
        **more: Any,
    ) -> None:
        every = tuple(sorted((dict(arguments) | more).items()))
        values = {
            "rule": rule,
            "learning_rate": learning_rate,
            "arguments": every,
            "num_records": num_records,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if not rebuilt(self):
            self._check()

    def _check(self) -> None:
        check_fields(self)
        if not isinstance(self.rule, str):
            missing = [name for name in ("init", "update") if not hasattr(self.rule, name)]
            if missing:
                raise InputError(
                    f"rule must be the name of a function of optax or a GradientTransformation, got {shown(self.rule)}",
                    "rule",
                )
            if self._given:
                raise InputError(
                    f"{next(iter(self._given))} is an argument of a rule that is named, and this one is made already",
                    next(iter(self._given)),
                )
            return
        rule = self.transformation
        self._check_shares(self.rule)
        like = jax.ShapeDtypeStruct((2,), np.float32)
        try:
            jax.eval_shape(lambda p: rule.update(p, rule.init(p), p), like)
        except Exception as error:  # optax checks its arguments only as it uses them
            said = str(error).splitlines()[0].removesuffix(".")
            raise InputError(
                f"optax.{self.rule} cannot step on a gradient alone with these arguments ({said})",
                "rule",
            ) from None

    def _check_shares(self, rule: str) -> None:
        """Refuse a share of an average that is no share; optax takes any number."""
        defaults = inspect.signature(_rules()[rule]).parameters
        for name in _SHARES & set(self._given):
            share = self._given[name]
            # ``beta`` of an optimistic rule is 1 and a factor, no share.
            if share is None or defaults[name].default == 1:
                continue
            if not (isinstance(share, int | float) and 0 <= share < 1):
                raise InputError(
                    f"{name} must lie in [0, 1), since optax.{rule} keeps that share of its average at every step; "
                    f"got {shown(share)}",
                    name,
                )

    def __repr__(self) -> str:
        name = repr(self.rule)
        facts = {} if self.num_records is None else {"num_records": self.num_records}
        return f"Optax({', '.join([name, *arguments_said(self._given | facts)])})"

    @property
    def _given(self) -> dict[str, Any]:
        rate = {} if self.learning_rate is None else {"learning_rate": self.learning_rate}
        return rate | dict(self.arguments)

    @property
    def transformation(self) -> Rule:
        """The rule, made of its name and arguments.

        Raises:
            InputError: there is no such function of optax, or it does not take these arguments.
        """
        if not isinstance(self.rule, str):
            return self.rule
        return made_by_optax("rule", self.rule, _rules(), self._given)

    @property
    def queries(self) -> Queries:
        """One gradient."""
        return (GRADIENT,)

    @property
    def optimises(self) -> bool:  # type: ignore[override]
        """True."""
        return True

    @property
    def temperature(self) -> float:
        """T = 0, since it injects no noise."""
        return 0.0

    def bind(self, num_records: int) -> Self:
        """The optimiser for N records."""
        return dataclasses.replace(self, num_records=num_records)

    def noise_std(self, t: PerStep) -> PerStep:
        """0 at every step."""
        return 0.0 * t

    def check(self, noise_std: PerStep, t: PerStep) -> None:
        """Refuse a schedule that is not positive and finite at every step.

        Raises:
            InputError: about the learning rate.
        """
        if callable(self.learning_rate):
            check_every_step("learning_rate", self.learning_rate, t)

    def temperature_at(self, noise_std: PerStep, t: PerStep) -> PerStep:
        """NaN: an optimiser has none."""
        return np.nan * t

    def time_at(self, noise_std: PerStep, t: PerStep) -> PerStep:
        """NaN: an optimiser has none."""
        return np.nan * t

    def init(self, key: jax.Array, position: PyTree) -> OptaxState:
        """State at ``position``."""
        return OptaxState(position, self.transformation.init(position))

    def step(
        self, key: jax.Array, state: OptaxState, gradient: PrivateGradient, t: jax.Array
    ) -> tuple[OptaxState, OptaxInfo]:
        """θ' = θ + u, of the rule on g̃/N."""
        if self.num_records is None:
            raise InputError("the sampler is not bound yet: plan it, or call bind(num_records)")
        count = self.num_records
        mean = jax.tree.map(lambda g: g / count, gradient.value)
        change, rule = self.transformation.update(mean, state.rule, state.position)
        position = jax.tree.map(jnp.add, state.position, change)
        return OptaxState(position, rule), OptaxInfo(tree_norm(gradient.value))


@functools.cache
def _rules() -> dict[str, Callable[..., Any]]:
    """Functions of optax that make a rule with a learning rate, by name.

    A rule that adds noise is left out: the query adds all the noise of a run. So is one with a line search, which asks
    for the loss.
    """
    import optax  # it takes as long to import as all samplers

    return {
        name: made
        for name, made in vars(optax).items()
        if isinstance(made, types.FunctionType | functools.partial)
        and "learning_rate" in inspect.signature(made).parameters
        and "linesearch" not in inspect.signature(made).parameters
        and not name.startswith(("_", "scale_by_", "noisy_"))
    }
