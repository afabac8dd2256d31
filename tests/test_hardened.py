"""Hardened runs: ChaCha20 against its RFC, keys of the right kind, replay on neighbours, and what is charged."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.config import dump, make_plan
from dpmcmc.config.file import load
from dpmcmc.engine.sweep import sample_all
from dpmcmc.mechanisms import OPS, AdaOPS, CertifiedOPS, ObjectivePerturbation, OutputPerturbation, SufficientStatistics
from dpmcmc.mechanisms.float64 import float64
from dpmcmc.planning import noise
from dpmcmc.privacy.accounting import discrete_gaussian
from dpmcmc.privacy.accounting.charging import DRAW_SHARE
from dpmcmc.privacy.accounting.float_excess import KAPPA
from dpmcmc.privacy.query import chacha, fixed_point, integer_noise, query, randomness
from dpmcmc.privacy.query import gaussian_release as release_room
from dpmcmc.privacy.query.chacha import CHACHA20
from dpmcmc.privacy.query.gaussian_release import gaussian_release, grid, noise_on_grid
from dpmcmc.privacy.query.query import GradientQuery
from dpmcmc.privacy.query.randomness import SecretKey, streams_of
from dpmcmc.privacy.query.second_moment import SecondMoment
from dpmcmc.report.files import privacy_json

# --- the generator --------------------------------------------------------------------------------------

#: RFC 8439: (key bytes, counter, nonce bytes, words), of section 2.3.2 and appendix A.1.
VECTORS = [
    (
        bytes(range(32)),
        1,
        bytes.fromhex("000000090000004a00000000"),
        "e4e7f110 15593bd1 1fdd0f50 c47120a3 c7f4d1c7 0368c033 9aaa2204 4e6cd4c3"
        "466482d2 09aa9f07 05d7c214 a2028bd9 d19c12b5 b94e16de e883d0cb 4e3c50a2",
    ),
    (
        bytes(32),
        0,
        bytes(12),
        "ade0b876 903df1a0 e56a5d40 28bd8653 b819d2bd 1aed8da0 ccef36a8 c70d778b"
        "7c5941da 8d485751 3fe02477 374ad8b8 f4b8436a 1ca11815 69b687c3 8665eeb2",
    ),
    (
        bytes(32),
        1,
        bytes(12),
        "bee7079f 7a385155 7c97ba98 0d082d73 a0290fcb 6965e348 3e53c612 ed7aee32"
        "7621b729 434ee69c b03371d5 d539d874 281fed31 45fb0a51 1f0ae1ac 6f4d794b",
    ),
]


def words_of(raw: bytes) -> jax.Array:
    return jnp.asarray(np.frombuffer(raw, "<u4").astype(np.uint32))


@pytest.mark.parametrize(("key", "counter", "nonce", "words"), VECTORS, ids=["2.3.2", "A.1-1", "A.1-2"])
def test_blocks_are_those_of_the_rfc(key, counter, nonce, words):
    found = chacha.block(words_of(key), jnp.asarray([counter], jnp.uint32), words_of(nonce))[:, 0]
    assert [f"{word:08x}" for word in np.asarray(found)] == [words.replace(" ", "")[8 * i :][:8] for i in range(16)]


def test_fewer_rounds_are_not_those_of_the_rfc(monkeypatch):
    loop = jax.lax.fori_loop
    compiled = (chacha._columns, chacha._side_by_side)
    for function in compiled:
        function.clear_cache()
    key, counter, nonce, words = VECTORS[0]
    with monkeypatch.context() as patch:
        patch.setattr(chacha.jax.lax, "fori_loop", lambda a, b, body, start: loop(a, b - 1, body, start))
        found = chacha.block(words_of(key), jnp.asarray([counter], jnp.uint32), words_of(nonce))[:, 0]
    for function in compiled:
        function.clear_cache()
    assert f"{int(found[0]):08x}" != words[:8]


def inputs_read(monkeypatch) -> list[tuple[int, ...]]:
    """(counter, nonce) of every block that a key's uses read."""
    read: list[tuple[int, ...]] = []
    honest = chacha.block

    def recorded(key, counter, nonce):
        read.extend((int(c), *(int(n) for n in nonce)) for c in np.asarray(counter))
        return honest(key, counter, nonce)

    with monkeypatch.context() as patch:
        patch.setattr(chacha, "block", recorded)
        key = jnp.arange(8, dtype=jnp.uint32)
        chacha._random_bits(key, 32, (40, 3))
        chacha._split(key, (9,))
        for data in (0, 1, 7, 2**32 - 1):
            chacha._fold_in(key, np.uint32(data))
        chacha.more_words(key, 40)
        for chain, step in ((0, 0), (0, 1), (1, 0), (2**32 - 1, 7)):
            chacha.at(jax.random.wrap_key_data(key, impl=CHACHA20), chain, step)
    return read


