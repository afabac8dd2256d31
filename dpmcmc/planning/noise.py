"""Noise of a run, settled before a record is read: s_t = max(what the sampler injects, what privacy needs).

It is computed once, on the host in float64, and rounded UP to float32. The engine scans that array and the accountant
reads the same array, so what is charged is what is added. A step where the sampler's own noise suffices is free.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpmcmc.errors import CalibrationError, InputError
from dpmcmc.privacy.accounting import noise_tables
from dpmcmc.privacy.accounting.charging import Schedule, charged_guarantee, check_proved
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.own import named
from dpmcmc.privacy.accounting.promise import Privacy
from dpmcmc.privacy.accounting.sampling import expected_batch
from dpmcmc.privacy.calibration import asked_noise
from dpmcmc.privacy.query.exact_sums import fraction_bits
from dpmcmc.privacy.query.second_moment import SecondMoment
from dpmcmc.samplers.base import Sampler


@dataclass(frozen=True, eq=False)
class Noise:
    """Settled noise of a run, and what it costs; with the defaults there is no privacy.

    Attributes:
        noise_std: s_t, (steps,) float32, std of the noise in gradient units, of a metric if there is one.
        slots: rows a batch has room for.
        promise: what was asked for.
        guarantee: computed from the charged events of the run and of the stages before it.
        noise_multipliers: s_t·b/(N·C), (steps,) float64, nominal.
        required_multiplier: what the calibrator asked for; 0 where the sampler's own noise suffices.
        free_fraction: share of steps whose noise is the sampler's own.
        bits: grid exponent of the exact sum.
        second_bits: grid exponent of the sum of the second moment.
        levels: draws per coordinate of the integer noise, for the gradient and for the second moment.
        coordinates: of integer noise that a step is charged for; None: an audit's run, which may have any number.
    """

    noise_std: np.ndarray
    slots: int
    promise: Privacy | None = None
    guarantee: Guarantee | None = None
    noise_multipliers: np.ndarray | None = None
    required_multiplier: float = 0.0
    free_fraction: float = 1.0
    bits: int = 0
    second_bits: int = 0
    levels: tuple[int, int] = (0, 0)
    coordinates: int | None = None


def settle_noise(
    own: np.ndarray,
    queries: Schedule,
    privacy: Privacy | None,
    second: SecondMoment | None,
) -> Noise:
    """Settle the noise of a run.

    Args:
        own: noise that the sampler injects, in gradient units, (steps,) float64.
        queries: of the run, whatever noise they have.
        privacy: the promise to keep; None for plain SG-MCMC.
        second: second moment that the sampler asks for, or None.

    Raises:
        ValueError: a private step without noise, or noise beyond float32.
        UnsupportedCombination, CalibrationError: no derivation, or a target out of reach.
    """
    if privacy is None:
        slots = queries.sampling.capacity(queries.num_records, 1e-18)[0]
        return Noise(_round_up(own), slots)
    unit = unit_of(queries, privacy)
    required = asked_noise(queries.with_noise(own * unit), privacy)
    # Rounding noise up to float32 can regroup a long schedule and cost a little more ε than was calibrated.
    for _ in range(6):
        noise_std = _round_up(np.maximum(own, required / unit))
        noise_multipliers, guarantee, slots = charge_noise(noise_std, queries, privacy)
        if privacy.epsilon is None or guarantee.epsilon <= privacy.epsilon:
            break
        required = 1.002 * np.maximum(required, float(own.min()) * unit)
    else:
        name = named(privacy.calibrator)
        mend = (
            "The thesis's formula is proved by accountant advanced; use that one, or calibrator numeric"
            if name == "closed_form"
            else "Let it ask for more, or use calibrator numeric"
        )
        raise CalibrationError(
            f"calibrator {name} asks for noise that accountant {privacy.accountant} does not accept: epsilon "
            f"{guarantee.epsilon:.6g} where {privacy.epsilon:g} was asked. {mend}"
        )
    check_proved(guarantee.epsilon, privacy.delta, queries.deviations)
    loudest = float(noise_multipliers.max())
    bits = fraction_bits(loudest)
    second_bits = 0 if second is None else fraction_bits(loudest * second.ratio)
    return Noise(
        noise_std=noise_std,
        slots=slots,
        promise=privacy,
        guarantee=guarantee,
        noise_multipliers=noise_multipliers,
        required_multiplier=float(np.max(required)),
        free_fraction=float(np.mean(noise_std == _round_up(own))),
        bits=bits,
        second_bits=second_bits,
        levels=levels(noise_multipliers, (bits, second_bits), second),
        coordinates=queries.coordinates,
    )


def unit_of(queries: Schedule, privacy: Privacy) -> float:
    """Noise multiplier of noise of size 1 in gradient units: z = s · b/(N·C)."""
    return expected_batch(queries.sampling, queries.num_records) / (queries.num_records * privacy.clip)


def charge_noise(noise_std: np.ndarray, queries: Schedule, privacy: Privacy) -> tuple[np.ndarray, Guarantee, int]:
    """(nominal noise multipliers, guarantee, batch slots) of a noise array, (steps,) float32."""
    if not np.all(noise_std > 0):
        raise InputError(
            "a private step with no noise has no guarantee: use temperature > 0, or a calibrator other than free",
            "temperature",
        )
    if not np.all(np.isfinite(noise_std)):
        raise InputError(
            "the noise this plan needs overflows float32; use a larger clip or batch",
            "clip",
        )
    noise_multipliers = noise_std.astype(np.float64) * unit_of(queries, privacy)
    return noise_multipliers, *charged_guarantee(queries.with_noise(noise_multipliers), privacy)


def own_noise(sampler: Sampler, steps: int) -> np.ndarray:
    """Noise that the sampler injects at every step, (steps,) float64."""
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


def levels(z: np.ndarray, bits: tuple[int, int], second: SecondMoment | None) -> tuple[int, int]:
    """Draws per coordinate of the integer noise of the gradient and of the second moment."""
    quietest = float(z.min())
    loudest = float(z.max())
    grid = 2.0 ** bits[0]
    gradient = noise_tables.levels_for(quietest * grid, loudest * grid)
    if second is None:
        return gradient, 0
    unit = second.ratio * 2.0 ** bits[1]
    # Entries off the diagonal have 1/√2 of its noise.
    return gradient, noise_tables.levels_for(quietest * unit * 0.5**0.5, loudest * unit)


def _round_up(values: np.ndarray) -> np.ndarray:
    """float32 not below the float64 values, so that no rounding takes noise away."""
    rounded = values.astype(np.float32)
    return np.where(rounded < values, np.nextafter(rounded, np.float32(np.inf)), rounded)
