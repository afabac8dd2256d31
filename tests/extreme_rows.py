"""Rows of a NumPyro model's records at the ends of each dtype, and how far one of them moves noise-aware releases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import distributions as dist

from dpmcmc.inference.scores import MODEL_SCORES
from dpmcmc.mechanisms.noise_aware.model_rows import LOG, Metric, ModelRows
from dpmcmc.mechanisms.sums_in_blocks import float64
from dpmcmc.privacy.accounting import Adjacency
from dpmcmc.privacy.query.gram_release import RowFacts
from dpmcmc.targets import bind, from_numpyro, record_shapes
from dpmcmc.targets.numpyro.predictor import Reading, read
from tests.one_shot_replay import distance

#: Records of a table; which of them is replaced.
N, AT = 60, 7
#: Largest finite numbers, numbers whose squares overflow, denormals and zeros of each dtype.
EXTREMES: dict[str, tuple[float, ...]] = {
    "float64": (1e160, -1e160, 1e200, 1.7976931348623157e308, -1e308, 1e155, 5e-324, -2e-310, -0.0, 0.0, -10_961.0),
    "float32": (3.4028235e38, -3.4028235e38, 1e20, 1e-45, -1e-40, -0.0, -10_961.0, 700.0),
    "float16": (65504.0, -65504.0, 6e-8, -0.0),
    "int64": (2**63 - 1, -(2**63), 2**53 + 1, -10_961, 0),
    "int32": (2**31 - 1, -(2**31), -10_961, 0),
    "uint8": (255, 0),
}
#: Labels that a family may have, beside those of its records.
LABELS: dict[str, tuple[float, ...]] = {
    "logistic": (0.0, 1.0),
    "poisson": (0.0, 2.0**53, 1.7976931348623157e308, 5e-324),
    "normal": (1.7976931348623157e308, -1.7976931348623157e308, 5e-324, -0.0),
}


def straight(x: Any, y: Any = None) -> None:
    """A regression with a logit that is straight in its sites."""
    w, a = (numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in "wa")
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=a + w * x), obs=y)


def counted(x: Any, y: Any = None) -> None:
    """Counts with a log link."""
    w, a = (numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in "wa")
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(a + w * x)), obs=y)


def twice_exponential(x: Any, y: Any = None) -> None:
    """Counts whose rate is exp(a·exp(b·x)): rows overflow in their norm where x is far from 0."""
    a, b = (numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in "ab")
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(a * jnp.exp(b * x))), obs=y)


def scaled(x: Any, y: Any = None) -> None:
    """A Normal whose location and scale depend on the record."""
    w, a, b = (numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in "wab")
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(a + w * x, jnp.exp(0.1 * b * x)), obs=y)


MODELS: dict[str, Callable[..., None]] = {
    "straight": straight,
    "counted": counted,
    "twice_exponential": twice_exponential,
    "scaled": scaled,
}


def table(dtype: str) -> dict[str, np.ndarray]:
    """Records whose x is of a dtype."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=N) if dtype.startswith("float") else rng.integers(0, 3, size=N)
    return {"x": x.astype(dtype), "y": rng.integers(0, 2, size=N).astype(np.float64)}


def reading(model: str, dtype: str) -> Reading:
    """What is found of a model."""
    with float64():
        return read(bind(from_numpyro(MODELS[model]), record_shapes(table(dtype))))


#: Products of a row and a coordinate whose exponential overflows squared, and nearly by itself.
AIMED = (360.0, -360.0, 705.0, -705.0)


def changed(records: dict[str, np.ndarray], family: str, t: np.ndarray) -> Iterator[dict[str, np.ndarray]]:
    """Tables that have an extreme row, some of them aimed at a point."""
    x = records["x"]
    values = [(value, 1.0) for value in EXTREMES[str(x.dtype)]] + [(x[AT], label) for label in LABELS[family]]
    if x.dtype.kind == "f":
        aimed = (goal / at for goal in AIMED for at in t if at)
        values += [(value, 1.0) for value in aimed if abs(value) < np.finfo(x.dtype).max]
    for value, label in values:
        other = {name: leaf.copy() for name, leaf in records.items()}
        other["x"][AT], other["y"][AT] = value, label
        yield other


class Sums:
    """Everything that noise is added to, at one point: what :class:`ModelGradients` releases."""

    def __init__(self, found: Reading, records: dict[str, np.ndarray], tau: np.ndarray) -> None:
        rows = ModelRows(found, MODEL_SCORES[found.family], records)
        here = Metric.of(np.eye(len(tau)) + 0.1).bounded(0.5)
        own = here._replace(clip=np.inf)
        self.scores, (self.gram, self.spread) = rows.scores(tau, here), rows.curvature(tau, here)
        self.own, self.log = rows.curvature(tau, own)[0], rows.log_leverage(tau, own)

    def apart(self, other: Sums) -> dict[str, float]:
        """Return the distance of each release over what is charged for a replaced record."""
        moved, trace = RowFacts(N, len(self.scores.steps), 1.0).moved(Adjacency.REPLACE_ONE)
        grams = {name: getattr(self, name).floats - getattr(other, name).floats for name in ("gram", "own")}
        return {
            "scores": distance(self.scores, other.scores) / 2,
            "spread": distance(self.spread, other.spread),
            "log": distance(self.log, other.log) / (2 * LOG),
            **{name: float(np.linalg.norm(gram)) / moved for name, gram in grams.items()},
            **{f"trace of {name}": abs(float(np.trace(gram))) / trace for name, gram in grams.items()},
        }


def farthest(model: str, dtype: str) -> dict[str, float]:
    """Return the largest distances that an extreme row makes, at two points; NaN where a sum is not finite."""
    found, records = reading(model, dtype), table(dtype)
    worst: dict[str, float] = {}
    # The first point is where a run begins, near 0.
    for tau in (np.zeros(len(found.centre)), np.full(len(found.centre), -0.7)):
        here = Sums(found, records, tau)
        for other in changed(records, found.family, found.centre + found.scale * tau):
            apart = here.apart(Sums(found, other, tau))
            # A maximum that keeps NaN.
            worst = {name: float(np.maximum(worst.get(name, 0.0), value)) for name, value in apart.items()}
    return worst
