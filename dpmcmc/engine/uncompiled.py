"""Evaluates a traced function in NumPy, one equation after another: a reference that no compiler and no cache served.

    jaxpr = jax.make_jaxpr(f)(*arguments)
    results = evaluate(jaxpr, *leaves)

The primitives of the library's own programs are written out here, the block function of threefry too. A primitive
that a user's model may bring beside them (a convolution, a factorisation) is compiled alone, with a random constant in
its program, so that no cache can know it. Keys are arrays of a structured dtype, one field of words.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from dpmcmc.storage.compiled_programs import RUN_ONCE


def evaluate(closed: ClosedJaxpr, *arguments: Any) -> list[Any]:
    """Results of a traced function.

    Args:
        closed: from ``jax.make_jaxpr``, without collectives: name the axis by ``jax.vmap(..., axis_name=)``.
        arguments: flat; arrays, JAX's or NumPy's, or JAX keys.

    Returns:
        NumPy arrays, flat; keys as arrays of their words' structured dtype.
    """
    with np.errstate(all="ignore"):
        return _run(closed.jaxpr, closed.consts, [host(argument) for argument in arguments])


def host(value: Any) -> Any:
    """A NumPy array; one of JAX keys as words."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return _wrapped(np.asarray(jax.random.key_data(value)))
    return np.asarray(value)


def _wrapped(words: np.ndarray) -> np.ndarray:
    """Keys of uint32 words (..., k)."""
    kind = np.dtype([("words", np.uint32, (words.shape[-1],))])
    return np.ascontiguousarray(words).view(kind).reshape(words.shape[:-1])


def _run(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, map(host, consts), strict=True))
    known.update(zip(jaxpr.invars, arguments, strict=True))

    def read(atom: Any) -> Any:
        aval: Any = atom.aval
        return np.asarray(atom.val, aval.dtype) if isinstance(atom, Literal) else known[atom]

    for equation in jaxpr.eqns:
        values = [read(atom) for atom in equation.invars]
        results = _equation(equation, values)
        for variable, result in zip(equation.outvars, results, strict=True):
            known[variable] = result
    return [read(atom) for atom in jaxpr.outvars]


def _equation(equation: Any, values: list[Any]) -> Sequence[Any]:
    name, params = equation.primitive.name, equation.params
    if name in _SEVERAL:
        return _SEVERAL[name](equation, *values)
    if name in _ONE:
        with contextlib.suppress(Exception):  # a form that is not written out here
            return [_checked(_ONE[name](params, *values), equation.outvars[0].aval)]
        return _compiled_alone(equation, values)
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if key in params:
            return _call(params[key], values)
    return _compiled_alone(equation, values)


def _checked(result: Any, aval: Any) -> Any:
    """A result of the shape and dtype that it must have."""
    result = np.asarray(result)
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return result.reshape(aval.shape)
    return np.broadcast_to(result.astype(aval.dtype, copy=False), aval.shape)


def _call(inner: Any, values: Sequence[Any]) -> list[Any]:
    """Results of a jaxpr inside another, closed or not."""
    return _run(inner.jaxpr, inner.consts, values) if hasattr(inner, "consts") else _run(inner, (), values)


def _compiled_alone(equation: Any, values: list[Any]) -> list[Any]:
    found, _ = _alone(equation)(*values)
    return [np.asarray(leaf) for leaf in (found if equation.primitive.multiple_results else [found])]


@functools.lru_cache(maxsize=64)
def _alone(equation: Any) -> Any:
    """One equation as a program that nobody has seen before, and so is in nobody's cache."""
    fresh = np.uint32(secrets.randbits(32))

    def alone(*arguments: Any) -> Any:
        return equation.primitive.bind(*arguments, **equation.params), jnp.uint32(fresh)

    return jax.jit(alone, compiler_options=RUN_ONCE)


# Keys.


def _generated(name: str) -> Callable[..., list[Any]]:
    """Return the function from keys to what a generator makes of each."""

    def apply(equation: Any, keys: np.ndarray, *others: Any) -> list[Any]:
        params = equation.params
        size = params.get("bit_width"), params.get("shape")
        keys, *numbers = np.broadcast_arrays(keys, *others)
        words = np.ascontiguousarray(keys)["words"]
        flat = [words.reshape(-1, words.shape[-1]), *(each.ravel() for each in numbers)]
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in flat)
        traced = _generator(equation.invars[0].aval.dtype._impl, name, size, shapes)
        (results,) = _run(traced.jaxpr, traced.consts, flat)
        results = results if name == "random_bits" else _wrapped(results)
        return [results.reshape(equation.outvars[0].aval.shape)]

    return apply


