"""Small plans, and the records that their steps are replayed on.

A record's gradient is its own ``g`` wherever the chain is, so that reference sums are one line of NumPy; the prior is
standard normal, so that its gradient is the position.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc.data import by_owner
from dpmcmc.privacy.query.randomness import streams_of
from dpmcmc.targets import Custom, PerOwner
from tests.replay import FAST, Replay, Trace
from tests.unproved import plan_any_epsilon

#: Parameters, in two leaves.
D = 3
CLIP = 0.7


def _init(key: jax.Array) -> Any:
    return {"a": jnp.zeros(2), "b": jnp.zeros(1)}


def _log_prior(params: Any) -> jax.Array:
    return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))


def _log_likelihood(params: Any, record: Any) -> jax.Array:
    return -record["g"] @ jnp.concatenate([params["a"], params["b"]])


GIVEN = Custom(_init, _log_prior, _log_likelihood)


def rows(n: int, seed: int) -> np.ndarray:
    """(n, D) float32, from well inside the clip norm to far beyond it."""
    rng = np.random.default_rng(seed)
    g = rng.normal(size=(n, D)) + 0.5
    return (g / np.linalg.norm(g, axis=1, keepdims=True) * 10 ** rng.uniform(-1, 1, size=(n, 1))).astype(np.float32)


def with_first(g: np.ndarray, row: Any) -> dict[str, np.ndarray]:
    """The records with another first one: the one that padding repeats."""
    return {"g": np.concatenate([np.asarray(row, np.float32)[None], g[1:]])}


#: The changed record: nine clip norms long, and what may stand in its place.
_LONG = 9 * CLIP * np.array([2.0, -1.0, 2.0]) / 3
REPLACEMENTS = {
    "opposite": -_LONG,
    "zero": np.zeros(D),
    "tiny": 1e-30 * _LONG,
    "huge": -1e17 * _LONG,
    "beyond float32": np.array([3e38, 3e38, -3e38]),
    "infinite": np.array([0.0, np.inf, 0.0]),
    "nan": np.array([np.nan, 1.0, 1.0]),
}


@dataclass(frozen=True)
class Bench:
    """A plan and its records.

    Attributes:
        make: the plan.
        records: pytree, leaves (N, ...).
        neighbours: data sets that differ in the first record, by name; in ``zero`` it contributes nothing.
        unrelated: records that have nothing in common with them.
        reference: record -> its clipped gradient over C, float64; None where the sums are not compared with one.
    """

    make: Callable[[], Any]
    records: Any
    neighbours: dict[str, Any]
    unrelated: Any
    reference: Callable[[Any], np.ndarray] | None = None


def clipped(records: Any) -> np.ndarray:
    """(N, D) float64: each record's gradient, shrunk to norm 1 in units of C."""
    g = np.asarray(records["g"], np.float64)
    return g / np.maximum(np.linalg.norm(g, axis=1, keepdims=True), CLIP)


def _given(make: Callable[[], Any], n: int) -> Bench:
    g = rows(n, n)
    neighbours = {name: with_first(g, row) for name, row in REPLACEMENTS.items()}
    return Bench(make, with_first(g, _LONG), neighbours, {"g": 2 * rows(n, n + 1)}, clipped)


def plan(n: int, **changes: Any) -> Any:
    """A short private plan on records with a gradient of their own."""
    privacy = {"epsilon": 10.0, "delta": 1e-3, "accountant": "rdp", "clip": CLIP}
    privacy |= changes.pop("privacy", {})
    settings: dict[str, Any] = {"sampler": dpmcmc.SGLD(step_size=1.0), "steps": 300, "num_records": n} | changes
    return dpmcmc.plan(GIVEN, privacy=dpmcmc.Privacy(**privacy), **settings)


def poisson() -> Any:
    """Minibatches of a fractional expected size, two chains, burn-in."""
    return plan(40, sampling=dpmcmc.Poisson(9.5), chains=2, burn_in=100)


def quiet() -> Any:
    """Hardly any noise, and a position far from the prior's mean."""
    sampler = dpmcmc.SGLD(step_size=1.0, temperature=0.0)
    with pytest.MonkeyPatch.context() as patch:
        plan_any_epsilon(patch)
        return plan(40, sampling=dpmcmc.Poisson(9.5), sampler=sampler, steps=40, privacy={"epsilon": 1e5})


def second() -> Any:
    """A gradient and a second moment of one minibatch."""
    sampler = dpmcmc.SGFS(step_size=1.0, fisher="query", noise_ratio=1.0, prior_precision=1.0, query_every=1)
    return plan(12, sampler=sampler)


def thermostat() -> Any:
    """A sampler that measures its own temperature."""
    return plan(12, sampling=dpmcmc.Poisson(4.0), sampler=dpmcmc.SGNHT(step_size=0.02), steps=6)


_OWNERS = 6


def owners() -> Any:
    """Owners of up to three rows each as records."""
    return dpmcmc.plan(
        PerOwner(GIVEN, 3), num_records=_OWNERS, sampler=dpmcmc.SGLD(step_size=1.0), steps=2,
        privacy=dpmcmc.Privacy(epsilon=10.0, delta=1e-3, accountant="rdp", clip=CLIP),
    )  # fmt: skip


def _owned(first: np.ndarray, seed: int = 5) -> Any:
    """Records of owners, the first of whom has three copies of a row."""
    g = np.concatenate([np.tile(first, (3, 1)), rows(12, seed)]).astype(np.float32)
    owner = np.concatenate([np.zeros(3, int), 1 + np.arange(12) % (_OWNERS - 1)])
    return by_owner({"g": g}, owner, num_owners=_OWNERS, records_per_owner=3)


BENCHES = {
    "poisson": _given(poisson, 40),
    "quiet": _given(quiet, 40),
    "second": _given(second, 12),
    "thermostat": _given(thermostat, 12),
    "owners": Bench(
        owners,
        _owned(_LONG),
        {"opposite": _owned(-_LONG), "zero": _owned(np.zeros(D))},
        _owned(np.ones(D), seed=6),
    ),
}


class Observed:
    """Steps of a bench's plan; its neighbours are run once a check asks for them.

    Args:
        bench, plan: of what.
        replay: of the plan.
        trace: on the bench's records.
    """

    def __init__(self, bench: Bench, plan: Any, replay: Replay, trace: Trace) -> None:
        self.bench = bench
        self.plan = plan
        self.trace = trace
        self._replay = replay

    @functools.cached_property
    def neighbours(self) -> dict[str, Trace]:
        """On each of the bench's neighbours, with the same keys and at the same positions."""
        return {name: self._replay(records, given=self.trace) for name, records in self.bench.neighbours.items()}

    @functools.cached_property
    def elsewhere(self) -> Trace:
        """On unrelated records, at the same positions; of its keys only those of init and dynamics are the same."""
        ours, others = (streams_of(seed)[0] for seed in (0, 1))
        keys = ours._replace(batch=others.batch, noise=others.noise)
        return self._replay(self.bench.unrelated, keys, given=self.trace)


def observe(bench: Bench) -> Observed:
    """Make the plan and run its steps on the bench's records."""
    made = bench.make()
    replay = Replay(made, bench.records, FAST)
    return Observed(bench, made, replay, replay(bench.records))
