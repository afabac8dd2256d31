"""Guarantees for k records: exact where there is a closed form, never below the truth, and never above a plain sum."""

import itertools
import json
import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmcmc.cli.commands import main
from dpmcmc.privacy import FixedSize, Full, Guarantee, Poisson
from dpmcmc.privacy.accounting import Event, pld
from dpmcmc.privacy.accounting.charging import account
from dpmcmc.privacy.accounting.gaussian import gaussian_epsilon
from dpmcmc.privacy.accounting.guarantee import _lines, converted_epsilon

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


#: Those whose curves take many grids.
HEAVY = ("overflowing", "beside", "replaced")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in HEAVY else n for n in GUARANTEES])
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


@pytest.mark.parametrize("z", [3.0, 30.0])
@pytest.mark.parametrize("k", [2, 3, 10])
def test_conversion_is_above_the_exact_value_and_close_to_it(z, k):
    exact = gaussian_epsilon(k / z, DELTA)
    converted = converted_epsilon(_lines(gaussian(z), DELTA), k, DELTA)
    assert exact <= converted <= 1.002 * exact


def textbook(g: Guarantee, k: int, delta: float) -> float:
    """Least kε with δ(ε)(e^{kε} − 1)/(e^ε − 1) <= δ, over a fine grid."""
    best = math.inf
    for e in np.linspace(1e-3, 4 * g.epsilon, 100):
        if k * e < 600 and g.delta_at(float(e)) * math.expm1(k * e) / math.expm1(e) <= delta:
            best = min(best, k * float(e))
    return best


@pytest.mark.parametrize("name", ["fixed_size", "gaussian", pytest.param("replaced", marks=pytest.mark.slow)])
@pytest.mark.parametrize("k", [2, 3])
def test_conversion_is_no_worse_than_the_textbook(name, k):
    g = GUARANTEES[name]
    assert g.for_group(k, 1e-4).epsilon <= textbook(g, k, 1e-4) * (1 + 1e-3)


# Small discrete mechanisms, by brute force.


