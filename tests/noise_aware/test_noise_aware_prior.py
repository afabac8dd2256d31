"""The prior of a noise-aware posterior: a factor that releases tell, priors of single coefficients, and their units."""

import dataclasses
import math
import re

import numpy as np
import pytest
from scipy.linalg import block_diag
from scipy.special import expit
from scipy.stats import multivariate_normal

import dpmcmc
from dpmcmc.data import Counts, Levels, Range, Schema
from dpmcmc.errors import InputError
from dpmcmc.estimators.fitting import model_of
from dpmcmc.estimators.own_units import encoded_priors
from dpmcmc.inference.evidence import Evidence
from dpmcmc.inference.normal_law import Gaussian, GradientRelease, Local, isotropic_error
from dpmcmc.inference.scores import score_of
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.mechanisms.noise_aware import Normal, prior
from dpmcmc.mechanisms.noise_aware.prior import Prior
from dpmcmc.mechanisms.rows import Rows
from tests.noise_aware_tables import logistic, rows

D = 3


def made(seed=0):
    """(a prior whose last coefficient has no factor, a release, the model of it, 𝒞); odd seeds know of the columns."""
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(3, D, D + 2))
    h, noise, score = (root @ root.T for root in roots)
    found = Prior(np.array([0.3, 0.0, -2.0]), np.array([1.0, 0.5, 4.0]), np.array([0, 0, -1]))
    if seed % 2:
        found = found.with_spreads(np.array([1.0, 12.0, 1.0]))
    if seed > 1:
        found = dataclasses.replace(found, predictors=0.7 * rng.normal(size=(D, D)))
    seen = GradientRelease(rng.normal(size=D), 10 * rng.normal(size=D), noise)
    return found, seen, Local(h, score, np.zeros_like), noise + score


def log_density(given, seen, local, covariance, factors):
    """log p(u, 0 = Rθ + e | factors) and the common one's hyperprior, written out; without R of u alone."""
    h, u, own = local.curvature, local.curvature @ seen.position - seen.gradient, given.with_factors(factors).scales
    if given.predictors is not None:
        u = np.append(u, given.predictors @ given.means)
        h = np.vstack([h, given.predictors])
        covariance = block_diag(covariance, np.eye(D))
    law = multivariate_normal(h @ given.means, covariance + h @ np.diag(own**2) @ h.T)
    return law.logpdf(u) - 0.5 * (math.log(factors.common) / prior._LOG_SCALE_STD) ** 2


