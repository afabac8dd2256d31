"""Plain functions as a target."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmcmc.inference import predictive
from dpmcmc.targets import (
    Custom,
    TargetError,
    check,
)
from dpmcmc.targets.checks import check_target
from tests.test_targets import D, private_run, records


def start(key):
    return {"w": jnp.zeros(D), "log_scale": jnp.zeros(())}


def log_prior(params):
    return -0.5 * jnp.sum(params["w"] ** 2) - 0.5 * params["log_scale"] ** 2


def log_likelihood(params, record):
    """Student-t regression: its gradient is bounded and not linear in x."""
    scale = jnp.exp(params["log_scale"])
    return jax.scipy.stats.t.logpdf(record["y"], 3.0, record["x"] @ params["w"], scale)


def predict(params, x):
    return x @ params["w"]


@pytest.mark.optimised
@pytest.mark.slow
def test_functions_make_a_target_that_runs_privately():
    target = Custom(start, log_prior, log_likelihood, predict)
    check_target(target, records("linear_regression"))
    assert private_run(target, records("linear_regression")).draws["w"].shape == (2, 5, D)


def test_the_same_functions_are_the_same_target():
    one, two = (Custom(start, log_prior, log_likelihood, predict, gradient_bound=3.0) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert one != Custom(start, log_prior, log_likelihood)
    assert repr(one) == "Custom(start, log_prior, log_likelihood, predict)"


def test_a_missing_predict_is_absent_and_says_so():
    target = Custom(start, log_prior, log_likelihood)
    assert target.predict is None
    with pytest.raises(TargetError, match="Custom has no predict, so its draws predict nothing; give it one"):
        predictive.mean(target, start(None), np.zeros((2, D)))
    assert Custom(start, log_prior, log_likelihood, predict).predict is predict


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"init": None}, r"init must be a function \(key\) -> params"),
        ({"log_likelihood": 3}, r"log_likelihood must be a function \(params, record\)"),
        ({"predict": 3}, "predict must be a function or None"),
        ({"num_classes": 1}, "num_classes must be a whole number >= 2"),
        ({"gradient_bound": -1.0}, "gradient_bound must be a finite number > 0"),
    ],
)
def test_arguments_that_make_no_target_are_refused(changes, message):
    arguments = {"init": start, "log_prior": log_prior, "log_likelihood": log_likelihood} | changes
    with pytest.raises(ValueError, match=f"^{message}"):
        Custom(**arguments)


def test_own_checks_of_records_are_asked():
    def positive(records):
        if (records["y"] < 0).any():
            raise ValueError("y: must be positive")

    with pytest.raises(ValueError, match=r"^y: must be positive"):
        check(Custom(start, log_prior, log_likelihood, check_records=positive), records("linear_regression"))
