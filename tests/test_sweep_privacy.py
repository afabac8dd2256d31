"""Privacy of a sweep: keys, noise and queries are each cell's own, and nothing else reads the records."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc.engine import blocks as engine
from dpmcmc.engine import life
from dpmcmc.engine import program as program_room
from dpmcmc.engine.plans_together import sample_all
from dpmcmc.privacy.accounting import noise_tables
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.query import exact_sums
from tests.test_sweep import DATA, TARGET, D, N, X, Y, make


@pytest.mark.slow
def test_secret_keys_carry_each_plans_own_guarantee_and_others_none(tmp_path):
    plans = [make(epsilon=epsilon) for epsilon in (0.5, 1.0, 2.0)]
    results = sample_all(plans, DATA, keys=[None, 3, dpmcmc.SecretKey()])
    assert [result.guarantee for result in results] == [plans[0].guarantee, None, plans[2].guarantee]
    results[0].save(tmp_path / "run")
    assert (tmp_path / "run" / "privacy.json").exists()


@pytest.mark.slow
def test_noise_of_every_number_of_draws_passes_the_self_test(monkeypatch):
    plans = [make(clip=clip, steps=3) for clip in (0.25, 1.0, 0.25)]
    assert [plan.levels[0] for plan in plans] == [5, 4, 5]
    tested = []

    def spied(program, functions, executable, block, noise, *rest):
        tested.append((int(block.numbers["query"]["levels"][0, 0]), noise[0, 0]))
        check_steps(program, functions, executable, block, noise, *rest)

    check_steps = engine.check_steps
    monkeypatch.setattr(engine, "check_steps", spied)
    sample_all(plans, DATA)
    assert [levels for levels, _ in tested] == [4, 5]
    assert {noise for _, noise in tested} <= {plan.noise_std[0] for plan in plans}


def first_noise(results, plans):
    """Noise of the first step, in std, (cells, D): what is left of the first draw without the public rest.

    Every chain starts at zero and reads every record, so the sum is that of all.
    """
    query = dpmcmc.privacy.GradientQuery(dpmcmc.targets.bind(TARGET, {"x": X[0], "y": Y[0]}), N, N, 1.0, None)
    total = query.clipped_sum(jnp.zeros(D), DATA, jax.random.key(0)).to_float64(1.0, 21)
    rows = []
    for result, plan in zip(results, plans, strict=True):
        gradient = -result.draws[:, 0] / plan.sampler.eta(0)
        rows.append((gradient - total) / plan.noise_std[0])
    return np.concatenate(rows)


def noises_are_independent(noise):
    """No two cells alike, and none far from N(0, 1): 5 errors of a mean square, 6 of the closest pair."""
    gaps = np.linalg.norm(noise[:, None] - noise[None], axis=2)[np.triu_indices(len(noise), 1)]
    # Of 780 pairs the closest is 0.02 to 0.3 apart; shared keys leave the rounding of float32, below 1e-3.
    return gaps.min() > 1e-3 and abs(np.mean(noise**2) - 1) < 5 * np.sqrt(2 / noise.size)


@pytest.mark.slow
def test_noise_is_each_cells_own_and_shared_keys_would_be_seen(monkeypatch):
    once = make(steps=1, chains=2)
    plans = [once] * 10 + [make(steps=1, chains=2, epsilon=e) for e in np.linspace(0.5, 3, 10)]
    assert noises_are_independent(first_noise(sample_all(plans, DATA), plans))

    shared = life.streams_of(3)
    with monkeypatch.context() as patch:  # planted: every plan under one key
        patch.setattr(life, "streams_of", lambda *_: shared)
        assert not noises_are_independent(first_noise(sample_all(plans, DATA), plans))

    def one_chain(program, runs, owners):  # planted: every chain of a plan the same
        return engine_cells(program, runs, owners)._replace(chain=jnp.zeros(len(owners), jnp.int32))

    engine_cells = engine._cells
    monkeypatch.setattr(engine, "_cells", one_chain)
    assert not noises_are_independent(first_noise(sample_all(plans, DATA), plans))


@pytest.mark.optimised
@pytest.mark.slow
def test_neighbours_under_the_same_keys_differ_in_the_query_alone():
    """One step from a common start: cells that drew the record move by at most its sensitivity, others not at all."""
    other = {"x": X.copy(), "y": Y.copy()}
    other["x"][7] = -3 * X[7]  # beyond every clip, and turned around
    by_clip = [make(clip=clip, steps=1, epsilon=5.0, sampling=dpmcmc.Poisson(40)) for clip in (0.1, 0.2, 0.4)]
    plans = by_clip * 20
    keys = list(range(len(plans)))
    pairs = zip(plans, sample_all(plans, DATA, keys=keys), sample_all(plans, other, keys=keys), strict=True)
    moved = []
    for plan, one, two in pairs:
        unit = plan.sampler.eta(0) * plan.num_records / plan.batch_size * plan.privacy.clip
        distance = np.linalg.norm(one.draws.astype(np.float64) - two.draws) / unit
        rounding = np.sqrt(D) * 2.0**-22 * np.abs(one.draws).max() / unit
        assert distance <= 2 * (1 + KAPPA) + rounding
        moved.append(distance > 0)
    # Rate .1 of 60 cells: none or half of them would be seven errors away.
    assert 0 < sum(moved) < 30


@pytest.mark.slow
def test_what_the_device_is_given_besides_records_is_the_same_for_every_data_set(monkeypatch):
    given = []

    class Chunk:
        def __init__(self, jitted):
            self.jitted = jitted

        def lower(self, *arguments):
            given.append(jax.tree.map(bare, arguments[:-1]))
            return self.jitted.lower(*arguments)

    def bare(leaf):
        return np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)

    def spied(*arguments):
        functions = compile_(*arguments)
        return functions._replace(chunk=Chunk(functions.chunk), executables={})

    compile_ = engine.compiled
    monkeypatch.setattr(engine, "compiled", spied)
    plans = [
        make(sampling=dpmcmc.Poisson(40), epsilon=epsilon, clip=clip) for epsilon, clip in ((1.0, 1.0), (1.1, 0.5))
    ]
    for data in (DATA, {"x": np.roll(-X, 1, axis=0), "y": 1 - Y}):
        sample_all(plans, data, keys=[1, 2])
    jax.tree.map(np.testing.assert_array_equal, *given)


@pytest.mark.optimised
@pytest.mark.parametrize("clip", [1e-6, 0.3, 1.0, 7.0, 1e6])
def test_a_traced_clip_clips_to_the_same_grid_and_bound(clip):
    rng = np.random.default_rng(3)
    rows = (rng.normal(size=(64, 9)) * 10.0 ** rng.uniform(-12, 12, size=(64, 1))).astype(np.float32)
    mask = jnp.ones(1, bool)

    def sums(row, c):
        residual = jnp.ones(1)
        return exact_sums.clipped_sum(row, mask, c, 21), exact_sums.linear_sum(residual, row, mask, c, 21)

    traced, static = jax.jit(sums), jax.jit(lambda row: sums(row, clip))
    for row in rows[:, None]:
        for one, other in zip(traced(row, jnp.float32(clip)), static(row), strict=True):
            found = one.to_float64(clip, 21)
            assert np.linalg.norm(found) <= clip * (1 + KAPPA)
            # 1/C is rounded once either way; a grid step where the device rounds it otherwise.
            np.testing.assert_allclose(found, other.to_float64(clip, 21), atol=1.01 * clip * 2.0**-21)
            floats = one.to_float(jnp.float32(clip), 21)
            # The two limbs of a small negative number cancel to a hundredth of a grid step.
            np.testing.assert_allclose(floats, found, rtol=1e-6, atol=0.01 * clip * 2.0**-21)


@pytest.mark.optimised
def test_the_compiled_sweep_holds_no_record():
    target = dpmcmc.targets.bind(TARGET, dpmcmc.targets.record_shapes(DATA))
    plan = make()
    program = program_room.Program.of(plan, target)
    numbers = program.numbers(plan, target)
    assert numbers["query"]
    cell = program_room.Cells(numbers, life.streams_of(1)[0], jnp.int32(0), jnp.int32(1))
    step = jax.make_jaxpr(lambda cell, records: program.step(cell, program.start(cell), 0, jnp.float32(1), records))
    constants = [np.asarray(constant) for constant in step(cell, jax.tree.map(jnp.asarray, DATA)).consts]
    tables = {row.tobytes() for row in noise_tables.table().words}  # of the noise, the same in every run
    assert all(constant.size < N or constant.tobytes() in tables for constant in constants)
