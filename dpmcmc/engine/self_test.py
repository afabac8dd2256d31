"""Self-test of an executable before records are given to it: a few of its steps beside a reference.

An executable may come from a cache, and a compiler may be wrong. Before the first private run that uses one, it takes
``_STEPS`` steps from a known key on made-up records, and must end where a reference ends: the same steps, compiled in
this process without optimisation, in a program that no cache can hold (``storage/compiled_programs.py``). Keys of the
run and its records are not touched. An executable is tested once.

**Another way to the same numbers.** The reference is compiled for a CPU wherever JAX has one. It computes a step's
gradient as an accelerator does, by the other one of the two ways of ``by_platform`` where the run is on a CPU. XLA
makes its kernels without the passes that optimise them. A fault of XLA that needs none of this is not seen.

**Tolerance.** A step's noise moves a parameter by some distance, which the reference finds by taking the step without
it. Executable and reference may differ by ``_RELATIVE`` of that distance, by what one unit of the sum's grid for each
record of a batch comes to, and by ``_ULPS`` units of rounding of the parameter. Float32 functions differ by 1e-6; noise
left out, or a tenth smaller, differs by 1 or by 0.1. A draw on the verge of rounding otherwise may choose another
record, in fewer than 1 of 10⁴ tests, so an executable fails only where it differs under each of ``_KEYS`` keys.

**Not seen.** The test does not see noise that moves a parameter by less than float32 resolves, nor a fault that needs a
later step, other records or a rare batch.

Made-up records beyond ``_FILLED_BYTES`` are zeros, and on an accelerator they take as much memory as the records. Runs
without privacy or with a known key carry no guarantee, and are not tested. One-shot mechanisms are not tested either:
they rely on the folder of their programs being safe.

Claim: An executable without its noise, or with a tenth less, takes no step on the records.
Proof: its steps under a known key are compared with those of the program, compiled anew.
Held by: test_a_wrong_executable_is_found_before_any_step_on_the_records,
test_noise_that_was_compiled_otherwise_is_found_wherever_it_is_drawn,
test_the_reference_is_compiled_anew_and_kept_nowhere, "compiled program without noise",
"compiled program with a tenth less noise", "cache that others can write to"

Assumed: The operating system gives bits that are uniform, independent and secret.
Held by: test_seeds_reproduce_and_entropy_does_not, test_a_secret_key_cannot_be_shown_copied_or_pickled,
"keys from a fixed seed"

Assumed: No efficient observer tells the words of ChaCha20 from uniform ones. Threefry, JAX's own, draws where privacy
does not count.
Held by: test_blocks_are_those_of_the_rfc, test_fewer_rounds_are_not_those_of_the_rfc,
test_words_on_the_host_are_the_generators

Assumed: JAX and XLA keep whole numbers: sums and products of 32 bits that wrap, shifts, exclusive ors and
comparisons.
Held by: test_an_accelerator_has_the_same_blocks, test_both_ways_of_adding_give_the_integers_of_numpy,
test_partial_sums_add_exactly_with_carry, test_a_wrong_executable_is_found_before_any_step_on_the_records

Assumed: Additions, products and roots of IEEE 754 are rounded one by one, and XLA does not join what is written
apart.
Held by: test_the_compiled_norm_keeps_its_blocks, test_the_norm_of_every_clipped_row_is_within_kappa,
test_noise_that_was_compiled_otherwise_is_found_wherever_it_is_drawn

Assumed: Whole numbers of NumPy are exact, and its float64 products and those of BLAS err by the usual bound at most.
Held by: test_sums_do_not_depend_on_order_and_losses_are_clipped, test_rounding_far_out_is_charged,
test_no_row_moves_the_gram_matrix_or_its_trace_beyond_the_charge

Assumed: Tails of the normal law and beta functions of SciPy are right to some 14 digits.
Held by: test_gaussian_curve_and_its_inverses_agree, test_overflow_charge_covers_the_exact_binomial_tail,
test_one_replace_one_step_matches_quadrature_of_its_pair
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.engine.compilation import Compiled
from dpmcmc.engine.mesh import DATA, on_host, sizes, spread
from dpmcmc.engine.program import Chain, DrawnRandomness, Program, placed
from dpmcmc.engine.rows_on_disk import Supply
from dpmcmc.errors import RunFailed
from dpmcmc.privacy.query.platforms import traced_for
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.compiled_programs import compiled_afresh
from dpmcmc.storage.pytree import PyTree

_STEPS = 2
_KEYS = 3
_RELATIVE = 2e-3
_ULPS = 64
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
    chains: Chain,
    noise: np.ndarray,
    room: int,
    records: PyTree,
) -> None:
    """Compare a few steps of an executable with the reference.

    Args:
        program: that it was compiled of.
        functions: of the program.
        executable: of ``functions.chunk``.
        chains: of a lane of the run, of which shapes and numbers are used, and no key.
        noise: of every step of a chunk, (steps,).
        room: kept draws of a chunk.
        records: of the run, before they are prepared; only shapes are looked at.

    Raises:
        MiscompiledError: they differ.
    """
    made_up = jax.tree.map(lambda leaf: _made_up(leaf, program.supplied), records)
    mesh = program.mesh
    steps = min(_STEPS, len(noise))
    kept = np.full(room, steps - 1, np.int32)
    reference: _Reference | None = None
    given = None
    if not program.supplied:
        given = prepared = functions.prepared(made_up if mesh is None else spread(made_up, mesh, DATA))
    for key in range(_KEYS):
        known = _known_chains(chains, key, steps)
        chain = known._replace(chain=known.chain[0], start=jax.tree.map(_first, known.start))
        known = placed(known, mesh)
        states = functions.start(known)
        begin = jax.tree.map(_first, _fetched(states))
        if reference is None:
            reference = _Reference(program, chain, begin, made_up, noise[:steps])
        if program.supplied:
            given = Supply(made_up, functions.draw, mesh).read(known, 0, noise)
        if functions.drawing is not None:
            given = prepared, functions.drawing(known, np.int32(0), noise)
        states, output, *_ = executable(states, known, np.int32(0), noise, kept, given)
        found = jax.tree.map(_side_by_side, *on_host((states.position, output[0])))
        if reference.agrees(chain, begin, found):
            return
    raise MiscompiledError


def _known_chains(chains: Chain, key: int, steps: int) -> Chain:
    """Chains that all are chain 0 of a known key, and start, where they have a start, at zeros."""
    rng = np.random.default_rng(key)

    def known(keys: jax.Array) -> jax.Array:
        words = rng.integers(0, 1 << 32, jax.random.key_data(keys).shape, np.uint32)
        return jax.random.wrap_key_data(jnp.asarray(words), impl=jax.random.key_impl(keys))

    return Chain(
        on_host(chains.numbers),
        Streams(*map(known, chains.streams)),
        np.int32(steps),
        np.zeros(chains.chain.shape, np.int32),
        jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), chains.start),
    )


def _made_up(leaf: jax.ShapeDtypeStruct | np.ndarray, supplied: bool) -> np.ndarray:
    """An array like ``leaf``: standard normals, of labels numbers in [0, 1), of integers 0 and 1; the same every time.

    Args:
        leaf: array of rows.
        supplied: for records on disk: every row is the same, so that none takes memory.
    """
    rng = np.random.default_rng(0)
    shape = leaf.shape[1:]
    size = leaf.size * leaf.dtype.itemsize
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


def _first(leaf: np.ndarray | jax.Array) -> np.ndarray | jax.Array:
    return leaf[0]


def _fetched(tree: PyTree) -> PyTree:
    """Arrays of device ones that may go to any device: NumPy's, and JAX's where they are keys."""

    def fetched(leaf: jax.Array) -> np.ndarray | jax.Array:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            words = on_host(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(jnp.asarray(words), impl=jax.random.key_impl(leaf))
        return on_host(leaf)

    return jax.tree.map(fetched, tree)


def _side_by_side(ends: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Last positions (chains, ...) and kept ones (draws, chains, ...) in one axis."""
    return np.concatenate([ends, draws.reshape(-1, *ends.shape[1:])])


