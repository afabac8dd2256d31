"""Densities of a NumPyro model at parameters on the real line, batch by batch.

They are those of ``numpyro.infer.util.potential_energy``: latent sites are pushed through ``biject_to(support)``, and
log|det J| is added to the prior. The sites of a model are read in ``sites.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from numpyro import distributions as dist
from numpyro import handlers
from numpyro.distributions import biject_to

from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Leaves

#: One site of a NumPyro trace: its type, name, distribution, value and more.
Site = dict[str, Any]
_WRAPPERS = (dist.ExpandedDistribution, dist.MaskedDistribution, dist.Independent)
CATEGORICAL = (dist.CategoricalLogits, dist.CategoricalProbs)


@dataclass(frozen=True)
class Sites:
    """A model that qualifies.

    Attributes:
        latent: (name, shape on the real line) of each latent site.
        observed: names of the sites observed once per record.
        shared: names of deterministic sites that are functions of the latent ones alone.
        num_classes: K where the one observed site is a class, else None.
        inputs: arguments of the model that the mean of its observed site depends on; x is one of them where there is
            an x.
        no_prediction: why no arguments have a predicted mean; empty where they have one.
    """

    latent: tuple[tuple[str, tuple[int, ...]], ...]
    observed: tuple[str, ...]
    shared: tuple[str, ...]
    num_classes: int | None = None
    inputs: tuple[str, ...] = ()
    no_prediction: str = ""


def log_prior(model: Callable, sites: Sites, params: PyTree, batch: PyTree) -> dict[str, jax.Array]:
    """Log density on the real line of each latent site, {name: ()}; ``batch`` only lends its shapes."""
    trace = replay(model, params, batch)
    out = {}
    for name, _ in sites.latent:
        site = trace[name]
        jacobian = biject_to(site["fn"].support).log_abs_det_jacobian(params[name], site["value"])
        out[name] = jnp.sum(site["fn"].log_prob(site["value"])) + jnp.sum(jacobian)
    return out


def log_likelihood(model: Callable, sites: Sites, params: PyTree, batch: PyTree) -> jax.Array:
    """Log-likelihood of a batch, ()."""
    trace = replay(model, params, batch)
    return sum(
        (jnp.sum(trace[name]["fn"].log_prob(trace[name]["value"])) for name in sites.observed),
        jnp.float32(0),
    )


def constrained(model: Callable, sites: Sites, params: PyTree, batch: PyTree) -> dict[str, jax.Array]:
    """Latent sites on their supports, and shared deterministic ones; ``batch`` only lends its shapes."""
    trace = replay(model, params, batch)
    return {name: trace[name]["value"] for name in (*(name for name, _ in sites.latent), *sites.shared)}


def predicted(model: Callable, sites: Sites, params: PyTree, batch: PyTree) -> jax.Array:
    """Mean of the observed site, (n, ...); probabilities (n,) or (n, K) where it is a class."""
    fn = replay(model, params, batch)[sites.observed[0]]["fn"]
    base = unwrapped(fn)
    if isinstance(base, CATEGORICAL):
        return jnp.broadcast_to(base.probs, (*fn.batch_shape, base.probs.shape[-1]))
    return fn.mean


def in_support(model: Callable, sites: Sites, params: PyTree, batch: PyTree) -> dict[str, jax.Array]:
    """Whether the observed values of a batch can occur at all, {site: ()}; True for masked sites."""
    trace = replay(model, params, batch)
    masked = {name: is_masked(trace[name]["fn"]) for name in sites.observed}
    return {
        name: jnp.bool_(True) if masked[name] else jnp.all(trace[name]["fn"].support(trace[name]["value"]))
        for name in sites.observed
    }


def zeros(leaves: Leaves, count: int) -> dict[str, jax.Array]:
    """A batch of zeros."""
    return {name: jnp.zeros((count, *shape), dtype) for name, shape, dtype in leaves}


def replay(model: Callable, params: PyTree, batch: PyTree) -> dict[str, Site]:
    """Trace of the model at parameters on the real line. Unseeded: nothing is left to be drawn."""

    def value(site: Site) -> jax.Array | None:
        if site["type"] == "sample" and site["name"] in params:
            return biject_to(site["fn"].support)(params[site["name"]])
        return None

    return handlers.trace(handlers.substitute(model, substitute_fn=value)).get_trace(**batch)


def unwrapped(fn: dist.Distribution) -> dist.Distribution:
    """The distribution inside expansions, masks and event dimensions."""
    while isinstance(fn, _WRAPPERS):
        fn = fn.base_dist
    return fn


def is_masked(fn: dist.Distribution) -> bool:
    """Return whether a mask stands somewhere around the distribution."""
    while isinstance(fn, _WRAPPERS):
        if isinstance(fn, dist.MaskedDistribution):
            return True
        fn = fn.base_dist
    return False
