"""A Plan: everything a run will do, decided before a record is read.

Noise is settled here, once, on the host in float64: s_t = max(what the sampler injects, what privacy needs),
rounded UP to float32. The engine scans that array and the accountant reads the same array, so what is
charged is what is added. Steps where the sampler's own noise suffices are free.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from dpmcmc.errors import CalibrationError, InputError, UnsupportedCombination
from dpmcmc.planning import description as plan_text
from dpmcmc.planning.any_plan import AnyPlan
from dpmcmc.planning.verdict import Verdict, of_plan, of_result
from dpmcmc.privacy.accounting import TRACE_ACCOUNTANTS, discrete_gaussian
from dpmcmc.privacy.accounting.charging import DRAW_SHARE, charged_guarantee, draw_events
from dpmcmc.privacy.accounting.events import Event
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.sampling import Full, Sampling, expected_batch
from dpmcmc.privacy.calibration import calibrate, closed_form
from dpmcmc.privacy.calibration.promise import Privacy
from dpmcmc.privacy.query.fixed_point import fraction_bits
from dpmcmc.privacy.query.query import PrivateGradient
from dpmcmc.privacy.query.second_moment import SecondMoment, asked, multiples, released_shape
from dpmcmc.samplers.base import Sampler, missing_of
from dpmcmc.targets.base import Target


@dataclass(frozen=True, eq=False)
class Plan(AnyPlan):
    """A run before it reads a record; made by :func:`plan`.

    Attributes:
        target, sampler, sampling: what, how, and from which records; the sampler is bound to N.
        num_records: N.
        steps, chains, burn_in, thin: counts of steps; one draw is kept every ``thin`` steps after ``burn_in``.
        privacy: what was asked for, or None for plain SG-MCMC.
        noise_std: s_t, (steps,) float32, std of the noise in gradient units.
        noise_multipliers: s_t·b/(N·C), (steps,) float64, nominal; None without privacy.
        required_multiplier: what the calibrator asked for; 0 where the sampler's own noise suffices.
        guarantee: computed from charged events, or None without privacy.
        free_fraction: share of steps whose noise is the sampler's own.
        slots: rows a batch has room for.
        bits: grid exponent of the exact sum.
        second: the second moment that the sampler asks for beside its gradient, or None.
        second_bits: grid exponent of its sum.
        curvature: public bound on the curvature of the mean loss, or None.
        after: guarantee of the private starting points that the run is given, part of ``guarantee``; or None.
        levels: draws per coordinate of the integer noise of a hardened run, for the gradient and for the second moment.
        coordinates: of integer noise that a step is charged for; None where noise is from floats.
    """

    target: Target
    sampler: Sampler
    sampling: Sampling
    num_records: int
    steps: int
    chains: int
    burn_in: int
    thin: int
    privacy: Privacy | None
    noise_std: np.ndarray
    noise_multipliers: np.ndarray | None
    required_multiplier: float
    guarantee: Guarantee | None
    free_fraction: float
    slots: int
    bits: int
    second: SecondMoment | None = None
    second_bits: int = 0
    curvature: float | None = None
    after: Guarantee | None = None
    levels: tuple[int, int] = (0, 0)
    coordinates: int | None = None

    @property
    def hardened(self) -> bool:
        """Whether its keys are ChaCha20's and its noise is drawn in integers."""
        return self.privacy is not None and self.privacy.hardened

    @property
    def num_draws(self) -> int:
        """Draws kept per chain."""
        return (self.steps - self.burn_in) // self.thin

    @property
    def batch_size(self) -> float:
        """b, the expected batch size."""
        return expected_batch(self.sampling, self.num_records)

    @property
    def temperatures(self) -> np.ndarray:
        """Temperature kept at each step, (steps,) float64; that of the plan's noise, not of minibatch noise."""
        t = np.arange(self.steps, dtype=np.float64)
        return np.broadcast_to(self.sampler.temperature_at(self.noise_std.astype(np.float64), t), t.shape)

    @property
    def times(self) -> np.ndarray:
        """Langevin time of each step, (steps,) float64: η_t, over the friction for momentum samplers."""
        t = np.arange(self.steps, dtype=np.float64)
        return np.broadcast_to(self.sampler.time_at(self.noise_std.astype(np.float64), t), t.shape)

    @property
    def time(self) -> float:
        """Langevin time the chain runs for, the sum of :attr:`times`."""
        return float(np.sum(self.times))

    @property
    def private_time(self) -> float | None:
        """Time that the budget buys EACH chain at temperature 1 from full batches: μ²/(2C²) over the chains.

        (2μ²/C² unless replace_one.) Each step's Gaussian has μ_t = ΔC/s_t with s_t² = 2/η_t, so Σμ_t² = Δ²C²Ση_t/2
        is at most μ², the Gaussian budget of (ε, δ). None without privacy.
        """
        if self.privacy is None or self.guarantee is None:
            return None
        epsilon = self.privacy.epsilon if self.privacy.epsilon is not None else self.guarantee.epsilon
        if not math.isfinite(epsilon):
            return math.inf
        sensitivity = self.guarantee.adjacency.sensitivity
        return 2 * (gaussian_mu(epsilon, self.privacy.delta) / (sensitivity * self.privacy.clip)) ** 2 / self.chains

    @property
    def label(self) -> str:
        """Name of the sampler."""
        return type(self.sampler).__name__

    @property
    def trace(self) -> Plan:
        """The plan itself: the iterates of its sampler leave."""
        return self

    @property
    def draws(self) -> int:  # type: ignore[override]
        """Draws of all chains."""
        return self.num_draws * self.chains

    def verdict_of(self, diagnostics: dict[str, float | None] | None) -> Verdict:
        """Say what the draws are good for; see :class:`AnyPlan`."""
        return of_plan(self) if diagnostics is None else of_result(self, diagnostics)

    @property
    def thesis_multiplier(self) -> tuple[float | None, str | None]:
        """(z of the corrected thesis formula for this many steps, or None; why it does not apply, or None)."""
        if self.privacy is None or self.privacy.epsilon is None:
            return None, "no target epsilon"
        inputs: dict[str, Any] = {
            "epsilon": self.privacy.epsilon,
            "delta": self.privacy.delta,
            "steps": self.steps * self.chains * len(multiples(self.second)),
            "rate": self.batch_size / self.num_records,
        }
        return closed_form.formula(**inputs), closed_form.condition(**inputs)

    def to_json(self, secret: bool = True) -> dict[str, object]:
        """The plan in numbers; holds no record and no key.

        Args:
            secret: whether the run's noise is; without that there is no guarantee.
        """
        temperatures = self.temperatures
        z = self.noise_multipliers
        return {
            "target": repr(self.target),
            "sampler": repr(self.sampler),
            "sampling": {
                "scheme": self.sampling.scheme,
                "batch_size": self.batch_size,
                "rate": self.sampling.rate(self.num_records),
                "charged_rate": self.sampling.charged_rate(self.num_records),
                "slots": self.slots,
            },
            "num_records": self.num_records,
            "unit": getattr(self.target, "unit", "record"),
            "steps": self.steps,
            "chains": self.chains,
            "burn_in": self.burn_in,
            "thin": self.thin,
            "draws_per_chain": self.num_draws,
            "noise_multiplier": None if z is None else {"min": float(z.min()), "max": float(z.max())},
            "required_multiplier": None if z is None else self.required_multiplier,
            "thesis_multiplier": self.thesis_multiplier[0],
            "free_fraction": None if self.privacy is None else self.free_fraction,
            "temperature": {"min": float(temperatures.min()), "max": float(temperatures.max())},
            "temperature_per_step": self._per_step(temperatures),
            "time": self.time,
            "private_time": self.private_time,
            "guarantee": self.guarantee.to_json() if self.guarantee is not None and secret else None,
            **self.verdict.to_json(),
        }

    @staticmethod
    def _per_step(values: np.ndarray, most: int = 200) -> list[list[float]]:
        """[step, value] wherever the value changes; evenly spaced steps where it changes more often than ``most``."""
        # To six digits: float32 noise is rounded up, so that a constant temperature wavers in its seventh.
        unit = 10.0 ** (np.floor(np.log10(np.maximum(np.abs(values), 1e-300))) - 5)
        values = np.round(values / unit) * unit
        changes = np.flatnonzero(np.diff(values, prepend=np.nan) != 0)
        if len(changes) > most:
            changes = np.unique(np.linspace(0, len(values) - 1, most).astype(int))
        return [[int(t), float(values[t])] for t in changes]

    def lines(self, secret: bool = True) -> list[tuple[str, str]]:
        """(label, sentence) pairs that describe the plan to a person; ``secret`` as in :meth:`to_json`."""
        return plan_text.lines(self, secret)

    def facts(self) -> dict[str, object]:
        """Return what ``privacy.json`` says of the plan beside its guarantee."""
        z = self.noise_multipliers
        return {
            "noise_multiplier": None if z is None else {"min": float(z.min()), "max": float(z.max())},
            "multiples": list(multiples(self.second)),
            "steps": self.steps,
            "chains": self.chains,
            "sampling": {
                "scheme": self.sampling.scheme,
                "batch_size": self.batch_size,
                "rate": self.sampling.rate(self.num_records),
                "slots": self.slots,
            },
            "hardened": self.hardened,
            "coordinates": self.coordinates,
            "num_records": self.num_records,
            "free_fraction": None if self.privacy is None else self.free_fraction,
        }


