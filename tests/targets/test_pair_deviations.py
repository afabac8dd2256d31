"""Every record of a group pays a deviation from a law of a pair of neighbours; other deviations are paid once."""

import dataclasses
import json
import math

import pytest

from dpmcmc.cli.commands import main
from dpmcmc.mechanisms import OPS, OutputPerturbation, PrivateSelection
from dpmcmc.mechanisms.one_shot import OneShot, PrivacySpec
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy import Event, Guarantee
from dpmcmc.privacy.accounting import noise_tables, overflow_probability
from dpmcmc.privacy.accounting.deviations import of_pairs, with_deviations
from dpmcmc.privacy.accounting.gaussian import gaussian_epsilon
from dpmcmc.targets import LinearRegression, LogisticRegression, Target

LOGISTIC = LogisticRegression(num_features=2, row_bound=1.0)
LINEAR = LinearRegression(num_features=2, row_bound=1.0, label_bound=1.0)
PROMISE = {"num_records": 3000, "epsilon": 1.0, "delta": 1e-5}


def approximate(epsilon: float, delta: float, draws: int = 1) -> Guarantee:
    """(ε, δ)-DP and nothing else."""
    events = (
        Event("pure", 0.0, 1.0, draws, epsilon=epsilon),
        Event("approximate_draw", 0.0, delta / (1 + math.exp(epsilon)) * (1 - 1e-9), draws),
    )
    return Guarantee.from_events(
        events, delta=draws * delta, adjacency="replace_one", accountant="one_sample", release="estimate"
    )


def textbook(epsilon: float, delta: float, k: int) -> float:
    """δ of k records at kε: also the probability of the ladder's output for k marked records, and 0 without."""
    return delta * math.expm1(k * epsilon) / math.expm1(epsilon)


@pytest.mark.parametrize("k", [2, 3, 7])
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-5), (0.5, 0.003)])
def test_a_group_pays_what_the_textbook_says_which_the_ladder_attains(epsilon, delta, k):
    one, exact = approximate(epsilon, delta), textbook(epsilon, delta, k)
    assert one.for_group(k, exact * (1 + 1e-7)).epsilon == pytest.approx(k * epsilon, rel=1e-4)
    # With P(output) = exact and 0 without the records, no ε is true at a smaller δ.
    assert math.isinf(one.for_group(k, exact * (1 - 1e-6)).epsilon)


@dataclasses.dataclass(frozen=True)
class Ladder(OneShot):
    """Shows a mark with probability δ(1 + e^ε + …), a term for each marked record: exactly (ε, δ)-DP."""

    def calibrate(self, target: Target, spec: PrivacySpec) -> Plan:
        return self.planned(target, spec, approximate(spec.epsilon, spec.delta).events, {})


def ladders_at_work(records: int, candidates: int, epsilon: float, delta: float) -> tuple[Guarantee, float]:
    """(Guarantee, probability that some candidate shows the mark for two marked records; it is 0 for none)."""
    mechanism = PrivateSelection([Ladder() for _ in range(candidates)], loss_bound=5.0)
    plan = mechanism.plan(LOGISTIC, num_records=records, epsilon=epsilon, delta=delta)
    part = int(plan.settings["records_of_a_candidate"])
    dealt = records * (records - 1)  # ordered places of the two records
    together = candidates * part * (part - 1) / dealt
    apart = candidates * (candidates - 1) * part**2 / dealt
    alone = 2 * candidates * part * (records - candidates * part) / dealt  # one of them votes
    seen = together * textbook(epsilon, delta, 2) + apart * (1 - (1 - delta) ** 2) + alone * delta
    return plan.guarantee, seen


def test_a_selection_of_ladders_keeps_its_promise_for_two_records():
    guarantee, seen = ladders_at_work(30, 9, 0.5, 0.03)
    assert seen == pytest.approx(0.054538, rel=1e-4)  # measured: 0.0545
    assert math.isinf(guarantee.for_group(2, 0.9999 * seen).epsilon)
    assert guarantee.for_group(2, 1.0001 * textbook(0.5, 0.03, 2)).epsilon == pytest.approx(1.0, rel=1e-3)


