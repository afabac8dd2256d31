"""What the query of a run does, seen by replay: sensitivity, normaliser, noise, keys, batches, charge."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import numpy as np
from scipy import stats

from dpmcmc.errors import DataError, UnsupportedCombination
from dpmcmc.privacy import Poisson
from dpmcmc.privacy.accounting import DEVIATIONS, overflow_probability
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.accounting.noise_tables import LEVELS
from dpmcmc.privacy.accounting.sampling import expected_batch
from dpmcmc.privacy.query import query, randomness
from dpmcmc.privacy.query.exact_sums import FixedPoint, fraction_bits
from dpmcmc.targets import LinearRegression, LogisticRegression, PerOwner
from dpmcmc.targets.base import check_bound, check_rows
from tests import absent_people
from tests.planted import Observed, Scene, require
from tests.planted.benches import D
from tests.replay import FAST, Replay, same_bits, share

#: Standard errors that chance may explain: 2e-9 a comparison.
FAR = 6.0
#: Least p-value of a Kolmogorov–Smirnov test.
_UNLIKELY = 1e-7


# Sensitivity, and nothing read past the query.


def _stays_within(bench: str) -> Callable[[Scene], None]:
    def check(scene: Scene) -> None:
        seen = scene.see(bench)
        allowed = 2.0 if seen.plan.guarantee.adjacency == "replace_one" else 1.0
        largest = 0.0
        for name, other in seen.neighbours.items():
            for i in range(len(seen.trace.calls)):
                moved = share(seen.trace, other, i)
                limit = 1.0 if name == "zero" else allowed
                require(
                    np.all(moved <= limit), f"{bench}: record {name} moves the sum by {moved.max():.4g}, not {limit:g}"
                )
                largest = max(largest, float(moved.max()) / limit)
        require(largest > 0.9, f"{bench}: no record moves the sum by more than {largest:.2g} of what it may")

    return check


def neighbours_stay_within_the_sensitivity(scene: Scene) -> None:
    """One record, whatever it holds, moves the exact sum of a minibatch by its sensitivity at most."""
    _stays_within("poisson")(scene)


def integer_features_stay_within_the_sensitivity(scene: Scene) -> None:
    """A record of pixels, or of numbers whose squares are beyond 32 bits, goes into a linear model's sum clipped."""
    for value, dtype in ((16, np.uint8), (1 << 16, np.int32)):
        data = {"x": np.full((1, 64), value, dtype), "y": np.zeros(1, np.int32)}
        for model in (LogisticRegression(num_features=64), LinearRegression(num_features=64)):
            for records in (data, model.prepared(data)):
                total = model.clipped_gradient_sum(np.full(64, 0.01, np.float32), records, np.ones(1, bool), 1.0)
                norm = float(np.linalg.norm(total.to_float64(1.0, 21)))
                require(0.9 < norm <= 1 + KAPPA, f"{dtype.__name__} features are clipped to norm {norm:.4g}, not to 1")


def the_score_is_unbiased_at_the_truth(scene: Scene) -> None:
    """A label-blind sum has mean zero over labels that the parameter itself made, however small the clip is."""
    rng = np.random.default_rng(0)
    x = np.abs(rng.normal(size=(100_000, D))).astype(np.float32)
    truth = np.ones(D, np.float32)
    y = (rng.random(len(x)) < 1 / (1 + np.exp(-x @ truth))).astype(np.float32)
    model, every = LogisticRegression(num_features=D), np.ones(len(x), bool)
    sums = model.clipped_gradient_sum(truth, {"x": x, "y": y}, every, 0.1, label_blind=True).to_float64(0.1, 21)
    # No record has a variance above C².
    off = float(np.abs(sums).max()) / (0.1 * math.sqrt(len(x)))
    require(off < FAR, f"the mean of the clipped score is {off:.3g} standard errors from zero at the truth")


def owners_stay_within_the_sensitivity(scene: Scene) -> None:
    """All rows of one owner together move the exact sum by the sensitivity at most."""
    _stays_within("owners")(scene)


def the_rest_is_the_same(seen: Observed, bench: str) -> None:
    """Raise Caught where anything but the exact sums depends on records, or on keys of batches and noise."""
    for name, other in seen.neighbours.items():
        for ours, theirs in zip(seen.trace.calls, other.calls, strict=True):
            for part in ("params", "batch_key", "noise_key", "noise_std", "selections"):
                same = same_bits(getattr(ours, part), getattr(theirs, part))
                require(same, f"{bench}: {part} depends on the records ({name})")
        same = same_bits((seen.trace.states, seen.trace.infos), (other.states, other.infos))
        require(same, f"{bench}: states or infos differ where the releases are the same ({name})")
    same = same_bits((seen.trace.states, seen.trace.infos), (seen.elsewhere.states, seen.elsewhere.infos))
    require(same, f"{bench}: states or infos tell more of records or keys than the releases do")


