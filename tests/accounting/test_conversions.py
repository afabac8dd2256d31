"""A run's events in other terms: bounds on ε from both sides, a Gaussian trade-off, zCDP, the Rényi curve."""

import json
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from dpmcmc.cli.commands import main
from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.privacy import FixedSize, Full, Guarantee, Poisson, account
from dpmcmc.privacy.accounting import Event, conversions, pld
from dpmcmc.privacy.accounting.conversions import GaussianDP
from dpmcmc.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon

GOLDEN = {"steps": 2344, "num_records": 60_000, "delta": 1e-5, "sampling": Poisson(256)}
SCHEDULE = np.repeat([1.1, 2.2], 1172)


def of(*events, adjacency="zero_out", accountant="pld", delta=1e-6, release="trace"):
    return Guarantee.from_events(
        tuple(events), delta=delta, adjacency=adjacency, accountant=accountant, release=release
    )


@pytest.mark.parametrize(
    ("z", "settings"),
    [
        (1.1, {"adjacency": "zero_out"}),
        (1.1, {"adjacency": "replace_one"}),
        (SCHEDULE, {"adjacency": "zero_out"}),
        (0.7, {"adjacency": "add_remove", "steps": 100}),
        (20.0, {"sampling": Poisson(600), "steps": 5000}),
        (3.0, {"sampling": Poisson(6000), "steps": 1}),
        (0.6, {"sampling": Poisson(60), "steps": 10_000, "delta": 1e-6}),
        (1500.0, {"sampling": Poisson(600), "steps": 100_000}),
        (30.0, {"sampling": Full(), "steps": 60}),
    ],
)
def test_bounds_on_epsilon_are_within_a_percent_at_the_golden_settings(z, settings):
    settings = GOLDEN | settings
    lower, upper = account(z, **settings, bracket=True)
    assert upper == account(z, **settings).epsilon
    assert lower <= upper <= 1.01 * lower


def test_bounds_of_mixed_noise_are_within_five_percent():
    noise = np.geomspace(3, 100, 10**5)
    settings = GOLDEN | {"steps": 10**5, "delta": 1e-6}
    lower, upper = account(noise, **settings, bracket=True)
    assert lower <= upper <= 1.05 * lower


@pytest.mark.parametrize(("z", "q", "count"), [(1.1, 256 / 60_000, 2344), (4.0, 0.1, 300)])
def test_dp_accounting_s_bounds_overlap_ours(z, q, count):
    lower, upper = of(Event("poisson_gaussian", z, q, count)).bracket()
    for pessimistic in (True, False):
        theirs = privacy_loss_distribution.from_gaussian_mechanism(
            z, sampling_prob=q, pessimistic_estimate=pessimistic, value_discretization_interval=1e-3
        ).self_compose(count)
        found = theirs.get_epsilon_for_delta(1e-6)
        assert lower <= found * (1 + 1e-6) if pessimistic else found <= upper * (1 + 1e-6)


def test_other_mechanisms_are_left_out_of_the_lower_bound():
    pure = of(Event("pure", 0.0, 1.0, 1, epsilon=1.0), accountant="one_sample", release="estimate")
    assert pure.bracket() == (0.0, pure.epsilon)
    draw = of(Event("posterior_draw", 5.0, 1.0, 1), accountant="one_sample", release="one_sample")
    assert draw.bracket().lower == 0
    assert draw.to_json()["epsilon_lower"] is None


def hopeful(events, adjacency, delta) -> float:
    """Right at 1e-6 and above, and hopeful beyond."""
    true = pld.epsilon(events, adjacency, delta)
    return true if delta > 9e-7 and true < 1 else true / 3


def test_epsilon_at_another_delta_and_of_a_group_are_held_to_the_lower_bound():
    guarantee = of(Event("gaussian", 6.0, 1.0, 1), accountant=f"{__name__}:hopeful")
    assert guarantee.epsilon < 1
    with pytest.raises(UnsupportedCombination, match=r"hopeful says epsilon .* cost at least"):
        guarantee.epsilon_at(1e-9)
    with pytest.raises(UnsupportedCombination, match=r"hopeful says epsilon .* cost at least"):
        guarantee.for_group(3)


def test_gaussian_releases_are_exactly_gaussian():
    found = of(Event("gaussian", 4.0, 1.0, 9), Event("gaussian", 2.0, 1.0, 1), adjacency="replace_one").gdp()
    assert found == (pytest.approx(2 * math.sqrt(9 / 16 + 1 / 4)), 0.0, 0.0)


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
def test_sampled_steps_lie_below_their_gaussian_trade_off_and_close_to_it(adjacency):
    z, q, count = 2.0, 0.02, 500
    guarantee = of(Event("poisson_gaussian", z, q, count), adjacency=adjacency)
    found = guarantee.gdp()
    assert 0 < found.slack <= 1e-8
    epsilons = np.linspace(0, 1.5 * guarantee.epsilon, 40)
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        z, sampling_prob=q, value_discretization_interval=1e-4, pessimistic_estimate=False
    ).self_compose(count)
    for e in epsilons:
        assert pld.delta(guarantee.events, guarantee.adjacency, float(e)) <= found.delta(float(e)) * (1 + 1e-3)
        if adjacency == "zero_out":
            assert theirs.get_delta_for_epsilon(float(e)) <= found.delta(float(e))
    # Planted: a μ that is two percent less lies below the curve somewhere.
    less = [gaussian_delta(0.98 * found.mu, float(e)) + found.slack for e in epsilons]
    assert any(
        pld.delta(guarantee.events, guarantee.adjacency, float(e)) > d for e, d in zip(epsilons, less, strict=True)
    )
    # The limit of many small steps: μ = q·√(count·(e^{1/z²} − 1)) (Bu, Dong, Long and Su 2020).
    if adjacency == "zero_out":
        assert found.mu >= q * math.sqrt(count * math.expm1(1 / z**2))
        assert found.mu <= 1.25 * q * math.sqrt(count * math.expm1(1 / z**2))