def hockey_stick(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


def curve_of(laws: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Lines that hold between all neighbours of a path of data sets, in both orders."""
    epsilons = np.linspace(0, 4, 60)
    pairs = [*itertools.pairwise(laws), *itertools.pairwise(laws[::-1])]
    deltas = np.array([max(hockey_stick(p, q, e) for p, q in pairs) for e in epsilons])
    mirrored = -np.expm1(-epsilons) + np.exp(-epsilons) * deltas
    return np.concatenate([epsilons, -epsilons]), np.concatenate([deltas, mirrored])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 5), st.sampled_from([1e-3, 1e-2, 0.1]))
def test_conversion_covers_brute_force_on_discrete_mechanisms(seed, k, delta):
    rng = np.random.default_rng(seed)
    # A law drifts along the path, so that the ends are about as far apart as the curve allows.
    drift, laws = rng.normal(size=6) * 0.5, [rng.dirichlet(np.ones(6) * 3)]
    for _ in range(k):
        law = laws[-1] * np.exp(drift)
        laws.append(law / law.sum())
    epsilon = converted_epsilon(curve_of(laws), k, delta)
    if math.isfinite(epsilon):
        assert hockey_stick(laws[0], laws[-1], epsilon) <= delta * (1 + 1e-9)
        assert hockey_stick(laws[-1], laws[0], epsilon) <= delta * (1 + 1e-9)


# Poisson-sampled steps.


@pytest.mark.parametrize(("z", "q", "k"), [(0.7, 0.05, 3), (1.0, 0.2, 2), (2.0, 0.01, 6)])
def test_one_step_agrees_with_another_implementation(z, q, k):
    shifts, chances = list(range(k + 1)), [math.comb(k, j) * q**j * (1 - q) ** (k - j) for j in range(k + 1)]
    other = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        z, shifts, chances, value_discretization_interval=0.05
    )
    for e in (0.05, 0.5, 2.0):  # on its grid, where connecting the dots is exact
        ours = max(float(pld.mixture_excess(np.array([e]), z, q, k, d)[0]) for d in ("remove", "add"))
        assert ours == pytest.approx(other.get_delta_for_epsilon(e), rel=2e-3, abs=1e-12)


def test_composed_steps_agree_with_another_implementation():
    z, q, k, steps = 1.0, 0.02, 3, 20
    shifts, chances = list(range(k + 1)), [math.comb(k, j) * q**j * (1 - q) ** (k - j) for j in range(k + 1)]
    other = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        z, shifts, chances, value_discretization_interval=0.02
    ).self_compose(steps)
    ours = poisson(z, q, steps).for_group(k, one_sided=True).epsilon
    assert ours == pytest.approx(other.get_epsilon_for_delta(DELTA), rel=5e-3)


def test_one_record_of_a_mixture_is_the_sampled_gaussian():
    curve = pld.composed_delta([(1.0, 0.02, 100)], 0.0, 1, 2.0, DELTA)
    assert curve is not None
    g = poisson(1.0, 0.02, 100)
    assert curve(g.epsilon) == pytest.approx(DELTA, rel=0.05)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6))
def test_the_mixture_dominates_vectors(seed):
    """Two records' gradients in the plane, at any angle: δ by quadrature is at most that of the scalar pair."""
    rng = np.random.default_rng(seed)
    z, q, k = rng.uniform(0.6, 2), rng.uniform(0.05, 0.5), 2
    angles, lengths = rng.uniform(0, 2 * np.pi, 2), rng.uniform(0.3, 1, 2)
    rows = lengths[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    side = np.linspace(-8, 8, 301) * z
    plane = np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1)
    area = (side[1] - side[0]) ** 2

    def density(centre: np.ndarray) -> np.ndarray:
        return np.exp(-np.sum((plane - centre) ** 2, axis=-1) / (2 * z * z)) / (2 * np.pi * z * z) * area

    centres = [((1 - q) ** 2, np.zeros(2)), (q * (1 - q), rows[0]), (q * (1 - q), rows[1]), (q * q, rows.sum(axis=0))]
    mixed = sum(weight * density(centre) for weight, centre in centres)
    plain = density(np.zeros(2))
    for e in (0.0, 0.3, 1.0):
        bound = {d: float(pld.mixture_excess(np.array([e]), z, q, k, d)[0]) for d in ("remove", "add")}
        assert hockey_stick(mixed, plain, e) <= bound["remove"] + 1e-6
        assert hockey_stick(plain, mixed, e) <= bound["add"] + 1e-6


def test_a_mixture_is_not_used_where_some_records_leave_and_others_join():
    """Proved is the path of k neighbours alone; the one-sided bound is much lower, and is asked for by name."""
    g = poisson(0.6, 0.01, 20)
    converted = converted_epsilon(_lines(g, DELTA), 3, DELTA)
    both, one = g.for_group(3), g.for_group(3, one_sided=True)
    assert both.epsilon == pytest.approx(converted, rel=1e-12)
    assert one.epsilon < 0.7 * converted
    assert not both.one_sided
    assert "for any 3 records" in str(both)
    assert "with or without 3 records (all on one side)" in str(one)
    assert "with or without 3 owners" in one.about("owner")


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


def test_one_sided_is_refused_where_records_are_replaced():
    with pytest.raises(ValueError, match="one_sided"):
        GUARANTEES["replaced"].for_group(2, one_sided=True)


@pytest.mark.slow
def test_overflow_is_charged_at_the_ends():
    g = GUARANTEES["overflowing"]
    beta = math.fsum(e.rate * e.count for e in g.events if e.mechanism == "batch_overflow")
    assert beta > 0
    events = tuple(e for e in g.events if e.mechanism != "batch_overflow")
    without = guarantee(*events)
    group = g.for_group(3, one_sided=True)
    # The same promise without deviations, at what they leave of δ.
    left = DELTA - (1 + math.exp(group.epsilon)) * beta
    assert without.for_group(3, left, one_sided=True).epsilon <= group.epsilon * (1 + 1e-5)
    assert group.epsilon >= without.for_group(3, one_sided=True).epsilon * (1 - 1e-9)


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
    assert "one side" not in out  # a Gaussian's is the same on one side
    assert main(["verify", str(path), "--group", "0"]) == 2
    assert "--group: 0 is not a number of records" in capsys.readouterr().err


def test_verify_prints_both_groups_where_they_differ_and_names_owners(tmp_path, capsys):
    g = poisson(0.6, 0.01, 20)
    path = tmp_path / "privacy.json"
    path.write_text(json.dumps(g.to_json() | {"unit": "owner (at most 4 rows)"}))
    assert main(["verify", str(path), "--group", "2"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"group {g.for_group(2).about('owner')} {g.for_group(2, one_sided=True).about('owner')}" in out
    assert "for any 2 owners" in out
