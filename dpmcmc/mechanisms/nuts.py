r"""NUTS (Hoffman and Gelman 2014, NumPyro's) on a tempered posterior of any target.

A draw is the last state of a chain of its own, 60 transitions after its start. Chains run in coordinates in which the
posterior is nearly N(0, I), so that a short warm-up of the step size is enough:

    θ = θ̂ + Hw,    H = (Hessian of the potential at its minimum θ̂)^{-1/2},    start: w ~ N(0, I)

On a ball the same is done in the coordinates u of ``ball.py``. Temper, prior, radius, θ̂ and H are arguments of one
compiled program, so posteriors that differ in them share it, and run as one batch of chains.

The potential is summed as Σ (ℓ_i(θ) − ℓ_i(θ̂)). Float32 then rounds the difference, of order d, and not a sum over N
records.

Draws depend on secret keys alone. Nothing else leaves: no diagnostic is returned, printed or warned of.

In this file: ``posterior_draws``, one posterior's draws; ``run_chains``, chains of several posteriors;
``_coordinates`` and ``_newton``, θ̂ and H of each; ``_Programs``, the functions that are compiled.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpmcmc.errors import DrawError
from dpmcmc.inference.decompositions import eigh
from dpmcmc.mechanisms.ball import onto_ball
from dpmcmc.privacy.query.randomness import Streams, normal
from dpmcmc.storage.pytree import PyTree, length_of
from dpmcmc.targets.base import Target, record_shapes, shared_by_equal_targets
from dpmcmc.targets.tempered import Tempered

#: The sentence that a guarantee of these draws carries.
ASSUMES = "draws of NUTS are exact draws from the posterior, which no finite run certifies."
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

#: (cells, records, keys (cells, draws), starts (cells, draws)) -> θ (cells, draws, kept, d).
_Chains: TypeAlias = Callable[..., jax.Array]


class Lengths(NamedTuple):
    """Lengths of a chain: transitions of warm-up, transitions for each kept state, kept states."""

    warmup: int
    thin: int
    kept: int


def posterior_draws(
    target: Tempered,
    records: PyTree,
    streams: Streams,
    *,
    draws: int,
    radius: float | None = None,
    steps: int | None = None,
) -> PyTree:
    """Return the last states of independent chains, leaves (draws, ...) float32; all are finite, nothing is printed.

    Args:
        target: the posterior; its shapes are taken from the records.
        records: pytree, leaves (N, ...).
        streams: secret keys; ``init`` and ``dynamics`` are used.
        draws: how many chains.
        radius: of the ball that draws lie in, or None.
        steps: transitions of each chain; None for ``STEPS``.

    Raises:
        DrawError: a draw that is not finite.
    """
    bound = target.bind(record_shapes(records))
    keys = streams.init, streams.dynamics
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        # A library's warning would depend on the records.
        warnings.simplefilter("ignore")
        (states,) = run_chains([bound], records, lengths_of(steps), radius=radius, draws=draws, keys=keys)
    return jax.tree.map(lambda leaf: leaf[:, 0], states)


def lengths_of(steps: int | None) -> Lengths:
    """Return the lengths of a chain whose last state alone is kept."""
    steps = STEPS if steps is None else steps
    warmup = int(_WARMUP_SHARE * steps)
    return Lengths(warmup, steps - warmup, 1)


def run_chains(
    posteriors: Sequence[Tempered],
    records: PyTree,
    lengths: Lengths,
    *,
    radius: float | None,
    draws: int,
    keys: tuple[jax.Array, jax.Array],
) -> list[PyTree]:
    """Return kept states of independent chains on each of some posteriors, leaves (draws, kept, ...) float32.

    Args:
        posteriors: of one bound target; they differ in numbers alone.
        records: pytree, leaves (N, ...).
        lengths: of each chain.
        radius: of the ball that all are cut to, or None.
        draws: chains for each posterior.
        keys: of the starts, and of the dynamics.

    Raises:
        DrawError: a state that is not finite.
    """
    records = jax.tree.map(_on_device, records)
    first = posteriors[0]
    flat, unravel = ravel_pytree(first.target.init(keys[0]))
    program = _programs(first.target, first.new_prior_precision is not None, radius is not None)
    cells = _coordinates(program, posteriors, records, radius, np.asarray(flat))
    chains = program.chains(lengths, whitened=cells[0].factor.ndim == 2)
    # Equal groups, so that all share one compiled program.
    numbers = _CHAIN_NUMBERS.get(jax.default_backend(), _CHAIN_NUMBERS_ELSEWHERE)
    most = max(1, numbers // (length_of(records) * draws))
    width = math.ceil(len(cells) / math.ceil(len(cells) / most))
    out: list[np.ndarray] = []
    for begin in range(0, len(cells), width):
        group = cells[begin : begin + width]
        group = [*group, *[group[-1]] * (width - len(group))]
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *group)
        starts, dynamics = (
            jnp.stack([jax.random.split(jax.random.fold_in(key, begin + i), draws) for i in range(width)])
            for key in keys
        )
        out.extend(np.asarray(chains(stacked, records, dynamics, starts))[: len(cells) - begin])
    if not all(np.all(np.isfinite(states)) for states in out):
        raise DrawError("NUTS left the range of floats. Nothing was released")
    shape: Callable[[jax.Array], PyTree] = jax.vmap(jax.vmap(unravel))
    return [jax.tree.map(np.asarray, shape(jnp.asarray(states))) for states in out]


class _Cell(NamedTuple):
    """One posterior: the arguments of its program.

    Attributes:
        temper: ρ, ().
        prior_weight: factor of −log prior, or of ‖θ‖²/2 where the prior is a new one, ().
        radius: R of the ball, (); not read where there is none.
        offset: log-likelihood of each record at a point near the mode, (N,).
        centre: θ̂ in the coordinates u, (d,).
        factor: H, (d, d); (d,) where it is diagonal.
    """

    temper: jax.Array
    prior_weight: jax.Array
    radius: jax.Array
    offset: jax.Array
    centre: jax.Array
    factor: jax.Array


def _on_device(leaf: np.ndarray) -> jax.Array:
    """Return float32 no larger in size than what it rounds, so that a row keeps its bound."""
    array = np.asarray(leaf)
    if not np.issubdtype(array.dtype, np.floating):
        return jnp.asarray(array)
    rounded = array.astype(np.float32)
    return jnp.asarray(np.where(np.abs(rounded) > np.abs(array), np.nextafter(rounded, np.float32(0)), rounded))


@shared_by_equal_targets(maxsize=16)
def _programs(target: Target, new_prior: bool, ball: bool) -> _Programs:
    return _Programs(target, new_prior, ball)


class _Programs:
    """The compiled functions of one untempered, bound target. Records are arguments: a closure would be cached."""

    def __init__(self, target: Target, new_prior: bool, ball: bool) -> None:
        self.target = target
        self.new_prior = new_prior
        self.ball = ball
        shapes = jax.eval_shape(target.init, jax.random.key(0))
        blank = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        flat, self.unravel = ravel_pytree(blank)
        self.size = flat.size
        self.value = jax.jit(self.potential)
        self.gradient = jax.jit(jax.grad(self.potential))
        self.hessian = jax.jit(self._hessian)
        self.each = jax.jit(self._each)
        self._chains: dict[tuple[Lengths, bool], _Chains] = {}

    def theta(self, u: jax.Array, cell: _Cell) -> jax.Array:
        """Return the flat parameters at coordinates u, (d,)."""
        return onto_ball(u, cell.radius) if self.ball else u

    def potential(self, u: jax.Array, cell: _Cell, records: PyTree) -> jax.Array:
        """Return −log density in the coordinates u, up to a constant, ()."""
        theta = self.theta(u, cell)
        params = self.unravel(theta)
        each = jax.vmap(lambda record: self.target.log_likelihood(params, record))(records)
        prior = jnp.sum(jnp.square(theta)) / 2 if self.new_prior else -self.target.log_prior(params)
        value = -cell.temper * jnp.sum(each - cell.offset) + cell.prior_weight * prior
        return value + jnp.sum(jnp.square(u)) / 2 if self.ball else value

    def _each(self, u: jax.Array, cell: _Cell, records: PyTree) -> jax.Array:
        params = self.unravel(self.theta(u, cell))
        return jax.vmap(lambda record: self.target.log_likelihood(params, record))(records)

    def _hessian(self, u: jax.Array, cell: _Cell, records: PyTree) -> jax.Array:
        gradient = jax.grad(lambda u: self.potential(u, cell, records))

        def column(direction: jax.Array) -> jax.Array:
            return jax.jvp(gradient, (u,), (direction,))[1]

        count = length_of(records)
        together = max(1, min(self.size, _HESSIAN_NUMBERS // count))
        return jax.lax.map(column, jnp.eye(self.size), batch_size=together)

    def chains(self, lengths: Lengths, whitened: bool) -> _Chains:
        """Return the program of chains of these lengths; ``whitened``: whether H is a matrix."""
        if (lengths, whitened) not in self._chains:
            every = jax.vmap(
                jax.vmap(self._chain(lengths, whitened), (None, None, 0, 0)),
                (0, None, 0, 0),
            )
            self._chains[lengths, whitened] = jax.jit(every)
        return self._chains[lengths, whitened]

    def _chain(self, lengths: Lengths, whitened: bool) -> Callable[..., jax.Array]:
        from numpyro.infer.hmc import hmc  # half a second to import

        def place(w: jax.Array, cell: _Cell) -> jax.Array:
            return cell.centre + (cell.factor @ w if whitened else cell.factor * w)

        def potential_of(cell: _Cell, records: PyTree) -> Callable[[jax.Array], jax.Array]:
            return lambda w: self.potential(place(w, cell), cell, records)

        def chain(cell: _Cell, records: PyTree, key: jax.Array, start: jax.Array) -> jax.Array:
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
                return (
                    state._replace(adapt_state=adapt._replace(step_size=following)),
                    average,
                    kept,
                )

            second_half = max(1, lengths.warmup - lengths.warmup // 2)
            kept = jnp.zeros((lengths.kept, self.size))
            steps = lengths.warmup + lengths.thin * lengths.kept
            kept = jax.lax.fori_loop(0, steps, step, (state, jnp.float32(0), kept))[2]
            return jax.vmap(lambda w: self.theta(place(w, cell), cell))(kept)

        return chain


def _coordinates(
    program: _Programs,
    posteriors: Sequence[Tempered],
    records: PyTree,
    radius: float | None,
    start: np.ndarray,
) -> list[_Cell]:
    """Return each posterior with its θ̂ and H. Newton's method starts at the mode of the next lower temper."""
    count = length_of(records)
    size = program.size
    cells: dict[int, _Cell] = {}
    point = np.zeros(size, np.float32) if program.ball else start
    for i in sorted(range(len(posteriors)), key=lambda i: posteriors[i].temper):
        one = posteriors[i]
        precision = 1.0 if one.new_prior_precision is None else one.new_prior_precision
        numbers = (
            one.temper,
            one.prior_temper * precision,
            0.0 if radius is None else radius,
        )
        temper, weight, limit = (jnp.float32(number) for number in numbers)
        cell = _Cell(temper, weight, limit, jnp.zeros(count), jnp.asarray(point), jnp.ones(size))
        if size <= _MOST_PARAMETERS:
            point, factor = _newton(program, cell, records, point)
            cell = cell._replace(centre=jnp.asarray(point), factor=jnp.asarray(factor))
        cells[i] = cell._replace(offset=program.each(jnp.asarray(point), cell, records))
    return [cells[i] for i in range(len(posteriors))]


def _newton(program: _Programs, cell: _Cell, records: PyTree, point: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (minimum of the potential to a tenth of a standard deviation, inverse root of the Hessian there).

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
        values, vectors = eigh((hessian + hessian.T) / 2)
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