def test_bits_split_and_fold_in_never_read_the_same_block(monkeypatch):
    read = inputs_read(monkeypatch)
    assert len(read) == 8 + 5 + 4 + 3 + 4
    assert len(set(read)) == len(read)
    monkeypatch.setattr(chacha, "_SPLIT", chacha._FOLD)  # planted: one nonce for two uses
    read = inputs_read(monkeypatch)
    assert len(set(read)) < len(read)


def test_words_and_keys_are_all_different():
    key = jax.random.key(1, impl=CHACHA20)

    @jax.jit
    def everything(key):
        folded = jax.vmap(lambda i: jax.random.key_data(jax.random.fold_in(key, i)))(jnp.arange(20))
        return jax.random.bits(key, (1000,), jnp.uint32), jax.random.key_data(jax.random.split(key, 101)), folded

    words, children, folded = (np.asarray(part) for part in everything(key))
    assert children.shape == (101, 8)
    every = np.concatenate([words, children.ravel(), folded.ravel()])
    # 2000 words of 32 bits: a collision has probability 5e-4.
    assert len(np.unique(every)) == every.size


@pytest.mark.slow
def test_it_works_under_jit_vmap_and_scan():
    keys = jax.random.split(jax.random.key(0, impl=CHACHA20), (2, 3))

    def draw(key):
        return jax.random.bits(jax.random.fold_in(jax.random.split(key)[1], 5), (4, 5), jnp.uint32)

    together = np.asarray(jax.jit(jax.vmap(jax.vmap(draw)))(keys))
    scanned = jax.lax.scan(lambda carry, key: (carry, draw(key)), 0, keys.reshape(-1))[1]
    np.testing.assert_array_equal(together.reshape(6, 4, 5), scanned)
    np.testing.assert_array_equal(together[1, 2], draw(keys[1, 2]))


def test_every_width_and_shape():
    key = jax.random.key(3, impl=CHACHA20)
    for dtype, shape in ((jnp.uint8, (17,)), (jnp.uint16, (0,)), (jnp.uint32, ()), (jnp.uint32, (3, 5))):
        bits = jax.random.bits(key, shape, dtype)
        assert bits.shape == shape
        assert bits.dtype == dtype
    x = np.asarray(jax.random.uniform(key, (20_000,)))
    assert abs(x.mean() - 0.5) < 4 / math.sqrt(12 * 20_000)
    assert sorted(np.asarray(jax.random.permutation(key, 10)).tolist()) == list(range(10))


def test_more_blocks_than_the_counter_has_are_refused():
    key = jax.ShapeDtypeStruct((8,), jnp.uint32)
    with pytest.raises(ValueError, match="4294967296 blocks"):
        jax.eval_shape(lambda k: chacha._random_bits(k, 32, (1 << 20, (1 << 16) + 1)), key)
    with pytest.raises(ValueError, match="4294967296 blocks"):
        jax.eval_shape(lambda k: chacha._split(k, (1 << 20, (1 << 13) + 1)), key)
    assert jax.eval_shape(lambda k: chacha._random_bits(k, 32, (1 << 20, 1 << 9)), key).size == 1 << 29


def test_seeds_and_other_keys_are_adopted():
    assert jax.random.key_data(jax.random.key(5, impl=CHACHA20)).tolist() == [5, 0, 0, 0, 0, 0, 0, 0]
    threefry = jax.random.key(5, impl="threefry2x32")
    assert chacha.is_chacha(chacha.adopted(threefry))
    assert not chacha.is_chacha(threefry)
    own = jax.random.key(5, impl=CHACHA20)
    assert chacha.adopted(own) is own
    with pytest.raises(ValueError, match="32 bytes"):
        chacha.new_key(bytes(31))


# --- keys of a run --------------------------------------------------------------------------------------

N, D = 400, 4
RNG = np.random.default_rng(0)
DATA = {"x": RNG.normal(size=(N, D)).astype(np.float32) / 2, "y": RNG.integers(0, 2, N)}


def make(hardened=True, sampler=None, target=None, epsilon=2.0, sampling=None, **kwargs):
    privacy = dpmcmc.Privacy(**{"epsilon": epsilon, "delta": 1e-5, "hardened": hardened, **kwargs.pop("privacy", {})})
    kwargs = {"steps": 12, "chains": 2, **kwargs}
    return dpmcmc.plan(
        dpmcmc.targets.LogisticRegression(num_features=D) if target is None else target,
        num_records=N,
        sampler=dpmcmc.SGLD(step_size=1.0) if sampler is None else sampler,
        sampling=dpmcmc.Poisson(40) if sampling is None else sampling,
        privacy=privacy,
        **kwargs,
    )


@pytest.fixture(scope="module", name="plans")
def _plans():
    return {hardened: make(hardened) for hardened in (False, True)}