def plan(
    target: Target,
    *,
    num_records: int,
    sampler: Sampler,
    sampling: Sampling | None = None,
    steps: int,
    chains: int = 1,
    burn_in: int = 0,
    thin: int = 1,
    privacy: Privacy | None = None,
    curvature: float | None = None,
    after: Guarantee | None = None,
) -> Plan:
    """Decide noise and guarantee for a run, without data.

    Args:
        target: the model.
        num_records: N, a public constant.
        sampler: for example ``dpmcmc.SGLD(step_size=16.0)``.
        sampling: ``Poisson(b)`` | ``FixedSize(b)`` | ``Full()`` (the default).
        steps: per chain.
        chains: each is charged.
        burn_in: steps before the first kept stretch.
        thin: a draw is kept after every ``thin`` steps.
        privacy: a :class:`Privacy`, or None for plain SG-MCMC.
        curvature: public bound on the largest curvature of the MEAN loss, prior included, if one is known; a step
            beyond its stability limit is refused.
        after: guarantee of private starting points that ``sample`` will be given; the plan's guarantee, and the ε that
            ``privacy`` asks for, are those of both together.

    Returns:
        Plan.

    Raises:
        ValueError: numbers that make no run, δ >= 1/N, a private step without noise.
        UnsupportedCombination: no derivation for the combination.
        CalibrationError: the target cannot be met.
    """
    sampling = Full() if sampling is None else sampling
    _check_counts(num_records, steps, chains, burn_in, thin)
    sampling.validate(num_records)
    if privacy is not None and privacy.release != "trace":
        raise UnsupportedCombination(
            f"release {privacy.release!r} is not that of a sampler's run, whose float32 steps contract only up to "
            "rounding: use release trace, or mechanism certified_ops for a last iterate and ops for one draw."
        )
    if privacy is not None and privacy.accountant not in TRACE_ACCOUNTANTS:
        raise UnsupportedCombination(
            f"accountant {privacy.accountant} is that of a mechanism; for a sampler's trace use one of "
            f"{', '.join(TRACE_ACCOUNTANTS)}."
        )
    if privacy is not None and privacy.delta >= 1 / num_records:
        raise InputError(
            f"delta {privacy.delta:g} is not below 1/num_records = {1 / num_records:.3g}: publishing one random record "
            "outright would meet it; use a smaller delta",
            "delta",
        )
    if curvature is not None and not (curvature > 0 and math.isfinite(curvature)):
        raise InputError(f"curvature must be a finite number > 0, got {curvature}", "curvature")
    b = expected_batch(sampling, num_records)
    missing = missing_of(sampler)
    if missing:
        raise TypeError(
            f"sampler must be a Sampler such as dpmcmc.SGLD(step_size=16.0), got {sampler!r}, which lacks "
            f"{', '.join(missing)}"
        )
    bound = sampler.bind(num_records)
    if hasattr(bound, "with_rate"):
        bound = bound.with_rate(b / num_records)
    second = asked(bound.queries)
    common: dict[str, Any] = {
        "target": target,
        "sampling": sampling,
        "num_records": num_records,
        "steps": steps,
        "chains": chains,
        "burn_in": burn_in,
        "thin": thin,
        "privacy": privacy,
        "curvature": curvature,
        "second": second,
        "after": after,
    }
    if after is not None and (privacy is None or after.adjacency != privacy.adjacency):
        raise UnsupportedCombination("a private start needs a private run after it, under the same adjacency.")
    if privacy is None:
        if getattr(bound, "unresolved", False):
            raise InputError(
                "step_size auto and friction matched are solved from a privacy target; give numbers here", "step_size"
            )
        noise_std = _round_up(_own_noise(bound, steps))
        check_fit(target, bound)
        _check_dynamics(bound, noise_std, curvature)
        return Plan(
            **common,
            sampler=bound,
            noise_std=noise_std,
            noise_multipliers=None,
            required_multiplier=0.0,
            guarantee=None,
            free_fraction=1.0,
            slots=sampling.capacity(num_records, 1e-18)[0],
            bits=0,
        )
    # z = s · unit
    unit = b / (num_records * privacy.clip)
    coordinates = _coordinates(target, second) if privacy.hardened else None
    deviations = () if coordinates is None else draw_events(coordinates, steps, chains)
    if privacy.epsilon is not None:
        _check_deviations(privacy.epsilon, privacy.delta, deviations)
    if getattr(bound, "unresolved", False):
        if privacy.calibrator == "free":
            raise InputError(
                "step_size auto and friction matched need a target: use calibrator numeric with an epsilon",
                "calibrator",
            )
        if not hasattr(bound, "with_noise"):
            raise InputError(
                f"step_size auto needs a sampler with with_noise(noise_std), and {type(bound).__name__} has none: "
                "give a number, or write it",
                "step_size",
            )
        alone = _calibrated(
            privacy, steps, sampling, num_records, chains, np.zeros(steps), multiples(second), after, deviations
        )
        bound = bound.with_noise(alone / unit * (1 + 1e-9))
        if asked(bound.queries) != second:
            raise InputError(
                f"{type(bound).__name__}.with_noise changes what the sampler asks for; it may not", "sampler"
            )
    check_fit(target, bound)
    own = _own_noise(bound, steps)
    required = _calibrated(
        privacy, steps, sampling, num_records, chains, own * unit, multiples(second), after, deviations
    )
    # Rounding noise up to float32 can regroup a long schedule and cost a little more ε than was calibrated.
    for _ in range(6):
        noise_std = _round_up(np.maximum(own, required / unit))
        noise_multipliers, guarantee, slots = _charged(
            privacy, noise_std, unit, sampling, num_records, chains, multiples(second), after, deviations
        )
        if privacy.epsilon is None or guarantee.epsilon <= privacy.epsilon:
            break
        required = 1.002 * max(required, float(own.min()) * unit)
    else:
        raise CalibrationError(
            f"calibrator {privacy.calibrator} asks for noise that accountant {privacy.accountant} does not accept: "
            f"epsilon {guarantee.epsilon:.6g} where {privacy.epsilon:g} was asked. The thesis's formula is proved by "
            "accountant advanced; use that one, or calibrator numeric"
        )
    _check_dynamics(bound, noise_std, curvature)
    loudest = float(noise_multipliers.max())
    bits = fraction_bits(loudest), fraction_bits(loudest * second.ratio) if second is not None else 0
    levels = (0, 0)
    if privacy.hardened:
        _check_deviations(guarantee.epsilon, guarantee.delta, deviations)
        levels = _levels(noise_multipliers, bits, second)
    return Plan(
        **common,
        sampler=bound,
        noise_std=noise_std,
        noise_multipliers=noise_multipliers,
        required_multiplier=required,
        guarantee=guarantee,
        free_fraction=float(np.mean(noise_std == _round_up(own))),
        slots=slots,
        bits=bits[0],
        second_bits=bits[1],
        levels=levels,
        coordinates=coordinates,
    )


