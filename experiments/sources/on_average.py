r"""On-average KL privacy: the divergence from replacing one record, averaged over data and record (thesis, chapter 4).

    python -m experiments.sources.on_average [--quick] [--out DIR]

    ε = E_{Z ~ Dⁿ, z ~ D} KL( A(Z) ‖ A([Z₋₁, z]) )

For an exact draw from p(h|Z) ∝ exp(−γ Σ ℓ(z_i, h) − r(h)), r free of the data and the normaliser finite, it is γ times
the generalisation gap of the same loss,

    ε = γ·( E ℓ(z, A(Z)) − E (1/n) Σ ℓ(z_i, A(Z)) ),   z fresh (Theorem 3),

so two estimators must agree: closed forms of each pair, and losses on records that were trained on and fresh ones. The
table has both for ridge regression. It is an average over the distribution of data: it protects no person, is not
differential privacy, and does not compose over the steps of a chain, so such numbers are never added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erfcx

from experiments.sources.script import script

#: Draws a shape of records: (rng, shape) -> x (*shape, d), y shape.
Generator = Callable[[np.random.Generator, tuple[int, ...]], tuple[np.ndarray, np.ndarray]]

#: Numbers of one chunk of a Monte Carlo.
_CHUNK = 2_000_000


class OnAverageKL(NamedTuple):
    """An estimate, in nats, and the standard error of its Monte Carlo. It bounds no one's privacy loss."""

    value: float
    standard_error: float


def from_divergences(divergences: ArrayLike) -> OnAverageKL:
    """Return the mean of KL(A(Z) ‖ A([Z₋₁, z])) over independent pairs, (repeats,), with its standard error."""
    return _mean(np.asarray(divergences, np.float64))


def from_risks(train: ArrayLike, fresh: ArrayLike, gamma: float) -> OnAverageKL:
    """Return γ times the mean gap between losses on fresh and on training records, with its standard error.

    Valid for exact draws of exp(−γ Σ ℓ − r) with this loss and γ.

    Args:
        train: mean loss of one draw on the data it was drawn from, (repeats,), each with data of its own.
        fresh: mean loss of the same draw on records from the same law that it has not seen, (repeats,).
        gamma: γ.
    """
    return _mean(gamma * (np.asarray(fresh, np.float64) - np.asarray(train, np.float64)))


def disagreement(first: OnAverageKL, second: OnAverageKL) -> float:
    """Return the distance of two independent estimates of one number, in its standard errors."""
    spread = float(np.hypot(first.standard_error, second.standard_error))
    if spread == 0:
        return 0.0 if first.value == second.value else np.inf
    return abs(first.value - second.value) / spread


def _mean(values: np.ndarray) -> OnAverageKL:
    return OnAverageKL(float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))))


def laplace_kl(shift: ArrayLike, scale: ArrayLike) -> np.ndarray:
    """KL between Laplace laws of one scale b whose centres differ by ``shift``: D/b + e^{−D/b} − 1."""
    ratio = np.abs(shift) / scale
    # expm1 keeps the small ones, about ratio²/2, from cancelling.
    return ratio + np.expm1(-ratio)


def gaussian_kl(
    mean: np.ndarray, precision: np.ndarray, other_mean: np.ndarray, other_precision: np.ndarray
) -> np.ndarray:
    """KL(N(mean, precision⁻¹) ‖ N(other_mean, other_precision⁻¹)); (..., d) and (..., d, d) -> (...)."""
    change = mean - other_mean
    ratio = np.linalg.solve(precision, other_precision)
    trace = np.trace(ratio, axis1=-2, axis2=-1) - mean.shape[-1]
    log_ratio = np.linalg.slogdet(other_precision)[1] - np.linalg.slogdet(precision)[1]
    return 0.5 * (trace - log_ratio + np.einsum("...i,...ij,...j->...", change, other_precision, change))


def mean_release_kl(gamma: ArrayLike, std: float) -> np.ndarray:
    """On-average KL of h ~ exp(−γ|Z − h|) when the whole data set is replaced and Z − Z' ~ N(0, std²).

    Here the data set Z, a mean say, is one record (thesis, Remark 4.1); ε = γ·std·√(2/π) + 2exp(γ²std²/2)Φ(−γ·std) − 1.
    """
    a = np.asarray(gamma, np.float64) * std
    # 2exp(a²/2)Φ(−a), without overflow.
    return a * np.sqrt(2 / np.pi) + erfcx(a / np.sqrt(2)) - 1


