"""Private gradients along a sampler's path: what is charged, what a record moves, how wide it is, what is refused."""

import math
import warnings

import numpy as np
import optax
import pytest
from scipy.special import softmax
from scipy.stats import norm

import dpmcmc
from dpmcmc.errors import InputError
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.mechanisms.noise_aware import langevin, regression_run
from dpmcmc.mechanisms.noise_aware.descent import Path
from dpmcmc.mechanisms.noise_aware.langevin import Chain, Units, walk
from dpmcmc.mechanisms.noise_aware.regression_plan import RegressionPlan
from dpmcmc.mechanisms.noise_aware.release import FIRST_GRADIENT, multipliers
from dpmcmc.privacy.accounting import ADJACENCIES
from dpmcmc.samplers import SGFS, SGHMC, SGLD, SGNHT, Optax
from dpmcmc.targets import PoissonRegression, SoftmaxRegression, bind, record_shapes
from tests.noise_aware.test_noise_aware_sensitivity import path_of, residuals, rows_of
from tests.noise_aware_tables import SCORE, assert_covers, linear, linear_table, logistic, rows, table
from tests.one_shot_replay import moves
from tests.own_models import counts
from tests.releases import recorded

NAMES = ("sgld", "sghmc", "sgnht", "sgfs")
STEPS, N = 16, 400
#: Samplers with settings of their own: cold, and so hot that their own noise is more than privacy needs.
COLD, HOT = SGLD(step_size=0.2, temperature=1e-3), SGLD(step_size=0.2, temperature=300.0)
OWN = (COLD, HOT, SGHMC(step_size=0.1, friction=0.4), SGNHT(0.1, temperature=300.0, friction=0.5))
PROMISE = {"num_records": N, "epsilon": 1.0, "delta": 1e-5}


def plan_of(sampler, target=None, **more):
    mechanism = NoiseAware(draws=200, steps=STEPS, sampler=sampler, covariance="sandwich")
    return mechanism.plan(target or logistic(4), **PROMISE | more)


def gradient_multipliers(plan):
    """Least noise multiplier of each gradient."""
    parts = RegressionPlan(plan.mechanism, plan.target, SCORE).gradient_parts
    return multipliers(plan.settings[FIRST_GRADIENT], parts)


