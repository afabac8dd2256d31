"""A sweep gives every plan what it would have had alone, in one program, and no plan anything of another's."""

import dataclasses
from dataclasses import dataclass

import jax
import numpy as np
import pytest

import dpmcmc
from dpmcmc.engine import blocks as engine
from dpmcmc.engine import chains, sizes
from dpmcmc.engine import plans_together as sweep
from dpmcmc.engine import program as program_room
from dpmcmc.engine.hardware import KINDS
from dpmcmc.engine.plans_together import sample_all
from dpmcmc.privacy.query.selection import selector
from dpmcmc.storage.structure import Structure

RNG = np.random.default_rng(0)
N, D = 400, 3
X = RNG.normal(size=(N, D)).astype(np.float32)


X /= np.maximum(1, np.linalg.norm(X, axis=1, keepdims=True))


Y = (RNG.random(N) < 1 / (1 + np.exp(-X @ np.array([2.0, -1.0, 0.5])))).astype(np.int32)
DATA = {"x": X, "y": Y}
TARGET = dpmcmc.targets.LogisticRegression(prior_scale=1.0)


def make(target=TARGET, *, epsilon=1.0, clip=1.0, **changes):
    """Plans with floats for noise unless asked otherwise, which compile in half the time."""
    settings = {
        "num_records": N,
        "sampler": dpmcmc.SGLD(step_size=0.5),
        "sampling": dpmcmc.Full(),
        "steps": 20,
        "privacy": dpmcmc.Privacy(epsilon=epsilon, delta=1e-4, clip=clip),
    }
    return dpmcmc.plan(target, **(settings | changes))


@pytest.fixture
def programs(monkeypatch):
    """How many runs each program of a sweep held."""
    seen = []

    def spy(program, runs, *rest):
        seen.append(len(runs))
        return chains.run_together(program, runs, *rest)

    monkeypatch.setattr(sweep, "run_together", spy)
    return seen


def grouped(plans, monkeypatch):
    """How many plans each program of a sweep would hold; nothing runs."""
    seen = []
    monkeypatch.setattr(sweep, "run_together", lambda _, runs, *rest: seen.append(len(runs)) or [r.plan for r in runs])
    monkeypatch.setattr(sweep.Life, "with_receipt", lambda self, outcome: outcome)
    assert all(a is b for a, b in zip(sample_all(plans, DATA), plans, strict=True))
    return sorted(seen)


def assert_as_alone(plans, results, keys, rtol=2e-5):
    """Float32 rounding, of sums of a different order, grows along a chain: hence ``rtol``, and short chains."""
    for plan, result, key in zip(plans, results, keys, strict=True):
        alone = dpmcmc.sample(plan, DATA, key=key)
        scale = np.abs(alone.draws).max()
        np.testing.assert_allclose(result.draws, alone.draws, rtol=rtol, atol=rtol * scale)
        for found, wanted in zip(result.info, alone.info, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=50 * rtol)
        assert result.plan is plan
        assert result.draws.shape == (plan.chains, plan.num_draws, D)


@pytest.mark.optimised
@pytest.mark.slow
def test_plans_that_differ_in_numbers_alone_are_one_program_and_draw_what_they_draw_alone(programs):
    changes = (
        {},
        {"epsilon": 3.0, "steps": 7, "sampler": dpmcmc.SGLD(step_size=1, temperature=0.5)},
        {"epsilon": 0.3, "clip": 0.25, "steps": 33, "burn_in": 10, "thin": 4},
        {"steps": 40, "chains": 3, "thin": 5, "target": dpmcmc.targets.LogisticRegression(prior_scale=0.3)},
    )
    plans = [make(**change) for change in changes]
    results = sample_all(plans, DATA, keys=list(range(len(plans))))
    assert programs == [len(plans)]
    assert len({plan.levels for plan in plans}) == 2  # integer noise of more draws is no program of its own
    assert_as_alone(plans, results, range(len(plans)))
    assert all(result.guarantee is None for result in results)


@pytest.mark.slow
def test_minibatches_are_those_of_the_plan_alone(programs):
    poisson = dpmcmc.Poisson(40)
    plans = [make(clip=clip, sampler=dpmcmc.SGLD(step), sampling=poisson) for clip, step in ((1.0, 0.5), (0.5, 2.0))]
    assert len({plan.slots for plan in plans}) == 1
    assert_as_alone(plans, sample_all(plans, DATA, keys=[5, 6]), (5, 6))
    assert programs == [2]


