"""Audits of real plans: below the claim where the code is right, above it where a bug is planted."""

import dataclasses
import json
import re
import types

import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc import config
from dpmcmc import data as data_room
from dpmcmc.audit import AuditReport, Neighbours, audit, scores, shortened
from dpmcmc.audit.neighbours import probe, strongest
from dpmcmc.cli import audit as face
from dpmcmc.cli.commands import main
from dpmcmc.config import file as config_file
from dpmcmc.mechanisms import (
    OPS,
    CertifiedOPS,
    Hybrid,
    NoiseAware,
    ObjectivePerturbation,
    OutputPerturbation,
    SufficientStatistics,
)
from dpmcmc.privacy import UnsupportedCombination
from dpmcmc.privacy.accounting.cost_of_run import account
from dpmcmc.privacy.query import exact_sums
from dpmcmc.samplers import SAMPLERS
from dpmcmc.storage.compiled_programs import keep_compiled_programs
from dpmcmc.targets import LinearRegression, LogisticRegression
from tests.planted import faults_randomness

N, BATCH, DELTA = 200, 20, 1e-5
LOGISTIC = LogisticRegression(num_features=2, row_bound=1.0)
LINEAR = LinearRegression(num_features=2, row_bound=1.0, label_bound=1.0)


@pytest.fixture(scope="module", autouse=True)
def _compiled_once():
    # An audit runs one program on two data sets; compiling takes longer than running it.
    keep_compiled_programs()


def planned(sampler=None, *, sampling=None, steps=1, chains=1, accountant="pld", **promise):
    promise = {"epsilon": 2.0, "delta": DELTA, "adjacency": "replace_one", "accountant": accountant} | promise
    return dpmcmc.plan(
        LOGISTIC,
        num_records=N,
        sampler=dpmcmc.SGLD(step_size=1e4) if sampler is None else sampler,
        sampling=dpmcmc.Full() if sampling is None else sampling,
        steps=steps,
        chains=chains,
        privacy=dpmcmc.Privacy(**promise),
    )


def at_epsilon_two(mechanism, target=LOGISTIC, adjacency="replace_one"):
    return mechanism.plan(target, num_records=N, epsilon=2.0, delta=DELTA, adjacency=adjacency)


# --- power ----------------------------------------------------------------------------------------------------------


def test_many_runs_show_a_part_of_epsilon_and_no_more():
    report = audit(planned(epsilon=6.0), runs=2000, seed=1)
    assert 0.15 * 6.0 < report.lower_bound <= 6.0
    assert report.verdict == "consistent"
    claimed, shown = (float(text) for text in re.findall(r"(0\.\d+)", report.notes[0]))
    # One full-batch step attains its guarantee: the claim is the truth.
    assert 0.7 * claimed < shown <= claimed


def test_many_canaries_in_one_run_show_epsilon():
    report = audit(planned(epsilon=6.0), method="one_run", canaries=200, seed=1)
    assert 0.5 < report.lower_bound <= 6.0
    assert sum(report.runs) == 200


# --- what is right is not accused -----------------------------------------------------------------------------------

SAMPLERS_AUDITED = {
    "sgld": dpmcmc.SGLD(step_size=0.5),
    "sghmc": dpmcmc.SGHMC(step_size=0.5),
    "sgnht": dpmcmc.SGNHT(step_size=0.05),
    "sgfs": dpmcmc.SGFS(step_size=0.5),
    "optax": dpmcmc.samplers.Optax("adam", learning_rate=0.5),
    "sgfs_query": dpmcmc.SGFS(step_size=0.5, fisher="query", prior_precision=1.0),
    "sgfs_own_batch": dpmcmc.SGFS(step_size=0.5, fisher="query", prior_precision=1.0, own_batch=True),
    "sgfs_metric": dpmcmc.SGFS(step_size=0.5, metric=((2.0, 0.5), (0.0, 1.0))),
}
SAMPLINGS = {"poisson": dpmcmc.Poisson(BATCH), "fixed_size": dpmcmc.FixedSize(BATCH), "full": dpmcmc.Full()}


