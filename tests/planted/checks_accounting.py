"""What is stated, against closed forms and against what may not be stated at all."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import types

import numpy as np
from scipy import stats
from scipy.optimize import brentq

import dpmcmc
from dpmcmc.audit import audit
from dpmcmc.cli import sweep
from dpmcmc.cli.commands import main
from dpmcmc.engine.checked_records import checked
from dpmcmc.mechanisms import OPS, OutputPerturbation
from dpmcmc.privacy import (
    CalibrationError,
    Event,
    Full,
    Guarantee,
    Poisson,
    SecretKey,
    UnsupportedCombination,
    calibrate,
)
from dpmcmc.privacy.accounting import grouping, objective, rdp
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.cost_of_run import account
from dpmcmc.report.privacy_json import privacy_json
from dpmcmc.targets import LogisticRegression
from tests.mechanisms import test_objective_perturbation as exact_minimisers
from tests.planted import Scene, require
from tests.planted.benches import plan
from tests.targets import test_pair_deviations as pairs

DELTA = 1e-5
ADJACENCIES = (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Balle and Wang (2018), Theorem 8, written out again."""
    return stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε at δ of the same."""
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    return float(brentq(lambda e: gaussian_delta(mu, e) - delta, 0.0, mu * mu / 2 + 10 * mu + 1))


def full_batch_runs_cost_their_closed_form(scene: Scene) -> None:
    """Full batches are one Gaussian of μ = Δ√steps/z, Δ = 1 or 2, whatever was accounted before."""
    for accountant, adjacency in itertools.product(("rdp", "pld"), ADJACENCIES):
        sensitivity = 2.0 if adjacency == "replace_one" else 1.0
        found = account(
            7.0, steps=9, sampling=Full(), num_records=50, delta=DELTA, adjacency=adjacency, accountant=accountant
        ).epsilon
        exact = gaussian_epsilon(sensitivity * 3 / 7, DELTA)
        require(found >= exact, f"{accountant} says {found:.4g} under {adjacency}, and {exact:.4g} is true")
        require(found <= 1.5 * exact, f"{accountant} says {found:.4g} under {adjacency}, where {exact:.4g} would do")


def minibatch_runs_cost_what_an_independent_accountant_says(scene: Scene) -> None:
    """Under add_remove the PRV accountant's bounds; a replacement costs at least as much as a record that goes."""
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    z, rate, steps = 1.5, 0.1, 20
    found = {
        adjacency: account(
            z, steps=steps, sampling=Poisson(100.0), num_records=1000, delta=DELTA, adjacency=adjacency
        ).epsilon
        for adjacency in ADJACENCIES
    }
    prv = PRVAccountant(
        prvs=[PoissonSubsampledGaussianMechanism(noise_multiplier=z, sampling_probability=rate)],
        max_self_compositions=[steps], eps_error=0.02, delta_error=DELTA / 1000,
    )  # fmt: skip
    lower, _, upper = prv.compute_epsilon(DELTA, [steps])
    require(lower <= found["add_remove"], f"PLD says {found['add_remove']:.4g}, and the truth is above {lower:.4g}")
    require(found["add_remove"] <= 1.1 * upper, f"PLD says {found['add_remove']:.4g} where {upper:.4g} would do")
    require(found["replace_one"] > found["zero_out"], "a replaced record costs no more than one that goes")


def a_plan_meets_its_epsilon_whatever_was_planned_before(scene: Scene) -> None:
    """Noise that was calibrated for another promise never stands in for a plan's own."""
    before = os.environ.get("DPMCMC_CACHE")
    os.environ["DPMCMC_CACHE"] = str(scene.folder / "cache")
    try:
        for adjacency in ADJACENCIES:
            settings = {"epsilon": 1.0, "delta": DELTA, "adjacency": adjacency, "accountant": "pld"}
            own = calibrate(steps=9, sampling=Full(), num_records=50, **settings)
            exact = gaussian_epsilon((2.0 if adjacency == "replace_one" else 1.0) * 3 / own, DELTA)
            require(exact <= 1.0, f"noise calibrated for epsilon 1 under {adjacency} gives {exact:.4g}")
    except CalibrationError as error:
        require(False, f"the plan refuses its own noise: {error}")
    finally:
        os.environ.pop("DPMCMC_CACHE")
        if before is not None:
            os.environ["DPMCMC_CACHE"] = before


