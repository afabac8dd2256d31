r"""Per-instance losses of a regression's estimate plus noise: estimates without each record, and shapes of noise.

    python -m experiments.sources.per_instance [--quick] --out DIR

    θ̂ = argmin J,   J(θ) = Σ_j ℓ_j(x_j·θ) + (Λ/2)‖θ‖²;      θ̂₋ᵢ = argmin J − ℓ_i

Newton's method finds each of them from θ̂. J − ℓ_i is Λ-strongly convex, so a computed θ is within ‖∇(J − ℓ_i)(θ)‖/Λ of
its minimiser. This certificate, of θ̂ and of θ̂₋ᵢ, is added to their distance: what a record costs stays an upper bound
however well Newton's method ends. Thesis, Lemma 5.14, writes the same distance as an integral of Hessians along the
segment between both, which no formula evaluates; its second identity has a minus sign too many.

**One release.** θ̂ + N(0, σ²A⁻¹), A and σ chosen without the data. With s_i = ‖A^½(θ̂ − θ̂₋ᵢ)‖/σ both directions, adding
and removing record i, are N(0, 1) against N(s_i, 1) (Definitions 5.2 and 5.3), whose exact ε at δ is the accountant's
(Balle and Wang 2018, Theorem 8). Lemma 5.4 prints ε = γΔ√(log(1.25/δ)) for σ = 1/√γ: it has γ for √γ, lacks a 2 under
the root, and is false.

**Shapes of noise** ((5.2) to (5.4)). With M = Gram matrix + Λ·I of public rows,

    identity: A = I,      fisher: A = M,      democratic: A = M².

With democratic noise and M of the data, a ridge record costs |residual|·‖x‖/σ, whatever its direction. The noise of a
posterior draw is Fisher's. Differential privacy gains nothing by a shape: the only bound for all data is ‖A^½‖·(the
bound for I), so that the same promise adds noise in every direction but one.

The table has, for each model and shape, ε of the records of public data, with M of these data and σ such that the noise
has the same mean square: all shapes move the estimate equally far. Each is confidential if records are private.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import expit

import dpmcmc
from dpmcmc.diagnostics.per_instance import UNIT
from dpmcmc.privacy.accounting.gaussian import gaussian_epsilon
from experiments.sources.script import script

SHAPES = {"identity": 0.0, "fisher": 0.5, "democratic": 1.0}
DELTA = 1e-4
#: Newton steps, from the estimate of all records; the certificate says how well they end.
STEPS = 8

#: (margins, labels) -> first and second derivative of each record's loss.
Loss = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


def squared(margin: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the derivatives of ½(y − m)²."""
    return margin - y, np.ones_like(margin)


