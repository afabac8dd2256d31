"""Regressions of other libraries: diffprivlib's and OpenDP's. Both release a point, and promise pure ε.

diffprivlib (Holohan et al. 2019) takes a bound on the norm of rows for its logistic regression, which perturbs the
objective (Chaudhuri et al. 2011), and bounds of features and labels for its linear one, a functional mechanism (Zhang
et al. 2012). All other settings are its defaults. OpenDP's linear regression (``opendp.extras.sklearn``) is a private
Theil–Sen estimator for one covariate, with its documented hundred candidates.
"""

from __future__ import annotations

import warnings

import numpy as np

from experiments.benchmark.methods.contract import Method, Outcome, Refused
from experiments.benchmark.problem import Problem


def _without_intercept(problem: Problem) -> tuple[np.ndarray, float]:
    """Return rows without their last column, and that column's public constant."""
    return problem.x[:, :-1], float(problem.schema.row_scale)


def _diffprivlib_logistic(problem: Problem, epsilon: float) -> Outcome:
    from diffprivlib.models import LogisticRegression

    x, one = _without_intercept(problem)
    norm = float(np.sqrt(1 - one**2)) if one < 1 else 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LogisticRegression(epsilon=epsilon, data_norm=norm)
        model.fit(x, problem.y)
    if problem.kind == "classes":
        if len(model.classes_) != problem.classes:
            raise Refused("a class without records has no coefficients")
        theta = np.vstack([model.coef_.T, model.intercept_ / one])
    else:
        theta = np.append(model.coef_[0], model.intercept_[0] / one)
    return Outcome(theta[None], False, f"{epsilon:g}-DP, replace_one")


def _diffprivlib_linear(problem: Problem, epsilon: float) -> Outcome:
    from diffprivlib.models import LinearRegression

    x, one = _without_intercept(problem)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = LinearRegression(epsilon=epsilon, bounds_X=(-one, one), bounds_y=(-1.0, 1.0))
        model.fit(x, problem.y)
    theta = np.append(np.ravel(model.coef_), np.ravel(model.intercept_)[0] / one)
    return Outcome(theta[None], False, f"{epsilon:g}-DP, replace_one")


def _opendp_theil_sen(problem: Problem, epsilon: float) -> Outcome:
    import opendp.prelude as dp

    x, one = _without_intercept(problem)
    if x.shape[1] != 1:
        raise Refused(f"OpenDP's Theil–Sen estimator takes one covariate, and the table has {x.shape[1]}")
    dp.enable_features("contrib", "floating-point", "honest-but-curious")
    bounds = (-one, one)

    def made(scale: float) -> dp.Measurement:
        model = dp.sklearn.linear_model.LinearRegression(dp.max_divergence(), [bounds], (-1.0, 1.0), scale=scale)
        return model.measurement

    scale = dp.binary_search_param(made, d_in=2, d_out=epsilon, T=float, bounds=(1e-6, 1e6))
    model = dp.sklearn.linear_model.LinearRegression(dp.max_divergence(), [bounds], (-1.0, 1.0), scale=scale)
    found = model.fit(x, problem.y)
    theta = np.array([np.ravel(found.coef_)[0], np.ravel(found.intercept_)[0] / one])
    return Outcome(theta[None], False, f"{epsilon:g}-DP, symmetric distance 2")


def _diffprivlib(problem: Problem, epsilon: float) -> Outcome:
    return (_diffprivlib_linear if problem.kind == "real" else _diffprivlib_logistic)(problem, epsilon)


METHODS = (
    Method("diffprivlib", "rival", ("binary", "classes", "real"), "pure ε, one record replaced",
           "`data_norm` and bounds from the schema, else defaults", _diffprivlib, "diffprivlib"),
    Method("opendp_theil_sen", "rival", ("real",), "pure ε, one record replaced",
           "bounds from the schema, 100 candidates", _opendp_theil_sen, "opendp"),
)  # fmt: skip
