"""A private metric: one release of a second moment in the run's guarantee, then gradients clipped and noised in F."""

import dataclasses
import functools
import json
import math
import warnings

import jax
import numpy as np
import pytest

import dpmcmc
from dpmcmc import config
from dpmcmc.config import file as config_file
from dpmcmc.engine import metric_release
from dpmcmc.errors import DataError, InputError, UnsupportedCombination
from dpmcmc.inference.released_metric import ReleasedMetric
from dpmcmc.privacy.accounting import DEVIATIONS
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.query.gradient_rows import gradient_rows
from dpmcmc.privacy.query.gram_release import GramRelease, entries, gram_of, svec
from dpmcmc.privacy.query.randomness import streams_of
from dpmcmc.storage.checkpoint import CheckpointError
from dpmcmc.targets.whitened import Whitened, WhitenedRows, in_metric, whitened_rows
from tests.in_metric import (
    LINEAR,
    LOGISTIC,
    SOFTMAX,
    D,
    N,
    exact,
    moved_by_long_rows,
    plan_of,
    records,
    worst_neighbours,
)
from tests.unproved import plan_any_epsilon

# One guarantee.


@pytest.mark.parametrize("accountant", ["pld", "rdp", "advanced"])
@pytest.mark.parametrize("sampling", [dpmcmc.Full(), dpmcmc.Poisson(30)], ids=["full", "poisson"])
@pytest.mark.parametrize("metric", ["gram", "second_moment"])
def test_guarantee_is_the_accountants_on_the_list_of_its_events(accountant, sampling, metric):
    plan = plan_of(metric=dpmcmc.PrivateMetric(metric), accountant=accountant, sampling=sampling)
    released = plan.metric.release.events(plan.guarantee.adjacency)
    assert released == plan.metric.events
    assert set(released) <= set(plan.guarantee.events)
    again = dpmcmc.Guarantee.from_events(
        (*plan.schedule.queries, *released, *(e for e in plan.guarantee.events if e.mechanism in DEVIATIONS)),
        delta=1e-4,
        adjacency="replace_one",
        accountant=accountant,
    )
    assert again.epsilon == pytest.approx(plan.guarantee.epsilon, rel=1e-9)
    assert plan.guarantee.epsilon <= 1.0
    queries_alone = dpmcmc.privacy.account(
        plan.noise_multipliers, steps=6, sampling=sampling, num_records=N, delta=1e-4, accountant=accountant
    )
    assert queries_alone.epsilon < plan.guarantee.epsilon


@pytest.mark.parametrize("adjacency", ["replace_one", "add_remove", "zero_out"])
def test_share_is_that_of_the_squared_gaussian_budget(adjacency):
    from dpmcmc.privacy.accounting.gaussian import gaussian_mu

    plan = plan_of(metric=dpmcmc.PrivateMetric(share=0.3), adjacency=adjacency)
    moved = plan.guarantee.adjacency.sensitivity
    spent = sum((moved / event.noise_multiplier) ** 2 * event.count for event in plan.metric.events)
    assert spent == pytest.approx(0.3 * gaussian_mu(1.0, 1e-4) ** 2, rel=1e-6)


@pytest.mark.parametrize("name", ["gram", "second_moment"])
def test_release_moves_by_no_more_than_is_charged_and_by_as_much(name):
    plan = plan_of(metric=dpmcmc.PrivateMetric(name), clip=0.1)
    first, second = (exact(plan, side) for side in worst_neighbours(name))
    moved = float(np.linalg.norm(first - second))
    bound = plan.metric.release.rows.row_bound
    charged = plan.metric.events[0].noise_multiplier
    # An event's neighbours are 2/z stds apart.
    assert moved / plan.metric.release.noise_std <= 2 / charged
    assert moved == pytest.approx(math.sqrt(2) * bound**2, rel=1e-5)


def test_gradients_in_the_metric_move_by_no_more_than_twice_the_clip():
    assert 1.99 < moved_by_long_rows(plan_of(clip=0.7)) <= 2 * (1 + KAPPA)


