"""Small runs in a private metric, what their releases are of, and what their gradients sum to."""

from typing import Any

import jax
import numpy as np
import pytest

import dpmcmc
from dpmcmc.engine.program import Chain
from dpmcmc.engine.work_table import work_of
from dpmcmc.inference.released_metric import ReleasedMetric
from dpmcmc.privacy.query.gram_release import GramRelease, NoisyGram, gram_of, svec
from dpmcmc.privacy.query.randomness import streams_of

N, D = 300, 3
LOGISTIC = dpmcmc.targets.LogisticRegression(1.0, num_features=D, row_bound=1.0)
LINEAR = dpmcmc.targets.LinearRegression(1.0, 0.5, num_features=D, row_bound=1.0)
SOFTMAX = dpmcmc.targets.SoftmaxRegression(1.0, 3, num_features=D, row_bound=1.0)


def records(n=N, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, D)) * [1.0, 0.3, 0.1]
    x /= np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1)
    return {"x": x.astype(np.float32), "y": (rng.random(n) < 0.5).astype(np.int32)}


def plan_of(target=LOGISTIC, metric=None, epsilon=1.0, delta=1e-4, **more: Any) -> Any:
    metric = dpmcmc.PrivateMetric() if metric is None else metric
    privacy = {key: more.pop(key) for key in ("adjacency", "accountant", "clip") if key in more}
    settings = {"sampler": dpmcmc.SGLD(step_size=0.5), "steps": 6, "num_records": N, "end": None} | more
    promise = dpmcmc.Privacy(epsilon=epsilon, delta=delta, **privacy)
    return dpmcmc.plan(target, privacy=promise, metric=metric, **settings)


def worst_neighbours(metric):
    """Two data sets whose first records are orthogonal and as long as they may be."""
    first, second = records(), records()
    for side, at in ((first, 0), (second, 1)):
        side["x"][0] = np.eye(D, dtype=np.float32)[at] * (100.0 if metric == "second_moment" else 1.0)
    return first, second


def exact(plan, data):
    """Value of the metric's release before its noise, as the library's access computes it."""
    seen = []

    def release(self, x, key):
        seen.append(svec(gram_of(x, self.rows.row_bound).floats))
        return real(self, x, key)

    real = GramRelease.release
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GramRelease, "release", release)
        dpmcmc.sample(plan, data, key=0)
    return seen[0]


def moved_by_long_rows(plan):
    """Distance over C of the gradient sums of two neighbours, whose first rows the metric makes longer than 2C."""
    first, second = records(), records()
    first["x"][0], second["x"][0] = [0, 0, 1], [0, 0, -1]
    first["y"][0] = second["y"][0] = 0
    gram = gram_of(records()["x"], 1.0).floats
    metric = ReleasedMetric("gram", NoisyGram(gram, 0.1, np.trace(gram), 0.1), N, 1.0, plan.privacy.clip, 0.5)
    assert np.linalg.norm(metric.inverse @ [0, 0, 1.0]) > 2 * plan.privacy.clip
    return float(np.linalg.norm(whitened_sum(plan, first, metric) - whitened_sum(plan, second, metric)))


def whitened_sum(plan, data, metric):
    """Exact clipped sum over C at the start, in the units of a metric that is given."""
    chains = work_of(plan)
    chains.read(data, None, None)
    run, rows = chains.before[0].given(metric, chains.bound(streams_of(0)[0], False), chains.records)
    program = chains.program()
    numbers = jax.tree.map(jax.numpy.asarray, program.numbers(run.plan, run.target))
    query = program.query(Chain(numbers, run.streams, np.int32(1), np.int32(0)))
    start = np.zeros(D, np.float32)
    return query.clipped_sum(start, program.prepared(rows), jax.random.key(0)).to_float64(1.0, query.bits)