@pytest.mark.slow
def test_fresh_keys_are_of_the_plans_generator(plans):
    for hardened in (False, True):
        streams, secret = streams_of(None, hardened)
        assert secret
        assert all(chacha.is_chacha(key) == hardened for key in streams)
        assert jax.random.key_data(streams.noise).size == (8 if hardened else 2)
    a, b = (dpmcmc.sample(plans[True], DATA) for _ in range(2))
    assert a.guarantee == plans[True].guarantee
    assert not np.array_equal(a.draws, b.draws)


def test_a_secret_key_of_the_other_generator_is_refused_and_stays_unused(plans):
    assert SecretKey().fits(True)
    assert SecretKey().fits(False)
    for hardened in (False, True):
        key = SecretKey(hardened=not hardened)
        with pytest.raises(ValueError, match="other generator"):
            dpmcmc.sample(plans[hardened], DATA, key=key)
        with pytest.raises(ValueError, match="other generator"):
            sample_all([plans[hardened]], DATA, keys=[key])
        key.streams()
        with pytest.raises(ValueError, match="has been used"):
            streams_of(key, not hardened)


@pytest.mark.slow
def test_seeds_reproduce_with_chacha_and_without_a_guarantee(plans):
    runs = [dpmcmc.sample(plans[True], DATA, key=key) for key in (3, 3, 4, jax.random.key(9), jax.random.key(9))]
    assert all(run.guarantee is None for run in runs)
    np.testing.assert_array_equal(runs[0].draws, runs[1].draws)
    np.testing.assert_array_equal(runs[3].draws, runs[4].draws)
    assert not np.array_equal(runs[0].draws, runs[2].draws)
    assert all(chacha.is_chacha(key) for seed in (3, jax.random.key(3)) for key in streams_of(seed, True)[0])


@pytest.mark.slow
def test_a_sweep_is_the_single_runs():
    # Full batches: a Poisson plan's draws depend on the room that its program has for a batch.
    plans = [make(epsilon=epsilon, sampling=dpmcmc.Full()) for epsilon in (2.0, 1.0)]
    together = sample_all(plans, DATA, keys=[3, 5])
    for plan, key, result in zip(plans, (3, 5), together, strict=True):
        np.testing.assert_allclose(result.draws, dpmcmc.sample(plan, DATA, key=key).draws, atol=1e-5)
    assert not np.allclose(together[0].draws, together[1].draws)


# --- what is charged ------------------------------------------------------------------------------------


def test_integer_noise_costs_its_deviation_and_no_more(plans):
    standard, hardened = plans[False].guarantee, plans[True].guarantee
    (draw,) = (e for e in hardened.events if e.mechanism == "approximate_draw")
    assert draw.count == D * 12 * 2
    assert draw.rate >= discrete_gaussian.deviation(plans[True].levels[0])
    assert [e for e in hardened.events if e != draw] == list(standard.events)
    assert standard.epsilon <= hardened.epsilon <= min(standard.epsilon * (1 + 1e-6), 2.0)
    again = dpmcmc.Guarantee.from_json(hardened.to_json())
    assert again.epsilon == hardened.epsilon
    assert plans[False].levels == (0, 0)
    assert set(plans[True].guarantee.cross_check()) == {"advanced", "rdp", "pld"}


def test_full_batches_and_closed_form_meet_their_target():
    target = dpmcmc.targets.LogisticRegression(num_features=D)
    common = {"num_records": N, "sampler": dpmcmc.SGLD(step_size=1.0), "steps": 4}
    for sampling, privacy in (
        (dpmcmc.Full(), {}),
        (dpmcmc.FixedSize(4), {"calibrator": "closed_form", "accountant": "advanced"}),
    ):
        plans = [
            dpmcmc.plan(
                target,
                sampling=sampling,
                privacy=dpmcmc.Privacy(epsilon=0.01, delta=1e-5, hardened=hardened, **privacy),
                **common,
            )
            for hardened in (False, True)
        ]
        assert plans[1].guarantee.epsilon <= 0.01
        # Nothing but the deviation's own share of δ: no noise is spent on it.
        assert plans[1].required_multiplier == pytest.approx(plans[0].required_multiplier, rel=1e-3)


