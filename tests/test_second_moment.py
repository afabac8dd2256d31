"""A second moment beside the gradient: what one minibatch costs, and which plans and queries are refused."""

import itertools
import json
import math

import numpy as np
import pytest

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.planning import making
from dpmcmc.privacy import FixedSize, Full, Guarantee, Poisson, Privacy, UnsupportedCombination
from dpmcmc.privacy.accounting import ADJACENCIES, TRACE_ACCOUNTANTS
from dpmcmc.privacy.accounting.charging import Schedule, account, charged_guarantee
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.calibration import closed_form
from dpmcmc.privacy.query.metric import PublicMatrix, SecondMoment, multiples
from dpmcmc.report.privacy_json import privacy_json
from dpmcmc.samplers import SGFS
from tests.pairs import slow_pairs
from tests.second_moments import D, Given, charged, one_event_per_minibatch, queries_of, query_plan


def golden(rate, z, steps, how, delta=1e-6, adjacency="add_remove", n=10_000):
    """ε of gradient and second moment at z each."""
    queries = Schedule(np.full(steps, z), Poisson(rate * n), n, multiples=how)
    return charged_guarantee(queries, Privacy(delta=delta, adjacency=adjacency, calibrator="free"))[0]


@pytest.mark.parametrize(
    ("rate", "z", "steps", "one", "two"), [(0.01, 1, 1000, 5.29, 2.96), (0.001, 0.8, 2000, 2.99, 0.68)]
)
def test_gradient_and_second_moment_of_one_minibatch_are_one_subsampled_gaussian(rate, z, steps, one, two):
    """Measured at δ = 1e-6. Composing the two as if their minibatches were independent says half as much, or less."""
    assert golden(rate, z, steps, multiples(SecondMoment(1.0))).epsilon == pytest.approx(one, rel=0.01)
    independent = golden(rate, z, steps, (1.0, 1.0))
    assert independent.epsilon == pytest.approx(two, rel=0.01)
    # The one event is the exact whitened pair: both kinds of noise at z are one query at z/√2.
    right = golden(rate, z * 2**-0.5, steps, (1.0,))
    assert golden(rate, z, steps, multiples(SecondMoment(1.0))).epsilon == pytest.approx(right.epsilon, rel=1e-3)


def test_two_minibatches_are_two_events_and_cost_their_composition():
    z, ratio, steps, n = 0.9, 2.0, 300, 10_000
    second = SecondMoment(ratio, own_batch=True)
    both = golden(0.01, z, steps, multiples(second))
    queries = [e for e in both.events if e.mechanism == "poisson_gaussian"]
    assert sorted(e.noise_multiplier for e in queries) == pytest.approx(sorted(charged(second, z)), rel=1e-12)
    assert [e.count for e in queries] == [steps, steps]
    assert [e.count for e in both.events if e.mechanism == "batch_overflow"] == [2 * steps]
    settings = {"steps": steps, "sampling": Poisson(100.0), "num_records": n, "delta": 1e-6, "adjacency": "add_remove"}
    alone = [account(m * z, **settings) for m in multiples(second)]
    assert both.epsilon == pytest.approx(alone[0].compose(alone[1]).epsilon, rel=2e-3)


def test_a_second_moment_is_never_charged_at_the_square_root_of_two():
    """‖ccᵀ − ddᵀ‖ <= √2 C² bounds one distance, not the pair of mixtures that Poisson sampling compares.

    Replacing a record by one without gradient is a replacement, so what that alone costs (remove) is a lower bound.
    """
    settings = {"steps": 1000, "sampling": Poisson(10.0), "num_records": 10_000, "delta": 1e-6}
    at_root_two = account(0.5 * 2**0.5, adjacency="replace_one", **settings).epsilon
    lower_bound = account(0.5, adjacency="zero_out", **settings).epsilon
    assert at_root_two == pytest.approx(0.95, abs=0.01)
    assert lower_bound == pytest.approx(4.24, abs=0.01)
    assert account(0.5, adjacency="replace_one", **settings).epsilon >= lower_bound