def _coordinates(target: Target, second: SecondMoment | None) -> int:
    """Noisy numbers that a step releases, as the target has them now; the query holds the run to them."""
    try:
        params = jax.eval_shape(target.init, jax.random.key(0))
    except Exception:  # shapes that only the data tell
        raise InputError(
            "hardened: integer noise is charged by the coordinate, and this target has its shape from the data alone; "
            "give its number of features (num_features)",
            "hardened",
        ) from None
    released = [params] if second is None else [params, released_shape(second, params).value]
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(released))


def _check_deviations(epsilon: float, delta: float, deviations: tuple[Event, ...]) -> None:
    """Refuse a run whose integer noise deviates from its proof's by more than a small share of δ."""
    distance = sum(e.rate * e.count for e in deviations)
    spent = (1 + math.exp(epsilon)) * distance if epsilon < 600 else math.inf
    if distance and spent > DRAW_SHARE * delta:
        raise UnsupportedCombination(
            f"hardened: at epsilon {epsilon:.4g} the distance {distance:.2g} of integer noise from a Gaussian's costs "
            f"{spent:.2g} of delta {delta:g}, more than its share of {DRAW_SHARE:g}; ask for a smaller epsilon."
        )


def _levels(noise_multipliers: np.ndarray, bits: tuple[int, int], second: SecondMoment | None) -> tuple[int, int]:
    """Draws per coordinate of the integer noise of the gradient and of the second moment."""
    quietest, loudest = float(noise_multipliers.min()), float(noise_multipliers.max())
    gradient = discrete_gaussian.levels_for(quietest * 2.0 ** bits[0], loudest * 2.0 ** bits[0])
    if second is None:
        return gradient, 0
    unit = second.ratio * 2.0 ** bits[1]
    # Entries off the diagonal have 1/√2 of its noise.
    return gradient, discrete_gaussian.levels_for(quietest * unit * 0.5**0.5, loudest * unit)


