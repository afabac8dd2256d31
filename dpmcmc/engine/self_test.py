"""Self-test of an executable before records are given to it: a few of its steps beside a reference.

An executable may come from a cache, and a compiler may be wrong. Before the first private run that uses one, it takes
``_STEPS`` steps from a known key on made-up records, and must end where the same steps end in NumPy, which no compiler
and no cache served (``self_test.py``). Keys of the run and its records are not touched. An executable is tested once.

**Tolerance.** A step's noise moves a parameter by some distance, which the reference finds by taking the step without
it. Executable and reference may differ by ``_RELATIVE`` of that distance, by what one unit of the sum's grid for each
record of a batch comes to, and by ``_ULPS`` units of rounding of the parameter. Float32 functions differ by 1e-6; noise
left out, or a tenth smaller, differs by 1 or by 0.1. A draw on the verge of rounding otherwise may choose another
record, in fewer than 1 of 10⁴ tests, so an executable fails only where it differs under each of ``_KEYS`` keys.

**Not seen.** The test does not see noise that moves a parameter by less than float32 resolves, nor a fault that needs a
later step, other records or a rare batch. A Poisson batch too large for the usual room has steps of its own, which
these keys hardly reach; its noise is drawn as that of every batch.

Made-up records beyond ``_FILLED_BYTES`` are zeros, and on an accelerator they take as much memory as the records. Runs
without privacy or with a known key carry no guarantee, and are not tested. One-shot mechanisms are not tested either:
they rely on the folder of their programs being safe.
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

from dpmcmc.engine.compilation import Compiled
from dpmcmc.engine.hardware import CHAIN, DATA, on_host, sizes, spread
from dpmcmc.engine.numpy_primitives import ONE, PLAIN, SEVERAL, wrapped
from dpmcmc.engine.program import Cells, Program
from dpmcmc.engine.rows_on_disk import supply_of
from dpmcmc.errors import RunFailed
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.privacy.query.rows import traced_for
from dpmcmc.storage.compiled_programs import RUN_ONCE
from dpmcmc.storage.pytree import PyTree

# ----------------------------------------------------------------------------------------------------
# Evaluates a traced function in NumPy, one equation after another: a reference that no compiler and no cache served.
#
#     jaxpr = jax.make_jaxpr(f)(*arguments)
#     results = evaluate(jaxpr, *leaves)
#
# The primitives of the library's own programs are written out in ``numpy_primitives.py``, and those that hold other
# programs here. A primitive that a user's model may bring beside them (a convolution, a factorisation) is compiled
# alone, with a random constant in its program, so that no cache can know it.

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


#: A step, and the std of its noise.
At = tuple[jax.Array, jax.Array]
_STEPS, _KEYS = 2, 3
_RELATIVE, _ULPS = 2e-3, 64
#: Bytes of made-up records that differ from zero; the rest costs no memory on a CPU.
_FILLED_BYTES = 16 << 20
_PATTERN = 509


class MiscompiledError(RunFailed):
    """An executable does not compute what its program says.

    Example:
        >>> from dpmcmc.engine.self_test import MiscompiledError
        >>> from dpmcmc.errors import RunFailed
        >>> issubclass(MiscompiledError, RunFailed)  # one handler takes both
        True
    """

    def __init__(self) -> None:
        super().__init__(
            "the compiled program failed its self-test: under a known key it takes other steps than the program says, "
            "so its noise may be wrong, and the run was stopped before any step on the records. Empty the folder of "
            "compiled programs (DPMCMC_CACHE, JAX_COMPILATION_CACHE_DIR) and run again; report it if it fails again"
        )


def check_steps(
    program: Program,
    functions: Compiled,
    executable: jax.stages.Compiled,
    block: Cells,
    noise: np.ndarray,
    room: int,
    records: PyTree,
) -> None:
    """Compare a few steps of an executable with the reference.

    Args:
        program: that it was compiled of.
        functions: of the program.
        executable: of ``functions.chunk``.
        block: cells of the run, of which shapes and numbers are used, and no key.
        noise: of every cell and step of a chunk, (cells, steps).
        room: kept draws of a chunk.
        records: of the run, before they are prepared; only shapes are looked at.

    Raises:
        MiscompiledError: they differ.
    """
    made_up = jax.tree.map(lambda leaf: _made_up(leaf, program.supplied), records)
    steps = min(_STEPS, noise.shape[1])
    noise = np.repeat(noise[:1], len(noise), axis=0)
    kept = np.full((len(noise), room), steps - 1, np.int32)
    reference: _Reference | None = None
    given = made_up
    if not program.supplied:
        given = functions.prepared(made_up if program.mesh is None else spread(made_up, program.mesh, DATA))
    supply = supply_of(program, functions, given)
    for key in range(_KEYS):
        cells = _known_cells(block, key, steps)
        placed = cells if program.mesh is None else spread(cells, program.mesh, CHAIN)
        states = functions.start(placed)
        if reference is None:
            reference = _Reference(program, cells, states, made_up, noise[0, :steps])
        begin = jax.tree.map(_first, _fetched(states))
        (supplied,) = [given] if supply is None else supply.chunks(placed, [0], lambda _: (noise,))
        states, output, *_ = executable(states, placed, np.int32(0), noise, kept, supplied)
        found = jax.tree.map(_side_by_side, *on_host((states.position, output[0])))
        if reference.agrees(jax.tree.map(_first, cells), begin, found):
            return
    raise MiscompiledError


def _known_cells(block: Cells, key: int, steps: int) -> Cells:
    """Cells that all equal the first one of a block, except for a known key and, where it has a start, zeros."""
    size = block.steps.shape[0]
    rng = np.random.default_rng(key)

    def known(keys: jax.Array) -> jax.Array:
        words = rng.integers(0, 1 << 32, jax.random.key_data(keys).shape[1:], np.uint32)
        return jax.random.wrap_key_data(jnp.asarray(np.tile(words, (size, 1))), impl=jax.random.key_impl(keys))

    return Cells(
        jax.tree.map(lambda leaf: np.repeat(leaf[:1], size, axis=0), on_host(block.numbers)),
        Streams(*map(known, block.streams)),
        np.zeros(size, np.int32),  # type: ignore[arg-type]
        np.full(size, steps, np.int32),  # type: ignore[arg-type]
        jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), block.start),
    )


def _made_up(leaf: jax.ShapeDtypeStruct | np.ndarray, supplied: bool) -> np.ndarray:
    """An array like ``leaf``: standard normals, of labels numbers in [0, 1), of integers 0 and 1; the same every time.

    Args:
        leaf: array of rows.
        supplied: for records on disk: every row is the same, so that none takes memory.
    """
    rng, shape, size = np.random.default_rng(0), leaf.shape[1:], leaf.size * leaf.dtype.itemsize
    filled = min(leaf.shape[0], max(_FILLED_BYTES * leaf.shape[0] // max(size, 1), 1))
    rows = 1 if supplied else max(min(_PATTERN, filled), 1)
    pattern: np.ndarray
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
        pattern = rng.integers(0, 2, (rows, *shape))
    elif shape:
        pattern = rng.normal(size=(rows, *shape))
    else:
        pattern = rng.uniform(size=rows)
    pattern = pattern.astype(leaf.dtype)
    if supplied:
        return np.broadcast_to(pattern, leaf.shape)
    # Aligned, so that a CPU device shares the memory: pages that nothing is written to cost none.
    raw = np.zeros(size + 64, np.uint8)
    first = -raw.ctypes.data % 64
    out = raw[first : first + size].view(leaf.dtype).reshape(leaf.shape)
    out[:filled] = np.resize(pattern, (filled, *shape))
    return out


def _first(leaf: np.ndarray | jax.Array) -> np.ndarray:
    return host(leaf)[0]


def _of_one(leaf: np.ndarray) -> jax.ShapeDtypeStruct:
    """Shape and dtype of one cell's share."""
    return jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype)


