"""Guarantees for k records: exact where there is a closed form, and k times ε elsewhere."""

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmcmc.cli.commands import main
from dpmcmc.privacy import FixedSize, Full, Guarantee, Poisson
from dpmcmc.privacy.accounting import Event
from dpmcmc.privacy.accounting.cost_of_run import account
from dpmcmc.privacy.accounting.gaussian import gaussian_epsilon
from dpmcmc.privacy.accounting.group import _share

DELTA = 1e-6


def guarantee(*events, adjacency="add_remove", accountant="pld", release="trace", delta=DELTA) -> Guarantee:
    return Guarantee.from_events(events, delta=delta, adjacency=adjacency, accountant=accountant, release=release)


def gaussian(z: float, count: int = 1, **kwargs) -> Guarantee:
    return guarantee(Event("gaussian", z, 1.0, count), **kwargs)


def poisson(z: float, q: float, count: int, **kwargs) -> Guarantee:
    return guarantee(Event("poisson_gaussian", z, q, count), **kwargs)


GUARANTEES = {
    "gaussian": gaussian(10.0, 5),
    "pure": guarantee(Event("pure", 0.0, 1.0, 2, epsilon=0.2), release="estimate", accountant="one_sample"),
    "poisson": poisson(1.0, 0.01, 20),
    "replaced": poisson(1.0, 0.01, 20, adjacency="replace_one"),
    "fixed_size": account(
        4.0,
        steps=20,
        sampling=FixedSize(20),
        num_records=1000,
        adjacency="replace_one",
        delta=DELTA,
        accountant="rdp",
    ),
    "overflowing": account(
        2.0, steps=20, sampling=Poisson(50), num_records=2000, adjacency="add_remove", delta=DELTA, accountant="pld"
    ),
    "beside": guarantee(
        Event("poisson_gaussian", 1.5, 0.02, 20),
        Event("gaussian", 20.0, 1.0, 1),
        Event("pure", 0.0, 1.0, 1, epsilon=0.1),
    ),
    "draw": guarantee(Event("posterior_draw", 8.0, 1.0, 1), release="one_sample", accountant="one_sample"),
}


@pytest.mark.parametrize("name", GUARANTEES)
def test_one_record_is_the_guarantee_itself(name):
    g = GUARANTEES[name]
    assert g.for_group(1).epsilon == g.epsilon
    assert g.for_group(1, 1e-4).epsilon == g.epsilon_at(1e-4)


@pytest.mark.parametrize("name", GUARANTEES)
def test_epsilon_grows_with_the_group(name):
    values = [GUARANTEES[name].for_group(k, 1e-3).epsilon for k in (1, 2, 3, 6)]
    assert all(a < b for a, b in itertools.pairwise(values))
    assert math.isfinite(values[-1])


@pytest.mark.parametrize("k", [2, 5, 40])
@pytest.mark.parametrize("adjacency", ["replace_one", "add_remove", "zero_out"])
def test_gaussian_releases_are_exact(k, adjacency):
    mu = (2 if adjacency == "replace_one" else 1) * k * math.sqrt(7) / 30.0
    assert gaussian(30.0, 7, adjacency=adjacency).for_group(k).epsilon == pytest.approx(
        gaussian_epsilon(mu, DELTA), rel=1e-9
    )


def test_a_posterior_draw_and_a_descent_are_exact():
    draw = GUARANTEES["draw"].for_group(3)
    assert draw.epsilon == pytest.approx(gaussian_epsilon(3 / 8, DELTA), rel=1e-9)
    descent = Event("noisy_descent", 50.0, 1.0, 1, steps=30, contraction=0.8)
    one = guarantee(descent, accountant="last_iterate", release="last_iterate")
    weight = (1 - 0.8**30) / (1 + 0.8**30) * 1.8 / 0.2
    expected = gaussian_epsilon(4 / 50 * math.sqrt(weight), DELTA)
    assert one.for_group(4).epsilon == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("k", [2, 7])
def test_a_pure_release_costs_k_epsilon(k):
    one = guarantee(Event("pure", 0.0, 1.0, 1, epsilon=0.3), release="estimate", accountant="one_sample", delta=1e-15)
    assert one.for_group(k).epsilon == pytest.approx(0.3 * k, rel=2e-6)


