"""Flax modules as two pure functions, ``init(key, row) -> params`` and ``apply(params, x) -> outputs``.

A network may hold parameters, and nothing else: batch statistics mix records, dropout needs randomness that a
log-likelihood must not have, and caches carry one call into the next.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import linen, nnx
from flax.core import meta
from flax.errors import InvalidRngError

from dpmcmc.errors import InputError
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import TargetError, model_name
from dpmcmc.targets.flax.network import Network

_DROPOUT = "remove dropout and other random layers: sampling the parameters takes their place"

#: A module, or a function of ``rngs`` that makes an NNX module.
FlaxModule = linen.Module | nnx.Module | Callable[..., nnx.Module]


def network(module: FlaxModule) -> Network:
    """The network of a Linen module, of an NNX module, or of a function that makes an NNX module.

    Raises:
        ValueError: none of these.
        TargetError: an NNX module that holds more than parameters.
    """
    if isinstance(module, linen.Module):
        return Linen(module)
    if inspect.isclass(module) and issubclass(module, linen.Module):
        raise InputError(f"module must be an instance: write {module.__name__}(...), with its sizes")
    if isinstance(module, nnx.Module):
        return NNX(module, lambda key: module)
    if callable(module):
        return NNX(module, _factory(module))
    raise InputError(
        f"module must be a Linen module, an NNX module, or a function rngs -> NNX module, got {type(module).__name__}"
    )


class Linen:
    """A Linen module; equal where the modules are."""

    def __init__(self, module: linen.Module) -> None:
        self.module = module

    def init(self, key: jax.Array, row: jax.ShapeDtypeStruct) -> PyTree:
        """The module's own initialiser, on a row of zeros."""
        try:
            variables = meta.unbox(self.module.init(key, jnp.zeros((1, *row.shape), row.dtype)))
        except InvalidRngError as error:
            raise TargetError(f"{self!r} needs random numbers ({_first(error)}): {_DROPOUT}") from None
        for collection in variables:
            if collection == "batch_stats":
                raise TargetError(
                    f"{self!r} has batch_stats, which mix records: use LayerNorm or GroupNorm instead of BatchNorm"
                )
            if collection != "params":
                raise TargetError(f"{self!r} has state beside its parameters (collection {collection}): remove it")
        return variables.get("params", {})

    def apply(self, params: PyTree, x: jax.Array) -> PyTree:
        """Outputs for a batch of rows."""
        try:
            return self.module.apply({"params": params}, x)
        except InvalidRngError as error:
            raise TargetError(f"{self!r} needs random numbers ({_first(error)}): {_DROPOUT}") from None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Linen) and hash(self) == hash(other) and self.module == other.module

    def __hash__(self) -> int:
        try:
            return hash(self.module)
        except TypeError:  # sizes in a list; the module is then equal to itself alone
            return id(self.module)

    def __repr__(self) -> str:
        return type(self.module).__name__


class NNX:
    """An NNX module, as its graph and a nested dict of parameters; equal where made from the same object.

    Args:
        source: the module, whose parameters every chain starts at, or the function that makes one.
        build: key -> module.

    Raises:
        ValueError: no NNX module is made.
        TargetError: state beside ``nnx.Param``.
    """

    def __init__(self, source: object, build: Callable[[jax.Array], nnx.Module]) -> None:
        def make() -> nnx.Module:
            module = build(jax.random.key(0))
            if not isinstance(module, nnx.Module):
                raise InputError(f"module must make an nnx.Module, and it makes {type(module).__name__}")
            return module

        fixed = isinstance(source, nnx.Module)
        module: nnx.Module = source if isinstance(source, nnx.Module) else nnx.eval_shape(make)
        self.source = source
        self.build = build
        self.name = type(module).__name__
        self.graph, _ = nnx.split(module)
        params, rest = nnx.split_state(nnx.state(module), nnx.Param, ...)
        self.start = nnx.to_pure_dict(params) if fixed else None
        for path, variable in nnx.to_flat_state(rest):
            where = ".".join(map(str, path))
            if isinstance(variable, nnx.BatchStat):
                raise TargetError(
                    f"{self!r} has batch statistics ({where}, an nnx.BatchStat), which mix records: use LayerNorm or "
                    "GroupNorm instead of BatchNorm"
                )
            if isinstance(variable, nnx.RngState):
                raise TargetError(f"{self!r} holds random numbers ({where}): {_DROPOUT}")
            raise TargetError(
                f"{self!r} has state beside its parameters ({where}, an nnx.{type(variable).__name__}): remove it"
            )

    def init(self, key: jax.Array, row: jax.ShapeDtypeStruct) -> PyTree:
        """The function's own initialiser; of a module that exists, the parameters it had."""
        return nnx.to_pure_dict(nnx.state(self.build(key), nnx.Param)) if self.start is None else self.start

    def apply(self, params: PyTree, x: jax.Array) -> PyTree:
        """Outputs for a batch of rows."""
        return nnx.merge(self.graph, nnx.State(params))(x)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NNX) and self.source is other.source

    def __hash__(self) -> int:
        return id(self.source)

    def __repr__(self) -> str:
        return self.name


def _factory(make: Callable) -> Callable[[jax.Array], nnx.Module]:
    """key -> module, from a function of ``rngs``, of one argument, or of none."""
    call = functools.partial(make)  # a partial of a partial is one
    if inspect.isclass(call.func):  # NNX classes hide their __init__ behind a metaclass
        call = functools.partial(call.func.__init__, None, *call.args, **call.keywords)
    parameters = inspect.signature(call).parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    if any(p.name == "rngs" for p in parameters):
        needed = [p for p in needed if p.name != "rngs"]
        build = lambda key: make(rngs=nnx.Rngs(key))  # noqa: E731
    elif len(needed) == 1 and needed[0].kind is not needed[0].KEYWORD_ONLY:
        needed = []
        build = lambda key: make(nnx.Rngs(key))  # noqa: E731
    else:
        build = lambda key: make()  # noqa: E731
    if needed:
        raise InputError(
            f"module must be a function of rngs alone, and {model_name(make)} also needs "
            f"{', '.join(p.name for p in needed)}: use functools.partial"
        )
    return build


def _first(error: Exception) -> str:
    return str(error).split(" (http")[0]