def a_step_is_a_function_of_the_release(scene: Scene) -> None:
    """Other records and other batch and noise keys change nothing where the query releases the same."""
    the_rest_is_the_same(scene.see("poisson"), "poisson")


def a_thermostat_is_a_function_of_the_release(scene: Scene) -> None:
    """Likewise for a sampler that measures its own temperature."""
    the_rest_is_the_same(scene.see("thermostat"), "thermostat")


def a_preconditioner_is_a_function_of_the_release(scene: Scene) -> None:
    """Likewise for a sampler that estimates Fisher information."""
    the_rest_is_the_same(scene.see("second"), "second")


# What is released: prior + (N/b)(sum + noise).


def _chosen(seen: Observed, values: np.ndarray) -> np.ndarray:
    """Σ over the selected records of their (N, D) values, (chains, steps, D)."""
    selections = seen.trace.calls[0].selections
    if not selections:
        return np.broadcast_to(values.sum(0), (seen.plan.chains, seen.plan.steps, D))
    indices, mask = selections[0]
    return np.sum(values[indices] * mask[..., None], axis=2)


def the_sum_is_that_of_the_selected_clipped_records(scene: Scene) -> None:
    """Each selected record's own gradient is clipped by itself, the prior's is not among them, padding is not."""
    seen = scene.see("poisson")
    wanted = _chosen(seen, seen.bench.reference(seen.bench.records))
    off = np.abs(seen.trace.sum_of() - wanted).max()
    grid = seen.plan.num_records * (2.0 ** -seen.trace.queries[0].bits + KAPPA)
    require(off <= grid, f"the sum is off by {off:.3g} of the clip norm")


def _noise(seen: Observed) -> np.ndarray:
    """What is released beyond prior and sum, over the s_t that the plan states, (chains, steps, D) float64."""
    plan, call = seen.plan, seen.trace.calls[0]
    scale = plan.num_records / expected_batch(plan.sampling, plan.num_records)
    leaves = [leaf.reshape(*leaf.shape[:2], -1) for leaf in jax.tree.leaves(call.released.value)]
    value = np.concatenate(leaves, axis=-1).astype(np.float64)
    signal = call.params + scale * plan.privacy.clip * seen.trace.sum_of()
    return (value - signal) / plan.noise_std.astype(np.float64)[None, :, None]


def _is_standard_noise(noise: np.ndarray, what: str) -> None:
    """Independent standard normals: columns are different numbers of a step, rows are steps."""
    n = noise.size
    off = (np.mean(noise**2) - 1) / math.sqrt(2 / n)
    require(abs(off) < FAR, f"{what}: variance {np.mean(noise**2):.4g} of what is stated")
    require(abs(np.mean(noise)) < FAR / math.sqrt(n), f"{what}: mean {np.mean(noise):.3g}")
    p = stats.kstest(np.ravel(noise), "norm").pvalue
    require(p > _UNLIKELY, f"{what}: not Gaussian (p = {p:.1g})")
    for view in (noise, noise**2):  # a shared radius shows in sizes, not in signs
        centred = (view - view.mean(0)) / view.std(0)
        across = centred.T @ centred / len(centred) - np.eye(noise.shape[1])
        require(np.abs(across).max() < FAR / math.sqrt(len(noise)), f"{what}: two numbers of a step share their noise")
        after = np.mean(centred[1:] * centred[:-1])
        require(abs(after) < FAR / math.sqrt(n), f"{what}: a step shares its noise with the one before")


def released_noise_is_as_stated(scene: Scene) -> None:
    """A release less −∇log prior + (N/b)Σ is Gaussian, of std s_t, independent between leaves and steps."""
    seen = scene.see("poisson")
    noise = _noise(seen)
    _is_standard_noise(noise.reshape(-1, D), "gradient")
    for name, part in (("position", seen.trace.calls[0].params), ("sum", seen.trace.sum_of())):
        spread = np.ravel(part - part.mean())
        told = np.mean(np.ravel(noise) * spread) / spread.std()
        require(abs(told) < FAR / math.sqrt(noise.size), f"gradient: noise goes with the {name} ({told:.3g})")


def the_release_is_prior_and_normalised_sum(scene: Scene) -> None:
    """Where there is hardly any noise, what is released is −∇log prior + (N/b)Σ, b the public expected batch size."""
    noise = _noise(scene.see("quiet"))
    worst = float(np.abs(noise).max())
    require(worst < FAR, f"a release is {worst:.3g} stated stds away from prior and normalised sum")


