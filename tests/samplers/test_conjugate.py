"""The real engine, minibatches and all, on a posterior known in closed form: Bayesian linear regression.

**What minibatches do.** A Poisson batch of rate q gives the gradient an extra covariance V = ((1 − q)/q) Σ g_i g_iᵀ,
g_i = r_i x_i at the posterior mean with residual r_i (noise_scale 1). Residuals are ±1 here, so V = ((1 − q)/q) XᵀX to
d/N = 1 %, the same multiple of the curvature in every direction. SGLD then keeps temperature T + ηV/2: with curvature
w, 1 + ηw(1 − q)/(2q), beside its own 1/(1 − ηw/2).

**Error bars** come from the chains, which are independent: 4 standard errors of the mean over chains, of the posterior
mean and of every entry of the covariance, both in units of the exact posterior's standard deviations.
"""

import numpy as np
import pytest

import dpmcmc
from tests.unproved import plan_any_epsilon

N, D = 400, 3
TARGET = dpmcmc.targets.LinearRegression(prior_scale=2.0, noise_scale=1.0)
RNG = np.random.default_rng(0)
ORTHOGONAL = np.linalg.qr(RNG.normal(size=(N, D)))[0] * np.sqrt(N)
SIGNS = RNG.choice([-1.0, 1.0], size=N)
#: Near the prior mean, where chains start: a thermostat remembers a long fall for s²/2 steps.
TRUTH = np.array([0.1, -0.05, 0.02])
#: Rows mixed so that the posterior is correlated, with condition number 6.
MIXED = ORTHOGONAL @ np.array([[1.0, 0.5, 0.0], [0.0, 0.6, 0.3], [0.0, 0.0, 0.6]])


def records(x):
    return {"x": x.astype(np.float32), "y": (x @ TRUTH + SIGNS[np.arange(len(x)) % N]).astype(np.float32)}


class Posterior:
    """Exact mean and covariance, and what the draws say in their units."""

    def __init__(self, data):
        self.data, self.n = data, len(data["y"])
        self.mean, self.cov = TARGET.posterior(data)
        self.precision = np.linalg.inv(self.cov)
        self.curvature = np.linalg.eigvalsh(self.precision)
        # L with cov = L Lᵀ whose columns are the directions of the curvatures above
        values, vectors = np.linalg.eigh(self.precision)
        self.whiten = vectors * np.sqrt(values)

    def run(self, sampler, *, batch=None, seed=0, steps=1600, burn_in=200, chains=64, privacy=None):
        sampling = dpmcmc.Full() if batch is None else dpmcmc.Poisson(batch)
        plan = dpmcmc.plan(
            TARGET,
            num_records=self.n,
            sampler=sampler,
            sampling=sampling,
            steps=steps,
            burn_in=burn_in,
            thin=5,
            chains=chains,
            privacy=privacy,
        )
        return plan, (dpmcmc.sample(plan, self.data, key=seed).draws - self.mean) @ self.whiten

    def check(self, draws, temperature=1.0, bias=0.0, error=0.04):
        """Mean 0 and covariance diag(temperature) within 4 standard errors, of which none is above ``error``."""
        chains = len(draws)
        means = draws.mean(axis=1)
        moments = np.einsum("cni,cnj->cij", draws, draws) / draws.shape[1]
        for each, wanted, slack in (
            (means, np.zeros(D), 0.0),
            (moments, np.diag(np.broadcast_to(temperature, D)), bias),
        ):
            standard_error = each.std(axis=0, ddof=1) / np.sqrt(chains)
            assert standard_error.max() < error
            assert np.all(np.abs(each.mean(axis=0) - wanted) < 4 * standard_error + slack), (each.mean(axis=0), wanted)


@pytest.fixture(scope="module")
def mixed():
    return Posterior(records(MIXED))


@pytest.fixture(scope="module")
def orthogonal():
    """Equal curvature in every direction, so that V is a multiple of the identity."""
    return Posterior(records(ORTHOGONAL))


@pytest.fixture(scope="module")
def few():
    """100 records, equal curvature."""
    return Posterior(records(np.linalg.qr(ORTHOGONAL[:100])[0] * 10))


@pytest.fixture(scope="module")
def many():
    """4000 records: the orthogonal rows ten times over."""
    return Posterior(records(np.tile(ORTHOGONAL, (10, 1))))