SAMPLERS = {
    "sgld_auto": lambda f: dpmcmc.SGLD("auto", temperature=f),
    "sgld_schedule": lambda f: dpmcmc.SGLD(dpmcmc.samplers.Polynomial(2.0), temperature=f),
    "sghmc": lambda f: dpmcmc.SGHMC(step_size=0.1 * f, friction=0.2 * f, minibatch_variance=f),
    "sghmc_matched": lambda f: dpmcmc.SGHMC(step_size=1e-3 * f, friction="matched"),
    "sgnht": lambda f: dpmcmc.SGNHT(step_size="auto", friction=0.2 * f),
    "sgfs": lambda f: dpmcmc.SGFS(step_size=0.5 * f, prior_precision=f, forget=0.01 * f),
    "sgfs_query": lambda f: dpmcmc.SGFS(step_size=0.5 * f, prior_precision=f, fisher="query", structure="diagonal"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [n if n in ("sghmc", "sgfs") else pytest.param(n, marks=pytest.mark.exhaustive) for n in SAMPLERS],
)
def test_every_sampler_shares_a_program_over_its_numbers(name, programs):
    plans = [make(sampler=SAMPLERS[name](f), epsilon=2.0, clip=c, steps=8) for f, c in ((1.0, 1.0), (0.5, 0.5))]
    assert len({(plan.slots, plan.bits, plan.second_bits) for plan in plans}) == 1
    results = sample_all(plans, DATA, keys=[1, 2])
    assert programs == [len(plans)]
    assert_as_alone(plans, results, (1, 2), rtol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [dpmcmc.Full(), dpmcmc.FixedSize(40)])
def test_plain_plans_sweep_too(sampling, programs):
    plans = [make(privacy=None, sampling=sampling, sampler=dpmcmc.SGLD(step)) for step in (0.5, 1.0)]
    assert_as_alone(plans, sample_all(plans, DATA, keys=[1, 2]), (1, 2))
    assert programs == [2]


@pytest.mark.slow
def test_a_target_with_gradients_by_vmap_sweeps_with_its_clip_open(programs):
    linear = dpmcmc.targets.LogisticRegression(1.0, num_features=D)
    target = dpmcmc.targets.Custom(linear.init, linear.log_prior, linear.log_likelihood)
    plans = [make(target, clip=clip) for clip in (0.5, 1.0)]
    assert_as_alone(plans, sample_all(plans, DATA, keys=[1, 2]), (1, 2), rtol=1e-4)
    assert programs == [2]


@pytest.mark.slow
def test_plans_with_starts_begin_there_and_are_apart_from_those_without(programs, monkeypatch):
    monkeypatch.setattr(sizes, "_CHUNK_STEPS", 3)  # several chunks: a start must outlive the first
    draw = dpmcmc.privacy.Event("posterior_draw", 1000.0, 1.0, 1)
    paid = dpmcmc.Guarantee.from_events(
        (draw,), delta=1e-4, adjacency="replace_one", accountant="pld", release="one_sample"
    )
    plans = [make(sampler=dpmcmc.SGLD(1e-9), steps=8, chains=2, after=paid)] * 3
    starts = [np.full((2, D), 5.0), None, np.arange(2.0 * D).reshape(2, D)]
    results = sample_all(plans, DATA, keys=[1, 2, 3], starts=starts)
    assert sorted(programs) == [1, 2]
    for result, start in zip(results, starts, strict=True):
        wanted = np.zeros((2, D)) if start is None else start
        np.testing.assert_allclose(result.draws, np.broadcast_to(wanted[:, None], (2, 8, D)), atol=1e-2)
    with pytest.raises(ValueError, match="starts must be one per plan"):
        sample_all(plans, DATA, starts=starts[:1])
    with pytest.raises(ValueError, match="starts must have shapes"):
        sample_all(plans[:1], DATA, starts=[np.zeros(D)])


@pytest.mark.slow
def test_the_room_of_the_largest_batch_serves_every_epsilon(programs):
    plans = [make(epsilon=epsilon, steps=3, sampling=dpmcmc.Poisson(40)) for epsilon in (0.5, 30.0)]
    assert plans[0].slots < plans[1].slots
    results = sample_all(plans, DATA)
    assert programs == [2]
    assert [result.guarantee for result in results] == [plan.guarantee for plan in plans]


@pytest.mark.optimised
@pytest.mark.slow
def test_draws_do_not_depend_on_blocks_nor_chunks(monkeypatch):
    plans = [make(steps=steps, thin=2, chains=chains) for steps, chains in ((9, 1), (20, 2), (5, 4))]
    whole = sample_all(plans, DATA, keys=[1, 2, 3])
    monkeypatch.setitem(KINDS, "cpu", KINDS["cpu"]._replace(work=1))
    monkeypatch.setattr(sizes, "_CHUNK_STEPS", 6)
    blocks = []
    monkeypatch.setattr(engine, "_block", lambda *a, f=engine._block: blocks.append(a[1:3]) or f(*a))
    for one, other in zip(whole, sample_all(plans, DATA, keys=[1, 2, 3]), strict=True):
        np.testing.assert_allclose(other.draws, one.draws, rtol=1e-5, atol=1e-6)
    assert blocks == [(0, 4), (4, 4)]  # seven chains, and one that takes no step


def test_what_must_be_compiled_in_makes_groups_and_results_keep_their_order(monkeypatch):
    changes = (
        {"sampler": dpmcmc.SGLD(0.5)},
        {"sampler": dpmcmc.SGHMC(0.1)},
        {"sampler": dpmcmc.SGLD(0.25)},
        {"sampling": dpmcmc.Poisson(50)},
        {"sampling": dpmcmc.Poisson(40)},
        {"sampler": dpmcmc.SGLD(dpmcmc.samplers.Polynomial(1.0))},
        {"privacy": None},
        {"sampler": dpmcmc.SGFS(0.5, metric=2.0)},
    )
    assert grouped([make(**change) for change in changes], monkeypatch) == [1] * 6 + [2]


STATIC = {"static": True}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Branching(dpmcmc.SGLD):
    """Code branches on one number, uses a second, and counts with a third."""

    stretch: float = 1.0
    power: float = dataclasses.field(default=1.0, metadata=STATIC)
    repeat: int = dataclasses.field(default=1, metadata=STATIC)

    def step(self, key, state, gradient, t):
        factor = self.stretch**self.power if self.power > 1 else self.stretch
        for _ in range(self.repeat):
            state, info = super().step(key, state, gradient._replace(value=factor * gradient.value), t)
        return state, info


@pytest.mark.slow
def test_static_fields_are_compiled_in_and_the_others_stay_open(programs, monkeypatch):
    samplers = [Branching(0.5, stretch=1.1, power=2.0), Branching(0.4, stretch=1.2, power=2.0)]
    plans = [make(sampler=sampler, steps=5) for sampler in samplers]
    assert_as_alone(plans, sample_all(plans, DATA, keys=[1, 1]), [1, 1])
    assert programs == [2]
    others = [Branching(0.5, stretch=1.1, power=0.5), Branching(0.5, stretch=1.1, power=2.0, repeat=2)]
    assert grouped(plans + [make(sampler=sampler, steps=5) for sampler in others], monkeypatch) == [1, 1, 2]


@dataclass(frozen=True)
class Plain(dpmcmc.SGLD):
    """Keeps something worked out from a number beside its fields; JAX does not know it."""

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "_gain", float(self.step_size) ** 0.5)

    def step(self, key, state, gradient, t):
        return super().step(key, state, gradient._replace(value=self._gain * gradient.value), t)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Registered(dpmcmc.SGLD):
    """The same, whose numbers are leaves."""

    def __post_init__(self):
        super().__post_init__()
        object.__setattr__(self, "_gain", self.step_size**0.5)

    def step(self, key, state, gradient, t):
        return super().step(key, state, gradient._replace(value=self._gain * gradient.value), t)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "groups"), [(Registered, [2]), (Plain, [1, 1])])
