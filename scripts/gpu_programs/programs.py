"""Programs of the engine, compiled for a GPU that is described in a file; no GPU is looked for.

The program is the one that ``dpmcmc.sample`` compiles: the same plan, the same work, the same blocks of chains, with
the platform named instead of asked for. It needs the extra ``gpu-check``, whose plugin of JAX holds the compiler.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import warnings
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

import dpmcmc
from dpmcmc.engine.sizes import DRAWN_STEPS
from dpmcmc.engine.steps import Steps
from dpmcmc.engine.work_table import work_of
from dpmcmc.privacy.accounting.noise_tables import INDEX_BITS
from dpmcmc.privacy.query.integer_noise import TIES
from dpmcmc.privacy.query.randomness import streams_of
from dpmcmc.storage.pytree import PyTree, num_bytes
from gpu_programs.hlo import Cost, Instruction, Module

#: Description of the GPU, as OpenXLA's tools write it of a device.
TARGET = Path(__file__).resolve().parents[2] / "tests" / "h100_target.txtpb"
#: Adult's shape, and the digits'.
RECORDS, FEATURES, BATCH = 32_561, 109, 180
DIGITS, PIXELS, CLASSES = 1_347, 64, 10
STEPS = 1024


class Unavailable(Exception):
    """This machine cannot compile for the GPU; says what is missing."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A chunk of steps, compiled.

    Attributes:
        text: its optimised HLO.
        kernels: PTX of all its kernels.
        steps: of the chunk.
        temporaries: bytes that it needs beside its arguments and results.
        necessary: bytes that a step must move: rows of the batch, and of each chain its position, before and after, its
            noise, and the position that is kept.
        least: bytes that it moves with rows read twice, in all slots of a batch: the least that XLA's operations can.
            A row's weight is held in memory between its margin and its sum (``exact_sums.materialised``), and no
            operation spans that. None where rows are not selected, or are read for a second moment too.
        chances: of what a group of steps hardly ever does, by its name in the program.
    """

    text: str
    kernels: str
    steps: int
    temporaries: int
    necessary: int
    least: int | None
    chances: dict[str, float]

    @cached_property
    def module(self) -> Module:
        """The HLO, read."""
        return Module(self.text, self.chances)

    @cached_property
    def cost(self) -> Cost:
        """Cost of a step: that of the whole call over its steps, so randomness that is drawn before counts."""
        return self.module.cost(self.module.entry).times(1 / self.steps)

    @property
    def step(self) -> str:
        """The computation that is one step: the body of the innermost loop that goes round once a step."""
        bodies = [loop.called["body"][0] for loop, rounds in self.module.loops() if rounds == self.steps]
        return bodies[-1]

    def held(self) -> list[Instruction]:
        """Loops of ``fixed_point.held`` that are left, each of two rounds."""
        return [loop for loop, _ in self.module.loops() if "held" in loop.op_name and loop.trips == 2]


class Made(NamedTuple):
    """A plan and its records."""

    plan: dpmcmc.Plan
    records: PyTree


def regression(chains: int = 1, batch: int = BATCH, sampler: dpmcmc.samplers.Sampler | None = None) -> Made:
    """Logistic regression of Adult's shape."""
    target = dpmcmc.targets.LogisticRegression(prior_scale=1.0, num_features=FEATURES)
    plan = _plan(target, RECORDS, sampler or dpmcmc.SGLD(1.0), dpmcmc.Poisson(batch), chains)
    return Made(plan, _records(RECORDS, FEATURES, 2))


def network() -> Made:
    """The digits' network, of ``configs/digits_bnn.yaml``, on all records."""
    from dpmcmc.targets.shipped_models import digits_network

    plan = _plan(digits_network(hidden=64, prior_scale=3.0), DIGITS, dpmcmc.SGHMC(1.0, friction=0.4), dpmcmc.Full())
    return Made(plan, _records(DIGITS, PIXELS, CLASSES))


PROGRAMS = {
    "one chain": regression,
    "batch 512": lambda: regression(batch=512),
    "batch 2,048": lambda: regression(batch=2048),
    "1,024 chains": lambda: regression(chains=1024),
    "SGFS": lambda: regression(sampler=dpmcmc.SGFS(step_size=1.0)),
    "digits network": network,
}


