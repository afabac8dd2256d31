"""Fits without privacy, the limit of every method: maximum likelihood with its sandwich, and a Bayesian posterior.

The posterior has the prior that ``dpmcmc.fit`` starts from, and is normal at the mode. Both learn the dispersion.
"""

from __future__ import annotations

import numpy as np

from dpmcmc.estimators.fitting import model_of
from experiments import glm
from experiments.benchmark.methods.contract import ALL, Method, Outcome, normal_draws, system_rng
from experiments.benchmark.problem import Problem


def _embedded(problem: Problem, fit: glm.Fit, covariance: np.ndarray) -> np.ndarray:
    """Return draws of all encoded coefficients; those of first levels and of the first class are 0."""
    drawn = normal_draws(fit.theta.ravel(), covariance, system_rng())
    shape = (problem.x.shape[1], problem.classes) if problem.kind == "classes" else (problem.x.shape[1],)
    draws = np.zeros((len(drawn), *shape))
    if problem.kind == "classes":
        draws[:, problem.columns, 1:] = drawn.reshape(len(drawn), len(problem.columns), -1)
    else:
        draws[:, problem.columns] = drawn
    return draws


def _mle(problem: Problem, epsilon: float) -> Outcome:
    fit = glm.fitted(problem.x[:, problem.columns], problem.y, problem.kind, problem.classes)
    return Outcome(_embedded(problem, fit, fit.covariance), True, "none", 1.0, _learnt(problem, fit.dispersion))


def _bayes(problem: Problem, epsilon: float) -> Outcome:
    scale = model_of(problem.schema).prior_scale
    # The curvature of real labels is that of the log likelihood times the residual variance.
    rough = glm.fitted(problem.x[:, problem.columns], problem.y, problem.kind, problem.classes)
    unit = rough.dispersion**2 if problem.kind == "real" else 1.0
    fit = glm.fitted(problem.x[:, problem.columns], problem.y, problem.kind, problem.classes, unit / scale**2)
    return Outcome(_embedded(problem, fit, unit * fit.inverse), True, "none", 1.0, _learnt(problem, fit.dispersion))


def _learnt(problem: Problem, dispersion: float) -> float | None:
    return dispersion if problem.kind in ("count", "real") else None


METHODS = (
    Method("mle", "limit", ALL, "none", "none", _mle, intervals=True),
    Method("bayes", "limit", ALL, "none", "the prior of `fit`", _bayes, intervals=True),
)