def test_every_registered_sampler_is_audited():
    assert {name.split("_")[0] for name in SAMPLERS_AUDITED} == set(SAMPLERS)


#: Every sampler on minibatches, and every kind of batch and of adjacency. The sampler that asks most has another
#: adjacency too.
COMBINATIONS = [
    *((name, "poisson", "replace_one") for name in SAMPLERS_AUDITED),
    ("sgfs_own_batch", "poisson", "zero_out"),
    ("sgld", "poisson", "add_remove"),
    ("sgld", "fixed_size", "replace_one"),
    ("sgld", "full", "zero_out"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "sampling", "adjacency"), COMBINATIONS)
def test_every_sampler_stays_below_its_claim(name, sampling, adjacency):
    accountant = "rdp" if sampling == "fixed_size" else "pld"
    sampler, batches = SAMPLERS_AUDITED[name], SAMPLINGS[sampling]
    plan = planned(sampler, sampling=batches, steps=5, adjacency=adjacency, accountant=accountant)
    report = audit(plan, runs=2000, confidence=0.999, seed=2)
    assert not report.violated, str(report)


MECHANISMS_AUDITED = {
    "ops_linear": (OPS(radius=3.0), LINEAR),
    "ops_gdp": (OPS(), LOGISTIC),
    "ops_range": (OPS(form="range", radius=2.0), LOGISTIC),
    "certified_ops": (CertifiedOPS(steps=50), LOGISTIC),
    "output_perturbation": (OutputPerturbation(), LOGISTIC),
    "objective_perturbation": (ObjectivePerturbation(), LOGISTIC),
    "sufficient_statistics": (SufficientStatistics(), LINEAR),
    "noise_aware": (NoiseAware(draws=1, steps=4), LOGISTIC),
}


def check_mechanism(name):
    report = audit(at_epsilon_two(*MECHANISMS_AUDITED[name]), runs=300, seed=3)
    assert not report.violated, str(report)


def test_a_one_shot_method_stays_below_its_claim():
    check_mechanism("ops_linear")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MECHANISMS_AUDITED)
def test_every_one_shot_method_stays_below_its_claim(name):
    check_mechanism(name)


def test_an_estimate_shows_a_part_of_epsilon_and_no_more():
    plan = SufficientStatistics().plan(LINEAR, num_records=N, epsilon=8.0, delta=DELTA)
    report = audit(plan, runs=500, seed=1, confidence=0.95)
    assert 0.05 * 8.0 < report.lower_bound <= 8.0


# --- planted bugs ---------------------------------------------------------------------------------------------------


def accused(plan, **options):
    return audit(plan, **{"runs": 500, "seed": 5, "confidence": 0.95} | options).violated


def test_halved_noise_is_caught(monkeypatch):
    plan = planned()
    assert not accused(plan)
    faults_randomness.scaled_noise(monkeypatch, 0.5)
    assert accused(plan)


def test_a_missing_clip_is_caught(monkeypatch):
    plan = planned()
    loose = lambda norm, mask, clip: jnp.where(mask, 1 / exact_sums.float32(clip), 0.0)  # noqa: E731
    monkeypatch.setattr(exact_sums, "unit_factor", loose)
    assert accused(plan)


@pytest.mark.slow
def test_batches_of_a_fixed_size_accounted_as_poisson_are_caught():
    steps, z = 5, 0.7
    fixed = planned(sampling=dpmcmc.FixedSize(BATCH), steps=steps, accountant="rdp")
    claim = account(z, steps=steps, sampling=dpmcmc.Poisson(BATCH), num_records=N, delta=DELTA)
    noise = np.full(steps, z * N / BATCH * fixed.privacy.clip, np.float32)
    doctored = fixed.with_last(noise=dataclasses.replace(fixed.run.noise, noise_std=noise, guarantee=claim))
    report = audit(doctored, runs=10_000, seed=5)
    # At its own δ the claim survives; at ε = 0 it does not.
    assert report.lower_bound < claim.epsilon
    assert report.violated