def both_noises_are_as_stated(scene: Scene) -> None:
    """Gradient and second moment carry noise of their own, each of the std that its event claims."""
    seen = scene.see("second")
    plan, release = seen.plan, seen.trace.calls[0].released.releases[0]
    row, column = np.triu_indices(D)
    unit = np.where(row == column, 1.0, math.sqrt(2))
    scale = plan.num_records / expected_batch(plan.sampling, plan.num_records) * plan.privacy.clip**2
    value = release.value.astype(np.float64)[..., row, column] * unit
    moment = (value - scale * seen.trace.moment_of()) / (
        plan.sampler_run.second.ratio * plan.privacy.clip * plan.noise_std.astype(np.float64)[None, :, None]
    )
    both = np.concatenate([_noise(seen), moment], axis=-1)
    _is_standard_noise(both.reshape(-1, both.shape[-1]), "gradient and second moment")


def noise_reaches_its_tails(scene: Scene) -> None:
    """The smallest uniform that noise is made from lies 9.4σ out."""
    with mock.patch.object(jax.random, "bits", lambda key, shape, dtype: np.zeros(shape, dtype)):
        farthest = float(np.abs(np.asarray(randomness.normal(jax.random.key(0), (2,)))).max())
    require(farthest > 9.3, f"noise ends at {farthest:.2f}σ")


def noise_hides_the_low_bits_of_the_sum(scene: Scene) -> None:
    """At z = 60, where a float32 of noise would be even in grid steps, the release is odd half of the time."""
    draws = 20_000
    zeros = np.zeros(draws, np.int32)
    z = np.float32(60.0 * 2.0 ** fraction_bits(60.0))
    noise = query.drawn_noise(jax.random.key(5), zeros, z, 1.0, LEVELS[-1])
    total = FixedPoint(zeros, zeros + 1) + noise
    odd = float(np.mean(np.asarray(total.low) % 2))
    require(abs(odd - 0.5) < FAR * 0.5 / math.sqrt(draws), f"an odd sum is released odd {100 * odd:.0f} % of the time")


# Keys.


def no_key_is_used_twice(scene: Scene) -> None:
    """Minibatch and noise keys of all chains and steps are different from each other."""
    calls = scene.see("poisson").trace.calls
    words = [np.asarray(key).reshape(-1, key.shape[-1]) for call in calls for key in (call.batch_key, call.noise_key)]
    every = np.concatenate(words)
    distinct = len(np.unique(every, axis=0))
    require(distinct == len(every), f"{len(every) - distinct} of {len(every)} batch and noise keys are used twice")


# Batches.


def batches_follow_the_law_that_is_charged(scene: Scene) -> None:
    """Independent inclusion at the charged rate: sizes vary, records and steps know nothing of each other."""
    seen = scene.see("poisson")
    (event,) = {(e.mechanism, e.rate) for e in seen.plan.guarantee.events if e.mechanism not in DEVIATIONS}
    require(event[0] == "poisson_gaussian", f"charged as {event[0]}")
    n, q = seen.plan.num_records, event[1]
    indices, mask = seen.trace.calls[0].selections[0]
    taken = np.zeros((*indices.shape[:2], n))
    chain, step, slot = np.nonzero(mask)
    np.add.at(taken, (chain, step, indices[chain, step, slot]), 1.0)
    require(taken.max() == 1, "a record takes part twice in one batch")
    count = taken.size
    rate = (taken.mean() - q) / math.sqrt(q * (1 - q) / count)
    require(abs(rate) < FAR, f"records take part with probability {taken.mean():.4f}, charged is {q:.4f}")
    centred = (taken - q) / math.sqrt(q * (1 - q))
    sizes = centred.sum(2) / math.sqrt(n)
    spread = np.mean(sizes**2)
    # Var of a squared standardised binomial: 2 and the excess of one Bernoulli over n.
    room = FAR * math.sqrt((2 + 2 / n) / sizes.size)
    require(abs(spread - 1) < room, f"batch sizes vary {spread:.2f} times as much as independent inclusion does")
    for what, pair in (
        ("the step before", centred[:, 1:] * centred[:, :-1]),
        ("the record beside it", centred[:, :, 1:] * centred[:, :, :-1]),
    ):
        require(abs(pair.mean()) < FAR / math.sqrt(pair.size), f"whether a record takes part is told by {what}")


# Charge.


def events_cover_every_query(scene: Scene) -> None:
    """As many queries are charged as are made, at no more noise and no smaller a rate; overflow is charged."""
    for bench in ("poisson", "second"):
        is_charged(scene.see(bench), bench)