@pytest.mark.parametrize("seed", range(4))
def test_the_posterior_is_the_mixture_over_factors(seed):
    """Each part is the conjugate one under its factor; parts of little weight are left out."""
    given, seen, local, covariance = made(seed)
    found = given.concluded(lambda now: (seen, local), given.gaussian, 100).mixture
    h, u = local.curvature, local.curvature @ seen.position - seen.gradient
    candidates = given._common
    logs = np.array([log_density(given, seen, local, covariance, f) for f in candidates])
    kept = np.exp(logs - logs.max()) > prior._LEAST_WEIGHT
    weights = np.exp(logs[kept] - logs.max())
    np.testing.assert_allclose(found.weights, weights / weights.sum(), rtol=1e-6)
    for k, part in zip(np.flatnonzero(kept), found.parts, strict=True):
        precision = given.with_factors(candidates[k]).precision
        information = h @ np.linalg.solve(covariance, h)
        wanted = np.linalg.inv(precision + information)
        mean = wanted @ (precision @ given.means + h @ np.linalg.solve(covariance, u))
        np.testing.assert_allclose(part.covariance, wanted, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(part.mean, mean, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("truth", [0.3, 1.0, 20.0])
def test_a_direction_that_releases_say_nothing_of_hides_no_other(truth):
    """The error of H times a direction that only the prior holds is in every entry of the release.

    Under the widest factor it would be larger than any signal, and under the narrowest the distance of the mean from
    the position would be. Either way intervals of the directions that are known would be the prior's.
    """
    size, noise = 12, 2.0
    rng = np.random.default_rng(0)
    h = np.diag([0.01, *np.full(size - 1, 200.0)])
    theta = truth * rng.normal(size=size)
    given = Prior(np.zeros(size), np.ones(size), np.zeros(size, int))
    seen = GradientRelease(theta, np.sqrt(200.0) * rng.normal(size=size), 200.0 * np.eye(size))
    local = Local(h, 200.0 * np.eye(size), isotropic_error(noise))
    found = given.concluded(lambda now: (seen, local), Gaussian(theta, np.eye(size)), 1000).posterior
    known = np.sqrt(np.diag(found.covariance))[1:]
    np.testing.assert_array_less(known, 0.12 + 0.03 * truth)
    assert np.mean(np.abs(found.mean - theta)[1:] < 2 * known) > 0.8


def test_effects_may_be_alike_per_standard_deviation_of_their_columns():
    """A large coefficient of a column that fills little of its range is not drawn to the others' scale."""
    size, wide = 20, np.append(50.0, np.ones(19))
    theta = wide * np.append(1.5, np.random.default_rng(0).normal(size=size - 1))
    h = np.diag((2 / wide) ** 2)  # a release tells each effect to half its size
    seen = GradientRelease(theta, np.zeros(size), np.zeros((size, size)))
    local = Local(h, h, np.zeros_like)
    alike = Prior(np.zeros(size), np.ones(size), np.zeros(size, int))
    kept = []
    for given in (alike, alike.with_spreads(wide)):
        found = given.concluded(lambda now: (seen, local), Gaussian(theta, np.eye(size)), 1000)
        kept.append(found.posterior.mean[0] / theta[0])
    assert kept[0] < 0.2
    assert kept[1] > 0.55


def test_a_bound_of_predictors_keeps_a_posterior_in_range_where_noise_hides_the_records_and_nowhere_else():
    size, wide = 4, np.eye(4) * 900.0
    given = Prior(np.zeros(size), np.ones(size), np.zeros(size, int), largest=1.0)
    moment = np.diag([0.5, 0.2, 0.1, 0.1])
    truth = np.array([0.8, 0.5, -0.5, 0.3])
    for count, moves in ((500, True), (100_000_000, False)):
        h = count * moment
        # Noise of three standard deviations along the first direction.
        u = h @ truth + np.array([90.0, 0, 0, 0]) * (20 if moves else 1)
        seen = GradientRelease(np.zeros(size), -u, wide * (400 if moves else 1))
        local = Local(h, h, np.zeros_like)

        def means(one, seen=seen, local=local, count=count):
            return one.concluded(lambda now: (seen, local), one.gaussian, count).posterior.mean

        without, bounded = means(given), means(given.with_rows(moment, 1.0))
        far, near = (math.sqrt(float(at @ moment @ at)) for at in (without, bounded))
        if moves:
            assert far > 1.5
            assert near < 1.2
        else:
            np.testing.assert_allclose(bounded, without, atol=1e-6)


@pytest.mark.parametrize("way", ["target", "evidence"])
def test_under_enormous_noise_the_posterior_is_the_prior(way):
    """With its means; the factor's own law is wide, so its coefficient is left out."""
    rng = np.random.default_rng(0)
    records = {"x": rows(60, 3, rng).astype(np.float32), "y": rng.integers(0, 2, 60)}
    given = (Normal(3.0, 0.5), None, Normal(-1.0, 0.2))
    mechanism = NoiseAware(draws=20_000, coefficients=given, prior_scale=way)
    plan = mechanism.plan(logistic(3), num_records=60, epsilon=1e-3, delta=1e-6)
    draws = dpmcmc.sample(plan, records, key=0).draws[0]
    np.testing.assert_allclose(draws[:, [0, 2]].mean(axis=0), [3, -1], atol=0.03)
    np.testing.assert_allclose(draws[:, [0, 2]].std(axis=0), [0.5, 0.2], rtol=0.03)
    if way == "target":
        assert draws[:, 1].std() == pytest.approx(1, rel=0.03)
        assert draws[:, 1].mean() == pytest.approx(0, abs=0.05)


def test_weights_of_rows_are_within_0_and_1_whatever_a_record_says():
    """Sensitivities rest on that: a negative weight would move a sum without a bound. A target refuses it before."""
    given = np.array([-1e300, -1.0, 0.25, 1e300])
    made = Rows(logistic(3), 1.0)({"x": np.zeros((4, 3)), "y": np.zeros(4), "weight": given, "offset": given})
    np.testing.assert_array_equal(made["weight"].ravel(), [0, 0, 0.25, 1])
    records = {"x": np.full((4, 3), 0.1), "y": np.zeros(4, int), "weight": given}
    for weight_scale, said in ((1.0, "weight"), (None, "states no weight_scale")):
        target = dataclasses.replace(logistic(3), weight_scale=weight_scale)
        plan = NoiseAware(draws=4, steps=8).plan(target, num_records=4, epsilon=0.5, delta=1e-5)
        with pytest.raises(ValueError, match=said):
            dpmcmc.sample(plan, records)


def told(seed=0):
    """Evidence of a release under a prior with means."""
    given, seen, local, covariance = made(seed)
    statistic = local.curvature @ seen.position - seen.gradient
    return Evidence(local.curvature, statistic, covariance, given.scales, 100, means=given.means, doubts=("one",))


def test_evidence_knows_the_means_of_its_prior():
    evidence = told()
    h, c, prior_covariance = evidence.curvature, evidence.covariance, np.diag(evidence.scales**2)
    direct = multivariate_normal(h @ evidence.means, c + h @ prior_covariance @ h).logpdf(evidence.statistic)
    assert evidence.log_density() == pytest.approx(direct, rel=1e-9)
    precision = np.linalg.inv(prior_covariance)
    wanted = np.linalg.inv(precision + h @ np.linalg.solve(c, h))
    mean = wanted @ (precision @ evidence.means + h @ np.linalg.solve(c, evidence.statistic))
    np.testing.assert_allclose(evidence.posterior().mean, mean, rtol=1e-7)
    np.testing.assert_allclose(evidence.posterior().covariance, wanted, rtol=1e-7)
    again = Evidence.of(evidence.content())
    assert again.log_density() == evidence.log_density()
    assert again.doubts == ("one",)


AGES = Schema({"age": Range(17, 90), "c": Levels(["u", "v", "w"]), "y": Range(0, 4)}, label="y")


def test_a_prior_in_a_column_s_own_units_is_that_of_its_encoded_coefficient():
    given = {"age": Normal(0.03, 0.001), "c=v": Normal(0.5, 0.1), "intercept": Normal(3.0, 0.2)}
    found = encoded_priors(AGES, given)
    # The first level, with which ``v`` is compared, is held near 0.
    assert [one is not None for one in found] == [True, True, True, False, True]
    assert found[1] == Normal(0.0, pytest.approx(0.01 * found[2].std))
    means = np.array([0.0 if one is None else one.mean for one in found])
    own = AGES.to_original_units(means)
    names = list(AGES.own_names)
    assert own[names.index("age")] == pytest.approx(0.03)
    assert own[names.index("c=v")] == pytest.approx(0.5)
    # The intercept's is for the prediction in the middle of all ranges: at an age of 53.5, and a label of 3 on (0, 4).
    assert own[names.index("intercept")] + 53.5 * 0.03 == pytest.approx(3.0)
    longer = AGES.to_original_units(means + np.array([0.0 if one is None else one.std for one in found]))
    assert (longer - own)[names.index("age")] == pytest.approx(0.001)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"agee": Normal(0, 1.0)}, "prior: 'agee' is no coefficient; the names are age, c=u"),
        ({"c": Normal(0, 1.0)}, "prior: 'c' is no coefficient"),
        ({"c=u": Normal(0, 1.0)}, "prior: c=u is the first level, whose own effect is 0"),
        ({"age": Normal(0, 0.0)}, "prior: age needs a finite mean and a standard deviation > 0"),
        ({"age": Normal(math.nan, 1.0)}, "prior: age needs a finite mean"),
        ({"age": Normal(0, math.inf)}, "prior: age needs a finite mean"),
    ],
)
def test_a_prior_of_no_coefficient_and_one_that_is_no_law_are_refused(given, said):
    with pytest.raises(InputError, match=said):
        encoded_priors(AGES, given)
    table = {"age": np.array([20.0]), "c": np.array(["u"]), "y": np.array([1.0])}
    with pytest.raises(InputError, match=said):
        dpmcmc.fit(None, table, AGES, 1.0, prior=given)


