"""Tables and targets of noise-aware tests, and what coverage they ask for."""

import math

import numpy as np
from scipy.special import expit

import dpmcmc
from dpmcmc.inference.logistic_score import Logistic
from dpmcmc.targets import LinearRegression, LogisticRegression

SCORE = Logistic()


def logistic(d):
    return LogisticRegression(prior_scale=1.0, num_features=d, row_bound=1.0)


def linear(d, label_bound=3.0):
    return LinearRegression(prior_scale=1.0, noise_scale=0.5, label_bound=label_bound, num_features=d, row_bound=1.0)


def rows(n, d, rng):
    """Correlated rows of norm at most 1, half of them binary, with an intercept."""
    z = rng.normal(size=(n, d - 1)) @ (np.eye(d - 1) + rng.normal(size=(d - 1, d - 1)) / d)
    half = (d - 1) // 2
    z = np.concatenate([np.ones((n, 1)), z[:, :half] > 0, np.clip(z[:, half:], -3, 3) / 3], axis=1)
    return z / math.sqrt(d)


def table(n, d, seed):
    """(records, the truth, which is drawn from the prior)."""
    rng = np.random.default_rng(seed)
    x, truth = rows(n, d, rng), rng.normal(size=d)
    return {"x": x.astype(np.float32), "y": (rng.random(n) < expit(x @ truth)).astype(np.int32)}, truth


def neighbours(n, d, seed):
    """A table, and tables that differ from it in the first record, far ones among them."""
    records, _ = table(n, d, seed)
    x, y = np.asarray(records["x"], np.float64), np.asarray(records["y"], np.float64)
    corner = np.full(d, 1 / math.sqrt(d))
    for row, label in ((corner, 1.0), (-corner, 0.0), (np.zeros(d), 0.0), (np.eye(d)[0], 1.0), (np.eye(d)[1], 0.0)):
        other = x.copy(), y.copy()
        other[0][0], other[1][0] = row, label
        yield (x, y), other


def linear_table(n, d, seed):
    rng = np.random.default_rng(seed)
    x, truth = rows(n, d, rng), rng.normal(size=d)
    y = x @ truth + 0.5 * rng.normal(size=n)
    return {"x": x.astype(np.float32), "y": np.clip(y, -3, 3).astype(np.float32)}, truth


#: Rows of an owner, at most.
M = 4


def owners_table(num_owners, d, seed, target=None, effect=0.0):
    """(owners of 1 to M rows, the truth); ``effect``: sd of an intercept that each owner has of its own."""
    rng = np.random.default_rng(seed)
    mask = np.arange(M) < rng.integers(1, M + 1, (num_owners, 1))
    x, truth = rows(num_owners * M, d, rng).reshape(num_owners, M, d), rng.normal(size=d)
    margin = x @ truth + effect * rng.normal(size=(num_owners, 1))
    if isinstance(target, LinearRegression):
        y = np.clip(margin + target.noise_scale * rng.normal(size=margin.shape), -3, 3).astype(np.float32)
    else:
        y = (rng.random(margin.shape) < expit(margin)).astype(np.int32)
    return {"x": np.where(mask[..., None], x, 0).astype(np.float32), "y": np.where(mask, y, 0), "mask": mask}, truth


def covered(mechanism, target, make, epsilon, tables, n, level=0.9):
    """Share of coordinates of truths within central intervals, and its standard error over tables."""
    plan = mechanism.plan(target, num_records=n, epsilon=epsilon, delta=n**-1.2)
    inside = []
    for seed in range(tables):
        records, truth = make(n, target.num_features, seed)
        draws = dpmcmc.sample(plan, records, key=seed).draws[0]
        low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
        inside.append(np.mean((low < truth) & (truth < high)))
    return float(np.mean(inside)), float(np.std(inside) / math.sqrt(tables))


def assert_covers(found):
    share, error = found
    assert 0.86 - 3 * error <= share <= 0.94 + 3 * error, found
