"""Conclusions from a noise-aware release at no further cost: checks and Bayes factors."""

import dataclasses

import numpy as np
import pytest
from scipy.stats import kstest, multivariate_normal

import dpmcmc
from dpmcmc.data import Levels, Range, Schema
from dpmcmc.data.structure import RowStructure
from dpmcmc.errors import InputError
from dpmcmc.inference.evidence import Evidence
from dpmcmc.inference.normal_law import symmetric_noise
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.privacy.query.gram_release import NoisyGram
from dpmcmc.targets import LogisticRegression

D = 3


def law(rng, scales=None):
    """(H, 𝒞) of a made-up release."""
    root = rng.normal(size=(2, D, D + 2))
    h, c = (one @ one.T for one in root)
    return 40 * h, 90 * c


def simulated(count, scale=1.0, believed=1.0, zero=()):
    """Evidence of releases whose truths are drawn from the prior of sd ``scale``, with some coefficients at 0."""
    rng = np.random.default_rng(5)
    h, c = law(rng)
    for _ in range(count):
        truth = scale * rng.normal(size=D)
        truth[list(zero)] = 0.0
        u = h @ truth + rng.multivariate_normal(np.zeros(D), c)
        yield Evidence(h, u, c, np.full(D, believed), 100)


def test_the_p_value_of_the_prior_is_uniform_under_it_and_small_under_a_wrong_one():
    right = [one.prior_check() for one in simulated(600)]
    assert kstest(right, "uniform").pvalue > 1e-3
    wrong = [one.prior_check() for one in simulated(600, scale=4.0)]
    assert np.mean(np.array(wrong) < 0.05) > 0.6


def test_a_covariance_without_privacys_noise_is_caught():
    """Planted: half of 𝒞 left out, as where the noise of privacy is not counted."""
    wrong = [dataclasses.replace(one, covariance=one.covariance / 50).prior_check() for one in simulated(600, 0.02)]
    assert kstest(wrong, "uniform").pvalue < 1e-6


def test_what_is_public_of_predictors_is_a_part_of_the_prior():
    rng = np.random.default_rng(3)
    given = next(simulated(1))
    root = rng.normal(size=(D, D))
    found = dataclasses.replace(given, predictors=root)
    precision = np.eye(D) + root.T @ root
    information = given.curvature @ np.linalg.solve(given.covariance, given.curvature)
    posterior = found.posterior()
    np.testing.assert_allclose(posterior.covariance, np.linalg.inv(precision + information), rtol=1e-8)
    right = given.curvature @ np.linalg.solve(given.covariance, given.statistic)
    np.testing.assert_allclose(posterior.mean, posterior.covariance @ right, rtol=1e-8)
    marginal = given.covariance + given.curvature @ np.linalg.inv(precision) @ given.curvature
    assert found.log_density() == pytest.approx(multivariate_normal(np.zeros(D), marginal).logpdf(given.statistic))
    # A coefficient that is 0 leaves the prior of the others given that.
    nested = found.posterior(without=[1]).covariance
    kept = np.ix_([0, 2], [0, 2])
    np.testing.assert_allclose(nested[kept], np.linalg.inv((precision + information)[kept]), rtol=1e-8)
    np.testing.assert_array_equal(nested[1], 0.0)
    again = Evidence.of(found.content())
    np.testing.assert_array_equal(again.posterior().covariance, posterior.covariance)


def test_bayes_factors_of_a_linear_regression_without_noise_are_those_of_the_marginal_likelihood():
    rng = np.random.default_rng(0)
    x, sd = rng.normal(size=(40, D)), 0.7
    y = x @ np.array([0.5, 0.0, -0.2]) + sd * rng.normal(size=40)
    gram = x.T @ x / sd**2
    evidence = Evidence(gram, x.T @ y / sd**2, gram, np.array([1.0, 2.0, 0.5]), 40)

    def marginal(scales):
        return multivariate_normal(np.zeros(40), sd**2 * np.eye(40) + (x * scales**2) @ x.T).logpdf(y)

    whole = marginal(evidence.scales)
    nested = marginal(np.array([1.0, 0.0, 0.0]))
    assert evidence.log_bayes_factor([1, 2]) == pytest.approx(nested - whole, rel=1e-9)
    wider = np.array([3.0, 3.0, 3.0])
    found = evidence.log_density(scales=wider) - evidence.log_density()
    assert found == pytest.approx(marginal(wider) - whole, rel=1e-9)


