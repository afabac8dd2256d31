"""Under add_remove an absent record adds exactly zero to every sum, or the plan is refused."""

import numpy as np
import pytest

import dpmcmc
from dpmcmc.data import Range, Schema, by_owner
from dpmcmc.errors import UnsupportedCombination
from dpmcmc.mechanisms import NoiseAware, SufficientStatistics
from dpmcmc.targets import (
    LastLayer,
    LinearRegression,
    LogisticRegression,
    PerOwner,
    PoissonRegression,
)
from dpmcmc.targets.absent import check_absent
from tests.absent_people import CONSTANT, D, N, chain, features, people, rows
from tests.one_shot_replay import charged, measured
from tests.replay import FAST, Replay, share


@pytest.mark.parametrize("model", list(CONSTANT))
def test_a_model_whose_record_of_zeros_adds_to_sums_is_refused_under_add_remove(model):
    with pytest.raises(UnsupportedCombination, match=r"^adjacency: under add_remove .*by_owner, .* zero_out"):
        dpmcmc.sample(chain(CONSTANT[model]), rows())
    for adjacency in ("replace_one", "zero_out"):
        check_absent(CONSTANT[model], rows(), adjacency)


@pytest.mark.parametrize("model", list(CONSTANT))
def test_an_absent_owner_moves_a_chains_sums_by_no_more_than_c(model):
    """Replayed on records that lack one person; a record of zeros in the place of one moves them by up to 2C."""
    plan = chain(PerOwner(CONSTANT[model], 1))
    replay = Replay(plan, people(), FAST)
    here = replay(people())
    without = replay(people(absent=[N - 1]), given=here)
    assert np.all(share(here, without) <= 1)
    assert np.any(share(here, without) > 0.5)


def test_a_record_of_zeros_is_no_absent_record_of_a_last_layer():
    """The fault that is refused: a row of zeros in the place of a person moves the sums by more than C."""
    replay = Replay(chain(CONSTANT["last layer"]), rows(), FAST)
    zeros = rows()
    zeros["x"][-1], zeros["y"][-1] = 0, 0
    here = replay(rows())
    assert share(here, replay(zeros, given=here)).max() > 1.3


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
        PerOwner(FAMILIES[family], 1), num_records=N, epsilon=0.5, delta=1e-3, adjacency="add_remove", hardened=False
    )
    found = measured(plan, records(), records([0]), records([1]), records([N - 1]))
    assert 0.3 * charged(plan) < found <= charged(plan)


def test_noise_aware_releases_of_a_model_with_a_constant_feature_are_refused_under_add_remove():
    target = LastLayer(features=features, num_classes=2, num_features=D + 1, row_bound=1.0)
    promise = {"num_records": N, "epsilon": 1.0, "delta": 1e-3, "adjacency": "add_remove"}
    with pytest.raises(UnsupportedCombination, match="a record of zeros adds to the sums of LastLayer"):
        dpmcmc.sample(NoiseAware(draws=4, steps=4).plan(target, **promise), rows())


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
def test_a_regression_of_rows_has_an_absent_record_of_zeros(family):
    records = {"x": np.zeros((3, D + 1), np.float32), "y": np.zeros(3, np.int32)}
    check_absent(FAMILIES[family], records, "add_remove")
    check_absent(
        PerOwner(FAMILIES[family]), by_owner(records, np.arange(3), num_owners=4, records_per_owner=2), "add_remove"
    )
