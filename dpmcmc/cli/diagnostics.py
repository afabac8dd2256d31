"""``confidential/diagnostics.json``: computed from training records without privacy, for the data holder alone.

A fit without privacy may leave only where the records themselves may; ``saved.py`` says where it goes.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import jax
import numpy as np

from dpmcmc.config import Config
from dpmcmc.data import DataSet
from dpmcmc.engine.result import Result
from dpmcmc.inference import predictive
from dpmcmc.storage.pytree import PyTree
from dpmcmc.storage.record_blocks import on_disk
from dpmcmc.targets.base import Target

if TYPE_CHECKING:
    from dpmcmc.diagnostics.reference import Laplace, MaximumAPosteriori

    Fit = Laplace | MaximumAPosteriori

#: Draws, at most about, that score the training records, which are the largest table.
_SCORING = 200
#: Said of records on disk or in partitions.
_SKIPPED = "Scores of the training records and the non-private fit would need all records at once, which lie on disk."
#: The last fit of this process, its config and its records: configs of a sweep have one target and one set of records.
_last: tuple[str, list[np.ndarray], Fit] | None = None


def diagnose(
    config: Config,
    target: Target,
    predicting: Target,
    data: DataSet,
    result: Result,
) -> tuple[dict[str, object], predictive.Prediction | None]:
    """Return diagnostics.json, and the prediction of test rows by the fit without privacy, or None.

    Whether they can be computed, and whether a library warns, depends on the records: a failure is written to these
    diagnostics and changes nothing else.

    Args:
        config: of the run.
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
                found["non_private"], prediction = _compare_fit(config, target, data, flat)
        except Exception as error:
            found["non_private"] = {"failed": str(error)}
    found["wall_seconds"] = result.wall_seconds
    found["about"] = "Computed from training records without privacy. Never publish or archive this folder."
    return found, prediction


def _compare_fit(
    config: Config,
    target: Target,
    data: DataSet,
    flat: PyTree,
) -> tuple[dict[str, object], predictive.Prediction | None]:
    """Return what is said of the fit without privacy and the distance of the draws from it, and its prediction."""
    from dpmcmc.diagnostics import reference

    fit = _fit(config, target, data.train)
    summary: dict[str, object] = {"method": fit.method, "distance": None}
    if isinstance(fit, reference.Laplace):
        summary["distance"] = reference.distance(fit, flat)
    else:
        summary["reason"] = fit.reason
    if data.test is None:
        return summary, None
    prediction = predictive.predict(target, fit.draws(200), data.test)
    return summary | prediction.to_json(), prediction


def _fit(config: Config, target: Target, records: PyTree) -> Fit:
    """Return the fit of a config's target to records, which are compared with the last ones."""
    from dpmcmc.diagnostics import reference

    global _last
    # The data's section has the facts that a target takes from them; a path is written from each config's folder.
    described = config.model_dump_json(include={"target", "data"}, exclude={"data": {"path"}})
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(records)]
    if _last is None or _last[0] != described or not _same(_last[1], leaves):
        _last = None  # room for the next one
        _last = described, leaves, reference.fit(target, records)
    return _last[2]


def _same(some: list[np.ndarray], others: list[np.ndarray]) -> bool:
    return len(some) == len(others) and all(map(np.array_equal, some, others))
