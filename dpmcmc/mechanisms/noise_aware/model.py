r"""NumPyro models whose records meet a bounded score: a metric, gradients, and the curvature where they end.

Every release is a Gaussian one of a sum over records at a public point, in a public metric (``model.py``). In each
of three phases, of which the first starts at the prior's mean and each other where the one before it ended, they are

1. the mean log of records' leverage, which says how long their rows are;
2. the second moment of Λ^½A of the family's own score: the phase's metric, and about its curvature;
3. gradients, each at the posterior's mean given those of the phase before it.

At the end the curvature H of the bounded score and the spread of the score are released. Draws are NUTS on the model's
prior times N(u; Hτ, 𝒞) of the last gradients (``inference/noise_aware.py``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.inference import noise_aware
from dpmcmc.inference.decompositions import eigh, roots
from dpmcmc.inference.noise_aware import (
    Denoised,
    Gaussian,
    GradientRelease,
    Local,
    denoised,
)
from dpmcmc.inference.scores import MODEL_SCORES, BoundedScore, Normal
from dpmcmc.mechanisms.base import MechanismPlan, PrivacySpec, ReleasedDraws
from dpmcmc.mechanisms.minimise import float64
from dpmcmc.mechanisms.noise_aware.gradients import (
    Descent,
    multipliers,
    shares,
)
from dpmcmc.mechanisms.noise_aware.prior import Calibrated, Options
from dpmcmc.mechanisms.rows import FINE_BITS
from dpmcmc.privacy.accounting import Event
from dpmcmc.privacy.accounting.events import Adjacency
from dpmcmc.privacy.query.gaussian_release import gaussian_release, mu_std
from dpmcmc.privacy.query.gram_release import GramRelease, RowFacts, gram_of
from dpmcmc.privacy.query.integer_rows import ROW_BITS, Exact, rounded_rows, unit_of
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.pytree import PyTree, length_of
from dpmcmc.targets.base import record_shapes
from dpmcmc.targets.numpyro.model import NumPyroTarget

if TYPE_CHECKING:
    from dpmcmc.targets.numpyro.predictor import Reading


# ----------------------------------------------------------------------------------------------------
# Rows and bounded scores of a NumPyro model's records: a noise-aware release's access to them.
#
# At a public t a record (x, y) has predictors η(x; t) (``targets/numpyro/model.py``) and rows A = ∂η/∂τ·F⁻¹, (K,
# d), in a public metric F of τ = (t − centre)/scale. Its score in that metric is
#
#     g = v Aᵀψ(η, y),    v = min(1, L/tr(AᵀΛA)),
#
# with ψ bounded and Fisher-consistent and Λ = E[ψ sᵀ], V = E[ψ ψᵀ] (``inference/scores``). The bound of ψ is C/‖A‖ for
# a family of one predictor, and C·u_k/Σ_j u_j‖A_j‖ for part k of several, u their usual sizes, so ‖Aᵀψ‖ <= C. Summed
# over records are
#
# * scores g: ‖g‖ <= C, so a replaced record moves the sum by 2C at most. E[g] = 0 at the parameter that made y, since v
#   and the bounds of ψ are functions of x and t alone, and E[ψ] = 0;
# * curvature v AᵀΛA, the Jacobian of E[g]: RᵀR with R = (vΛ)^½A and ‖R‖² = v tr(AᵀΛA) <= L. A replaced record moves it
#   by √2·L at most in Frobenius norm (``privacy/query/gaussian_release.py``);
# * spread v² tr(AᵀVA) = E‖g‖² <= C²: by C² at most;
# * log(tr(AᵀΛA)/d) brought within ±LOG.
#
# A hard clip stands behind every bound. A record counts if every number that is computed of it is finite: η, A, ‖A‖ in
# float64, its limit, its law. Any other record adds exactly zero to each sum, as an absent one does, and is not
# refused. Each decision is made for one record: no number of a record changes what is computed of another.
#
# Rounding. Each block of records runs one program of one shape, so the bits of a record's numbers depend on the record,
# on public numbers and on its place alone. Under ``replace_one`` and ``zero_out`` all other records keep their places,
# and so their bits. Each record's numbers are rounded to a public grid within their bound, and then added exactly
# (``integer_rows.py``), so nothing is charged for rounding. A place is one of a whole table: such records are not cut
# into partitions.

#: Records of one call of the program.
_ROWS = 1 << 11
#: Bound of |log(tr(AᵀΛA)/d)| of a record.
LOG = 7.0
#: A shorter row is given the limit of a row of this length, so that squares of limits stay finite.
_SHORTEST = 1e-100
#: C in units of √ of a typical leverage, and L in units of C times it.
CLIP, LEVERAGE = 1.0, 2.0


class Metric(NamedTuple):
    """A public metric of (t − centre)/scale, and the bounds that hold in it.

    Attributes:
        root, inverse: F and F⁻¹, symmetric, (d, d).
        clip: C; infinite for the family's own score.
        leverage: L; infinite where rows are not bounded yet.
    """

    root: np.ndarray
    inverse: np.ndarray
    clip: float = np.inf
    leverage: float = np.inf

    @classmethod
    def of(cls, square: np.ndarray) -> Metric:
        """Return the metric F with this F², (d, d)."""
        return cls(*roots((square + square.T) / 2))

    def bounded(self, leverage: float) -> Metric:
        """Return the metric with bounds for records whose tr(AᵀΛA) is typically this."""
        return self._replace(clip=CLIP * math.sqrt(leverage), leverage=LEVERAGE * CLIP * leverage)


class Block(NamedTuple):
    """Some records at one point, all finite; numbers of a record that does not count are zero.

    Attributes:
        counts: whether a record counts, (n,).
        eta: η, (n,) or (n, K).
        rows: A, (n, K, d).
        observed: y, (n,).
        limit: largest ‖ψ‖; (n,), or (n, K) where each predictor has one of its own.
        roots: Λ^½A, (n, K, d), and their squared norms, (n,).
        leverage: tr(AᵀΛA), (n,).
        spread: tr(AᵀVA), (n,).
    """

    counts: np.ndarray
    eta: np.ndarray
    rows: np.ndarray
    observed: np.ndarray
    limit: np.ndarray
    roots: np.ndarray
    leverage: np.ndarray
    spread: np.ndarray


@dataclass(frozen=True)
class ModelRows:
    """The access to records.

    Attributes:
        reading: of the model.
        score: of its family.
        records: leaves (N, ...), NumPy.
    """

    reading: Reading
    score: BoundedScore | Normal
    records: PyTree

    @np.errstate(all="ignore")
    def scores(self, tau: np.ndarray, metric: Metric) -> Exact:
        """Return Σ g/C, (d,), at a public point τ = (t − centre)/scale."""
        total = np.zeros(len(tau), np.int64)
        for block in self._blocks(tau, metric):
            psi = self.score.residual(block.eta, block.observed, block.limit)
            weights = np.minimum(1.0, metric.leverage / np.maximum(block.leverage, 1e-300)) / metric.clip
            each = np.einsum("n,nk,nkd->nd", weights, psi.reshape(len(psi), -1), block.rows)
            each[~block.counts] = 0.0
            total += rounded_rows(each, 1.0).astype(np.int64).sum(axis=0)
        return Exact(total.astype(object), unit_of(1.0, ROW_BITS))

    @np.errstate(all="ignore")
    def curvature(self, tau: np.ndarray, metric: Metric) -> tuple[Exact, Exact]:
        """Return (Σ RᵀR/L (d, d), Σ E‖g‖²/C² (1,))."""
        grams = []
        spread = 0
        for block in self._blocks(tau, metric):
            largest = np.maximum(block.leverage, metric.leverage)
            grams.append(gram_of(block.roots / np.sqrt(largest)[:, None, None], 1.0))
            weights = np.minimum(1.0, metric.leverage / largest) / metric.clip
            spread += _added(np.clip(weights**2 * block.spread, 0.0, 1.0))
        gram = Exact(np.sum([one.steps for one in grams], axis=0), grams[0].unit)
        return gram, _fine(spread)

    @np.errstate(all="ignore")
    def log_leverage(self, tau: np.ndarray, metric: Metric) -> Exact:
        """Return Σ log(tr(AᵀΛA)/d), (1,), each within ±LOG."""
        total = 0
        for block in self._blocks(tau, metric):
            logs = np.clip(np.log(np.maximum(block.leverage / len(tau), 1e-300)), -LOG, LOG)
            total += _added(np.where(block.counts, logs, 0.0))
        return _fine(total)

    def _blocks(self, tau: np.ndarray, metric: Metric) -> Iterator[Block]:
        """Return what is known of the records, in their order."""
        found = self.reading
        count = length_of(self.records)
        t = found.centre + found.scale * tau
        for start in range(0, count, _ROWS):
            at = np.minimum(np.arange(start, start + _ROWS), count - 1)
            with float64():
                batch = {name: leaf[at] for name, leaf in self.records.items()}
                numbers = [np.asarray(part, np.float64) for part in found.program(t, batch)]
            yield self._block(metric, *(part[: count - start] for part in numbers))

    def _block(self, metric: Metric, eta: np.ndarray, jacobian: np.ndarray, observed: np.ndarray) -> Block:
        rows = (jacobian * self.reading.scale) @ metric.inverse
        norms = np.linalg.norm(rows, axis=2)
        counts = _finite(eta, rows, norms, observed)
        eta, rows, norms, observed = (_only(counts, part) for part in (eta, rows, norms, observed))
        eta, limit = self._limits(metric, eta, np.maximum(norms, _SHORTEST))
        curvature, variance = (part.reshape(len(eta), self.score.size, -1) for part in self.score.law(eta, limit))
        counts = counts & (limit.reshape(len(eta), -1) > 0).all(1) & _finite(curvature, variance)
        values, vectors = eigh(_only(counts, curvature))
        roots = np.einsum("nkj,nkd->njd", vectors * np.sqrt(np.maximum(values, 0.0))[:, None], rows)
        leverage = np.sum(roots**2, axis=(1, 2))
        spread = np.einsum("nkl,nkd,nld->n", _only(counts, variance), rows, rows)
        counts = counts & _finite(leverage, spread)
        return Block(
            counts,
            *(_only(counts, part) for part in (eta, rows, observed, limit, roots, leverage, spread)),
        )

    def _limits(self, metric: Metric, eta: np.ndarray, norms: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (η as the score takes it, limits); a limit of the family's own score is infinite for every record."""
        if isinstance(self.score, Normal):
            if math.isinf(metric.clip):
                return eta, np.full(eta.shape, math.inf)
            sizes = self.score.sizes(eta)
            return eta, metric.clip * sizes / np.sum(sizes * norms, axis=1, keepdims=True)
        return eta[:, 0], metric.clip / norms[:, 0]


