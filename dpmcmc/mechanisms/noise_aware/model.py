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
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.inference import normal_law
from dpmcmc.inference.denoised_moment import Denoised, denoised
from dpmcmc.inference.normal_law import Gaussian, GradientRelease, Local
from dpmcmc.inference.scores import MODEL_SCORES
from dpmcmc.mechanisms.noise_aware.descent import Path, descend
from dpmcmc.mechanisms.noise_aware.model_draws import Likelihood, draws
from dpmcmc.mechanisms.noise_aware.model_rows import LOG, Metric, ModelRows
from dpmcmc.mechanisms.noise_aware.options import Options
from dpmcmc.mechanisms.noise_aware.regression_conclusion import in_posterior_stds
from dpmcmc.mechanisms.noise_aware.release import (
    FIRST_GRADIENT,
    Noise,
    Release,
    below,
    calibrated,
    moment,
    multipliers,
    shares,
    trace,
)
from dpmcmc.mechanisms.noise_aware.strategy import Calibrated
from dpmcmc.mechanisms.one_shot import PrivacySpec, ReleasedDraws
from dpmcmc.mechanisms.sums_in_blocks import float64
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.query.gram_release import RowFacts
from dpmcmc.privacy.query.integer_rows import Exact
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import record_shapes
from dpmcmc.targets.numpyro.model import NumPyroTarget

if TYPE_CHECKING:
    from dpmcmc.targets.numpyro.predictor import Reading


#: Shares of μ² of each second moment: those of the phases' metrics, and the curvature where gradients end.
_MOMENT_SHARES = {"metric_0": 0.04, "metric_1": 0.06, "metric_2": 0.10, "curvature": 0.18}
#: Part of a second moment's share that its trace gets.
_TRACE_PART = 0.05
#: Shares of μ² of the mean log of leverages of each phase, and of the spread; gradients get the rest.
_LEVERAGE_SHARE, _SPREAD_SHARE = 0.01, 0.02
#: Names of noise stds in the settings.
_LEVERAGE, _SPREAD = "leverage_noise_std", "spread_noise_std"
#: Parts of the gradients by whose end the phases end.
_ENDS = (0.2, 0.4, 1.0)
#: Ratio of the budgets of two gradients, one after the other.
_GROWTH = 1.08
#: Part of a phase's gradients that a position is made of, in the first half of a run and in the second.
_EARLY_PART, _LATE_PART = 0.25, 0.6
#: How much wider a phase's guess is than the posterior of the phase before it, in variance.
_WIDER_GUESS = 25.0
#: Longest row of a second moment, in units of a typical leverage.
_LONGEST = 3.0
#: Curvature of a bounded score in units of that of the family's own, about.
_BOUNDED_CURVATURE = 0.7
#: Ridge of a metric, in units of its average direction.
_RIDGE = 0.05
#: Gradients that the position settles in, at least.
_FEWEST_STEPS = 32
#: Least and largest ratio of the score's variance to its curvature.
_LEAST_RATIO, _LARGEST_RATIO = 0.02, 1.5
#: Posterior standard deviations between the mean position of the last gradients and the posterior's mean beyond which
#: the verdict refuses intervals. Where a normal label lies 30 of its standard deviations from the prior's mean it was
#: 11 to 58, and the interval of the scale missed by 9 to 29; elsewhere it was up to 5, and intervals held.
_MOST_AWAY_IN_STD = 6.0
#: Times that the posterior is sampled, each with the covariance of the draws before.
_SAMPLED = 2
#: Options of the mechanism that a NumPyro model does not take, and why.
_NOT_TAKEN = {
    "prior_scale": "which states its prior",
    "covariance": "whose score's spread is released",
    "gram_share": "whose curvature is released",
    "sampler": "whose gradients are each taken at the posterior's mean",
}
#: Curvature of a typical direction, in units of N·L/d.
_TYPICAL_CURVATURE = 0.35


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
        if spec.adjacency == Adjacency.ADD_REMOVE:
            raise UnsupportedCombination(
                "adjacency: an added record moves the others' places, and nothing bounds how that changes the rounding "
                "of a NumPyro model's own code; take replace_one",
                "adjacency",
            )
        for name, why in _NOT_TAKEN.items():
            if getattr(self.options, name) != getattr(Options, name):
                raise UnsupportedCombination(
                    f"{name}: noise_aware takes none on a NumPyro model, {why}; leave it out",
                    name,
                )
        return calibrated(self.releases(spec), below(spec.mu), spec)

    def releases(self, spec: PrivacySpec) -> list[Release]:
        """Return the releases in the order in which they are charged."""
        found = []
        for name, share in _MOMENT_SHARES.items():
            moment_name, trace_name = _names(name)
            rows = self.rows(spec.num_records)
            found.append(moment(moment_name, rows, spec.adjacency, share * (1 - _TRACE_PART)))
            found.append(trace(trace_name, rows, spec.adjacency, share * _TRACE_PART))
        found += [Release(_LEVERAGE, spec.moved * LOG, 1, _LEVERAGE_SHARE)] * len(_ENDS)
        found.append(Release(_SPREAD, 1.0, 1, _SPREAD_SHARE))
        left = 1 - sum(one.share for one in found)
        parts = shares(self.options.steps, _GROWTH)
        return [*found, Release(FIRST_GRADIENT, spec.moved, self.rows(1).size, left * parts[0], parts)]

    def refusal(self, plan: Plan) -> str | None:
        """Return why intervals of the draws do not hold, or None where they do; from public facts."""
        if self.options.steps < _FEWEST_STEPS:
            return f"{self.options.steps} steps are too few; take {_FEWEST_STEPS} or more."
        d = len(self._reading.centre)
        noise = plan.settings["curvature_noise_std"] * math.sqrt(2 * d) * d / (_TYPICAL_CURVATURE * plan.num_records)
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

    def rows(self, num_records: int) -> RowFacts:
        """Return public facts of the rows of a second moment, each within 1."""
        return RowFacts(num_records, len(self._reading.centre), 1.0)

    def check(self, records: PyTree) -> None:
        """Refuse records of other shapes than the plan's; see :meth:`OneShot.check`."""
        shapes = {name: tuple(leaf.shape) for name, leaf in record_shapes(records).items()}
        planned = {name: shape for name, shape, _ in self.target.bound_leaves}
        if shapes != planned:
            raise InputError(f"data: one record has the shapes {shapes}, and the plan was made for {planned}")

    def draw(self, plan: Plan, records: PyTree, streams: Streams) -> ReleasedDraws:
        """Return posterior draws on the real line, leaves (draws, ...)."""
        reading = self._reading
        keys = jax.random.split(streams.noise, self.options.steps + 2 * len(_ENDS) + 2)
        noise = Noise(plan.settings, iter(keys[::-1]))
        run = _Run(
            self.options,
            noise,
            ModelRows(reading, MODEL_SCORES[reading.family], records),
            self.rows(plan.num_records),
            multipliers(plan.settings[FIRST_GRADIENT], shares(self.options.steps, _GROWTH)),
        )
        release, local, at = run.released()
        away = in_posterior_stds(release.position - at.mean, at.covariance)
        doubts = () if away <= _MOST_AWAY_IN_STD else (_far(away),)
        return ReleasedDraws(_draws(run, release, local, at, streams.dynamics), doubts=doubts)