@functools.lru_cache(maxsize=64)
def _generator(impl: Any, name: str, size: Any, shapes: Any) -> ClosedJaxpr:
    """A generator's function of several keys, traced."""
    bits, shape = size
    call: Any = {
        "random_bits": lambda key: impl.random_bits(key, bits, shape),
        "random_split": lambda key: impl.split(key, shape),
        "random_fold_in": impl.fold_in,
    }[name]
    return jax.make_jaxpr(jax.vmap(call))(*(jax.ShapeDtypeStruct(*each) for each in shapes))


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def _threefry(_: Any, key0: Any, key1: Any, x0: Any, x1: Any) -> list[Any]:
    """Threefry-2x32 of 20 rounds (Salmon et al. 2011)."""
    keys = (key0, key1, key0 ^ key1 ^ np.uint32(0x1BD11BDA))
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for block in range(5):
        for turn in _ROTATIONS[block % 2]:
            x0 = x0 + x1
            x1 = ((x1 << np.uint32(turn)) | (x1 >> np.uint32(32 - turn))) ^ x0
        x0 = x0 + keys[(block + 1) % 3]
        x1 = x1 + keys[(block + 2) % 3] + np.uint32(block + 1)
    return [x0, x1]


def _iota_2x32(equation: Any) -> list[Any]:
    count = np.arange(int(np.prod(equation.params["shape"])), dtype=np.uint64).reshape(equation.params["shape"])
    return [(count >> np.uint64(32)).astype(np.uint32), count.astype(np.uint32)]


# Control flow.


def _cond(equation: Any, index: Any, *values: Any) -> list[Any]:
    branches = equation.params["branches"]
    return _call(branches[min(max(int(index), 0), len(branches) - 1)], values)


def _while(equation: Any, *values: Any) -> list[Any]:
    params = equation.params
    first, second = params["cond_nconsts"], params["body_nconsts"]
    asked, fixed, state = values[:first], values[first : first + second], list(values[first + second :])
    while _call(params["cond_jaxpr"], [*asked, *state])[0]:
        state = _call(params["body_jaxpr"], [*fixed, *state])
    return state


def _scan(equation: Any, *values: Any) -> list[Any]:
    params, count = equation.params, equation.params["num_carry"]
    fixed, rest = values[: params["num_consts"]], values[params["num_consts"] :]
    carry, rows = list(rest[:count]), rest[count:]
    kept: list[Any] = []
    order = range(params["length"])
    for at in reversed(order) if params["reverse"] else order:
        out = _call(params["jaxpr"], [*fixed, *carry, *(row[at] for row in rows)])
        carry, pieces = out[:count], out[count:]
        kept.append(pieces)
    if params["reverse"]:
        kept.reverse()
    shapes = [variable.aval for variable in equation.outvars[count:]]
    if not kept:
        return [*carry, *(np.zeros(aval.shape, aval.dtype) for aval in shapes)]
    return [*carry, *(np.stack(leaves) for leaves in zip(*kept, strict=True))]


# Arrays.


def _convert(params: Any, x: Any) -> Any:
    kind = np.dtype(params["new_dtype"])
    if kind.kind in "iu" and x.dtype.kind not in "iub":
        # Beyond the range of integers as XLA has it: the nearest one, and zero for NaN.
        bounds, wide = np.iinfo(kind), np.nan_to_num(x.astype(np.float64), nan=0.0)
        return np.trunc(np.clip(wide, bounds.min, bounds.max)).astype(kind)
    return x.astype(kind)


def _broadcast(params: Any, x: Any) -> Any:
    shape = [1] * len(params["shape"])
    for size, axis in zip(x.shape, params["broadcast_dimensions"], strict=True):
        shape[axis] = size
    return np.broadcast_to(x.reshape(shape), params["shape"])


def _iota(params: Any) -> Any:
    shape = [1] * len(params["shape"])
    shape[params["dimension"]] = -1
    return np.arange(params["shape"][params["dimension"]]).astype(params["dtype"]).reshape(shape)


def _slice(params: Any, x: Any) -> Any:
    steps = params["strides"] or [1] * x.ndim
    return x[tuple(map(slice, params["start_indices"], params["limit_indices"], steps))]


def _pad(params: Any, x: Any, value: Any) -> Any:
    config = params["padding_config"]
    apart = np.full([n + max(n - 1, 0) * i for n, (_, _, i) in zip(x.shape, config, strict=True)], value)
    apart[tuple(slice(None, None, i + 1) for _, _, i in config)] = x
    out = np.pad(apart, [(max(low, 0), max(high, 0)) for low, high, _ in config], constant_values=value)
    ends = zip(out.shape, config, strict=True)
    return out[tuple(slice(max(-low, 0), n - max(-high, 0)) for n, (low, high, _) in ends)]


