"""A private metric: what its release costs, what F is made of, and the norm that gradients are clipped in."""

from __future__ import annotations

import numpy as np
import pytest

import dpmcmc
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.query.gram_release import GramRelease
from tests import in_metric
from tests.planted import Scene, require


def the_release_moves_by_no_more_than_is_charged(scene: Scene) -> None:
    """Worst neighbours are no farther apart, in noise stds, than the metric's event says."""
    plan = in_metric.plan_of()
    first, second = (in_metric.exact(plan, side) for side in in_metric.worst_neighbours("gram"))
    moved = float(np.linalg.norm(first - second)) / plan.metric.release.noise_std
    charged = 2 / plan.metric.events[0].noise_multiplier
    require(moved <= charged, f"the release moves by {moved:.4g} noise stds and {charged:.4g} are charged")


def the_metric_is_a_function_of_its_release(scene: Scene) -> None:
    """Two data sets with one and the same release have one and the same F."""
    plan = in_metric.plan_of()
    noisy = dpmcmc.sample(plan, in_metric.records(), key=0).metric.noisy
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GramRelease, "release", lambda *_: noisy)
        roots = [dpmcmc.sample(plan, in_metric.records(seed=seed), key=0).metric.root for seed in (1, 2)]
    require(np.array_equal(*roots), "F looks at the records past its release")


def gradients_in_the_metric_stay_within_the_sensitivity(scene: Scene) -> None:
    """Whitened gradients of neighbours, each longer than the clip, are at most 2C apart."""
    moved = in_metric.moved_by_long_rows(in_metric.plan_of(clip=0.7))
    require(moved <= 2 * (1 + KAPPA), f"neighbours are {moved:.4g} clip norms apart, and 2 are charged")


def the_guarantee_charges_the_end(scene: Scene) -> None:
    """Events of the releases where a chain ends are among those of the run's guarantee."""
    plan = in_metric.plan_of(end=NoiseAware())
    require(set(plan.end.events) <= set(plan.guarantee.events), "the end of the chain is not charged")


def the_guarantee_charges_the_release(scene: Scene) -> None:
    """Events of the metric's release are among those of the run's guarantee."""
    plan = in_metric.plan_of()
    require(set(plan.metric.events) <= set(plan.guarantee.events), "the release of the metric is not charged")
