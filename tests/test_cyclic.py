"""Batches that take turns and correlated noise: what they cost, the noise itself, and the law of a chain."""

import json
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from jax_privacy.matrix_factorization.sensitivity import fixed_epoch_sensitivity
from scipy import stats

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.diagnostics.per_record import per_record_epsilon
from dpmcmc.engine import program, sizes
from dpmcmc.privacy import UnsupportedCombination, account, calibrate
from dpmcmc.privacy.accounting import correlated, gaussian
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.accounting.sampling import Cyclic, expected_batch
from dpmcmc.privacy.query.chacha import CHACHA20
from dpmcmc.privacy.query.integer_noise import correlated_noise
from dpmcmc.privacy.query.selection import selector, shard_selector
from dpmcmc.storage import checkpoint
from tests.replay import FAST, Replay, same_bits
from tests.test_engine import DATA, make

PHIS = (0.0, 0.5, 0.9)


def encoder(phi: float, steps: int) -> np.ndarray:
    """C, written out."""
    row, column = np.indices((steps, steps))
    return np.where(row >= column, phi ** np.maximum(row - column, 0.0), 0.0)


def of_another_library(phi: float, steps: int, epochs: int) -> float:
    """S of C by JAX Privacy, whose indices have 64 bits where JAX has them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(fixed_epoch_sensitivity(jnp.asarray(encoder(phi, steps)), epochs))


# --- what it costs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("adjacency", "moved"), [("replace_one", 2), ("add_remove", 1), ("zero_out", 1)])
@pytest.mark.parametrize("steps", [20, 18])
def test_independent_noise_costs_one_gaussian_release_an_epoch(adjacency, moved, steps):
    """The last epoch may be a part of one, and the last batch too."""
    epochs = 5
    found = account(3.0, steps=steps, sampling=Cyclic(25), num_records=99, adjacency=adjacency, delta=1e-5)
    assert sum(e.count for e in found.events) == epochs
    z = 3.0 / (1 + KAPPA)
    assert gaussian.gaussian_delta(moved * math.sqrt(epochs) / z, found.epsilon) == pytest.approx(1e-5, rel=1e-6)
    other = PLDAccountant()
    other.compose(SelfComposedDpEvent(GaussianDpEvent(z / moved), epochs))
    assert found.epsilon == pytest.approx(other.get_epsilon(1e-5), rel=1e-3)


@pytest.mark.parametrize(("phi", "spacing", "epochs"), [(0.95, 2, 9), (0.9, 5, 6), (0.3, 40, 3)])
def test_correlated_noise_costs_what_another_library_says_of_the_matrix(phi, spacing, epochs):
    """The columns here do not end with the run, which costs a little more and nothing where epochs are many."""
    steps = spacing * epochs
    bound = math.sqrt(correlated.sensitivity_squared(phi, epochs, spacing))
    exact = of_another_library(phi, steps, epochs)
    row, column = np.indices((steps + 600, steps))
    longer = np.where(row >= column, phi ** np.maximum(row - column, 0.0), 0.0)
    gram = (longer.T @ longer)[::spacing, ::spacing]
    assert exact <= bound
    assert bound == pytest.approx(math.sqrt(gram.sum()), rel=1e-9)
    z, moved = 4.0, 2.0
    found = account(z, steps=steps, sampling=Cyclic(3, phi), num_records=3 * spacing, delta=1e-6)
    mu = moved * bound * (1 + KAPPA) / z
    assert gaussian.gaussian_delta(mu, found.epsilon) == pytest.approx(1e-6, rel=1e-5)


def test_of_steps_that_differ_the_record_that_pays_most_is_charged():
    z = np.array([5.0, 1.0, 5.0, 5.0, 4.0, 5.0, 5.0])
    found = account(z, steps=7, sampling=Cyclic(4), num_records=12, delta=1e-5)
    worst = max(math.sqrt(np.sum(z[at::3] ** -2.0)) for at in range(3))
    mu = 2 * worst * (1 + KAPPA)
    assert gaussian.gaussian_delta(mu, found.epsilon) == pytest.approx(1e-5, rel=1e-6)
    reordered = account(z[[0, 1, 4, 3, 2, 5, 6]], steps=7, sampling=Cyclic(4), num_records=12, delta=1e-5)
    assert reordered.epsilon < found.epsilon  # the two loud steps are now of different records


@pytest.mark.parametrize("phi", PHIS)
def test_the_calibrated_noise_meets_epsilon_and_hardly_more(phi):
    settings = {"delta": 1e-6, "steps": 95, "sampling": Cyclic(10, phi), "num_records": 200}
    z = calibrate(epsilon=1.0, **settings)
    assert 0.995 < account(z, **settings).epsilon <= 1.0


def test_all_records_in_every_batch_are_the_full_scheme():
    settings = {"steps": 30, "num_records": 50, "delta": 1e-5}
    whole = account(9.0, sampling=Cyclic(50), **settings)
    assert whole.epsilon == account(9.0, sampling=dpmcmc.Full(), **settings).epsilon
    assert selector(Cyclic(50), 50, 50) is None


@pytest.mark.parametrize("phi", [0.5, 0.9])
def test_slow_heat_at_equal_cost(phi):
    """(1 − φ)/(1 + φ) for many batches, up to the independent part of integer noise; 1 and no less for one."""

    def heat(spacing, epochs=400):
        squared = correlated.sensitivity_squared(phi, epochs, spacing) / epochs
        return squared * (1 - phi) ** 2, squared * correlated.slow(phi) ** 2

    ideal, own = heat(200)
    assert ideal == pytest.approx((1 - phi) / (1 + phi), rel=1e-6)
    assert ideal < own < 1.03 * ideal
    assert heat(1, 10**5)[0] == pytest.approx(1, rel=1e-3)


def test_no_correlation_gains_with_full_batches():
    """(1ᵀΣ1)(1ᵀΣ⁻¹1) >= T², least for independent noise: of every φ, and of random covariances."""
    steps = 40
    one = np.ones(steps)
    rng = np.random.default_rng(0)
    decoders = [np.linalg.inv(encoder(phi, steps)) for phi in np.linspace(0, 0.99, 34)]
    decoders += [np.tril(rng.normal(size=(steps, steps))) + 3 * np.eye(steps) for _ in range(200)]
    found = [one @ d @ d.T @ one * (one @ np.linalg.solve(d @ d.T, one)) / steps**2 for d in decoders]
    assert np.argmin(found) == 0
    assert found[0] == pytest.approx(1)
    assert np.min(found[1:]) > 1


# --- which records a step reads -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "size"), [(24, 6), (7, 4)])
def test_every_record_takes_part_once_in_as_many_steps_as_there_are_batches(n, size):
    scheme = Cyclic(size)
    batches = scheme.batches(n)
    slots, beta = scheme.capacity(n, 0.0)
    assert beta == 0
    indices, mask = jax.vmap(selector(scheme, n, slots))(jnp.arange(3 * batches, dtype=jnp.int32))
    step, slot = np.nonzero(np.asarray(mask))
    record = np.asarray(indices)[step, slot]
    assert slots <= size
    assert expected_batch(scheme, n) == n / batches
    for at in range(n):
        assert step[record == at].tolist() == [at % batches + turn * batches for turn in range(3)]
    rows = -(-n // 2)
    shard = jax.vmap(shard_selector(scheme, n, 2, slots), in_axes=(0, None))
    halves = [shard(jnp.arange(batches, dtype=jnp.int32), jnp.int32(i)) for i in range(2)]
    apart = sorted(int(i) + k * rows for k, (where, kept) in enumerate(halves) for i in np.asarray(where)[kept])
    assert apart == list(range(n))


# --- replay on neighbouring data ----------------------------------------------------------------------------------

N, SIZE, STEPS, D = 23, 5, 25, 16
BATCHES = 5


def records() -> dict[str, np.ndarray]:
    x = np.random.default_rng(1).normal(size=(N, D)).astype(np.float32)
    x[0] = x[4] = 9.0
    return {"x": x}


def replayed():
    """A model whose records push in one direction, whatever the position, as the worst case does."""
    target = dpmcmc.targets.Custom(
        init=lambda key: jnp.zeros(D),
        log_prior=lambda w: -0.5 * jnp.sum(w**2),
        log_likelihood=lambda w, record: record["x"] @ w,
        predict=lambda w, x: x @ w,
    )
    plan = dpmcmc.plan(
        target,
        num_records=N,
        sampler=dpmcmc.SGLD(step_size=0.5),
        sampling=Cyclic(SIZE, 0.5),
        steps=STEPS,
        privacy=dpmcmc.Privacy(epsilon=5.0, delta=1e-3),
    )
    return Replay(plan, records(), FAST)


def moved(replay, at: int, change, phi: float) -> float:
    """‖C(g − g')‖ of the exact sums on neighbours, over the clip norm; all else must be the same to the bit."""
    other = records()
    other["x"][at] = change(other["x"][at])
    first = replay(records())
    second = replay(other, given=first)
    assert same_bits(first.states, second.states)
    assert same_bits(first.calls[0].noise_key, second.calls[0].noise_key)
    assert same_bits(first.calls[0].selections, second.calls[0].selections)
    return float(np.linalg.norm(encoder(phi, STEPS) @ (first.sum_of() - second.sum_of())[0]))


def declared(phi: float, epochs: int = STEPS // BATCHES) -> float:
    return math.sqrt(correlated.sensitivity_squared(phi, epochs, BATCHES)) * (1 + KAPPA)


@pytest.fixture(scope="module")
def replay():
    return replayed()


@pytest.mark.parametrize("phi", PHIS)
def test_neighbours_are_as_far_apart_as_is_declared(replay, phi):
    opposite = moved(replay, 0, np.negative, phi)
    absent = moved(replay, 4, np.zeros_like, phi)
    assert 0.9 * 2 * declared(phi) < opposite <= 2 * declared(phi)
    assert absent <= declared(phi)
    assert opposite == pytest.approx(2 * of_another_library(phi, STEPS, STEPS // BATCHES), rel=1e-5)


def test_a_run_adds_the_noise_that_is_charged(replay):
    """C times the noise of the steps is independent, of the plan's noise multiplier."""
    trace = replay(records())
    plan = replay.plan
    call = trace.calls[0]
    sums = (call.released.value - call.params)[0] * plan.batch_size / N
    zeta = (encoder(0.5, STEPS) @ (sums - trace.sum_of()[0]) / plan.noise_multipliers[0])[1:]
    error = 4 * math.sqrt(2 / zeta.size)
    assert np.mean(zeta**2) == pytest.approx(1, abs=error)
    assert np.mean(zeta[1:] * zeta[:-1]) == pytest.approx(0, abs=error)
    assert plan.guarantee.epsilon <= 5


def test_a_sensitivity_of_too_few_bands_is_caught(replay, monkeypatch):
    monkeypatch.setattr(correlated, "sensitivity_squared", lambda phi, k, spacing: k * (1 + phi**2))
    assert moved(replay, 0, np.negative, 0.9) > 2 * declared(0.9)


@pytest.mark.slow
def test_a_record_that_takes_part_twice_within_an_epoch_is_caught(monkeypatch):
    """Every other epoch goes backward, so that the first and last batches are read twice in a row."""
    real = program.select_by

    def back_and_forth(*arguments):
        turn = real(*arguments)
        return lambda t: turn(jnp.where(t // BATCHES % 2 == 1, BATCHES - 1 - t % BATCHES, t))

    monkeypatch.setattr(program, "select_by", back_and_forth)
    assert moved(replayed(), 0, np.negative, 0.5) > 2 * declared(0.5)


# --- the noise ----------------------------------------------------------------------------------------------------

CHAIN, WIDTH, GRID = 120, 2048, 3.0 * 2.0**21
PHI = 0.9


@pytest.fixture(scope="module")
def noise() -> np.ndarray:
    """Noise of a chain's steps in grid units, (steps, coordinates), exact."""
    levels = gaussian.levels_for(GRID * correlated.white(PHI), GRID * correlated.white(PHI), 4)
    like = jax.ShapeDtypeStruct((WIDTH,), jnp.float32)

    @jax.jit
    def of_step(key, before):
        return correlated_noise(key, before, like, jnp.float32(GRID), PHI, levels)

    keys = jax.random.split(jax.random.key(5, impl=CHACHA20), CHAIN + 1)
    steps = [of_step(keys[i + 1], keys[i]) for i in range(CHAIN)]
    return np.stack([np.asarray(high, np.int64) * 65536 + np.asarray(low) for high, low in steps])


def test_a_step_takes_back_its_share_of_the_step_before_and_no_other(noise):
    z = noise / GRID
    white = correlated.white(PHI) ** 2
    error = 4 * math.sqrt(3) * correlated.total(PHI) ** 2 / math.sqrt(z.size)
    for lag, expected in enumerate([1 + PHI**2 + white, -PHI, 0.0, 0.0]):
        assert np.mean(z[lag:] * z[: CHAIN - lag]) == pytest.approx(expected, abs=error), lag
    low = z.sum(axis=0) ** 2 / CHAIN  # frequency 0, but for the two ends
    ends = (1 + PHI**2 - (1 - PHI) ** 2) / CHAIN
    assert low.mean() == pytest.approx(correlated.slow(PHI) ** 2 + ends, rel=4 * math.sqrt(2 / WIDTH))


def test_noise_leaves_no_remainder_that_tells_of_the_sum(noise):
    """Without its independent part it would be a multiple of c less one of c', and give away the sum beside them."""
    factor = math.ceil(GRID / gaussian.BASE)
    counts = np.histogram(noise % factor, 64, (0, factor))[0]
    assert stats.chisquare(counts).pvalue > 1e-3
    assert correlated.WHITE**2 * (1 / gaussian.SMOOTH**2 - 1 / gaussian.BASE**2) >= 1


@pytest.mark.parametrize("curvature", [0.1, 0.5])
def test_sgld_has_the_variance_that_is_derived(noise, curvature):
    z = noise / GRID
    a = 1 - curvature
    position = np.zeros(WIDTH)
    kept = []
    for step in z:
        position = a * position - step
        kept.append(position)
    found = np.var(kept[60:])
    white = correlated.white(PHI) ** 2
    expected = (1 + PHI**2 - 2 * PHI * a + white) / (1 - a**2)
    assert found == pytest.approx(expected, rel=4 * math.sqrt(2 / WIDTH))


@pytest.mark.slow
@pytest.mark.parametrize("phi", [0.0, 0.5])
def test_a_run_has_the_variance_that_is_derived(phi):
    """A likelihood without a gradient leaves the curvature to the prior, which the query adds without noise."""
    curvature, eta, size = 100.0, 0.002, 3000
    target = dpmcmc.targets.Custom(
        init=lambda key: jnp.zeros(size),
        log_prior=lambda w: -0.5 * curvature * jnp.sum(w**2),
        log_likelihood=lambda w, record: 0.0 * record["x"] * jnp.sum(w),
        predict=lambda w, x: x,
    )
    plan = dpmcmc.plan(
        target,
        num_records=64,
        sampler=dpmcmc.SGLD(step_size=64 * eta, temperature=0.0),
        sampling=Cyclic(8, phi),
        steps=96,
        burn_in=48,
        privacy=dpmcmc.Privacy(epsilon=4.0, delta=1e-3),
    )
    with pytest.warns(dpmcmc.NotForIntervals):
        draws = dpmcmc.sample(plan, {"x": np.ones(64, np.float32)}, key=3).draws
    a = 1 - eta * curvature
    zeta = plan.noise_std[0] / correlated.slow(phi)
    expected = (eta * zeta) ** 2 * (1 + phi**2 - 2 * phi * a + correlated.white(phi) ** 2) / (1 - a**2)
    assert np.var(draws) == pytest.approx(expected, rel=4 * math.sqrt(2 / (size * 48 * (1 - a) / (1 + a))))


# --- runs ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.optimised
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(tmp_path, monkeypatch):
    """The noise of the step before is drawn again from its key, so nothing of it is kept."""
    plan = make(sampling=Cyclic(30, 0.5), steps=21, burn_in=0, thin=1, chains=1)
    monkeypatch.setattr(sizes, "_CHUNK_STEPS", 7)
    monkeypatch.setattr(checkpoint, "_OVERHEAD", 1e9)
    alone = dpmcmc.sample(plan, DATA, key=3)

    class Stop(BaseException):
        pass

    def stop(done, total):
        if done > 7:
            raise Stop

    with pytest.raises(Stop):
        dpmcmc.sample(plan, DATA, key=3, checkpoint=tmp_path / "c", progress=stop)
    after = dpmcmc.sample(plan, DATA, key=3, checkpoint=tmp_path / "c")
    assert np.array_equal(alone.draws, after.draws)


def test_a_part_that_is_taken_again_is_charged_for_all_that_a_record_may_be_in():
    """S² is convex in the participations: two runs on a part of the steps each cost no more than what is charged."""
    phi, spacing = 0.9, 4
    squared = [correlated.sensitivity_squared(phi, k, spacing) if k else 0.0 for k in range(12)]
    for first in range(12):
        for second in range(12 - first):
            for both in range(min(first, second) + 1):
                parts = squared[first] + squared[second]
                assert parts <= squared[first + second - both] + squared[both] + 1e-9


@pytest.mark.parametrize(
    ("changed", "code"),
    [({}, 0), ({"phi": 0.8}, 1), ({"batches": 5}, 1), ({"steps": 60}, 1)],
    ids=["as it is", "more correlation", "fewer batches", "more steps"],
)
def test_verify_reads_what_a_cyclic_run_costs(tmp_path, changed, code):
    plan = make(sampling=Cyclic(30, 0.5), steps=28, burn_in=0, thin=1, chains=2)
    body = plan.guarantee.to_json() | plan.facts()
    body["sampling"] = body["sampling"] | {name: changed[name] for name in changed if name != "steps"}
    body["steps"] = changed.get("steps", body["steps"])
    path = tmp_path / "privacy.json"
    path.write_text(json.dumps(body))
    assert main(["verify", str(path)]) == code


@pytest.mark.parametrize(
    ("quiet", "loud", "changed", "code"),
    [
        ([0], [4, 8, 12, 16], {}, 0),
        ([1, 5, 9, 13], [0, 4, 8, 12, 16], {}, 0),
        ([0], [4, 8, 12, 16], {"min": 1.0}, 1),
        ([0], [4, 8, 12, 16], {"max": 12.0, "min": 10.0}, 1),
    ],
    ids=["least noise of another record", "fewer participations cost most", "less noise", "less noise elsewhere"],
)
def test_verify_reads_steps_of_different_noise(tmp_path, quiet, loud, changed, code):
    z = np.full(17, 12.0)
    z[loud] = 60.0
    z[quiet] = 11.0

    def calibrator(queries, promise):
        return z

    privacy = dpmcmc.Privacy(epsilon=20.0, delta=1e-4, calibrator=calibrator)
    plan = make(sampling=Cyclic(100), steps=17, burn_in=0, thin=1, privacy=privacy, sampler=dpmcmc.SGLD(step_size=64.0))
    assert plan.sampling.batches(plan.num_records) == 4
    body = plan.guarantee.to_json() | plan.facts()
    assert body["noise_multiplier"]["min"] == pytest.approx(11.0)
    body["noise_multiplier"] = body["noise_multiplier"] | changed
    path = tmp_path / "privacy.json"
    path.write_text(json.dumps(body))
    assert main(["verify", str(path)]) == code


def test_the_promise_rests_on_an_order_that_no_record_decides():
    """In a sorted file a neighbour has many records in other batches, which moves a batch's sum by more than 2C."""
    values = np.sort(np.linspace(-1.0, 1.0, 40))
    neighbour = np.sort(np.append(values[1:], 0.99))
    turn = np.arange(40) % 4
    moved = [abs(np.sum(np.cos(90 * values[turn == j]) - np.cos(90 * neighbour[turn == j]))) for j in range(4)]
    assert max(moved) > 2  # of gradients of norm at most 1
    for sampling, said in ((Cyclic(10), True), (Cyclic(10, 0.5), True), (Cyclic(40), False)):
        found = account(30.0, steps=8, sampling=sampling, num_records=40, delta=1e-5)
        assert ("The order of the records does not depend on what is in them." in found.assumptions) == said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"privacy": None}, "private run"),
        ({"sampler": dpmcmc.SGHMC(step_size=0.5, friction=0.2)}, "law of SGHMC"),
        ({"sampler": dpmcmc.SGFS(step_size=0.5, fisher="query"), "sampling": Cyclic(30)}, "second moment"),
        ({"metric": dpmcmc.PrivateMetric("gram")}, "metric"),
        ({"sampling": Cyclic(400, 0.5)}, "gains nothing"),
        ({"sampling": Cyclic(401)}, "batch_size"),
        ({"privacy": dpmcmc.Privacy(epsilon=1.0, delta=1e-4, calibrator="closed_form")}, "fixed_size"),
        (
            {"sampler": dpmcmc.SGLD(step_size=lambda t: 64.0 * 0.9**t)},
            "same noise at every step",
        ),
    ],
    ids=["no privacy", "momentum", "second moment", "metric", "full", "too large", "closed form", "schedule"],
)
def test_what_is_not_derived_is_refused(changes, said):
    target = dpmcmc.targets.LogisticRegression(num_features=3, row_bound=1.0)
    with pytest.raises((UnsupportedCombination, ValueError), match=said):
        make(**({"sampling": Cyclic(30, 0.5), "target": target} | changes))


@pytest.mark.parametrize("phi", [-0.1, 0.96, math.nan])
def test_a_share_beyond_its_bounds_is_refused(phi):
    with pytest.raises(ValueError, match="phi"):
        Cyclic(30, phi)


def test_an_audit_and_an_account_by_record_are_refused():
    plan = make(sampling=Cyclic(30))
    with pytest.raises(ValueError, match="take turns"):
        dpmcmc.privacy.audit.audit(plan, runs=10)
    with pytest.raises(UnsupportedCombination, match="cyclic"):
        per_record_epsilon(plan, DATA, np.zeros((1, 57, 3)))
