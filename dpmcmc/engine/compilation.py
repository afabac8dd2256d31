"""Compiled functions of a program: made once for equal programs and shapes, kept, and shared out to a mesh's devices.

``program.py`` and ``device_calls.py`` say what the functions compute. ``self_test.py`` tests what the compiler made of
them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dpmcmc.engine.device_calls import DeviceCalls, Shape
from dpmcmc.engine.mesh import BATCHES, CHAIN, DATA, STEPS
from dpmcmc.engine.program import Chain, DrawnRandomness, Program, of_each
from dpmcmc.engine.sizes import ONE_THREAD
from dpmcmc.privacy.query.platforms import traced_for
from dpmcmc.privacy.query.query import StepRandomness
from dpmcmc.storage.compiled_programs import RUN_ONCE
from dpmcmc.storage.pytree import PyTree
from dpmcmc.storage.structure import hashable

#: Compiler options.
Options = dict[str, str | bool]


@dataclass
class Compiled:
    """Functions of a program.

    Attributes:
        prepared: records -> records, once a run.
        start: chains -> states.
        draw: of :class:`DeviceCalls`, jitted.
        chunk: of :class:`DeviceCalls`, jitted.
        executable: ``chunk``, compiled or from a cache; None until :meth:`compile_chunk`.
        drawing: ``draw``, compiled or from a cache, where a thread draws; None until :meth:`compile_draw`.
        tested: whether it has passed its self-test (``self_test.py``).
    """

    prepared: Callable[[PyTree], PyTree]
    start: Callable[[Chain], PyTree]
    draw: jax.stages.Wrapped
    chunk: jax.stages.Wrapped
    executable: jax.stages.Compiled | None = None
    drawing: jax.stages.Compiled | None = None
    tested: bool = False

    def compile_chunk(self, arguments: tuple[PyTree, ...], options: Options) -> jax.stages.Compiled:
        """Return the executable of a chunk, for arguments of these shapes."""
        if self.executable is None:
            self.executable = self.chunk.lower(*arguments).compile(options)
        return self.executable

    def compile_draw(self, *arguments: PyTree) -> None:
        """Compile ``draw``: a thread does not know the device that this one has chosen, and an executable does."""
        if self.drawing is None:
            self.drawing = self.draw.lower(*arguments).compile()


def compiled(program: Program, shape: Shape, arguments: Hashable = None) -> Compiled:
    """A program's functions for chunks of this shape, shared by runs of equal programs.

    Args:
        program: what to compile.
        shape: of the chunk.
        arguments: shapes of what the functions are called with, hashable, and the compiler's options: the functions
            serve these alone.
    """
    # No target nor sampler may change behind its hash, or have none.
    steady = hashable(program) and program.target.steady and program.sampler.steady
    cached = _compile_cached if steady else _compile_cached.__wrapped__
    return cached(program, shape, arguments)


#: Most programs, each of one set of shapes, that a process keeps: some 17 MiB and 180 memory maps each on a CPU, of the
#: 65530 maps that Linux gives a process. One that is let go is compiled again where it is needed again.
KEPT_PROGRAMS = 32


@functools.lru_cache(maxsize=KEPT_PROGRAMS)
def _compile_cached(program: Program, shape: Shape, arguments: Hashable) -> Compiled:
    calls = DeviceCalls(program, shape)
    here = traced_for(program.platform)
    draw: Callable[..., DrawnRandomness] = calls.draw
    chunk: Callable[..., tuple] = calls.chunk
    held = by_chain = by_record = None
    if program.mesh is not None:
        draw, chunk, held = _shared_out(calls, program.mesh, program.supplied)
        by_chain = NamedSharding(program.mesh, PartitionSpec(CHAIN))
        by_record = NamedSharding(program.mesh, PartitionSpec(DATA))
    return Compiled(
        prepared=jax.jit(program.prepared, out_shardings=by_record),
        start=jax.jit(
            jax.vmap(program.start, in_axes=(of_each(0, None),)), compiler_options=RUN_ONCE, out_shardings=by_chain
        ),
        draw=jax.jit(here(draw), compiler_options=ONE_THREAD if shape.ahead else None),
        chunk=jax.jit(here(chunk), donate_argnums=(0,), in_shardings=held),
    )


def _shared_out(
    calls: DeviceCalls, mesh: Mesh, supplied: bool
) -> tuple[Callable[..., DrawnRandomness], Callable[..., tuple], PyTree]:
    """(``draw`` and ``chunk`` on the devices of a mesh, where it holds the arguments of a chunk)."""
    split = PartitionSpec(CHAIN)
    whole = PartitionSpec()
    chains = of_each(split, whole)
    batch: Any = BATCHES
    drawn = StepRandomness((batch, batch), None, STEPS, STEPS), STEPS
    rows = (batch, (drawn[0]._replace(batch=(None, batch)), STEPS)) if supplied else PartitionSpec(DATA)
    # The sums and the noise are the same on every shard of the data, which types cannot show.
    shared = functools.partial(jax.shard_map, mesh=mesh, check_vma=False)
    draw = shared(calls.draw, in_specs=(chains, whole, whole), out_specs=drawn)
    taken = (split, chains, whole, whole, whole, rows)
    chunk = shared(calls.chunk, in_specs=taken, out_specs=(split, STEPS, split, split))
    held = jax.tree.map(
        lambda spec: NamedSharding(mesh, spec), taken, is_leaf=lambda spec: isinstance(spec, PartitionSpec)
    )
    return draw, chunk, held
