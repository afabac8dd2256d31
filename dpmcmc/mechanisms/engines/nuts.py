r"""NUTS (Hoffman and Gelman 2014, NumPyro's) on a tempered posterior of any target.

Chains run in the coordinates θ = θ̂ + Hw, H = (Hessian of the potential at its minimum θ̂)^{-1/2}, start in Laplace's
approximation w ~ N(0, I), and draws are the last states of independent chains. On a ball the same is done in the
coordinates u of ``ball.py``. Temper, prior, radius and whitening are arguments of the compiled program, so that
posteriors which differ in them share it, and run as one batch of chains.

The potential is summed as Σ (ℓ_i(θ) − ℓ_i(θ̂)): what float32 rounds is then the difference, of order d, and not the sum
over N records.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpmcmc.errors import InputError
from dpmcmc.mechanisms.engines.ball import onto_ball
from dpmcmc.mechanisms.engines.errors import DrawError
from dpmcmc.privacy.query.randomness import Streams, normal
from dpmcmc.targets.base import Target, bind, immutable, record_shapes
from dpmcmc.targets.tempered import Tempered

EXACT = False
ASSUMES = "draws of engine nuts are exact draws from the posterior, which no finite run certifies."
#: Transitions before a draw, of which the first share adapts the step size.
STEPS = 60
_WARMUP_SHARE = 0.5
#: Step size tried first, times d^(-1/4); mean acceptance that adaptation seeks (Robbins and Monro 1951, gain i^-0.6,
#: each chain for itself: a shared step size would make draws dependent); most doublings of a trajectory.
_FIRST_STEP = 1.7
_ACCEPT = 0.8
_TREE_DEPTH = 8
#: Beyond this many parameters there is no dense whitening, and chains run in the coordinates of the parameters.
_MOST_PARAMETERS = 2000
_NEWTON_STEPS = 40
#: Numbers in one intermediate array: of all columns of a Hessian, and of all chains of one call. Chains of a batch wait
#: for each other's trajectories, which a CPU gets nothing for once its vector units are full.
_HESSIAN_NUMBERS = 1 << 23
_CHAIN_NUMBERS = {"cpu": 1 << 19}
_CHAIN_NUMBERS_ELSEWHERE = 1 << 27


def check(target: Target) -> None:
    """Any target will do."""


def draw(
    target: Tempered, records: Any, *, radius: float | None, draws: int, steps: int | None, streams: Streams
) -> Any:
    """Pytree, leaves (draws, ...) float32: the last states of ``draws`` independent chains.

    Args:
        target: bound.
        records: pytree, leaves (N, ...).
        radius: of the ball, or None.
        draws: how many.
        steps: transitions of each chain; None for ``STEPS``.
        streams: of which ``init`` and ``dynamics`` are used.

    Raises:
        DrawError: a draw that is not finite.
    """
    return _run([target], records, radius, draws, steps, streams.init, streams.dynamics)[0]


def draws_for_many(
    target: Any,
    records: Any,
    tempers: Sequence[float],
    prior_precisions: Sequence[float | None],
    draws: int,
    key: jax.Array,
    *,
    prior_tempers: Sequence[float] | None = None,
    radius: float | None = None,
    steps: int | None = None,
) -> list[Any]:
    """Independent draws from many tempered posteriors of one target: one compiled program, one batch of chains.

    Reads every record WITHOUT privacy: for experiments, whose posteriors are charged elsewhere.

    Args:
        target: the model.
        records: pytree, leaves (N, ...).
        tempers: ρ of each posterior.
        prior_precisions: of each; None for the target's own prior. All of them numbers, or all None.
        draws: from each.
        key: not secret.
        prior_tempers: of each; 1 by default.
        radius: of the ball they are all cut to, or None.
        steps: transitions of each chain; None for ``STEPS``. On logistic posteriors in 109 dimensions, 10 and 200
            agreed to the error of 64 draws.

    Returns:
        One pytree per posterior, leaves (draws, ...) float32.

    Raises:
        ValueError: lists of different lengths, or precisions some of which are None.
        DrawError: a draw that is not finite.
    """
    powers = [1.0] * len(tempers) if prior_tempers is None else list(prior_tempers)
    if not len(tempers) == len(prior_precisions) == len(powers) or not len(tempers):
        raise InputError("tempers: as many are needed as prior_precisions and prior_tempers, and at least one")
    if len({precision is None for precision in prior_precisions}) > 1:
        raise InputError("prior_precisions: give numbers for all posteriors, or None for all")
    bound = bind(target, record_shapes(records))
    tempered = [
        Tempered(bound, temper, power, precision)
        for temper, power, precision in zip(tempers, powers, prior_precisions, strict=True)
    ]
    start, dynamics = jax.random.split(key)
    return _run(tempered, records, radius, draws, steps, start, dynamics)


def nuts_posterior(
    target: Any, records: Any, draws: int, key: jax.Array, *, chains: int = 4, warmup: int = 200, thin: int = 1
) -> Any:
    """The posterior itself, by long chains, as a reference. Reads every record WITHOUT privacy.

    Args:
        target: the model.
        records: pytree, leaves (N, ...).
        draws: kept from each chain.
        key: not secret.
        chains: independent.
        warmup: transitions before the first draw.
        thin: transitions from one draw to the next.

    Returns:
        Pytree, leaves (chains, draws, ...) float32.

    Raises:
        DrawError: a draw that is not finite.
    """
    tempered = Tempered(bind(target, record_shapes(records)), 1.0)
    start, dynamics = jax.random.split(key)
    plan = _Lengths(warmup, thin, draws)
    return _run([tempered], records, None, chains, plan, start, dynamics)[0]


class _Lengths(NamedTuple):
    """Transitions of warm-up, transitions per kept state, kept states."""

    warmup: int
    thin: int
    kept: int


class _Cell(NamedTuple):
    """One posterior: what its program takes as arguments.

    Attributes:
        temper: ρ, ().
        prior_weight: of −log prior, or of ‖θ‖²/2 where the prior is a new one, ().
        radius: of the ball, (); not read where there is none.
        offset: log-likelihood of each record at a point near the mode, (N,).
        centre: of the coordinates w, (d,).
        factor: H, (d, d); (d,) where it is diagonal.
    """

    temper: jax.Array
    prior_weight: jax.Array
    radius: jax.Array
    offset: jax.Array
    centre: jax.Array
    factor: jax.Array


def _run(
    targets: list[Tempered],
    records: Any,
    radius: float | None,
    draws: int,
    steps: int | _Lengths | None,
    start_key: jax.Array,
    dynamics_key: jax.Array,
) -> list[Any]:
    """``draws`` chains for each of some targets that differ in their numbers alone."""
    records = jax.tree.map(_on_device, records)
    count = len(jax.tree.leaves(records)[0])
    first = targets[0]
    flat, unravel = ravel_pytree(first.target.init(start_key))
    program = _programs(first.target, first.new_prior_precision is not None, radius is not None)
    cells = _whitened(program, targets, records, radius, np.asarray(flat))
    whitened = cells[0].factor.ndim == 2
    lengths = steps if isinstance(steps, _Lengths) else _lengths(steps)
    # Equal groups, so that all share one compiled program.
    most = max(1, _CHAIN_NUMBERS.get(jax.default_backend(), _CHAIN_NUMBERS_ELSEWHERE) // (count * draws))
    width = math.ceil(len(cells) / math.ceil(len(cells) / most))
    out: list[Any] = []
    for first_cell in range(0, len(cells), width):
        group = cells[first_cell : first_cell + width]
        group = [*group, *[group[-1]] * (width - len(group))]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *group)
        keys, starts = (
            jnp.stack([jax.random.split(jax.random.fold_in(key, first_cell + i), draws) for i in range(width)])
            for key in (dynamics_key, start_key)
        )
        states = program.chains(lengths, whitened)(stacked, records, keys, starts)
        out.extend(np.asarray(states)[: len(cells) - first_cell])
    for states in out:
        if not np.all(np.isfinite(states)):
            raise DrawError("engine: NUTS left the range of floats. Nothing was released")
    shape: Callable[[Any], Any] = jax.vmap(jax.vmap(unravel))
    trees = [jax.tree.map(np.asarray, shape(jnp.asarray(states))) for states in out]
    if isinstance(steps, _Lengths):
        return trees
    return [jax.tree.map(lambda leaf: leaf[:, 0], tree) for tree in trees]


def _lengths(steps: int | None) -> _Lengths:
    steps = STEPS if steps is None else steps
    warmup = int(_WARMUP_SHARE * steps)
    return _Lengths(warmup, steps - warmup, 1)


def _on_device(leaf: Any) -> jax.Array:
    """Float32 no larger in size than what it rounds, so that a row keeps its bound."""
    array = np.asarray(leaf)
    if not np.issubdtype(array.dtype, np.floating):
        return jnp.asarray(array)
    rounded = array.astype(np.float32)
    return jnp.asarray(np.where(np.abs(rounded) > np.abs(array), np.nextafter(rounded, np.float32(0)), rounded))


def _programs(target: Any, new_prior: bool, ball: bool) -> _Programs:
    if immutable(target):
        return _cached_programs(target, new_prior, ball)
    return _Programs(target, new_prior, ball)


@functools.lru_cache(maxsize=16)
def _cached_programs(target: Any, new_prior: bool, ball: bool) -> _Programs:
    return _Programs(target, new_prior, ball)


class _Programs:
    """The compiled functions of one untempered, bound target. Records are arguments: a closure would be cached."""

    def __init__(self, target: Any, new_prior: bool, ball: bool) -> None:
        self.target, self.new_prior, self.ball = target, new_prior, ball
        shapes = jax.eval_shape(target.init, jax.random.key(0))
        blank = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        flat, self.unravel = ravel_pytree(blank)
        self.size = flat.size
        self.value = jax.jit(self.potential)
        self.gradient = jax.jit(jax.grad(self.potential))
        self.hessian = jax.jit(self._hessian)
        self.each = jax.jit(self._each)
        self._chains: dict[tuple[_Lengths, bool], Callable] = {}

    def theta(self, u: jax.Array, cell: _Cell) -> jax.Array:
        """Flat parameters at coordinates u, (d,)."""
        return onto_ball(u, cell.radius) if self.ball else u

    def potential(self, u: jax.Array, cell: _Cell, records: Any) -> jax.Array:
        """−log density in the coordinates u, up to a constant, ()."""
        theta = self.theta(u, cell)
        params = self.unravel(theta)
        each = jax.vmap(lambda record: self.target.log_likelihood(params, record))(records)
        prior = jnp.sum(jnp.square(theta)) / 2 if self.new_prior else -self.target.log_prior(params)
        value = -cell.temper * jnp.sum(each - cell.offset) + cell.prior_weight * prior
        return value + jnp.sum(jnp.square(u)) / 2 if self.ball else value

    def _each(self, u: jax.Array, cell: _Cell, records: Any) -> jax.Array:
        params = self.unravel(self.theta(u, cell))
        return jax.vmap(lambda record: self.target.log_likelihood(params, record))(records)

    def _hessian(self, u: jax.Array, cell: _Cell, records: Any) -> jax.Array:
        gradient = jax.grad(lambda u: self.potential(u, cell, records))

        def column(direction: jax.Array) -> jax.Array:
            return jax.jvp(gradient, (u,), (direction,))[1]

        count = len(jax.tree.leaves(records)[0])
        together = max(1, min(self.size, _HESSIAN_NUMBERS // count))
        return jax.lax.map(column, jnp.eye(self.size), batch_size=together)

    def chains(self, lengths: _Lengths, whitened: bool) -> Callable:
        """(cells, records, keys (cells, draws), starts (cells, draws)) -> θ (cells, draws, kept, d)."""
        if (lengths, whitened) not in self._chains:
            every = jax.vmap(jax.vmap(self._chain(lengths, whitened), (None, None, 0, 0)), (0, None, 0, 0))
            self._chains[lengths, whitened] = jax.jit(every)
        return self._chains[lengths, whitened]

    def _chain(self, lengths: _Lengths, whitened: bool) -> Callable:
        from numpyro.infer.hmc import hmc  # half a second to import

        def place(w: jax.Array, cell: _Cell) -> jax.Array:
            return cell.centre + (cell.factor @ w if whitened else cell.factor * w)

        def potential_of(cell: _Cell, records: Any) -> Callable[[jax.Array], jax.Array]:
            return lambda w: self.potential(place(w, cell), cell, records)

        def chain(cell: _Cell, records: Any, key: jax.Array, start: jax.Array) -> jax.Array:
            init_kernel, sample_kernel = hmc(potential_fn_gen=potential_of, algo="NUTS")
            state = init_kernel(
                normal(start, (self.size,)),
                num_warmup=0,
                step_size=_FIRST_STEP * self.size**-0.25,
                adapt_step_size=False,
                adapt_mass_matrix=False,
                max_tree_depth=_TREE_DEPTH,
                model_args=(cell, records),
                rng_key=key,
            )

            def step(i: jax.Array, carry: tuple) -> tuple:
                # One loop for warm-up and draws: the kernel is long to compile, and is compiled once.
                state, average, kept = carry
                state = sample_kernel(state, (cell, records))
                adapt = state.adapt_state
                log_step = jnp.log(adapt.step_size) + (state.accept_prob - _ACCEPT) * (i + 1.0) ** -0.6
                average = average + jnp.where(i >= lengths.warmup // 2, log_step, 0.0) / second_half
                # The last step of warm-up takes the average of its second half, for good.
                following = jnp.where(i < lengths.warmup - 1, log_step, average)
                following = jnp.where(i < lengths.warmup, jnp.exp(following), adapt.step_size)
                average = jnp.where(i < lengths.warmup, average, 0.0)
                # Each place is overwritten until its last transition.
                kept = kept.at[jnp.maximum(i - lengths.warmup, 0) // lengths.thin].set(state.z)
                return state._replace(adapt_state=adapt._replace(step_size=following)), average, kept

            second_half = max(1, lengths.warmup - lengths.warmup // 2)
            kept = jnp.zeros((lengths.kept, self.size))
            steps = lengths.warmup + lengths.thin * lengths.kept
            kept = jax.lax.fori_loop(0, steps, step, (state, jnp.float32(0), kept))[2]
            return jax.vmap(lambda w: self.theta(place(w, cell), cell))(kept)

        return chain


def _whitened(
    program: _Programs, targets: list[Tempered], records: Any, radius: float | None, start: np.ndarray
) -> list[_Cell]:
    """Laplace's approximation of each, by Newton's method, each started at the mode of the next colder one."""
    count = len(jax.tree.leaves(records)[0])
    size = program.size
    cells: list[_Cell | None] = [None] * len(targets)
    point = np.zeros(size, np.float32) if program.ball else start
    for i in sorted(range(len(targets)), key=lambda i: targets[i].temper):
        target = targets[i]
        weight = target.prior_temper * (1.0 if target.new_prior_precision is None else target.new_prior_precision)
        temper, weight, limit = (jnp.float32(v) for v in (target.temper, weight, 0.0 if radius is None else radius))
        cell = _Cell(temper, weight, limit, jnp.zeros(count), jnp.asarray(point), jnp.ones(size))
        if size <= _MOST_PARAMETERS:
            point, factor = _newton(program, cell, records, point)
            cell = cell._replace(centre=jnp.asarray(point), factor=jnp.asarray(factor))
        cells[i] = cell._replace(offset=program.each(jnp.asarray(point), cell, records))
    return [cell for cell in cells if cell is not None]


def _newton(program: _Programs, cell: _Cell, records: Any, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(minimum of the potential to a tenth of a standard deviation, inverse root of the Hessian there).

    Where the Hessian is not positive definite its eigenvalues are taken by size (saddle-free Newton): it is only
    coordinates that rest on it.
    """
    for _ in range(_NEWTON_STEPS):
        u = jnp.asarray(point)
        cell = cell._replace(offset=program.each(u, cell, records))
        hessian = np.asarray(program.hessian(u, cell, records), np.float64)
        gradient = np.asarray(program.gradient(u, cell, records), np.float64)
        if not (np.all(np.isfinite(hessian)) and np.all(np.isfinite(gradient))):
            return point, np.eye(len(point), dtype=np.float32)
        values, vectors = np.linalg.eigh((hessian + hessian.T) / 2)
        values = np.maximum(np.abs(values), max(1e-6 * np.abs(values).max(), 1e-12))
        factor = ((vectors / np.sqrt(values)) @ vectors.T).astype(np.float32)
        along = vectors.T @ gradient
        step = -(vectors @ (along / values)).astype(np.float32)
        decrement = float(np.sum(along**2 / values))
        if decrement < 1e-2:
            break
        here = float(program.value(u, cell, records))
        for shrink in 0.5 ** np.arange(12):
            moved = point + np.float32(shrink) * step
            # A step of less than float32 resolves in the potential is as good as none.
            if float(program.value(jnp.asarray(moved), cell, records)) <= here - 0.1 * shrink * decrement:
                point = moved
                break
        else:
            break
    return point, factor
