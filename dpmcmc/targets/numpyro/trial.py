"""Trying a NumPyro model on synthetic records: does it mix them, does its prior see them, can it predict from x?

Evaluations at random points, so equality there is equality wherever the model is one formula. Real records are never
looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import distributions as dist

from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Leaves, TargetError
from dpmcmc.targets.numpyro.densities import (
    CATEGORICAL,
    Sites,
    constrained,
    log_likelihood,
    log_prior,
    predicted,
    replay,
    unwrapped,
    zeros,
)

_BERNOULLI = (dist.BernoulliLogits, dist.BernoulliProbs)


def independent_sites(model: Callable, sites: Sites, leaves: Leaves) -> tuple[str, ...]:
    """Refuse a model that mixes records or whose prior sees them; names of deterministic sites that do not.

    Evaluations at random points, so equality there is equality wherever the model is one formula.
    """
    count = 3

    @jax.jit
    def evaluate(params: PyTree, batch: PyTree) -> PyTree:
        batches = [batch, *(_one(batch, i) for i in range(count))]
        return (
            [log_likelihood(model, sites, params, b) for b in batches],
            [log_prior(model, sites, params, b) for b in batches],
            [constrained(model, sites, params, b) for b in batches],
        )

    shared = set(sites.shared)
    for draw in range(3):
        values, priors, constrained_sites = jax.device_get(
            evaluate(_synthetic_params(sites, draw), synthetic(leaves, count, draw))
        )
        for name, _ in sites.latent:
            for prior, site in zip(priors[1:], constrained_sites[1:], strict=True):
                same = _close(prior[name], priors[0][name]) and _close(site[name], constrained_sites[0][name])
                if not same:
                    raise TargetError(
                        f"the prior of site {name!r} depends on the records: give it public constants instead"
                    )
        shared -= {
            name
            for name in shared
            for site in constrained_sites[1:]
            if not _close(site[name], constrained_sites[0][name])
        }
        together = float(values[0])
        alone = np.array(values[1:], np.float64)
        if not np.isfinite(together) and not np.isfinite(alone).all():
            continue  # outside the support either way: this draw says nothing
        if not abs(together - alone.sum()) <= 1e-3 * (1 + np.abs(alone).sum()):
            raise TargetError(
                f"the model mixes records: {count} synthetic ones have log-likelihood {together:.6g} together and "
                f"{alone.sum():.6g} one by one; a record's term must not depend on the others (batch means and "
                "standard deviations belong outside the model, as public constants)"
            )
    return tuple(name for name in sites.shared if name in shared)


def _close(a: np.ndarray | float, b: np.ndarray | float) -> bool:
    return np.shape(a) == np.shape(b) and np.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)


def with_prediction(model: Callable, sites: Sites, leaves: Leaves) -> Sites:
    """Return the sites with what the mean of the observed one depends on, or why it is no prediction."""
    if len(sites.observed) > 1:
        return replace(
            sites,
            no_prediction=f"the model observes several sites ({', '.join(sites.observed)})",
        )
    (name,) = sites.observed
    seen: dict[str, Any] = {}

    @jax.jit
    def evaluate(params: PyTree, batch: PyTree) -> tuple[jax.Array, jax.Array]:
        site = replay(model, params, batch)[name]
        seen["fn"] = site["fn"]
        return predicted(model, sites, params, batch), site["value"]

    params = _synthetic_params(sites, 1)
    batch = synthetic(leaves, 3, 1)
    try:
        first, value = evaluate(params, batch)
    except NotImplementedError:
        return replace(
            sites,
            no_prediction=f"{type(unwrapped(seen['fn'])).__name__} has no mean in NumPyro",
        )
    if first.shape[:1] != (3,):
        return replace(sites, no_prediction=f"the mean of site {name!r} is not one value per record")
    if not np.isfinite(first).all():
        return replace(sites, no_prediction=f"the mean of site {name!r} is not finite")
    blank = zeros(leaves, 3)
    others = [blank, jax.tree.map(jnp.ones_like, blank), synthetic(leaves, 3, 2)]
    inputs = []
    labels = []
    for leaf, _, _ in leaves:
        found = [evaluate(params, {**batch, leaf: other[leaf]}) for other in others]
        if any(not _close(mean, first) for mean, _ in found) or leaf == "x":
            inputs.append(leaf)
        if any(not _close(observed, value) for _, observed in found):
            labels.append(leaf)
    both = [leaf for leaf in labels if leaf in inputs]
    reason = f"the mean of site {name!r} depends on {both[0]}, which it observes" if both else ""
    sites = replace(sites, inputs=tuple(inputs), no_prediction=reason)
    fn = seen["fn"]
    base = unwrapped(seen["fn"])
    if reason or fn.event_shape or len(fn.batch_shape) != 1:
        return sites
    if isinstance(base, _BERNOULLI):
        return replace(sites, num_classes=2)
    return replace(sites, num_classes=first.shape[-1]) if isinstance(base, CATEGORICAL) else sites


def synthetic(leaves: Leaves, count: int, draw: int) -> dict[str, jax.Array]:
    """Made-up records: integers in {0, 1}; floats in (0, 1), where most supports are, then normal ones."""
    rng = np.random.default_rng(draw)
    out = {}
    for name, shape, dtype in leaves:
        size = (count, *shape)
        if not np.issubdtype(dtype, np.floating):
            out[name] = jnp.asarray(rng.integers(0, 2, size=size), dtype)
        elif draw == 0:
            out[name] = jnp.asarray(rng.uniform(0.1, 0.9, size=size), dtype)
        else:
            out[name] = jnp.asarray(rng.normal(size=size), dtype)
    return out


def _synthetic_params(sites: Sites, draw: int) -> dict[str, jax.Array]:
    rng = np.random.default_rng(100 + draw)
    return {name: jnp.asarray(0.5 * rng.normal(size=shape), jnp.float32) for name, shape in sites.latent}


def _one(batch: PyTree, i: int) -> PyTree:
    return {name: value[i : i + 1] for name, value in batch.items()}