@pytest.mark.parametrize("epsilon", [699.0, 701.0, 1e4])
def test_a_trade_off_is_stated_where_e_to_the_epsilon_is_no_float(epsilon):
    assert GaussianDP(60.0, 1e-9, 0.0).delta(epsilon) == pytest.approx(min(1.0, gaussian_delta(60.0, epsilon) + 1e-9))
    assert GaussianDP(math.inf, 0.0, 0.0).delta(epsilon) == 1.0
    assert GaussianDP(0.1, 0.0, 1e-12).delta(epsilon) == 1.0


def test_deviations_are_stated_beside_every_term():
    events = (Event("gaussian", 5.0, 1.0, 1), Event("batch_overflow", 0.0, 1e-12, 10))
    guarantee = of(*events)
    assert (
        guarantee.gdp().deviation
        == guarantee.zcdp().deviation
        == guarantee.renyi([2]).deviation
        == pytest.approx(1e-11)
    )
    assert guarantee.gdp().delta(guarantee.epsilon) == pytest.approx(guarantee.delta, rel=1e-6)
    with pytest.raises(InputError, match="slack must lie strictly between 0 and 1"):
        of(Event("poisson_gaussian", 1.0, 0.1, 1)).gdp(0.0)


def test_zcdp_of_gaussian_and_pure_releases_is_the_closed_form():
    both = of(
        Event("gaussian", 4.0, 1.0, 8),
        Event("pure", 0.0, 1.0, 2, epsilon=0.3),
        accountant="pld",
        adjacency="replace_one",
    )
    assert both.zcdp().rho == pytest.approx(8 * 2 / 16 + 2 * 0.3**2 / 2)


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
def test_rho_bounds_the_renyi_curve_at_every_order(adjacency):
    guarantee = of(Event("poisson_gaussian", 1.5, 0.05, 20), adjacency=adjacency)
    rho = guarantee.zcdp().rho
    orders = np.geomspace(1.01, 3000, 200)
    ratios = guarantee.renyi(orders).divergences / orders
    assert np.all(ratios <= rho * (1 + 1e-9))
    assert ratios.max() >= 0.9 * rho
    sampled = 20 / 1.5**2 / 2
    assert rho == pytest.approx(sampled, rel=1e-6) if adjacency == "zero_out" else sampled < rho < 1.2 * sampled


def test_the_renyi_curve_is_dp_accounting_s():
    orders = [2, 3, 8, 32]
    ours = of(Event("poisson_gaussian", 1.1, 0.0042, 100), Event("gaussian", 9.0, 1.0, 3)).renyi(orders)
    theirs = dp_accounting.rdp.RdpAccountant(orders=orders)
    theirs.compose(dp_accounting.PoissonSampledDpEvent(0.0042, dp_accounting.GaussianDpEvent(1.1)), 100)
    theirs.compose(dp_accounting.GaussianDpEvent(9.0), 3)
    np.testing.assert_allclose(ours.divergences, theirs.rdp, rtol=1e-8)
    pure = of(Event("pure", 0.0, 1.0, 1, epsilon=0.7), accountant="one_sample", release="estimate").renyi([2.5])
    p = 1 / (1 + math.exp(-0.7))
    exact = math.log(p**2.5 * (1 - p) ** -1.5 + (1 - p) ** 2.5 * p**-1.5) / 1.5
    assert pure.divergences[0] == pytest.approx(exact, rel=1e-9)


def test_what_is_not_derived_is_refused():
    objective = of(
        Event("objective_perturbation", 5.0, 1.0, 1, epsilon=0.1), accountant="one_sample", release="estimate"
    )
    for ask in (objective.zcdp, lambda: objective.renyi([2])):
        with pytest.raises(UnsupportedCombination, match="is not derived here"):
            ask()
    fixed = account(3.0, **GOLDEN | {"sampling": FixedSize(256), "steps": 10}, accountant="rdp")
    assert np.all(np.isfinite(fixed.renyi([2, 5]).divergences))
    with pytest.raises(InputError, match="whole numbers"):
        fixed.renyi([2.5])
    with pytest.raises(InputError, match="above 1"):
        fixed.renyi([1.0])
    elsewhere = (Event("fixed_size_gaussian", 3.0, 0.1, 1, num_records=100),)
    with pytest.raises(UnsupportedCombination, match="fixed_size"):
        conversions.zcdp(elsewhere, "zero_out")


def saved(tmp_path, guarantee):
    path = tmp_path / "privacy.json"
    path.write_text(json.dumps(guarantee.to_json()))
    return str(path)


def test_verify_says_epsilon_at_another_delta_and_the_other_terms(tmp_path, capsys):
    path = saved(tmp_path, of(Event("gaussian", 4.0, 1.0, 4)))
    assert main(["verify", path, "--delta", "1e-9"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    exact = gaussian_epsilon(0.5, 1e-9)
    number = float(said.partition("at delta epsilon ")[2].split()[0])
    assert exact <= number <= 1.001 * exact
    assert "gdp mu 0.5" in said
    assert "zcdp rho 0.125" in said
    assert main(["verify", path, "--delta", "1e-9", "--json"]) == 0
    stated = json.loads(capsys.readouterr().out)
    assert stated["after"]["epsilon"] == pytest.approx(exact)
    assert stated["epsilon_lower"] == pytest.approx(stated["epsilon"], rel=1e-6)
    assert main(["verify", path, "--delta", "1.5"]) == 2
    assert "--delta: 1.5 is not strictly between 0 and 1" in capsys.readouterr().err
