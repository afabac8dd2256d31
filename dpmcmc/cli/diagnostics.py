"""``confidential/diagnostics.json``: computed from training records without privacy, for the data holder alone.

A fit without privacy may leave only where the records themselves may; ``saved.py`` says where it goes.
"""

from __future__ import annotations

import warnings

import jax
import numpy as np

from dpmcmc.data import DataSet
from dpmcmc.engine.result import Result
from dpmcmc.inference import predictive
from dpmcmc.storage.pytree import PyTree
from dpmcmc.storage.record_blocks import on_disk
from dpmcmc.targets.base import Target

#: Draws, at most about, that score the training records, which are the largest table.
_SCORING = 200
#: Said of records on disk or in partitions.
_SKIPPED = "Scores of the training records and the non-private fit would need all records at once, which lie on disk."


def diagnose(
    target: Target,
    predicting: Target,
    data: DataSet,
    result: Result,
) -> tuple[dict[str, object], predictive.Prediction | None]:
    """Return diagnostics.json, and the prediction of test rows by the fit without privacy, or None.

    Whether they can be computed, and whether a library warns, depends on the records: a failure is written to these
    diagnostics and changes nothing else.

    Args:
        target: bound to the records.
        predicting: the same, with the scale of labels that the release tells.
        data: its records.
        result: of the run.
    """
    whole = data.partitions is None and not on_disk(data.train)
    flat = result.flat_draws()
    found: dict[str, object] = {"train": None} | ({} if whole else {"skipped": _SKIPPED})
    prediction = None
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            if whole:
                some = jax.tree.map(lambda leaf: leaf[:: max(1, len(leaf) // _SCORING)], flat)
                found["train"] = predictive.predict(predicting, some, data.train).to_json()
            if data.test is not None and not data.test_is_public:
                found |= predictive.predict(predicting, flat, data.test).to_json()
        except Exception as error:  # whatever a target of a user's own raises
            found["failed"] = str(error)
        try:
            if whole:
                found["non_private"], prediction = _compare_fit(target, data, flat)
        except Exception as error:
            found["non_private"] = {"failed": str(error)}
    found["wall_seconds"] = result.wall_seconds
    found["about"] = "Computed from training records without privacy. Never publish or archive this folder."
    return found, prediction


def _compare_fit(target: Target, data: DataSet, flat: PyTree) -> tuple[dict[str, object], predictive.Prediction | None]:
    """Return what is said of the fit without privacy and the distance of the draws from it, and its prediction."""
    from dpmcmc.diagnostics import reference

    fit = reference.fit(target, data.train)
    summary: dict[str, object] = {"method": fit.method, "distance": None}
    if isinstance(fit, reference.Laplace):
        summary["distance"] = reference.distance(fit, flat)
    else:
        summary["reason"] = fit.reason
    if data.test is None:
        return summary, None
    prediction = predictive.predict(target, fit.draws(200), data.test)
    return summary | prediction.to_json(), prediction