def ridge_divergence(
    generate: Generator, gammas: Sequence[float], *, num_records: int, ridge: float, repeats: int, seed: int
) -> list[OnAverageKL]:
    """On-average KL of exact draws from exp(−γ(Σ(y_i − x_iᵀθ)² + λ‖θ‖²)), by the closed form of each pair.

    Args:
        generate: the law of a record.
        gammas: γ, as in the thesis's Figure 4.2: it multiplies squares without ½.
        num_records: n.
        ridge: λ >= 0.
        repeats: pairs (Z, z).
        seed: of the records, which are generated and so public.

    Returns:
        One for each γ; they share their data.
    """
    parts: list[list[np.ndarray]] = [[] for _ in gammas]
    for rng, size in _chunks(repeats, num_records, seed):
        x, y = generate(rng, (size, num_records))
        new_x, new_y = generate(rng, (size,))
        gram, cross = _sums(x, y)
        other_gram = gram - _square(x[:, 0]) + _square(new_x)
        other_cross = cross - x[:, 0] * y[:, :1] + new_x * new_y[:, None]
        penalty = ridge * np.eye(x.shape[-1])
        first = gram + penalty
        second = other_gram + penalty
        mean = _solve(first, cross)
        other_mean = _solve(second, other_cross)
        for part, gamma in zip(parts, gammas, strict=True):
            part.append(gaussian_kl(mean, 2 * gamma * first, other_mean, 2 * gamma * second))
    return [from_divergences(np.concatenate(part)) for part in parts]


def ridge_risk_gap(
    generate: Generator, gammas: Sequence[float], *, num_records: int, ridge: float, repeats: int, seed: int
) -> list[OnAverageKL]:
    """The same number as :func:`ridge_divergence`, by draws and their squared errors on training and fresh records.

    Args and Returns: as there; each repeat has data, a draw, and ``num_records`` fresh records of its own.
    """
    train: list[list[np.ndarray]] = [[] for _ in gammas]
    fresh: list[list[np.ndarray]] = [[] for _ in gammas]
    for rng, size in _chunks(repeats, 2 * num_records, seed):
        x, y = generate(rng, (size, num_records))
        other_x, other_y = generate(rng, (size, num_records))
        gram, cross = _sums(x, y)
        penalised = gram + ridge * np.eye(x.shape[-1])
        mean = _solve(penalised, cross)
        root = np.linalg.cholesky(penalised)
        # L⁻ᵀz has covariance (LLᵀ)⁻¹; the draws of different γ share z.
        z = rng.standard_normal((*mean.shape, 1))
        unit = np.linalg.solve(np.swapaxes(root, -1, -2), z)[..., 0]
        for i, gamma in enumerate(gammas):
            draw = mean + unit / np.sqrt(2 * gamma)
            train[i].append(np.mean((y - np.einsum("rnd,rd->rn", x, draw)) ** 2, axis=1))
            fresh[i].append(np.mean((other_y - np.einsum("rnd,rd->rn", other_x, draw)) ** 2, axis=1))
    return [
        from_risks(np.concatenate(a), np.concatenate(b), gamma)
        for a, b, gamma in zip(train, fresh, gammas, strict=True)
    ]


def _chunks(repeats: int, records: int, seed: int) -> list[tuple[np.random.Generator, int]]:
    """(generator, repeats) of each chunk; all share one stream, in order."""
    rng = np.random.default_rng(seed)
    size = max(1, _CHUNK // records)
    return [(rng, min(size, repeats - start)) for start in range(0, repeats, size)]


def _sums(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """XᵀX and Xᵀy of each repeat."""
    transposed = np.swapaxes(x, -1, -2)
    return transposed @ x, (transposed @ y[..., None])[..., 0]


def _square(x: np.ndarray) -> np.ndarray:
    return x[..., :, None] * x[..., None, :]


def _solve(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    return np.linalg.solve(matrix, vector[..., None])[..., 0]


def normal_records(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Draw records of a linear model with three normal predictors."""
    x = rng.normal(size=(*shape, 3))
    return x, x @ [1.0, 0.5, 0.0] + rng.normal(size=shape)


def rows(repeats: int, gammas: Sequence[float] = (0.1, 1.0, 10.0)) -> list[dict[str, Any]]:
    """Rows of results.csv."""
    setting: dict[str, Any] = {"num_records": 20, "ridge": 2.0, "repeats": repeats}
    divergences = ridge_divergence(normal_records, gammas, seed=1, **setting)
    gaps = ridge_risk_gap(normal_records, gammas, seed=2, **setting)
    return [
        {
            "gamma": gamma,
            "kl": kl.value,
            "kl_error": kl.standard_error,
            "gap": gap.value,
            "gap_error": gap.standard_error,
            "disagreement": disagreement(kl, gap),
        }
        for gamma, kl, gap in zip(gammas, divergences, gaps, strict=True)
    ]


main = script(
    "on_average",
    "On-average KL of a ridge posterior draw, by two estimators.",
    lambda quick: rows(2000 if quick else 20_000),
    "γ = {gamma:g}: KL {kl:.4g}, γ × generalisation gap {gap:.4g}; {disagreement:.1f} standard errors apart",
)

if __name__ == "__main__":
    raise SystemExit(main())