def saved_guarantees_are_verified(scene: Scene) -> None:
    """``dpmcmc verify`` accepts the privacy.json of every bench."""
    for bench in ("poisson", "second"):
        made = scene.see(bench).plan
        path = scene.folder / f"{bench}.json"
        path.write_text(json.dumps(privacy_json(made, made.guarantee)))
        with open(os.devnull, "w") as quiet, contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            code = main(["verify", str(path)])
        require(code == 0, f"{bench}: verify rejects the run's own privacy.json")


def configs_of_a_sweep_cost_all_together(scene: Scene) -> None:
    """Full-batch configs of z_i and T steps are one release of mu = 2 sqrt(sum T / z_i^2) under replace_one."""
    steps = 4
    multipliers = (10.0, 14.0, 30.0)
    terms = {"steps": steps, "sampling": Full(), "num_records": 1000, "delta": DELTA}
    plan = types.SimpleNamespace(unit="record")
    said, why = sweep.together([types.SimpleNamespace(plan=plan)] * 3, [account(z, **terms) for z in multipliers])
    exact = gaussian_epsilon(2 * math.sqrt(sum(steps / z**2 for z in multipliers)), DELTA)
    require(said is not None and said.epsilon >= exact * (1 - 1e-9), f"{said or why}, and all cost {exact:.6g}")


def guarantees_of_different_adjacency_do_not_compose(scene: Scene) -> None:
    """A promise about a replaced record and one about an absent record have no common unit."""
    one, other = (
        account(5.0, steps=3, sampling=Full(), num_records=50, delta=DELTA, adjacency=adjacency)
        for adjacency in (Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE)
    )
    for first, second in ((one, other), (other, one)):
        with contextlib.suppress(UnsupportedCombination):
            said = first.compose(second)
            require(False, f"{first.adjacency} and {second.adjacency} compose to {said}")


def a_group_costs_its_closed_form(scene: Scene) -> None:
    """k records move a Gaussian release k times as far."""
    single = account(4.0, steps=1, sampling=Full(), num_records=50, delta=DELTA, adjacency="zero_out")
    for k in (2, 3, 5):
        exact, found = gaussian_epsilon(k / 4.0, DELTA), single.for_group(k).epsilon
        require(found >= exact, f"{k} records are said to cost {found:.4g}, and cost {exact:.4g}")


def a_selection_keeps_its_promise_for_two_records(scene: Scene) -> None:
    """Candidates that are (ε, δ)-DP and nothing else show a mark with two records, and never without."""
    guarantee, seen = pairs.ladders_at_work(30, 9, 0.5, 0.03)
    said = guarantee.for_group(2, 0.8 * seen)
    require(math.isinf(said.epsilon), f"the mark is shown with probability {seen:.4g} or never, and {said} is said")


def minimisers_stay_within_their_profile(scene: Scene) -> None:
    """The exact density of a perturbed minimiser, by quadrature, against the profile that is charged."""
    regularisation, sigma = 0.05, 2.0
    epsilon = 0.2 * math.log1p(0.25 / regularisation)
    true = exact_minimisers.worst_added_record(regularisation, sigma, epsilon)
    bound = objective.delta(exact_minimisers.event(sigma, regularisation), Adjacency.ADD_REMOVE, epsilon)
    require(true <= bound, f"δ of the minimiser is {true:.4g} at ε = {epsilon:.3g}, charged is {bound:.4g}")


