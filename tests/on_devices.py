"""What ``test_mesh.py`` looks at, computed on 8 simulated devices by a process of its own.

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m tests.on_devices RESULT.npz GROUP

A result is a mapping from a name to an array; what must hold of it is said in the tests.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import dpmcmc
from dpmcmc.engine import sizes
from dpmcmc.engine.mesh import DATA, spread
from dpmcmc.engine.program import Chain, Program
from dpmcmc.privacy.query.exact_sums import FixedPoint
from dpmcmc.privacy.query.query import GradientQuery, StepRandomness
from dpmcmc.privacy.query.randomness import streams_of
from dpmcmc.privacy.query.selection import shard_selector
from dpmcmc.samplers.base import SteppedSampler
from dpmcmc.storage.leaves import from_text

DEVICES = 8
#: No multiple of any axis.
N, D = 41, 3
RNG = np.random.default_rng(0)
#: Multiples of a power of two, whose products and sums are exact in float32 whatever their order.
X = (RNG.integers(-16, 17, size=(N, D)) / 32).astype(np.float32)
Y = (RNG.random(N) < 1 / (1 + np.exp(-X @ np.array([2.0, -1.0, 0.5])))).astype(np.int32)
DATA_SET = {"x": X, "y": Y}
TARGET = dpmcmc.targets.LogisticRegression(prior_scale=1.0, num_features=D)
#: Meshes on which records are read from disk: with shards and without, and with the other scheme.
DISK = {"poisson": [(2, 4), (4, 1)], "fixed_size": [(2, 4)]}
MESHES = {"full": (2, 4), "poisson": (1, 1)}
NOISY_STEPS = 128


def make(**changes: Any) -> dpmcmc.Plan:
    """A short plan on the records."""
    settings = {
        "num_records": N,
        "sampler": dpmcmc.SGLD(step_size=0.5),
        "sampling": dpmcmc.Full(),
        "steps": 9,
        "chains": 4,
        "privacy": dpmcmc.Privacy(epsilon=4.0, delta=1e-4, clip=0.25),
    }
    return dpmcmc.plan(TARGET, **(settings | changes))


class Fixed(NamedTuple):
    """A position that stays where it is."""

    position: Any


class Seen(NamedTuple):
    """What the sampler got to see, less the prior's part, which is zero at zero."""

    gradient: jax.Array


@jax.tree_util.register_static
@dataclass(frozen=True)
class Watching(SteppedSampler):
    """Stays at zero and shows every gradient."""

    def noise_std(self, t: Any) -> Any:
        """None of its own."""
        return 0.0 * self.eta(t)

    def temperature_at(self, noise_std: Any, t: Any) -> Any:
        """None."""
        return 0.0 * noise_std

    def time_at(self, noise_std: Any, t: Any) -> Any:
        """None."""
        return 0.0 * noise_std

    def init(self, key: jax.Array, position: Any) -> Fixed:
        """At zero."""
        return Fixed(jnp.zeros_like(position))

    def step(self, key: jax.Array, state: Fixed, gradient: Any, t: jax.Array) -> tuple[Fixed, Seen]:
        """Nowhere."""
        return state, Seen(gradient.value)


WATCHED = make(sampler=Watching(step_size=0.1, temperature=0.0), steps=NOISY_STEPS)


def draws() -> dict[str, np.ndarray]:
    """Draws of one seed on a mesh and on none."""
    found = {}
    for name, sampling in {"full": dpmcmc.Full(), "poisson": dpmcmc.Poisson(11)}.items():
        plan = make(sampling=sampling)
        found[f"{name}/none"] = dpmcmc.sample(plan, DATA_SET, key=5).draws
        found[f"{name}/mesh"] = dpmcmc.sample(plan, DATA_SET, key=5, mesh=dpmcmc.mesh(*MESHES[name])).draws
    return found


def noise() -> dict[str, np.ndarray]:
    """Gradients at zero on 8 shards, as they are and with noise on every shard."""
    mesh = dpmcmc.mesh(1, 8)
    found = {"noise/std": WATCHED.noise_std}
    # A secret key as any other, and the same in every run of the tests.
    result = dpmcmc.sample(WATCHED, DATA_SET, key=dpmcmc.SecretKey._of(streams_of(1)[0]), mesh=mesh)
    found["noise/once"] = result.info.gradient
    found["noise/same_guarantee"] = np.array(result.guarantee == WATCHED.guarantee)
    real_draw, real_sum = GradientQuery.draw, GradientQuery.gradient_sum

    def draw(self: GradientQuery, params: Any, batch_key: Any, noise_key: Any, *more: Any) -> StepRandomness:
        return real_draw(self, params, batch_key, jax.random.fold_in(noise_key, jax.lax.axis_index(DATA)), *more)

    def gradient_sum(self: GradientQuery, params: Any, records: Any, draws: StepRandomness) -> Any:
        total = real_sum(dataclasses.replace(self, axis=None), params, records, draws)
        # The query adds the noise once more, so it is taken off.
        taken_off = FixedPoint(*jax.tree.map(jnp.negative, tuple(draws.noise)))
        return (total + draws.noise).across(DATA) + taken_off

    GradientQuery.draw, GradientQuery.gradient_sum = draw, gradient_sum
    try:
        # Another length: another program.
        plan = make(sampler=Watching(step_size=0.1, temperature=0.0), steps=NOISY_STEPS + 1)
        found["noise/planted"] = dpmcmc.sample(plan, DATA_SET, key=1, mesh=mesh).info.gradient
    finally:
        GradientQuery.draw, GradientQuery.gradient_sum = real_draw, real_sum
    return found