@pytest.mark.slow
def test_a_second_moment_is_charged_by_the_entry():
    sampler = dpmcmc.SGFS(step_size=0.01, fisher="query", noise_ratio=3.0)
    plan = make(sampler=sampler)
    assert isinstance(plan.second, SecondMoment)
    assert min(plan.levels) >= 3
    (draw,) = (e for e in plan.guarantee.events if e.mechanism == "approximate_draw")
    assert draw.count >= (D + D * (D + 1) // 2) * 12 * 2
    assert np.all(np.isfinite(dpmcmc.sample(plan, DATA, key=0).draws))


def test_an_epsilon_at_which_the_deviation_shows_is_taken_for_the_largest_at_which_it_does_not():
    hot = dpmcmc.SGLD(step_size=1e6)
    plan = make(epsilon=1000.0, sampler=hot)
    (draw,) = plan.schedule.deviations
    spent = discrete_gaussian.price(draw, plan.privacy.epsilon)
    assert spent == pytest.approx(DRAW_SHARE * 1e-5, rel=1e-6)
    assert 30 < plan.guarantee.epsilon <= plan.privacy.epsilon < 60
    assert "epsilon 1000 was asked for" in dict(plan.lines())["note"]
    in_metric = make(epsilon=1000.0, sampler=hot, target=LOGISTIC, metric=dpmcmc.PrivateMetric("gram"))
    assert 30 < in_metric.guarantee.epsilon <= in_metric.privacy.epsilon <= plan.privacy.epsilon
    assert "epsilon 1000 was asked for" in in_metric.note
    assert discrete_gaussian.price(*in_metric.schedule.deviations, in_metric.privacy.epsilon) <= DRAW_SHARE * 1e-5
    assert "note" not in dict(make().lines())
    assert 900 < make(False, epsilon=1000.0, sampler=hot).guarantee.epsilon <= 1000
    with pytest.raises(dpmcmc.privacy.UnsupportedCombination, match="hardened: false"):
        make(epsilon=None, sampler=hot, privacy={"calibrator": "free"})
    assert DRAW_SHARE < 1e-3


def test_left_open_it_is_integers_where_they_are_proved_and_floats_that_are_named_beyond():
    hot, common = dpmcmc.SGLD(step_size=1e6), {"num_records": N, "delta": 1e-5}
    for plan, hardened in [
        (make(None), True),
        (make(None, epsilon=1000.0, sampler=hot), False),
        (make(None, epsilon=None, sampler=hot, privacy={"calibrator": "free"}), False),
        (make(None, epsilon=1000.0), True),  # the sampler's own noise is the same either way, and enough
        (OutputPerturbation().plan(LOGISTIC, epsilon=2.0, **common), True),
        (OutputPerturbation().plan(LOGISTIC, epsilon=500.0, **common), False),
    ]:
        assert plan.hardened is hardened
        lines = dict(plan.lines())
        assert ("noise from floats" in lines.get("note", "")) == ("unproved" in lines) == (not hardened)
        assert hardened or plan.guarantee.epsilon > 60


def test_a_delta_that_integer_noise_takes_whole_is_refused_with_a_way_out():
    common = {"num_records": N, "epsilon": 2.0}
    for release in (
        lambda: make(privacy={"delta": 1e-28}),
        lambda: make(epsilon=None, privacy={"delta": 1e-28, "calibrator": "free"}),
        lambda: OutputPerturbation().plan(LOGISTIC, delta=1e-22, hardened=True, **common),
        lambda: SufficientStatistics().plan(LINEAR, delta=1e-26, hardened=True, **common),
    ):
        with pytest.raises(ValueError, match="at any epsilon; take a larger delta, or ask for hardened: false"):
            release()
    assert OutputPerturbation().plan(LOGISTIC, delta=1e-22, hardened=False, **common).guarantee.delta == 1e-22


def test_a_target_whose_shape_is_not_known_is_charged_for_a_million_numbers():
    known, unknown = make(), make(target=dpmcmc.targets.LogisticRegression())
    assert unknown.coordinates == 10**6
    assert known.guarantee.epsilon <= unknown.guarantee.epsilon <= known.guarantee.epsilon * (1 + 1e-9)


class Growing:
    """A target of one parameter until it has seen the data, and of as many as they have features from then on."""

    size = 1

    def init(self, key):
        return jnp.zeros(self.size)

    def log_prior(self, params):
        return -0.5 * jnp.sum(params**2)

    def log_likelihood(self, params, record):
        return -0.5 * (record["y"] - record["x"] @ params) ** 2


def test_a_query_refuses_more_numbers_than_were_charged():
    plan = make(target=Growing())
    assert plan.coordinates == 1
    key = jax.random.key(0, impl=CHACHA20)

    def release(charged, second=None):
        q = hardened_query(coordinates=charged, second=second)
        return jax.eval_shape(q, jnp.zeros(6), neighbours()[0], key, key, jnp.float32(5.0))

    release(6)
    release(None)
    with pytest.raises(ValueError, match="releases 6 numbers and the plan charged for 1"):
        release(plan.coordinates)
    moment = SecondMoment(ratio=2.0, structure="diagonal")
    release(12, moment)
    with pytest.raises(ValueError, match="releases 12 numbers"):
        release(6, moment)


def test_a_plan_counts_what_its_query_releases():
    assert make().coordinates == D
    assert make(False).coordinates is None
    (draw,) = (e for e in make().guarantee.events if e.mechanism == "approximate_draw")
    assert draw.count == D * 12 * 2


def without(body, *mechanisms):
    """The file with these events left out, and ε restated for what is left."""
    body = {**body, "events": [e for e in body["events"] if e["mechanism"] not in mechanisms]}
    return body | {"epsilon": dpmcmc.Guarantee.from_json(body).epsilon}


def test_verify_wants_the_deviations_of_a_hardened_run(plans, tmp_path, capsys):
    path = tmp_path / "privacy.json"
    plan = plans[True]
    body = privacy_json(plan, plan.guarantee)

    def verified(content) -> int:
        path.write_text(json.dumps(content))
        return main(["verify", str(path)])

    assert verified(body) == 0
    for mechanism in ("approximate_draw", "batch_overflow"):
        assert verified(without(body, mechanism)) == 1
        assert mechanism in capsys.readouterr().err
    for name in ("rate", "count"):
        small = json.loads(json.dumps(body))
        for event in small["events"]:
            if event["mechanism"] in ("approximate_draw", "batch_overflow"):
                event[name] = 0 if name == "count" else event[name] / 2
        assert verified(small) == 1
    for name in ("hardened", "coordinates", "sampling"):
        assert verified({key: value for key, value in body.items() if key != name}) == 2
    assert verified(body | {"sampling": body["sampling"] | {"slots": plan.slots - 5}}) == 1
    standard = plans[False]
    assert verified(privacy_json(standard, standard.guarantee)) == 0


def test_verify_refuses_a_trace_without_a_query(plans, tmp_path, capsys):
    body = plans[True].guarantee.to_json()
    nothing = {"mechanism": "approximate_draw", "noise_multiplier": 0.0, "rate": 0.0, "count": 1}
    path = tmp_path / "privacy.json"
    path.write_text(json.dumps(body | {"events": [nothing], "epsilon": 0.0}))
    assert main(["verify", str(path)]) == 1
    assert "charges no query" in capsys.readouterr().err
    path.write_text(json.dumps(body))
    assert main(["verify", str(path)]) == 0
    assert "unchecked" in capsys.readouterr().out


def test_noise_too_small_for_integers_is_refused():
    # One quiet step among loud ones, whose noise takes the grid's fine end away.
    quiet = np.array([0.002, 5.0])
    with pytest.raises(ValueError, match="too small for integer noise"):
        noise.levels(quiet, (21, 0), None)
    assert noise.levels(quiet * 50, (21, 0), None) == (5, 0)
    assert noise.levels(np.array([5.0]), (21, 19), SecondMoment(ratio=3.0)) == (4, 4)


CONFIG = """
name: hardened
data: {{name: two_normals}}
target: {{name: logistic_regression, prior_scale: 1.0}}
{how}
privacy: {{epsilon: 1.0, delta: 1.0e-6, hardened: true}}
"""


def test_a_config_makes_a_hardened_plan_of_a_sampler_and_of_a_mechanism(tmp_path):
    path = tmp_path / "c.yaml"
    how = "sampler: {name: sgld, step_size: 1.0}\nsampling: {scheme: poisson, batch_size: 50}\nrun: {steps: 10}"
    path.write_text(CONFIG.format(how=how))
    config = load(path, [])
    assert config.privacy.hardened
    assert make_plan(config).hardened
    path.write_text(dump(config, tmp_path))
    assert load(path, []) == config
    path.write_text(CONFIG.format(how="mechanism: {name: output_perturbation}"))
    config = load(path, [])
    assert make_plan(config).hardened
    path.write_text(dump(config, tmp_path))
    assert load(path, []) == config
    assert not make_plan(load(path, ["privacy.hardened=false"])).hardened


# --- the query ------------------------------------------------------------------------------------------


class Linear:
    """θ = 0, so the gradient of a record is −y·x."""

    def log_prior(self, params):
        return -0.5 * jnp.sum(params**2)

    def log_likelihood(self, params, record):
        return -0.5 * (record["y"] - record["x"] @ params) ** 2


def neighbours(rows: int = 64, size: int = 6):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(rows, size)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.full(rows, 3.0, np.float32)
    other = y.copy()
    other[7] = -3.0
    return {"x": x, "y": y}, {"x": x, "y": other}


def hardened_query(rows: int = 64, **kwargs) -> GradientQuery:
    return GradientQuery(Linear(), rows, float(rows), 1.0, None, levels=(4, 4), **kwargs)


@pytest.mark.optimised
def test_neighbours_under_the_same_keys_differ_by_their_sums_alone(monkeypatch):
    """In integers: not one unit of the noise depends on the data."""
    seen = []
    honest = query._with_noise

    def recorded(total, *arguments):
        noisy = honest(total, *arguments)
        seen.append((total, noisy))
        return noisy

    monkeypatch.setattr(query, "_with_noise", recorded)
    q = hardened_query(second=SecondMoment(ratio=2.0))
    key = jax.random.key(2, impl=CHACHA20)

    @jax.jit
    def run(records):
        seen.clear()
        return q(jnp.zeros(6), records, key, jax.random.fold_in(key, 1), jnp.float32(40.0)).value, list(seen)

    def exact(total) -> np.ndarray:
        return np.asarray(total.high, np.int64) * 65536 + np.asarray(total.low)

    (value, sums), (other_value, other_sums) = (run(records) for records in neighbours())
    assert len(sums) == 2  # gradient and second moment
    for (one, noisy), (other, other_noisy) in zip(sums, other_sums, strict=True):
        np.testing.assert_array_equal(exact(noisy) - exact(one), exact(other_noisy) - exact(other))
        assert np.all(exact(noisy) != exact(one))
    moved = (exact(sums[0][0]) - exact(other_sums[0][0])) * 2.0**-21
    assert 1.99 < np.linalg.norm(moved) <= 2 * (1 + KAPPA)
    distance = np.linalg.norm(np.asarray(value - other_value, np.float64))
    assert distance == pytest.approx(np.linalg.norm(moved), rel=1e-4)


def noise_of(q: GradientQuery, draws: int, std: float) -> np.ndarray:
    """Noise in the value over s_t, (draws·size,)."""
    records = neighbours()[0]
    keys = jax.random.split(jax.random.key(4, impl=CHACHA20), draws)
    call = jax.jit(jax.vmap(lambda key: q(jnp.zeros(6), records, key, key, jnp.float32(std)).value))
    clean = fixed_point.FixedPoint.to_float64(q.clipped_sum(jnp.zeros(6), records, keys[0]), 1.0, q.bits)
    return np.ravel(np.asarray(call(keys), np.float64) - clean) / std


@pytest.mark.optimised
@pytest.mark.slow
def test_the_query_adds_the_noise_that_is_charged(monkeypatch):
    found = noise_of(hardened_query(), 3000, 5.0)
    error = math.sqrt(2 / len(found))
    assert abs(np.mean(found**2) - 1) < 4 * error
    assert abs(np.mean(found)) < 4 / math.sqrt(len(found))
    honest = integer_noise.tree_noise
    monkeypatch.setattr(integer_noise, "tree_noise", lambda key, like, std, *rest: honest(key, like, std / 2, *rest))
    assert abs(np.mean(noise_of(hardened_query(), 3000, 5.0) ** 2) - 1) > 20 * error


def test_leaves_and_entries_of_one_release_have_noise_of_their_own():
    like = {"a": jnp.zeros((4, 3), jnp.int32), "b": jnp.zeros(12, jnp.int32), "c": jnp.zeros((), jnp.int32)}
    key = jax.random.key(1, impl=CHACHA20)
    high, low = jax.jit(lambda key: integer_noise.tree_noise(key, like, jnp.float32(2.0**22), 1.0, 4))(key)
    assert jax.tree.map(jnp.shape, low) == jax.tree.map(jnp.shape, like)
    flat = [
        int(h) * 65536 + int(l)
        for h, l in zip(*(np.concatenate([np.ravel(x) for x in jax.tree.leaves(t)]) for t in (high, low)), strict=True)
    ]
    assert len(set(flat)) == 25


def test_the_noise_of_a_second_moment_has_its_scales():
    scale = np.array([1, 0.5**0.5, 1, 0.5**0.5], np.float32)
    like = jnp.zeros(4, jnp.int32)
    keys = jax.random.split(jax.random.key(6, impl=CHACHA20), 20_000)
    draw = jax.jit(jax.vmap(lambda key: integer_noise.tree_noise(key, like, jnp.float32(2.0**22), scale, 4)))
    high, low = (np.asarray(part, np.float64) for part in draw(keys))
    std = np.std((high * 65536 + low) / 2.0**22, axis=0)
    np.testing.assert_allclose(std, scale, rtol=4 / math.sqrt(2 * 20_000))


def test_plain_runs_and_mechanisms_have_no_hardened_keys():
    key = SecretKey(hardened=True)
    plain = dataclasses.replace(make(False), privacy=None, guarantee=None, noise_multipliers=None)
    assert not plain.hardened
    with pytest.raises(ValueError, match="not hardened"):
        dpmcmc.sample(plain, DATA, key=key)
    assert randomness.PURPOSES == ("batch", "noise", "dynamics", "init")


# --- one-shot releases ----------------------------------------------------------------------------------

CHACHA_KEY = jax.random.key(11, impl=CHACHA20)
LINEAR = dpmcmc.targets.LinearRegression(num_features=D, row_bound=1.0, label_bound=1.0)
LOGISTIC = dpmcmc.targets.LogisticRegression(num_features=D, row_bound=1.0)


def test_words_on_the_host_are_the_generators():
    for count in (1, 15, 16, 100):
        words = chacha.words_on_host(CHACHA_KEY, count)
        np.testing.assert_array_equal(words, jax.random.bits(CHACHA_KEY, (count,), jnp.uint32))
    # Many keys: a few are computed at a time.
    keys = jax.random.split(CHACHA_KEY, (2, 6))
    found = jax.jit(jax.vmap(jax.vmap(lambda key: jax.random.bits(key, (1100,), jnp.uint32))))(keys)
    for i, j in ((0, 0), (0, 5), (1, 3)):
        np.testing.assert_array_equal(chacha.words_on_host(keys[i, j], 1100), found[i, j])
    # Keys that XLA computes on several threads each, which a small call cannot.
    words = jax.jit(jax.vmap(lambda key: jax.random.bits(key, (1 << 17,), jnp.uint32)))(keys[0, :2])
    np.testing.assert_array_equal(words[1], chacha.words_on_host(keys[0, 1], 1 << 17))
    # Blocks from a first one on go on where those before end.
    whole = chacha.words_on_host(CHACHA_KEY, 96).reshape(16, 6)
    np.testing.assert_array_equal(chacha.words_on_host(CHACHA_KEY, 64, 2).reshape(16, 4), whole[:, 2:])
    with pytest.raises(ValueError, match="4294967296 blocks"):
        chacha.words_on_host(CHACHA_KEY, 17, 2**32 - 1)


def one_by_one(key, size: int, std: float) -> list[int]:
    """Noise on the host by whole numbers: each draw compares 115 bits at once."""
    rows, levels = discrete_gaussian.table().words.astype(object), discrete_gaussian.LEVELS[-1]
    factors = [1, *np.asarray(integer_noise.coefficients(jnp.float32(std), levels)).tolist()]
    words = chacha.words_on_host(key, 4 * levels * size).reshape(4, levels, size).astype(object)
    total = [0] * size
    for level, factor in enumerate(factors):
        for i in range(size):
            first, *others = (int(word) for word in words[:, level, i])
            drawn, kept = first >> 13, int(rows[0, first & 8191]) >> 13
            for at, word in enumerate(others, 1):
                drawn, kept = drawn << 32 | word, kept << 32 | int(rows[at, first & 8191])
            total[i] += factor * ((first & 8191 if drawn < kept else int(rows[0, first & 8191]) & 8191) - 4096)
    return total


def test_noise_on_the_host_is_that_of_the_tables(monkeypatch):
    assert integer_noise.on_host(CHACHA_KEY, 37, 2.0**30.7).tolist() == one_by_one(CHACHA_KEY, 37, 2.0**30.7)
    with monkeypatch.context() as patch:
        patch.setattr(integer_noise, "_AT_A_TIME", 16)  # no two parts read the same block
        several = integer_noise.on_host(CHACHA_KEY, 37, 2.0**30.7)
    assert len(np.unique(several)) == 37
    assert several[:16].tolist() == integer_noise.on_host(CHACHA_KEY, 16, 2.0**30.7).tolist()

    def z_of_variance() -> float:
        found = integer_noise.on_host(CHACHA_KEY, 40_000, 2.0**30.7) / 2.0**30.7
        return (np.mean(found**2) - 1) / math.sqrt(2 / len(found))

    assert abs(z_of_variance()) < 4
    honest = integer_noise.coefficients
    monkeypatch.setattr(integer_noise, "coefficients", lambda *given: honest(*given) // 2)  # planted: half the noise
    assert abs(z_of_variance()) > 40


def test_a_release_of_neighbours_differs_by_their_values_alone(monkeypatch):
    value, other = np.array([0.3, -7.25, 1e6]), np.array([1.3, -7.25, 1e6 + 0.5])
    unit = grid(2.0)
    released = [gaussian_release(x, 2.0, CHACHA_KEY) / unit for x in (value, other)]
    np.testing.assert_array_equal(released[1] - released[0], np.rint(other / unit) - np.rint(value / unit))
    # Planted: the last bits of the noise depend on the value, as those of a float's sum do.
    honest = integer_noise.on_host
    monkeypatch.setattr(integer_noise, "on_host", lambda key, size, std: honest(key, size, std) + len(sums.pop()))
    sums = [[1], [1, 2]]
    released = [gaussian_release(x, 2.0, CHACHA_KEY) / unit for x in (value, other)]
    assert np.any(released[1] - released[0] != np.rint(other / unit) - np.rint(value / unit))


@pytest.mark.parametrize("hardened", [False, True])
def test_the_noise_of_a_mechanism_is_that_of_its_plan(monkeypatch, hardened):
    """Without the noise in integers a hardened release is exact: it has no other; nor has one of floats."""
    names = {True: (integer_noise, "on_host"), False: (release_room, "standard_normal")}
    plan = SufficientStatistics().plan(LINEAR, num_records=N, epsilon=2.0, delta=1e-5, hardened=hardened)
    assert plan.hardened == hardened
    data = {"x": np.asarray(DATA["x"], np.float64) / 8, "y": DATA["y"].astype(np.float64)}
    noisy = [np.ravel(dpmcmc.sample(plan, data, key=key).draws) for key in (1, 2)]
    assert np.all(noisy[0] != noisy[1])
    for silent in (True, False):
        with monkeypatch.context() as patch:
            patch.setattr(*names[silent], lambda _, shape, *rest: np.zeros(shape, np.int64))
            quiet = [np.ravel(dpmcmc.sample(plan, data, key=key).draws) for key in (1, 2)]
        assert np.array_equal(*quiet) == (silent == hardened)


def test_a_mechanism_charges_its_integer_noise():
    for mechanism, target in (
        (SufficientStatistics(), LINEAR),
        (AdaOPS(), LINEAR),
        (OutputPerturbation(), LOGISTIC),
        (CertifiedOPS(steps=20), LOGISTIC),
        (ObjectivePerturbation(regularisation=10.0), LOGISTIC),
    ):
        plans = [
            mechanism.plan(target, num_records=N, epsilon=2.0, delta=1e-5, hardened=hardened)
            for hardened in (False, True)
        ]
        standard, hardened = (plan.guarantee for plan in plans)
        (draws,) = discrete_gaussian.releases_event(standard.events)
        assert draws in hardened.events
        assert [e.mechanism for e in hardened.events if e != draws] == [e.mechanism for e in standard.events]
        assert hardened.delta == standard.delta
        assert standard.epsilon * (1 - 1e-9) <= hardened.epsilon <= 2.0
        assert hardened.epsilon == pytest.approx(standard.epsilon, rel=1e-9)
    # One that adds no Gaussian noise is charged for none.
    assert not any(e.mechanism == "approximate_draw" for e in pure(2.0).guarantee.events)


def pure(epsilon: float):
    return OPS(form="range", radius=1.0).plan(LOGISTIC, num_records=N, epsilon=epsilon, delta=1e-5)


def test_what_integer_noise_is_not_charged_for_is_refused_with_a_way_out():
    with pytest.raises(ValueError, match="hardened: false"):
        integer_noise.on_host(CHACHA_KEY, discrete_gaussian.MOST_NUMBERS + 1, 2.0**30)


def test_a_mechanism_takes_no_larger_epsilon_than_integer_noise_is_proved_for():
    plan = OutputPerturbation().plan(LOGISTIC, num_records=N, epsilon=500.0, delta=1e-5, hardened=True)
    (draws,) = discrete_gaussian.releases_event(plan.guarantee.events)
    assert 30 < plan.guarantee.epsilon < 45
    assert discrete_gaussian.price(draws, plan.guarantee.epsilon) <= DRAW_SHARE * 1e-5
    assert "epsilon 500 was asked for" in str(plan)
    assert not pure(500.0).note  # a draw without Gaussian noise


def test_verify_wants_the_deviation_of_a_hardened_mechanism(tmp_path, capsys):
    path = tmp_path / "privacy.json"

    def verified(content) -> int:
        path.write_text(json.dumps(content))
        return main(["verify", str(path)])

    floats = pure(2.0)  # hardened, and its draw is computed in floating point
    assert verified(privacy_json(floats, floats.guarantee)) == 0
    assert "unproved     a part of this release is drawn in floating point" in capsys.readouterr().out
    for hardened in (True, False):
        plan = OutputPerturbation().plan(LOGISTIC, num_records=N, epsilon=2.0, delta=1e-5, hardened=hardened)
        body = privacy_json(plan, plan.guarantee)
        assert verified(body) == 0
        assert ("unproved" in capsys.readouterr().out) == (not hardened)
        assert verified(without(body, "approximate_draw")) == int(hardened)
        capsys.readouterr()
        silent = without({key: value for key, value in body.items() if key != "hardened"}, "approximate_draw")
        assert verified(silent) == 0
        assert "unproved" in capsys.readouterr().out


def test_what_is_not_proved_is_said():
    for hardened in (True, False):
        said = {name: text for name, text in make(hardened).lines() if name == "unproved"}
        assert bool(said) == (not hardened)
        assert hardened or "not claimed to be cryptographic" in said["unproved"]
    assert "the draw from the posterior" in str(pure(1.0))
    assert "unproved" not in str(OutputPerturbation().plan(LOGISTIC, num_records=N, epsilon=2.0, delta=1e-5))


def test_noise_on_a_grid_of_float64_is_whole_and_as_loud_as_asked():
    for key in (CHACHA_KEY, jax.random.key(3)):
        with float64():
            found = jax.jit(lambda key: noise_on_grid(key, 20_000, jnp.float64(3.0), jnp.float64(2.0**-31)))(key)
            found = np.asarray(found)
        assert found.dtype == np.float64
        np.testing.assert_array_equal(found, np.rint(found))
        assert abs(np.mean((found * 2.0**-31 / 3) ** 2) - 1) < 4 * math.sqrt(2 / 20_000)
