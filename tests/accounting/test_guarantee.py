"""A Guarantee is its events: ε(δ) and δ(ε) agree, it composes, it survives JSON."""

import itertools
import json
import math

import pytest

from dpmcmc.privacy import Event, FixedSize, Full, Guarantee, Poisson, UnsupportedCombination
from dpmcmc.privacy.accounting import overflow_probability
from dpmcmc.privacy.accounting.charging import OVERFLOW_SHARE
from dpmcmc.privacy.accounting.cost_of_run import account
from dpmcmc.privacy.accounting.events import KAPPA

BASE = {"steps": 200, "sampling": Poisson(100), "num_records": 10_000, "delta": 1e-6}


@pytest.fixture(scope="module", params=["pld", "rdp", "advanced"])
def guarantee(request) -> Guarantee:
    return account(3.0, accountant=request.param, **BASE)


def test_events_hold_charged_values(guarantee):
    query, overflow = guarantee.events
    assert query.mechanism == "poisson_gaussian"
    assert query.noise_multiplier == pytest.approx(3.0 / (1 + KAPPA), rel=1e-12)
    assert query.rate == Poisson(100).charged_rate(10_000) > 0.01
    assert query.count == 200
    assert overflow.mechanism == "batch_overflow"
    assert overflow.count == 200
    assert guarantee.assumptions == ()


def test_overflow_takes_at_most_its_share_of_delta(guarantee):
    beta = overflow_probability(guarantee.events)
    assert 0 < (1 + math.exp(guarantee.epsilon)) * beta <= OVERFLOW_SHARE * guarantee.delta * (1 + 1e-9)


def test_delta_at_includes_the_overflow(guarantee):
    beta = overflow_probability(guarantee.events)
    eps = guarantee.epsilon
    without = Guarantee.from_events(
        guarantee.events[:1], delta=1e-6, adjacency=guarantee.adjacency, accountant=guarantee.accountant
    )
    assert guarantee.delta_at(eps) >= without.delta_at(eps)
    assert guarantee.delta_at(eps) >= (1 + math.exp(0)) * beta
    assert without.epsilon <= guarantee.epsilon == guarantee.epsilon_at(guarantee.delta)


def test_delta_never_rises_with_epsilon():
    g = account(3.0, accountant="rdp", **BASE)
    values = [g.delta_at(e) for e in (0.0, 0.3, g.epsilon, 2 * g.epsilon, 20.0, 300.0, 2000.0, math.inf)]
    assert all(b <= 1.02 * a for a, b in itertools.pairwise(values)), values
    with pytest.raises(ValueError, match="epsilon"):
        g.delta_at(-1.0)


def test_an_overflow_beyond_delta_leaves_no_guarantee():
    events = (Event("poisson_gaussian", 3.0, 0.01, 10), Event("batch_overflow", 0.0, 1e-6, 10))
    g = Guarantee.from_events(events, delta=1e-5, adjacency="replace_one", accountant="rdp")
    assert math.isinf(g.epsilon)
    assert g.delta_at(1.0) >= 1e-5 * (1 + math.e) * 0.3


def test_room_for_everybody_where_epsilon_is_huge():
    g = account(0.02, steps=50, sampling=Poisson(5000), num_records=10_000, delta=1e-6, accountant="rdp")
    assert g.epsilon > 600
    assert overflow_probability(g.events) == 0
    assert account(0.0, **BASE).epsilon == math.inf


@pytest.mark.parametrize("sampling", [Full(), FixedSize(100)])
def test_schemes_that_cannot_overflow_have_no_overflow_event(sampling):
    g = account(30.0, steps=5, sampling=sampling, num_records=10_000, delta=1e-6, accountant="rdp")
    assert [e.mechanism for e in g.events] == ["gaussian" if isinstance(sampling, Full) else "fixed_size_gaussian"]


def test_composition_goes_through_events():
    half = account(3.0, accountant="rdp", **{**BASE, "steps": 100})
    both = half.compose(half)
    direct = account(3.0, accountant="rdp", **BASE)
    assert both.events[0].count == 200
    assert both.epsilon == pytest.approx(direct.epsilon, rel=2e-3)
    assert both.epsilon < 2 * half.epsilon
    assert overflow_probability(both.events) == pytest.approx(2 * overflow_probability(half.events))
    assert both.delta == half.delta
    assert half.compose(half, delta=1e-4).epsilon < both.epsilon


def test_composition_falls_back_to_the_accountant_that_covers_both():
    fixed = account(9.0, accountant="rdp", **{**BASE, "sampling": FixedSize(100)})
    poisson = account(9.0, accountant="pld", **BASE)
    both = poisson.compose(fixed)
    assert both.accountant == "rdp"
    assert both.epsilon >= max(fixed.epsilon, poisson.epsilon)


def test_different_adjacency_is_refused():
    one = account(3.0, accountant="rdp", **BASE)
    other = account(3.0, accountant="rdp", adjacency="zero_out", **BASE)
    with pytest.raises(UnsupportedCombination, match=r"replace_one.*zero_out"):
        one.compose(other)


def test_releases_are_joined():
    one = account(3.0, accountant="rdp", **BASE)
    draw = Event("posterior_draw", 10.0, 1.0, 1)
    other = Guarantee.from_events((draw,), delta=1e-6, adjacency="replace_one", accountant="rdp", release="one_sample")
    assert one.compose(other).release == "trace + one_sample"


def test_assumptions_travel_once():
    a = Guarantee.from_events(
        (Event("gaussian", 5.0, 1.0, 1),),
        delta=1e-6,
        adjacency="replace_one",
        accountant="pld",
        assumptions=("The moon is full.",),
    )
    assert a.compose(a).assumptions == ("The moon is full.",)
    assert "moon" in str(a)


def test_json_round_trip_recomputes_epsilon(guarantee):
    saved = json.loads(json.dumps(guarantee.to_json()))
    assert Guarantee.from_json(saved) == guarantee
    saved["epsilon"] = 1e-3
    assert Guarantee.from_json(saved).epsilon == guarantee.epsilon
    saved["events"][0]["noise_multiplier"] /= 2
    assert Guarantee.from_json(saved).epsilon > guarantee.epsilon


def test_infinite_epsilon_is_null_in_json():
    g = account(0.0, **BASE)
    assert json.loads(json.dumps(g.to_json()))["epsilon"] is None
    assert math.isinf(Guarantee.from_json(g.to_json()).epsilon)


def test_delta_outside_its_range_is_refused():
    for delta in (0.0, 1.0, -1e-5):
        with pytest.raises(ValueError, match="delta"):
            Guarantee.from_events((), delta=delta, adjacency="replace_one", accountant="pld")
