"""The checks that guard targets find what is planted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpmcmc.privacy.query import exact_sums
from dpmcmc.targets import (
    LinearRegression,
    LogisticRegression,
    TargetError,
    check,
)
from dpmcmc.targets.checks import check_target
from tests.test_targets import records


class Forgets(LogisticRegression):
    """Rows are summed unclipped."""

    def clipped_gradient_sum(self, params, batch, mask, clip, bits=21):
        return super().clipped_gradient_sum(params, batch, mask, clip * 64, bits + 6)


class ForgetsTheMask(LogisticRegression):
    def clipped_gradient_sum(self, params, batch, mask, clip, bits=21):
        return super().clipped_gradient_sum(params, batch, jnp.ones_like(mask), clip, bits)


class FloatSum(LogisticRegression):
    def clipped_gradient_sum(self, params, batch, mask, clip, bits=21):
        return super().clipped_gradient_sum(params, batch, mask, clip, bits).to_float(clip, bits)


class CentresTheBatch(LinearRegression):
    """A record moves every other one."""

    def clipped_gradient_sum(self, params, batch, mask, clip, bits=21):
        centred = {**batch, "x": batch["x"] - batch["x"].mean(axis=0)}
        return super().clipped_gradient_sum(params, centred, mask, clip, bits)


class OtherSign(LinearRegression):
    """The gradient of the log-likelihood, not of the potential."""

    def clipped_gradient_sum(self, params, batch, mask, clip, bits=21):
        negative = {"x": -batch["x"], "y": -batch["y"]}
        residual = batch["x"] @ params - batch["y"]
        return exact_sums.linear_sum(residual / self.noise_scale**2, negative["x"], mask, clip, bits)


class NaNSpreads(LinearRegression):
    """A bad row is replaced by the largest one there is."""

    def clipped_gradient_sum(self, params, batch, mask, clip, bits=21):
        x = jnp.nan_to_num(batch["x"], posinf=1e3, nan=1e3)
        return super().clipped_gradient_sum(params, {"x": x, "y": batch["y"]}, mask, clip, bits)


class SmallBound(LogisticRegression):
    @property
    def gradient_bound(self):
        return 0.3


class NoProbability(LogisticRegression):
    def predict(self, params, x):
        return x @ params


class OneForAll(LogisticRegression):
    def predict(self, params, x):
        return jax.nn.sigmoid(x @ params).mean()


class Impure(LogisticRegression):
    def init(self, key):
        return super().init(key) + np.random.normal()  # noqa: NPY002


class VectorPrior(LogisticRegression):
    def log_prior(self, params):
        return -0.5 * params**2


class Infinite(LogisticRegression):
    def log_likelihood(self, params, record):
        return super().log_likelihood(params, record) + jnp.log(jnp.sum(params**2))


class Averages(LinearRegression):
    """Agrees with the sum on all records, and moves every record when one is replaced by a huge one."""

    def clipped_gradient_sum(self, params, batch, mask, clip, bits=21):
        size = jnp.max(jnp.abs(batch["y"]))
        y = jnp.where(size > 100, -batch["y"], batch["y"])
        return super().clipped_gradient_sum(params, {**batch, "y": y}, mask, clip, bits)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "message"),
    [
        (Forgets(), "record moves the clipped sum by"),
        (ForgetsTheMask(), "clipped_gradient_sum is off by"),
        (FloatSum(), "must return an exact FixedPoint sum"),
        (CentresTheBatch(), "clipped_gradient_sum is off by"),
        (Averages(), r"(adding|replacing) a record moves the clipped sum by"),
        (OtherSign(), "from the sum of clipped jax.grad"),
        (NaNSpreads(), "not finite must contribute zero"),
        (SmallBound(), "gradient_bound is 0.3, and record"),
        (NoProbability(), "returns no probabilities"),
        (OneForAll(), r"predict returns shape \(\) for 200 rows"),
        (Impure(), "init is not a function of its key"),
        (VectorPrior(), "must return one number each"),
        (Infinite(), "log_likelihood at init is not finite"),
        (object(), "lacks init, log_prior, log_likelihood of the Target protocol"),
    ],
)
def test_planted_faults_are_found(target, message):
    name = "linear_regression" if isinstance(target, LinearRegression) else "logistic_regression"
    with pytest.raises(AssertionError, match=message):
        check_target(target, records(name))


def test_a_target_that_may_change_is_asked_again():
    """One whose equality says nothing of what it computes."""

    class Changing:
        scale = 1.0

        def init(self, key):
            return jnp.zeros(2)

        def log_prior(self, params):
            return -jnp.sum(params**2)

        def log_likelihood(self, params, record):
            return self.scale * (record["x"] @ params)

    target, data = Changing(), {"x": np.ones((5, 2), np.float32)}
    check(target, data)
    target.scale = np.nan
    with pytest.raises(TargetError, match="NaN at the starting point"):
        check(target, data)