def _far(away: float) -> str:
    """Return the doubt of gradients that end so many standard deviations of the posterior from its mean."""
    return (
        f"gradients end {away:.2g} posterior standard deviations from where they were on average, so that one "
        "curvature does not describe them; take more steps, or a prior that is nearer to what you expect"
    )


def _names(name: str) -> tuple[str, str]:
    """Return the names of the noise of a second moment and of its trace in the settings."""
    return f"{name}_noise_std", f"{name}_trace_noise_std"


class _Run(NamedTuple):
    """A run: its releases in their order.

    Attributes:
        options: of the mechanism.
        noise: of the releases.
        records: rows and scores of the data holder's records, behind sums.
        facts: public ones of the rows of a second moment.
        multipliers: noise multipliers of the gradients, (steps,).
    """

    options: Options
    noise: Noise
    records: ModelRows
    facts: RowFacts
    multipliers: np.ndarray

    def released(self) -> tuple[GradientRelease, Local, Gaussian]:
        """Release everything; return the last gradients, the model of them, and the posterior of both."""
        steps = self.options.steps
        size = self.facts.size
        prior = now = Gaussian(np.zeros(size), self.records.reading.covariance)
        metric = Metric.of(np.eye(size))
        start = 0
        for phase, part in enumerate(_ENDS):
            metric, curvature = self.metric(f"metric_{phase}", metric, now.mean)
            # Gradients of the phases before are a guess: they steer the others, and the posterior forgets them.
            guess = now._replace(covariance=_WIDER_GUESS * now.covariance) if phase else prior
            end = math.ceil(part * steps)
            now, release = self.descend(guess, metric, curvature, range(start, end))
            start = end
        local = self.local(metric, now.mean)
        return release, local, normal_law.posterior(release, local, np.linalg.inv(prior.covariance), now, rounds=12)

    def moment(self, name: str, exact: Exact) -> Denoised:
        """Release a second moment."""
        return denoised(self.noise.gram(exact, self.facts, _names(name)), None)

    def metric(self, name: str, metric: Metric, tau: np.ndarray) -> tuple[Metric, np.ndarray]:
        """Return the metric of the family's own score at τ, and the curvature that it stands for."""
        d, n = self.facts.size, self.facts.num_records
        own = metric._replace(clip=math.inf)
        logs = self.noise.added(self.records.log_leverage(tau, own), _LEVERAGE)
        own = own._replace(leverage=_LONGEST * d * math.exp(np.clip(logs[0] / n, -LOG, LOG)))
        gram = own.leverage * self.moment(name, self.records.curvature(tau, own)[0]).gram
        ridge = np.eye(d) * _RIDGE * np.trace(gram) / d
        found = Metric.of(own.root @ (gram + ridge) @ own.root / n)
        gram = own.root @ gram @ own.root
        bounded = found.bounded(float(np.trace(found.inverse @ gram @ found.inverse)) / n)
        return bounded, _BOUNDED_CURVATURE * gram

    def descend(
        self,
        guess: Gaussian,
        metric: Metric,
        curvature: np.ndarray,
        steps: range,
    ) -> tuple[Gaussian, GradientRelease]:
        """Release the gradients of a phase; return the last posterior and the mean of the latest gradients.

        Args:
            guess: stands in for the prior.
            metric: of the gradients.
            curvature: about that of their sum, (d, d).
            steps: which gradients.
        """
        # The formulas are for a guess about 0, and so are positions here.
        local = Local(curvature, _BOUNDED_CURVATURE * curvature, np.zeros_like)
        square = metric.root @ metric.root
        precision = np.linalg.inv(guess.covariance)

        def gradient(away: np.ndarray, noise_multiplier: float) -> tuple[np.ndarray, float]:
            noisy = self.noise.with_std(self.records.scores(guess.mean + away, metric), noise_multiplier)
            return metric.clip * metric.root @ noisy, metric.clip * noise_multiplier

        def latest(path: Path) -> GradientRelease:
            done = len(path.stds)
            late = steps.start + done - 1 > self.options.steps / 2
            return path.mean(math.ceil((_LATE_PART if late else _EARLY_PART) * done), square)

        def posterior(path: Path, now: Gaussian) -> Gaussian:
            return normal_law.posterior(latest(path), local, precision, now, rounds=2)

        about = guess._replace(mean=np.zeros(self.facts.size))
        now, path = descend(about, Path(), steps, self.multipliers, gradient, posterior, math.inf)
        release = latest(path)
        return now._replace(mean=now.mean + guess.mean), release._replace(position=release.position + guess.mean)

    def local(self, metric: Metric, tau: np.ndarray) -> Local:
        """Release curvature and spread; return the model of the gradient: H, B, and the error of H."""
        exact, spread = self.records.curvature(tau, metric)
        root = metric.root
        most = metric.leverage
        gram, error = self.moment("curvature", exact)
        released = self.noise.added(spread, _SPREAD)[0]
        ratio = released * metric.clip**2 / (most * np.trace(gram))
        ratio = float(np.clip(ratio, _LEAST_RATIO, _LARGEST_RATIO))
        curvature = most * root @ gram @ root
        return Local(curvature, ratio * curvature, normal_law.moved_error(error, math.sqrt(most) * root))


def _draws(run: _Run, release: GradientRelease, local: Local, at: Gaussian, key: jax.Array) -> PyTree:
    """Return draws under the model's own prior, made twice: 𝒞 depends on how they spread."""
    found = run.records.reading
    u = local.curvature @ release.position - release.gradient
    for round_key in jax.random.split(key, _SAMPLED):
        covariance = normal_law.total_covariance(release, local, at)
        root = np.linalg.cholesky(covariance)
        slope = np.linalg.solve(root, local.curvature) / found.scale
        whitened = np.linalg.solve(root, u) + slope @ found.centre
        start = found.centre + found.scale * at.mean
        drawn, places = draws(found, Likelihood(whitened, slope), start, run.options.draws, round_key)
        tau = (places - found.centre) / found.scale
        at = Gaussian(tau.mean(axis=0), np.atleast_2d(np.cov(tau.T)))
    return drawn
