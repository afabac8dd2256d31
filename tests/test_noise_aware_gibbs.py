"""A noise-aware posterior of a linear regression against Gibbs sampling over its noisy statistics."""

from __future__ import annotations

import math

import numpy as np

from dpmcmc.inference import noise_aware
from dpmcmc.inference.noise_aware import Gaussian, Local, Release
from dpmcmc.mechanisms.sufficient import split, statistics
from dpmcmc.privacy.query.gaussian_release import svec, symmetric
from tests.noise_aware_tables import linear_table


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
    gram, moment = split(statistics(x, y, 1.0) + std * rng.normal(size=14), 4, 1.0)
    local = Local(gram / variance, gram / variance, lambda q: noise_aware.isotropic_error(std)(q) / variance**2)
    seen = Release(np.zeros(4), -moment / variance, np.eye(4) * (std / variance) ** 2)
    ours = noise_aware.posterior(seen, local, np.eye(4), Gaussian(np.zeros(4), np.eye(4)), rounds=12)
    draws = gibbs(gram, moment, std, variance, rng, 5000)
    sd = draws.std(axis=0)
    np.testing.assert_allclose(np.sqrt(np.diag(ours.covariance)), sd, rtol=0.05)
    np.testing.assert_allclose(ours.mean, draws.mean(axis=0), atol=0.15 * sd.max())
    exact = np.sqrt(np.diag(np.linalg.inv(gram / variance + np.eye(4))))
    assert np.all(sd > 1.5 * exact), "the noise does not show"
