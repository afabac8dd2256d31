r"""Stochastic-gradient Fisher scoring (Ahn, Korattikara, Welling 2012; DP-SGFS: Wang, thesis Algorithm 5, mended).

    θ' = θ − 2 A_t⁻¹ g̃,   A_t = (s_t² F Fᵀ + V̂_t)/T + Ĥ_t,     g̃ = ∇U(θ) + s_t F Z,     s_t >= √(2T/η_t)

Ĥ is an estimate of the curvature of U, D + λI with D = N × the Fisher information of a record; V̂ = ((1 − q)/q) D is
what minibatches of rate q add to the gradient's covariance; F is the public metric in which gradients are clipped and
noised.

**Law.** With P = 2A⁻¹ the covariance T H⁻¹ is kept exactly, at any step, when A = (s²FFᵀ + V)/T + H:
(I − PH)T H⁻¹(I − HP) + P(s²FFᵀ + V)P = T H⁻¹ − 2TP + P(T H + s²FFᵀ + V)P = T H⁻¹. For a curvature w estimated as ŵ
(F = 1, full batch)

    Var = (T/w) / (1 + T(ŵ − w)/s²),      stable iff  w < s²/T + ŵ,

so a wrong estimate costs O(ηw), and ŵ = 0 is SGLD. (A noisy estimate projected onto D >= 0 is too large where the data
say little: such directions move slower and run colder, by 14 % at the settings of ``adult_prediction_sgfs``.) The
noise is known, so the chain keeps temperature T whatever noise privacy needs, and more noise makes it slower: a small
step is η = 2T/s². With T > 1 the chain is faster and hotter. (The printed algorithm has noise FFᵀ/η beside the damping
4FFᵀ/η: temperature 1/4.)

**When the matrix is factorised.** After 1, 2, ..., 8, 10, 12, 14, 16, 20, ..., 28, 32, 40, ... estimates: numbers of
three leading binary digits, and never more than ``refactor`` apart. Between them Ĥ stays, while the running mean moves
by less than a fifth. So A_t is a function of what was released BEFORE step t. The law needs no more: given the past,
step t has mean θ − 2A_t⁻¹∇U and covariance 4A_t⁻¹(s_t²FFᵀ + V)A_t⁻¹. Ĥ is stored as QΛQᵀ, to which the s_t of any step
can be added. (The first step of ``query`` has no earlier second moment and takes its own.) The rule depends on the
number of the step alone, so the time of a step reveals nothing.

**Where the Fisher information comes from**, and what that costs:

* ``public``     a matrix of one record's Fisher information that was not read from the data: nothing;
* ``gradients``  the running mean of g̃g̃ᵀ − s²FFᵀ over T + r, r = (1 − q)/q, which at stationarity is D + λT/(T + r):
                 nothing, since every g̃ is private already. Under much noise the estimate is poor. The chain starts as
                 SGLD (stable for ηw < 2);
* ``query``      the running mean of private second moments, one every ``query_every`` steps, on the minibatch of its
                 step (or one of its own). At the same cost, few precise ones are worth as much as many noisy ones.

**Guarantee.** θ is post-processing of the releases. ``public`` and ``gradients`` release g̃ alone: subsampled Gaussians
at z = s b/(N C) on the sum of F⁻¹g clipped to C. ``query`` releases Σ clip(g)clip(g)ᵀ beside it, with noise z_V C²: ONE
subsampled Gaussian with z⁻² = z_g⁻² + z_V⁻² in a step that asks, or two events where the minibatches are two (proof in
``privacy/query/second_moment.py``); the other steps cost a gradient. The projection onto D >= 0 is post-processing.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
from annotated_types import Ge, Le

from dpmcmc.errors import InputError
from dpmcmc.privacy.query.matrix_forms import Factors, Form, form_of
from dpmcmc.privacy.query.metric import MatrixLike, PublicMatrix, flat
from dpmcmc.privacy.query.query import PrivateGradient
from dpmcmc.privacy.query.second_moment import GRADIENT, NoiseRatio, SecondMoment
from dpmcmc.samplers.base import Langevin, Queries, tree_norm
from dpmcmc.samplers.langevin import step_allowed, temperature_kept
from dpmcmc.samplers.schedules import PerStep
from dpmcmc.storage.pytree import STATIC, PyTree, is_zero, rebuilt


class SGFSState(NamedTuple):
    """State of the chain, in whitened coordinates.

    Attributes:
        position: θ.
        fisher: running mean of what estimates D, (d, d) or (d,); () where it is public.
        factors: of A_t without its noise s²FFᵀ/T.
        curvature: mean over directions of the Ĥ that is in it, ().
    """

    position: PyTree
    fisher: jax.Array
    factors: Factors
    curvature: jax.Array


class SGFSInfo(NamedTuple):
    """Values at each step: ``gradient_norm`` of the noisy gradient; ``curvature``, the mean over directions of Ĥ,
    whitened."""

    gradient_norm: jax.Array
    curvature: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SGFS(Langevin):
    """Stochastic-gradient Fisher scoring; see :class:`SteppedSampler` for step_size, temperature and num_records.

    Args:
        fisher: where the Fisher information comes from: gradients (already private), query (a private second moment)
            or public.
        public_fisher: one record's Fisher information, public: a number, d numbers, a matrix, or a .npy file of them
            (found from the current folder).
        prior_precision: public curvature λ that every direction has beside the records', for instance 1/prior_scale².
        noise_ratio: noise multiplier of the second moment over the gradient's; larger costs less privacy.
        query_every: steps from one second moment to the next; 1 asks in every step.
        refactor: most estimates from one factorisation to the next; 1 factorises after each.
        own_batch: whether the second moment has a minibatch of its own, and is charged as an event of its own.
        forget: the running mean gives a new estimate the weight max(1/(t + 1), forget).
        structure: dense, diagonal, or auto (dense up to 256 parameters).
        metric: public F: a number, d numbers, a matrix, or a .npy file; gradients are clipped as ‖F⁻¹g‖.

    Raises:
        ValueError: a singular metric; a public Fisher matrix that is not positive semidefinite, or is singular with
            prior_precision 0; a setting without its counterpart.

    Example:
        >>> import dpmcmc
        >>> sampler = dpmcmc.SGFS(step_size=4.0, fisher="query", prior_precision=1.0)
        >>> len(sampler.queries)  # the gradient, and a second moment
        2
    """

    fisher: Literal["gradients", "query", "public"] = dataclasses.field(default="gradients", metadata=STATIC)
    public_fisher: MatrixLike | None = dataclasses.field(default=None, metadata=STATIC)
    prior_precision: Annotated[float, Ge(0)] = 0.0
    noise_ratio: NoiseRatio = dataclasses.field(default=1.0, metadata=STATIC)
    own_batch: bool = dataclasses.field(default=False, metadata=STATIC)
    forget: Annotated[float, Ge(0), Le(1)] = 0.0
    structure: Literal["auto", "dense", "diagonal"] = dataclasses.field(default="auto", metadata=STATIC)
    metric: MatrixLike | None = dataclasses.field(default=None, metadata=STATIC)
    query_every: Annotated[int, Ge(1), Le(2**31 - 1)] = dataclasses.field(default=10, metadata=STATIC)
    refactor: Annotated[int, Ge(1), Le(2**31 - 1)] = dataclasses.field(default=128, metadata=STATIC)
    rate: float = dataclasses.field(default=1.0, kw_only=True, metadata=STATIC)

    def __post_init__(self) -> None:
        super().__post_init__()
        if rebuilt(self):
            return
        if (self.fisher == "public") != (self.public_fisher is not None):
            raise InputError(
                "public_fisher is needed with fisher public, and with nothing else",
                "public_fisher",
            )
        if self.fisher == "gradients" and self.temperature == 0:
            raise InputError(
                "temperature 0 moves nothing once the chain has arrived, so gradients do not show the Fisher "
                "information: use fisher query or public",
                "temperature",
            )
        if self.public_fisher is not None:
            public = PublicMatrix(self.public_fisher, "public_fisher")
            public.check_positive("public_fisher", definite=self.prior_precision == 0)
            object.__setattr__(self, "public_fisher", public)
        if self.metric is not None:
            metric = PublicMatrix(self.metric, "metric")
            metric.check_invertible("metric")
            object.__setattr__(self, "metric", metric)

    @property
    def _f(self) -> PublicMatrix | None:
        return self.metric  # type: ignore[return-value]  # made one by __post_init__

    @property
    def queries(self) -> Queries:
        """One gradient, and with fisher query a second moment."""
        if self.fisher != "query":
            return (GRADIENT,)
        return (GRADIENT, self._second)

    @property
    def _second(self) -> SecondMoment:
        return SecondMoment(self.noise_ratio, self.structure, self.own_batch, every=self.query_every)

    def with_rate(self, rate: float) -> SGFS:
        """The sampler for minibatches of rate b/N."""
        return dataclasses.replace(self, rate=rate)

    def stability_limit(self, noise_std: PerStep, t: PerStep) -> PerStep:
        """Largest stable η·curvature: η(s²/T + ŵ), ŵ a lower bound on the curvature in A."""
        eta = self.eta(t)
        known = self.prior_precision
        if isinstance(self.public_fisher, PublicMatrix):
            assert self.num_records is not None
            known = known + self.num_records * self.public_fisher.smallest()
        damping = eta * noise_std**2 / self.temperature if self.temperature > 0 else 2.0
        return damping * (1.0 if self._f is None else self._f.stretch() ** 2) + eta * known

    def temperature_at(self, noise_std: PerStep, t: PerStep) -> PerStep:
        """T, whatever the noise (η s²/2 at T = 0)."""
        eta = self.eta(t)
        return self.temperature + 0.0 * eta if self.temperature > 0 else temperature_kept(noise_std**2, eta)

    def time_at(self, noise_std: PerStep, t: PerStep) -> PerStep:
        """2T/s², the step where the estimate is small."""
        return step_allowed(noise_std**2, self.temperature) if self.temperature > 0 else self.eta(t)

    def init(self, key: jax.Array, position: PyTree) -> SGFSState:
        """State at ``position``, with an estimate of zero."""
        d = flat(position)[0].size
        for matrix, name in ((self.public_fisher, "public_fisher"), (self._f, "metric")):
            if isinstance(matrix, PublicMatrix):
                matrix.check_size(d, name)
        form = form_of(self.structure, d)
        nothing = jnp.zeros(form.shape(d), jnp.float32)
        factors, curvature = self._factorised(form, nothing)
        return SGFSState(
            position,
            jnp.zeros(()) if self.fisher == "public" else nothing,
            factors,
            curvature,
        )

    def step(
        self, key: jax.Array, state: SGFSState, gradient: PrivateGradient, t: jax.Array
    ) -> tuple[SGFSState, SGFSInfo]:
        """θ' = θ − 2A⁻¹g̃, in whitened coordinates F⁻¹g̃ throughout."""
        position, unflatten = flat(state.position)
        raw = flat(gradient.value)[0]
        white = raw if self._f is None else self._f.whiten(raw)
        form = form_of(self.structure, position.size)
        s2 = jnp.square(gradient.noise_std)
        fisher = self._averaged(form, state.fisher, white, s2, gradient, t)
        kept = (state.factors, state.curvature)
        if self.fisher == "query":
            # With steps between estimates the running mean is that of an earlier step, except at step 0.
            estimate = fisher if self.query_every > 1 else jnp.where(t == 0, fisher, state.fisher)
            before = (t - 1) // self.query_every
            since = (t - 1) % self.query_every
            due = (t == 0) | ((t > 1) & (since == 0) & renews(before + 1, self.refactor))
            kept = self._renewed(form, estimate, kept, due)
        factors, curvature = kept
        damping = jnp.asarray(2 / self.eta(t)) if is_zero(self.temperature) else s2 / self.temperature
        move = factors.solve(damping, white)
        if self._f is not None:
            move = self._f.whiten(move, transpose=True)
        if self.fisher == "gradients":
            # A gradient informs the NEXT step, so that A does not depend on the noise that it divides.
            kept = self._renewed(form, fisher, kept, renews(t + 1, self.refactor))
        following = SGFSState(unflatten(position - 2 * move), fisher, *kept)
        return following, SGFSInfo(tree_norm(gradient.value), curvature)

    @property
    def _minibatch_share(self) -> float:
        """r = (1 − q)/q, what minibatches of rate q add to the gradient's covariance, as a multiple of D."""
        return (1 - self.rate) / self.rate

    def _averaged(
        self,
        form: Form,
        old: jax.Array,
        white: jax.Array,
        s2: jax.Array,
        gradient: PrivateGradient,
        t: jax.Array,
    ) -> jax.Array:
        """The running mean with this step's estimate in it; not projected, so that its noise averages out."""

        def mean(count: jax.Array, new: jax.Array) -> jax.Array:
            weight = jnp.maximum(1.0 / (count + 1), self.forget)
            return old + weight * (new - old)

        if self.fisher == "public":
            return old
        if self.fisher == "query":
            asked = lambda: mean(t // self.query_every, gradient.releases[0].value)  # noqa: E731
            return jax.lax.cond(self._second.asks(t), asked, lambda: old)
        return mean(
            t,
            form.shifted(form.outer(white), -s2) / (self.temperature + self._minibatch_share),
        )

    def _renewed(
        self,
        form: Form,
        estimate: jax.Array,
        kept: tuple[Factors, jax.Array],
        due: jax.Array,
    ) -> tuple[Factors, jax.Array]:
        """Return (factors, curvature): new ones of the estimate when they are due, else those of the state."""
        return jax.lax.cond(due, lambda: self._factorised(form, estimate), lambda: kept)

    def _factorised(self, form: Form, estimate: jax.Array) -> tuple[Factors, jax.Array]:
        """Factors of (1 + r/T)D̂ + λ, and the mean over directions of Ĥ = D̂ + λ; whitened."""
        prior = self._prior(form, len(estimate))
        d = len(estimate)
        data = form.factors(self._data_curvature(form, estimate, prior))
        minibatch = 0.0 if is_zero(self.temperature) else self._minibatch_share / self.temperature
        weighted = data._replace(values=(1 + minibatch) * data.values)
        every = form.trace(prior) / d
        curvature = jnp.mean(data.values) + every
        if self._f is None or self._f.array.ndim == 0:  # the prior is the same in every direction
            return weighted._replace(values=weighted.values + every), curvature
        return form.factors(weighted.matrix() + prior), curvature

    def _data_curvature(self, form: Form, estimate: jax.Array, prior: jax.Array) -> jax.Array:
        """D, whitened; its projection onto the positive semidefinite matrices is that of its factors."""
        if isinstance(self.public_fisher, PublicMatrix):
            assert self.num_records is not None
            return self.num_records * form.of(self._whitened(self.public_fisher.operator(len(prior))))
        if self.fisher == "gradients":
            # E[g̃g̃ᵀ − s²] = T(D + λ) + rD: of the prior they show the share T/(T + r).
            return estimate - self.temperature / (self.temperature + self._minibatch_share) * prior
        return estimate

    def _prior(self, form: Form, d: int) -> jax.Array:
        """λF⁻¹F⁻ᵀ, or its diagonal."""
        return self.prior_precision * form.of(self._whitened(jnp.ones(d, jnp.float32)))

    def _whitened(self, matrix: jax.Array) -> jax.Array:
        """F⁻¹MF⁻ᵀ of a public M, (d, d) or its diagonal (d,)."""
        return matrix if self._f is None else self._f.whitened(matrix)


def renews(count: jax.Array, most: int) -> jax.Array:
    """Whether the factors are renewed after so many estimates, at least 1: a multiple of the power of two in use there.

    Args:
        count: estimates up to now.
        most: largest number of estimates between two factorisations.
    """
    count = jnp.asarray(count, jnp.int32)
    apart = 1 << jnp.maximum(29 - jax.lax.clz(count), 0)
    return (count >= 1) & (count % jnp.minimum(apart, most) == 0)
