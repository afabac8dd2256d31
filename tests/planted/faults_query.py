"""Faults of the query: clipping, sums, normaliser, and what a step reads beside it."""

from __future__ import annotations

import contextlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmcmc.data.owners import MASK
from dpmcmc.engine import program as program_room
from dpmcmc.mechanisms import chain
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.query import exact_sums
from dpmcmc.privacy.query.exact_sums import FixedPoint
from dpmcmc.privacy.query.query import GradientQuery
from dpmcmc.targets import PerOwner, linear_predictor
from tests.planted import Fault
from tests.planted import checks_query as checks

Patch = pytest.MonkeyPatch


# Clipping and sums.


def no_clip(patch: Patch) -> None:
    """Rows as they are."""

    def unclipped(norm: Any, mask: Any, clip: Any) -> Any:
        return jnp.where(mask & jnp.isfinite(norm), 1.0 / clip, 0.0)

    patch.setattr(exact_sums, "unit_factor", unclipped)


def _clip_after_the_mean(patch: Patch) -> None:
    real = exact_sums.clipped_sum

    def of_mean(rows: Any, mask: Any, clip: Any, bits: int) -> FixedPoint:
        count = jnp.maximum(jnp.sum(mask), 1)

        def mean(leaf: Any) -> Any:
            keep = mask.reshape(-1, *[1] * (leaf.ndim - 1))
            return jnp.sum(jnp.where(keep, leaf, 0.0), axis=0, keepdims=True) / count

        one = real(jax.tree.map(mean, rows), jnp.ones(1, bool), clip, bits)
        return jax.tree.map(lambda limb: limb * count.astype(jnp.int32), one)

    patch.setattr(exact_sums, "clipped_sum", of_mean)


def _silenced_norms(patch: Patch) -> None:
    real = exact_sums.unit_factor
    patch.setattr(exact_sums, "unit_factor", lambda norm, mask, clip: real(jnp.nan_to_num(norm), mask, clip))


def _padding_counts(patch: Patch) -> None:
    real = exact_sums.unit_factor
    patch.setattr(exact_sums, "unit_factor", lambda norm, mask, clip: real(norm, jnp.ones_like(mask), clip))


def _prior_gradient(self: GradientQuery, params: Any) -> Any:
    return jax.grad(lambda p: -self.target.log_prior(p))(params)


def _prior_inside_the_clip(patch: Patch) -> None:
    real = GradientQuery.scores

    def scores(self: GradientQuery, params: Any, batch: Any) -> Any:
        prior = _prior_gradient(self, params)
        return jax.tree.map(lambda rows, p: rows + p / self.num_records, real(self, params, batch), prior)

    patch.setattr(GradientQuery, "scores", scores)


def _changed_release(patch: Patch, change: Any) -> None:
    """What the query releases becomes ``change(query, params, count of the batch, value without prior, prior)``."""
    real = GradientQuery.answer

    def answer(self: GradientQuery, params: Any, records: Any, draws: Any, noise_std: Any, t: Any = None) -> Any:
        out = real(self, params, records, draws, noise_std, t)
        count = self.num_records if self.select is None else jnp.sum(draws.batch[1])
        prior = _prior_gradient(self, params)
        likelihood = jax.tree.map(jnp.subtract, out.value, prior)
        value = jax.tree.map(lambda g, p: change(self, count, g, p), likelihood, prior)
        return out._replace(value=value)

    patch.setattr(GradientQuery, "answer", answer)


def _floored_batch(patch: Patch) -> None:
    real = Plan.batch_size.fget
    assert real is not None
    patch.setattr(Plan, "batch_size", property(lambda plan: float(int(real(plan)))))