def test_a_number_worked_out_from_another_follows_it(kind, groups, programs):
    plans = [make(sampler=kind(step), steps=5) for step in (0.5, 0.1)]
    assert_as_alone(plans, sample_all(plans, DATA, keys=[1, 2]), (1, 2))
    assert programs == groups


@pytest.mark.slow
@pytest.mark.parametrize("hashed", [True, False])
def test_a_target_that_is_no_dataclass_or_has_no_hash_is_itself_alone(hashed, programs, monkeypatch):
    class Plain:
        gradient_bound = None

        def __init__(self):
            inner = dpmcmc.targets.LogisticRegression(1.0, num_features=D)
            self.init, self.log_prior, self.log_likelihood = inner.init, inner.log_prior, inner.log_likelihood

    if not hashed:
        Plain.__hash__ = None
    target = Plain()
    one, other = make(target, steps=4), make(target, steps=5)
    first, _ = sample_all([one, one], DATA, keys=[1, 2])
    assert_as_alone([one], [first], [1], rtol=1e-4)
    assert programs == [2]
    assert grouped([one, other, one, make(Plain(), steps=4)], monkeypatch) == ([1, 3] if hashed else [1, 1, 2])


@pytest.mark.slow
def test_a_fast_path_that_wants_clip_as_a_python_number_gets_it(programs):
    class Strict(dpmcmc.targets.LogisticRegression):
        def clipped_gradient_sum(self, params, batch, mask, clip, bits=21, label_blind=False):
            return super().clipped_gradient_sum(params, batch, mask, float(clip), bits, label_blind)

    plans = [make(Strict(1.0), clip=clip, steps=4) for clip in (0.5, 0.25)]
    assert_as_alone(plans, sample_all(plans, DATA, keys=[1, 2]), (1, 2))
    assert programs == [1, 1]


