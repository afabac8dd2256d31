"""The engine runs what the plan says, once compiled, reproducibly, and nothing else."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc.diagnostics import reference
from dpmcmc.engine import sizes
from dpmcmc.engine.recorded import going_on
from dpmcmc.samplers.sgld import SGLDState

RNG = np.random.default_rng(0)
N, D = 400, 3
X = RNG.normal(size=(N, D)).astype(np.float32)
X /= np.maximum(1, np.linalg.norm(X, axis=1, keepdims=True))
Y = (RNG.random(N) < 1 / (1 + np.exp(-X @ np.array([2.0, -1.0, 0.5])))).astype(np.int32)
DATA = {"x": X, "y": Y}
TARGET = dpmcmc.targets.LogisticRegression(prior_scale=1.0)


def make(**changes):
    settings = {
        "num_records": N,
        "sampler": dpmcmc.SGLD(step_size=0.5),
        "sampling": dpmcmc.Poisson(40),
        "steps": 57,
        "burn_in": 10,
        "thin": 3,
        "chains": 2,
        "privacy": dpmcmc.Privacy(epsilon=1.0, delta=1e-4),
    }
    return dpmcmc.plan(**({"target": TARGET} | settings | changes))


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [dpmcmc.Poisson(40), dpmcmc.Full()])
def test_draws_have_the_shape_of_the_plan(sampling):
    plan = make(sampling=sampling)
    result = dpmcmc.sample(plan, DATA)
    assert result.draws.shape == (2, 15, D) == (plan.chains, plan.num_draws, D)
    assert result.info.temperature.shape == (2, 15)
    assert result.guarantee == plan.guarantee
    assert not np.array_equal(result.draws[0], result.draws[1])


def test_a_plain_key_is_reproducible_and_carries_no_guarantee():
    plan = make()
    first, again = dpmcmc.sample(plan, DATA, key=3), dpmcmc.sample(plan, DATA, key=jax.random.key(3))
    np.testing.assert_array_equal(first.draws, again.draws)
    assert first.guarantee is None
    assert again.guarantee is None


def test_secret_keys_differ_between_runs_and_stay_hidden():
    plan = make()
    a, b = dpmcmc.sample(plan, DATA), dpmcmc.sample(plan, DATA, key=dpmcmc.SecretKey())
    assert a.guarantee is not None
    assert b.guarantee is not None
    assert not np.array_equal(a.draws, b.draws)
    assert "hidden" in repr(dpmcmc.SecretKey())
    import pickle

    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(dpmcmc.SecretKey())


@pytest.mark.optimised
@pytest.mark.slow
def test_draws_do_not_depend_on_how_steps_are_chunked(monkeypatch):
    plan = make()
    whole = dpmcmc.sample(plan, DATA, key=0).draws
    monkeypatch.setattr(sizes, "_CHUNK_STEPS", 7)
    np.testing.assert_allclose(dpmcmc.sample(plan, DATA, key=0).draws, whole, rtol=1e-6)


@pytest.mark.slow
def test_temperature_one_chain_matches_the_laplace_posterior():
    plan = make(
        privacy=None,
        sampling=dpmcmc.Full(),
        sampler=dpmcmc.SGLD(step_size=2.0),
        steps=4000,
        burn_in=1000,
        thin=5,
        chains=8,
    )
    flat = dpmcmc.sample(plan, DATA, key=1).flat_draws()
    fit = reference.laplace(dpmcmc.targets.bind(TARGET, {"x": X[0], "y": Y[0]}), DATA)
    found = reference.distance(fit, flat)
    # 4800 draws, autocorrelation time about 12 draws: 400 effective; 4 errors on mean and std are 0.2 std.
    assert found["wasserstein_max"] < 0.2
    assert abs(found["std_ratio"] - 1) < 0.12


@pytest.mark.optimised
@pytest.mark.slow
def test_a_generic_target_gives_the_same_gradient_as_the_fast_path():
    class Plain:
        gradient_bound = None

        def __init__(self):
            self.inner = dpmcmc.targets.LogisticRegression(1.0, num_features=D)
            self.init, self.log_prior, self.log_likelihood = (
                self.inner.init,
                self.inner.log_prior,
                self.inner.log_likelihood,
            )

    settings = {"sampling": dpmcmc.Full(), "chains": 1}
    fast = dpmcmc.sample(make(**settings), DATA, key=5).draws
    plan = make(**settings)
    object.__setattr__(plan, "target", Plain())
    np.testing.assert_allclose(dpmcmc.sample(plan, DATA, key=5).draws, fast, rtol=2e-4, atol=2e-5)


@pytest.mark.slow
def test_divergence_stops_with_the_step_and_the_cost():
    plan = make(sampler=dpmcmc.SGLD(step_size=1e30), steps=40, burn_in=0)
    with pytest.raises(dpmcmc.DivergedError, match=r"diverged by step .* lower .*still spent"):
        dpmcmc.sample(plan, DATA)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"x": X[:-1], "y": Y[:-1]}, "num_records"),
        ({"x": np.where(np.arange(N)[:, None] == 7, np.nan, X), "y": Y}, "some rows are not finite"),
        ({}, "no arrays"),
    ],
)
def test_wrong_data_is_refused_before_anything_runs(data, message):
    with pytest.raises(ValueError, match=message):
        dpmcmc.sample(make(), data)


def test_saved_result_opens_as_arviz_netcdf_and_verifies(tmp_path):
    import xarray

    result = dpmcmc.sample(make(), DATA, out=tmp_path / "run")
    path = xarray.open_dataset(tmp_path / "run" / "draws.nc", group="path", engine="h5netcdf")
    assert path["theta"].dims[:2] == ("chain", "draw")
    np.testing.assert_array_equal(path["theta"].values, result.path)
    stats = xarray.open_dataset(tmp_path / "run" / "draws.nc", group="path_stats", engine="h5netcdf")
    assert set(stats) == {"gradient_norm", "temperature"}
    released = {"draws.nc", "plan.json", "privacy.json", "metrics.json", "report.html"}
    assert {p.name for p in (tmp_path / "run").iterdir()} == released


@pytest.mark.optimised
def test_non_finite_record_inside_a_run_changes_nothing_but_its_own_share():
    """Validation is at the door; past it a bad row contributes zero, so no abort depends on the data."""
    target = dpmcmc.targets.LogisticRegression(1.0, num_features=D)
    query = dpmcmc.privacy.GradientQuery(target, N, N, 1.0, None)
    bad = {"x": jnp.asarray(X).at[3].set(jnp.nan), "y": jnp.asarray(Y)}
    without = {"x": jnp.asarray(X).at[3].set(0.0), "y": jnp.asarray(Y)}
    key = jax.random.key(0)
    np.testing.assert_array_equal(
        query.clipped_sum(jnp.ones(D), bad, key).to_float64(1.0, 21),
        query.clipped_sum(jnp.ones(D), without, key).to_float64(1.0, 21),
    )


class Computed(NamedTuple):
    """State of a sampler that computes its position."""

    flat: jax.Array

    @property
    def position(self):
        return {"theta": self.flat + 0.0}


@pytest.mark.parametrize("kind", [Computed, SGLDState])
def test_a_chain_that_has_done_its_steps_stays_where_it_is(kind):
    """Padding steps read records and are not charged; a position that they move to may be found to have diverged."""
    state, following = (kind(jnp.full(2, value)) for value in (1.0, jnp.inf))
    after = jax.jit(lambda goes: going_on(goes, following, state).position)
    assert np.all(np.isinf(jax.tree.leaves(after(True))[0]))
    assert np.all(jax.tree.leaves(after(False))[0] == 1.0)