def test_deviations_of_shipped_mechanisms_are_of_their_kind():
    pairs = [
        PrivateSelection([OutputPerturbation(regularisation=10.0)] * 2, loss_bound=5.0).plan(LOGISTIC, **PROMISE),
    ]
    own = [
        OPS("gdp", prior_precision=1.0, total_variation=1e-8).plan(LOGISTIC, **PROMISE),
        OutputPerturbation(regularisation=10.0).plan(LOGISTIC, **PROMISE),
    ]
    for plan in pairs:
        assert of_pairs(plan.guarantee.events), plan.mechanism
    for plan in own:
        assert overflow_probability(plan.guarantee.events) > 0
        assert not of_pairs(plan.guarantee.events), plan.mechanism
    run = (noise_tables.draws_event(1000), Event("batch_overflow", 0.0, 1e-9, 5))
    assert not of_pairs(run)
    assert of_pairs((*run, Event("approximate_draw", 0.0, 1e-9, 3)))


@pytest.mark.parametrize("k", [2, 4])
def test_a_deviation_of_every_data_set_is_paid_once(k):
    """The exact Gaussian of k records, at what (1 + e^ε)β leaves of δ."""
    integer_noise = noise_tables.draws_event(10**6)
    marked = Event("approximate_draw", 0.0, 1e-7, 2, per_data_set=True)
    for event in (integer_noise, marked, Event("batch_overflow", 0.0, 1e-7, 2)):
        events = (Event("gaussian", 8.0, 1.0, 1), event)
        one = Guarantee.from_events(events, delta=1e-4, adjacency="add_remove", accountant="pld")
        exact = with_deviations(lambda d: gaussian_epsilon(k / 8, d), event.rate * event.count, 1e-4)
        assert one.for_group(k).epsilon == pytest.approx(exact, rel=1e-9), event


def test_both_kinds_together_cost_more_than_either():
    pair, own = Event("approximate_draw", 0.0, 1e-6, 1), Event("batch_overflow", 0.0, 1e-6, 1)

    def of_two(*events: Event) -> float:
        events = (Event("posterior_draw", 8.0, 1.0, 1), *events)
        one = Guarantee.from_events(
            events, delta=1e-4, adjacency="add_remove", accountant="one_sample", release="one_sample"
        )
        return one.for_group(2).epsilon

    assert of_two() < of_two(own) < of_two(pair) < of_two(pair, own)


def test_files_without_the_mark_are_verified_at_the_larger_group_epsilon(tmp_path, capsys):
    """A privacy.json from before the kinds were told apart; selections write the same one still."""
    one = OPS("gdp", prior_precision=1.0, total_variation=1e-7).plan(LOGISTIC, **PROMISE).guarantee
    body = one.to_json()
    assert [e.get("per_data_set") for e in body["events"] if e["mechanism"] == "approximate_draw"] == [True]
    for event in body["events"]:
        event.pop("per_data_set", None)
    old = Guarantee.from_json(body)
    assert old.epsilon == one.epsilon
    assert old.for_group(2).epsilon > one.for_group(2).epsilon
    path = tmp_path / "privacy.json"
    path.write_text(json.dumps(body | {"charged_draws": 1}))
    assert main(["verify", str(path), "--group", "2"]) == 0
    assert f"group {old.for_group(2)}" in " ".join(capsys.readouterr().out.split())
    for event in PrivateSelection([Ladder(), Ladder()], loss_bound=5.0).plan(LOGISTIC, **PROMISE).guarantee.events:
        assert event.per_data_set is None


@pytest.mark.parametrize("value", [False, 1, "true", []])
def test_a_mark_is_true_or_left_out(value):
    with pytest.raises(ValueError, match="per_data_set"):
        Event("approximate_draw", 0.0, 1e-9, 1, per_data_set=value)
    with pytest.raises(ValueError, match="per_data_set"):
        Event("gaussian", 1.0, 1.0, 1, per_data_set=True)
