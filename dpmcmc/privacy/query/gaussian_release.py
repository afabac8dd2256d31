r"""One vector, released once with Gaussian noise, in float64.

Value and noise are rounded to one public grid of a power of two, at most 2^-30 of the noise std, and added as integers:
the released bits are round(value) + round(noise), a post-processing of the Gaussian mechanism on the ROUNDED value.
Rounding moves either of two neighbouring values by at most √size·grid/2, so a sensitivity grows by √size·grid, which
:func:`gaussian_event` charges. ``KAPPA`` is charged on top for the noise's own float64 arithmetic.

A sum over records is an :class:`~dpmcmc.privacy.query.integer_rows.Exact` value: integers times a power of two, of any
size. It is rounded to the grid as an integer, so that no float64 comes between a sum and its release.

Its noise is drawn in integers from a ChaCha20 key (``accounting/gaussian.py``, with the proof). Its std is
2^30 to 2^31 steps of the grid, which the tables reach. Each number is then within a tiny distance of a post-processing
of the Gaussian mechanism on the rounded value, which a mechanism's plan charges for (``mechanisms/base.py``), and a
metric's (``planning/noise.py``).

Claim: A vector that is released once hides what a Gaussian mechanism hides, on the grid that it is rounded to.
Proof: rounding moves two values by √size·grid more, which is charged.
Held by: test_no_row_moves_the_gram_matrix_or_its_trace_beyond_the_charge,
test_calibrated_noise_meets_the_budget_with_rounding_charged, test_noise_is_added_to_the_rounded_value_as_integers,
"√2 dropped from the Gram matrix' sensitivity"
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from dpmcmc.errors import CalibrationError, InputError
from dpmcmc.privacy.accounting import Event
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.accounting.gaussian import gaussian_mu
from dpmcmc.privacy.accounting.noise_tables import LEVELS
from dpmcmc.privacy.query import chacha, integer_noise
from dpmcmc.privacy.query.integer_rows import (
    Exact,
)

#: Largest grid relative to the noise std.
GRID = 2.0**-30
#: Largest value in units of the grid; what is beyond is clamped to it.
_LARGEST = 2.0**61


def gaussian_release(value: np.ndarray | Exact, noise_std: float, key: jax.Array) -> np.ndarray:
    """Return ``value`` plus N(0, noise_std² I).

    Args:
        value: (size,) float64, finite, or exact. Coordinates beyond 2^30 noise stds are clamped, which moves no two
            values apart.
        noise_std: > 0, public.
        key: secret JAX key, used for nothing else; one of another generator is adopted (``chacha.adopted``).

    Returns:
        (size,) float64, on the grid.

    Raises:
        ValueError: a value that is not finite, or a noise std that is not positive.
    """
    unit = grid(noise_std)
    steps = on_grid(value, unit)
    noise = integer_noise.on_host(chacha.adopted(key), steps.size, noise_std / unit).reshape(steps.shape)
    return (steps + noise).astype(np.float64) * unit


def on_grid(value: np.ndarray | Exact, unit: float) -> np.ndarray:
    """Return a value as whole multiples of a power of two, each the nearest, int64, clamped.

    Raises:
        ValueError: a value that is not finite.
    """
    if isinstance(value, Exact):
        return _exact_on_grid(value, unit)
    value = np.asarray(value, np.float64)
    if not np.all(np.isfinite(value)):
        raise InputError("value: has entries that are not finite; nothing was released")
    clipped = np.clip(value, -_LARGEST * unit, _LARGEST * unit)
    return np.rint(clipped / unit).astype(np.int64)


def _exact_on_grid(value: Exact, unit: float) -> np.ndarray:
    """Return :func:`on_grid` of an exact value; integers alone are computed."""
    finer = math.frexp(unit)[1] - math.frexp(value.unit)[1]
    steps = value.steps
    if finer > 0:
        steps = (steps + (1 << (finer - 1))) >> finer
    else:
        steps = steps << -finer
    largest = int(_LARGEST)
    return np.clip(steps, -largest, largest).astype(np.int64)


def grid(noise_std: float) -> float:
    """Return the power of two that value and noise are rounded to, in (GRID/2, GRID] noise stds.

    Raises:
        ValueError: a noise std that is not finite and positive.
    """
    if not (noise_std > 0 and math.isfinite(noise_std)):
        raise InputError(f"noise_std: must be a finite number > 0, got {noise_std}")
    return 2.0 ** (math.frexp(noise_std)[1] - 1) * GRID


def gaussian_event(noise_std: float, sensitivity: float, size: int, adjacency: Adjacency) -> Event:
    """Return the charge of one :func:`gaussian_release`.

    Args:
        noise_std: of the release.
        sensitivity: largest l2 distance of the values of two neighbours UNDER THIS adjacency.
        size: number of coordinates.
        adjacency: under which a Gaussian event's neighbour moves by 2/z (replace_one) or 1/z.
    """
    moved = (sensitivity * (1 + KAPPA) + math.sqrt(size) * grid(noise_std)) / noise_std
    return Event("gaussian", adjacency.sensitivity / moved, 1.0, 1)


def calibrated_std(sensitivity: float, size: int, *, epsilon: float, delta: float) -> float:
    """Return the smallest noise std whose :func:`gaussian_event` meets (ε, δ), to about 1e-9 of it.

    Args:
        sensitivity: as for :func:`gaussian_event`.
        size: number of coordinates.
        epsilon: target ε.
        delta: target δ.

    Raises:
        CalibrationError: see :func:`mu_std`.
    """
    return mu_std(sensitivity, size, gaussian_mu(epsilon, delta))


def mu_std(sensitivity: float, size: int, mu: float) -> float:
    """Return the noise std at which neighbours are at most ``mu`` noise stds apart, with everything charged.

    Args:
        sensitivity: as for :func:`gaussian_event`.
        size: number of coordinates.
        mu: > 0.

    Raises:
        CalibrationError: mu so small that the grid would be seen.
    """
    left = mu * (1 - 1e-12) - math.sqrt(size) * GRID
    if not left > 0:
        raise CalibrationError(
            f"epsilon: so small a budget (mu {mu:.3g}) needs noise so large that it has no grid",
            "epsilon",
        )
    return sensitivity * (1 + KAPPA) / left


def noise_on_grid(key: jax.Array, size: int, noise_std: jax.Array, grid: jax.Array) -> jax.Array:
    """Return Gaussian noise as whole multiples of a grid, for a float64 sum that is rounded to it; (size,) float64.

    Args:
        key: used for nothing else.
        size: number of coordinates.
        noise_std: std of the noise, in units of the sum.
        grid: a power of two.
    """
    integer_noise.check_numbers(size)
    high, low = integer_noise.noise(key, size, (noise_std / grid).astype(jnp.float32), LEVELS[-1])
    return high.astype(jnp.float64) * 65536 + low


def standard_normal(key: jax.Array, shape: tuple[int, ...]) -> np.ndarray:
    """Return independent standard normals, float64, for draws whose law is not that of added noise.

    They are Box–Muller's, radius and angle each from 64 random bits: correct to a few 2^-53, tails to 9.4σ.

    Args:
        key: a JAX key.
        shape: of the result.
    """
    size = math.prod(shape)
    pairs = (size + 1) // 2
    words = np.asarray(jax.random.bits(key, (4, pairs), jnp.uint32)).astype(np.float64)

    def uniform(high: np.ndarray, low: np.ndarray) -> np.ndarray:
        return high * 2.0**-32 + (low + 0.5) * 2.0**-64

    # −log U, from whichever of U and 1 − U is small: neither end is rounded away.
    complement = uniform(2.0**32 - 1 - words[0], 2.0**32 - 1 - words[1])
    with np.errstate(divide="ignore"):
        exponential = np.where(
            words[0] < 2.0**31,
            -np.log(uniform(words[0], words[1])),
            -np.log1p(-np.minimum(complement, 0.75)),
        )
    radius = np.sqrt(2 * exponential)
    angle = 2 * np.pi * uniform(words[2], words[3])
    both = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)
    return both.reshape(-1)[:size].reshape(shape)
