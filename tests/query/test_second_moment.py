"""A second moment beside the gradient: what one minibatch costs, and which plans and queries are refused.

A second moment asked in one step of several: what is charged, what one record moves, when A is factorised.

One record moves a gradient and its second moment by at most what is charged: replay on neighbours.
"""

import itertools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.mechanisms import chain
from dpmcmc.privacy import FixedSize, Full, Guarantee, Poisson, Privacy, UnsupportedCombination
from dpmcmc.privacy.accounting import ADJACENCIES, TRACE_ACCOUNTANTS
from dpmcmc.privacy.accounting.charging import Schedule, charged_guarantee
from dpmcmc.privacy.accounting.cost_of_run import account
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.accounting.gaussian import gaussian_epsilon
from dpmcmc.privacy.calibration import closed_form
from dpmcmc.privacy.query import moment_sum
from dpmcmc.privacy.query.matrix_forms import DENSE
from dpmcmc.privacy.query.query import GradientQuery, PrivateGradient
from dpmcmc.privacy.query.second_moment import PrivateSecondMoment, SecondMoment, multiples
from dpmcmc.privacy.query.selection import selector
from dpmcmc.report.privacy_json import privacy_json
from dpmcmc.samplers import SGFS
from tests.pairs import slow_pairs
from tests.planted.benches import CLIP, REPLACEMENTS, plan, rows, with_first
from tests.replay import FAST, Replay
from tests.second_moments import (
    METRICS,
    D,
    Given,
    MomentReplay,
    charged,
    one_event_per_minibatch,
    queries_of,
    query_plan,
    worst_rows,
)


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
    monkeypatch.setattr(chain, "multiples", lambda second: (1.0, second.ratio / (1 + KAPPA)))
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


N, STEPS, EVERY = 12, 7, 3
ASKED = np.arange(STEPS) % EVERY == 0


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("sampling", [Full(), Poisson(40.0)])
def test_only_the_steps_that_ask_are_charged_for_it(own, sampling):
    made = query_plan(sampling, steps=25, chains=2, own=own, every=10, ratio=0.5, accountant="rdp")
    one_event_per_minibatch(made)
    assert sum(e.count for e in made.guarantee.events if e.noise_multiplier) == 2 * (25 + 3 * own)
    half = query_plan(sampling, steps=25, chains=2, own=own, ratio=0.5)
    assert made.noise.required_multiplier < half.noise.required_multiplier


def test_full_batches_cost_the_closed_form_of_both_kinds_of_step():
    """Gaussians compose by their squares: 3 steps of the pair, 22 of the gradient alone."""
    made = query_plan(steps=25, every=10, ratio=0.5, accountant="pld")
    z = float(made.noise_multipliers[0]) / (1 + KAPPA)
    pair = z * multiples(SecondMoment(0.5))[0]
    assert made.guarantee.epsilon == pytest.approx(
        gaussian_epsilon(2 * math.sqrt(3 / pair**2 + 22 / z**2), 1e-4), rel=1e-3
    )


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_noise_that_changes_is_charged_with_the_steps_that_ask(accountant):
    """The least noise falls on a step that asks; were steps sorted by their noise, it would fall on any."""
    floors = np.where(np.arange(20) % 5 == 0, 1.0, 3.0)
    queries = Schedule(floors, Full(), 400, multiples=(0.5,), every=5)
    expected = sorted([0.5 / (1 + KAPPA)] * 4 + [3.0 / (1 + KAPPA)] * 16)
    np.testing.assert_allclose(np.sort(queries.charged), expected)
    needed = dpmcmc.privacy.calibration.asked_noise(
        queries, dpmcmc.Privacy(epsilon=3.0, delta=1e-5, accountant=accountant)
    )
    z = np.maximum(floors, needed) / (1 + KAPPA)
    spent = gaussian_epsilon(2 * math.sqrt(np.sum(np.where(queries.asks, 2.0, 1.0) ** 2 / z**2)), 1e-5)
    assert spent <= 3.0 * (1 + 1e-6)
    if accountant == "pld":
        assert spent > 2.9


def test_a_part_of_a_run_asks_where_the_run_does():
    whole = Schedule(np.ones(25), Full(), 400, multiples=(0.5,), every=10)
    np.testing.assert_array_equal(np.concatenate([whole.part(0, 7).asks, whole.part(7, 25).asks]), whole.asks)
    np.testing.assert_array_equal(whole.part(7, 25).part(2, 5).asks, whole.asks[9:12])
    assert [e.count for e in whole.part(5, 12).queries] == [1, 6]


