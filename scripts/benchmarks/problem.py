"""The records, the plans, and dpmcmc's own step through the public path: ``dpmcmc.plan`` and ``dpmcmc.sample``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dpmcmc
from benchmarks.timing import Clock

#: Step size of the SGLD of every section, on the mean loss; the clip norm of all of them.
STEP_SIZE = 16.0
CLIP = 1.0


@dataclass(frozen=True)
class Size:
    """How much a run of the benchmark does.

    Attributes:
        num_records, features, batch: of the records and of a step; the Adult benchmark's, unless quick.
        steps: of a timed call; programs that are slow a step take fewer.
        repeats: of each program, in turn with the others.
        quick: whether to keep every growth table short as well.
        torch_python: a Python that has Opacus, which may live apart from JAX.
    """

    num_records: int = 32_561
    features: int = 109
    batch: int = 180
    steps: int = 3000
    repeats: int = 9
    quick: bool = False
    torch_python: str = ""


QUICK = Size(num_records=4000, features=20, batch=64, steps=200, repeats=2, quick=True)


def records(num_records: int, features: int) -> dict[str, jax.Array]:
    """Rows of norm about 1 with labels from a logistic model: ``{"x": (N, d), "y": (N,)}`` on the device."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((num_records, features), dtype=np.float32)
    x *= np.float32(features**-0.5)
    truth = rng.standard_normal(features, dtype=np.float32)
    y = rng.random(num_records, dtype=np.float32) < 1 / (1 + np.exp(-x @ truth))
    return {"x": jnp.asarray(x), "y": jnp.asarray(y, jnp.int32)}


def make_plan(
    num_records: int,
    features: int,
    batch: float,
    steps: int,
    *,
    sampler: Any = None,
    sampling: Any = None,
    target: Any = None,
    chains: int = 1,
    thin: int = 1,
    private: bool = True,
    epsilon: float = 1.0,
) -> dpmcmc.Plan:
    """A plan of SGLD on logistic regression at ε = 1 and δ = min(1e-6, 0.1/N), unless told otherwise.

    Its accountant is Rényi's, which plans in a blink; how the noise was found does not change what a step costs.
    """
    privacy = dpmcmc.Privacy(epsilon=epsilon, delta=min(1e-6, 0.1 / num_records), accountant="rdp", clip=CLIP)
    return dpmcmc.plan(
        target or dpmcmc.targets.LogisticRegression(num_features=features),
        num_records=num_records,
        sampler=sampler or dpmcmc.SGLD(step_size=STEP_SIZE),
        sampling=sampling or dpmcmc.Poisson(batch),
        steps=steps,
        chains=chains,
        thin=thin,
        privacy=privacy if private else None,
    )


def sampled(plan: dpmcmc.Plan, data: Any) -> Clock:
    """Clock of ``dpmcmc.sample``: its own measure of running, the host's part included and compilation not."""

    def clock() -> float:
        return dpmcmc.sample(plan, data, key=0).wall_seconds["run"] / plan.steps * 1e6

    return clock


def sampled_apart(short: dpmcmc.Plan, long: dpmcmc.Plan, data: Any) -> Callable[[], tuple[float, float]]:
    """Call -> (microseconds of a further step, milliseconds that a run takes besides), from runs of two lengths."""

    def call() -> tuple[float, float]:
        few, many = (dpmcmc.sample(plan, data, key=0).wall_seconds["run"] for plan in (short, long))
        each = (many - few) / (long.steps - short.steps)
        return each * 1e6, (few - each * short.steps) * 1e3

    return call