@pytest.mark.parametrize("name", ["gram", "second_moment"])
def test_metric_is_a_function_of_the_release_alone(name, monkeypatch):
    plan = plan_of(metric=dpmcmc.PrivateMetric(name))
    noisy = dpmcmc.sample(plan, records(), key=0).metric.noisy
    monkeypatch.setattr(GramRelease, "release", lambda *_: noisy)
    one, other = (dpmcmc.sample(plan, records(seed=seed), key=0).metric for seed in (1, 2))
    assert np.array_equal(one.root, other.root)
    assert np.array_equal(one.inverse, other.inverse)


def test_noise_of_the_metric_is_that_which_is_charged():
    plan = plan_of()
    exact_gram = gram_of(records()["x"], 1.0).floats
    errors = [svec(dpmcmc.sample(plan, records(), key=key).metric.noisy.gram - exact_gram) for key in range(40)]
    assert np.std(errors) == pytest.approx(plan.metric.release.noise_std, rel=5 / math.sqrt(2 * 40 * entries(D)))


def test_metrics_noise_shares_no_key_with_a_step():
    streams = streams_of(0)[0]
    words = {
        tuple(np.asarray(jax.random.key_data(streams.at(chain, step).noise)))
        for chain in (*range(3), metric_release._CHAIN)
        for step in range(3)
    }
    assert len(words) == 12


