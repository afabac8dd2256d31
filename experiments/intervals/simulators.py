"""Rows and labels of simulated tables."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.special import expit, ndtr

#: (rng, N, k) -> covariates (N, k).
Rows = Callable[[np.random.Generator, int, int], np.ndarray]
#: (rng, rows (N, k), η (N,)) -> labels (N,).
Respond = Callable[[np.random.Generator, np.ndarray, np.ndarray], np.ndarray]

#: Coefficient of the square that the model omits; largest count of the schema.
SQUARE, LARGEST_COUNT = 2.0, 100
#: Ends of the range of normal covariates.
END = 4.0


def uniform(rng: np.random.Generator, n: int, k: int) -> np.ndarray:
    return rng.uniform(-1, 1, size=(n, k))


def arcsine(rng: np.random.Generator, n: int, k: int) -> np.ndarray:
    return np.cos(np.pi * rng.random((n, k)))


def normal(rng: np.random.Generator, n: int, k: int) -> np.ndarray:
    return np.clip(rng.normal(size=(n, k)), -END, END)


def half_binary(rng: np.random.Generator, n: int, k: int) -> np.ndarray:
    """Return uniform columns, then as many of 0 and 1."""
    x = uniform(rng, n, k)
    x[:, k // 2 :] = x[:, k // 2 :] > 0
    return x


def correlated(correlation: float) -> Rows:
    """Return rows of uniform columns of equal correlation, joined by a normal copula."""
    of_scores = 2 * math.sin(math.pi * correlation / 6)

    def rows(rng: np.random.Generator, n: int, k: int) -> np.ndarray:
        common = math.sqrt(of_scores) * rng.normal(size=(n, 1))
        return 2 * ndtr(common + math.sqrt(1 - of_scores) * rng.normal(size=(n, k))) - 1

    return rows


def binary(probability: Callable[[np.ndarray], np.ndarray]) -> Respond:
    return lambda rng, x, eta: (rng.random(len(eta)) < probability(eta)).astype(int)


def with_square(rng: np.random.Generator, x: np.ndarray, eta: np.ndarray) -> np.ndarray:
    return binary(expit)(rng, x, eta + SQUARE * (x[:, 0] ** 2 - 1 / 3))


def counts(dispersion: float) -> Respond:
    def respond(rng: np.random.Generator, x: np.ndarray, eta: np.ndarray) -> np.ndarray:
        mixed = rng.gamma(1 / dispersion, dispersion, size=len(eta)) if dispersion else 1.0
        return np.minimum(rng.poisson(np.exp(eta) * mixed), LARGEST_COUNT)

    return respond


def _heteroscedastic(rng: np.random.Generator, x: np.ndarray) -> np.ndarray:
    scale = 0.3 + np.abs(x[:, 0])
    return rng.normal(size=len(x)) * scale / math.sqrt(0.3**2 + 0.3 + 1 / 3)


#: Errors of mean 0 and standard deviation 1.
ERRORS: dict[str, Callable[[np.random.Generator, np.ndarray], np.ndarray]] = {
    "normal": lambda rng, x: rng.normal(size=len(x)),
    "t3": lambda rng, x: rng.standard_t(3, size=len(x)) / math.sqrt(3),
    "skew": lambda rng, x: rng.exponential(size=len(x)) - 1,
    "heteroscedastic": _heteroscedastic,
}


def real(half: float, sigma: float, error: str) -> Respond:
    """Return labels that the range [-half, half] clips, as the schema does."""
    return lambda rng, x, eta: np.clip(eta + sigma * ERRORS[error](rng, x), -half, half)
