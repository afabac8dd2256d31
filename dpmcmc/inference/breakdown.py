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
from dpmcmc.inference.curvature import mean_row, normal_rows
from dpmcmc.inference.denoised_moment import project
from dpmcmc.inference.evidence import Evidence
from dpmcmc.privacy.accounting.shown_numbers import three_digits
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target, bind, facts_of, made_up, target_offers
from dpmcmc.targets.linear_predictor import LinearPredictor

#: Root mean square of a chain's draws in standard deviations of the prior beyond which they ran away.
RUNAWAY_PRIOR_STDS = 30.0
#: Invented rows, and draws that predict them.
NUM_INVENTED_ROWS, NUM_INVENTED_DRAWS = 200, 100
#: Part of the invented rows whose mean may stand at an end of the range, and how near in units of the range's end.
MOST_AT_END, NEAR_END = 0.95, 1e-6
#: Draws at which a likelihood is tried.
NUM_TRIED_DRAWS = 4
#: Draws that predict normal rows of the released second moment.
NUM_MOMENT_DRAWS = 200


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
        if far > RUNAWAY_PRIOR_STDS:
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
    kept = _spread_out(draws.reshape(-1, *draws.shape[2:]), NUM_INVENTED_DRAWS)
    if kept.shape[1] != rows.shape[1]:
        return None
    each = np.einsum("nd,md...->nm...", rows, kept)
    means = np.asarray(target.mean(jnp.asarray(each)), np.float64).mean(axis=1)
    near = np.min([np.abs(means - end) for end in ends], axis=0) <= NEAR_END * max(ends)
    if float(np.mean(near)) < MOST_AT_END:
        return None
    return (
        "nearly every row's predicted mean stands at an end of its range, so that nothing converged; declare a range "
        "of the label that its values fill, or take a larger epsilon"
    )


def _spread_out(draws: np.ndarray, most: int) -> np.ndarray:
    """Return at most so many of the draws, evenly spread."""
    return draws[np.unique(np.linspace(0, len(draws) - 1, most).astype(int))]


def _invented(schema: Schema) -> dict[str, np.ndarray]:
    """Return a table of rows that a person could have, uniform over ranges and levels."""
    rng = np.random.default_rng(0)
    table = {}
    for name, column in schema.columns.items():
        if isinstance(column, Range):
            table[name] = rng.uniform(column.low, column.high, NUM_INVENTED_ROWS)
        elif isinstance(column, Levels):
            places = rng.integers(len(column.levels), size=NUM_INVENTED_ROWS)
            table[name] = np.array(column.levels, object)[places]
    return table


def _no_likelihood(target: Target, draws: PyTree, record: PyTree) -> str | None:
    """Return why a likelihood is none, where it is no number for any record that is tried."""
    records = made_up(facts_of(record))
    at = jax.tree.map(lambda leaf: jnp.asarray(leaf[0, -NUM_TRIED_DRAWS:]), draws)
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
    rows = normal_rows(gram / evidence.num_records, row)
    kept = _spread_out(np.reshape(draws, (-1, len(row))), NUM_MOMENT_DRAWS)
    means = np.asarray(target.mean(jnp.asarray(rows @ kept.T)), np.float64)
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
