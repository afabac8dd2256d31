"""Ways to an interval: a shipped config each, with what changes in it.

A way at its *shipped* settings changes nothing but data, d, N, ε and δ. A way at its *planned* settings has
``step_size: auto`` and all records in every step, in a private metric: what the library plans for temperature 1.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np

import dpmcmc
from dpmcmc import config
from dpmcmc.config import file as config_file
from dpmcmc.engine.result import Result
from dpmcmc.storage.pytree import PyTree
from experiments.calibration.tasks import TASKS, Cell

#: A run in a private metric at temperature 1.
_PLANNED = ("metric={name: gram, clip_ratio: 1.0}", "run={steps: 2000, burn_in: 0.2, thin: 4}")


class Way(NamedTuple):
    """A way to an interval.

    Attributes:
        config: name of a shipped config.
        overrides: of it, as ``--set`` takes them.
        path: whether ``result.noise_aware()`` concludes, and not the draws.
        labels: whether ε is that of one label, and no promise about records is made.
    """

    config: str
    overrides: tuple[str, ...] = ()
    path: bool = False
    labels: bool = False

    def plan(self, cell: Cell) -> dpmcmc.Plan:
        """Return the plan of a cell.

        Raises:
            InputError: the library refuses to plan it.
        """
        changes = [*TASKS[cell.task].overrides(cell), *self.overrides]
        if self.labels:
            changes = [change for change in changes if not change.startswith("privacy.")]
            changes.append(f"data.labels={{randomised: {cell.epsilon}}}")
        return config.make_plan(config_file.load(self.config, changes))

    def verdict(self, plan: dpmcmc.Plan) -> tuple[str, str]:
        """Return what the library says the draws are for, ``intervals`` first, and why not for intervals."""
        uses = plan.usable_for
        if self.path:
            return "intervals", "Yes: result.noise_aware() accounts for the noise of privacy."
        return "intervals" if "intervals" in uses else uses[0] if uses else "nothing", plan.verdict.reasons["intervals"]

    def run(self, plan: dpmcmc.Plan, records: PyTree) -> tuple[np.ndarray, Result]:
        """Return (draws of all chains (draws, d), the result).

        Raises:
            InputError: the run does not identify a posterior.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dpmcmc.NotForIntervals)
            result = dpmcmc.sample(plan, records)
        if self.path:
            return result.noise_aware().draws(1000), result
        draws = np.asarray(result.released, np.float64)
        return draws.reshape(draws.shape[0] * draws.shape[1], -1), result


def _planned(sampler: str, path: bool = False) -> Way:
    return Way("adult", (f"sampler={{name: {sampler}, step_size: auto}}", *_PLANNED), path)


#: By the name that the YAML says.
WAYS = {
    "noise_aware": Way("adult_noise_aware"),
    "noise_aware_evidence": Way("adult_noise_aware", ("mechanism.prior_scale=evidence",)),
    "noise_aware_sandwich": Way("adult_noise_aware", ("mechanism.covariance=sandwich",)),
    "randomised_labels": Way("adult_labels", labels=True),
    "metric_path": Way("adult", path=True),
    "sgld_planned_path": _planned("sgld", path=True),
    "sgld_planned": _planned("sgld"),
    "sghmc_planned": _planned("sghmc, friction: 0.2"),
    "sgnht_planned": _planned("sgnht, friction: 0.1"),
    "sgfs_planned": _planned("sgfs, fisher: query, noise_ratio: 3.0, query_every: 1, prior_precision: 1.0"),
    "metric": Way("adult"),
    "sgld": Way("adult_prediction"),
    "sgld_temperature_one": Way("adult_temperature_one"),
    "sghmc": Way("adult_prediction_sghmc"),
    "sgnht": Way("adult_prediction_sgnht"),
    "sgfs": Way("adult_prediction_sgfs"),
    "noisy_sgd": Way("adult_noisy_sgd"),
    "hybrid": Way("adult_hybrid"),
    "ops": Way("adult_ops"),
    "certified_ops": Way("adult_certified_ops"),
    "objective_perturbation": Way("adult_objective"),
    "output_perturbation": Way("adult_output"),
    "sufficient_statistics": Way("diabetes_sufficient"),
    "sgnht_linear": Way("diabetes_linear"),
}
