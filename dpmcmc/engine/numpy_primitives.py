"""JAX primitives written out in NumPy: a table from a primitive's name to a function of its parameters and values.

The library's own programs need no more than these, the block function of threefry among them. Keys are arrays of a
structured dtype, one field of words.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

#: Parameters of an equation, by name.
Params = Mapping[str, Any]
#: A function of arrays.
Function = Callable[..., np.ndarray]
#: A function of parameters and arrays.
Rule = Callable[..., np.ndarray]


def wrapped(words: np.ndarray) -> np.ndarray:
    """Keys of uint32 words (..., k)."""
    kind = np.dtype([("words", np.uint32, (words.shape[-1],))])
    return np.ascontiguousarray(words).view(kind).reshape(words.shape[:-1])


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def _threefry(_: Params, key0: np.ndarray, key1: np.ndarray, x0: np.ndarray, x1: np.ndarray) -> list[np.ndarray]:
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


def _iota_2x32(params: Params) -> list[np.ndarray]:
    count = np.arange(int(np.prod(params["shape"])), dtype=np.uint64).reshape(params["shape"])
    return [(count >> np.uint64(32)).astype(np.uint32), count.astype(np.uint32)]


def _convert(params: Params, x: np.ndarray) -> np.ndarray:
    kind: np.dtype[Any] = np.dtype(params["new_dtype"])
    if kind.kind in "iu" and x.dtype.kind not in "iub":
        # Beyond the range of integers as XLA has it: the nearest one, and zero for NaN.
        bounds, wide = np.iinfo(kind), np.atleast_1d(x.astype(np.float64))
        np.clip(np.nan_to_num(wide, copy=False, nan=0.0), bounds.min, bounds.max, out=wide)
        return np.trunc(wide, out=wide).astype(kind).reshape(x.shape)
    return x.astype(kind)


def _broadcast(params: Params, x: np.ndarray) -> np.ndarray:
    shape = [1] * len(params["shape"])
    for size, axis in zip(x.shape, params["broadcast_dimensions"], strict=True):
        shape[axis] = size
    return np.broadcast_to(x.reshape(shape), params["shape"])


def _iota(params: Params) -> np.ndarray:
    shape = [1] * len(params["shape"])
    shape[params["dimension"]] = -1
    return np.arange(params["shape"][params["dimension"]]).astype(params["dtype"]).reshape(shape)


def _slice(params: Params, x: np.ndarray) -> np.ndarray:
    steps = params["strides"] or [1] * x.ndim
    return x[tuple(map(slice, params["start_indices"], params["limit_indices"], steps))]


def _pad(params: Params, x: np.ndarray, value: np.ndarray) -> np.ndarray:
    config = params["padding_config"]
    apart = [n + max(n - 1, 0) * i for n, (_, _, i) in zip(x.shape, config, strict=True)]
    before, after = [max(low, 0) for low, _, _ in config], [max(high, 0) for _, high, _ in config]
    out = np.full([sum(sizes) for sizes in zip(before, apart, after, strict=True)], value)
    out[tuple(slice(b, b + n, i + 1) for b, n, (_, _, i) in zip(before, apart, config, strict=True))] = x
    ends = zip(out.shape, config, strict=True)
    return out[tuple(slice(max(-low, 0), n - max(-high, 0)) for n, (low, high, _) in ends)]


def _select(which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    out = cases[0]
    for at, case in enumerate(cases[1:], start=1):
        out = np.where(which == at, case, out)
    return out


def _gather(params: Params, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
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


def _scatter(put: Callable[[np.ndarray, tuple[np.ndarray, ...], np.ndarray], None]) -> Rule:
    def scatter(params: Params, x: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
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
    indices: np.ndarray,
    sizes: Sequence[int],
    window_dims: Sequence[int],
    collapsed: Sequence[int],
    index_map: Sequence[int],
    paired: dict[int, int],
) -> tuple[list[np.ndarray], np.ndarray]:
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
    inside = np.ones((1,) * rank, bool)
    where = []
    for axis, length in enumerate(shape):
        at = np.zeros((1,) * rank, np.int64)
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


def _along(values: np.ndarray, axes: Sequence[int], rank: int) -> np.ndarray:
    """Values whose axes are these, in increasing order, of an array of so many."""
    shape = [1] * rank
    for size, axis in zip(values.shape, axes, strict=True):
        shape[axis] = size
    return values.reshape(shape)


def _dot(params: Params, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    (xc, yc), (xb, yb) = params["dimension_numbers"]
    kind = params["preferred_element_type"] or x.dtype
    xo = [axis for axis in range(x.ndim) if axis not in (*xc, *xb)]
    yo = [axis for axis in range(y.ndim) if axis not in (*yc, *yb)]

    def size(array: np.ndarray, axes: Sequence[int]) -> int:
        return int(np.prod([array.shape[axis] for axis in axes]))

    left = x.transpose([*xb, *xo, *xc]).reshape(size(x, xb), size(x, xo), size(x, xc)).astype(kind)
    right = y.transpose([*yb, *yc, *yo]).reshape(size(y, yb), size(y, yc), size(y, yo)).astype(kind)
    shape = [*(x.shape[a] for a in xb), *(x.shape[a] for a in xo), *(y.shape[a] for a in yo)]
    return np.matmul(left, right).reshape(shape)


def _sort(params: Params, *values: np.ndarray) -> list[np.ndarray]:
    axis, keys = params["dimension"], values[: params["num_keys"]]
    order = np.lexsort(keys[::-1], axis=axis)  # stable
    return [np.take_along_axis(value, order, axis) for value in values]


def _or_nan(function: Function) -> Function:
    """NaN in place of NumPy's error: for a matrix that is not positive, or singular."""

    def factorised(x: np.ndarray, *others: np.ndarray) -> np.ndarray:
        try:
            return function(x, *others)
        except np.linalg.LinAlgError:
            return np.full_like(others[0] if others else x, np.nan)

    return factorised