@pytest.mark.parametrize("target", [LOGISTIC, LINEAR, SOFTMAX], ids=lambda t: type(t).__name__)
@pytest.mark.parametrize("rows", [True, False])
def test_whitened_target_is_the_target(target, rows):
    rng, data = np.random.default_rng(0), records()
    root = np.linalg.qr(rng.normal(size=(3, 3)))[0] * [2.0, 0.5, 1.0] @ np.eye(3)
    root = root @ root.T
    params = rng.normal(size=jax.eval_shape(target.init, jax.random.key(0)).shape).astype(np.float32)
    if not rows:
        root = np.kron(root, np.eye(params.size // 3))
    moved = in_metric(target, rows).at(root, np.linalg.inv(root))
    assert isinstance(moved, WhitenedRows if rows else Whitened)
    phi = (root @ (params if rows else params.ravel())).astype(np.float32)
    assert moved.log_prior(phi) == pytest.approx(float(target.log_prior(params)), rel=1e-5)
    whitened = moved.records(data)
    for i in range(5):
        here, there = (jax.tree.map(lambda leaf, i=i: leaf[i], side) for side in (data, whitened))
        expected = float(target.log_likelihood(params, here))
        assert float(moved.log_likelihood(phi, there)) == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert np.allclose(moved.positions(phi[None, None]), params, atol=1e-5)


def test_whitened_row_does_not_depend_on_its_place():
    rng = np.random.default_rng(0)
    x, inverse = rng.normal(size=(20_000, 7)).astype(np.float32), rng.normal(size=(7, 7))
    order = rng.permutation(len(x))
    assert np.array_equal(whitened_rows(x, inverse)[order], whitened_rows(x[order], inverse))


def test_gradient_row_does_not_depend_on_its_place():
    data, start = records(1000), np.full(D, 0.3, np.float32)
    order = np.random.default_rng(0).permutation(1000)
    there = jax.tree.map(lambda leaf: leaf[order], data)
    assert np.array_equal(gradient_rows(LOGISTIC, start, data)[order], gradient_rows(LOGISTIC, start, there))


SAMPLERS = {
    "sgld": lambda step: dpmcmc.SGLD(step_size=step),
    "sghmc": lambda step: dpmcmc.SGHMC(step_size=step / 4, friction=0.3),
    "sgnht": lambda step: dpmcmc.SGNHT(step_size=step / 4, friction=0.3),
    "sgfs": lambda step: dpmcmc.SGFS(step_size=step, fisher="public", public_fisher=0.1 / step),
}
#: A tenth over the curvature of the mean loss in the metric, 4/3 and about a third.
STEPS_OF = {"gram": 0.08, "second_moment": 0.3}


@functools.cache
def gaussian_records():
    rng = np.random.default_rng(3)
    data = records()
    y = data["x"] @ [1.0, -1.0, 0.5] + 0.5 * rng.normal(size=N)
    return data | {"y": y.astype(np.float32)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gram", "second_moment"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_stationary_law_in_the_metric_is_the_posterior(sampler, name, monkeypatch):
    plan_any_epsilon(monkeypatch)
    data, chosen = gaussian_records(), SAMPLERS[sampler](STEPS_OF[name])
    # Nothing is clipped, and the dynamics' own noise suffices for so large an epsilon.
    metric = dpmcmc.PrivateMetric(name, clip_ratio=40.0)
    length = {"steps": 12_000, "burn_in": 2_000, "chains": 4}
    plan = plan_of(LINEAR, metric, sampler=chosen, epsilon=1e6, delta=1e-6, clip=40.0, **length)
    assert plan.free_fraction == 1
    draws = dpmcmc.sample(plan, data, key=1).draws.reshape(-1, D)
    mean, covariance = LINEAR.posterior(data)
    scale = np.linalg.inv(np.linalg.cholesky(covariance))
    whitened = (draws - mean) @ scale.T
    assert np.abs(whitened.mean(axis=0)).max() < 0.15
    assert np.abs(np.cov(whitened.T) - np.eye(D)).max() < 0.15


def test_run_goes_on_with_the_metric_that_it_released(tmp_path, monkeypatch):
    plan = plan_of(sampling=dpmcmc.Poisson(30))
    whole = dpmcmc.sample(plan, records(), key=5, checkpoint=tmp_path / "whole")

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dpmcmc.engine.lanes.take_chunk", stop)
        with pytest.raises(KeyboardInterrupt):
            dpmcmc.sample(plan, records(), key=5, checkpoint=tmp_path / "kept")
    monkeypatch.setattr(GramRelease, "release", None)  # not released again
    again = dpmcmc.sample(plan, records(), key=5, checkpoint=tmp_path / "kept")
    assert np.array_equal(whole.draws, again.draws)
    assert np.array_equal(whole.metric.root, again.metric.root)


def test_run_that_has_lost_its_metric_does_not_go_on(tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dpmcmc.engine.lanes.take_chunk", stop)
        with pytest.raises(KeyboardInterrupt):
            dpmcmc.sample(plan_of(), records(), checkpoint=tmp_path / "kept")
    (tmp_path / "kept" / "stage-0.bin").unlink()
    monkeypatch.setattr(GramRelease, "release", None)  # not released again
    with pytest.raises(CheckpointError, match="lost what its run released first"):
        dpmcmc.sample(plan_of(), records(), checkpoint=tmp_path / "kept")


def test_whole_numbers_are_rows_like_any_others():
    rows = records()
    rows["x"] = np.random.default_rng(0).integers(-1, 2, size=(N, D))
    plan = plan_of(dpmcmc.targets.LogisticRegression(1.0, num_features=D, row_bound=2.0))
    floats = dpmcmc.sample(plan, rows | {"x": rows["x"].astype(np.float32)}, key=3)
    for kind in (np.int32, np.int8):
        assert np.array_equal(dpmcmc.sample(plan, rows | {"x": rows["x"].astype(kind)}, key=3).draws, floats.draws)


def test_row_that_overflows_says_nothing():
    data = records()
    data["x"][7] = 3e38
    plan = plan_of(dpmcmc.targets.LogisticRegression(1.0, num_features=D), metric=dpmcmc.PrivateMetric("second_moment"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", dpmcmc.NotForIntervals)
        assert np.isfinite(dpmcmc.sample(plan, data, key=3).draws).all()


def test_released_metric_is_saved_with_the_draws(tmp_path):
    import xarray

    result = dpmcmc.sample(plan_of(), records())
    result.save(tmp_path / "run")
    with xarray.open_datatree(tmp_path / "run" / "draws.nc", engine="h5netcdf") as tree:
        assert set(tree["posterior" if "posterior" in tree.children else "path"].data_vars) == {"theta"}
        group = tree["metric"]
        arrays = {name: group[name].values for name in group.data_vars}
        found = ReleasedMetric.of(arrays, json.loads(group.attrs["facts"]))
    assert found.facts() == result.metric.facts()
    assert np.array_equal(found.root, result.metric.root)
    assert np.array_equal(found.gram, result.metric.gram)
    privacy = json.loads((tmp_path / "run" / "privacy.json").read_text())
    charged = [event["noise_multiplier"] for event in privacy["events"]]
    assert {event.noise_multiplier for event in result.plan.metric.events} <= set(charged)


@pytest.mark.parametrize(
    ("error", "said", "change"),
    [
        (UnsupportedCombination, "privacy budget", {"privacy": None}),
        (UnsupportedCombination, "calibrator free", {"privacy": dpmcmc.Privacy(calibrator="free", delta=1e-4)}),
        (UnsupportedCombination, "metric of its own", {"sampler": dpmcmc.SGFS(step_size=1.0, metric=2.0)}),
        (InputError, "row_bound", {"target": dataclasses.replace(LOGISTIC, row_bound=None)}),
        (InputError, "num_features", {"target": dataclasses.replace(LOGISTIC, num_features=None)}),
        (UnsupportedCombination, "second_moment", {"target": dpmcmc.targets.PerOwner(LOGISTIC)}),
        (InputError, "curvature", {"curvature": 1.0}),
    ],
)
def test_plan_that_has_no_private_metric_is_refused(error, said, change):
    settings = {
        "target": LOGISTIC,
        "num_records": N,
        "sampler": dpmcmc.SGLD(step_size=0.5),
        "steps": 6,
        "privacy": dpmcmc.Privacy(epsilon=1.0, delta=1e-4),
    } | change
    target = settings.pop("target")
    with pytest.raises(error, match=said) as seen:
        dpmcmc.plan(target, metric=dpmcmc.PrivateMetric(), **settings)
    assert error is not UnsupportedCombination or seen.value.about == "metric"


@pytest.mark.parametrize("change", ["privacy=null", "privacy.calibrator=closed_form"])
def test_refusal_of_a_metric_begins_with_its_yaml_path(change):
    with pytest.raises(InputError, match=r"^metric: (?!metric)"):
        config.make_plan(config_file.load("adult", [change]))


@pytest.mark.parametrize("metric", ["gram", {"name": "gram"}])
def test_metric_that_is_no_private_metric_is_refused(metric):
    privacy = dpmcmc.Privacy(epsilon=1.0, delta=1e-4)
    with pytest.raises(InputError, match=r"must be a dpmcmc\.PrivateMetric") as seen:
        dpmcmc.plan(
            LOGISTIC, num_records=N, sampler=dpmcmc.SGLD(step_size=0.5), steps=6, privacy=privacy, metric=metric
        )
    assert seen.value.about == "metric"


def test_row_beyond_its_bound_is_refused_before_anything_is_charged(tmp_path):
    data = records()
    data["x"][7] *= 100
    with pytest.raises(DataError, match="some rows have a norm beyond the public row_bound") as seen:
        dpmcmc.sample(plan_of(), data, checkpoint=tmp_path / "kept")
    assert seen.value.rows == (7,)


def test_access_itself_shortens_a_row_beyond_the_bound():
    release = plan_of().metric.release
    long = np.eye(D)[:1] * 1e6
    assert np.linalg.norm(gram_of(long, release.rows.row_bound).floats) <= 1


def test_metric_is_refused_of_records_on_disk(tmp_path):
    paths = {name: tmp_path / f"{name}.npy" for name in ("x", "y")}
    for name, path in paths.items():
        np.save(path, records()[name])
    data = {name: np.load(path, mmap_mode="r") for name, path in paths.items()}
    with pytest.raises(InputError, match="memory-mapped"):
        dpmcmc.sample(plan_of(sampling=dpmcmc.Poisson(30)), data)


def test_costs_of_records_and_audits_do_not_cover_a_metric():
    from dpmcmc.diagnostics.per_record import per_record_epsilon

    with pytest.raises(InputError, match="metric"):
        dpmcmc.audit.audit(plan_of(), runs=100)
    plan = plan_of()
    with pytest.raises(InputError, match="metric"):
        per_record_epsilon(plan, records(), np.zeros((1, 6, D)))