def _fetched(tree: PyTree) -> PyTree:
    """NumPy arrays of device ones, keys among them where all are this process's."""
    if all(leaf.is_fully_addressable for leaf in jax.tree.leaves(tree)):
        return jax.tree.map(host, tree)
    return on_host(tree)


def _side_by_side(ends: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Last positions (cells, ...) and kept ones (draws, cells, ...) in one axis."""
    return np.concatenate([ends, draws.reshape(-1, *ends.shape[1:])])


def _largest(values: np.ndarray) -> float:
    return float(np.max(np.abs(values[np.isfinite(values)]), initial=0.0))


class _Reference:
    """The steps of one cell, in NumPy.

    Args:
        program: whose.
        block, states: cells and states like its own.
        records: made-up ones.
        noise: of each step.
    """

    def __init__(self, program: Program, block: Cells, states: PyTree, records: PyTree, noise: np.ndarray) -> None:
        self._program, self._noise = program, noise
        self._shards = sizes(program.mesh)[1]
        self._records = self._one_row(records) if program.supplied else self._prepared(records)
        cell, state = (jax.tree.map(_of_one, tree) for tree in (block, states))
        t, s = jax.ShapeDtypeStruct((), np.int32), jax.ShapeDtypeStruct((), np.float32)
        self._draw, drawn = self._traced(program.draw, (None,) * 4, cell, state.position, t, s)
        rows = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), self._records)
        axes = (None, None, None, None if program.supplied else 0, 0, None)
        self._take, _ = self._traced(self._taken, axes, cell, state, (t, s), rows, drawn, t)

    def agrees(self, cell: Cells, state: PyTree, found: PyTree) -> bool:
        """Whether positions found for this cell, leaves (..., *shape), are where it comes from this state."""
        after, still = state, None
        for t, noise in enumerate(self._noise):
            at = np.int32(t), np.float32(noise)
            drawn = self._draw(cell, after.position, *at)
            if t == 0:
                still = self._step(cell, after, at, drawn, np.int32(0)).position
            after = self._step(cell, after, at, drawn, np.int32(1))
            if t == 0:
                effect = jax.tree.map(lambda a, b: _largest(a - b), after.position, still)
        relative = _RELATIVE
        if self._program.clip is not None:
            relative += self._program.batch_size / float(self._program.query(cell)._grid(self._noise[0]))

        def close(found: np.ndarray, wanted: np.ndarray, first: np.ndarray, effect: float) -> bool:
            rounding = _ULPS * np.finfo(np.float32).eps * max(_largest(wanted), _largest(first))
            near = np.abs(found - wanted) <= len(self._noise) * (relative * effect + rounding)
            return bool(np.all(near | (~np.isfinite(found) & ~np.isfinite(wanted))))

        with np.errstate(invalid="ignore"):
            return all(jax.tree.leaves(jax.tree.map(close, found, after.position, state.position, effect)))

    def _step(self, cell: Cells, state: PyTree, at: PyTree, drawn: PyTree, noisy: np.int32) -> PyTree:
        after = self._take(cell, state, at, self._records, drawn, noisy)
        return after if self._shards == 1 else jax.tree.map(lambda leaf: leaf[0], after)

    def _taken(self, cell: Cells, state: PyTree, at: At, rows: PyTree, drawn: PyTree, noisy: jax.Array) -> PyTree:
        """The state after a step; ``noisy``: 1, or 0 to take it without its noise."""
        draws, key = drawn
        draws = draws._replace(noise=jax.tree.map(lambda leaf: leaf * noisy.astype(leaf.dtype), draws.noise))
        if self._program.supplied:
            mask = draws.batch[1]
            rows = jax.tree.map(lambda row: jnp.broadcast_to(row, (mask.shape[0], *row.shape[1:])), rows)
            rows, draws = self._program.prepared(rows), draws._replace(batch=(None, mask))
        return self._program.advance(cell, state, *at, rows, (draws, key))[0]

    def _traced(self, function: Callable[..., PyTree], axes: tuple, *types: PyTree) -> tuple[Callable, PyTree]:
        """(a function of every shard in NumPy, the types of its results)."""
        if self._shards > 1:
            # Named, the axis of the shards is one of arrays, and their sums are sums along it.
            function = jax.vmap(function, axes, axis_name=DATA, axis_size=self._shards)
        with traced_for(NUMPY):
            traced, results = jax.make_jaxpr(function, return_shape=True)(*types)
        structure = jax.tree.structure(results)

        def call(*arguments: PyTree) -> PyTree:
            return jax.tree.unflatten(structure, evaluate(traced, *jax.tree.leaves(arguments)))

        return call, results

    def _prepared(self, records: PyTree) -> PyTree:
        """Return what the target computes of each record alone; with an axis of shards first if there are several."""
        shards = self._shards

        def padded(leaf: np.ndarray) -> np.ndarray:
            return np.pad(leaf, [(0, -len(leaf) % shards)] + [(0, 0)] * (leaf.ndim - 1))

        records = records if shards == 1 else jax.tree.map(padded, records)
        made, shapes = jax.make_jaxpr(self._program.prepared, return_shape=True)(records)
        flat = evaluate(made, *jax.tree.leaves(records))
        if shards > 1:
            flat = [leaf.reshape(shards, -1, *leaf.shape[1:]) for leaf in flat]
        return jax.tree.unflatten(jax.tree.structure(shapes), flat)

    def _one_row(self, records: PyTree) -> PyTree:
        """The row that all are, as the device gets it."""
        return jax.tree.map(
            lambda leaf: leaf[:1].astype(np.float32 if jnp.issubdtype(leaf.dtype, jnp.floating) else np.int32), records
        )