def test_a_prior_of_several_classes_is_that_of_each_class():
    schema = Schema({"age": Range(17, 90), "y": Levels(["a", "b", "c"])}, label="y")
    (found, _) = encoded_priors(schema, {"age": Normal(0.03, 0.01)})
    theta = np.zeros((2, 3))
    theta[0, 1] = found.mean
    assert schema.to_original_units(theta)[0, 1] == pytest.approx(0.03)


def test_a_fit_takes_a_prior_in_the_units_of_its_columns():
    """Far tighter than records tell, and beside the truth: the posterior is the prior's."""
    rng, n = np.random.default_rng(2), 4000
    age = rng.uniform(17, 90, n)
    schema = Schema({"age": Range(17, 90), "b": Range(-1, 1), "y": Levels(["no", "yes"])}, label="y")
    table = {
        "age": age,
        "b": rng.uniform(-1, 1, n),
        "y": np.where(rng.random(n) < expit(0.05 * (age - 50)), "yes", "no"),
    }
    result = dpmcmc.fit("y ~ age + b", table, schema, epsilon=2.0, prior={"age": Normal(0.02, 1e-4)})
    own = schema.to_original_units(result.flat_draws())[:, list(schema.own_names).index("age")]
    assert own.mean() == pytest.approx(0.02, abs=2e-4)
    assert own.std() == pytest.approx(1e-4, rel=0.15)
    told = dpmcmc.fit("y ~ age + b", table, schema, epsilon=2.0)
    free = schema.to_original_units(told.flat_draws())[:, list(schema.own_names).index("age")]
    assert free.mean() == pytest.approx(0.05, abs=5 * free.std())
    assert free.std() > 1e-3