@pytest.mark.parametrize("ratio", [1e-3, 0.3, 1.0, 3.0, 1e6])
def test_the_charge_covers_the_norm_of_the_whitened_pair_in_float32(ratio):
    """‖c‖ <= (1 + κ)C and ‖ccᵀ‖ <= (1 + κ)²C², so the pair's norm is at most 1/z of its event."""
    (z,) = charged(SecondMoment(ratio))
    assert z * math.hypot(1 + KAPPA, (1 + KAPPA) ** 2 / ratio) <= 1 + 1e-12
    first, own = charged(SecondMoment(ratio, own_batch=True))
    assert first * (1 + KAPPA) <= 1 + 1e-12
    assert own * (1 + KAPPA) ** 2 / ratio <= 1 + 1e-12


SCHEMES = {"full": Full(), "poisson": Poisson(40.0), "fixed_size": FixedSize(40)}
CHARGED = list(itertools.product(SCHEMES, map(str, ADJACENCIES), TRACE_ACCOUNTANTS))
UNDERIVED = [c for c in CHARGED if c[0] == "fixed_size" and (c[1] != "replace_one" or c[2] == "pld")]


def test_a_plan_of_a_pair_without_a_derivation_is_refused():
    for scheme, adjacency, accountant in UNDERIVED:
        with pytest.raises(UnsupportedCombination, match="fixed_size"):
            query_plan(SCHEMES[scheme], adjacency=adjacency, accountant=accountant)


@pytest.mark.parametrize(("scheme", "adjacency", "accountant"), slow_pairs([c for c in CHARGED if c not in UNDERIVED]))
def test_a_plan_charges_the_pair_under_every_scheme_adjacency_and_accountant(scheme, adjacency, accountant):
    sampling = SCHEMES[scheme]
    epsilon = {"advanced": 8.0, "rdp": 2.0, "pld": 2.0}[accountant]
    plan = query_plan(sampling, steps=6, chains=2, adjacency=adjacency, accountant=accountant, epsilon=epsilon)
    one_event_per_minibatch(plan)
    assert 0.98 * epsilon <= plan.guarantee.epsilon <= epsilon
    same = account(
        plan.noise_multipliers * multiples(SecondMoment(3.0))[0], steps=6, chains=2, sampling=sampling,
        num_records=400, delta=1e-4, adjacency=adjacency, accountant=accountant,
    )  # fmt: skip
    assert same.epsilon == pytest.approx(plan.guarantee.epsilon, rel=1e-4)  # batch slots differ


def test_a_minibatch_of_its_own_is_charged_in_every_chain_and_for_its_overflow():
    plan = query_plan(Poisson(40.0), steps=7, chains=3, own=True, accountant="rdp")
    one_event_per_minibatch(plan)
    assert [e.count for e in plan.guarantee.events if e.mechanism == "batch_overflow"] in ([], [2 * 7 * 3])
    assert plan.guarantee.epsilon <= 2.0


@pytest.mark.parametrize("own", [False, True])
def test_the_closed_form_gives_every_minibatch_its_noise(own):
    second = SecondMoment(0.5, own_batch=own)
    plan = query_plan(
        FixedSize(100), steps=4000, ratio=0.5, own=own, calibrator="closed_form", accountant="advanced", epsilon=1.0
    )
    minibatches = plan.steps * len(multiples(second))
    formula = closed_form.formula(epsilon=1.0, delta=1e-4, steps=minibatches, rate=0.25)
    assert sum(e.count for e in queries_of(plan)) == minibatches
    assert min(e.noise_multiplier for e in queries_of(plan)) >= formula * (1 - 1e-9)
    assert plan.guarantee.epsilon <= 1.0


def test_a_plan_that_composes_as_independent_is_caught(monkeypatch):
    """Planted fault."""
    monkeypatch.setattr(making, "multiples", lambda second: (1.0, second.ratio / (1 + KAPPA)))
    with pytest.raises(AssertionError):
        one_event_per_minibatch(query_plan(Poisson(40.0), ratio=1.0, accountant="rdp"))


def test_step_size_auto_is_solved_for_the_noise_of_the_pair():
    plan = query_plan(Poisson(40.0), ratio=0.5, sampler=SGFS("auto", fisher="query", noise_ratio=0.5))
    one_event_per_minibatch(plan)
    assert 1.9 < plan.guarantee.epsilon <= 2.0
    assert plan.free_fraction == 1


def test_a_centred_second_moment_is_refused():
    with pytest.raises(UnsupportedCombination, match="batch mean moves"):
        SecondMoment(centred=True)