def _select(params: Any, which: Any, *cases: Any) -> Any:
    out = cases[0]
    for at, case in enumerate(cases[1:], start=1):
        out = np.where(which == at, case, out)
    return out


def _dynamic_slice(params: Any, x: Any, *starts: Any) -> Any:
    sizes = params["slice_sizes"]
    first = [min(max(int(s), 0), n - k) for s, n, k in zip(starts, x.shape, sizes, strict=True)]
    return x[tuple(slice(s, s + k) for s, k in zip(first, sizes, strict=True))]


def _dynamic_update(params: Any, x: Any, update: Any, *starts: Any) -> Any:
    out = np.array(x)
    first = [min(max(int(s), 0), n - k) for s, n, k in zip(starts, x.shape, update.shape, strict=True)]
    out[tuple(slice(s, s + k) for s, k in zip(first, update.shape, strict=True))] = update
    return out


def _gather(params: Any, x: Any, indices: Any) -> Any:
    numbers, mode = params["dimension_numbers"], params["mode"].name
    window = numbers.offset_dims, numbers.collapsed_slice_dims, numbers.start_index_map
    paired = dict(zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True))
    where, inside = _places(x.shape, indices, params["slice_sizes"], *window, paired)
    found = x[tuple(np.broadcast_arrays(*where))] if where else x
    if mode != "FILL_OR_DROP" or inside.all():
        return found
    fill = params["fill_value"]
    if fill is None:
        extremes = {"b": lambda: True, "u": lambda: np.iinfo(x.dtype).max, "i": lambda: np.iinfo(x.dtype).min}
        fill = extremes.get(x.dtype.kind, lambda: np.nan)()
    return np.where(inside, found, np.asarray(fill, x.dtype))


def _scatter(put: Callable[[Any, Any, Any], Any]) -> Callable[..., Any]:
    def scatter(params: Any, x: Any, indices: Any, updates: Any) -> Any:
        numbers = params["dimension_numbers"]
        window = numbers.update_window_dims, numbers.inserted_window_dims, numbers.scatter_dims_to_operand_dims
        paired = dict(zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True))
        moved = [axis for axis in range(x.ndim) if axis not in numbers.inserted_window_dims and axis not in paired]
        sizes = [1] * x.ndim
        for axis, dim in zip(moved, numbers.update_window_dims, strict=True):
            sizes[axis] = updates.shape[dim]
        where, inside = _places(x.shape, indices, sizes, *window, paired)
        out = np.array(x)
        keep = np.broadcast_to(inside | (params["mode"].name == "CLIP"), updates.shape)
        put(out, tuple(np.broadcast_to(at, updates.shape)[keep] for at in where), updates[keep])
        return out

    return scatter


def _places(
    shape: Sequence[int],
    indices: Any,
    sizes: Sequence[int],
    window_dims: Sequence[int],
    collapsed: Sequence[int],
    index_map: Sequence[int],
    paired: dict[int, int],
) -> tuple[list[Any], Any]:
    """(per axis of an operand its indices, whether they are within it), both to be broadcast to the result's shape.

    Args:
        shape: of the operand.
        indices: (..., k): where windows start along the axes ``index_map``.
        sizes: of a window.
        window_dims: axes of the result that run along a window.
        collapsed: axes of the operand that they leave out.
        paired: axes of the operand that go along with an axis of ``indices``.
    """
    along = [axis for axis in range(len(shape)) if axis not in collapsed and axis not in paired]
    rank = indices.ndim - 1 + len(along)
    batch_axes = [axis for axis in range(rank) if axis not in window_dims]
    inside: Any = np.ones((1,) * rank, bool)
    where = []
    for axis, length in enumerate(shape):
        at: Any = np.zeros((1,) * rank, np.int64)
        if axis in index_map:
            start, last = indices[..., index_map.index(axis)].astype(np.int64), length - sizes[axis]
            inside = inside & _along((start >= 0) & (start <= last), batch_axes, rank)
            at = at + _along(np.clip(start, 0, last), batch_axes, rank)
        elif axis in paired:
            at = at + _along(np.arange(indices.shape[paired[axis]]), [batch_axes[paired[axis]]], rank)
        if axis in along:
            at = at + _along(np.arange(sizes[axis]), [window_dims[along.index(axis)]], rank)
        where.append(at)
    return where, inside