def replayed(**sampler):
    settings = {"step_size": 1.0, "fisher": "query", "noise_ratio": 1.0, "prior_precision": 1.0, "query_every": EVERY}
    made = plan(N, sampler=dpmcmc.SGFS(**settings | sampler), steps=STEPS)
    g = rows(N, N)
    first = {name: with_first(g, row) for name, row in REPLACEMENTS.items() if name in ("zero", "orthogonal", "nan")}
    first["aligned"] = with_first(g, 50.0 * CLIP * np.ones(3))
    replay = Replay(made, first["zero"], FAST)
    base = replay(first["zero"])
    return made, base, {name: replay(records, given=base) for name, records in first.items()}


def check_neighbours(made, base, others):
    """One record that comes moves each step's release by 1/z of its event at most, and is nearly as far as that."""
    events = {e.noise_multiplier: e.count for e in made.guarantee.events if e.noise_multiplier}
    z = float(made.noise_multipliers[0]) / (1 + KAPPA)
    charged = np.where(ASKED, z * multiples(made.sampler_run.second)[0], z)
    assert events == {value: int(np.sum(charged == value)) for value in np.unique(charged)}
    largest = np.zeros(STEPS)
    for other in others.values():
        gradient = np.linalg.norm(base.sum_of() - other.sum_of(), axis=-1)[0]
        released = np.isfinite(np.asarray(base.calls[0].released.releases[0].noise_std))[0]
        moment = np.linalg.norm(base.moment_of() - other.moment_of(), axis=-1)[0]
        noise = float(made.noise_multipliers[0])
        moved = np.hypot(gradient / noise, np.where(released, moment / (made.sampler_run.second.ratio * noise), 0.0))
        largest = np.maximum(largest, moved * charged)
    assert np.all(largest <= 1 + 1e-9)
    assert np.all(largest > 0.99)


def test_one_record_moves_each_step_by_at_most_what_that_step_is_charged():
    made, base, others = replayed()
    check_neighbours(made, base, others)
    released = base.calls[0].released.releases[0]
    np.testing.assert_array_equal(np.isfinite(released.noise_std)[0], ASKED)
    assert not np.any(np.asarray(released.value)[0, ~ASKED])
    assert np.all(np.any(np.asarray(released.value)[0, ASKED], axis=(1, 2)))


def test_a_query_in_a_step_that_is_not_charged_for_it_is_caught(monkeypatch):
    """Planted fault: every step asks."""
    monkeypatch.setattr(SecondMoment, "asks", lambda self, t: t == t)
    made, base, others = replayed(query_every=2 * EVERY)
    made = made.with_last(second=SecondMoment(1.0, every=EVERY))
    with pytest.raises(AssertionError):
        check_neighbours(made, base, others)


def test_a_charge_for_the_steps_between_alone_is_caught(monkeypatch):
    """Planted fault: the steps that ask are charged for a gradient."""
    monkeypatch.setattr(Schedule, "asks", property(lambda self: np.zeros(len(self.noise_multipliers), bool)))
    with pytest.raises(AssertionError):
        one_event_per_minibatch(query_plan(steps=25, every=10, ratio=0.5))


def test_a_saved_guarantee_that_leaves_out_the_second_moments_is_not_verified(tmp_path, capsys):
    made = query_plan(Poisson(40.0), steps=25, every=10, ratio=0.5, accountant="rdp")
    path = tmp_path / "privacy.json"
    path.write_text(json.dumps(privacy_json(made, made.guarantee)))
    assert main(["verify", str(path)]) == 0
    body = privacy_json(made, made.guarantee)
    asked, alone = (e for e in body["events"] if e["mechanism"] == "poisson_gaussian")
    asked["count"], alone["count"] = 1, 24
    body["epsilon"] = Guarantee.from_json(body).epsilon
    path.write_text(json.dumps(body))
    capsys.readouterr()
    assert main(["verify", str(path)]) != 0
    assert "where the run asked 3" in capsys.readouterr().err


