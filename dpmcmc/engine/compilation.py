"""Compiled functions of a program: made once for equal programs and shapes, kept, and shared out to a mesh's devices.

``program.py`` says what the functions compute. ``self_test.py`` tests what the compiler made of them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, PartitionSpec

from dpmcmc.engine.device_calls import DeviceCalls
from dpmcmc.engine.mesh import BATCHES, CHAIN, DATA, STEPS
from dpmcmc.engine.program import Cells, DrawnRandomness, Program
from dpmcmc.engine.sizes import ONE_THREAD
from dpmcmc.privacy.query.platforms import traced_for
from dpmcmc.privacy.query.query import StepRandomness
from dpmcmc.storage.compiled_programs import RUN_ONCE
from dpmcmc.storage.pytree import PyTree
from dpmcmc.storage.structure import hashable

#: Compiler options, sorted: by them an executable is kept.
Options = tuple[tuple[str, str | bool], ...]
#: A compiled chunk.
Executable = jax.stages.Compiled


class Compiled(NamedTuple):
    """Jitted functions of a program.

    Attributes:
        prepared: records -> records, once a run.
        start: cells -> states.
        draw: (cells, first step, noise (cells, steps)) -> (StepRandomness, keys), leaves (steps, cells, ...).
        chunk: (states, cells, first step, noise (cells, steps), offsets of the steps to keep (cells, room), records) ->
            (states, kept positions and infos (room, cells, ...), finite (cells,), norms of the positions (cells,)). In
            the place of records, where it is drawn ahead: (records, what ``draw`` gave), or of records on disk
            (rows (steps, cells, slots, ...), what ``draw`` gave).
        ahead: whether ``chunk`` is given what ``draw`` gave, on one device.
        executables: of ``chunk``, by compiler options: what was compiled, or came from a cache.
        tested: options of those that passed the self-test (``self_test.py``).
    """

    prepared: Callable[[PyTree], PyTree]
    start: Callable[[Cells], PyTree]
    draw: Callable[..., DrawnRandomness]
    chunk: jax.stages.Wrapped
    ahead: bool
    executables: dict[Options, Executable]
    tested: set[Options]


def compiled(program: Program, width: int, ahead: bool, shapes: Hashable = None) -> Compiled:
    """A program's functions for chunks of so many steps, shared by runs of equal programs.

    Args:
        program: what to compile.
        width: steps.
        ahead: whether a chunk is given its randomness.
        shapes: of what they are called with, hashable: the functions serve these alone, so that of many shapes the
            oldest can be let go.
    """
    cached = _compile_cached if _steady(program) else _compile_cached.__wrapped__
    return cached(program, width, ahead, shapes)


def state_shapes(program: Program, cells: PyTree) -> tuple[PyTree, DrawnRandomness]:
    """Shapes of the positions of cells, and of the randomness of one step of one of them; traced once.

    Args:
        program: of the cells.
        cells: shapes of :class:`Cells`, leaves (cells, ...).
    """
    leaves, structure = jax.tree.flatten(cells)
    traced = _shapes_cached if _steady(program) else _shapes_cached.__wrapped__
    return traced(program, structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves))


def _steady(program: Program) -> bool:
    """Whether equal programs compute the same: no target nor sampler may change behind its hash, or has none."""
    return hashable(program) and program.target.steady and program.sampler.steady


#: Most programs, each of one set of shapes, that a process keeps: some 17 MiB and 180 memory maps each on a CPU, of the
#: 65530 maps that Linux gives a process. One that is let go is compiled again where it is needed again.
KEPT_PROGRAMS = 32


@functools.lru_cache(maxsize=4 * KEPT_PROGRAMS)
def _shapes_cached(
    program: Program, structure: jax.tree_util.PyTreeDef, leaves: tuple
) -> tuple[PyTree, DrawnRandomness]:
    cells = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*leaf) for leaf in leaves])
    # On a mesh the randomness is that of all its shards together.
    whole = program if program.mesh is None else dataclasses.replace(program, mesh=None)
    return jax.eval_shape(jax.vmap(program.traced.start), cells).position, whole.traced.drawn(cells)


@functools.lru_cache(maxsize=KEPT_PROGRAMS)
def _compile_cached(program: Program, width: int, ahead: bool, shapes: Hashable) -> Compiled:
    calls = DeviceCalls(program, width, ahead)
    draw: Callable[..., DrawnRandomness] = calls.draw
    chunk: Callable[..., tuple] = calls.chunk
    if program.mesh is not None:
        draw, chunk = _shared_out(calls, program.mesh, program.supplied)
    here = traced_for(program.platform)
    ahead = ahead and program.mesh is None
    return Compiled(
        prepared=jax.jit(program.prepared),
        start=jax.jit(jax.vmap(program.traced.start), compiler_options=RUN_ONCE),
        # Drawn on one core, while steps have another.
        draw=jax.jit(
            here(draw),
            compiler_options=ONE_THREAD if ahead and not program.supplied else None,
        ),
        chunk=jax.jit(here(chunk), donate_argnums=(0,)),
        ahead=ahead,
        executables={},
        tested=set(),
    )


def _shared_out(
    calls: DeviceCalls, mesh: Mesh, supplied: bool
) -> tuple[Callable[..., DrawnRandomness], Callable[..., tuple]]:
    """``draw`` and ``chunk`` on the devices of a mesh."""
    chains = PartitionSpec(CHAIN)
    whole = PartitionSpec()
    rows: Any = PartitionSpec(DATA)
    draw: Callable[..., DrawnRandomness] = calls.draw
    if supplied:
        batch: Any = BATCHES
        drawn = StepRandomness((batch, batch), None, STEPS, STEPS), STEPS
        draw = jax.shard_map(
            draw,
            mesh=mesh,
            in_specs=(chains, whole, chains),
            out_specs=drawn,
            check_vma=False,
        )
        rows = batch, (drawn[0]._replace(batch=(None, batch)), STEPS)
    chunk = jax.shard_map(
        calls.chunk,
        mesh=mesh,
        in_specs=(chains, chains, whole, chains, chains, rows),
        out_specs=(chains, STEPS, chains, chains),
        # The sums and the noise are the same on every shard of the data, which types cannot show.
        check_vma=False,
    )
    return draw, chunk
