"""A small private run, and what a file of it says without some of its events."""

import jax
import numpy as np

import dpmcmc
from dpmcmc.privacy.query.chacha import CHACHA20

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


CHACHA_KEY = jax.random.key(11, impl=CHACHA20)
LINEAR = dpmcmc.targets.LinearRegression(num_features=D, row_bound=1.0, label_bound=1.0)
LOGISTIC = dpmcmc.targets.LogisticRegression(num_features=D, row_bound=1.0)
