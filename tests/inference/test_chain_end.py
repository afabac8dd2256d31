"""Releases where a chain ends: their cost, what they are of, and the posterior that follows from them and the path."""

import dataclasses
import functools
import math

import numpy as np
import pytest
from scipy.special import expit

import dpmcmc
from dpmcmc.engine import chain_end
from dpmcmc.errors import UnsupportedCombination
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.mechanisms.noise_aware import release
from dpmcmc.planning.chain_end import ChainEnd
from dpmcmc.privacy.accounting import DEVIATIONS, Adjacency
from dpmcmc.privacy.accounting.charging import Earlier
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.query.gram_release import GramRelease
from tests.in_metric import LOGISTIC, D, N, plan_of, records, worst_neighbours
from tests.planted import Caught, require
from tests.releases import recorded

END = NoiseAware(covariance="sandwich")


def ended(end=END, **more):
    # Nearly no noise of its own, so that privacy alone sets it.
    settings = {"sampler": dpmcmc.SGLD(step_size=1.0, temperature=1e-3), "steps": 40, "burn_in": 8, "epsilon": 8.0}
    return plan_of(end=end, **settings | more)


def check_every_release_is_charged(plan):
    charged = [e for e in plan.guarantee.events if e.mechanism not in DEVIATIONS]
    own = sum(e.count for e in (*plan.metric.events, *plan.end.events))
    require(sum(e.count for e in charged) == plan.steps * plan.chains + own, "a release is not charged")
    mu = math.sqrt(sum(e.count * (2 / e.noise_multiplier) ** 2 for e in charged))
    most = gaussian_mu(8.0, 1e-4) * (1 + 2 * KAPPA)
    require(mu <= most, f"the releases have mu {mu:.6g}, and the promise {most:.6g}")


def test_metric_steps_and_end_keep_one_promise():
    check_every_release_is_charged(ended())
    check_every_release_is_charged(ended(chains=2))


def test_an_end_left_out_of_the_guarantee_is_caught(monkeypatch):
    monkeypatch.setattr(ChainEnd, "charge", Earlier(()))
    with pytest.raises(Caught):
        check_every_release_is_charged(ended())


def test_minibatches_are_charged_beside_the_end():
    plan = ended(sampling=dpmcmc.Poisson(30))
    deviations = (e for e in plan.guarantee.events if e.mechanism in DEVIATIONS)
    again = dpmcmc.Guarantee.from_events(
        (*plan.schedule.queries, *plan.metric.events, *plan.end.events, *deviations),
        delta=1e-4,
        adjacency="replace_one",
        accountant="pld",
    )
    assert again.epsilon == pytest.approx(plan.guarantee.epsilon, rel=1e-9)
    without = ended(None, sampling=dpmcmc.Poisson(30))
    assert plan.noise_multipliers.min() > without.noise_multipliers.min()


def test_noise_that_an_end_adds_is_noise_that_is_charged(monkeypatch):
    plan = ended()
    seen = recorded(monkeypatch)
    dpmcmc.sample(plan, records())
    added = [std for std, _ in seen if std in plan.end.settings.values()]
    assert added == list(plan.end.settings.values())


# One record.


def sums(plan, data):
    """Exact sums of the end's releases, in stds of their noise, and everything that a run with known keys releases."""
    found = []
    real = release.gaussian_release
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            release,
            "gaussian_release",
            lambda exact, std, key: found.append(exact.floats / std) or real(exact, std, key),
        )
        # The same path, so that the end alone is compared.
        metric = dpmcmc.sample(plan, records(), key=0).metric
        found.clear()
        patch.setattr(GramRelease, "release", lambda *_: metric.noisy)
        trace = dpmcmc.sample(plan, records(), key=0).trace
        found.clear()
        patch.setattr("dpmcmc.engine.result.trace_of", lambda *_: trace)
        dpmcmc.sample(plan, data, key=0)
    return found


@pytest.mark.parametrize("adjacency", ["replace_one", "zero_out"])
def test_one_record_moves_the_first_release_by_no_more_than_is_charged(adjacency):
    """Whitened rows follow from the chain's metric alone; the others are released where they and the path lead."""
    plan = ended(adjacency=adjacency)
    first, second = worst_neighbours("gram")
    if adjacency == "zero_out":
        second["x"][0] = 0.0
    one, other = (sums(plan, data)[0] for data in (first, second))
    moved = float(np.linalg.norm(one - other))
    sensitivity = Adjacency(adjacency).sensitivity
    assert 0 < moved <= sensitivity / plan.end.events[0].noise_multiplier * (1 + 1e-12)


def test_the_same_keys_end_a_chain_alike_and_share_none_with_a_step():
    plan = ended()
    first, second = (dpmcmc.sample(plan, records(), key=7) for _ in range(2))
    assert np.array_equal(first.evidence.statistic, second.evidence.statistic)
    without = dpmcmc.sample(ended(None), records(), key=7)
    assert not np.array_equal(first.released, without.released)  # another noise, for another cost
    assert chain_end._CHAIN > 2**31  # beyond every chain's number