def logistic(margin: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the derivatives of log(1 + e^m) − ym."""
    return expit(margin) - y, expit(margin) * expit(-margin)


def poisson(margin: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the derivatives of e^m − ym."""
    return np.exp(margin) - y, np.exp(margin)


class Refits(NamedTuple):
    """Estimates without each record. CONFIDENTIAL, unless the records are public.

    Attributes:
        estimate: θ̂ of all records, (d,).
        moved: θ̂ − θ̂₋ᵢ, as computed, (n, d).
        certificate: how far each row of ``moved`` may be from the exact one, (n,).
    """

    estimate: np.ndarray
    moved: np.ndarray
    certificate: np.ndarray

    def shift(self, root: np.ndarray | None = None) -> np.ndarray:
        """Return upper bounds of ‖A^½(θ̂ − θ̂₋ᵢ)‖, (n,); ``root`` is A^½, and None the identity."""
        if root is None:
            return np.linalg.norm(self.moved, axis=1) + self.certificate
        return np.linalg.norm(self.moved @ root.T, axis=1) + np.linalg.norm(root, 2) * self.certificate


def refits(x: np.ndarray, y: np.ndarray, strength: float, loss: Loss, steps: int = STEPS) -> Refits:
    """Return θ̂ and its distance to the estimate without each record, each with a certificate; ``strength`` is Λ > 0."""
    estimate, own = _minimiser(x, y, strength, loss, np.zeros(x.shape[1]), 4 * steps)
    others = [_minimiser(np.delete(x, i, 0), np.delete(y, i), strength, loss, estimate, steps) for i in range(len(x))]
    moved = estimate - np.array([theta for theta, _ in others])
    return Refits(estimate, moved, own + np.array([sure for _, sure in others]))


def _minimiser(
    x: np.ndarray, y: np.ndarray, strength: float, loss: Loss, start: np.ndarray, steps: int
) -> tuple[np.ndarray, float]:
    """Return a minimiser, and how far it may be off."""
    theta = start
    lengths = np.linalg.norm(x, axis=1)
    for step in range(steps + 1):
        first, second = loss(x @ theta, y)
        gradient = first @ x + strength * theta
        # A sum of n terms, a predictor of d terms, and a few roundings of each term (``mechanisms/minimise.py``).
        size = np.linalg.norm(theta)
        sums = (len(x) + 16) * (np.abs(first) @ lengths) + (x.shape[1] + 2) * size * (second @ lengths**2)
        unsure = UNIT * (sums + 4 * strength * size)
        length = np.linalg.norm(gradient)
        # Below its own rounding a gradient says nothing.
        if step == steps or length <= 0.01 * unsure:
            break
        hessian = (second[:, None] * x).T @ x + strength * np.eye(x.shape[1])
        theta = theta - np.linalg.solve(hessian, gradient)
    return theta, float((length * (1 + 4e-15) + unsure) / strength)


def noise_root(gram: np.ndarray, shape: str, ridge: float) -> np.ndarray:
    """Return A^½ of noise N(0, σ²A⁻¹) of a shape, (d, d), from the Gram matrix of public rows."""
    values, vectors = np.linalg.eigh(gram + ridge * np.eye(len(gram)))
    return (vectors * np.abs(values) ** SHAPES[shape]) @ vectors.T


def noisy_estimate_epsilon(shift: np.ndarray | float, noise_std: float, delta: float) -> np.ndarray:
    """Return ε at δ of an estimate plus noise, for shifts in the norm in which it has std ``noise_std``, any shape."""
    return np.vectorize(gaussian_epsilon, otypes=[float])(np.asarray(shift) / noise_std, delta)


def rows(count: int | None) -> list[dict[str, Any]]:
    """Return the rows of results.csv, of ``count`` records of each data set; None: of all."""
    cancer, diabetes = (dpmcmc.data.load(name).train for name in ("breast_cancer", "diabetes"))
    models = {
        "logistic, breast_cancer": (cancer["x"], cancer["y"], 25.0, logistic),
        "linear, diabetes": (diabetes["x"], np.clip(diabetes["y"], -2, 2), 1.0, squared),
        "Poisson, diabetes": (diabetes["x"], np.round(np.exp(np.clip(diabetes["y"], -2, 2) / 2)), 1.0, poisson),
    }
    out = []
    for name, (x, y, strength, loss) in models.items():
        x, y = np.asarray(x, np.float64)[:count], np.asarray(y, np.float64)[:count]
        found = refits(x, y, strength, loss)
        for shape in SHAPES:
            root = noise_root(x.T @ x, shape, strength)
            std = 0.1 * np.sqrt(len(root) / np.trace(np.linalg.inv(root @ root)))
            each = noisy_estimate_epsilon(found.shift(root), float(std), DELTA)
            out.append({
                "model": name,
                "shape": shape,
                "delta": DELTA,
                "median": float(np.median(each)),
                "mean": float(each.mean()),
                "largest": float(each.max()),
                "certificate": float(found.certificate.max()),
            })  # fmt: skip
    return out


main = script(
    "per_instance",
    "ε of each record of an estimate plus noise, by model and shape.",
    lambda quick: rows(60 if quick else None),
    "{model}, {shape}: ε of median {median:.3g}, largest {largest:.3g}",
)

if __name__ == "__main__":
    raise SystemExit(main())
