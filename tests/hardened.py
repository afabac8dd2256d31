"""A small private run with integer noise, and a query whose gradient is known."""

import jax
import jax.numpy as jnp
import numpy as np

import dpmcmc
from dpmcmc.privacy.query.query import GradientQuery
from dpmcmc.privacy.query.randomness import CHACHA20

N, D = 400, 4
RNG = np.random.default_rng(0)
DATA = {"x": RNG.normal(size=(N, D)).astype(np.float32) / 2, "y": RNG.integers(0, 2, N)}


def make(sampler=None, target=None, epsilon=2.0, sampling=None, **kwargs):
    privacy = dpmcmc.Privacy(**{"epsilon": epsilon, "delta": 1e-5, **kwargs.pop("privacy", {})})
    kwargs = {"steps": 12, "chains": 2, **kwargs}
    return dpmcmc.plan(
        dpmcmc.targets.LogisticRegression(num_features=D) if target is None else target,
        num_records=N,
        sampler=dpmcmc.SGLD(step_size=1.0) if sampler is None else sampler,
        sampling=dpmcmc.Poisson(40) if sampling is None else sampling,
        privacy=privacy,
        **kwargs,
    )


def without(body, *mechanisms):
    """The file with these events left out, and ε restated for what is left."""
    body = {**body, "events": [e for e in body["events"] if e["mechanism"] not in mechanisms]}
    return body | {"epsilon": dpmcmc.Guarantee.from_json(body).epsilon}


class Linear:
    """θ = 0, so the gradient of a record is −y·x."""

    def log_prior(self, params):
        return -0.5 * jnp.sum(params**2)

    def log_likelihood(self, params, record):
        return -0.5 * (record["y"] - record["x"] @ params) ** 2


def neighbours(rows: int = 64, size: int = 6):
    rng = np.random.default_rng(5)
    x = rng.normal(size=(rows, size)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = np.full(rows, 3.0, np.float32)
    other = y.copy()
    other[7] = -3.0
    return {"x": x, "y": y}, {"x": x, "y": other}


def hardened_query(rows: int = 64, **kwargs) -> GradientQuery:
    return GradientQuery(Linear(), rows, float(rows), 1.0, None, levels=(4, 4), **kwargs)


CHACHA_KEY = jax.random.key(11, impl=CHACHA20)
LINEAR = dpmcmc.targets.LinearRegression(num_features=D, row_bound=1.0, label_bound=1.0)
LOGISTIC = dpmcmc.targets.LogisticRegression(num_features=D, row_bound=1.0)