def _added(numbers: np.ndarray) -> int:
    """Return the sum of records' numbers, each rounded toward zero to 2^-FINE_BITS, in that unit."""
    return int(np.trunc(numbers * 2.0**FINE_BITS).astype(np.int64).sum())


def _fine(steps: int) -> Exact:
    return Exact(np.array([steps], object), 2.0**-FINE_BITS)


def _finite(*parts: np.ndarray) -> np.ndarray:
    """Return of which records all numbers are finite, (n,); parts are (n, ...)."""
    return np.all([np.isfinite(part).reshape(len(part), -1).all(axis=1) for part in parts], axis=0)


def _only(counts: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Return numbers (n, ...), zero for the records that do not count."""
    return np.where(counts.reshape(-1, *[1] * (part.ndim - 1)), part, 0.0)


# ----------------------------------------------------------------------------------------------------
# Draws from a NumPyro model's prior times a normal likelihood of released numbers, by NumPyro's NUTS.
#
# No record is read here. The likelihood is N(u; H t(θ), 𝒞) with t as in ``targets/numpyro/model.py``, and
# everything in it is released. θ lives on the real line, and the prior is the model's own.

#: Chains, transitions of warm-up of each, and transitions from one kept draw to the next.
_CHAINS, _WARMUP, _THIN = 4, 800, 3


class Likelihood(NamedTuple):
    """−log likelihood = ‖whitened − slope·t‖²/2.

    Attributes:
        whitened: (d,).
        slope: (d, d).
    """

    whitened: np.ndarray
    slope: np.ndarray


def draws(
    reading: Reading,
    likelihood: Likelihood,
    start: np.ndarray,
    count: int,
    key: jax.Array,
) -> tuple[PyTree, np.ndarray]:
    """Return posterior draws on the real line, leaves (count, ...), and their t, (count, d).

    Args:
        reading: of the model.
        likelihood: of what was released.
        start: t to start near, (d,).
        count: how many.
        key: of the dynamics.
    """
    kept = -(-count // _CHAINS)
    with float64():
        keys = jax.random.split(key, _CHAINS)
        found = jax.device_get(_program(reading, kept)(reading.start(start), likelihood, keys))
    drawn, places = jax.tree.map(lambda leaf: np.swapaxes(leaf, 0, 1).reshape(-1, *leaf.shape[2:])[:count], found)
    return drawn, places


@functools.lru_cache(maxsize=16)
def _program(reading: Reading, kept: int) -> Callable[..., PyTree]:
    """Return the compiled chains: (start, likelihood, keys (chains,)) -> draws, leaves (chains, kept, ...)."""
    from numpyro.infer.hmc import hmc  # half a second to import

    target = reading.predictor.target

    def potential_of(likelihood: Likelihood) -> Callable[[PyTree], jax.Array]:
        def potential(params: PyTree) -> jax.Array:
            misfit = likelihood.whitened - likelihood.slope @ reading.place(params)
            return 0.5 * misfit @ misfit - target.log_prior(params)

        return potential

    def chain(start: PyTree, likelihood: Likelihood, key: jax.Array) -> PyTree:
        prepare, transition = hmc(potential_fn_gen=potential_of, algo="NUTS")
        state = prepare(
            start,
            num_warmup=_WARMUP,
            dense_mass=True,
            model_args=(likelihood,),
            rng_key=key,
        )

        def step(state: PyTree, _: None) -> tuple[PyTree, PyTree]:
            state = transition(state, (likelihood,))
            return state, state.z

        _, z = jax.lax.scan(step, state, length=_WARMUP + _THIN * kept)
        kept_states = jax.tree.map(lambda leaf: leaf[_WARMUP + _THIN - 1 :: _THIN], z)
        return kept_states, jax.vmap(reading.place)(kept_states)

    return jax.jit(jax.vmap(chain, (None, None, 0)))


#: Shares of μ² of each second moment, of each mean log of leverages and of the spread; gradients get the rest.
_SHARES = {
    "metric_0": 0.04,
    "metric_1": 0.06,
    "metric_2": 0.10,
    "curvature": 0.18,
    "leverage": 0.01,
    "spread": 0.02,
}
#: Parts of the gradients by whose end the phases end.
_ENDS = (0.2, 0.4, 1.0)
#: Part of a second moment's share that its trace gets.
_TRACE = 0.05
#: Ratio of the budgets of two gradients, one after the other; part of a phase's gradients that a position is made of,
#: and of the last phase's that the posterior is made of.
_GROWTH, _LATEST, _LAST = 1.08, 0.25, 0.6
#: How much wider a phase's guess is than the posterior of the phase before it, in variance.
_FORGET = 25.0
#: Longest row of a second moment, in units of a typical leverage.
_LONGEST = 3.0
#: Curvature of a bounded score in units of that of the family's own, about; ridge of a metric in its average direction.
_BOUNDED, _RIDGE = 0.7, 0.05
#: Gradients that the position settles in, at least.
_FEWEST_STEPS = 32
#: Least and largest ratio of the score's variance to its curvature; times that the posterior is sampled.
_RATIOS, _SAMPLED = (0.02, 1.5), 2
#: Options of the mechanism that a NumPyro model does not take, and why.
_NOT_TAKEN = {
    "prior_scale": "which states its prior",
    "covariance": "whose score's spread is released",
    "gram_share": "whose curvature is released",
}
#: Curvature of a typical direction, in units of N·L/d.
_TYPICAL = 0.35


@dataclass(frozen=True)
class ModelGradients:
    """The way of NumPyro models.

    Attributes:
        options: of the mechanism.
        target: the model, bound to its records' shapes.
    """

    options: Options
    target: NumPyroTarget

    def calibrate(self, spec: PrivacySpec) -> Calibrated:
        """Return what the releases cost, and their noise."""
        d = len(self._reading.centre)
        n = spec.num_records
        adjacency = spec.adjacency
        options = self.options
        if adjacency == Adjacency.ADD_REMOVE:
            raise UnsupportedCombination(
                "adjacency: an added record moves the others' places, and nothing bounds how that changes the rounding "
                "of a NumPyro model's own code; take replace_one",
                "adjacency",
            )
        for name, why in _NOT_TAKEN.items():
            if getattr(options, name) != getattr(Options, name):
                raise UnsupportedCombination(
                    f"{name}: noise_aware takes none on a NumPyro model, {why}; leave it out",
                    name,
                )
        mu = spec.mu * (1 - 1e-9)
        settings = dict[str, float]()
        events = list[Event]()
        for name, facts in self.moments(n).items():
            mus = (mu * math.sqrt(_SHARES[name] * part) for part in (1 - _TRACE, _TRACE))
            gram = GramRelease.calibrate(facts, adjacency, *mus)
            settings |= {
                f"{name}_noise_std": gram.noise_std,
                f"{name}_trace_noise_std": gram.trace_std,
            }
            events += spec.gram(gram)
        for name, moves, times in (
            ("leverage", spec.moved * LOG, len(_ENDS)),
            ("spread", 1.0, 1),
        ):
            settings[f"{name}_noise_std"] = std = mu_std(moves, 1, mu * math.sqrt(_SHARES[name]))
            events += [spec.gaussian(std, moves, 1)] * times
        left = 1 - sum(_SHARES.values()) - (len(_ENDS) - 1) * _SHARES["leverage"]
        parts = shares(options.steps, _GROWTH)
        settings["first_noise_multiplier"] = first = mu_std(spec.moved, d, mu * math.sqrt(left * parts[0]))
        events += [spec.gaussian(z, spec.moved, d) for z in multipliers(first, parts)]
        return tuple(events), settings

    def refusal(self, plan: MechanismPlan) -> str | None:
        """Return why intervals of the draws do not hold, or None where they do; from public facts."""
        if self.options.steps < _FEWEST_STEPS:
            return f"{self.options.steps} steps are too few; take {_FEWEST_STEPS} or more."
        d = len(self._reading.centre)
        noise = plan.settings["curvature_noise_std"] * math.sqrt(2 * d) * d / (_TYPICAL * plan.num_records)
        if noise > 1:
            return (
                f"the noise of the curvature of {d} numbers is {noise:.2g} times a typical direction's own, and "
                "intervals covered .83 at 1.4; take a larger epsilon, more records or fewer parameters."
            )
        if self._reading.bent:
            return (
                f"{self._reading.bent}, so the curvature changes along the posterior. Name a quantity that it is "
                "linear in with numpyro.deterministic, and go on with the value that this returns."
            )
        return None

    @property
    def _reading(self) -> Reading:
        from dpmcmc.targets.numpyro.predictor import read

        with float64():
            return read(self.target)

    def moments(self, num_records: int) -> dict[str, RowFacts]:
        """Return public facts of the second moments, each of rows within 1."""
        rows = RowFacts(num_records, len(self._reading.centre), 1.0)
        return {name: rows for name in (*(f"metric_{phase}" for phase in range(len(_ENDS))), "curvature")}

    def check(self, records: PyTree) -> None:
        """Refuse records of other shapes than the plan's; see :meth:`OneShot.check`."""
        shapes = {name: tuple(leaf.shape) for name, leaf in record_shapes(records).items()}
        planned = {name: shape for name, shape, _ in self.target.bound_leaves}
        if shapes != planned:
            raise InputError(f"data: one record has the shapes {shapes}, and the plan was made for {planned}")

    def draw(self, plan: MechanismPlan, records: PyTree, streams: Streams) -> ReleasedDraws:
        """Return posterior draws on the real line, leaves (draws, ...)."""
        rows = ModelRows(self._reading, MODEL_SCORES[self._reading.family], records)
        return ReleasedDraws(_ModelReleases(self, plan, rows).draws(streams))


class _ModelReleases:
    """The releases in their order, and what follows from them; everything but ``rows`` is public."""

    def __init__(self, strategy: ModelGradients, plan: MechanismPlan, rows: ModelRows) -> None:
        self.rows = rows
        self.settings = plan.settings
        self.options = strategy.options
        self.num_records = plan.num_records
        self.size = len(rows.reading.centre)
        self.multipliers = multipliers(
            plan.settings["first_noise_multiplier"],
            shares(strategy.options.steps, _GROWTH),
        )
        self.moments = strategy.moments(plan.num_records)

    def gram(self, name: str, exact: Exact, key: jax.Array) -> Denoised:
        """Release a second moment."""
        stds = (self.settings[f"{name}{part}_noise_std"] for part in ("", "_trace"))
        return denoised(GramRelease(self.moments[name], *stds).of_sum(exact, key), None)

    def draws(self, streams: Streams) -> PyTree:
        """Return posterior draws, leaves (draws, ...)."""
        steps = self.options.steps
        keys = list(jax.random.split(streams.noise, self.options.steps + 2 * len(_ENDS) + 2))
        prior = now = Gaussian(np.zeros(self.size), self.rows.reading.covariance)
        metric = Metric.of(np.eye(self.size))
        start = 0
        for phase, part in enumerate(_ENDS):
            metric, curvature = self._metric(f"metric_{phase}", metric, now.mean, keys)
            # Gradients of the phases before are a guess: they steer the others, and the posterior forgets them.
            guess = now._replace(covariance=_FORGET * now.covariance) if phase else prior
            end = math.ceil(part * steps)
            now, release = self._descend(guess, metric, curvature, slice(start, end), keys)
            start = end
        local = self._local(metric, now.mean, keys)
        at = noise_aware.posterior(release, local, np.linalg.inv(prior.covariance), now, rounds=12)
        return self._sampled(release, local, at, streams.dynamics)

    def _metric(self, name: str, metric: Metric, tau: np.ndarray, keys: list[jax.Array]) -> tuple[Metric, np.ndarray]:
        """Return the metric of the family's own score at τ, and the curvature that it stands for."""
        d = self.size
        n = self.num_records
        own = metric._replace(clip=math.inf)
        exact = self.rows.log_leverage(tau, own)
        logs = gaussian_release(exact, self.settings["leverage_noise_std"], keys.pop())
        own = own._replace(leverage=_LONGEST * d * math.exp(np.clip(logs[0] / n, -LOG, LOG)))
        gram = own.leverage * self.gram(name, self.rows.curvature(tau, own)[0], keys.pop()).gram
        ridge = np.eye(d) * _RIDGE * np.trace(gram) / d
        found = Metric.of(own.root @ (gram + ridge) @ own.root / n)
        gram = own.root @ gram @ own.root
        return found.bounded(float(np.trace(found.inverse @ gram @ found.inverse)) / n), _BOUNDED * gram

    def _descend(
        self,
        guess: Gaussian,
        metric: Metric,
        curvature: np.ndarray,
        steps: slice,
        keys: list[jax.Array],
    ) -> tuple[Gaussian, GradientRelease]:
        """Release gradients, each at the posterior's mean given those before it; return the last posterior and release.

        Args:
            guess: stands in for the prior.
            metric: of the gradients.
            curvature: about that of their sum, (d, d).
            steps: which gradients.
            keys: each is used once.
        """
        z = self.multipliers[steps]
        local = Local(curvature, _BOUNDED * curvature, np.zeros_like)
        late = np.arange(steps.start, steps.stop) > self.options.steps / 2

        def gradient(k: int, away: np.ndarray) -> np.ndarray:
            private = self.rows.scores(guess.mean + away, metric)
            return metric.clip * metric.root @ gaussian_release(private, z[k], keys.pop())

        square = metric.root @ metric.root
        precision = np.linalg.inv(guess.covariance)
        descent = Descent(
            metric.clip * z,
            square,
            precision,
            lambda at: local,
            np.where(late, _LAST, _LATEST),
        )
        # The formulas are for a guess about 0.
        about = guess._replace(mean=np.zeros(self.size))
        now, release = descent.carry_out(gradient, about, steps.start, self.options.steps)
        return now._replace(mean=now.mean + guess.mean), release._replace(position=release.position + guess.mean)

    def _local(self, metric: Metric, tau: np.ndarray, keys: list[jax.Array]) -> Local:
        """Return the model of the gradient: H, B, and the error of H."""
        exact, spread = self.rows.curvature(tau, metric)
        root = metric.root
        most = metric.leverage
        gram, error = self.gram("curvature", exact, keys.pop())
        released = gaussian_release(spread, self.settings["spread_noise_std"], keys.pop())[0]
        ratio = float(np.clip(released * metric.clip**2 / (most * np.trace(gram)), *_RATIOS))
        curvature = most * root @ gram @ root
        return Local(
            curvature,
            ratio * curvature,
            lambda q: most**2 * root @ error(root @ q @ root) @ root,
        )

    def _sampled(self, release: GradientRelease, local: Local, at: Gaussian, key: jax.Array) -> PyTree:
        """Return draws under the model's own prior, made twice: 𝒞 depends on how they spread."""
        found = self.rows.reading
        u = local.curvature @ release.position - release.gradient
        for round_key in jax.random.split(key, _SAMPLED):
            covariance = noise_aware.total_covariance(release, local, at)
            root = np.linalg.cholesky(covariance)
            slope = np.linalg.solve(root, local.curvature) / found.scale
            whitened = np.linalg.solve(root, u) + slope @ found.centre
            start = found.centre + found.scale * at.mean
            drawn, places = draws(found, Likelihood(whitened, slope), start, self.options.draws, round_key)
            tau = (places - found.centre) / found.scale
            at = Gaussian(tau.mean(axis=0), np.atleast_2d(np.cov(tau.T)))
        return drawn