def _own_noise(sampler: Sampler, steps: int) -> np.ndarray:
    """The sampler's own noise at every step, (steps,) float64."""
    with np.errstate(all="ignore"):
        own = np.asarray(sampler.noise_std(np.arange(steps, dtype=np.float64)), np.float64)
    own = np.broadcast_to(own, (steps,))
    if not (np.all(np.isfinite(own)) and np.all(own >= 0)):
        worst = int(np.argmax(~(np.isfinite(own) & (own >= 0))))
        raise InputError(
            f"step_size: {type(sampler).__name__}.noise_std is {own[worst]:g} at step {worst}; the step size, "
            "or its schedule, must be positive and finite at every step of the run",
            "step_size",
        )
    return own


def check_fit(target: Target, sampler: Sampler) -> None:
    """Refuse a sampler whose public matrices do not fit the target, where its shapes are known already."""
    try:
        params = jax.eval_shape(target.init, jax.random.key(0))
    except Exception:  # shapes that only the data tell; ``sample`` checks again
        return
    state = jax.eval_shape(sampler.init, jax.random.key(0), params)
    second = asked(sampler.queries)
    moment = () if second is None else (released_shape(second, params),)
    number: Any = jax.ShapeDtypeStruct((), np.float32)
    gradient = PrivateGradient(params, number, moment)
    step = jax.ShapeDtypeStruct((), np.int32)
    following = jax.eval_shape(sampler.step, jax.random.key(0), state, gradient, step)
    name = type(sampler).__name__
    if not isinstance(following, tuple) or len(following) != 2 or not hasattr(following[0], "position"):
        raise InputError(f"sampler: {name}.step must return (State, Info), its State with a field position", "sampler")
    if [leaf.shape for leaf in jax.tree.leaves(following[0])] != [leaf.shape for leaf in jax.tree.leaves(state)]:
        raise InputError(f"sampler: {name}.step must return a State of the form that init returns", "sampler")


