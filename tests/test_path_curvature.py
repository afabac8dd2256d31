"""The second moment that a release and a path tell: its equation, its error, and coefficients that noise hides."""

import math

import numpy as np
import pytest
from scipy.special import expit

import dpmcmc
from dpmcmc.data.schema import RowStructure
from dpmcmc.errors import NotForIntervals
from dpmcmc.inference.normal_law import Gaussian, Local, isotropic_error, symmetric_noise
from dpmcmc.inference.path_curvature import Differences, refined
from dpmcmc.inference.path_law import lost
from dpmcmc.privacy.query.gram_release import NoisyGram

_STD, _SLOPE = 5.0, 0.2
_METRIC = np.diag([400.0, 9.0, 4.0]) + 1.0
_GRAM = np.diag([900.0, 60.0, 40.0]) + 5.0


def _told(rng, steps=40):
    """Return a release, and the differences of a linear path, as ``refined`` takes them."""
    positions = rng.normal(size=(steps, 3)) * [1.0, 4.0, 6.0]
    positions -= positions.mean(0)
    noise = rng.normal(size=(steps, 3)) @ np.linalg.cholesky(_METRIC).T
    gradients = _SLOPE * positions @ _GRAM + noise - noise.mean(0)
    released = _GRAM + _STD * symmetric_noise(rng, 3)
    noisy = NoisyGram(gram=released, noise_std=_STD, trace=float(np.trace(_GRAM)), trace_std=1e-9)
    return noisy, Differences(positions, gradients, np.ones(steps), _METRIC)


def test_the_estimate_is_the_generalised_least_squares_one():
    noisy, path = _told(np.random.default_rng(0))
    pairs = [(i, j) for i in range(3) for j in range(i, 3)]
    units = [(np.eye(3)[[i]].T @ np.eye(3)[[j]] + np.eye(3)[[j]].T @ np.eye(3)[[i]]) / (1 + (i == j)) for i, j in pairs]
    whiten = np.linalg.inv(np.linalg.cholesky(_METRIC)).T
    moved = np.stack([(_SLOPE * path.positions @ unit @ whiten).ravel() for unit in units], 1)
    beyond = ((path.gradients - _SLOPE * path.positions @ noisy.gram) @ whiten).ravel()
    before = np.diag([(1 if i == j else 2) / _STD**2 for i, j in pairs])
    found = np.linalg.solve(moved.T @ moved + before, moved.T @ beyond)
    wanted = noisy.gram + sum(one * unit for one, unit in zip(found, units, strict=True))
    wanted += np.eye(3) * (np.trace(_GRAM) - np.trace(wanted)) / 3  # the projection knows the trace
    got = refined(noisy, None, path, _SLOPE * noisy.gram, _SLOPE).gram
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-6)


def test_its_error_is_the_bootstrapped_one_and_smaller_than_the_release_s():
    rng, direction = np.random.default_rng(1), np.array([0.0, 0.6, 0.8])
    squares, said, released = [], [], []
    for _ in range(150):
        noisy, path = _told(rng)
        found = refined(noisy, None, path, _SLOPE * noisy.gram, _SLOPE)
        squares.append(float(np.sum(((found.gram - _GRAM) @ direction) ** 2)))
        released.append(float(np.sum(((noisy.gram - _GRAM) @ direction) ** 2)))
        said.append(float(np.trace(found.error(np.outer(direction, direction)))))
    # Means of 150 squares with about two degrees of freedom vary by 8 %, those of 24 bootstraps by 2 %.
    assert np.mean(squares) == pytest.approx(np.mean(said), rel=0.3)
    assert np.mean(squares) < 0.75 * np.mean(released)


@pytest.mark.parametrize(
    ("curvature", "error", "noise", "share"),
    [
        ([50.0, 50.0], 0.0, 1.0, 0.0),  # the records tell both
        ([50.0, 0.3], 0.0, 1.0, 0.0),  # the prior's without privacy too
        ([50.0, 0.3], 8.0, 1.0, 0.5),  # the curvature is lost in noise
        ([50.0, 50.0], 0.0, 1e5, 1.0),  # the gradient is
    ],
)
def test_coefficients_are_lost_where_noise_and_not_the_records_leave_them_to_the_prior(curvature, error, noise, share):
    h = np.diag(curvature)
    local, prior, noise = Local(h, h, isotropic_error(error)), np.eye(2), noise * np.eye(2)
    covariance = np.eye(2)
    for _ in range(20):
        total = h + noise + local.curvature_error(covariance)
        covariance = np.linalg.inv(prior + h @ np.linalg.solve(total, h))
    assert lost(Gaussian(np.zeros(2), covariance), local, 1.0, noise, prior) == share


@pytest.fixture(scope="module")
def narrow():
    """A run on columns that fill a tenth of their ranges, with effects that the prior does not expect."""
    rng, n = np.random.default_rng(0), 3000
    z = np.clip([0.5, -0.3, 0.2] + [0.09, 0.12, 0.4] * rng.normal(size=(n, 3)), -1, 1)
    x = np.concatenate([np.ones((n, 1)), z], 1) / 2
    truth = np.array([0.0, 6.0, -6.0, 1.0])
    y = rng.random(n) < expit((x - x.mean(0)) @ truth)
    target = dpmcmc.targets.LogisticRegression(num_features=4, row_bound=1.0, prior_scale=2.0)
    plan = dpmcmc.plan(
        target,
        num_records=n,
        sampler=dpmcmc.SGLD(step_size=4.0),
        steps=80,
        burn_in=40,
        privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-5),
        metric=dpmcmc.PrivateMetric("gram", structure=RowStructure(constant=0)),
    )
    assert "intervals" in plan.usable_for
    with pytest.warns(NotForIntervals, match="leaves .* of the coefficients to the prior"):
        return dpmcmc.sample(plan, {"x": x.astype(np.float32), "y": y.astype(np.int32)}, key=3)


def test_a_run_whose_coefficients_noise_hides_predicts_from_its_posterior_and_claims_no_intervals(narrow, tmp_path):
    xarray = pytest.importorskip("xarray")
    assert narrow.usable_for == ["prediction"]
    assert narrow.posterior is None
    narrow.save(tmp_path / "run", public=True)
    for one in (narrow, dpmcmc.Result.load(tmp_path / "run")):
        assert "of the coefficients to the prior" in one.verdict.reasons["intervals"]
        np.testing.assert_allclose(np.std(one.flat_draws(), axis=0), one.noise_aware().std, rtol=0.05)
    assert "the posterior given all that its path released" in narrow.page()
    with xarray.open_datatree(tmp_path / "run" / "draws.nc", engine="h5netcdf") as tree:
        assert set(tree.children) == {"draws", "path", "path_stats", "metric"}
        assert math.isclose(float(tree["draws"]["theta"].std()), float(np.std(narrow.draws)), rel_tol=1e-5)
