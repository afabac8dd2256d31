"""Whatever a config says: a finite ε goes with a query that no neighbour moves further than it is charged for.

Configs are drawn whole, written as YAML and planned by the library. The engine's own steps are then replayed on
neighbouring records that are drawn to be awkward.
"""

import contextlib
import itertools
import json
import math
import os
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st
from scipy.stats import norm

from dpmcmc.cli.commands import main
from dpmcmc.config import ConfigError, make_plan
from dpmcmc.config.file import load
from dpmcmc.data import by_owner
from dpmcmc.privacy import CalibrationError, Full, Guarantee, UnsupportedCombination
from dpmcmc.privacy.accounting import DEVIATIONS
from dpmcmc.privacy.accounting.cost_of_run import account
from dpmcmc.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon
from dpmcmc.privacy.query.second_moment import multiples
from dpmcmc.report.privacy_json import privacy_json
from tests.planted import faults_query
from tests.planted.benches import Bench, Observed
from tests.planted.checks_query import is_charged, the_rest_is_the_same
from tests.replay import FAST, Replay, share

#: Features of the registered set that configs name, and rows of an owner.
D, M = 3, 2
QUICK = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow],
    # A smaller example would cost minutes of compiling.
    phases=[Phase.generate],
)  # fmt: skip


def _step_sizes(smallest: float, largest: float) -> st.SearchStrategy:
    numbers = st.sampled_from(np.geomspace(smallest, largest, 7).tolist())
    schedules = st.builds(lambda a: {"schedule": "polynomial", "a": a, "gamma": 0.5}, numbers)
    return st.one_of(numbers, schedules, st.just("auto"))


SAMPLERS = st.one_of(
    st.fixed_dictionaries({
        "name": st.just("sgld"),
        "step_size": _step_sizes(1e-2, 1e3),
        "temperature": st.sampled_from([0.0, 1.0]),
    }),
    st.fixed_dictionaries({
        "name": st.just("sghmc"),
        "step_size": _step_sizes(1e-4, 1e-2),
        "friction": st.sampled_from([0.1, "matched"]),
    }),
    st.fixed_dictionaries({"name": st.just("sgnht"), "step_size": st.sampled_from([1e-5, "auto"])}),
    st.fixed_dictionaries({
        "name": st.just("sgfs"),
        "step_size": st.sampled_from([0.1, 10.0, "auto"]),
        "fisher": st.just("query"),
        "noise_ratio": st.sampled_from([0.3, 1.0, 30.0]),
        "own_batch": st.booleans(),
        "query_every": st.sampled_from([1, 2, 10]),
        "structure": st.sampled_from(["dense", "diagonal"]),
        "metric": st.sampled_from([None, 7.0, [1.0, 0.1, 30.0], [[2.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.5, 3.0]]]),
        "prior_precision": st.just(1.0),
    }),
    st.fixed_dictionaries({
        "name": st.just("sgfs"),
        "step_size": st.just(1.0),
        "fisher": st.just("gradients"),
        "metric": st.sampled_from([None, [1.0, 0.1, 30.0]]),
    }),
    st.fixed_dictionaries({
        "name": st.just("optax"),
        "rule": st.sampled_from(["adam", "sgd", "rmsprop"]),
        "learning_rate": _step_sizes(1e-2, 1e3).filter(lambda rate: rate != "auto"),
    }),
)  # fmt: skip