@pytest.mark.parametrize("fisher", ["gradients", "query"])
def test_a_step_does_not_depend_on_its_own_estimate(fisher):
    """A_t is known before step t's release: another estimate in step t moves θ from step t + 1 on."""
    d, at = 4, 6
    sampler = dpmcmc.SGFS(16.0, 1.0, fisher, prior_precision=1.0, query_every=3).bind(1000)

    def run(moment):
        state, out, step = sampler.init(jax.random.key(0), jnp.ones(d)), [], jax.jit(sampler.step)
        for t in range(9):
            matrix = jnp.diag(jnp.arange(1.0, d + 1)) * (moment if t == at else 1.0)
            releases = (PrivateSecondMoment(matrix, jnp.float32(1.0)),) if fisher == "query" else ()
            gradient = PrivateGradient(jnp.full(d, 1.0 + t), jnp.float32(3.0), releases)
            state, info = step(jax.random.key(1), state, gradient, jnp.int32(t))
            out.append((np.asarray(state.position), float(info.curvature)))
        return out

    one, other = run(1.0), run(50.0)
    for (a, _), (b, _) in zip(one[: at + 1], other[: at + 1], strict=True):
        np.testing.assert_array_equal(a, b)
    if fisher == "query":
        assert other[at + 1][1] > one[at + 1][1]


CASES = {
    "dense, nested, several microbatches": (SecondMoment(0.5, "dense"), "identity", Poisson(120.0), True),
    "ill-conditioned metric": (SecondMoment(1.0, "dense"), "ill-conditioned", FixedSize(65), False),
    "own batch, metric": (SecondMoment(0.5, "dense", own_batch=True), "dense", Poisson(75.0), True),
    "diagonal, nested": (SecondMoment(0.5, "diagonal"), "identity", FixedSize(75), True),
    "diagonal metric": (SecondMoment(1.0, "dense"), "diagonal", Poisson(60.0), False),
    "dense metric, diagonal": (SecondMoment(1.0, "diagonal"), "dense", Full(), False),
    "own batch, diagonal": (SecondMoment(0.5, "diagonal", own_batch=True), "dense", FixedSize(75), False),
}


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_one_record_moves_the_released_pair_by_at_most_what_is_charged(name):
    second, metric, sampling, nested = CASES[name]
    replay = MomentReplay(second, METRICS[metric], sampling, nested)
    share = replay.excess()
    assert max(share.values()) <= 1 + 1e-9
    # Nearly attained by a record that is zeroed, so a smaller charge would fail. Replacement by the opposite record
    # moves the gradient alone, and by an orthogonal one the second moment by √2: together below 2.
    structured = second.structure == "diagonal" and not second.own_batch
    assert share["zeroed"] >= (0.8 if structured else 1 - 5e-4)
    assert share["replaced"] >= 0.5

    # Everything but the sums stays as it is: releases differ by the difference of the sums, up to float32.
    zero, base = worst_rows()["zero"], replay.release(worst_rows()["zero"])
    assert np.isfinite(base).all()
    for name, white in worst_rows().items():
        released = replay.release(white)
        moved = [a - b for a, b in zip(replay.sums(white), replay.sums(zero), strict=True)]
        if not any(np.any(part) for part in moved):
            np.testing.assert_array_equal(released, base)
        if metric == "identity" and name in ("aligned", "mixed"):
            step = (released - base)[:D] / (replay.clip * replay.scale)
            np.testing.assert_allclose(step, moved[0], atol=1e-6 * np.abs(base).max())
    for name in ("nan", "inf", "beyond float32 squares"):
        np.testing.assert_array_equal(replay.release(worst_rows()[name]), base)
    # A record that is not drawn changes nothing at all.
    if replay.left_out is not None:
        outside = [replay.release(white, replay.left_out) for white in worst_rows().values()]
        for other in outside[1:]:
            np.testing.assert_array_equal(other, outside[0])


@pytest.mark.parametrize("structure", ["dense", "diagonal"])
def test_replay_catches_a_second_moment_of_unclipped_rows(structure, monkeypatch):
    """Planted fault: not clipped below 2C."""
    original = moment_sum.clipped_sum

    def planted(form, rows, mask, clip, bits):
        return original(form, jax.tree.map(lambda leaf: leaf / 2, rows), mask, clip, bits + 2)

    monkeypatch.setattr(moment_sum, "clipped_sum", planted)
    assert MomentReplay(SecondMoment(1.0, structure)).excess()["zeroed"] > 1.3