def _check_dynamics(sampler: Sampler, noise_std: np.ndarray, curvature: float | None) -> None:
    """Refuse noise the dynamics cannot take, and a step beyond the stability limit of a known curvature."""
    s, t = noise_std.astype(np.float64), np.arange(len(noise_std), dtype=np.float64)
    check = getattr(sampler, "check", None)
    if check is not None:
        check(s, t)
    limit = getattr(sampler, "stability_limit", None)
    if curvature is None:
        return
    if limit is None or not hasattr(sampler, "eta"):
        raise InputError(
            f"curvature: {type(sampler).__name__} states no stability_limit to hold against it; leave it out",
            "curvature",
        )
    largest = np.broadcast_to(np.asarray(limit(s, t)), t.shape) / curvature
    step_size = np.broadcast_to(np.asarray(sampler.eta(t)), t.shape) * sampler.num_records  # type: ignore[attr-defined]
    if np.any(step_size >= largest):
        worst = int(np.argmax(step_size / largest))
        raise InputError(
            f"step_size {step_size[worst]:.4g} (step {worst}) is at or beyond the stability limit {largest[worst]:.4g} "
            f"of a mean loss with curvature {curvature:g}: lower it below that",
            "step_size",
        )


def _charged(
    privacy: Privacy,
    noise_std: np.ndarray,
    unit: float,
    sampling: Sampling,
    num_records: int,
    chains: int,
    multiples: tuple[float, ...],
    after: Guarantee | None,
    deviations: tuple[Event, ...],
) -> tuple[np.ndarray, Guarantee, int]:
    """(nominal noise multipliers, guarantee, batch slots) of a noise array."""
    if not np.all(noise_std > 0):
        raise InputError(
            "a private step with no noise has no guarantee: use temperature > 0, or a calibrator other than free",
            "temperature",
        )
    if not np.all(np.isfinite(noise_std)):
        raise InputError("the noise this plan needs overflows float32; use a larger clip or batch", "clip")
    noise_multipliers = noise_std.astype(np.float64) * unit
    guarantee, slots = charged_guarantee(
        noise_multipliers,
        sampling,
        num_records,
        chains,
        delta=privacy.delta,
        adjacency=privacy.adjacency,
        accountant=privacy.accountant,
        release=privacy.release,
        epsilon=privacy.epsilon,
        multiples=multiples,
        after=after,
        deviations=deviations,
    )
    return noise_multipliers, guarantee, slots


