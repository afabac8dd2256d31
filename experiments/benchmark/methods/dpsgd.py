r"""DP-SGD of jax-privacy and of Opacus, with an ensemble for intervals.

An ensemble of M = 10 models is trained, each on a part of its own of a public partition of the rows. A record is in one
part, so the ensemble costs what one model does. Point estimate: the mean of the models. Interval: mean ± t_{M−1} · sd /
√M, which has the spread of sampling and of privacy both.

Settings follow the advice of both libraries and of De et al. (2022) for a convex loss:

* a clip at the bound of the gradients, since rows have norm at most 1;
* Poisson batches of a quarter of the part, 100 steps;
* a step of 1/L for the curvature bound L: 4 for binary labels, 2 for classes, 1 for real ones and counts;
* the mean of the last half of the iterates.

Neighbours differ by one record added or removed, which is the adjacency of both libraries: it is a weaker promise than
the replacement of a record at the same ε.
"""

from __future__ import annotations

import functools
import operator
import warnings
from typing import Any

import numpy as np
from scipy.stats import t as student

from experiments.benchmark.methods.contract import ALL, Method, Outcome
from experiments.benchmark.problem import Problem

_PARTS, _STEPS, _RATE, _CLIP = 10, 100, 0.25, 1.0
_STEP_SIZE = {"binary": 4.0, "classes": 2.0, "real": 1.0, "count": 1.0}
_DRAWS = 1000


@functools.lru_cache(maxsize=64)
def noise_multiplier(epsilon: float, delta: float) -> float:
    """Return the noise over the clip norm, by Google's accountant."""
    import dp_accounting
    from dp_accounting import pld

    def event(sigma: float) -> Any:
        step = dp_accounting.PoissonSampledDpEvent(_RATE, dp_accounting.GaussianDpEvent(sigma))
        return dp_accounting.SelfComposedDpEvent(step, _STEPS)

    return dp_accounting.calibrate_dp_mechanism(
        lambda: pld.PLDAccountant(value_discretization_interval=1e-3),
        event,
        epsilon,
        delta,
        dp_accounting.LowerEndpointAndGuess(0.0, 4.0),
        tol=1e-3,
    )


def ensemble(members: np.ndarray) -> np.ndarray:
    """Return draws (k, ...) of the t interval around the mean of members, (M, ...)."""
    rng = np.random.default_rng()
    spread = np.std(members, axis=0, ddof=1) / np.sqrt(len(members))
    return members.mean(axis=0) + spread * student.rvs(
        len(members) - 1, size=(_DRAWS, *members.shape[1:]), random_state=rng
    )


def _parts(problem: Problem) -> list[np.ndarray]:
    """Return rows of equal parts; the partition is public, since it depends on row numbers alone."""
    order = np.random.default_rng(0).permutation(len(problem.y))
    size = len(order) // _PARTS
    return [order[at * size : (at + 1) * size] for at in range(_PARTS)]