@pytest.mark.optimised
def test_replay_catches_a_charge_of_the_gradient_alone():
    replay = MomentReplay(SecondMoment(0.5, "dense"))
    (right,) = charged(replay.second)
    assert replay.excess()["zeroed"] / right > 2


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "structure"), [("identity", "dense"), ("dense", "dense"), ("dense", "diagonal"), ("diagonal", "diagonal")]
)
def test_the_exact_second_moment_is_that_of_rows_clipped_in_the_metric(name, structure):
    metric = METRICS[name]
    replay = MomentReplay(SecondMoment(1.0, structure), metric, nested=True)
    gradient, moment = replay.sums(worst_rows()["aligned"])
    raw = np.asarray(replay.records(worst_rows()["aligned"], replay.at)["g"], np.float64)
    f = np.eye(D) if metric is None else DENSE.of(metric.operator(D))
    white = raw @ np.linalg.inv(np.asarray(f, np.float64)).T
    clipped = white * np.minimum(1 / replay.clip, 1 / np.linalg.norm(white, axis=1, keepdims=True))
    np.testing.assert_allclose(gradient, clipped.sum(0), atol=replay.n * 2.0**-20)
    outer = np.einsum("ni,nj->ij", clipped, clipped)
    row, column = np.triu_indices(D)
    unit = np.where(row == column, 1.0, math.sqrt(2)) * outer[row, column]
    expected = unit if structure == "dense" else (clipped**2).sum(0)
    np.testing.assert_allclose(moment, expected, atol=replay.n * 2.0**-20)


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True])
def test_a_minibatch_of_its_own_is_another_minibatch(own):
    """Record i has gradient e_i, so both sums show who took part."""
    n, b = 120, 30
    target = dpmcmc.targets.Custom(
        init=lambda key: jnp.zeros(n), log_prior=lambda p: 0.0 * jnp.sum(p), log_likelihood=lambda p, r: r["g"] @ p
    )
    select = selector(FixedSize(b), n, b)
    q = GradientQuery(target, n, float(b), 1.0, select, second=SecondMoment(1.0, "diagonal", own))
    draw = jax.jit(lambda k: q(jnp.zeros(n), {"g": jnp.eye(n)}, k, jax.random.key(0), jnp.float32(1e-3)))
    shared = []
    for seed in range(4):
        out = draw(jax.random.key(seed))
        first, second = np.abs(np.asarray(out.value)) > 2, np.asarray(out.releases[0].value) > 2
        assert first.sum() == second.sum() == b
        shared.append(float(np.mean(second[first])))
    if own:  # hypergeometric: mean 1/4, std .069 each
        assert abs(np.mean(shared) - b / n) < 5 * 0.069 / 2
    else:
        assert shared == [1.0] * 4


def separable(params, record):
    """Independent counts with log-rates x_j θ_j: each coordinate's gradient is a difference of two products."""
    return jnp.sum(record["y"] * (record["x"] * params) - jnp.exp(record["x"] * params))


@pytest.mark.optimised
@pytest.mark.parametrize("second", [None, SecondMoment(1.0, "dense")], ids=["gradient", "pair"])
def test_a_row_is_clipped_by_its_own_norm_however_it_is_compiled(second):
    """KAPPA's proof takes the norm of the numbers that are summed. Chains side by side, batches of 4."""
    n, d, chains, large = 4, 3, 2, 2.0**40
    target = dpmcmc.targets.Custom(
        init=lambda key: jnp.zeros(d), log_prior=lambda p: 0.0 * jnp.sum(p), log_likelihood=separable
    )
    q = GradientQuery(target, n, float(n), 1.0, None, second=second)
    sums = jax.jit(jax.vmap(lambda p, r: q.clipped_sum(p, r, jax.random.key(0)), in_axes=(0, None)))
    rng, worst = np.random.default_rng(0), 0.0
    for _ in range(60):
        params = np.tile((rng.uniform(0.3, 3, size=d) / large).astype(np.float32), (chains, 1))
        x = np.zeros((n, d), np.float32)
        x[0] = rng.uniform(1, 2, size=d) * large
        y = np.exp(x * params[0]) * (1 + rng.integers(-2, 3, size=(n, d)) * 2.0**-23)
        total = sums(params, {"x": x, "y": y.astype(np.float32)}).to_float64(1.0, q.bits)
        worst = max(worst, float(np.linalg.norm(total, axis=1).max()))
    assert worst <= 1 + KAPPA