def test_a_mechanism_with_a_louder_likelihood_is_caught():
    plan = at_epsilon_two(*MECHANISMS_AUDITED["ops_linear"])
    louder = plan.settings | {"temper": 16 * plan.settings["temper"]}
    assert accused(plan.with_last(settings=louder))


# --- what is audited ------------------------------------------------------------------------------------------------


def test_the_audit_drives_the_plan_s_own_numbers(monkeypatch):
    plan, seen = planned(sampling=dpmcmc.Poisson(BATCH), steps=3, chains=2), []

    def watch(audited, data, *_):
        seen.append((audited, data))
        score = np.random.default_rng(len(seen)).normal(size=(audited.chains, 1, 1))
        return types.SimpleNamespace(info=types.SimpleNamespace(score=score))

    monkeypatch.setattr(scores, "released", watch)
    audit(plan, runs=30, seed=6)
    (inside, data), (_, other) = seen
    assert (inside.noise.slots, inside.noise.bits) == (plan.noise.slots, plan.noise.bits)
    for name in ("noise_std", "sampling", "num_records", "steps", "privacy"):
        assert getattr(inside, name) is getattr(plan, name) or getattr(inside, name) == getattr(plan, name)
    assert inside.chains == 30 * plan.chains
    # Neighbours: one row differs, and the others are no one's.
    assert np.sum(np.any(data["x"] != other["x"], axis=1)) == 1
    assert not data["x"][1:].any()


def test_neighbours_differ_as_the_adjacency_says():
    for adjacency, moved in (("replace_one", 2), ("zero_out", 1), ("add_remove", 1)):
        pair = probe(planned(adjacency=adjacency))[1]
        signs = np.sign(pair.inside["x"][0]) - np.sign(pair.outside["x"][0])
        assert np.max(signs) == moved


def test_rows_of_the_strongest_pair_keep_their_bound_and_pull_apart():
    plan = at_epsilon_two(OutputPerturbation())
    pair = strongest(plan)
    for side in (pair.inside, pair.outside):
        assert 0.999 < np.linalg.norm(side["x"][0]) <= 1.0
    assert pair.inside["y"] != pair.outside["y"]


def test_a_shortened_plan_is_charged_for_its_own_steps_at_their_own_noise():
    plan = planned(sampling=dpmcmc.Poisson(BATCH), steps=20)
    short = shortened(plan, 4)
    z = plan.noise_multipliers[:4]
    again = account(z, steps=4, sampling=plan.sampling, num_records=N, delta=DELTA)
    assert short.guarantee.epsilon == pytest.approx(again.epsilon)
    np.testing.assert_array_equal(short.noise_std, plan.noise_std[:4])
    with pytest.raises(ValueError, match="steps: must lie in"):
        shortened(plan, 21)


def test_a_shortened_plan_keeps_the_deviation_of_its_steps():
    plan = dpmcmc.plan(
        LOGISTIC,
        num_records=N,
        sampler=dpmcmc.SGLD(step_size=1.0),
        sampling=dpmcmc.Full(),
        steps=6,
        privacy=dpmcmc.Privacy(epsilon=2.0, delta=DELTA),
    )
    counts = {
        p.steps: sum(e.count for e in p.guarantee.events if e.mechanism == "approximate_draw")
        for p in (plan, shortened(plan, 4))
    }
    assert counts == {6: 6 * 2, 4: 4 * 2}


@pytest.mark.slow
def test_a_seed_reproduces_and_entropy_does_not():
    plan = planned(epsilon=8.0)
    same = [audit(plan, runs=200, seed=7).notes for _ in range(2)]
    assert same[0] == same[1]
    fresh = {audit(plan, runs=200).notes for _ in range(2)}
    assert len(fresh) > 1


