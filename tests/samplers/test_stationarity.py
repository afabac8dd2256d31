"""Every sampler keeps its law: {sampler} x friction x temperature x dimension x leaves x noise, on Gaussians.

**The Gaussians.** d = 1, 16 or 256 directions on four levels of curvature, ηw = .0063, .02, .063 and .2, condition
number 32; most directions are on the slowest level, where draws are dearest. One Gaussian so covers all step sizes up
to ηw = .2. Variances are pooled over the directions of one level and compared with the sampler's law level by level.

**The run.** Chains start in the law they claim, and then run 6 relaxation times of the SLOWEST direction, of which the
last 3 are looked at. What is wrong shows there to 1 − e⁻⁶: a chain that merely stays where it was put would not pass.

**The tolerance.** 5 % for every cell. A variance averaged over 3 relaxation times 1/r is worth 3.6 independent draws
(x²/(2(x − 1 + e⁻ˣ)) at x = 2·3), and the number of chains is such that each level has 12 800: the standard error is
√(2/12800) = 1.25 %, a quarter of the tolerance. The laws hold at any η (that of SGNHT for many parameters), so nothing
is allowed for their bias.
"""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

import dpmcmc
from dpmcmc.privacy.query import randomness
from dpmcmc.privacy.query.query import PrivateGradient
from dpmcmc.testing import gaussian_run
from tests.pairs import slow_pairs

N = 1000
TOP = 40.0
ETA = 0.2 / TOP
DRAWS = 12_800
TOLERANCE = 4 * np.sqrt(2 / DRAWS)
#: Of 16 directions, so many on each level of curvature.
LEVELS = {10**-1.5: 10, 0.1: 3, 10**-0.5: 2, 1.0: 1}
#: (d, nested, T): a Gaussian of one direction has one leaf; every other d meets both temperatures and both layouts.
SHAPES = ((1, False, 0.25), (1, False, 1.0), (16, True, 0.25), (16, False, 1.0), (256, False, 0.25), (256, True, 1.0))


