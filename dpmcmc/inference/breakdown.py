"""Releases that are of no use, as released numbers tell it.

``breakdown``: nothing converged. Draws ran away, means are at the end of their range, or there is no likelihood. Such a
release is for neither prediction nor intervals. It is told by released draws and by rows that are invented here from
public facts.

``tells_no_rows_apart``: the draws of a noise-aware release predict no better than one number for all rows. Such a
release is not for prediction.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.data.column_kinds import Levels, Range
from dpmcmc.data.schema import Schema
from dpmcmc.inference.curvature import mean_row
from dpmcmc.inference.decompositions import eigh
from dpmcmc.inference.denoised_moment import project
from dpmcmc.inference.evidence import Evidence
from dpmcmc.privacy.accounting.shown_numbers import three_digits
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target, bind, facts_of, made_up, target_offers
from dpmcmc.targets.linear_predictor import LinearPredictor

#: Root mean square of a chain's draws in standard deviations of the prior beyond which they ran away.
_FAR = 30.0
#: Invented rows; draws that predict them; part of the rows that may have their mean within this part of an end.
_ROWS, _DRAWS, _MOST, _END = 200, 100, 0.95, 1e-6
#: Draws at which a likelihood is tried.
_AT = 4
#: Rows of the released second moment, and draws that predict them.
_MOMENT_ROWS, _MOMENT_DRAWS = 1000, 200


def breakdown(
    target: Target,
    draws: PyTree,
    schema: Schema | None,
    record: PyTree | None,
    of_chain: bool,
) -> str | None:
    """Return why a release is of no use, a clause with what would mend it; None where nothing shows that.

    Args:
        target: of the run.
        draws: released, leaves (chains, draws, ...).
        schema: of the run's table, or None.
        record: shapes of one record, or None where they are not known.
        of_chain: whether the draws are a chain's.
    """
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(draws)]
    if not all(np.isfinite(leaf).all() for leaf in leaves):
        return "draws are not finite; take a smaller step, a smaller clip or a larger epsilon"
    precision = target_offers(target).prior_precision
    if of_chain and precision:
        square = sum(float(np.sum(leaf**2)) for leaf in leaves)
        far = np.sqrt(precision * square / sum(leaf.size for leaf in leaves))
        if far > _FAR:
            return (
                f"the chain ran away: its draws lie {three_digits(float(far))} standard deviations of the prior from 0 "
                "(root mean square); take a smaller step, a smaller clip or a larger epsilon"
            )
    if schema is not None and isinstance(target, LinearPredictor):
        return _at_the_end(target, leaves[0], schema)
    if record is not None and not isinstance(target, LinearPredictor):
        return _no_likelihood(target, draws, record)
    return None


def _at_the_end(target: LinearPredictor, draws: np.ndarray, schema: Schema) -> str | None:
    """Return why predictions say nothing where they are at an end of their range for hardly any row but all."""
    outcome = schema.outcome
    if outcome.kind in ("binary", "classes"):
        ends: tuple[float, ...] = (0.0, 1.0)
    elif outcome.bounds is not None:
        ends = outcome.bounds if outcome.kind == "real" else outcome.bounds[1:]
    else:
        return None
    rows = schema.encode_features(_invented(schema))
    flat = draws.reshape(-1, *draws.shape[2:])
    kept = flat[np.unique(np.linspace(0, len(flat) - 1, _DRAWS).astype(int))]
    if kept.shape[1] != rows.shape[1]:
        return None
    each = np.einsum("nd,md...->nm...", rows, kept)
    means = np.asarray(target.mean(jnp.asarray(each)), np.float64).mean(axis=1)
    near = np.min([np.abs(means - end) for end in ends], axis=0) <= _END * max(ends)
    if float(np.mean(near)) < _MOST:
        return None
    return (
        "nearly every row's predicted mean stands at an end of its range, so that nothing converged; declare a range "
        "of the label that its values fill, or take a larger epsilon"
    )


def _invented(schema: Schema) -> dict[str, np.ndarray]:
    """Return a table of rows that a person could have, uniform over ranges and levels."""
    rng = np.random.default_rng(0)
    table = {}
    for name, column in schema.columns.items():
        if isinstance(column, Range):
            table[name] = rng.uniform(column.low, column.high, _ROWS)
        elif isinstance(column, Levels):
            places = rng.integers(len(column.levels), size=_ROWS)
            table[name] = np.array(column.levels, object)[places]
    return table


def _no_likelihood(target: Target, draws: PyTree, record: PyTree) -> str | None:
    """Return why a likelihood is none, where it is no number for any record that is tried."""
    records = made_up(facts_of(record))
    at = jax.tree.map(lambda leaf: jnp.asarray(leaf[0, -_AT:]), draws)
    log_likelihood = bind(target, record).log_likelihood
    each = jax.vmap(jax.vmap(log_likelihood, (None, 0)), (0, None))
    if not np.isnan(np.asarray(jax.jit(each)(at, records))).all():
        return None
    return (
        "the log-likelihood is not a number for any of a few made-up records, so that no record said anything; mend "
        "log_likelihood (dpmcmc.testing.check_target tries it on yours)"
    )


def tells_no_rows_apart(target: Target, evidence: Evidence, draws: PyTree) -> str | None:
    """Return why predictions are no better than one number for all rows; None where they may be, or it is not known.

    Two things must hold. The release has no Bayes factor against the model with the intercept alone. The prediction of
    a row varies over the draws more than predictions vary from row to row; normal rows with the released second moment
    stand in for the real ones. Each alone is wrong too often: a wide prior favours the intercept where many
    coefficients are small, and rows of a noisy Gram matrix lie where no real row does.

    Args:
        target: of the run.
        evidence: of its release.
        draws: (..., d) of a regression with one predictor.
    """
    constant = None if evidence.structure is None else evidence.structure.constant
    if not isinstance(target, LinearPredictor) or evidence.gram is None or constant is None:
        return None
    slopes = [column for column in range(len(evidence.scales)) if column != constant]
    if not slopes or evidence.log_bayes_factor(slopes) <= 0:
        return None
    gram = project(evidence.gram.gram, evidence.gram.trace, evidence.structure)
    row = mean_row(gram, evidence.num_records, constant)
    values, vectors = eigh(gram / evidence.num_records - np.outer(row, row))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    rows = row + np.random.default_rng(0).normal(size=(_MOMENT_ROWS, len(row))) @ root.T
    flat = np.reshape(draws, (-1, len(row)))
    kept = np.unique(np.linspace(0, len(flat) - 1, _MOMENT_DRAWS).astype(int))
    means = np.asarray(target.mean(jnp.asarray(rows @ flat[kept].T)), np.float64)
    between_rows = float(np.var(np.mean(means, axis=1)))
    over_draws = float(np.mean(np.var(means, axis=1)))
    if over_draws <= between_rows:
        return None
    ratio = np.sqrt(over_draws / max(between_rows, np.finfo(float).tiny))
    return (
        f"a row's prediction varies {three_digits(float(ratio))} times as much over the draws as predictions vary from "
        "row to row, and the release speaks for no column: one number for all rows predicts as well; take a larger "
        "epsilon, more records or fewer columns"
    )
