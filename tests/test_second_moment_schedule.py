"""A second moment asked in one step of several: what is charged, what one record moves, when A is factorised."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.privacy import Full, Guarantee, Poisson
from dpmcmc.privacy.accounting.charging import Schedule
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.accounting.gaussian import gaussian_epsilon
from dpmcmc.privacy.query.metric import PrivateSecondMoment, PublicMatrix, SecondMoment, multiples
from dpmcmc.privacy.query.query import GradientQuery, PrivateGradient
from dpmcmc.privacy.query.selection import selector
from dpmcmc.report.privacy_json import privacy_json
from dpmcmc.samplers.sgfs import renews
from tests.planted.benches import CLIP, REPLACEMENTS, plan, rows, with_first
from tests.replay import FAST, Replay
from tests.second_moments import one_event_per_minibatch, query_plan

N, STEPS, EVERY = 12, 7, 3
ASKED = np.arange(STEPS) % EVERY == 0


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("sampling", [Full(), Poisson(40.0)])
def test_only_the_steps_that_ask_are_charged_for_it(own, sampling):
    made = query_plan(sampling, steps=25, chains=2, own=own, every=10, ratio=0.5, accountant="rdp")
    one_event_per_minibatch(made)
    assert sum(e.count for e in made.guarantee.events if e.noise_multiplier) == 2 * (25 + 3 * own)
    assert made.required_multiplier < query_plan(sampling, steps=25, chains=2, own=own, ratio=0.5).required_multiplier


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
    charged = np.where(ASKED, z * multiples(made.second)[0], z)
    assert events == {value: int(np.sum(charged == value)) for value in np.unique(charged)}
    largest = np.zeros(STEPS)
    for other in others.values():
        gradient = np.linalg.norm(base.sum_of() - other.sum_of(), axis=-1)[0]
        released = np.isfinite(np.asarray(base.calls[0].released.releases[0].noise_std))[0]
        moment = np.linalg.norm(base.moment_of() - other.moment_of(), axis=-1)[0]
        noise = float(made.noise_multipliers[0])
        moved = np.hypot(gradient / noise, np.where(released, moment / (made.second.ratio * noise), 0.0))
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
    made = dataclasses.replace(made, second=SecondMoment(1.0, every=EVERY))
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


def test_factors_are_renewed_after_public_numbers_of_estimates():
    counts = np.flatnonzero(np.asarray(renews(jnp.arange(100), 1000)))
    np.testing.assert_array_equal(counts[:16], [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32])
    far = np.flatnonzero(np.asarray(renews(jnp.arange(20_000), 10**9)))
    assert np.max(far[1:] / far[:-1]) == 2
    assert np.max((far[1:] / far[:-1])[far[:-1] >= 4]) <= 1.25
    assert np.max(np.diff(np.flatnonzero(np.asarray(renews(jnp.arange(20_000), 128))))) == 128
    assert np.all(np.asarray(renews(jnp.arange(1, 50), 1)))


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


@pytest.mark.parametrize("asked", [{"clip": None}, {"metric": PublicMatrix(2.0)}, {"second": SecondMoment()}])
@pytest.mark.parametrize("blind", [False, True])
def test_rows_with_aligned_copies_reach_the_queries_that_differentiate_record_by_record(asked, blind):
    """109 columns have an aligned copy of the rows, which a batch leaves in place: it is no array of a batch."""
    target, n = dpmcmc.targets.LogisticRegression(num_features=109), 40
    records = target.prepared({"x": jnp.ones((n, 109)) / 109, "y": jnp.zeros(n, jnp.int32)})
    assert any(not hasattr(leaf, "shape") for leaf in records.values())
    select = selector(Poisson(8.0), n, 16)
    settings = {"clip": 1.0, "select": select, "label_blind": blind and asked != {"clip": None}} | asked
    query = GradientQuery(target, n, 8.0, **settings)
    keys = jax.random.split(jax.random.key(0))
    released = jax.eval_shape(query, jnp.zeros(109), records, *keys, jnp.float32(1.0))
    assert released.value.shape == (109,)