@functools.cache
def _program(kind: str, classes: int) -> Any:
    """Return (x, y, noise, key) -> mean of the last iterates."""
    import jax
    import jax.numpy as jnp
    from jax_privacy.clipping import clipped_grad

    def loss(theta: Any, x: Any, y: Any) -> Any:
        eta = x @ theta
        if kind == "classes":
            return jax.nn.logsumexp(eta) - eta[y]
        of = {"binary": jax.nn.softplus, "count": jnp.exp, "real": lambda at: at**2 / 2}[kind]
        return of(eta) - y * eta

    gradient = clipped_grad(
        loss, l2_clip_norm=_CLIP, batch_argnums=(1, 2), keep_batch_dim=False, return_grad_norms=False
    )

    @jax.jit
    def run(x: Any, y: Any, noise: Any, key: Any) -> Any:
        size = _RATE * x.shape[0]
        shape = (x.shape[1], classes) if kind == "classes" else (x.shape[1],)

        def step(theta: Any, key: Any) -> Any:
            batch, own = jax.random.split(key)
            inside = jax.random.bernoulli(batch, _RATE, (x.shape[0],))
            # A row of zeros has a gradient of zero, so rows outside the batch add nothing.
            total = gradient(theta, x * inside[:, None], y)
            total += noise * _CLIP * jax.random.normal(own, shape)
            theta = theta - _STEP_SIZE[kind] * total / size
            return theta, theta

        _, path = jax.lax.scan(step, jnp.zeros(shape), jax.random.split(key, _STEPS))
        return path[_STEPS // 2 :].mean(axis=0)

    return run


def _jax_privacy(problem: Problem, epsilon: float) -> Outcome:
    import jax

    noise = noise_multiplier(epsilon, problem.delta)
    run = _program(problem.kind, problem.classes)
    seeds = np.random.SeedSequence().generate_state(_PARTS)
    dtype = np.float32 if problem.kind == "real" else np.int32
    members = [
        run(problem.x[rows].astype(np.float32), problem.y[rows].astype(dtype), noise, jax.random.key(int(seed)))
        for rows, seed in zip(_parts(problem), seeds, strict=True)
    ]
    draws = ensemble(np.asarray(members, np.float64))
    return Outcome(draws, True, f"({epsilon:g}, {problem.delta:.1e})-DP, add_or_remove_one")


@functools.lru_cache(maxsize=64)
def _opacus_noise(epsilon: float, delta: float, rate: float, epochs: int) -> float:
    """Return what ``make_private_with_epsilon`` finds, once for all parts of an ensemble."""
    from opacus.accountants.utils import get_noise_multiplier

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return get_noise_multiplier(
            target_epsilon=epsilon, target_delta=delta, sample_rate=rate, epochs=epochs, accountant="prv"
        )


def _opacus(problem: Problem, epsilon: float) -> Outcome:
    import torch
    from opacus import PrivacyEngine

    outputs = problem.classes if problem.kind == "classes" else 1
    losses = {
        "binary": torch.nn.BCEWithLogitsLoss(),
        "classes": torch.nn.CrossEntropyLoss(),
        "real": lambda eta, y: torch.mean((eta - y) ** 2) / 2,
        "count": lambda eta, y: torch.nn.functional.poisson_nll_loss(eta, y),
    }

    class Rows(torch.utils.data.TensorDataset):
        """Rows that a loader takes by the batch; it takes them one by one otherwise, a minute for 65,000 rows."""

        def __getitems__(self, at: list[int]) -> list[Any]:
            return [self[at]] if at else []

    members = []
    for rows in _parts(problem):
        x = torch.tensor(problem.x[rows], dtype=torch.float32)
        y = torch.tensor(problem.y[rows], dtype=torch.long if problem.kind == "classes" else torch.float32)
        model = torch.nn.Linear(x.shape[1], outputs, bias=False)
        torch.nn.init.zeros_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=_STEP_SIZE[problem.kind])
        loader = torch.utils.data.DataLoader(
            Rows(x, y), batch_size=max(1, round(_RATE * len(x))), collate_fn=operator.itemgetter(0)
        )
        epochs = max(1, _STEPS // len(loader))
        noise = _opacus_noise(epsilon, problem.delta, 1 / len(loader), epochs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, optimizer, loader = PrivacyEngine(accountant="prv").make_private(
                module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=noise, max_grad_norm=_CLIP
            )
            path = []
            for _ in range(epochs):
                for batch, labels in loader:
                    optimizer.zero_grad()
                    eta = model(batch)
                    losses[problem.kind](eta if outputs > 1 else eta[:, 0], labels).backward()
                    optimizer.step()
                    path.append(next(iter(model.parameters())).detach().numpy().copy())
        mean = np.mean(path[len(path) // 2 :], axis=0)
        members.append(mean.T if outputs > 1 else mean[0])
    draws = ensemble(np.asarray(members, np.float64))
    return Outcome(draws, True, f"({epsilon:g}, {problem.delta:.1e})-DP, add_or_remove_one")


_PROMISE = "(ε, δ), one record added or removed"
METHODS = (
    Method("jax_privacy_dpsgd", "rival", ALL, _PROMISE, "ensemble of 10 parts, 100 steps of a quarter of a part",
           _jax_privacy, "jax_privacy", intervals=True),
    Method("opacus_dpsgd", "rival", ALL, _PROMISE, "ensemble of 10 parts, 100 steps of a quarter of a part",
           _opacus, "opacus", intervals=True),
)  # fmt: skip