def curvatures(d):
    if d == 1:
        return np.array([TOP])
    return np.repeat([TOP * level for level in LEVELS], [d // 16 * count for count in LEVELS.values()])


def variances(sampler, w, law, *, decay, noise_std, nested=False, wait=0):
    """(variance over law on each level of curvature, Info); ``decay`` is the slowest factor of one step."""
    relaxation = -1 / np.log(decay)
    steps = 2 * int(np.ceil(3 * relaxation + wait))
    slowest = np.sum(w == w.min())
    every = max(1, int(relaxation / 10))
    samples, info = gaussian_run(
        sampler,
        w,
        steps=max(steps, 40),
        chains=-(-DRAWS // int(3.6 * slowest)),
        noise_std=noise_std,
        start_std=np.sqrt(law),
        nested=nested,
        every=every,
    )
    ratio = np.mean(samples**2, axis=(0, 1)) / law
    return np.array([ratio[w == level].mean() for level in np.unique(w)]), info


def check(sampler, w, law, **run):
    found, _ = variances(sampler, w, law, **run)
    assert np.all(np.abs(found - 1) < TOLERANCE), f"variance over law {found}, allowed {TOLERANCE:.1%} off 1"


def cells(*axes, least=1, possible=lambda noise, *rest: True):
    """Shapes x whose noise x ``axes``: each two values meet in a slow cell, everything with everything by hand."""
    shapes = [shape for shape in SHAPES if shape[0] >= least]
    table = itertools.product(shapes, ("own", "private"), *axes)
    return slow_pairs([(*shape, *rest) for shape, *rest in table if possible(*rest)])


@pytest.mark.parametrize(("d", "nested", "temperature", "noise"), cells())
def test_sgld_keeps_its_discretised_law(d, nested, temperature, noise):
    """(T/w)/(1 − ηw/2), with T = ηs²/2 where privacy asks for more noise."""
    sampler = dpmcmc.SGLD(N * ETA, temperature).bind(N)
    w, s = curvatures(d), float(sampler.noise_std(0)) * (3 if noise == "private" else 1)
    kept = temperature * (9 if noise == "private" else 1)
    assert sampler.temperature_at(s, 0) == pytest.approx(kept)
    law = kept / w / (1 - ETA * w / 2)
    check(sampler, w, law, decay=1 - ETA * w.min(), noise_std=s, nested=nested)


def sghmc_decay(a, eta, w):
    """Slowest factor of the recursion: largest root of λ² − (2 − a − ηw)λ + (1 − a) over the directions."""
    return max(np.max(np.abs(np.roots([1, -(2 - a - eta * each), 1 - a]))) for each in np.unique(w))


@pytest.mark.parametrize(("d", "nested", "temperature", "noise", "a"), cells((0.05, 0.3, 1.0)))
def test_sghmc_keeps_its_discretised_law(d, nested, temperature, noise, a):
    """(T/w)/(1 − ηw/(4 − 2a)), with T = ηs²/(2a) where privacy asks for more noise."""
    sampler = dpmcmc.SGHMC(N * ETA, temperature, a).bind(N)
    w, s = curvatures(d), float(sampler.noise_std(0)) * (3 if noise == "private" else 1)
    kept = temperature * (9 if noise == "private" else 1)
    assert sampler.temperature_at(s, 0) == pytest.approx(kept)
    law = kept / w / (1 - ETA * w / (4 - 2 * a))
    check(sampler, w, law, decay=sghmc_decay(a, ETA, w), noise_std=s, nested=nested)


def settled(a, eta, w):
    """The friction at which the directions' mean kinetic temperature is T.

    At a fixed friction α SGHMC keeps T·a*/α in direction w, so α = a* · mean of 1/(1 − ηw/(4 − 2α)) over directions;
    for a single curvature that is (α − a*)(2 − α) = αηw/2.
    """
    alpha = a
    for _ in range(200):
        alpha = a * np.mean(1 / (1 - eta * w / (4 - 2 * alpha)))
    return alpha


# A friction of 1 has no room for more noise; plans refuse it.
SGNHT_CELLS = cells((0.05, 0.3, 1.0), least=16, possible=lambda noise, a: (noise, a) != ("private", 1.0))


@pytest.mark.parametrize(("d", "nested", "temperature", "noise", "a"), SGNHT_CELLS)
def test_sgnht_keeps_its_temperature_whatever_the_noise(d, nested, temperature, noise, a):
    """Mean kinetic temperature T at the settled friction α, so (T a*/α/w)/(1 − ηw/(4 − 2α)) in direction w."""
    sampler = dpmcmc.SGNHT(N * ETA, temperature, a).bind(N)
    w, s = curvatures(d), float(sampler.noise_std(0))
    if noise == "private":
        s *= {0.05: 3.0, 0.3: 1.7}[a]
    star = ETA * s**2 / (2 * temperature)
    alpha = settled(star, ETA, w)
    law = temperature * star / alpha / w / (1 - ETA * w / (4 - 2 * alpha))
    assert sampler.temperature_at(s, 0) == temperature
    # The thermostat itself relaxes in about α/(ηT) steps.
    wait = alpha / (ETA * temperature)
    check(sampler, w, law, decay=sghmc_decay(alpha, ETA, w), wait=wait, noise_std=s, nested=nested)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("a", "eta_w", "noise", "temperature"),
    [
        (0.05, 0.05, 1.0, 0.25),
        (0.05, 0.2, 1.0, 1.0),
        (0.3, 0.2, 1.5, 1.0),
        (0.5, 0.5, 1.0, 1.0),
    ],
)
def test_thermostat_settles_where_its_law_says(a, eta_w, noise, temperature):
    """(α − a*)(2 − α) = αηw/2 for a single curvature, and the kinetic temperature is T; both within 2 %."""
    d, eta = 256, eta_w / TOP
    sampler = dpmcmc.SGNHT(N * eta, temperature, a).bind(N)
    s = noise * float(sampler.noise_std(0))
    star, w = noise**2 * a, np.full(d, TOP)
    alpha = settled(star, eta, w)
    assert (alpha - star) * (2 - alpha) == pytest.approx(alpha * eta_w / 2)
    steps = int(6 * alpha / (eta * temperature)) + 600
    _, info = gaussian_run(sampler, w, steps=steps, chains=16, noise_std=s, start_std=np.sqrt(temperature / w), every=5)
    # Standard errors over the 16 chains: at most .25 % of the kinetic temperature and .4 % of α.
    assert np.mean(info.kinetic_temperature) == pytest.approx(temperature, rel=0.02)
    assert np.mean(info.thermostat) == pytest.approx(alpha, rel=0.02)


def fisher_scoring(fisher, w, eta, temperature, **settings):
    if fisher == "public":
        settings["public_fisher"] = w / N
    return dpmcmc.SGFS(N * eta, temperature, fisher, **settings).bind(N)


@pytest.mark.parametrize(("d", "nested", "temperature", "noise", "fisher"), cells(("query", "gradients", "public")))
def test_sgfs_keeps_its_temperature_whatever_the_noise(d, nested, temperature, noise, fisher):
    """T/w, with no bias in η, wherever the Fisher information comes from; diagonal estimates.

    Under noise s a small step is 2T/s². From gradients the estimate ŵ is noisy, but its errors average out of
    (T/w)/(1 + T(ŵ − w)/s²) to second order, which at ηw = .2 is below 1 %.
    """
    w, eta = curvatures(d), ETA * (4 if noise == "private" else 1)
    sampler = fisher_scoring(fisher, w, eta, temperature, structure="diagonal")
    s = float(sampler.noise_std(0)) * (2 if noise == "private" else 1)
    assert sampler.temperature_at(s, 0) == temperature
    decay = 1 - 2 * w.min() / (s**2 / temperature + w.min())
    check(sampler, w, temperature / w, decay=decay, noise_std=s, nested=nested)


@pytest.mark.parametrize(("fisher", "temperature"), [("public", 0.25), ("query", 1.0)])
def test_dense_sgfs_is_exact_at_any_step(fisher, temperature):
    """ηw = 20, ten times beyond where SGLD diverges."""
    w = curvatures(16)
    sampler = fisher_scoring(fisher, w, 100 * ETA, temperature, structure="dense")
    s = float(sampler.noise_std(0))
    decay = np.max(np.abs(1 - 2 * w / (s**2 / temperature + w)))
    check(sampler, w, temperature / w, decay=decay, noise_std=s)


@pytest.mark.slow
def test_dense_sgfs_from_gradients_keeps_its_temperature():
    w, eta = curvatures(16)[[0, 10, 13, 15]], 5 * ETA
    sampler = fisher_scoring("gradients", w, eta, 1.0, structure="dense")
    s = float(sampler.noise_std(0))
    # ηw = 1. Errors of the estimate's off-diagonal part count as well here: 2 % beyond the sampling error.
    found, _ = variances(sampler, w, 1 / w, decay=1 - eta * w.min(), noise_std=s, wait=100)
    assert np.all(np.abs(found - 1) < TOLERANCE + 0.02)


def test_prior_precision_counts_once():
    """A curvature of which the records give only a part: D = N F, H = D + λ."""
    prior = 0.3
    w = curvatures(16)
    sampler = dpmcmc.SGFS(N * 100 * ETA, 1.0, "public", (w - prior) / N, prior, structure="diagonal").bind(N)
    s = float(sampler.noise_std(0))
    decay = np.max(np.abs(1 - 2 * w / (s**2 + w)))
    check(sampler, w, 1 / w, decay=decay, noise_std=s)


def rotation(d):
    return np.linalg.qr(np.random.default_rng(0).normal(size=(d, d)))[0]


def covariance(sampler, w, law, steps):
    """Of 3600 chains started with the variances ``law``, over the second half of ``steps``."""
    s = float(sampler.noise_std(0))
    samples, _ = gaussian_run(sampler, w, steps=steps, chains=3600, noise_std=s, start_std=np.sqrt(law), every=3)
    flat = samples.reshape(-1, len(w))
    return flat.T @ flat / len(flat)


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["diagonal", "dense"])
def test_sgfs_in_a_metric_keeps_the_posterior_covariance(shape):
    """Clipped as ‖F⁻¹g‖, noised as s·F·Z: T H⁻¹ at any step, off the diagonal too."""
    d = 4
    w = curvatures(16)[[0, 10, 13, 15]]
    scales = np.array([0.6, 1.0, 1.5, 0.9])
    metric = scales if shape == "diagonal" else rotation(d) * scales
    sampler = fisher_scoring("public", w, 100 * ETA, 1.0, structure=shape, metric=metric)
    # The slowest direction has ηw = .63 / .6² at most and .63 / 1.5² at least, relaxes in 4 steps and does so 3 times
    # in each half: 3.6 draws of each of 3600 chains, 4 standard errors of a variance 5 %.
    found = np.sqrt(np.outer(w, w)) * covariance(sampler, w, 1 / w, steps=24)
    np.testing.assert_allclose(found, np.eye(d), atol=TOLERANCE)


def test_wrong_dense_fisher_in_a_dense_metric_solves_the_lyapunov_equation():
    """C = (I − PH) C (I − PH)ᵀ + P s²FFᵀ P with P = 2A⁻¹: what a linear recursion keeps, from its definition."""
    d = 4
    w = TOP * np.array([0.25, 0.5, 0.75, 1.0])
    turn = rotation(d)
    metric, guess = turn * np.array([0.7, 1.0, 1.5, 1.0]), (turn.T * w * 2) @ turn
    sampler = dpmcmc.SGFS(N * 3 * ETA, 1.0, "public", guess / N, structure="dense", metric=metric).bind(N)
    noise = float(sampler.noise_std(0)) ** 2 * metric @ metric.T
    p = 2 * np.linalg.inv(noise + guess)
    step = np.eye(d) - p @ np.diag(w)
    wanted = scipy.linalg.solve_discrete_lyapunov(step, p @ noise @ p)
    relaxation = -1 / np.log(np.abs(np.linalg.eigvals(step)).max())
    assert relaxation < 13
    assert np.abs(np.sqrt(np.outer(w, w)) * wanted - np.eye(d)).max() > 4 * TOLERANCE
    scale = np.sqrt(np.outer(np.diag(wanted), np.diag(wanted)))
    found = covariance(sampler, w, np.diag(wanted), steps=78)
    np.testing.assert_allclose(found / scale, wanted / scale, atol=TOLERANCE)


def test_matrix_rejects_a_small_error_in_the_noise():
    """Planted: 6 % of the noise's std missing, 12 % of the temperature, must not pass for any level."""

    @dataclasses.dataclass(frozen=True)
    class Cold(dpmcmc.SGHMC):
        def noise_std(self, t):
            return 0.94 * super().noise_std(t)

    w = curvatures(16)
    sampler = Cold(N * ETA, 1.0, 0.3).bind(N)
    law = 1 / w / (1 - ETA * w / (4 - 2 * 0.3))
    found, _ = variances(sampler, w, law, decay=sghmc_decay(0.3, ETA, w), noise_std=None)
    assert np.all(found < 1 - TOLERANCE)


def test_sgfs_learns_the_curvature_from_minibatch_gradients_whose_prior_part_has_no_minibatch_noise():
    """E[g̃g̃ᵀ − s²] = T(D + λ) + rD at rate q, r = (1 − q)/q. Taking all of λ off it leaves 1.4 times the variance."""
    data, prior, rate, chains = np.array([10.0, 50.0]), 20.0, 0.05, 512
    w, r = data + prior, (1 - rate) / rate
    sampler = dpmcmc.SGFS(0.004 * N, fisher="gradients", prior_precision=prior, structure="diagonal")
    sampler = sampler.bind(N).with_rate(rate)
    key = jax.random.key(3)
    start = randomness.normal(key, (chains, 2)) * w**-0.5
    state = jax.vmap(sampler.init)(jax.random.split(key, chains), start)
    s = jnp.float32(sampler.noise_std(0))

    def step(state, t):
        noise = randomness.normal(jax.random.fold_in(key, t), (2, chains, 2))
        value = state.position * w + s * noise[0] + jnp.sqrt(r * data) * noise[1]
        one = lambda state, g: sampler.step(key, state, PrivateGradient(g, s), t)[0]  # noqa: E731
        state = jax.vmap(one)(state, value)
        return state, jnp.mean(state.position**2, axis=0)

    squares = jax.lax.scan(step, state, jnp.arange(3000))[1][1500:].mean(axis=0)
    # At least 512·1500·ηw/2 = 46,000 independent draws: 4 standard errors of a variance are 2.6 %.
    np.testing.assert_allclose(squares * w, 1.0, atol=0.05)
