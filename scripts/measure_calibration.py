"""Calibrate over a wide grid and report the worst time, memory and distance from the target.

python scripts/measure_calibration.py
"""

from __future__ import annotations

import itertools
import os
import resource
import tempfile
import time

os.environ["DPMCMC_CACHE"] = tempfile.mkdtemp()  # a cache would hide the cost

from dpmcmc.privacy import FixedSize, Poisson, calibrate
from dpmcmc.privacy.accounting.cost_of_run import account

N = 1_000_000


def main() -> None:
    worst_time = 0.0
    worst_gap = 1.0
    count = 0
    trivial = 0
    jumps = 0
    grid = itertools.product(
        ("pld", "rdp"), (0.01, 0.3, 3.0, 50.0), (1e-9, 1e-6, 1e-3), (1e-4, 1e-2, 1.0), (1, 1000, 1_000_000)
    )
    for accountant, epsilon, delta, rate, steps in grid:
        schemes = [(Poisson(rate * N), "replace_one"), (Poisson(rate * N), "zero_out")]
        if accountant == "rdp":
            schemes.append((FixedSize(int(rate * N)), "replace_one"))
        for sampling, adjacency in schemes:
            settings = {
                "steps": steps,
                "sampling": sampling,
                "num_records": N,
                "delta": delta,
                "adjacency": adjacency,
                "accountant": accountant,
            }
            started = time.perf_counter()
            z = calibrate(epsilon=epsilon, **settings)
            seconds = time.perf_counter() - started
            reached = account(z, **settings).epsilon
            assert reached <= epsilon, (settings, z, reached)
            count += 1
            worst_time = max(worst_time, seconds)
            if delta >= 1 - (1 - rate) ** steps:
                trivial += 1  # δ alone covers being selected at all: no noise is needed and ε is 0
                continue
            if reached < 0.99 * epsilon and account(z * 0.999, **settings).epsilon > epsilon:
                jumps += 1  # the accountant itself jumps over the target here
                continue
            if reached < worst_gap * epsilon:
                worst_gap = reached / epsilon
                print(
                    f"{epsilon:g} {delta:g} rate {rate:g} steps {steps} {sampling.scheme} {adjacency} {accountant}: "
                    f"z {z:.5g} gives {reached:.5g} in {seconds:.1f} s",
                    flush=True,
                )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"{count} calibrations ({trivial} need no noise, {jumps} at a jump of the accountant): all on the private side"
    )
    print(f"smallest share of the target {worst_gap:.4f}; slowest {worst_time:.1f} s; peak memory {peak:.2f} GB")


if __name__ == "__main__":
    main()
