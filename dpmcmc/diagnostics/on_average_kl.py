r"""On-average KL privacy: what replacing one record changes on average, over data and record alike.

    ε = E_{Z ~ Dⁿ, z ~ D} KL( A(Z) ‖ A([Z₋₁, z]) )

(Wang, Lei and Fienberg 2016; thesis, chapter 4). For an exact draw from p(h|Z) ∝ exp(−γ Σ ℓ(z_i, h) − r(h)), r free of
the data and the normaliser finite, it is γ times the generalisation gap of the same loss,

    ε = γ·( E ℓ(z, A(Z)) − E (1/n) Σ ℓ(z_i, A(Z)) ),   z fresh (Theorem 3),

so two estimators must agree: :func:`from_divergences` of closed forms, and :func:`from_risks` of losses on records that
were trained on and fresh ones. It is an average over a distribution that has to be drawn from: no protection of any
person, not differential privacy, and it does not compose over the steps of a chain.

CONFIDENTIAL where data or losses are those of records: never in the released folder. On generated data it is public.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erfcx, ndtr

from dpmcmc.errors import InputError
from dpmcmc.privacy.accounting import UnsupportedCombination

#: Draws a shape of records: (rng, shape) -> x (*shape, d), y shape.
Generator = Callable[[np.random.Generator, tuple[int, ...]], tuple[np.ndarray, np.ndarray]]

#: Numbers of one chunk of a Monte Carlo.
_CHUNK = 2_000_000


@dataclass(frozen=True)
class OnAverageKL:
    """An estimate, in nats. It bounds no one's privacy loss and does not compose.

    Attributes:
        value: On-average KL.
        standard_error: of the Monte Carlo; 0 for a closed form.
        method: how it was found.
    """

    value: float
    standard_error: float
    method: str

    def compose(self, *_: object) -> NoReturn:
        """Refused.

        Raises:
            UnsupportedCombination: always.
        """
        raise UnsupportedCombination(
            "On-average KL does not compose over iterations: a step starts from an iterate that already depends on the "
            "data, and an average over data says nothing of the data given that iterate; compose a guarantee (rdp, "
            "pld), or take one exact draw."
        )

    def __add__(self, other: object) -> NoReturn:
        """Refused: see :meth:`compose`."""
        self.compose(other)

    __radd__ = __mul__ = __rmul__ = __add__


def laplace_kl(shift: ArrayLike, scale: ArrayLike) -> np.ndarray:
    """KL between Laplace laws of one scale b whose centres differ by ``shift``: D/b + e^{−D/b} − 1."""
    ratio = np.abs(np.asarray(shift, np.float64)) / scale
    # expm1 keeps the small ones, about ratio²/2, from cancelling.
    return ratio + np.expm1(-ratio)


def gaussian_kl(mean: ArrayLike, precision: ArrayLike, other_mean: ArrayLike, other_precision: ArrayLike) -> np.ndarray:
    """KL(N(mean, precision⁻¹) ‖ N(other_mean, other_precision⁻¹)); (..., d) and (..., d, d) -> (...)."""
    mean, other_mean = np.asarray(mean, np.float64), np.asarray(other_mean, np.float64)
    precision, other_precision = np.asarray(precision, np.float64), np.asarray(other_precision, np.float64)
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
    # 2exp(a²/2)Φ(−a), without overflow; below 1e-2 by its series, where the sum cancels.
    series = a * a / 2 - a**3 * np.sqrt(2 / np.pi) / 3 + a**4 / 8
    return np.where(a > 1e-2, a * np.sqrt(2 / np.pi) + erfcx(a / np.sqrt(2)) - 1, series)


def from_divergences(divergences: ArrayLike, method: str = "closed form of each pair") -> OnAverageKL:
    """The mean of KL(A(Z) ‖ A([Z₋₁, z])) over independent pairs, (repeats,), with its standard error.

    Raises:
        ValueError: fewer than two, or one that is not finite.
    """
    return _mean(np.asarray(divergences, np.float64), method)


def from_risks(train: ArrayLike, fresh: ArrayLike, gamma: float) -> OnAverageKL:
    """γ times the mean gap between losses on fresh and on training records, with its standard error.

    CONFIDENTIAL where the losses are those of records. Valid for exact draws of exp(−γ Σ ℓ − r) with this loss and γ.

    Args:
        train: mean loss of one draw on the data it was drawn from, (repeats,), each with data of its own.
        fresh: mean loss of the same draw on records from the same law that it has not seen, (repeats,).
        gamma: γ.

    Raises:
        ValueError: shapes that differ, fewer than two, or a loss that is not finite.
    """
    train, fresh = np.asarray(train, np.float64), np.asarray(fresh, np.float64)
    if train.shape != fresh.shape:
        raise InputError(f"train, fresh: must be of one shape, got {train.shape} and {fresh.shape}.")
    return _mean(gamma * (fresh - train), "risk gap, fresh and training records")


def disagreement(first: OnAverageKL, second: OnAverageKL) -> float:
    """Distance of two independent estimates of one number, in its standard errors."""
    spread = float(np.hypot(first.standard_error, second.standard_error))
    if spread == 0:
        return 0.0 if first.value == second.value else np.inf
    return abs(first.value - second.value) / spread


def agree(first: OnAverageKL, second: OnAverageKL, level: float = 1e-3) -> bool:
    """Whether a two-sided test at ``level`` keeps that two independent estimates are of one number.

    Records that were trained on, another γ or another prior in the risks than in the sampler fail it. A wrong
    temperature shows where a draw's own noise is a good part of the gap, at small γ; at large γ it hardly does.
    """
    return bool(2 * ndtr(-disagreement(first, second)) >= level)


def ridge_divergence(
    generate: Generator, gammas: Sequence[float], *, num_records: int, ridge: float, repeats: int, seed: int
) -> list[OnAverageKL]:
    """On-average KL of exact draws from exp(−γ(Σ(y_i − x_iᵀθ)² + λ‖θ‖²)), by the closed form of each pair.

    Args:
        generate: the law of a record.
        gammas: γ, as in the thesis's Figure 4.2: it multiplies squares without ½, half of ``per_instance``'s γ.
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
        first, second = gram + penalty, other_gram + penalty
        mean, other_mean = _solve(first, cross), _solve(second, other_cross)
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


def _mean(values: np.ndarray, method: str) -> OnAverageKL:
    if values.ndim != 1 or len(values) < 2:
        raise InputError(f"repeats: needs at least two values in one dimension, got shape {values.shape}.")
    if not np.isfinite(values).all():
        raise InputError("repeats: a value is not finite; the mean would be of no use.")
    return OnAverageKL(float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values))), method)


def _chunks(repeats: int, records: int, seed: int) -> list[tuple[np.random.Generator, int]]:
    """(generator, repeats) of each chunk; all share one stream, in order."""
    rng, size = np.random.default_rng(seed), max(1, _CHUNK // records)
    return [(rng, min(size, repeats - start)) for start in range(0, repeats, size)]


def _sums(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """XᵀX and Xᵀy of each repeat."""
    transposed = np.swapaxes(x, -1, -2)
    return transposed @ x, (transposed @ y[..., None])[..., 0]


def _square(x: np.ndarray) -> np.ndarray:
    return x[..., :, None] * x[..., None, :]


def _solve(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
    return np.linalg.solve(matrix, vector[..., None])[..., 0]