def test_your_own_neighbours_are_taken_on_the_plan_s_own_target():
    zero = np.zeros(2, np.float32)
    row = {"x": zero[None], "y": np.ones(1, np.int32)}
    same = Neighbours(row, row, {"x": zero, "y": np.int32(0)}, N)
    report = audit(planned(), neighbours=same, runs=50)
    assert report.lower_bound == 0
    assert "on LogisticRegression" in report.subject


def test_what_cannot_be_audited_is_refused_in_a_sentence():
    plan = planned()
    hybrid = at_epsilon_two(Hybrid(start=OPS(), sampler=dpmcmc.SGLD(step_size=1.0), steps=5))
    nothing = dpmcmc.plan(LOGISTIC, num_records=N, sampler=dpmcmc.SGLD(step_size=1.0), steps=1, privacy=None)
    for wrong, options, said in (
        (nothing, {}, "nothing to audit"),
        (plan, {"method": "guess"}, "method must be one of"),
        (plan, {"confidence": 0.4}, "confidence must be"),
        (plan, {"runs": 2}, "runs must be"),
        (plan, {"method": "one_run", "runs": 100}, "runs: method one_run"),
        (plan, {"method": "one_run", "canaries": N + 1}, "canaries: must lie"),
        (at_epsilon_two(OutputPerturbation()), {"steps": 1}, "steps: only a sampler"),
        (hybrid, {}, "private starts"),
    ):
        with pytest.raises(ValueError, match=said):
            audit(wrong, **options)
    strange = types.SimpleNamespace(target=types.SimpleNamespace(num_features=2), num_records=N)
    with pytest.raises(UnsupportedCombination, match="strongest is not known"):
        strongest(strange)


# --- command line ---------------------------------------------------------------------------------------------------

SMALL = ["--set", "run.passes=null", "--set", "run.steps=2", "--set", "sampling={scheme: full}", "--runs", "50"]
ADULT = "configs/adult_prediction.yaml"


def test_the_command_prints_a_consistent_verdict_and_reads_no_record(capsys, monkeypatch):
    def forbidden(*_, **__):
        raise AssertionError("a record was read")

    monkeypatch.setattr(data_room, "load", forbidden)
    assert main(["audit", ADULT, *SMALL, "--seed", "1", "--set", "run.thin=1"]) == 0
    out = capsys.readouterr()
    for word in ("claimed", "bound", "synthetic records only", "consistent", "total variation"):
        assert word in out.out
    assert "50 runs" in out.err


def test_the_command_says_violated_with_exit_code_one(capsys, monkeypatch):
    report = AuditReport(
        "s", 1.0, DELTA, "replace_one", "trace", "clopper_pearson", 2.00009, 0.95, (9, 9), 0.1, True, ("n",)
    )
    monkeypatch.setattr(face, "audit", lambda *_, **__: report)
    assert main(["audit", ADULT]) == 1
    out = capsys.readouterr()
    assert "VIOLATED" in out.out
    # A lower bound is never rounded up.
    assert "epsilon 2 at" in out.out
    assert "do not rely on it" in out.err
    assert main(["audit", ADULT, "--json"]) == 1
    body = json.loads(capsys.readouterr().out)
    assert (body["verdict"], body["violated"], body["runs"]) == ("VIOLATED", True, [9, 9])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set", "privacy=null"], "privacy is null"),
        (["--set", "privacy.insecure_noise_seed=1"], "insecure_noise_seed"),
        (["--steps", "100000"], "--steps: must lie in"),
        (["--records", "10"], "--records: a sampler"),
        (["--method", "one_run", "--runs", "9"], "--runs: method one_run"),
    ],
)
def test_user_errors_are_one_sentence_with_exit_code_two(capsys, options, said):
    assert main(["audit", ADULT, *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


@pytest.mark.slow
def test_a_free_plan_is_audited_against_what_it_reports():
    options = ["privacy.calibrator=free", "privacy.epsilon=null", "run.passes=null", "run.steps=2", "run.thin=1"]
    plan = config.make_plan(config_file.load(ADULT, options))
    report = audit(plan, runs=50, seed=1)
    assert report.claimed == plan.guarantee.epsilon
    assert report.verdict == "consistent"