def minibatch_covariance(posterior, q):
    residual = posterior.data["y"] - posterior.data["x"] @ posterior.mean
    gradients = residual[:, None] * posterior.data["x"]
    return (1 - q) / q * gradients.T @ gradients


def test_minibatch_noise_is_a_multiple_of_the_curvature_here(mixed):
    whitened = np.linalg.inv(mixed.whiten) @ minibatch_covariance(mixed, 0.25) @ np.linalg.inv(mixed.whiten).T
    np.testing.assert_allclose(whitened, 3 * np.eye(D), atol=0.09)


@pytest.mark.slow
def test_sgld_runs_hot_by_what_minibatches_add(mixed):
    """Temperature 1 + ηw(1 − q)/(2q) in direction w: the calculation on which the small steps below rest."""
    q, eta = 0.25, 0.2 / mixed.curvature.max()
    _, draws = mixed.run(dpmcmc.SGLD(N * eta), batch=q * N)
    ηw = eta * mixed.curvature
    temperature = (1 + ηw * (1 - q) / (2 * q)) / (1 - ηw / 2)
    assert temperature.max() > 1.4
    # V carries (x·δ)² of the posterior's width besides: d/N of it.
    mixed.check(draws, temperature, bias=0.01)


@pytest.mark.slow
def test_sghmc_told_of_minibatch_noise_samples_the_posterior(orthogonal):
    """V̂ is taken from the toy data, and b̂ = ηV̂/(2T) of the friction left to the minibatches; not told, T is 1.3."""
    q, a, eta_w = 0.25, 0.2, 0.04
    eta = eta_w / orthogonal.curvature.max()
    estimate = np.trace(minibatch_covariance(orthogonal, q)) / D
    assert eta * estimate / 2 / a == pytest.approx(0.3, abs=0.01)
    sampler = dpmcmc.SGHMC(N * eta, friction=a, minibatch_variance=estimate)
    _, draws = orthogonal.run(sampler, batch=q * N)
    orthogonal.check(draws, 1 / (1 - eta_w / (4 - 2 * a)), bias=0.01)


@pytest.mark.slow
def test_sgnht_absorbs_minibatch_noise_it_was_not_told_of(few):
    """Own friction .1, and ηV/(2T) = .3 more of which it knows nothing: T all the same, where SGHMC keeps 4 T."""
    q, a, eta_w = 0.25, 0.1, 0.2
    eta = eta_w / few.curvature.max()
    hidden = eta * np.trace(minibatch_covariance(few, q)) / D / 2
    assert hidden == pytest.approx(0.3, abs=0.03)
    # The thermostat relaxes in (a + .3)/η = 200 steps, and finds the friction in five times that.
    plan, draws = few.run(dpmcmc.SGNHT(few.n * eta, friction=a), batch=q * few.n, steps=2400, burn_in=1000)
    few.check(draws, bias=0.01)
    assert plan.sampler.settled_friction(plan.noise_std[0], 0) == pytest.approx(a)


@pytest.mark.slow
def test_sgfs_with_a_queried_fisher_samples_the_posterior(mixed):
    """T H⁻¹ with minibatches at large steps: A holds their covariance ((1 − q)/q) D beside the curvature."""
    q, eta = 0.25, 0.5 / mixed.curvature.max()
    sampler = dpmcmc.SGFS(N * eta, fisher="query", prior_precision=TARGET.prior_precision, structure="dense")
    _, draws = mixed.run(sampler, batch=q * N)
    # Residuals of the current θ, not of the mean, make the Fisher information d/N larger.
    mixed.check(draws, bias=0.01)


#: Bounds every record's gradient |r|·‖x‖ along the chains, so that clipping changes nothing.
CLIP = 8.0


@pytest.mark.slow
def test_a_private_run_whose_own_noise_suffices_samples_the_posterior(mixed, monkeypatch):
    """Clipped, summed on the grid, noised and accounted, with calibrator free: the law of the plain run."""
    eta = 0.04 / mixed.curvature.max()
    plan_any_epsilon(monkeypatch)  # so little noise costs more than integers prove
    privacy = dpmcmc.Privacy(delta=1e-4, calibrator="free", clip=CLIP)
    plan, draws = mixed.run(dpmcmc.SGLD(N * eta), privacy=privacy, steps=4000)
    assert plan.free_fraction == 1.0
    assert np.isfinite(plan.guarantee.epsilon)
    mixed.check(draws, 1 / (1 - eta * mixed.curvature / 2), error=0.05)
