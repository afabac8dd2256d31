"""Evaluates a traced function in NumPy, one equation after another: a reference that no compiler and no cache served.

    jaxpr = jax.make_jaxpr(f)(*arguments)
    results = evaluate(jaxpr, *leaves)

The primitives of the library's own programs are written out in ``numpy_primitives.py``, and those that hold other
programs here. A primitive that a user's model may bring beside them (a convolution, a factorisation) is compiled alone,
with a random constant in its program, so that no cache can know it.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from dpmcmc.engine.numpy_primitives import ONE, PLAIN, SEVERAL, wrapped
from dpmcmc.privacy.query.by_platform import traced_for
from dpmcmc.storage.compiled_programs import RUN_ONCE
from dpmcmc.storage.pytree import PyTree

#: The platform of traces that are evaluated here: no CPU of JAX, so of two ways to the same numbers the other one.
NUMPY = "numpy"


def evaluate(closed: ClosedJaxpr, *arguments: np.ndarray | jax.Array) -> list[np.ndarray]:
    """Results of a traced function.

    Args:
        closed: from ``jax.make_jaxpr``, without collectives: name the axis by ``jax.vmap(..., axis_name=)``.
        arguments: flat; arrays, JAX's or NumPy's, or JAX keys.

    Returns:
        NumPy arrays, flat; keys as arrays of their words' structured dtype.
    """
    with np.errstate(all="ignore"):
        return _run(closed.jaxpr, closed.consts, [host(argument) for argument in arguments])


def host(value: np.ndarray | jax.Array) -> np.ndarray:
    """A NumPy array; one of JAX keys as words."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return wrapped(np.asarray(jax.random.key_data(value)))
    return np.asarray(value)


def _run(jaxpr: Jaxpr, consts: Sequence[np.ndarray], arguments: Sequence[np.ndarray]) -> list[np.ndarray]:
    known: dict[Var, np.ndarray] = dict(zip(jaxpr.constvars, map(host, consts), strict=True))
    known.update(zip(jaxpr.invars, arguments, strict=True))
    # A number is let go after its last use: those of a million parameters would take gigabytes together.
    last = {atom: at for at, equation in enumerate(jaxpr.eqns) for atom in equation.invars if isinstance(atom, Var)}
    last |= {atom: len(jaxpr.eqns) for atom in jaxpr.outvars if isinstance(atom, Var)}

    def read(atom: Var | Literal) -> np.ndarray:
        return np.asarray(atom.val, _shaped(atom).dtype) if isinstance(atom, Literal) else known[atom]

    for at, equation in enumerate(jaxpr.eqns):
        results = _equation(equation, [read(atom) for atom in equation.invars])
        known.update((v, one) for v, one in zip(equation.outvars, results, strict=True) if v in last)
        for atom in equation.invars:
            if isinstance(atom, Var) and last[atom] == at:
                known.pop(atom, None)
    return [read(atom) for atom in jaxpr.outvars]


def _shaped(atom: Var | Literal) -> jax.core.ShapedArray:
    """Shape and dtype of an atom."""
    return cast(jax.core.ShapedArray, atom.aval)


def _equation(equation: JaxprEqn, values: list[np.ndarray]) -> Sequence[np.ndarray]:
    name, params = equation.primitive.name, equation.params
    if name in _CONTROL:
        return _CONTROL[name](equation, *values)
    if name in SEVERAL:
        return SEVERAL[name](params, *values)
    if name in PLAIN or name in ONE:
        with contextlib.suppress(Exception):  # a form that is not written out there
            result = PLAIN[name](*values) if name in PLAIN else ONE[name](params, *values)
            return [_checked(result, _shaped(equation.outvars[0]))]
        return _compiled_alone(equation, values)
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr", "call"):
        if key in params:
            return _call(params[key], values)
    return _compiled_alone(equation, values)


def _checked(result: np.ndarray, aval: jax.core.ShapedArray) -> np.ndarray:
    """A result of the shape and dtype that it must have."""
    result = np.asarray(result)
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return result.reshape(aval.shape)
    return np.broadcast_to(result.astype(aval.dtype, copy=False), aval.shape)


