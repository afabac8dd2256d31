r"""NumPyro models whose records meet a bounded score: a metric, gradients, and the curvature where they end.

Every release is a Gaussian one of a sum over records at a public point, in a public metric (``model.py``). In each
of three phases, of which the first starts at the prior's mean and each other where the one before it ended, they are

1. the mean log of records' leverage, which says how long their rows are;
2. the second moment of Λ^½A of the family's own score: the phase's metric, and about its curvature;
3. gradients, each at the posterior's mean given those of the phase before it.

At the end the curvature H of the bounded score and the spread of the score are released. Draws are NUTS on the model's
prior times N(u; Hτ, 𝒞) of the last gradients (``inference/normal_law.py``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import numpy as np

from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.inference import normal_law
from dpmcmc.inference.denoised_moment import Denoised, denoised
from dpmcmc.inference.normal_law import Gaussian, GradientRelease, Local
from dpmcmc.inference.scores import MODEL_SCORES
from dpmcmc.mechanisms.noise_aware.descent import Descent, multipliers, shares
from dpmcmc.mechanisms.noise_aware.options import Options
from dpmcmc.mechanisms.noise_aware.strategy import Calibrated
from dpmcmc.mechanisms.one_shot import PrivacySpec, ReleasedDraws
from dpmcmc.mechanisms.sums_in_blocks import float64
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting import Event
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.query.gaussian_release import gaussian_release, mu_std
from dpmcmc.privacy.query.gram_release import GramRelease, RowFacts
from dpmcmc.privacy.query.integer_rows import Exact
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import record_shapes
from dpmcmc.targets.numpyro.model import NumPyroTarget

if TYPE_CHECKING:
    from dpmcmc.targets.numpyro.predictor import Reading
from dpmcmc.mechanisms.noise_aware.model_draws import Likelihood, draws
from dpmcmc.mechanisms.noise_aware.model_rows import LOG, Metric, ModelRows

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

    def refusal(self, plan: Plan) -> str | None:
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

    def draw(self, plan: Plan, records: PyTree, streams: Streams) -> ReleasedDraws:
        """Return posterior draws on the real line, leaves (draws, ...)."""
        rows = ModelRows(self._reading, MODEL_SCORES[self._reading.family], records)
        return ReleasedDraws(_ModelReleases(self, plan, rows).draws(streams))


class _ModelReleases:
    """The releases in their order, and what follows from them; everything but ``rows`` is public."""

    def __init__(self, strategy: ModelGradients, plan: Plan, rows: ModelRows) -> None:
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
        at = normal_law.posterior(release, local, np.linalg.inv(prior.covariance), now, rounds=12)
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
            covariance = normal_law.total_covariance(release, local, at)
            root = np.linalg.cholesky(covariance)
            slope = np.linalg.solve(root, local.curvature) / found.scale
            whitened = np.linalg.solve(root, u) + slope @ found.centre
            start = found.centre + found.scale * at.mean
            drawn, places = draws(found, Likelihood(whitened, slope), start, self.options.draws, round_key)
            tau = (places - found.centre) / found.scale
            at = Gaussian(tau.mean(axis=0), np.atleast_2d(np.cov(tau.T)))
        return drawn