def sums() -> dict[str, np.ndarray]:
    """Exact sums over 8 shards of a few batches, the records selected, and the sums of the same on one device."""
    found = {}
    schemes = {"full": dpmcmc.Full(), "poisson": dpmcmc.Poisson(11)}
    schemes |= {"small": dpmcmc.FixedSize(7), "large": dpmcmc.FixedSize(30)}
    promise = dpmcmc.Privacy(epsilon=4.0, delta=1e-4, clip=0.25, accountant="rdp")
    keys, theta, mesh = jax.random.split(jax.random.key(2), 6), jnp.zeros(D), dpmcmc.mesh(1, 8)
    prepared = TARGET.prepared(DATA_SET)
    records = spread(prepared, mesh, DATA)
    garbage = spread(jax.tree.map(lambda leaf: _beyond(np.asarray(leaf)), records), mesh, DATA)
    for name, sampling in schemes.items():
        plan = make(sampling=sampling, privacy=promise)
        program = Program.of(plan, TARGET, mesh)
        chain = Chain(program.numbers(plan, TARGET), streams_of(0)[0], jnp.int32(1), jnp.int32(0))
        query = program.query(chain)
        select = shard_selector(sampling, N, DEVICES, sampling.shard_slots(N, DEVICES, plan.noise.slots))

        def counted(indices: Any, mask: Any, rows: Any = query.rows) -> Any:
            taken = jnp.where(mask, jnp.arange(rows) if indices is None else indices, rows)
            return jnp.zeros(rows + 1, jnp.int32).at[taken].add(1)[:rows]

        def one(key: Any, records: Any, query: Any = query, counted: Any = counted) -> Any:
            batch = query._batch(key)
            return counted(*batch), query.sums(theta, records, StepRandomness(batch, None, None, None))[0]

        run = jax.shard_map(
            jax.vmap(one, in_axes=(0, None)),
            mesh=mesh,
            in_specs=(PartitionSpec(), PartitionSpec(DATA)),
            out_specs=(PartitionSpec(None, DATA), PartitionSpec()),
            check_vma=False,
        )
        run = jax.jit(run)
        counts, total = jax.tree.map(np.asarray, run(keys, records))
        again = run(keys, garbage)[1]

        @jax.jit
        def alone(masks: Any, keys: Any, plan: Any = plan, select: Any = select, counted: Any = counted) -> Any:
            whole = GradientQuery(TARGET, N, plan.batch_size, 0.25, None, plan.noise.bits)
            batches = jax.vmap(
                lambda mask: whole.sums(theta, prepared, StepRandomness((None, mask), None, None, None))[0]
            )
            wanted = jax.vmap(lambda key: jax.vmap(lambda i: counted(*select(key, i)))(jnp.arange(DEVICES)))
            return batches(masks), wanted(keys).reshape(len(keys), -1)

        same, wanted = alone(counts[:, :N] > 0, keys)
        found |= {f"sums/{name}/counts": counts, f"sums/{name}/wanted": wanted}
        for part, value in {"total": total, "again": again, "alone": same}.items():
            found[f"sums/{name}/{part}"] = value.to_float64(0.25, plan.noise.bits)
    return found


def _beyond(leaf: np.ndarray) -> np.ndarray:
    """Padded records with something in the place of the padding that must not be looked at."""
    return np.concatenate([leaf[:N], np.full_like(leaf[N:], 7 if leaf.dtype == np.int32 else np.nan)])