@pytest.mark.parametrize(
    "queries",
    [
        (),
        ("gradient", "gradient"),
        ("gradient", SecondMoment(), SecondMoment()),
        (SecondMoment(),),
        (SecondMoment(), "gradient"),
        ("second_moment",),
        "gradient",
        ("gradient", None),
    ],
)
def test_queries_without_a_derivation_are_refused_before_a_record_is_read(queries):
    class Asks(SGFS):
        pass

    Asks.queries = property(lambda self: queries)
    for privacy in (Privacy(epsilon=1.0, delta=1e-4), None):
        with pytest.raises(UnsupportedCombination, match="a step asks for"):
            dpmcmc.plan(Given(), num_records=400, sampler=Asks(step_size=1.0), steps=5, privacy=privacy)


@pytest.mark.parametrize("metric", [0.0, [1.0, 0.0, 1, 1, 1], np.diag([1.0, 1, 1, 1, 1e-9]), np.ones((D, D))])
def test_a_singular_metric_is_refused(metric):
    with pytest.raises(ValueError, match=r"metric is singular.*needs an invertible matrix"):
        query_plan(sampler=SGFS(step_size=1.0, metric=metric))


@pytest.mark.parametrize(
    ("fisher", "prior", "condition"),
    [
        (-1.0, 1.0, "positive semidefinite"),
        ([1.0, -1e-3, 1, 1, 1], 1.0, "positive semidefinite"),
        (np.eye(D) - 0.5 * np.ones((D, D)), 1.0, "positive semidefinite"),
        (np.triu(np.ones((D, D))), 1.0, "symmetric"),
        (0.0, 0.0, "prior_precision > 0"),
        ([1.0, 0.0, 1, 1, 1], 0.0, "prior_precision > 0"),
        (np.ones((D, D)), 0.0, "prior_precision > 0"),
        (np.eye(D - 1), 1.0, "4 parameters, and the target has 5"),
        ([math.nan, 1, 1, 1, 1], 1.0, "finite"),
    ],
)
def test_a_public_fisher_matrix_that_is_none_is_refused(fisher, prior, condition):
    with pytest.raises(ValueError, match=condition):
        query_plan(sampler=SGFS(step_size=1.0, fisher="public", public_fisher=fisher, prior_precision=prior))


def test_a_singular_public_fisher_matrix_is_taken_with_a_prior():
    plan = query_plan(sampler=SGFS(step_size=1.0, fisher="public", public_fisher=np.ones((D, D)), prior_precision=1.0))
    assert sum(e.count for e in plan.guarantee.events if e.noise_multiplier) == plan.steps


def test_a_saved_guarantee_that_leaves_out_the_second_minibatches_is_not_verified(tmp_path):
    plan = query_plan(Poisson(40.0), steps=6, own=True, accountant="rdp")
    body = privacy_json(plan, plan.guarantee)
    (tmp_path / "privacy.json").write_text(json.dumps(body))
    assert main(["verify", str(tmp_path / "privacy.json")]) == 0
    body["events"] = body["events"][:1]
    body["epsilon"] = Guarantee.from_json(body).epsilon
    (tmp_path / "privacy.json").write_text(json.dumps(body))
    assert main(["verify", str(tmp_path / "privacy.json")]) != 0


@pytest.mark.parametrize("clip", [1e-33, 1e-39])
def test_a_clip_whose_noise_float32_cannot_hold_is_refused(clip):
    """There the division by the unit overflows, every noise saturates alike, and the exact sum is left to see."""
    with pytest.raises(ValueError, match="clip"):
        query_plan(sampler=dpmcmc.SGLD(step_size=1.0, temperature=0.0), steps=1, clip=clip)


def test_a_sampler_whose_queries_change_with_its_step_size_is_charged_for_what_it_asks():
    class Late(SGFS):
        @property
        def queries(self):
            return ("gradient",) if self.unresolved else super().queries

    with pytest.raises(ValueError, match="changes what the sampler asks for"):
        query_plan(sampler=Late("auto", fisher="query"))


def test_a_public_matrix_is_a_copy():
    whole = np.eye(D + 1)
    part = whole[:D, :D]
    matrix = PublicMatrix(part)
    before = hash(matrix)
    whole[0, 0] = 7.0
    assert hash(matrix) == before
    assert part.flags.writeable