def _along(values: Any, axes: Sequence[int], rank: int) -> Any:
    """Values whose axes are these, in increasing order, of an array of so many."""
    shape = [1] * rank
    for size, axis in zip(values.shape, axes, strict=True):
        shape[axis] = size
    return values.reshape(shape)


def _dot(params: Any, x: Any, y: Any) -> Any:
    (xc, yc), (xb, yb) = params["dimension_numbers"]
    kind = params["preferred_element_type"] or x.dtype
    xo = [axis for axis in range(x.ndim) if axis not in (*xc, *xb)]
    yo = [axis for axis in range(y.ndim) if axis not in (*yc, *yb)]

    def size(array: Any, axes: Sequence[int]) -> int:
        return int(np.prod([array.shape[axis] for axis in axes]))

    left = x.transpose([*xb, *xo, *xc]).reshape(size(x, xb), size(x, xo), size(x, xc)).astype(kind)
    right = y.transpose([*yb, *yc, *yo]).reshape(size(y, yb), size(y, yc), size(y, yo)).astype(kind)
    shape = [*(x.shape[a] for a in xb), *(x.shape[a] for a in xo), *(y.shape[a] for a in yo)]
    return np.matmul(left, right).reshape(shape)


def _sort(equation: Any, *values: Any) -> list[Any]:
    params = equation.params
    axis, keys = params["dimension"], values[: params["num_keys"]]
    order = np.lexsort(keys[::-1], axis=axis)  # stable
    return [np.take_along_axis(value, order, axis) for value in values]


def _or_nan(function: Callable[..., Any]) -> Callable[..., Any]:
    """NaN in place of NumPy's error: for a matrix that is not positive, or singular."""

    def factorised(x: Any, *others: Any) -> Any:
        try:
            return function(x, *others)
        except np.linalg.LinAlgError:
            return np.full_like(others[0] if others else x, np.nan)

    return factorised


_cholesky, _solve = _or_nan(np.linalg.cholesky), _or_nan(np.linalg.solve)


def _triangular_solve(params: Any, a: Any, b: Any) -> Any:
    a = np.tril(a) if params["lower"] else np.triu(a)
    if params["unit_diagonal"]:
        a = a - a * np.eye(a.shape[-1], dtype=a.dtype) + np.eye(a.shape[-1], dtype=a.dtype)
    a = np.swapaxes(a, -1, -2) if params["transpose_a"] else a
    if params["left_side"]:
        return _solve(a, b)
    return np.swapaxes(_solve(np.swapaxes(a, -1, -2), np.swapaxes(b, -1, -2)), -1, -2)


def _eigh(equation: Any, x: Any) -> list[Any]:
    try:
        values, vectors = np.linalg.eigh(x, UPLO="L" if equation.params["lower"] else "U")
    except np.linalg.LinAlgError:
        values, vectors = np.full(x.shape[:-1], np.nan), np.full(x.shape, np.nan)
    return [vectors.astype(x.dtype), values.astype(x.dtype)]


def _set(out: Any, at: Any, values: Any) -> None:
    out[at] = values


def _split(equation: Any, x: Any) -> list[Any]:
    return np.split(x, np.cumsum(equation.params["sizes"])[:-1], axis=equation.params["axis"])


def _shift(apply: Callable[[Any, Any], Any], beyond: Callable[[Any], Any]) -> Callable[..., Any]:
    def shift(params: Any, x: Any, by: Any) -> Any:
        width = np.asarray(8 * x.dtype.itemsize, by.dtype)
        return np.where((by >= 0) & (by < width), apply(x, np.clip(by, 0, width - 1)), beyond(x))

    return shift


def _logical(x: Any, by: Any) -> Any:
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    return (x.view(unsigned) >> by.astype(unsigned)).view(x.dtype)