def kinds() -> dict[str, np.ndarray]:
    """Every kind of run with full batches, on devices and on none."""
    samplers = {
        "sgld": dpmcmc.SGLD(step_size=0.5),
        "sghmc": dpmcmc.SGHMC(step_size=0.05, friction=0.3),
        "sgnht": dpmcmc.SGNHT(step_size=0.01),
        "sgfs": dpmcmc.SGFS(step_size=0.1),
    }
    plans = {name: make(sampler=sampler) for name, sampler in samplers.items()}
    plans["tight clip"] = make(privacy=dpmcmc.Privacy(epsilon=4.0, delta=1e-4, clip=0.25), chains=2)
    plans["plain"] = make(privacy=None)
    found = {}
    for name, plan in plans.items():
        found[f"kinds/{name}/none"] = dpmcmc.sample(plan, DATA_SET, key=5).draws
        for shape in [(1, 8), (4, 1)] if name == "sgld" else [(2, 4)]:
            result = dpmcmc.sample(plan, DATA_SET, key=5, mesh=dpmcmc.mesh(*shape))
            found[f"kinds/{name}/{shape[0]}x{shape[1]}"] = result.draws
    for scheme in (dpmcmc.Poisson(11), dpmcmc.FixedSize(7)):
        promise = dpmcmc.Privacy(epsilon=4.0, delta=1e-4, clip=0.25, accountant="rdp")
        plan, key = make(sampling=scheme, privacy=promise), dpmcmc.SecretKey._of(streams_of(5)[0])
        result = dpmcmc.sample(plan, DATA_SET, key=key, mesh=dpmcmc.mesh(2, 4))
        found[f"kinds/{scheme.scheme}/draws"] = result.draws
        found[f"kinds/{scheme.scheme}/none"] = dpmcmc.sample(plan, DATA_SET, key=5).draws
        found[f"kinds/{scheme.scheme}/same_guarantee"] = np.array(result.guarantee == result.plan.guarantee)
    return found


class _Stop(BaseException):
    """A kill."""


def resumed(folder: Path) -> dict[str, np.ndarray]:
    """Draws of a run that was stopped on a mesh and went on there, and is refused on another one."""
    from dpmcmc.storage import checkpoint

    sizes._CHUNK_STEPS = 4
    checkpoint._OVERHEAD = 1e9
    plan = make(sampling=dpmcmc.Poisson(11), steps=16, chains=3)

    def stopped(at: Path, mesh: Any) -> Path:
        def progress(done: int, total: int) -> None:
            if done >= 8:
                raise _Stop

        try:
            dpmcmc.sample(plan, DATA_SET, key=dpmcmc.SecretKey(), checkpoint=at, mesh=mesh, progress=progress)
        except _Stop:
            return at
        raise AssertionError("it was not stopped")

    found = {}
    two, four = dpmcmc.mesh(2, 2), dpmcmc.mesh(2, 4)
    at = stopped(folder / "same", two)
    begun = checkpoint.Checkpoint(at)
    streams = from_text(begun._run["keys"], streams_of(0)[0])
    begun.close()
    result = dpmcmc.sample(plan, DATA_SET, checkpoint=at, mesh=two)
    whole = dpmcmc.sample(plan, DATA_SET, key=dpmcmc.SecretKey._of(streams), mesh=two)
    found["resumed/same"], found["resumed/whole"] = result.draws, whole.draws
    found["resumed/same/epsilon"] = np.array([result.guarantee.epsilon, plan.guarantee.epsilon])
    try:
        dpmcmc.sample(plan, DATA_SET, checkpoint=stopped(folder / "other", two), mesh=four)
        found["resumed/refused"] = np.array("")
    except checkpoint.CheckpointError as error:
        found["resumed/refused"] = np.array(str(error))
    return found


def disk(folder: Path) -> dict[str, np.ndarray]:
    """Draws from records in memory and from the same ones on disk, of which a device is handed its own shard's rows."""
    records = {}
    for name, leaf in DATA_SET.items():
        kept = np.asarray(leaf, np.float32 if name == "x" else np.int32)
        np.save(folder / f"{name}.npy", kept)
        records[name] = np.load(folder / f"{name}.npy", mmap_mode="r")
    found = {}
    for scheme in (dpmcmc.Poisson(11), dpmcmc.FixedSize(7)):
        promise = dpmcmc.Privacy(epsilon=4.0, delta=1e-4, clip=0.25, accountant="rdp")
        plan = make(sampling=scheme, privacy=promise, chains=3)
        for shape in DISK[scheme.scheme]:
            name, on = f"disk/{scheme.scheme}/{shape[0]}x{shape[1]}", dpmcmc.mesh(*shape)
            found[f"{name}/memory"] = dpmcmc.sample(plan, DATA_SET, key=5, mesh=on).draws
            found[f"{name}/disk"] = dpmcmc.sample(plan, records, key=5, mesh=on).draws
    return found


GROUPS = {
    "quick": lambda folder: draws() | noise() | sums(),
    "slow": lambda folder: kinds() | disk(folder) | resumed(folder),
}


if __name__ == "__main__":
    assert jax.device_count() == DEVICES
    # Other warnings are errors here; runs of a few steps are not for intervals.
    warnings.simplefilter("ignore", dpmcmc.errors.NotForIntervals)
    path = Path(sys.argv[1])
    np.savez(path, **GROUPS[sys.argv[2]](path.parent))
