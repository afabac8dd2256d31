"""Refusals of records and starting points before a run of chains computes anything from them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc import targets
from dpmcmc.errors import InputError
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.sampling import FixedSize
from dpmcmc.storage.files import memory
from dpmcmc.storage.pytree import PyTree, size_of
from dpmcmc.storage.record_blocks import on_disk
from dpmcmc.targets.base import Target


def check_records(plan: Plan, data: PyTree, host: bool = False) -> PyTree:
    """Arrays of the right length, finite, float32 or int32, and of the values the target is for.

    Args:
        plan: its N and target.
        data: as of :func:`sample`.
        host: NumPy arrays, that a mesh takes its parts of; else on the device.

    Raises:
        ValueError: they are not.
    """
    targets.check_rows(data, plan.num_records, np.float32)

    def convert(leaf: np.ndarray | jax.Array) -> np.ndarray | jax.Array:
        if isinstance(leaf, np.memmap):
            return leaf
        array = np.asarray(leaf) if not isinstance(leaf, jax.Array) else leaf
        if host:
            dtype = jnp.float32 if jnp.issubdtype(array.dtype, jnp.floating) else jnp.asarray(array[:0]).dtype
            return np.asarray(array, dtype)
        return jnp.asarray(array, jnp.float32 if jnp.issubdtype(array.dtype, jnp.floating) else None)

    targets.check(plan.target, data)
    return jax.tree.map(convert, data)


def check_on_disk(plan: Plan, data: PyTree) -> None:
    """Refuse what memory-mapped records cannot be run with; nothing is read.

    Raises:
        ValueError: full batches, or of a fixed size beyond half the records, which are drawn as what they leave out; a
            second moment from a batch of its own.
    """
    if not on_disk(data):
        return
    rate = plan.sampling.rate(plan.num_records)
    if rate == 1 or (isinstance(plan.sampling, FixedSize) and rate > 0.5):
        raise InputError(
            "sampling: memory-mapped records need minibatches, full ones would read the whole file in every step; use "
            "Poisson, or arrays in memory"
        )
    if plan.sampler_run.second is not None and plan.sampler_run.second.own_batch:
        raise InputError("own_batch: not with memory-mapped records; set it to false, or use arrays in memory")


def check_room(target: Target, draws: int, bytes_of_a_number: int = 8) -> None:
    """Refuse more draws than the machine's memory holds, where the system says how much it has.

    Args:
        target: bound, so that the shape of a draw is known.
        draws: of all chains.
        bytes_of_a_number: that each number of a draw takes; a chain's float32, as it is kept and as it is handed out.

    Raises:
        InputError: too many.
    """
    numbers = size_of(jax.eval_shape(target.init, jax.random.key(0)))
    room = memory()
    if room is not None and draws * numbers * bytes_of_a_number > room:
        raise InputError(
            f"draws: {draws:,} draws of {numbers:,} numbers take more than the {room / 2**30:.1f} GiB of this "
            "machine's memory; take fewer",
            "draws",
        )


def checked_starts(plan: Plan, target: Target, starts: PyTree) -> PyTree:
    """float32 starts of the right shapes, or None.

    Raises:
        ValueError: a private plan that does not cover them; another structure or shape than the target's parameters
            with a leading axis of chains; numbers that are not finite.
    """
    if starts is None:
        return None
    if plan.start is not None:
        raise InputError("starts: the run draws its own start; leave them out")
    if plan.privacy is not None and plan.starts is None:
        raise InputError(
            "starts need a plan whose guarantee covers them: plan(..., after=the guarantee of their release); a public "
            "start belongs in the target's init"
        )
    wanted = jax.eval_shape(target.init, jax.random.key(0))
    shapes = jax.tree.map(lambda leaf: (plan.chains, *leaf.shape), wanted)
    found = jax.tree.map(np.shape, starts)
    same: bool = jax.tree.structure(starts) == jax.tree.structure(wanted)  # type: ignore[operator]
    if not same or found != shapes:
        raise InputError(f"starts must have shapes {shapes}, one start for each chain, got {found}")
    if not all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(starts)):
        raise InputError("starts must be finite")
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), starts)