def _rows_of_owners_are_clipped(patch: Patch) -> None:
    real = GradientQuery._microbatch_sum

    def each_row(self: GradientQuery, params: Any, batch: Any, mask: Any) -> FixedPoint:
        if not (isinstance(batch, dict) and MASK in batch):
            return real(self, params, batch, mask)
        places = batch[MASK].shape[1]
        one_each = {name: leaf.reshape(-1, 1, *leaf.shape[2:]) for name, leaf in batch.items()}
        scores = self.scores(params, one_each)
        return exact_sums.clipped_sum(scores, jnp.repeat(mask, places), self.clip, self.bits)

    patch.setattr(GradientQuery, "_microbatch_sum", each_row)


def _padding_is_zeros(patch: Patch) -> None:
    def unmasked(self: PerOwner, params: Any, record: Any) -> jax.Array:
        rows = {name: leaf for name, leaf in record.items() if name != MASK}
        return jnp.sum(jax.vmap(lambda row: self.target.log_likelihood(params, row))(rows))

    patch.setattr(PerOwner, "log_likelihood", unmasked)


# What a step reads beside the query.


def _changed_step(patch: Patch, change: Any) -> None:
    """What a step makes becomes ``change(program, chain, records, t, state, info)``."""
    real = program_room.Program.advance

    def advance(self: Any, chain: Any, state: Any, t: Any, noise_std: Any, records: Any, drawn: Any) -> Any:
        return change(chain, records, t, *real(self, chain, state, t, noise_std, records, drawn))

    patch.setattr(program_room.Program, "advance", advance)


def _batch_key_in_info(patch: Patch) -> None:
    def change(chain: Any, records: Any, t: Any, state: Any, info: Any) -> Any:
        return state, (info, jax.random.key_data(chain.streams.at(chain.chain, t).batch))

    _changed_step(patch, change)


def _raw_size(records: Any) -> Any:
    return jnp.sum(jnp.where(jnp.abs(records["g"]) < 10, records["g"] ** 2, 0.0))


def _thermostat_reads_records(patch: Patch) -> None:
    def change(chain: Any, records: Any, t: Any, state: Any, info: Any) -> Any:
        if hasattr(state, "thermostat"):
            state = state._replace(thermostat=state.thermostat + 1e-4 * _raw_size(records))
        return state, info

    _changed_step(patch, change)


def _fisher_reads_records(patch: Patch) -> None:
    def change(chain: Any, records: Any, t: Any, state: Any, info: Any) -> Any:
        if hasattr(state, "fisher"):
            finite = jnp.where(jnp.isfinite(records["g"]), records["g"], 0.0)
            state = state._replace(fisher=state.fisher + 1e-3 * jnp.clip(finite, -1, 1).T @ jnp.clip(finite, -1, 1))
        return state, info

    _changed_step(patch, change)