def _divided(params: Any, x: Any, y: Any) -> Any:
    if x.dtype.kind == "f":
        return x / y
    return np.sign(x) * np.sign(y) * (np.abs(x) // np.where(y == 0, 1, np.abs(y))) if x.dtype.kind == "i" else x // y


def _plain(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda params, *values: function(*values)


def _reduced(function: Any) -> Callable[..., Any]:
    return lambda params, x: function(x, axis=tuple(params["axes"]), dtype=x.dtype)


def _cumulative(function: Any) -> Callable[..., Any]:
    def accumulate(params: Any, x: Any) -> Any:
        axis = params["axis"]
        out = function.accumulate(np.flip(x, axis) if params["reverse"] else x, axis=axis, dtype=x.dtype)
        return np.flip(out, axis) if params["reverse"] else out

    return accumulate


def _rounded(params: Any, x: Any) -> Any:
    nearest_even = params["rounding_method"].name == "TO_NEAREST_EVEN"
    return np.rint(x) if nearest_even else np.copysign(np.floor(np.abs(x) + x.dtype.type(0.5)), x)


#: Primitives with one result, as functions of (parameters, values).
_ONE: dict[str, Callable[..., Any]] = {
    **{name: _plain(getattr(np, name)) for name in (
        "floor", "ceil", "sqrt", "log", "log1p", "exp", "exp2", "expm1", "tanh", "sin", "cos", "tan", "sign", "abs",
        "square", "nextafter",
    )},
    **{name: _plain(getattr(operator, name)) for name in (
        "add", "sub", "mul", "neg", "lt", "le", "gt", "ge", "eq", "ne",
    )},
    "add_any": _plain(operator.add),
    "and": _plain(operator.and_),
    "or": _plain(operator.or_),
    "xor": _plain(operator.xor),
    "not": _plain(operator.invert),
    "max": _plain(np.maximum),
    "min": _plain(np.minimum),
    "div": _divided,
    "rem": _plain(np.fmod),
    "pow": _plain(np.power),
    "atan2": _plain(np.arctan2),
    "clamp": _plain(lambda low, x, high: np.minimum(np.maximum(x, low), high)),
    "is_finite": _plain(np.isfinite),
    "rsqrt": _plain(lambda x: 1 / np.sqrt(x)),
    "logistic": _plain(lambda x: 1 / (1 + np.exp(-x))),
    "integer_pow": lambda params, x: x ** x.dtype.type(params["y"]) if x.dtype.kind == "f" else x ** params["y"],
    "round": _rounded,
    "shift_left": _shift(np.left_shift, np.zeros_like),
    "shift_right_logical": _shift(_logical, np.zeros_like),
    "shift_right_arithmetic": _shift(np.right_shift, lambda x: np.where(x < 0, -1, 0).astype(x.dtype)),
    "convert_element_type": _convert,
    "bitcast_convert_type": lambda params, x: np.ascontiguousarray(x).view(params["new_dtype"]),
    "reduce_sum": _reduced(np.add.reduce),
    "reduce_prod": _reduced(np.multiply.reduce),
    "reduce_max": _reduced(np.maximum.reduce),
    "reduce_min": _reduced(np.minimum.reduce),
    "reduce_and": _reduced(np.bitwise_and.reduce),
    "reduce_or": _reduced(np.bitwise_or.reduce),
    "argmax": lambda params, x: np.argmax(x, axis=params["axes"][0]),
    "argmin": lambda params, x: np.argmin(x, axis=params["axes"][0]),
    "cumsum": _cumulative(np.add),
    "cumprod": _cumulative(np.multiply),
    "cummax": _cumulative(np.maximum),
    "cummin": _cumulative(np.minimum),
    "broadcast_in_dim": _broadcast,
    "iota": _iota,
    "reshape": lambda params, x: x.reshape(params["new_sizes"]),
    "squeeze": lambda params, x: np.squeeze(x, axis=tuple(params["dimensions"])),
    "expand_dims": lambda params, x: np.expand_dims(x, tuple(params["dimensions"])),
    "transpose": lambda params, x: x.transpose(params["permutation"]),
    "rev": lambda params, x: np.flip(x, tuple(params["dimensions"])),
    "slice": _slice,
    "pad": _pad,
    "concatenate": lambda params, *values: np.concatenate(values, axis=params["dimension"]),
    "stack": lambda params, *values: np.stack(values, axis=params["axis"]),
    "select_n": _select,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update,
    "gather": _gather,
    "scatter": _scatter(_set),
    "scatter-add": _scatter(np.add.at),
    "scatter-mul": _scatter(np.multiply.at),
    "cholesky": _plain(_cholesky),
    "triangular_solve": _triangular_solve,
    "dot_general": _dot,
    "copy": _plain(np.copy),
    "copy_p": _plain(np.copy),
    "stop_gradient": _plain(np.copy),
    "random_wrap": _plain(_wrapped),
    "random_unwrap": _plain(lambda keys: keys["words"]),
}  # fmt: skip

#: Primitives that need the whole equation, or have several results.
_SEVERAL: dict[str, Callable[..., Sequence[Any]]] = {
    **{name: _generated(name) for name in ("random_bits", "random_split", "random_fold_in")},
    "threefry2x32": _threefry,
    "iota_2x32_shape": _iota_2x32,
    "cond": _cond,
    "while": _while,
    "scan": _scan,
    "sort": _sort,
    "eigh": _eigh,
    "split": _split,
    "optimization_barrier": lambda equation, *values: values,
}