@st.composite
def configs(draw: Any) -> dict[str, Any]:
    """A whole config, most of which can be planned; ``num_records`` beside it."""
    n = draw(st.sampled_from([5, 12]))
    owners = draw(st.sampled_from([False, False, False, True]))
    scheme = draw(st.sampled_from(["poisson", "fixed_size", "full"]))
    sampling: dict[str, Any] = {"scheme": scheme}
    if scheme == "poisson":
        sampling["batch_size"] = draw(st.sampled_from([0.5, 1.9, n / 2, n - 0.25, float(n)]))
    if scheme == "fixed_size":
        sampling["batch_size"] = draw(st.sampled_from([1, n // 2, n - 1, n]))
    fixed = scheme == "fixed_size" and sampling["batch_size"] < n
    accountant = draw(st.sampled_from(["rdp", "advanced"] if fixed else ["rdp", "rdp", "pld", "advanced"]))
    sampler = draw(SAMPLERS)
    matched = "auto" in (sampler.get("step_size"), sampler.get("friction")) or sampler.get("friction") == "matched"
    free = not matched and sampler["name"] != "optax" and sampler.get("temperature", 1.0) > 0 and draw(st.booleans())
    privacy = {
        "epsilon": None if free else draw(st.sampled_from([0.1, 1.0, 8.0, 30.0])),
        "delta": draw(st.sampled_from([1e-2, 1e-5, 1e-9])),
        "adjacency": "replace_one" if fixed else draw(st.sampled_from(["replace_one", "add_remove", "zero_out"])),
        "accountant": accountant,
        "calibrator": "free" if free else "numeric",
        "clip": draw(st.sampled_from([1e-6, 0.3, 1.0, 1e4])),
    }
    names = ["logistic_regression", "linear_regression", "softmax_regression"]
    wide = draw(st.sampled_from(names if "metric" not in sampler else names[:2]))
    data = (
        {"path": "mine.npz", "owner": "owner", "num_owners": n, "records_per_owner": M}
        if owners
        else {"name": "two_normals"}
    )
    target = {"name": wide} | ({"num_classes": 2} if wide == "softmax_regression" else {})
    return {
        "num_records": n,
        "name": "drawn",
        "data": data,
        "target": target,
        "sampler": sampler,
        "sampling": sampling,
        "privacy": privacy,
        "run": {
            "steps": draw(st.integers(1, 4)),
            "chains": draw(st.integers(1, 2)),
            "burn_in": draw(st.sampled_from([0.0, 0.5])),
        },
    }


def planned(config: dict[str, Any], folder: Any) -> Any:
    """The plan of a drawn config; None where the library refuses it, or proves nothing."""
    body = {key: value for key, value in config.items() if key != "num_records"}
    path = folder / "drawn.yaml"
    path.write_text(yaml.safe_dump(body))
    try:
        plan = make_plan(load(path), None if "path" in config["data"] else config["num_records"])
    except (ConfigError, UnsupportedCombination, CalibrationError):
        return None
    return plan if math.isfinite(plan.guarantee.epsilon) else None


KINDS = ("unit", "unit", "long", "huge", "tiny", "denormal", "overflow", "nan", "infinite", "zero", "opposite")


def _row(kind: str, number: int, before: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(number)
    x = rng.normal(size=D)
    x /= np.linalg.norm(x)
    if kind == "opposite":
        return -before
    if kind in ("nan", "infinite"):
        x[number % D] = np.nan if kind == "nan" else np.inf
    size = {"long": 100.0, "huge": 1e18, "tiny": 1e-18, "denormal": 1e-42, "overflow": 2e38, "zero": 0.0}
    return x * size.get(kind, 1.0)


@st.composite
def rows(draw: Any, most: int) -> tuple[np.ndarray, np.ndarray]:
    """(x (most, D), y (most,)): ordinary rows among which some are extreme, or cancel the one before."""
    drawn = draw(
        st.lists(
            st.tuples(st.sampled_from(KINDS), st.integers(0, 999), st.sampled_from([0.0, 1.0, 1.0, 1e20, -1e-20])),
            min_size=most,
            max_size=most,
        )
    )
    x, before = [], np.ones(D)
    for kind, number, _ in drawn:
        before = _row(kind, number, before)
        x.append(before)
    return np.array(x, np.float32), np.array([y for *_, y in drawn], np.float32)


def records_of(config: dict[str, Any], x: np.ndarray, y: np.ndarray) -> Any:
    """Records of the config's target, an owner's rows together where it has owners."""
    values = {"x": x, "y": y if config["target"]["name"] == "linear_regression" else (y > 0.5).astype(np.int32)}
    if "path" not in config["data"]:
        return {name: leaf[: config["num_records"]] for name, leaf in values.items()}
    owner = np.arange(len(x)) % config["num_records"]
    return by_owner(values, owner, num_owners=config["num_records"], records_per_owner=M)


def changed(records: Any, others: Any, at: int, zero: bool) -> Any:
    """``records`` with record ``at`` replaced by that of ``others``, or by one without gradient."""
    out = {name: leaf.copy() for name, leaf in records.items()}
    for name, leaf in out.items():
        leaf[at] = 0 if zero and name == "x" else others[name][at]
    return out


MOST = 12 * M


def replayed(plan: Any, config: dict[str, Any], data: list, options: Any) -> None:
    """Every step of the config's plan on neighbours: what they move is charged, and nothing else moves."""
    first, *others = (records_of(config, *one) for one in data)
    replay = Replay(plan, first, options)
    trace = replay(first)
    selections = trace.calls[0].selections
    at = 0
    if selections and selections[0][1][0, 0].any():
        # One that takes part in the first step, the last in the batch.
        at = int(selections[0][0][0, 0][selections[0][1][0, 0]][-1])
    replaced = plan.guarantee.adjacency == "replace_one"
    neighbours = {"zero": changed(first, first, at, zero=True)}
    if replaced:
        neighbours |= {f"replaced {i}": changed(first, other, at, zero=False) for i, other in enumerate(others)}
    seen = Observed(Bench(lambda: plan, first, neighbours, others[0]), plan, replay, trace)
    for name, other in seen.neighbours.items():
        moved = share(trace, other).max()
        assert moved <= (1.0 if name == "zero" else 2.0), f"{name}: {moved}"
    the_rest_is_the_same(seen, "drawn")
    is_charged(seen, "drawn")


DATA = st.lists(rows(MOST), min_size=3, max_size=3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("drawn")


def test_a_missing_clip_fails_the_property(folder, monkeypatch):
    """Planted fault."""
    config = {
        "num_records": 5,
        "name": "drawn",
        "data": {"name": "two_normals"},
        "target": {"name": "linear_regression"},
        "sampler": {"name": "sgld", "step_size": 1.0},
        "sampling": {"scheme": "poisson", "batch_size": 2.5},
        "privacy": {"epsilon": 1.0, "delta": 1e-5, "accountant": "rdp"},
        "run": {"steps": 3},
    }
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(5, D)).astype(np.float32), np.full(5, 4.0, np.float32)) for _ in range(3)]
    plan = planned(config, folder)
    replayed(plan, config, data, FAST)
    faults_query.no_clip(monkeypatch)
    with pytest.raises(AssertionError, match=r"(zero|replaced \d): "):
        replayed(plan, config, data, FAST)


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize("part", [0, *(pytest.param(p, marks=pytest.mark.exhaustive) for p in range(1, 10))])
def test_no_config_has_a_finite_epsilon_and_a_query_beyond_its_sensitivity(folder, part):
    """With the compiler's own options in half of the parts, the first of which CI takes."""

    @seed(part)
    @settings(QUICK, derandomize=False, max_examples=30 if part else 12)
    @given(configs(), DATA)
    def check(config, data):
        plan = planned(config, folder)
        assume(plan is not None)
        replayed(plan, config, data, FAST if part % 2 else None)

    check()


@settings(QUICK, max_examples=25)
@given(configs())
@pytest.mark.slow
def test_what_a_config_promises_is_what_its_events_cost(folder, config):
    plan = planned(config, folder)
    assume(plan is not None)
    guarantee, asked = plan.guarantee, config["privacy"]["epsilon"]
    assert asked is None or guarantee.epsilon <= asked
    queries = [e for e in guarantee.events if e.mechanism not in DEVIATIONS]
    # A second minibatch is charged at the steps that ask for it.
    moment = plan.sampler_run.second
    second = 0 if len(multiples(moment)) == 1 else int(np.sum(moment.asks(np.arange(plan.steps))))
    assert sum(e.count for e in queries) == (plan.steps + second) * plan.chains
    assert min(e.noise_multiplier for e in queries) < plan.noise_multipliers.min() * min(multiples(moment))
    assert min(e.rate for e in queries) >= plan.sampling.rate(plan.num_records)
    curve = [guarantee.epsilon_at(delta) for delta in (1e-10, 1e-6, 1e-3, 0.05)]
    assert all(a >= b for a, b in itertools.pairwise(curve))
    assert guarantee.epsilon_at(guarantee.delta) == guarantee.epsilon
    if guarantee.epsilon < 600:
        assert guarantee.delta_at(guarantee.epsilon) <= guarantee.delta * (1 + 1e-6)
    body = privacy_json(plan, guarantee)
    assert Guarantee.from_json(json.loads(json.dumps(body))).epsilon == pytest.approx(guarantee.epsilon, rel=1e-9)
    path = folder / "privacy.json"
    path.write_text(json.dumps(body))
    with open(os.devnull, "w") as quiet, contextlib.redirect_stdout(quiet):
        assert main(["verify", str(path)]) == 0


@pytest.mark.parametrize("z", [1e6, 1e8, 1e10])
def test_a_divergence_that_float64_rounds_away_has_a_delta(z):
    guarantee = account(z, steps=3, sampling=Full(), num_records=9, delta=1e-6, accountant="rdp")
    exact = 2 * norm.cdf(math.sqrt(3) / z) - 1
    assert exact <= guarantee.delta_at(0.0) < 10 * exact


def test_delta_at_epsilon_zero_is_the_least_that_gives_it():
    guarantee = account(400.0, steps=4, sampling=Full(), num_records=9, delta=1e-2, accountant="advanced")
    assert guarantee.epsilon == 0.0
    assert 2 * norm.cdf(2 / 400) - 1 <= guarantee.delta_at(0.0) <= 1e-2
    assert guarantee.epsilon_at(guarantee.delta_at(0.0)) == 0.0


@pytest.mark.parametrize("below", [1e-16, 3e-16, 1e-14, 1e-9])
def test_epsilon_is_found_where_delta_is_hardly_below_that_of_epsilon_zero(below):
    mu = 1 / 163.3
    delta = gaussian_delta(mu, 0.0) * (1 - below)
    epsilon = gaussian_epsilon(mu, delta)
    assert gaussian_delta(mu, epsilon) <= delta * (1 + 1e-14)
    assert epsilon <= 2 * below + 1e-12
