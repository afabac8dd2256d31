"""Times programs in turn (A, B, A, B, ...) within one process, so that the machine's drift cancels in their ratio."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

#: Runs a program once and says how many microseconds one of its steps took, or several such numbers.
Clock = Callable[[], Any]


@dataclass(frozen=True)
class Ratio:
    """Median and quartiles of the ratios of paired repeats."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{short(self.median)} ({short(self.low)}–{short(self.high)})"


def short(value: float) -> str:
    """Three significant digits, without an exponent from a thousandth to a thousand million."""
    if value == 0 or not np.isfinite(value):
        return f"{value:g}"
    digits = 2 - int(np.floor(np.log10(abs(value))))
    return f"{round(value, digits):,.{max(digits, 0)}f}" if -9 < digits < 6 else f"{value:.2e}"


def in_turn(clocks: Mapping[Any, Clock], repeats: int) -> dict[Any, np.ndarray]:
    """(repeats, ...) what each program's clock says; a first call of each, which may compile, is left out."""
    for clock in clocks.values():
        clock()
    times: dict[Any, list[Any]] = {name: [] for name in clocks}
    for _ in range(repeats):
        for name, clock in clocks.items():
            times[name].append(clock())
    return {name: np.array(values) for name, values in times.items()}


def ratio(times: np.ndarray, base: np.ndarray) -> Ratio:
    """Ratio of two programs timed in turn, repeat by repeat."""
    low, middle, high = np.quantile(times / base, [0.25, 0.5, 0.75])
    return Ratio(float(middle), float(low), float(high))


def scanned(program: Callable[[], Any], steps: int) -> Clock:
    """Clock of a call that takes ``steps`` steps on the device."""

    def clock() -> float:
        started = time.perf_counter()
        jax.block_until_ready(program())
        return (time.perf_counter() - started) / steps * 1e6

    return clock