@pytest.mark.parametrize("label", [Levels([0, 1]), Levels(["a", "b", "c"]), Range(0.0, 50.0), Counts(100)], ids=repr)
def test_a_plan_says_of_the_prior_what_draws_from_it_do(label):
    """Each end of the sentence is a quantile of draws from the prior, put in the column's units."""
    schema = Schema({"age": Range(17, 90), "job": Levels(["x", "y"]), "y": label}, label="y")
    plan = dpmcmc.suggest(model_of(schema), num_records=5000, epsilon=1.0, schema=schema)
    [line] = [reason for reason in plan.reasons if reason.startswith("prior:")]
    assert "age from 17 to 90" in line
    _, high = re.search(r"by (\S+) to ([\d.]+)", line).groups()
    score = score_of(plan.target)
    given = Prior.of(plan.mechanism, plan.target, score.size)
    shape = (len(schema.own_names), *([score.size] if score.size > 1 else []))
    rng = np.random.default_rng(1)
    draws = [schema.to_original_units((given.scales * rng.normal(size=given.size)).reshape(shape)) for _ in range(4000)]
    own = np.array(draws)[:, list(schema.own_names).index("age")] * (90 - 17)
    effect = own if score.size == 1 else own[:, 1] - own[:, 0]
    said = float(high) if isinstance(label, Range) else np.log(float(high))
    assert said == pytest.approx(np.quantile(effect, 0.95), rel=0.08)


def test_a_prior_of_a_level_is_of_its_difference_from_the_first_one():
    schema = Schema({"age": Range(17, 90), "job": Levels(["a", "b", "c"]), "y": Levels([0, 1])}, label="y")
    own = encoded_priors(schema, {"job=b": Normal(0.4, 0.05)})
    target = schema.with_public_facts(model_of(schema))
    given = Prior.of(NoiseAware(coefficients=own, structure=schema.structure), target)
    rng = np.random.default_rng(0)
    draws = schema.to_original_units(given.means + given.scales * rng.normal(size=(4000, given.size)))
    there = draws[:, list(schema.own_names).index("job=b")]
    assert there.mean() == pytest.approx(0.4, abs=0.004)
    assert there.std() == pytest.approx(0.05, rel=0.05)