def _call(inner: Jaxpr | ClosedJaxpr, values: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Results of a jaxpr inside another, closed or not."""
    return _run(inner.jaxpr, inner.consts, values) if isinstance(inner, ClosedJaxpr) else _run(inner, (), values)


def _compiled_alone(equation: JaxprEqn, values: list[np.ndarray]) -> list[np.ndarray]:
    found, _ = _alone(equation)(*values)
    return [np.asarray(leaf) for leaf in (found if equation.primitive.multiple_results else [found])]


@functools.lru_cache(maxsize=64)
def _alone(equation: JaxprEqn) -> Callable[..., tuple[PyTree, jax.Array]]:
    """One equation as a program that nobody has seen before, and so is in nobody's cache."""
    fresh = np.uint32(secrets.randbits(32))

    def alone(*arguments: jax.Array) -> tuple[PyTree, jax.Array]:
        return equation.primitive.bind(*arguments, **equation.params), jnp.uint32(fresh)

    return jax.jit(alone, compiler_options=RUN_ONCE)


# Keys.


def _generated(name: str) -> Callable[..., list[np.ndarray]]:
    """Return the function from keys to what a generator makes of each."""

    def apply(equation: JaxprEqn, keys: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
        params = equation.params
        size = params.get("bit_width"), params.get("shape")
        keys, *numbers = np.broadcast_arrays(keys, *others)
        words = np.ascontiguousarray(keys)["words"]
        flat = [words.reshape(-1, words.shape[-1]), *(each.ravel() for each in numbers)]
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in flat)
        traced = _generator(_shaped(equation.invars[0]).dtype._impl, name, size, shapes)
        (results,) = _run(traced.jaxpr, traced.consts, flat)
        results = results if name == "random_bits" else wrapped(results)
        return [results.reshape(_shaped(equation.outvars[0]).shape)]

    return apply


@functools.lru_cache(maxsize=64)
def _generator(impl: Any, name: str, size: tuple, shapes: tuple) -> ClosedJaxpr:
    """A generator's function of several keys, traced."""
    bits, shape = size
    calls: dict[str, Callable] = {
        "random_bits": lambda key: impl.random_bits(key, bits, shape),
        "random_split": lambda key: impl.split(key, shape),
        "random_fold_in": impl.fold_in,
    }
    with traced_for(NUMPY):
        return jax.make_jaxpr(jax.vmap(calls[name]))(*(jax.ShapeDtypeStruct(*each) for each in shapes))


# Control flow.


def _cond(equation: JaxprEqn, index: np.ndarray, *values: np.ndarray) -> list[np.ndarray]:
    branches = equation.params["branches"]
    return _call(branches[min(max(int(index), 0), len(branches) - 1)], values)


def _while(equation: JaxprEqn, *values: np.ndarray) -> list[np.ndarray]:
    params = equation.params
    first, second = params["cond_nconsts"], params["body_nconsts"]
    asked, fixed, state = values[:first], values[first : first + second], list(values[first + second :])
    while _call(params["cond_jaxpr"], [*asked, *state])[0]:
        state = _call(params["body_jaxpr"], [*fixed, *state])
    return state


def _scan(equation: JaxprEqn, *values: np.ndarray) -> list[np.ndarray]:
    params = equation.params
    first, count = _constants_and_carried(params)
    fixed, carry, rows = values[:first], list(values[first : first + count]), values[first + count :]
    kept: list[list[np.ndarray]] = []
    order = range(params["length"])
    for at in reversed(order) if params["reverse"] else order:
        out = _call(params["jaxpr"], [*fixed, *carry, *(row[at] for row in rows)])
        carry, pieces = out[:count], out[count:]
        kept.append(pieces)
    if params["reverse"]:
        kept.reverse()
    shapes = [_shaped(variable) for variable in equation.outvars[count:]]
    if not kept:
        return [*carry, *(np.zeros(aval.shape, aval.dtype) for aval in shapes)]
    return [*carry, *(np.stack(leaves) for leaves in zip(*kept, strict=True))]


def _constants_and_carried(params: dict[str, Any]) -> tuple[int, int]:
    """How many inputs of a scan are constants, and how many are carried: numbers up to JAX 0.10, trees later."""
    if "num_carry" in params:
        return params["num_consts"], params["num_carry"]
    constants, carried, _ = map(len, params["ft_in"].unpack())
    return constants, carried


#: Primitives that need the whole equation.
_CONTROL: dict[str, Callable[..., Sequence[np.ndarray]]] = {
    **{name: _generated(name) for name in ("random_bits", "random_split", "random_fold_in")},
    "cond": _cond,
    "while": _while,
    "scan": _scan,
}