def draws_that_are_not_exact_are_charged(scene: Scene) -> None:
    """K draws within τ of the posterior cost K(1 + e^ε)τ of δ beside what exact draws cost."""
    target = LogisticRegression(num_features=2, row_bound=1.0)
    tau, draws = 1e-8, 3
    made = OPS(total_variation=tau, draws=draws).plan(target, num_records=100, epsilon=1.0, delta=DELTA)
    epsilon = made.guarantee.epsilon
    spent = gaussian_delta(made.settings["mu"], epsilon) + draws * (1 + math.exp(epsilon)) * tau
    require(spent <= DELTA, f"draws within {tau:g} cost δ = {spent:.6g}, and {DELTA:g} is stated")
    curve = gaussian_delta(made.settings["mu"], 0.5) + draws * (1 + math.exp(0.5)) * tau
    require(made.guarantee.delta_at(0.5) >= curve * (1 - 1e-6), "the curve δ(ε) leaves out that draws are not exact")


def rows_beyond_their_public_bound_are_refused(scene: Scene) -> None:
    """A guarantee that rests on ‖x‖ <= R is given for no other records."""
    target = LogisticRegression(num_features=2, row_bound=1.0)
    made = OutputPerturbation().plan(target, num_records=20, epsilon=1.0, delta=1e-3)
    x = np.full((20, 2), 0.5)
    x[3] = 4.0
    with contextlib.suppress(ValueError):
        dpmcmc.sample(made, {"x": x, "y": np.zeros(20, np.int32)}, key=0)
        require(False, "a row of norm 5.7 was taken where 1 is the public bound")
    rounded = np.full((20, 2), math.sqrt(0.5) * (1 + 5e-6))
    kept = checked({"x": rounded, "y": np.zeros(20, np.int32)}, made.target, 20, reads_sums=False)["x"]
    require(np.all(np.linalg.norm(kept, axis=1) <= 1.0), "what rounding left beyond the bound stays beyond it")


def two_secret_keys_are_different(scene: Scene) -> None:
    """Keys come from the operating system, and one serves one run."""
    from jax import random

    keys = [SecretKey() for _ in range(4)]
    kinds = (False, False, True, True)  # of runs without privacy, and of private ones
    words = [
        bytes(np.asarray(random.key_data(key)))
        for secret, private in zip(keys, kinds, strict=True)
        for key in secret.streams(private)
    ]
    require(len(set(words)) == len(words), "two secret keys, or two of their streams, are the same")
    with contextlib.suppress(ValueError):
        keys[0].streams()
        require(False, "a secret key was given out twice")


def an_audit_finds_no_more_than_is_claimed(scene: Scene) -> None:
    """A lower bound on ε of real runs on worst-case neighbours stays below the claim, and not far below."""
    made = plan(20, steps=2, privacy={"epsilon": 3.0, "delta": DELTA, "accountant": "pld"})
    found = audit(made, runs=10_000, confidence=0.95, seed=0)
    require(not found.violated, f"claimed ε {found.claimed:.3g}, which runs contradict: {found.notes[0]}")
    require(found.lower_bound > 0.05 * found.claimed, f"the audit has no power: {found.lower_bound:.3g}")


def one_event(mechanism: str, z: float) -> Guarantee:
    """Of a single release under zero_out, for ledgers."""
    event = Event(mechanism, z, 1.0, 1)
    return Guarantee.from_events((event,), delta=DELTA, adjacency="zero_out", accountant="pld")


def many_kinds_in_groups_cost_at_least_what_each_does(scene: Scene) -> None:
    """Queries that are charged in groups have no less Rényi divergence than one by one, at any order."""
    rng = np.random.default_rng(0)
    rates = rng.choice([0.01, 0.011, 0.05], 80)
    one_by_one = [Event("poisson_gaussian", z, q, 1) for z, q in zip(rng.uniform(0.8, 4, 80), rates, strict=True)]
    orders = (1.5, 8.0)
    for adjacency in ADJACENCIES:
        costs = [
            sum(e.count * rdp.one_step(e, adjacency, orders) for e in events)
            for events in (one_by_one, grouping.grouped(one_by_one))
        ]
        require(bool(np.all(costs[1] >= costs[0])), f"{adjacency}: groups are charged less than their members cost")
