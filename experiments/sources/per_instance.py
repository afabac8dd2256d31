r"""Estimates of a generalised linear model without each record in turn, and how far each moves in a noise's own norm.

CONFIDENTIAL: reads every record; never in the released folder.

    θ̂ = argmin J,   J(θ) = Σ_j ℓ_j(x_j·θ + o_j) + (Λ/2)‖θ‖²;      θ̂₋ᵢ = argmin J − ℓ_i

Newton's method finds each of them from θ̂. J − ℓ_i is Λ-strongly convex, so a computed θ is within ‖∇(J − ℓ_i)(θ)‖/Λ of
its minimiser. This certificate, of θ̂ and of θ̂₋ᵢ, is added to their distance: what a record costs stays an upper bound
however well Newton's method ends. Thesis, Lemma 5.14, writes the same distance as an integral of Hessians along the
segment between both, which no formula evaluates; its second identity has a minus sign too many.

**Shapes of noise** (thesis, (5.2) to (5.4)). The release is θ̂ + N(0, σ²A⁻¹), and Δ_i = ‖A^½(θ̂ − θ̂₋ᵢ)‖ is what
``output_perturbation_epsilon`` takes. With M = Gram matrix + ridge·I of public rows, or of a release,

    identity: A = I,      fisher: A = M,      democratic: A = M².

With democratic noise and M of the data, a ridge record costs |residual|·‖x‖/σ, whatever its direction. The noise of a
posterior draw is Fisher's. Differential
privacy gains nothing by a shape: the only bound for all data is ‖A^½‖·(the bound for I), so that the same promise adds
noise in every direction but one. There is no mechanism of it for this reason.

**A released Gram matrix.** Let Ĝ = G + E be released with symmetric noise of variance σ_G² on the diagonal and half of
it off, and M̂ = Ĝ + ridge·I; Fisher's shape is A = |M̂|, its absolute value. A record moves G by ‖x‖² in Frobenius norm.
For a fixed v, vᵀEv ~ N(0, σ_G²‖v‖⁴), and E v has a covariance of at most σ_G²‖v‖²I, so with v = θ̂ − θ̂₋ᵢ

    ‖M̂v‖ <= ‖Mv‖ + σ_G‖v‖√q,                                          q the 1 − β quantile of χ² with d degrees,
    vᵀ|M̂|v <= vᵀMv + ‖v‖²(σ_G t + 2 max(0, σ_G(√(2d) + √(2 log(2/β))) − ridge)),     t the 1 − β/2 quantile of N(0, 1),

each except with probability β, since |M̂| exceeds M̂ by at most twice its most negative eigenvalue, G is not negative and
E λ_max(E) <= σ_G√(2d) (Gordon). Where it holds is a function of the release Ĝ and of the pair of data sets, so both
releases together cost the record what one Gaussian release does of s² = (‖x‖²/σ_G)² + (Δ/σ)², at δ + β.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike
from scipy.special import chdtri, ndtri

from dpmcmc.diagnostics.per_instance.releases import UNIT
from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.mechanisms.minimise import float64, in_float64, strong_convexity
from dpmcmc.storage.blas import on_one_blas_thread
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target, bind, record_shapes
from dpmcmc.targets.linear_predictor import LinearPredictor

#: Newton steps, and halvings of one, at most; numbers of a block of refits.
_STEPS, _HALVINGS, _BLOCK = 60, 40, 1 << 23

Shape = Literal["identity", "fisher", "democratic"]


@dataclass(frozen=True, eq=False)
class Refits:
    """Estimates without each record. CONFIDENTIAL: never in the released folder.

    Attributes:
        estimate: θ̂ of all records, (d,).
        moved: θ̂ − θ̂₋ᵢ, as computed, (n, d).
        certificate: how far each row of ``moved`` may be from the exact one, (n,).

    Example:
        >>> import numpy as np
        >>> from dpmcmc.diagnostics.per_instance import leave_one_out_of
        >>> from dpmcmc.targets import LogisticRegression
        >>> records = {"x": np.array([[1.0], [0.5], [-1.0]]), "y": np.array([1, 0, 0])}
        >>> leave_one_out_of(LogisticRegression(), records).shift().round(3)
        array([0.292, 0.192, 0.292])
    """

    estimate: np.ndarray
    moved: np.ndarray
    certificate: np.ndarray

    @on_one_blas_thread
    def shift(self, root: np.ndarray | None = None) -> np.ndarray:
        """Return upper bounds of ‖A^½(θ̂ − θ̂₋ᵢ)‖, (n,): per-instance sensitivities of the estimate.

        Args:
            root: A^½, (d, d), of :func:`noise_root`; None: the identity.
        """
        if root is None:
            return np.linalg.norm(self.moved, axis=1) + self.certificate
        largest = float(np.linalg.norm(root, 2))
        return np.linalg.norm(self.moved @ root.T, axis=1) + largest * self.certificate

    @on_one_blas_thread
    def shift_with_released_gram(
        self,
        x: ArrayLike,
        *,
        shape: Literal["fisher", "democratic"],
        ridge: float,
        gram_std: float,
        noise_std: float,
        failure: float,
    ) -> np.ndarray:
        """Return s, (n,), of the release of XᵀX and then of the estimate with noise shaped by it.

        Both together cost record i ``output_perturbation_epsilon(s, 1.0, delta − failure)`` at ``delta``.

        Args:
            x: rows, (n, d).
            shape: of the noise on the estimate.
            ridge: added to the Gram matrix, >= 0, public.
            gram_std: σ_G of ``gaussian_release`` of svec(XᵀX).
            noise_std: σ.
            failure: β in (0, 1).

        Raises:
            ValueError: an argument outside these.
        """
        x = np.asarray(x, np.float64)
        if x.shape != self.moved.shape:
            raise InputError(f"x: must be {self.moved.shape}, got {x.shape}", "x")
        if not (gram_std > 0 and noise_std > 0 and ridge >= 0 and 0 < failure < 1):
            raise InputError(
                "gram_std, noise_std, ridge, failure: the first two must be > 0, ridge >= 0 and failure in (0, 1)"
            )
        d = x.shape[1]
        exact = x.T @ x + ridge * np.eye(d)
        v = self.moved
        lengths = np.linalg.norm(v, axis=1) + self.certificate
        noise = gram_std * (math.sqrt(2 * d) + math.sqrt(2 * math.log(2 / failure)))
        if shape == "democratic":
            # M with the record, and without it.
            along = np.sum(x * v, axis=1, keepdims=True)
            images = np.maximum(
                np.linalg.norm(v @ exact, axis=1),
                np.linalg.norm(v @ exact - along * x, axis=1),
            )
            largest = float(np.linalg.norm(exact, 2))
            images = images + largest * self.certificate
            spread = gram_std * math.sqrt(float(chdtri(d, failure)))
            moved = images + spread * lengths
        elif shape == "fisher":
            root = noise_root(x.T @ x, "fisher", ridge)
            far = gram_std * -float(ndtri(failure / 2)) + 2 * max(0.0, noise - ridge)
            moved = np.sqrt(self.shift(root) ** 2 + far * lengths**2)
        else:
            raise InputError(f"shape: must be fisher or democratic, got {shape!r}", "shape")
        return np.hypot(np.sum(x**2, axis=1) / gram_std, moved / noise_std)


@on_one_blas_thread
def noise_root(gram: ArrayLike, shape: Shape, ridge: float = 0.0) -> np.ndarray:
    """Return A^½ of noise N(0, σ²A⁻¹) of a shape, (d, d).

    Args:
        gram: Gram matrix of public rows, or a released one, (d, d); noise may have made it indefinite.
        shape: ``identity``, ``fisher`` or ``democratic``.
        ridge: added to it, >= 0.

    Raises:
        ValueError: another shape, or a matrix that is not square.
    """
    gram = np.asarray(gram, np.float64)
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1] or not ridge >= 0:
        raise InputError("gram, ridge: must be a square matrix, and a number >= 0", "gram")
    values, vectors = np.linalg.eigh((gram + gram.T) / 2 + ridge * np.eye(len(gram)))
    powers = {"identity": 0.0, "fisher": 0.5, "democratic": 1.0}
    if shape not in powers:
        raise InputError(f"shape: must be {', '.join(powers)}, got {shape!r}", "shape")
    return (vectors * np.abs(values) ** powers[shape]) @ vectors.T


@on_one_blas_thread
def leave_one_out_of(
    target: Target,
    records: PyTree,
    regularisation: float | None = None,
    *,
    gradient_tolerance: float = 0.0,
) -> Refits:
    """Return the estimates of a generalised linear model without each record, each with a certificate.

    CONFIDENTIAL: reads every record; never in the released folder.

    Args:
        target: with one linear predictor and convex losses.
        records: leaves (n, ...).
        regularisation: Λ > 0, chosen without the data; None: the target's prior precision.
        gradient_tolerance: γ of the mechanism whose release is meant (``gradient_tolerance`` of its settings): the
            minimiser that it computes may be γ/Λ off, on either data set. 0: the exact minimisers.

    Raises:
        UnsupportedCombination: a target of another kind.
        DataError: records that the target refuses.
        ValueError: values that are not finite, or a tolerance below 0.
    """
    strength = strong_convexity(target, "leave_one_out_of", regularisation)
    if not isinstance(target, LinearPredictor):
        raise UnsupportedCombination(
            "leave_one_out_of is derived for models of one linear predictor, and the target is "
            f"{type(target).__name__}; refit a model of several predictors without the record in question.",
            "target",
        )
    if not 0 <= gradient_tolerance < math.inf:
        raise InputError(
            f"gradient_tolerance: must be finite and >= 0, got {gradient_tolerance}",
            "gradient_tolerance",
        )
    bind(target, record_shapes(records)).check_records(records)
    x = np.asarray(records["x"], np.float64)
    if not np.all(np.isfinite(x)):
        raise InputError("x: holds a value that is not finite; drop such records", "x")
    objective = _Objective(x, strength, _derivatives(target, records))
    nobody = np.array([-1])
    estimate, own = objective.minimisers(nobody, np.zeros((1, x.shape[1])))
    each, certificates = [], []
    rows = max(1, _BLOCK // (len(x) * x.shape[1]))
    for start in range(0, len(x), rows):
        left_out = np.arange(start, min(start + rows, len(x)))
        found, sure = objective.minimisers(left_out, np.repeat(estimate, len(left_out), 0))
        each.append(found)
        certificates.append(sure)
    slack = own[0] + 2 * gradient_tolerance / strength
    return Refits(
        estimate[0],
        estimate - np.concatenate(each),
        np.concatenate(certificates) + slack,
    )


#: Margins (k, n) -> first and second derivatives of the losses, each (k, n).
_Derivatives = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def _derivatives(target: LinearPredictor, records: PyTree) -> _Derivatives:
    with float64():
        data = in_float64(records)

    @jax.jit
    def both(margins: jax.Array, data: PyTree) -> tuple[jax.Array, jax.Array]:
        def residuals(at: jax.Array) -> jax.Array:
            shifted = target.with_offset(at, data.get("offset"))
            return target.weighted(target.residual(shifted, data["y"]), data)

        return jax.jvp(residuals, (margins,), (jnp.ones_like(margins),))

    def derivatives(margins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with float64():
            first, second = both(jnp.asarray(margins), data)
        return np.array(first), np.array(second)

    return derivatives


@dataclass(frozen=True, eq=False)
class _Objective:
    """J, from which single records may be left out.

    Attributes:
        x: rows, (n, d).
        strength: Λ.
        derivatives: of the losses.
    """

    x: np.ndarray
    strength: float
    derivatives: _Derivatives

    def minimisers(self, left_out: np.ndarray, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return minimisers, (k, d), and how far each may be off, (k,).

        Args:
            left_out: record that each is without, (k,); −1: none.
            start: (k, d).
        """
        theta = start.copy()
        gradient, curvature, unsure = self._at(theta, left_out)
        active = np.arange(len(theta))
        for _ in range(_STEPS):
            norms = np.linalg.norm(gradient[active], axis=1)
            # Below its own rounding a gradient says nothing.
            active = active[norms > 0.01 * unsure[active]]
            if not active.size:
                break
            step = self._newton(curvature[active], gradient[active])
            active = self._moved(theta, left_out, active, step, gradient, curvature, unsure)
        bound = (np.linalg.norm(gradient, axis=1) * (1 + 4e-15) + unsure) / self.strength
        return theta, bound

    def _moved(
        self,
        theta: np.ndarray,
        left_out: np.ndarray,
        active: np.ndarray,
        step: np.ndarray,
        gradient: np.ndarray,
        curvature: np.ndarray,
        unsure: np.ndarray,
    ) -> np.ndarray:
        """Move the active parameters until each gradient is shorter, in place; return those that moved."""
        size = np.ones(len(active))
        moved = np.zeros(len(active), bool)
        for _ in range(_HALVINGS):
            trying = np.flatnonzero(~moved)
            if not trying.size:
                break
            at = active[trying]
            tried = theta[at] - size[trying, None] * step[trying]
            found = self._at(tried, left_out[at])
            before = np.linalg.norm(gradient[at], axis=1)
            shorter = np.linalg.norm(found[0], axis=1) < (1 - 1e-4 * size[trying]) * before
            kept = at[shorter]
            theta[kept] = tried[shorter]
            gradient[kept], curvature[kept], unsure[kept] = (part[shorter] for part in found)
            moved[trying[shorter]] = True
            size[trying[~shorter]] /= 2
        return active[moved]

    @np.errstate(over="ignore", invalid="ignore")
    def _at(self, theta: np.ndarray, left_out: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return gradients (k, d), weights of the Hessians (k, n), and bounds on the gradients' rounding, (k,)."""
        n, d = self.x.shape
        first, second = self.derivatives(theta @ self.x.T)
        some = np.flatnonzero(left_out >= 0)
        first[some, left_out[some]] = 0.0
        second[some, left_out[some]] = 0.0
        gradient = first @ self.x + self.strength * theta
        norms = np.linalg.norm(self.x, axis=1)
        length = np.linalg.norm(theta, axis=1)
        # A sum of n terms, a predictor of d terms, and a few roundings of each term (``mechanisms/minimise.py``).
        sums = (n + 16) * (np.abs(first) @ norms) + (d + 2) * length * (second @ norms**2)
        return gradient, second, UNIT * (sums + 4 * self.strength * length)

    def _newton(self, curvature: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Return Newton steps, (k, d)."""
        d = self.x.shape[1]
        weighted = curvature[:, :, None] * self.x
        hessians = weighted.swapaxes(1, 2) @ self.x + self.strength * np.eye(d)
        return np.linalg.solve(hessians, gradient[..., None])[..., 0]
