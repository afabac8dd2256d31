"""How far draws are from the exact posterior, and rows of the table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import dpmcmc
from dpmcmc.privacy import round_up
from experiments.two_dimensions.methods import Method
from experiments.two_dimensions.problem import Problem
from experiments.two_dimensions.settings import Settings

COLUMNS = (
    "method",
    "private",
    "epsilon",
    "delta",
    "repeat",
    "mean_error",
    "covariance_error",
    "temperature",
    "guarantee_epsilon",
    "assumptions",
    "plan_temperature",
    "minibatch_temperature",
    "relaxation_times",
    "step_size",
    "steps",
    "batch_size",
    "draws",
    "clipped_share",
)


@dataclass(frozen=True)
class Found:
    """Results of a method's runs: every kept draw (repeats, draws, 2), and rows of the table."""

    method: Method
    draws: np.ndarray
    rows: list[dict[str, Any]]

    @property
    def kept(self) -> np.ndarray:
        """The draws that count, (repeats, kept, 2)."""
        return tail_of(self.method, self.draws)

    @property
    def pooled(self) -> tuple[np.ndarray, np.ndarray]:
        """(mean (2,), covariance (2, 2)) of all runs together."""
        means, covariances = moments(self.method, self.draws)
        return means.mean(axis=0), covariances.mean(axis=0)

    @property
    def guarantee_epsilon(self) -> float | None:
        """ε that the accountant proves for one run."""
        return self.rows[0]["guarantee_epsilon"]


def tail_of(method: Method, draws: np.ndarray) -> np.ndarray:
    """The draws that count, (repeats, kept, 2)."""
    return draws if method.tail is None else draws[:, -max(1, int(method.tail * draws.shape[1])) :]


def moments(method: Method, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(means (repeats, 2), covariances (repeats, 2, 2)) of the draws that count; see ``fig3_1.py``."""
    kept = tail_of(method, draws)
    # A mean over repeats takes a degree of freedom at every step; a run's own mean is over thousands of draws.
    together = method.tail is not None
    centre = kept.mean(axis=0, keepdims=True) if together else kept.mean(axis=1, keepdims=True)
    scale = len(kept) / (len(kept) - 1) if together else 1.0
    covariances = scale * np.einsum("rni,rnj->rij", kept - centre, kept - centre) / kept.shape[1]
    return kept.mean(axis=1), covariances


def rows_of(
    settings: Settings, problem: Problem, method: Method, draws: np.ndarray, guarantee: dpmcmc.Guarantee | None
) -> list[dict[str, Any]]:
    """A row per repeat, and one of all repeats together."""
    kept = tail_of(method, draws)
    plan = method.plan
    clip = None if plan.privacy is None else plan.privacy.clip
    relaxations = plan.time * problem.curvature
    if not method.private:
        assumptions = "no privacy"
    elif method.claimed:
        assumptions = "epsilon is the source's claim"
    else:
        assumptions = "; ".join(guarantee.assumptions) if guarantee is not None else "noise seed is public"
    common = {
        "method": method.name,
        "private": method.private,
        "epsilon": method.epsilon,
        "delta": settings.privacy.delta if method.private else None,
        "guarantee_epsilon": None if guarantee is None else guarantee.epsilon,
        "assumptions": assumptions,
        "plan_temperature": float(plan.temperatures.max()),
        "minibatch_temperature": _minibatch_temperature(plan, relaxations),
        "relaxation_times": relaxations,
        "step_size": plan.sampler.step_size,  # type: ignore[attr-defined]
        "steps": plan.steps,
        "batch_size": plan.batch_size,
        "clipped_share": 0.0 if clip is None else problem.clipped_share(clip),
    }
    means, covariances = moments(method, draws)
    rows = [
        {**common, **errors(problem, mean, covariance), "repeat": i, "draws": kept.shape[1]}
        for i, (mean, covariance) in enumerate(zip(means, covariances, strict=True))
    ]
    pooled = errors(problem, means.mean(axis=0), covariances.mean(axis=0))
    return [*rows, {**common, **pooled, "repeat": "pooled", "draws": kept.shape[0] * kept.shape[1]}]


def _minibatch_temperature(plan: dpmcmc.Plan, relaxations: float) -> float:
    """Return what minibatches add to the plan's temperature, averaged over directions, if no thermostat takes it away.

    A minibatch adds about (N/b − 1)·Σ⁻¹ to the covariance of a gradient, for per-record gradients have second moment
    Σ⁻¹/N in a well-specified model; noise of variance v in a gradient is a temperature v·h/2, h the time of a step.
    """
    return relaxations / plan.steps * (plan.num_records / plan.batch_size - 1) / 2


def errors(problem: Problem, mean: np.ndarray, covariance: np.ndarray) -> dict[str, float]:
    """Errors of a mean and of a covariance, and the temperature; see ``fig3_1.py``."""
    return {
        "mean_error": float(np.max(np.abs(mean - problem.mean) / np.sqrt(np.diag(problem.covariance)))),
        "covariance_error": float(np.linalg.norm(covariance - problem.covariance) / np.linalg.norm(problem.covariance)),
        "temperature": float(np.trace(problem.precision @ covariance)) / 2,
    }


def label(one: Found) -> str:
    """A legend's entry: what was asked or claimed, and what is proved."""
    if not one.method.private:
        return "not private"
    proved = one.guarantee_epsilon
    said = "no guarantee" if proved is None else f"proved ε = {round_up(proved, 2)}"
    return f"claims ε = {one.method.epsilon:g}, {said}" if one.method.claimed else said


def summary(found: list[Found]) -> list[str]:
    """A line per method: mean and spread over runs, and all runs together."""
    out = []
    for one in found:
        runs = one.rows[:-1]
        pooled = one.rows[-1]
        head = f"{one.method.name} ({'not private' if not one.method.private else label(one)}), {len(runs)} runs"
        parts = []
        for key in ("mean_error", "covariance_error", "temperature"):
            values = np.array([row[key] for row in runs])
            spread = f" ± {values.std(ddof=1):.3f}" if len(values) > 1 else ""
            parts.append(f"{key.replace('_', ' ')} {values.mean():.3f}{spread} (pooled {pooled[key]:.3f})")
        out.append(f"{head}: {', '.join(parts)}")
    return out