_cholesky, _solve = _or_nan(np.linalg.cholesky), _or_nan(np.linalg.solve)


def _triangular_solve(params: Params, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a = np.tril(a) if params["lower"] else np.triu(a)
    if params["unit_diagonal"]:
        a = a - a * np.eye(a.shape[-1], dtype=a.dtype) + np.eye(a.shape[-1], dtype=a.dtype)
    a = np.swapaxes(a, -1, -2) if params["transpose_a"] else a
    if params["left_side"]:
        return _solve(a, b)
    return np.swapaxes(_solve(np.swapaxes(a, -1, -2), np.swapaxes(b, -1, -2)), -1, -2)


def _eigh(params: Params, x: np.ndarray) -> list[np.ndarray]:
    try:
        values, vectors = np.linalg.eigh(x, UPLO="L" if params["lower"] else "U")
    except np.linalg.LinAlgError:
        values, vectors = np.full(x.shape[:-1], np.nan), np.full(x.shape, np.nan)
    return [vectors.astype(x.dtype), values.astype(x.dtype)]


def _set(out: np.ndarray, at: tuple[np.ndarray, ...], values: np.ndarray) -> None:
    out[at] = values


def _split(params: Params, x: np.ndarray) -> list[np.ndarray]:
    return np.split(x, np.cumsum(params["sizes"])[:-1], axis=params["axis"])


def _shift(apply: Function, beyond: Function) -> Function:
    def shift(x: np.ndarray, by: np.ndarray) -> np.ndarray:
        width = np.asarray(8 * x.dtype.itemsize, by.dtype)
        return np.where((by >= 0) & (by < width), apply(x, np.clip(by, 0, width - 1)), beyond(x))

    return shift


def _logical(x: np.ndarray, by: np.ndarray) -> np.ndarray:
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    return (x.view(unsigned) >> by.astype(unsigned)).view(x.dtype)


def _divided(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind == "f":
        return x / y
    return np.sign(x) * np.sign(y) * (np.abs(x) // np.where(y == 0, 1, np.abs(y))) if x.dtype.kind == "i" else x // y


def _reduced(function: np.ufunc) -> Rule:
    return lambda params, x: function.reduce(x, axis=tuple(params["axes"]), dtype=x.dtype)


def _cumulative_sum(params: Params, x: np.ndarray) -> np.ndarray:
    axis = params["axis"]
    out = np.cumsum(np.flip(x, axis) if params["reverse"] else x, axis=axis, dtype=x.dtype)
    return np.flip(out, axis) if params["reverse"] else out


#: Primitives that need no parameters, as functions of values.
PLAIN: dict[str, Function] = {
    **{name: getattr(np, name) for name in (
        "floor", "ceil", "sqrt", "log", "log1p", "exp", "exp2", "expm1", "tanh", "sin", "cos", "tan", "sign", "abs",
        "square", "nextafter", "copy",
    )},
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "neg", "lt", "le", "gt", "ge", "eq", "ne")},
    "add_any": operator.add, "and": operator.and_, "or": operator.or_, "xor": operator.xor, "not": operator.invert,
    "max": np.maximum, "min": np.minimum, "rem": np.fmod, "pow": np.power, "atan2": np.arctan2, "div": _divided,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "is_finite": np.isfinite,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "shift_left": _shift(np.left_shift, np.zeros_like),
    "shift_right_logical": _shift(_logical, np.zeros_like),
    "shift_right_arithmetic": _shift(np.right_shift, lambda x: np.where(x < 0, -1, 0).astype(x.dtype)),
    "select_n": _select,
    "cholesky": _cholesky,
    "copy_p": np.copy, "stop_gradient": np.copy,
    "random_wrap": wrapped, "random_unwrap": lambda keys: keys["words"],
}  # fmt: skip

#: Primitives with one result, as functions of (parameters, values).
ONE: dict[str, Rule] = {
    "integer_pow": lambda params, x: x ** x.dtype.type(params["y"]) if x.dtype.kind == "f" else x ** params["y"],
    # The branch for other platforms: a second way to the same numbers.
    "platform_index": lambda params: np.array(len(params["platforms"]) - 1, np.int32),
    "convert_element_type": _convert,
    **{f"reduce_{name}": _reduced(function) for name, function in {
        "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
        "and": np.bitwise_and, "or": np.bitwise_or,
    }.items()},
    "cumsum": _cumulative_sum,
    "broadcast_in_dim": _broadcast,
    "iota": _iota,
    "reshape": lambda params, x: x.reshape(params["new_sizes"]),
    "squeeze": lambda params, x: np.squeeze(x, axis=tuple(params["dimensions"])),
    "transpose": lambda params, x: x.transpose(params["permutation"]),
    "slice": _slice,
    "pad": _pad,
    "concatenate": lambda params, *values: np.concatenate(values, axis=params["dimension"]),
    "stack": lambda params, *values: np.stack(values, axis=params["axis"]),
    "gather": _gather,
    "scatter": _scatter(_set),
    "scatter-add": _scatter(np.add.at),
    "triangular_solve": _triangular_solve,
    "dot_general": _dot,
}  # fmt: skip

#: Primitives with several results, as functions of (parameters, values).
SEVERAL: dict[str, Callable[..., Sequence[np.ndarray]]] = {
    "threefry2x32": _threefry,
    "iota_2x32_shape": _iota_2x32,
    "sort": _sort,
    "eigh": _eigh,
    "split": _split,
    "optimization_barrier": lambda params, *values: values,
}