# Life.


def test_a_run_that_stopped_at_its_end_ends_with_the_same_bits(tmp_path, monkeypatch):
    """Its keys are secret, and are kept until the end is committed: noise is never drawn a second time."""
    plan = ended()
    first = []

    def stop(self, made):
        first.append(made)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(chain_end.ChainEndWork, "arrays", stop)
        with pytest.raises(KeyboardInterrupt):
            dpmcmc.sample(plan, records(), checkpoint=tmp_path / "kept")
    monkeypatch.setattr(GramRelease, "release", None)  # not released again
    again = dpmcmc.sample(plan, records(), checkpoint=tmp_path / "kept")
    assert np.array_equal(first[0].statistic, again.evidence.statistic)
    assert again.guarantee == plan.guarantee
    monkeypatch.setattr(chain_end.ChainEndWork, "made", stop)  # what was committed is read
    assert np.array_equal(again.draws, dpmcmc.sample(plan, records(), checkpoint=tmp_path / "kept").draws)


def test_a_saved_run_has_the_same_posterior_and_verdict(tmp_path):
    result = dpmcmc.sample(ended(), records())
    loaded = dpmcmc.load(result.save(tmp_path / "run"))
    assert np.array_equal(loaded.draws, result.draws)
    assert loaded.verdict.reasons == result.verdict.reasons
    assert "end" in dict(ended().describe().lines)


# The posterior.


def wrong(n, seed):
    """Rows, and labels of a law that is steeper than the model's in the middle and flatter far out."""
    rng = np.random.default_rng(seed)
    x = np.concatenate([np.ones((n, 1)), rng.choice([-1.0, 1.0], size=(n, 2)) * rng.uniform(0.2, 1, (n, 2))], axis=1)
    eta = 3 * x @ [0.6, 1.0, -0.6]
    y = rng.random(n) < 0.5 + np.arctan(eta) / math.pi
    return {"x": (x / math.sqrt(3)).astype(np.float32), "y": y.astype(np.int32)}


@functools.cache
def best_fitting():
    """Coefficients of the best-fitting logistic regression of a large table, by Newton's rule."""
    data = wrong(1_000_000, 123)
    x, y = data["x"].astype(np.float64), data["y"]
    theta = np.zeros(3)
    for _ in range(12):
        p = expit(x @ theta)
        theta += np.linalg.solve((x.T * (p * (1 - p))) @ x, x.T @ (y - p))
    return theta


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [dpmcmc.Full(), dpmcmc.Poisson(1000)], ids=["full", "poisson"])
def test_intervals_cover_the_best_fit_where_the_model_is_wrong(sampling):
    """Coefficient by coefficient; the truth is of no prior, and labels are not those of a logistic law."""
    count, n = 40, 20_000
    target = dpmcmc.targets.LogisticRegression(2.0, num_features=3, row_bound=1.0)
    settings = {"sampler": dpmcmc.SGLD(step_size=4.0), "sampling": sampling, "passes": 80, "burn_in": 0.5, "thin": 5}
    plan = dpmcmc.plan(
        target,
        num_records=n,
        privacy=dpmcmc.Privacy(epsilon=2.0, delta=1e-6),
        metric=dpmcmc.PrivateMetric("gram"),
        end=NoiseAware(covariance="sandwich"),
        **settings,
    )
    held = np.zeros((count, 3), bool)
    called = 0
    for seed in range(count):
        result = dpmcmc.sample(plan, wrong(n, seed), progress=False)
        low, high = result.noise_aware().intervals(0.9).T
        held[seed] = (low <= best_fitting()) & (best_fitting() <= high)
        called += "intervals" in result.usable_for
    # Binomial: .9 of 40 is below 31 or all but impossible to miss.
    assert held.sum(axis=0).min() >= 31
    assert called >= 0.8 * count
    assert 0.82 <= held.mean() <= 0.98


# Refusals.

LINEAR = dpmcmc.targets.LinearRegression(1.0, 0.5, num_features=D, row_bound=1.0, label_bound=1.0)


@pytest.mark.parametrize(
    ("said", "change"),
    [
        ("is derived for LogisticRegression, and the target is LinearRegression", {"target": LINEAR}),
        ("metric gram", {"metric": dpmcmc.PrivateMetric("second_moment")}),
        ("use label_blind", {"privacy": dpmcmc.Privacy(epsilon=1.0, delta=1e-4, clipping="residual")}),
        ("give metric too", {"metric": None}),
        ("an offset or weights", {"target": dataclasses.replace(LOGISTIC, offset_bound=1.0)}),
    ],
)
def test_an_end_that_is_not_derived_is_refused(said, change):
    settings = {
        "target": LOGISTIC,
        "num_records": N,
        "sampler": dpmcmc.SGLD(step_size=0.5),
        "steps": 40,
        "privacy": dpmcmc.Privacy(epsilon=1.0, delta=1e-4),
        "metric": dpmcmc.PrivateMetric(),
        "end": END,
    }
    with pytest.raises(UnsupportedCombination, match=said):
        dpmcmc.plan(**settings | change)