# Small discrete mechanisms, by brute force.


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 5), st.sampled_from([1e-3, 1e-2, 0.1]))
def test_k_epsilon_covers_brute_force_on_discrete_mechanisms(seed, k, delta):
    rng = np.random.default_rng(seed)
    # A law drifts along the path, so that the ends are about as far apart as the curve allows.
    drift, laws = rng.normal(size=6) * 0.5, [rng.dirichlet(np.ones(6) * 3)]
    for _ in range(k):
        law = laws[-1] * np.exp(drift)
        laws.append(law / law.sum())
    neighbours = [*itertools.pairwise(laws), *itertools.pairwise(laws[::-1])]
    epsilons = np.linspace(0, 4, 400)
    deltas = np.array([max(hockey_stick(p, q, e) for p, q in neighbours) for e in epsilons])

    def epsilon_at(share: float) -> float:
        return float(epsilons[deltas <= share][0])

    one, _ = _share(epsilon_at, k, delta)
    for ends in ((laws[0], laws[-1]), (laws[-1], laws[0])):
        assert hockey_stick(*ends, k * one) <= delta * (1 + 1e-9)


def test_poisson_sampled_steps_cost_k_times_epsilon_at_their_share_of_delta():
    g, k = poisson(1.0, 0.01, 20), 3
    found = g.for_group(k, 1e-4)
    one = found.epsilon / k
    share = 1e-4 / sum(math.exp(i * one) for i in range(k))
    assert one == pytest.approx(g.epsilon_at(share), rel=1e-9)
    assert f"for any 3 records, add_remove, trace release, by pld (3 times epsilon at delta {share:.3g})" in str(found)
    assert "(noise divided by 3)" in str(gaussian(10.0).for_group(3))


@pytest.mark.slow
def test_one_record_that_leaves_and_one_that_joins_are_covered():
    """Both laws are mixtures, N(±1) with probability q, by quadrature."""
    z, q = 0.7, 0.3
    x = np.linspace(-12 * z - 1, 12 * z + 1, 40_001)

    def density(centre: float) -> np.ndarray:
        return np.exp(-((x - centre) ** 2) / (2 * z * z)) / math.sqrt(2 * math.pi) / z * (x[1] - x[0])

    sides = [(1 - q) * density(0.0) + q * density(sign) for sign in (1.0, -1.0)]
    g = poisson(z, q, 1)
    for delta in (1e-6, 1e-3, 0.05):
        epsilon = g.for_group(2, delta).epsilon
        assert max(hockey_stick(*sides, epsilon), hockey_stick(*sides[::-1], epsilon)) <= delta * (1 + 1e-6)


def test_nothing_finite_is_said_where_nothing_is_proved():
    g = account(
        1.0, steps=2000, sampling=Poisson(50), num_records=2000, adjacency="replace_one", delta=DELTA, accountant="pld"
    )
    group = g.for_group(50)
    assert math.isinf(group.epsilon)
    assert "nothing finite" in str(group)


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
def test_a_group_of_no_records_is_refused(size):
    with pytest.raises(ValueError, match="size must be a whole number"):
        gaussian(5.0).for_group(size)


@pytest.mark.parametrize("delta", [0.0, 1.0, 2.0])
def test_a_delta_that_promises_nothing_is_refused(delta):
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        gaussian(5.0).for_group(2, delta)


def test_verify_prints_the_line(tmp_path, capsys):
    g = account(5.0, steps=10, sampling=Full(), num_records=100, adjacency="add_remove", delta=DELTA, accountant="pld")
    path = tmp_path / "privacy.json"
    path.write_text(json.dumps(g.to_json()))
    main(["verify", str(path), "--group", "3"])
    out = " ".join(capsys.readouterr().out.split())
    assert f"group {g.for_group(3)}" in out
    assert main(["verify", str(path), "--group", "0"]) == 2
    assert "--group: 0 is not a number of records" in capsys.readouterr().err


def test_verify_says_the_rule_and_names_owners(tmp_path, capsys):
    g = poisson(0.6, 0.01, 20)
    path = tmp_path / "privacy.json"
    path.write_text(json.dumps(g.to_json() | {"unit": "owner (at most 4 rows)"}))
    assert main(["verify", str(path), "--group", "2"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"group {g.for_group(2).about('owner')}" in out
    assert "for any 2 owners" in out
    assert "2 times epsilon at delta" in out
