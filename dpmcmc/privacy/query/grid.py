"""The grid of exact sums: how fine the rows of a block and the noise allow it to be."""

from __future__ import annotations

import math

from dpmcmc.errors import InputError
from dpmcmc.privacy.query.fixed_point import BLOCK_ROWS, FINE_NOISE


def fraction_bits(largest_noise_multiplier: float) -> int:
    """Grid exponent p: as fine as a block of rows and the noise allow.

    Raises:
        ValueError: noise so large (z > 7e9) that it leaves no grid.
    """
    rows = 30 - math.ceil(math.log2(BLOCK_ROWS))
    # Noise within 10σ must stay below 2^46, so that its high limb fits an int32.
    noise = math.floor(46 - math.log2(10 * max(largest_noise_multiplier, 1.0)))
    # Fine noise within 10σ must stay below 2^24, where a float32 still resolves the grid.
    noise = min(noise, math.floor(24 - math.log2(10 * FINE_NOISE * max(largest_noise_multiplier, 1.0))))
    if noise < 0:
        raise InputError(f"noise multiplier {largest_noise_multiplier:.3g} is too large to represent", "epsilon")
    return min(rows, noise)