def _largest(values: np.ndarray) -> float:
    return float(np.max(np.abs(values[np.isfinite(values)]), initial=0.0))


def _types(tree: PyTree) -> PyTree:
    """Shapes and dtypes of arrays."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def _device() -> jax.Device:
    """Device of the reference."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX was told to find no CPU
        return jax.local_devices()[0]


class _Reference:
    """The steps of one chain, by programs that are compiled for them alone.

    Args:
        program: whose.
        chain, state: like its own.
        records: made-up ones.
        noise: of each step.
    """

    def __init__(
        self,
        program: Program,
        chain: Chain,
        state: PyTree,
        records: PyTree,
        noise: np.ndarray,
    ) -> None:
        self._program = program
        self._noise = noise
        self._device = _device()
        self._shards = sizes(program.mesh)[1]
        self._records = self._one_row(records) if program.supplied else self._prepared(records)
        t = np.int32(0)
        # ChaCha20 as an accelerator has it takes seconds to compile for a CPU.
        with traced_for(self._device.platform):
            self._draw = self._compiled(program.draw, (None,) * 4, chain, state.position, t, noise[0])
        drawn = self._draw(chain, state.position, t, noise[0])
        axes = (None, None, None, None, None if program.supplied else 0, 0, None)
        with traced_for("accelerator"):
            self._take = self._compiled(self._taken, axes, chain, state, t, noise[0], self._records, drawn, t)

    def agrees(self, chain: Chain, state: PyTree, found: PyTree) -> bool:
        """Whether positions found for this chain, leaves (..., *shape), are where it comes from this state.

        Two programs may round the noise's std differently in its last digit. Where that lies at the edge of an integer,
        the noise has other factors, of which all are as large as is charged: so neighbouring stds are tried too.
        """
        far = np.float32(np.inf)
        near = (self._noise, *(np.nextafter(self._noise, end) for end in (far, -far)))
        return any(self._agrees(chain, state, found, noise) for noise in near)

    def _agrees(self, chain: Chain, state: PyTree, found: PyTree, noise: np.ndarray) -> bool:
        (still,) = self._positions(chain, state, noise[:1], noisy=False)
        noisy = self._positions(chain, state, noise, noisy=True)
        moved, end = noisy[0], noisy[-1]
        start = jax.tree.map(np.asarray, state.position)
        relative = _RELATIVE
        if self._program.clip is not None:
            relative += self._program.batch_size / float(self._program.query(chain)._grid(noise[0]))

        def close(
            found: np.ndarray,
            end: np.ndarray,
            start: np.ndarray,
            moved: np.ndarray,
            still: np.ndarray,
        ) -> bool:
            effect = _largest(moved - still)
            rounding = _ULPS * np.finfo(np.float32).eps * max(_largest(end), _largest(start))
            near = np.abs(found - end) <= len(noise) * (relative * effect + rounding)
            return bool(np.all(near | (~np.isfinite(found) & ~np.isfinite(end))))

        with np.errstate(invalid="ignore"):
            return all(jax.tree.leaves(jax.tree.map(close, found, end, start, moved, still)))

    def _positions(self, chain: Chain, state: PyTree, noise: np.ndarray, noisy: bool) -> list[PyTree]:
        """Positions after each step."""
        found = []
        for t, std in enumerate(noise):
            drawn = self._draw(chain, state.position, np.int32(t), std)
            state = self._take(chain, state, np.int32(t), std, self._records, drawn, np.int32(noisy))
            if self._shards > 1:
                state = jax.tree.map(_first, state)
            found.append(jax.tree.map(np.asarray, state.position))
        return found

    def _taken(
        self,
        chain: Chain,
        state: PyTree,
        t: jax.Array,
        noise_std: jax.Array,
        rows: PyTree,
        drawn: DrawnRandomness,
        noisy: jax.Array,
    ) -> PyTree:
        """The state after a step; ``noisy``: 1, or 0 to take it without its noise."""
        randomness, key = drawn
        noise = jax.tree.map(lambda leaf: leaf * noisy.astype(leaf.dtype), randomness.noise)
        randomness = randomness._replace(noise=noise)
        if self._program.supplied:
            mask = randomness.batch[1]
            # A batch of records on disk has room for more than it may hold, so it has a mask.
            assert mask is not None
            rows = jax.tree.map(lambda row: jnp.broadcast_to(row, (mask.shape[0], *row.shape[1:])), rows)
            rows = self._program.prepared(rows)
            randomness = randomness._replace(batch=(None, mask))
        return self._program.advance(chain, state, t, noise_std, rows, (randomness, key))[0]

    def _compiled(self, function: Callable[..., PyTree], axes: tuple, *arguments: PyTree) -> Callable[..., PyTree]:
        """A function of every shard; ``arguments`` are like its own."""
        if self._shards > 1:
            # Named, the axis of the shards is one of arrays, and their sums are sums along it.
            function = jax.vmap(function, axes, axis_name=DATA, axis_size=self._shards)
        call = compiled_afresh(function, _types(arguments), self._device)
        return lambda *arguments: call(*jax.device_put(arguments, self._device))

    def _prepared(self, records: PyTree) -> PyTree:
        """Return what the target computes of each record alone; with an axis of shards first if there are several."""
        shards = self._shards

        def padded(leaf: np.ndarray) -> np.ndarray:
            return np.pad(leaf, [(0, -len(leaf) % shards)] + [(0, 0)] * (leaf.ndim - 1))

        if shards > 1:
            records = jax.tree.map(padded, records)
        if self._program.target.without().prepared is not None:
            prepare = compiled_afresh(self._program.prepared, (_types(records),), self._device)
            records = prepare(jax.device_put(records, self._device))
        if shards > 1:
            return jax.tree.map(lambda leaf: leaf.reshape(shards, -1, *leaf.shape[1:]), records)
        return records

    def _one_row(self, records: PyTree) -> PyTree:
        """The row that all are, as the device gets it."""
        return jax.tree.map(
            lambda leaf: leaf[:1].astype(np.float32 if jnp.issubdtype(leaf.dtype, jnp.floating) else np.int32),
            records,
        )
