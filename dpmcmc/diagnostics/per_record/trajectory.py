"""Positions of a run, and for each step between two checks of all norms how far it is from the nearer check."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from dpmcmc.errors import InputError
from dpmcmc.planning.plan import Plan
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target

#: Steps taken together.
STEPS = 512


class Trajectory(NamedTuple):
    """Positions of all chains one after another, T of them in all.

    Attributes:
        positions: leaves (T, ...).
        step: of the plan, (T,).
        check: which position stands for each, (T,).
        moved: how far from it each lies at most, rounding included, (T,) float32.
    """

    positions: PyTree
    step: np.ndarray
    check: np.ndarray
    moved: np.ndarray


def trajectory(plan: Plan, target: Target, positions: PyTree, every: int, rounding: float) -> Trajectory:
    """Every step given the nearer of the checks before and after it.

    Raises:
        ValueError: positions of another shape.
    """
    wanted = jax.tree.map(
        lambda leaf: (plan.chains, plan.steps, *leaf.shape), jax.eval_shape(target.init, jax.random.key(0))
    )
    found = jax.tree.map(np.shape, positions)
    if wanted != found:
        raise InputError(f"positions: must have shapes {wanted}, one of each chain before each step, got {found}")
    total = plan.chains * plan.steps
    joined = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(total, *leaf.shape[2:]), positions)
    flat = np.concatenate([leaf.reshape(total, -1) for leaf in jax.tree.leaves(joined)], axis=1)
    step = np.tile(np.arange(plan.steps), plan.chains)
    before = np.arange(total) - step % every
    after = np.where(step - step % every + every < plan.steps, before + every, before)
    to_before, to_after = _distances(flat, before), _distances(flat, after)
    check = np.where(to_after < to_before, after, before)
    size = _distances(flat, None)
    # Upward, for it becomes a float32.
    moved = (np.minimum(to_before, to_after) + rounding * (size + size[check])) * (1 + 1e-6)
    return Trajectory(joined, step, check, moved.astype(np.float32))


def _distances(flat: np.ndarray, others: np.ndarray | None) -> np.ndarray:
    """‖θ_t − θ_other(t)‖, or ‖θ_t‖, (T,) float64, a block at a time."""
    out = np.zeros(len(flat))
    for first in range(0, len(flat), STEPS):
        at = slice(first, first + STEPS)
        here = flat[at].astype(np.float64)
        out[at] = np.linalg.norm(here if others is None else here - flat[others[at]], axis=1)
    return out