def delta_of(mu, epsilon):
    """δ of a Gaussian mechanism (Balle and Wang 2018, Theorem 8)."""
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(
    ("sampler", "adjacency"),
    [
        *((one, "replace_one") for one in (*NAMES, *OWN)),
        *(("sgld", one) for one in ADJACENCIES if one != "replace_one"),
    ],
    ids=str,
)
def test_the_noise_of_a_path_is_at_least_what_is_charged(sampler, adjacency, monkeypatch):
    """The stated ε is that of the noise that was added, in closed form, and of a hot sampler more than that."""
    plan = plan_of(sampler, adjacency=adjacency)
    seen = recorded(monkeypatch)
    dpmcmc.sample(plan, table(N, 4, 0)[0], key=0)
    moved = np.concatenate([part(adjacency) for part in (rows_of(), path_of(STEPS))])
    stds = np.array([std for std, _ in seen])
    assert len(stds) == len(moved)
    found, least = [size == 4 for _, size in seen], gradient_multipliers(plan)
    gradients = stds[found]
    assert np.all(gradients >= least)
    if sampler is HOT:
        assert np.all(gradients[-STEPS // 2 :] > 1.5 * least[-STEPS // 2 :])
    if sampler is COLD or isinstance(sampler, str):
        np.testing.assert_allclose(gradients, least, rtol=1e-6)
    stds[found] = least
    mu = math.sqrt(np.sum((moved / stds) ** 2))
    epsilon = plan.guarantee.epsilon
    assert delta_of(mu, epsilon) <= 1e-5 < delta_of(mu, 0.998 * epsilon)
    assert 0.998 < epsilon <= 1


def test_a_sampler_adds_the_larger_of_its_own_noise_and_that_of_privacy(monkeypatch):
    """SGLD's own is √(2TN/r) in the units of its path; at one of these temperatures each of the two is larger."""
    whole, chains = walk, []
    spy = lambda chain, *more: (chains.append((chain, more)), whole(chain, *more))[1]  # noqa: E731
    monkeypatch.setattr(regression_run, "walk", spy)
    larger = set()
    for temperature in (1.0, 40.0, 300.0):
        plan = plan_of(SGLD(step_size=0.3, temperature=temperature))
        chains.clear()
        with monkeypatch.context() as patch:
            seen = recorded(patch)
            dpmcmc.sample(plan, table(N, 4, 0)[0], key=0)
        found = [std for std, size in seen if size == 4]
        least = gradient_multipliers(plan)
        for chain, (_, steps, _, _, clip, *_) in chains:
            own = math.sqrt(2 * temperature * chain.units.num_records / 0.3) / chain.units.noise / clip
            np.testing.assert_allclose([found[k] for k in steps], np.maximum(own, least[list(steps)]), rtol=1e-6)
            larger |= set(own > least[list(steps)])
    assert larger == {False, True}


def walked(monkeypatch):
    """Return a list that fills with the positions of gradients."""
    places, whole = [], regression_run.State.gradient
    monkeypatch.setattr(
        regression_run.State,
        "gradient",
        lambda self, position, z: (places.append(position), whole(self, position, z))[1],
    )
    return places


@pytest.mark.parametrize("sampler", ["sgld", "sgnht", HOT], ids=str)
@pytest.mark.parametrize("family", ["logistic", "linear"])
def test_one_record_moves_no_release_of_a_path_beyond_what_is_charged(sampler, family, monkeypatch):
    """Under the same keys and releases a neighbour's path is at the same positions, and its sums are near."""
    places = walked(monkeypatch)
    target, make, scale = {
        "logistic": (logistic(4), table, None),
        "linear": (linear(4), linear_table, residuals),
    }[family]
    plan = plan_of(sampler, target)
    records = make(N, 4, 0)[0]
    corner = {"x": records["x"].copy(), "y": records["y"].copy()}
    corner["x"][0] = -0.5
    corner["y"][0] = 1 - corner["y"][0] if family == "logistic" else -3.0
    sensitivities = [part("replace_one") for part in (rows_of(), path_of(STEPS, scale=scale))]
    found = moves(plan, records, corner)
    assert np.all(found <= np.concatenate(sensitivities) * (1 + 1e-9))
    assert np.max(found[2:]) > 0.1, "the record counts"
    assert len(places) == 2 * STEPS
    np.testing.assert_array_equal(places[:STEPS], places[STEPS:])


def quadratic(d, num_records, noise, seed):
    """(units of a Gaussian potential, its gradient and curvature at θ, noise of the gradient in the metric)."""
    rng = np.random.default_rng(seed)
    wide = rng.normal(size=(d, d)) / math.sqrt(d)
    curvature = num_records * (np.eye(d) + wide @ wide.T)
    prior = RegressionPlan(NoiseAware(), logistic(d), SCORE).prior
    square = (curvature + prior.precision) / num_records  # noise is the same in every direction of φ
    units = Units.of(curvature, square, prior, num_records, noise)
    root = np.linalg.cholesky(square)

    def gradient(theta, std):
        return curvature @ theta + std * root @ rng.normal(size=d), std

    return units, gradient


#: Variance that a sampler keeps on a curvature of 1 a record, over s²/N², with step size r and friction a.
VARIANCE = {
    "sgld": lambda r, a: r / (2 - r),
    "sgfs": lambda r, a: r / (2 - r),
    "sghmc": lambda r, a: r / 2 / (1 - a * r / (4 - 2 * a)),
    "sgnht": lambda r, a: r / 2,  # its thermostat holds the temperature of velocities
}


@pytest.mark.parametrize(("d", "steps", "noise"), [(60, 500, 40.0), (300, 160, 3000.0)])
@pytest.mark.parametrize(
    ("name", "settled", "friction"),
    [*((one, settled, 0.5) for one in NAMES for settled in (False, True)), ("sghmc", True, 0.2), ("sgnht", True, 0.2)],
)
def test_a_path_has_the_variance_that_its_step_size_promises(name, settled, friction, d, steps, noise, monkeypatch):
    for constant in ("_FRICTION", "_SETTLED_FRICTION"):
        monkeypatch.setattr(langevin, constant, friction)
    units, gradient = quadratic(d, N, noise, 0)
    assert (units.num_records > N) == (noise > N)
    key = langevin.jax.random.key(1)
    chain = Chain.begin(units, units.sampler(name, noise, settled), np.zeros(d), key, 0)
    _, path = walk(chain, Path(), range(steps), np.full(steps, noise), gradient, 1.0, math.inf, key)
    phi = np.array(path.positions)[steps // 5 :] @ units.root
    variances = np.mean(phi**2, axis=0)
    step = langevin._SETTLED if settled else langevin._APPROACHING
    promised = VARIANCE[name](step, friction) * (units.noise * noise / units.num_records) ** 2
    error = float(np.std(variances) / math.sqrt(d)) / promised
    assert error < 0.035
    assert np.mean(variances) / promised == pytest.approx(1, abs=4 * error)


@pytest.mark.parametrize(
    ("sampler", "said"),
    [
        (SGFS(1.0, fisher="query"), "SGFS asks for a second moment"),
        (SGLD("auto"), "SGLD has a setting that waits for the noise of privacy"),
        (SGHMC(1.0, friction="matched"), "SGHMC has a setting that waits for the noise of privacy"),
        (Optax(optax.sgd(0.1)), "Optax is an optimiser"),
    ],
    ids=lambda value: str(value)[:12],
)
def test_a_sampler_that_a_gradient_does_not_drive_is_refused(sampler, said):
    with pytest.raises(InputError, match=f"^sampler: {said}.*give sgld, sghmc, sgnht or sgfs"):
        plan_of(sampler)


def test_a_sampler_is_refused_where_it_drives_nothing():
    with pytest.raises(InputError, match="sampler must be one of sgld, sghmc, sgnht, sgfs or Sampler, got 'langevin'"):
        NoiseAware(sampler="langevin")
    with pytest.raises(InputError, match=r"^sampler: .* no gradient.*take covariance sandwich"):
        NoiseAware(sampler="sgld").plan(linear(3), **PROMISE)
    model = bind(counts(), record_shapes(table(N, 4, 0)[0]))
    with pytest.raises(InputError, match=r"^sampler: noise_aware takes none on a NumPyro model"):
        NoiseAware(sampler="sgld").plan(model, **PROMISE)


@pytest.mark.parametrize(
    "sampler", [SGLD(1e6), SGHMC(1e6), SGNHT(1e6, temperature=1e-6)], ids=lambda s: type(s).__name__
)
def test_a_sampler_that_leaves_the_range_of_floats_says_so(sampler):
    plan = plan_of(sampler, num_records=4000)
    with pytest.raises(dpmcmc.DivergedError, match=r"the chain diverged by step \d+: lower sampler.step_size"):
        dpmcmc.sample(plan, table(4000, 4, 0)[0], key=0)


@pytest.mark.parametrize("name", NAMES)
def test_a_sampler_of_settled_settings_never_diverges(name):
    """At so little privacy that noise is all: draws are finite, and their intervals refused."""
    plan = plan_of(name, epsilon=0.05)
    with pytest.warns(dpmcmc.NotForIntervals):
        result = dpmcmc.sample(plan, table(N, 4, 0)[0])
    assert np.isfinite(result.draws).all()


def test_a_path_beyond_the_region_of_gradients_is_no_posterior():
    plan = plan_of(SGLD(20.0), num_records=4000)
    with pytest.warns(dpmcmc.NotForIntervals, match="the sampler left the region"):
        result = dpmcmc.sample(plan, table(4000, 4, 0)[0], key=0)
    assert np.isfinite(result.draws).all()


def counts_table(n, d, seed):
    rng = np.random.default_rng(seed)
    x, truth = rows(n, d, rng), rng.normal(size=d)
    return {"x": x.astype(np.float32), "y": rng.poisson(np.exp(x @ truth)).astype(np.int32)}, truth


def classes_table(n, d, seed):
    rng = np.random.default_rng(seed)
    x, truth = rows(n, d, rng), rng.normal(size=(d, 3))
    ends = np.cumsum(softmax(x @ truth, axis=1), axis=1)
    return {"x": x.astype(np.float32), "y": (rng.random((n, 1)) > ends[:, :2]).sum(axis=1).astype(np.int32)}, truth


POISSON = PoissonRegression(prior_scale=1.0, num_features=4, row_bound=1.0)
SOFTMAX = SoftmaxRegression(prior_scale=1.0, num_classes=3, num_features=4, row_bound=1.0)
#: Target, tables, and what the mechanism is told.
FAMILIES = {
    "logistic": (logistic(4), table, {}),
    "linear": (linear(4), linear_table, {"covariance": "sandwich"}),
    "counts": (POISSON, counts_table, {"covariance": "sandwich"}),
    "softmax": (SOFTMAX, classes_table, {}),
}
TABLES = 16


def posterior_of(family, sampler):
    """((share of truths within 90 % intervals, its error), mean width)."""
    target, make, told = FAMILIES[family]
    plan = NoiseAware(draws=400, sampler=sampler, **told).plan(target, num_records=4000, epsilon=1.0, delta=1e-5)
    inside, widths = [], []
    for seed in range(TABLES):
        records, truth = make(4000, 4, seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dpmcmc.NotForIntervals)
            draws = dpmcmc.sample(plan, records, key=seed).draws[0]
        low, high = np.quantile(draws, [0.05, 0.95], axis=0)
        inside.append(np.mean((low < truth) & (truth < high)))
        widths.append(np.mean(high - low))
    return (float(np.mean(inside)), float(np.std(inside) / math.sqrt(TABLES))), float(np.mean(widths))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_intervals_cover_and_are_hardly_wider_than_those_of_a_descent(family):
    _, width = posterior_of(family, None)
    for name in NAMES if family in ("logistic", "linear") else ("sgld",):
        found, own = posterior_of(family, name)
        assert_covers(found)
        assert own < 1.25 * width, name
