"""A noise-aware posterior against closed forms and exact laws."""

import math

import numpy as np
import pytest

import dpmcmc
from dpmcmc.data.structure import RowStructure
from dpmcmc.inference import normal_law
from dpmcmc.inference.normal_law import Gaussian, GradientRelease, Local
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.mechanisms.statistics import split
from dpmcmc.privacy.query.gram_release import svec, symmetric
from dpmcmc.targets import LogisticRegression
from tests.noise_aware_tables import linear_table


def test_a_declared_norm_of_one_is_the_trace_whatever_the_row_bound():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 3))
    records = {"x": (x / np.linalg.norm(x, axis=1)[:, None]).astype(np.float32), "y": (rng.random(4000) < 0.5) * 1}
    stds = []
    for structure in (None, RowStructure(unit_norm=True)):
        target = LogisticRegression(prior_scale=1.0, num_features=3, row_bound=2.0)
        plan = NoiseAware(structure=structure).plan(target, num_records=4000, epsilon=3.0, delta=1e-5)
        stds.append(dpmcmc.sample(plan, records, key=0).draws[0].std(0))
    np.testing.assert_allclose(stds[0], stds[1], rtol=0.25)


def gibbs(noisy_gram, noisy_moment, std, variance, rng, sweeps):
    """Draws of θ given noisy G and m = Xᵀy, after Bernstein and Sheldon (2019): both are unknowns of the chain.

    θ | G, m   conjugate regression with the prior N(0, I)
    m | G, θ   N(Gθ, variance G), seen with noise N(0, std² I)
    G | m, θ   flat over positive definite matrices, seen with noise std on svec. G is in the mean of m, which a normal
               proposal takes in, and in its covariance, which a Metropolis step corrects.
    """
    d = len(noisy_moment)
    unit = [symmetric(row, d) for row in np.eye(d * (d + 1) // 2)]
    seen, identity = svec(noisy_gram), np.eye(d)

    def normal(precision, towards):
        covariance = np.linalg.inv(precision)
        return rng.multivariate_normal(covariance @ towards, (covariance + covariance.T) / 2)

    def beyond_proposal(gram, moment, theta):
        """Log density of m given G less the one that the proposal took for it."""
        left = moment - gram @ theta

        def log_density(scale):
            return -0.5 * left @ np.linalg.solve(variance * scale, left) - 0.5 * np.linalg.slogdet(scale)[1]

        return log_density(gram) - log_density(noisy_gram)

    gram, draws, accepted = noisy_gram, [], 0
    moment = noisy_moment
    weight = np.linalg.inv(variance * noisy_gram)
    for _ in range(sweeps):
        theta = normal(identity + gram / variance, moment / variance)
        inverse = np.linalg.inv(variance * gram)
        moment = normal(inverse + identity / std**2, inverse @ gram @ theta + noisy_moment / std**2)
        design = np.stack([one @ theta for one in unit], axis=1)
        precision = np.eye(len(seen)) / std**2 + design.T @ weight @ design
        proposed = symmetric(normal(precision, seen / std**2 + design.T @ weight @ moment), d)
        if np.linalg.eigvalsh(proposed)[0] > 0:
            gain = beyond_proposal(proposed, moment, theta) - beyond_proposal(gram, moment, theta)
            if math.log(rng.random()) < gain:
                gram, accepted = proposed, accepted + 1
        draws.append(theta)
    assert accepted > 0.2 * sweeps
    return np.array(draws[sweeps // 10 :])


def test_its_standard_deviation_is_that_of_gibbs():
    """d = 4; the noise makes intervals about twice as wide."""
    records, _ = linear_table(3000, 4, 1)
    x, y = (np.asarray(records[name], np.float64) for name in ("x", "y"))
    rng, std, variance = np.random.default_rng(2), 4.0, 0.25
    exact = np.concatenate([svec(x.T @ x), x.T @ y])
    gram, moment = split(exact + std * rng.normal(size=14), 4, 1.0)
    local = Local(gram / variance, gram / variance, lambda q: normal_law.isotropic_error(std)(q) / variance**2)
    seen = GradientRelease(np.zeros(4), -moment / variance, np.eye(4) * (std / variance) ** 2)
    ours = normal_law.posterior(seen, local, np.eye(4), Gaussian(np.zeros(4), np.eye(4)), rounds=12)
    draws = gibbs(gram, moment, std, variance, rng, 5000)
    sd = draws.std(axis=0)
    np.testing.assert_allclose(np.sqrt(np.diag(ours.covariance)), sd, rtol=0.05)
    np.testing.assert_allclose(ours.mean, draws.mean(axis=0), atol=0.15 * sd.max())
    exact = np.sqrt(np.diag(np.linalg.inv(gram / variance + np.eye(4))))
    assert np.all(sd > 1.5 * exact), "the noise does not show"


def _not_converging(matrix):
    raise np.linalg.LinAlgError("did not converge")


@pytest.mark.parametrize("converges", [True, False])
def test_a_prior_far_wider_than_the_noise_hides_none_of_it(converges, monkeypatch):
    """W Wᵀ is more than 1e16 times 𝒞, beyond float64; the density is the exact one.

    LAPACK's first algorithm was seen not to converge on a matrix of 66 columns, after the budget was spent.
    """
    if not converges:
        monkeypatch.setattr(np.linalg, "svd", _not_converging)
    rng = np.random.default_rng(0)
    wide = np.outer(rng.normal(size=3), [1e8, 0.0, 0.0])
    covariance = np.diag([1.0, 1.0, 1e-3])
    u = rng.normal(size=3)
    # Sherman and Morrison, and the lemma of the determinant.
    v = wide[:, 0]
    inverse = np.diag(1 / np.diag(covariance))
    around = 1 + v @ inverse @ v
    square = u @ inverse @ u - (u @ inverse @ v) ** 2 / around
    wanted = -0.5 * (square + 3 * math.log(2 * math.pi) + math.log(1e-3 * around))
    assert normal_law.log_density(u, covariance, wide) == pytest.approx(wanted, rel=1e-5)