def _plan(
    target: dpmcmc.targets.Target,
    num_records: int,
    sampler: dpmcmc.samplers.Sampler,
    sampling: dpmcmc.Sampling,
    chains: int = 1,
) -> dpmcmc.Plan:
    privacy = dpmcmc.Privacy(epsilon=1.0, delta=1e-6, accountant="rdp")
    how = {"num_records": num_records, "chains": chains, "steps": STEPS, "burn_in": STEPS // 2, "privacy": privacy}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dpmcmc.errors.NotForIntervals)
        return dpmcmc.plan(target, sampler=sampler, sampling=sampling, **how)


def _records(count: int, features: int, classes: int) -> PyTree:
    """Rows of length one; no number in them changes what is compiled."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, features)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return {"x": x, "y": rng.integers(0, classes, count).astype(np.int32)}


def device() -> jax.Device:
    """Return the described GPU, which only a compiler can use.

    Raises:
        Unavailable: this JAX has no compiler for it.
    """
    try:
        from jax.experimental import topologies

        described = {"target_config": TARGET.read_text(encoding="utf-8")}
        topology = topologies.get_topology_desc(platform="cuda", topology="1x1x1", **described)
    except (ImportError, NotImplementedError, RuntimeError) as error:
        raise Unavailable(
            f"JAX {jax.__version__} cannot compile for a GPU that is not there ({type(error).__name__}: {error}); "
            "install the extra gpu-check, with plugins of JAX's own version"
        ) from error
    return topology.devices[0]


@contextlib.contextmanager
def _not_kept() -> Iterator[None]:
    """Keep no compiled program meanwhile: one for a device that is not there cannot be read back."""
    from jax.experimental.compilation_cache import compilation_cache

    before = jax.config.jax_enable_compilation_cache
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # whether programs are kept is asked once
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def compiled(made: Made) -> Program:
    """Return the chunk of steps that ``dpmcmc.sample`` compiles on the described GPU.

    Raises:
        Unavailable: it cannot be compiled here.
    """
    sharding = SingleDeviceSharding(device())
    work = work_of(made.plan)
    work.read(made.records, None, None)
    streams, secret = streams_of(None)
    program = dataclasses.replace(work.program(), platform="gpu")
    steps = Steps(program, work.bound(streams, secret), work.records, None)
    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype, sharding=sharding), steps.arguments()
    )
    lowered = steps._functions.chunk.trace(*shapes).lower(lowering_platforms=("cuda",))
    with tempfile.TemporaryDirectory() as dump, _not_kept():
        chunk = lowered.compile({"xla_dump_to": dump})
        kernels = "\n".join(path.read_text(encoding="utf-8") for path in sorted(Path(dump).glob("*.ptx")))
    memory = chunk.memory_analysis()
    plan = made.plan
    position = num_bytes(jax.eval_shape(steps._functions.start, shapes[1]).position)
    row = num_bytes(made.records) // plan.num_records
    necessary = int(plan.chains * plan.batch_size * row) + 4 * position
    least = None
    if isinstance(plan.sampling, dpmcmc.Poisson) and plan.sampler_run.second is None:
        least = 2 * plan.chains * plan.noise.slots * row + 4 * position
    chances = {TIES: _tied(plan, position // 4)}
    return Program(chunk.as_text(), kernels, steps.shape.steps, memory.temp_size_in_bytes, necessary, least, chances)


def _tied(plan: dpmcmc.Plan, numbers: int) -> float:
    """Chance, at most, that a draw of integer noise ties among those that are looked at together.

    Args:
        plan: with integer noise.
        numbers: of the positions of all chains.
    """
    draws = DRAWN_STEPS * numbers * plan.noise.levels[0]
    if plan.sampler_run.second is not None:
        size = numbers // plan.chains
        draws = max(draws, plan.chains * size * (size + 1) // 2 * plan.noise.levels[1])
    return min(1.0, draws * 2.0 ** (INDEX_BITS - 32))
