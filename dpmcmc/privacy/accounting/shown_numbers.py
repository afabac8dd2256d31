"""How a number about privacy is shown: never rounded toward less of it."""

from __future__ import annotations

import math


def round_up(value: float, digits: int = 4) -> str:
    """``value`` to so many significant digits, never below it: a printed ε must cover the computed one."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    return f"{math.ceil(value / unit * (1 - 1e-12)) * unit:.{digits}g}"


def round_down(value: float, digits: int = 4) -> float:
    """``value`` to so many significant digits, never above it; 0 where it is negative."""
    if value <= 0 or math.isinf(value):
        return max(0.0, value)
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return float(f"{math.floor(value / unit * (1 + 1e-12)) * unit:.{digits}g}")


def three_digits(value: float) -> str:
    """Return a number to three significant digits, for a sentence: 2,720 and not 2.72e+03."""
    return f"{float(f'{value:.3g}'):,.15g}"
