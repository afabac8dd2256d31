"""Under add_remove an absent record adds exactly zero to every sum, or the plan is refused."""

import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc.data import Range, Schema, by_owner
from dpmcmc.errors import UnsupportedCombination
from dpmcmc.mechanisms import NoiseAware, SufficientStatistics
from dpmcmc.targets import (
    Custom,
    LinearRegression,
    LogisticRegression,
    PerOwner,
    PoissonRegression,
)
from dpmcmc.targets.absent_records import check_absent
from tests.absent_people import CONSTANT, D, N, chain, people
from tests.one_shot_replay import charged, measured
from tests.replay import FAST, Replay, share


@pytest.mark.parametrize("model", list(CONSTANT))
def test_a_model_whose_record_of_zeros_adds_to_sums_is_refused_under_add_remove(model):
    with pytest.raises(UnsupportedCombination, match=r"^adjacency: under add_remove .*by_owner, .* zero_out"):
        chain(CONSTANT[model])
    for adjacency in ("replace_one", "zero_out"):
        check_absent(CONSTANT[model], adjacency)


def test_a_model_whose_gradient_at_zeros_is_zero_at_some_parameters_only_is_refused():
    """Parameters of a size that saturates a network, or at which a logarithm is no number, prove nothing."""
    dead = Custom(lambda key: jnp.ones(8), lambda p: 0.0 * p.sum(), lambda p, r: -((r["x"] - jnp.log(p)) ** 2).sum())
    with pytest.raises(UnsupportedCombination, match="intercept, a bias or a constant feature"):
        chain(dead)


@pytest.mark.parametrize("model", list(CONSTANT))
def test_an_absent_owner_moves_a_chains_sums_by_no_more_than_c(model):
    """Replayed on records that lack one person; a record of zeros in the place of one moves them by up to 2C."""
    plan = chain(PerOwner(CONSTANT[model], 1))
    replay = Replay(plan, people(), FAST)
    here = replay(people())
    without = replay(people(absent=[N - 1]), given=here)
    assert np.all(share(here, without) <= 1)
    assert np.any(share(here, without) > 0.5)


REGRESSION = {"prior_scale": 1.0, "num_features": D + 1, "row_bound": 1.0}
FAMILIES = {
    "logistic": LogisticRegression(**REGRESSION),
    "poisson": PoissonRegression(**REGRESSION),
    "linear": LinearRegression(**REGRESSION, noise_scale=0.5, label_bound=1.0),
}


@pytest.mark.parametrize("family", list(FAMILIES))
def test_an_absent_owner_costs_a_noise_aware_release_no_more_than_it_charges(family):
    """Rows have a constant column; an owner's row is long, or the owner is absent."""
    x = np.concatenate([np.full((N, 1), 0.6), np.tile([0.8, 0.0], (N, 1))], axis=1)
    y = (np.arange(N) % 2).astype(np.float64)

    def records(absent=()):
        here = ~np.isin(np.arange(N), absent)
        return by_owner({"x": x[here], "y": y[here]}, np.arange(N)[here], num_owners=N, records_per_owner=1)

    plan = NoiseAware(draws=4, steps=4).plan(
        PerOwner(FAMILIES[family], 1), num_records=N, epsilon=0.5, delta=1e-3, adjacency="add_remove"
    )
    found = measured(plan, records(), records([0]), records([1]), records([N - 1]))
    assert 0.3 * charged(plan) < found <= charged(plan)


def test_a_table_is_refused_under_add_remove_before_anything_is_read():
    schema = Schema(label="y", columns={"a": Range(0, 1), "y": Range(-1, 1)})
    with pytest.raises(UnsupportedCombination, match="every row of a table adds to the sums"):
        SufficientStatistics().plan(
            LinearRegression(), num_records=100, epsilon=1.0, delta=1e-4, adjacency="add_remove", schema=schema
        )
    with pytest.raises(UnsupportedCombination, match="every row of a table adds to the sums"):
        dpmcmc.plan(
            LinearRegression(),
            num_records=100,
            sampler=dpmcmc.SGLD(step_size=0.1),
            steps=2,
            privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-4, adjacency="add_remove"),
            schema=schema,
        )


@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_row_of_zeros_is_an_absent_record_of_a_regression(family):
    x = np.tile([0.6, 0.8, 0.0], (N, 1))
    here = {"x": x, "y": (np.arange(N) % 2).astype(np.float64)}

    def without(row):
        return {
            name: np.where(np.arange(N).reshape(-1, *[1] * (leaf.ndim - 1)) == row, 0.0, leaf)
            for name, leaf in here.items()
        }

    plan = NoiseAware(draws=4, steps=4).plan(
        FAMILIES[family], num_records=N, epsilon=0.5, delta=1e-3, adjacency="add_remove"
    )
    assert 0.3 * charged(plan) < measured(plan, here, without(0), without(1), without(N - 1)) <= charged(plan)
