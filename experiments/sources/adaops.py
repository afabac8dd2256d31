r"""AdaOPS: one draw from a ridge posterior whose regularisation and temperature are chosen privately.

    θ ~ N(θ̂, H⁻¹/γ),    H = XᵀX + λI,    θ̂ = H⁻¹Xᵀy        (Wang 2018; thesis, Algorithm 6, corrected)

for rows ‖x‖ <= b and labels |y| <= Y, N public. Three Gaussian-DP stages, each choosing the next one's constants:

1. λ_min(XᵀX) with Gaussian noise of sensitivity b² (Weyl). It moves by [0, b²] when a row is added, so by at most b²
   when one is replaced. ``low`` = release − quantile − b² is below λ_min on both neighbours; λ is chosen from it, and
   h = low + λ <= λ_min(H) on both.
2. log B, B = Y + b‖θ̂‖, a bound on every residual at θ̂. H'(θ̂' − θ̂) = x'(y' − x'·θ̂) − x(y − x·θ̂), so
   ‖θ̂' − θ̂‖ <= kbB/h, and log B moves by at most log(1 + kb²/h): k = 2 for replace_one, 1 otherwise.
3. The draw. Within the slabs |y − x·θ| <= R' around the records that differ, the two potentials are γh-strongly convex
   and their difference is kγbR'-Lipschitz, so the draw is μ-GDP there (``accounting/one_sample.py``):

       μ = kγbR'/√(γh) = k(√(γ/h)·bR + t·b²/h),    R' = R + t·b/√(γh),

   where R is the smaller of stage 2's bound and Y(1 + b·√N·max s/(s² + λ)), and a draw is outside with probability at
   most 2kΦ(−t). γ is the largest whose μ is the share of stage 3.

The parts that may fail (quantiles of stages 1 and 2, slabs) have total probability ``failure``, charged as
``approximate_draw``. The slabs belong to a pair of neighbours, so a group pays it for each of its records
(``accounting/deviations.py``). The proof with every constant, and what is wrong with the printed version, is in
``docs/per_instance.md``.

Claim: AdaOPS costs its three stages, each of which chooses the constants of the next.
Proof: bounds that hold on both neighbours, up to quantiles that are charged.
Held by: test_exact_pairs_of_an_added_record_never_exceed_the_charge,
test_exact_pairs_of_a_replaced_record_never_exceed_the_charge,
test_the_whole_is_as_private_as_it_says_in_one_dimension
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import jax
import numpy as np
from annotated_types import Ge, Gt, Lt
from scipy.special import ndtri

from dpmcmc.errors import CalibrationError, InputError
from dpmcmc.inference.decompositions import eigh
from dpmcmc.mechanisms.base import MechanismPlan, OneShot, PrivacySpec
from dpmcmc.mechanisms.engines import closed_form
from dpmcmc.mechanisms.sufficient import gram_and_moment, linear_bounds, rounding
from dpmcmc.privacy.accounting import Event
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.query.gaussian_release import (
    gaussian_release,
    mu_std,
    standard_normal,
)
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.privacy.query.record_sums import Records
from dpmcmc.targets.base import Positive, Target

#: Share of δ for what may fail.
_FAILURE = 0.05
#: λ is looked for on this grid, in units of the least curvature that any draw needs.
_GRID = np.concatenate([[0.0], np.geomspace(1e-5, 1e5, 601)])
#: Released noise is on a grid of 2^-30 of its std; quantiles leave room for it.
_ROOM = 1 + 2.0**-20


class Chosen(NamedTuple):
    """Settings that the private stages chose; may be published with the draw.

    Attributes:
        ridge: λ.
        curvature: h, at most λ_min(XᵀX + λI).
        residual: R.
        temperature: 1/γ, in squared units of the labels.
    """

    ridge: float
    curvature: float
    residual: float
    temperature: float


@dataclass(frozen=True)
class AdaOPS(OneShot):
    """One draw from a linear regression's ridge posterior, its regularisation and temperature chosen privately.

    Args:
        ridge: λ > 0, public; XᵀX + λI is then known to be at least λ, and no eigenvalue is released: OPS with a fixed
            ridge. Left out: chosen from the private eigenvalue, at least the target's own noise²/prior².
        eigenvalue_share: share of μ² for the smallest eigenvalue of XᵀX; not used with ``ridge``.
        residual_share: share of μ² for the bound on residuals; 0 takes the worst case.

    Raises:
        ValueError: a value outside these, or shares that leave nothing to the draw.

    Example:
        >>> from dpmcmc.mechanisms import AdaOPS
        >>> from dpmcmc.targets import LinearRegression
        >>> target = LinearRegression(num_features=2, row_bound=1.0, label_bound=1.0)
        >>> plan = AdaOPS().plan(target, num_records=1000, epsilon=1.0, delta=1e-5)
        >>> plan.guarantee.epsilon <= 1.0
        True
    """

    ridge: Positive | None = None
    eigenvalue_share: Annotated[float, Gt(0), Lt(1)] = 0.1
    residual_share: Annotated[float, Ge(0), Lt(1)] = 0.1

    release = "one_sample"
    in_floats = "the draw from the posterior"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.eigenvalue_share + self.residual_share >= 1:
            raise InputError(
                "eigenvalue_share: with residual_share it leaves nothing to the draw; lower one of them",
                "eigenvalue_share",
            )

    def reads_sums(self, target: Target) -> bool:
        """Return true: XᵀX and Xᵀy are all that it reads."""
        return True

    def calibrate(self, target: Target, spec: PrivacySpec) -> MechanismPlan:
        """Settle the share of every stage.

        Raises:
            UnsupportedCombination: another target than linear regression.
            CalibrationError: a ``ridge`` so small that no temperature is private.
            ValueError: no row_bound or label_bound.
        """
        linear_bounds(target, "adaops")
        if spec.epsilon > 700:
            raise CalibrationError(f"epsilon: adaops takes at most 700, got {spec.epsilon:g}", "epsilon")
        failure = _FAILURE * spec.delta / (1 + math.exp(spec.epsilon))
        mu = gaussian_mu(spec.epsilon, (1 - _FAILURE) * spec.delta) * (1 - 1e-9)
        first = 0.0 if self.ridge is not None else self.eigenvalue_share
        second = self.residual_share
        parts = {"eigenvalue": first, "residual": second, "draw": 1 - first - second}
        mus = {name: mu * math.sqrt(part) for name, part in parts.items()}
        events = [Event("gaussian", spec.moved / mus[name], 1.0, 1) for name in ("eigenvalue", "residual") if mus[name]]
        draw = Event("posterior_draw", spec.moved / mus["draw"], 1.0, 1)
        settings = {
            **{f"{name}_mu": value for name, value in mus.items()},
            "noise_multiplier": draw.noise_multiplier,
            "failure": failure,
        }
        stage = Stage.made(target, spec, settings)
        settings["least_curvature"] = stage.least_curvature
        if self.ridge is None:
            settings["eigenvalue_noise_std"] = stage.eigenvalue_noise
        elif not self.ridge > stage.least_curvature:
            raise CalibrationError(
                f"ridge: {self.ridge:g} is too small for one draw at epsilon {spec.epsilon:g} and delta "
                f"{spec.delta:g}; give one well above {stage.least_curvature:.4g}, or leave it out",
                "ridge",
            )
        failing = Event("approximate_draw", 0.0, failure, 1)
        return self.planned(target, spec, (*events, draw, failing), settings, (closed_form.ASSUMES,))

    def draw(self, plan: MechanismPlan, records: Records, streams: Streams) -> np.ndarray:
        """Return the draw, (1, d)."""
        return self.choose_and_draw(plan, records, streams)[1]

    def choose_and_draw(self, plan: MechanismPlan, records: Records, streams: Streams) -> tuple[Chosen, np.ndarray]:
        """Return (the settings that the private stages chose, the draw (1, d)); one guarantee covers both.

        Args:
            plan: made by :meth:`OneShot.plan`.
            records: checked.
            streams: secret keys.
        """
        stage = Stage.of(plan)
        eigenvalue_key, residual_key = jax.random.split(streams.noise)
        gram, exact_moment = gram_and_moment(records, plan.target)
        values, vectors = eigh(gram.floats)
        moment = vectors.T @ exact_moment.floats
        if self.ridge is None:
            noisy = gaussian_release(values[:1], stage.eigenvalue_noise, eigenvalue_key)
            low = stage.low(float(noisy[0]))
            ridge = stage.choose_ridge(low)
        else:
            low = 0.0
            ridge = self.ridge
        curvatures = np.maximum(values, 0.0) + ridge
        centre = moment / curvatures
        residual = stage.residual_bound(low, ridge)
        if stage.residual_mu:
            size = stage.label + stage.row * float(np.linalg.norm(centre))
            noise = stage.residual_noise(low, ridge)
            noisy = gaussian_release(np.log([size]), noise, residual_key)
            residual = min(residual, stage.residual_from(float(noisy[0]), low, ridge))
        chosen = Chosen(ridge, low + ridge, residual, 1 / stage.precision(low + ridge, residual))
        normal = standard_normal(streams.dynamics, centre.shape)
        drawn = vectors @ (centre + np.sqrt(chosen.temperature / curvatures) * normal)
        return chosen, drawn[None]


class Stage(NamedTuple):
    """The public constants of a plan, and the formulas of its stages; none of them reads a record.

    Attributes:
        row: b.
        label: Y.
        size: d.
        num_records: the larger N of two neighbours.
        factor: k.
        eigenvalue_mu, residual_mu, draw_mu: of the stages.
        failure: probability that each of three bounds may fail with.
        own_ridge: the target's noise²/prior².
        prior_scale: the target's.
    """

    row: float
    label: float
    size: int
    num_records: int
    factor: float
    eigenvalue_mu: float
    residual_mu: float
    draw_mu: float
    failure: float
    own_ridge: float
    prior_scale: float

    @classmethod
    def of(cls, plan: MechanismPlan) -> Stage:
        """Return the stages of a plan of :class:`AdaOPS`."""
        promise = plan.guarantee
        spec = PrivacySpec(plan.num_records, promise.epsilon, promise.delta, promise.adjacency)
        return cls.made(plan.target, spec, plan.settings)

    @classmethod
    def made(cls, target: Target, spec: PrivacySpec, settings: dict[str, float]) -> Stage:
        """Return the stages of what was settled."""
        model, row, label, size = linear_bounds(target, "adaops")
        return cls(
            row,
            label,
            size,
            spec.most_records,
            spec.moved,
            settings["eigenvalue_mu"],
            settings["residual_mu"],
            settings["draw_mu"],
            settings["failure"] / 3,
            (model.noise_scale / model.prior_scale) ** 2,
            model.prior_scale,
        )

    @property
    def quantile(self) -> float:
        """Quantile z with Φ(−z) = failure, for stages 1 and 2."""
        return -float(ndtri(self.failure)) * _ROOM

    @property
    def slab_quantile(self) -> float:
        """Quantile t with 2kΦ(−t) = failure: two sides of each slab."""
        return -float(ndtri(self.failure / (2 * self.factor))) * _ROOM

    @property
    def least_curvature(self) -> float:
        """Curvature h at which the slabs alone cost the share of the draw: k·t·b²/h = μ."""
        return self.factor * self.slab_quantile * self.row**2 / self.draw_mu

    @property
    def eigenvalue_noise(self) -> float:
        """Noise std of stage 1."""
        unsure = self._unsure * self.num_records * self.row**2
        return mu_std(self.row**2 + 2 * unsure, 1, self.eigenvalue_mu)

    def low(self, noisy: float) -> float:
        """Return a bound below λ_min(XᵀX) of both neighbours, except with probability Φ(−quantile)."""
        unsure = self._unsure * self.num_records * self.row**2
        return max(0.0, noisy - self.quantile * self.eigenvalue_noise - self.row**2 - unsure)

    def choose_ridge(self, low: float) -> float:
        """Return λ of least excess risk, by public bounds on the noise and on shrinking prior-sized coefficients.

        Any function of ``low`` is private. This one bounds E‖X(θ − θ*)‖²/d by 1/γ + prior_scale²·max sλ²/(s + λ)² over
        eigenvalues s >= low, at the residual Y + b·prior_scale·√d where stage 2 may find it.
        """
        ridges = np.maximum(self.own_ridge, self.least_curvature * _GRID)
        usual = self.label + self.row * self.prior_scale * math.sqrt(self.size) if self.residual_mu else math.inf

        def risk(ridge: float) -> float:
            h = low + ridge
            if not h > self.least_curvature * (1 + 1e-6):
                return math.inf
            residual = min(usual, self.residual_bound(low, ridge))
            shrunk = ridge / 4 if low <= ridge else low * (ridge / h) ** 2
            return 1 / self.precision(h, residual) + shrunk * self.prior_scale**2

        return float(min(ridges, key=risk))

    def residual_bound(self, low: float, ridge: float) -> float:
        """Return R of the worst case: Y(1 + b√N·max s/(s² + λ)) over s² >= low."""
        largest = math.sqrt(low) / (low + ridge) if low > ridge else 0.5 / math.sqrt(ridge)
        return self.label * (1 + self.row * math.sqrt(self.num_records) * largest)

    def residual_sensitivity(self, low: float, ridge: float) -> float:
        """Return the sensitivity of log B: log(1 + kb²/h)."""
        return math.log1p(self.factor * self.row**2 / (low + ridge))

    def residual_noise(self, low: float, ridge: float) -> float:
        """Return the noise std of stage 2."""
        unsure = self._unsure_residual(low, ridge)
        return mu_std(self.residual_sensitivity(low, ridge) + 2 * unsure, 1, self.residual_mu)

    def residual_from(self, noisy: float, low: float, ridge: float) -> float:
        """Return R of stage 2, at least B of both neighbours except with probability Φ(−quantile)."""
        room = self.quantile * self.residual_noise(low, ridge) + self.residual_sensitivity(low, ridge)
        return math.exp(min(noisy + room + self._unsure_residual(low, ridge), 700.0))

    def precision(self, curvature: float, residual: float) -> float:
        """Return γ, the largest at which k(√(γ/h)·bR + t·b²/h) is the share of the draw."""
        left = self.draw_mu / self.factor - self.slab_quantile * self.row**2 / curvature
        return curvature * (left / (self.row * residual)) ** 2 * (1 - 1e-9)

    @property
    def _unsure(self) -> float:
        """Rounding error of an eigenvalue of XᵀX in float64, relative to N·b²."""
        return rounding(self.size)

    def _unsure_residual(self, low: float, ridge: float) -> float:
        """Rounding error of log B in float64: the condition number of H times that of its parts."""
        return 2 * self._unsure * (self.num_records * self.row**2 + ridge) / (low + ridge)