def _calibrated(
    privacy: Privacy,
    steps: int,
    sampling: Sampling,
    num_records: int,
    chains: int,
    floor: np.ndarray,
    multiples: tuple[float, ...],
    after: Guarantee | None,
    deviations: tuple[Event, ...],
) -> float:
    if privacy.calibrator == "free":
        return 0.0
    if privacy.calibrator == "closed_form":
        # The formula knows queries alone; what they deviate by, the plan's own accounting finds.
        deviations = ()
    assert privacy.epsilon is not None
    return calibrate(
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        steps=steps,
        sampling=sampling,
        num_records=num_records,
        chains=chains,
        adjacency=privacy.adjacency,
        accountant=privacy.accountant,
        release=privacy.release,
        calibrator=privacy.calibrator,
        floor=floor,
        multiples=multiples,
        beside=deviations if after is None else (*after.events, *deviations),
    )


def _round_up(values: np.ndarray) -> np.ndarray:
    """float32 not below the float64 values, so that no rounding takes noise away."""
    rounded = values.astype(np.float32)
    return np.where(rounded < values, np.nextafter(rounded, np.float32(np.inf)), rounded)


def _check_counts(num_records: int, steps: int, chains: int, burn_in: int, thin: int) -> None:
    for name, value, least in (
        ("num_records", num_records, 1),
        ("steps", steps, 1),
        ("chains", chains, 1),
        ("thin", thin, 1),
        ("burn_in", burn_in, 0),
    ):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise InputError(f"{name} must be a whole number >= {least}, got {value!r}", name)
    if steps - burn_in < thin:
        raise InputError(
            f"no draw would be kept: steps {steps} - burn_in {burn_in} is less than thin {thin}; "
            "take more steps, or a smaller burn_in or thin",
            "thin",
        )