STRUCTURE = RowStructure(constant=6, blocks=((0, 1, 2), (3, 4)), unit_norm=True)


def released(rng, structure, broken=False, std=30.0):
    """Evidence of one-hot rows (3 levels, 2 levels, a sign, the intercept) of norm 1."""
    n = 2000
    hot = [np.eye(k)[rng.integers(0, k, n)] for k in (3, 2)]
    x = np.concatenate([*hot, rng.choice([-1.0, 1.0], (n, 1)), np.ones((n, 1))], axis=1) / 2
    if broken:
        x[: n // 2, :3] = 0.0
    noisy = NoisyGram(x.T @ x + std * symmetric_noise(rng, 7), std, n, 0.0)
    eye = np.eye(7)
    return Evidence(eye, np.zeros(7), eye, np.ones(7), n, noisy, structure)


def _many(rng):
    return [released(rng, STRUCTURE) for _ in range(300)]


def test_the_p_value_of_declared_rows_is_uniform_if_they_are_so_and_small_if_not():
    rng = np.random.default_rng(2)
    right = [one.rows_check() for one in _many(rng)]
    assert kstest(right, "uniform").pvalue > 1e-3
    assert released(rng, STRUCTURE, broken=True).rows_check() < 1e-3
    # Planted: noise taken for a fifth less than it is.
    louder = [dataclasses.replace(one, gram=one.gram._replace(noise_std=24.0)) for one in _many(rng)]
    assert kstest([one.rows_check() for one in louder], "uniform").pvalue < 1e-6


def test_rows_of_which_nothing_is_declared_have_no_check():
    rng = np.random.default_rng(3)
    for structure in (None, RowStructure(constant=6)):
        with pytest.raises(ValueError, match="rows_check: nothing is declared"):
            released(rng, structure).rows_check()


def test_evidence_is_saved_and_read_again(tmp_path):
    whole = released(np.random.default_rng(4), STRUCTURE)
    (tmp_path / "evidence.npz").write_bytes(whole.content())
    again = Evidence.load(tmp_path)
    assert again.structure == STRUCTURE
    assert again.gram._replace(gram=0) == whole.gram._replace(gram=0)
    assert again.rows_check() == whole.rows_check()
    assert again.log_density() == whole.log_density()
    (plain,) = simulated(1)
    assert Evidence.of(plain.content()).log_bayes_factor([0]) == plain.log_bayes_factor([0])
    (tmp_path / "evidence.npz").write_bytes(b"PK nothing")
    with pytest.raises(ValueError, match=r"evidence.npz: is damaged, or no evidence of this version"):
        Evidence.load(tmp_path)


@pytest.mark.parametrize("wrong", [{"without": [3]}, {"without": [-1]}, {"scales": [1.0]}, {"scales": [1.0, 1.0, 0.0]}])
def test_coefficients_and_scales_that_are_none_are_refused(wrong):
    (evidence,) = simulated(1)
    with pytest.raises(ValueError, match="|".join(wrong)):
        evidence.log_density(**wrong)


def test_coefficients_are_left_out_by_name():
    columns = {"age": Range(0, 1), "job": Levels(["a", "b"]), "y": Levels(["no", "yes"])}
    crossed = Schema(columns, formula="y ~ age + job + age:job").answers
    assert crossed[2] == ("job=b", "job")
    assert crossed[4] == ("age:job=b", "age:job", "age", "job")
    schema = Schema(columns, formula="y ~ job - 1")
    frame = {"job": ["a", "b"] * 200, "y": ["no", "no", "yes", "yes"] * 100}
    evidence = logistic_run(schema, schema.encode(frame)).evidence
    for name, numbers in (("job=b", [1]), ("job", [0, 1])):
        assert evidence.log_bayes_factor(without=[name]) == evidence.log_bayes_factor(without=numbers)
    assert evidence.log_bayes_factor("job=b") == Evidence.of(evidence.content()).log_bayes_factor("job=b")
    with pytest.raises(InputError, match="no coefficient is called 'wage'; names are job=a, job, job=b"):
        evidence.posterior(without=["wage"])
    with pytest.raises(InputError, match="none has a name here"):
        next(simulated(1)).posterior(without=["wage"])


def logistic_run(schema=None, records=None, **more):
    target = LogisticRegression(prior_scale=1.0, num_features=2, row_bound=1.0)
    plan = NoiseAware(draws=4000, steps=8).plan(target, num_records=400, epsilon=2.0, delta=1e-4, schema=schema)
    rng = np.random.default_rng(0)
    records = records or {"x": rng.uniform(-0.7, 0.7, (400, 2)).astype(np.float32), "y": (rng.random(400) < 0.5) * 1}
    return dpmcmc.sample(plan, records, key=0, **more)


def test_a_result_carries_the_evidence_that_its_draws_rest_on(tmp_path):
    result = logistic_run(out=tmp_path / "run", checkpoint=tmp_path / "kept")
    draws, found = result.draws[0], result.evidence.posterior()
    np.testing.assert_allclose(draws.mean(0), found.mean, atol=0.06 * found.std.max())
    np.testing.assert_allclose(np.cov(draws.T), found.covariance, atol=0.08 * found.std.max() ** 2)
    again = dpmcmc.inference.Evidence.load(tmp_path / "run")
    assert again.log_density() == result.evidence.log_density()
    assert again.gram is not None
    assert dpmcmc.load(tmp_path / "run").evidence.log_density() == again.log_density()
    # A run that goes on from its checkpoint has it, too.
    resumed = logistic_run(checkpoint=tmp_path / "kept")
    np.testing.assert_array_equal(resumed.draws, result.draws)
    assert resumed.evidence.log_density() == result.evidence.log_density()


@pytest.mark.parametrize(("information", "refused"), [(0.5, True), (2.0, False)])
def test_a_prior_that_the_release_chose_and_that_says_more_than_it_takes_intervals_away(information, refused):
    """Information of a release, H²/𝒞, in units of the prior's precision: below 1 the prior says more."""
    h = np.diag(np.full(D, 10.0))
    found = Evidence(h, np.ones(D), h @ h / information, np.ones(D), 100)
    assert not dataclasses.replace(found, supposed=True).objections, "what is supposed is the user's word"
    said = dataclasses.replace(found, chosen=True).objections
    assert [("the releases say too little of" in one) for one in said] == [True] * refused
    # A direction that rows do not have is no coefficient.
    structure = RowStructure(constant=0, blocks=((1, 2),))
    null = np.array([1.0, -1.0, -1.0]) / np.sqrt(3)
    along = np.eye(D) - np.outer(null, null)
    lost = Evidence(20 * along, np.ones(D), np.eye(D), np.ones(D), 100, structure=structure, chosen=True)
    assert not lost.objections


def test_a_summary_names_the_coefficients_that_are_the_priors():
    """One column is constant but for a hundredth of the rows, so that the prior says more of its coefficient."""
    rng = np.random.default_rng(0)
    n = 4000
    x = {f"x{k}": rng.uniform(0, 1, n) for k in range(4)} | {"rare": np.where(rng.random(n) < 0.01, 1.0, 0.5)}
    label = rng.random(n) < 1 / (1 + np.exp(-sum(x[f"x{k}"] for k in range(4)) + 2))
    schema = Schema({**{name: Range(0, 1) for name in x}, "y": Levels([False, True])}, label="y")
    result = dpmcmc.fit(None, {**x, "y": label}, schema, 3.0, progress=False)
    text = dict(result.summary().said)
    assert "intervals" in result.usable_for
    # The intercept is the prediction where every number is 0, so it has that coefficient in it.
    names = text["mostly prior"].partition(":")[0].split(", ")
    assert "rare" in names
    assert not any(name.startswith("x") for name in names)
    table = result.summary().to_dict()
    assert {name for name, use in zip(table["name"], table["use"], strict=True) if use == "prior"} == set(names)