FAULTS = (
    Fault(
        "clip missing",
        "Rows are scaled by 1/C and never shrunk to norm 1; comes about where clipping is a flag that stays off.",
        no_clip,
        (checks.neighbours_stay_within_the_sensitivity, checks.the_sum_is_that_of_the_selected_clipped_records),
    ),
    Fault(
        "clip after the mean",
        "The minibatch's mean gradient is clipped in place of each record's, as gradient-norm clipping for stability "
        "does.",
        _clip_after_the_mean,
        (checks.neighbours_stay_within_the_sensitivity, checks.the_sum_is_that_of_the_selected_clipped_records),
    ),
    Fault(
        "non-finite row escapes the mask",
        "A norm that is NaN is silenced by nan_to_num, passes for a small one, and the row goes in unclipped.",
        _silenced_norms,
        (checks.neighbours_stay_within_the_sensitivity,),
    ),
    Fault(
        "norm in the records' own integers",
        "Features stay the bytes they are stored as, and their squares wrap: a row of pixels 16 has norm 0.",
        lambda patch: patch.setattr(exact_sums, "as_float", lambda leaf: leaf),
        (checks.integer_features_stay_within_the_sensitivity,),
    ),
    Fault(
        "weights that see labels",
        "A label-blind weight is computed at the record's own label, which biases the score as residual clipping does.",
        lambda patch: patch.setattr(
            linear_predictor, "label_blind_weight", lambda longest, clip: jnp.ones_like(longest)
        ),
        (checks.the_score_is_unbiased_at_the_truth,),
    ),
    Fault(
        "padded rows counted",
        "The mask of a padded batch is ignored, so the record that padding repeats is summed many times.",
        _padding_counts,
        (checks.neighbours_stay_within_the_sensitivity, checks.the_sum_is_that_of_the_selected_clipped_records),
    ),
    Fault(
        "rows of an owner clipped one by one",
        "Each row is clipped in place of each owner's sum of rows, and an owner moves the sum by all of their rows.",
        _rows_of_owners_are_clipped,
        (checks.owners_stay_within_the_sensitivity,),
    ),
    Fault(
        "a record of zeros for an absent one",
        "A model with a constant feature or an intercept site takes zeros for nobody, and nobody adds up to C.",
        lambda patch: patch.setattr(chain, "check_absent", lambda target, adjacency, table: None),
        (checks.a_model_without_an_absent_record_is_refused,),
    ),
    Fault(
        "an absent owner is a row of zeros",
        "The mask of an owner is dropped since padding is zero anyway, and a constant feature adds for nobody.",
        _padding_is_zeros,
        (checks.an_absent_owner_adds_nothing,),
    ),
    Fault(
        "a warning of NumPy about one record",
        "A row that overflows in a check makes NumPy print a warning, which whoever reads the log sees.",
        lambda patch: patch.setattr(np, "errstate", lambda **_: contextlib.nullcontext()),
        (checks.no_record_makes_numpy_warn,),
    ),
    Fault(
        "prior inside the clip",
        "Per-record gradients are those of log-likelihood + log-prior/N, so the prior is clipped and counted with the "
        "records.",
        _prior_inside_the_clip,
        (checks.the_sum_is_that_of_the_selected_clipped_records,),
    ),
    Fault(
        "prior once per record",
        "The prior's gradient is added for every record of the batch, so its size tells how many were selected.",
        lambda patch: _changed_release(
            patch, lambda q, count, likelihood, prior: likelihood + prior * count / q.batch_size
        ),
        (checks.the_release_is_prior_and_normalised_sum,),
    ),
    Fault(
        "normaliser of the actual batch",
        "The sum is divided by the number of selected records: a random, private number, and the noise with it.",
        lambda patch: _changed_release(
            patch, lambda q, count, likelihood, prior: likelihood * q.batch_size / jnp.maximum(count, 1) + prior
        ),
        (checks.the_release_is_prior_and_normalised_sum,),
    ),
    Fault(
        "normaliser rounded to whole records",
        "b is stored as an integer, so that the same s_t is less noise on the sum than was charged.",
        _floored_batch,
        (checks.events_cover_every_query, checks.the_release_is_prior_and_normalised_sum),
    ),
    Fault(
        "minibatch key public",
        "A diagnostic in Info lets an observer recompute who was selected, who then faces rate 1 where q is charged.",
        _batch_key_in_info,
        (checks.a_step_is_a_function_of_the_release,),
    ),
    Fault(
        "thermostat reads records",
        "SGNHT's thermostat is driven by a statistic of the raw records beside the noisy gradient.",
        _thermostat_reads_records,
        (checks.a_thermostat_is_a_function_of_the_release,),
    ),
    Fault(
        "Fisher information reads records",
        "SGFS averages the outer products of raw gradients, which no event pays for.",
        _fisher_reads_records,
        (checks.a_preconditioner_is_a_function_of_the_release,),
    ),
    Fault(
        "training loss in Info",
        "A diagnostic of the training records is stored with every draw.",
        lambda patch: _changed_step(patch, lambda chain, records, t, state, info: (state, (info, _raw_size(records)))),
        (checks.a_step_is_a_function_of_the_release,),
    ),
)