@pytest.mark.slow
def test_a_diverged_plan_leaves_the_others_as_they_are(programs):
    good = [make(epsilon=epsilon) for epsilon in (0.5, 1.0, 2.0)]
    bad = make(sampler=dpmcmc.SGLD(step_size=1e11), steps=60, chains=2)
    with_bad = sample_all([good[0], bad, *good[1:], bad], DATA, keys=[1, 9, 2, 3, None])
    assert programs == [5]
    for at, steps in ((1, 60), (4, 60)):
        assert isinstance(with_bad[at], dpmcmc.DivergedError)
        assert with_bad[at].step <= steps
    assert "still spent" in str(with_bad[4])
    assert "spent" not in str(with_bad[1])
    results = [with_bad[at] for at in (0, 2, 3)]
    for result, alone in zip(results, sample_all(good, DATA, keys=[1, 2, 3]), strict=True):
        np.testing.assert_allclose(result.draws, alone.draws, rtol=1e-5)


def test_an_empty_sweep_is_empty_and_wrong_arguments_are_refused_before_anything_runs(programs):
    assert sample_all([], DATA) == []
    with pytest.raises(ValueError, match="keys must be one per plan"):
        sample_all([make()], DATA, keys=[1, 2])
    secret = dpmcmc.SecretKey()
    with pytest.raises(ValueError, match="one run"):
        sample_all([make(), make()], DATA, keys=[secret, secret])
    with pytest.raises(ValueError, match="num_records"):
        sample_all([make(), make(num_records=N + 1)], DATA)
    assert programs == []


def test_a_module_is_checked_where_it_is_made_and_not_where_a_program_fills_it_in():
    sampler = dpmcmc.SGHMC(1.0, friction=0.25)
    structure = Structure.of(sampler)
    assert structure.fill(structure.numbers(sampler)) == sampler
    with pytest.raises(ValueError, match="friction"):
        structure.fill([1.0, 1.0, 2.0])
    filled = jax.jit(lambda numbers: structure.fill(numbers).damping)([1.0, 1.0, 2.0])
    assert filled == 2.0


def compilations(work):
    """The programs that XLA compiles meanwhile."""
    seen = []

    def listener(name, duration, **facts):
        if name == "/jax/core/compile/backend_compile_duration":
            seen.append(facts.get("fun_name", duration))

    jax.monitoring.register_event_duration_secs_listener(listener)
    work()
    return seen


def test_steps_beyond_a_runs_own_are_not_taken(monkeypatch):
    plan = make(steps=21, chains=2, sampler=dpmcmc.SGHMC(0.1))
    padded = dpmcmc.sample(plan, DATA, key=1)
    monkeypatch.setattr(sizes, "rung", lambda size, octave: size)
    exact = dpmcmc.sample(plan, DATA, key=1)
    np.testing.assert_allclose(padded.draws, exact.draws, rtol=1e-5)
    for found, wanted in zip(padded.info, exact.info, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4)


def test_more_slots_than_were_charged_for_draw_batches_of_the_same_law():
    sampling = dpmcmc.Poisson(40)
    plan = make(sampling=sampling)
    slots = program_room.Program.of(plan).slots
    assert slots % 8 == 0
    assert N > slots >= plan.slots
    assert sampling.truncation(N, slots) <= sampling.truncation(N, plan.slots)
    keys = jax.random.split(jax.random.key(0), 4000)
    for room in (plan.slots, 2 * plan.slots):
        indices, mask = jax.jit(jax.vmap(selector(sampling, N, room)))(keys)
        counts = np.asarray(mask).sum(axis=1)
        often = np.bincount(np.asarray(indices)[np.asarray(mask)], minlength=N)
        variance = N * 0.1 * 0.9
        # Within five errors: of the mean size, of its variance, and of the sum of N squares of records' frequencies.
        assert abs(counts.mean() - 40) < 5 * np.sqrt(variance / 4000)
        assert abs(counts.var() / variance - 1) < 5 * np.sqrt(2 / 4000)
        squares = np.sum((often - 400) ** 2 / 360)
        assert abs(squares - N) < 5 * np.sqrt(2 * N)