def is_charged(seen: Observed, bench: str) -> None:
    """Raise Caught unless the events of ``seen.plan`` cover the queries of ``seen.trace``."""
    plan, events = seen.plan, seen.plan.guarantee.events
    queries = [e for e in events if e.mechanism not in DEVIATIONS]
    made = [_multipliers(seen, i) for i in range(len(seen.trace.calls))]
    count = sum(z.size for z in made)
    charged = sum(e.count for e in queries)
    require(charged >= count, f"{bench}: {charged} queries are charged and {count} are made")
    spent = math.fsum(float(np.sum(z**-2.0)) for z in made) * (1 + KAPPA) ** 2
    paid = math.fsum(e.count / e.noise_multiplier**2 for e in queries)
    require(paid >= spent * (1 - 1e-9), f"{bench}: Σ1/z² is {spent:.9g} and {paid:.9g} is charged")
    rate = min(e.rate for e in queries)
    require(rate >= plan.sampling.rate(plan.num_records), f"{bench}: charged at rate {rate:.4g}")
    if isinstance(plan.sampling, Poisson) and seen.trace.calls[0].selections:
        slots = seen.trace.calls[0].selections[0][0].shape[-1]
        truncated = count * stats.binom.sf(slots, plan.num_records, plan.sampling.rate(plan.num_records))
        beta = overflow_probability(events)
        require(truncated <= beta, f"{bench}: batches overflow with probability {truncated:.3g}, charged is {beta:.3g}")


def _multipliers(seen: Observed, i: int) -> np.ndarray:
    """Noise multiplier of each query of the i-th call, in the query's own numbers, float64; a pair is one."""
    call, q = seen.trace.calls[i], seen.trace.queries[i]
    assert q.clip is not None
    # C is an argument of the program, in float32: its rounding is among what KAPPA is charged for.
    clip = seen.plan.privacy.clip
    require(np.float32(q.clip) == np.float32(clip), f"the query clips at {float(q.clip):.9g}, the plan at {clip:.9g}")
    unit = q.batch_size / (q.num_records * clip)
    z: Any = call.noise_std.astype(np.float64) * unit
    if q.second is None:
        return z
    # A step that does not ask for it has, and states, infinite noise.
    moment = np.where(q.second.asks(np.arange(z.shape[-1])), q.second.ratio * z, np.inf)
    stated = call.released.releases[0].noise_std.astype(np.float64) * unit / clip
    require(np.allclose(stated, moment, rtol=1e-6), "the second moment states another noise than its ratio")
    return (z**-2.0 + ((1 + KAPPA) / moment) ** 2) ** -0.5


def one_batch_is_one_event(scene: Scene) -> None:
    """A step's queries of one minibatch are one event: composed as independent they would say less."""
    seen = scene.see("second")
    selected = sum(max(1, len(call.selections)) for call in seen.trace.calls)
    wanted = selected * seen.plan.steps * seen.plan.chains
    made = sum(e.count for e in seen.plan.guarantee.events if e.mechanism not in DEVIATIONS)
    require(made == wanted, f"{wanted} minibatches are charged as {made} events")


def no_record_makes_numpy_warn(scene: Scene) -> None:
    """A row beyond float32, and one whose norm is no number."""
    records = {"x": np.ones((3, D)), "y": np.zeros(3)}
    records["x"][1] = 1e160
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for refuse in (
            lambda: check_rows(records, 3, np.float32),
            lambda: check_bound(records["x"], 1.0, "the guarantee"),
        ):
            with contextlib.suppress(DataError):
                refuse()
    require(not caught, "a warning of NumPy tells of a record")


def a_model_without_an_absent_record_is_refused(scene: Scene) -> None:
    """Under add_remove, a record of zeros that adds to the sums is no absent record."""
    try:
        absent_people.chain(absent_people.CONSTANT["custom"])
    except UnsupportedCombination:
        return
    require(False, "a record of zeros passes for an absent one, and moves a sum by up to 2C where C is charged")


def an_absent_owner_adds_nothing(scene: Scene) -> None:
    """The sums of a run on people move by C at most where one of them is absent."""
    plan = absent_people.chain(PerOwner(absent_people.CONSTANT["network"], 1))
    replay = Replay(plan, absent_people.people(), FAST)
    here = replay(absent_people.people())
    for who in (0, absent_people.N - 1):
        far = float(share(here, replay(absent_people.people(absent=[who]), given=here)).max())
        require(far <= 1, f"an absent owner moves the sum by {far:.4g} C, and C is charged")
