r"""Predictors of a NumPyro model: the parameters η of a record's distribution, as functions of named values.

A record meets a model through η alone: the logit of a Bernoulli, the log rate of a Poisson, location and log scale of a
Normal. η is a function of coordinates t, the values that the model hands to its observed site:

* a shared ``numpyro.deterministic`` site, at its value: where a model goes on with ``a = numpyro.deterministic("a", mu
  + spread * z)``, t holds a, and a record says no more of mu, spread and z than of a;
* a latent site on the real line, or at its value where η is affine in that alone.

Sites that η does not use, such as the scale of a group-level prior, are no coordinates: the prior relates them. All of
this is found by trying the model on synthetic records and on draws from its own prior. No record is read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro import distributions as dist
from numpyro import handlers
from numpyro.distributions import biject_to

from dpmcmc.storage.fingerprint import check_not_forked
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import TargetError
from dpmcmc.targets.numpyro.model import NumPyroTarget
from dpmcmc.targets.numpyro.sites import (
    Site,
    is_masked,
    replay,
    synthetic,
    unwrapped,
    zeros,
)

#: Draws from the prior that coordinates are scaled by, and how many pairs of them η is tried on.
_PRIOR_DRAWS, _PAIRS = 2000, 4
#: Part of the draws at either end of a coordinate that is brought in before moments are taken: a prior may have none.
_TAIL = 0.01

#: Distribution of the observed site -> (name of its family, its predictors, each of the shape of a batch).
FAMILIES: dict[type, tuple[str, Callable[[dist.Distribution], list[jax.Array]]]] = {
    dist.BernoulliLogits: ("logistic", lambda fn: [fn.logits]),
    dist.BernoulliProbs: (
        "logistic",
        lambda fn: [jnp.log(fn.probs) - jnp.log1p(-fn.probs)],
    ),
    dist.Poisson: ("poisson", lambda fn: [jnp.log(fn.rate)]),
    dist.Normal: ("normal", lambda fn: [fn.loc, jnp.log(fn.scale)]),
}

#: {site: its part of t}.
Values = dict[str, jax.Array]


@dataclass(frozen=True, eq=False)
class Predictor:
    """η of a bound model as a function of t.

    Attributes:
        target: the model.
        real: latent sites whose part of t lies on the real line.
        valued: sites whose part of t is their value.
        others: values on the real line of all latent sites, for those that η does not use.
    """

    target: NumPyroTarget
    real: tuple[str, ...]
    valued: tuple[str, ...]
    others: dict[str, np.ndarray]

    def place(self, params: PyTree) -> Values:
        """Return t of parameters on the real line."""
        trace = replay(self.target.model, params, zeros(self.target.bound_leaves, 1))
        return {name: params[name] for name in self.real} | {
            name: trace[name]["value"] for name in self.valued
        }

    def eta(self, t: Values, batch: PyTree) -> tuple[jax.Array, jax.Array]:
        """Return (η (n, K), observed values (n,)) of a batch."""

        def value(site: Site) -> jax.Array | None:
            name = site["name"]
            if name in self.valued:
                return t[name]
            if name not in self.others:
                return None
            real = t[name] if name in self.real else jnp.asarray(self.others[name])
            return biject_to(site["fn"].support)(real)

        trace = handlers.trace(
            handlers.substitute(self.target.model, substitute_fn=value)
        ).get_trace(**batch)
        site = trace[self.target.sites.observed[0]]
        parts = FAMILIES[type(unwrapped(site["fn"]))][1](unwrapped(site["fn"]))
        shape = site["fn"].batch_shape
        return jnp.stack(
            [jnp.broadcast_to(part, shape) for part in parts], axis=-1
        ), site["value"]


@dataclass(frozen=True, eq=False)
class Reading:
    """Findings of a model; t is flat here, (d,).

    Attributes:
        predictor: η.
        family: name of the observed site's family.
        affine: whether η is affine in t.
        centre, scale: mean and standard deviation of t under the prior, (d,).
        covariance: of (t − centre)/scale under the prior, (d, d).
        sites: takes t to a dictionary of its sites.
    """

    predictor: Predictor
    family: str
    affine: bool
    centre: np.ndarray
    scale: np.ndarray
    covariance: np.ndarray
    sites: Callable[[jax.Array], Values]

    @functools.cached_property
    def program(
        self,
    ) -> Callable[[jax.Array, PyTree], tuple[jax.Array, jax.Array, jax.Array]]:
        """(t (d,), records of a block) -> (η (n, K), ∂η/∂t (n, K, d), observed values (n,)), compiled."""

        def one(t: jax.Array, record: PyTree) -> tuple[jax.Array, jax.Array, jax.Array]:
            def eta(t: jax.Array) -> tuple[jax.Array, jax.Array]:
                values, observed = self.predictor.eta(
                    self.sites(t), {name: leaf[None] for name, leaf in record.items()}
                )
                return values[0], observed[0]

            return eta(t)[0], jax.jacrev(lambda t: eta(t)[0])(t), eta(t)[1]

        # Records are an argument: a closure would write them into the compilation cache.
        return jax.jit(jax.vmap(one, (None, 0)))

    def place(self, params: PyTree) -> jax.Array:
        """Return t of parameters on the real line, (d,)."""
        return ravel_pytree(self.predictor.place(params))[0]

    def start(self, t: np.ndarray) -> PyTree:
        """Return parameters on the real line whose parts of t there are these."""
        given = self.sites(jnp.asarray(t))
        predictor = self.predictor
        return predictor.others | {name: given[name] for name in predictor.real}


@functools.lru_cache(maxsize=16)
def read(target: NumPyroTarget) -> Reading:
    """Return what is found of a bound model; call it where JAX computes in float64.

    Raises:
        TargetError: one sentence on why it has none.
    """
    check_not_forked()
    family = _family(target)
    real, values = _prior(target)
    trial = _Trial(
        Predictor(
            target, tuple(real), target.sites.shared, {k: v[0] for k, v in real.items()}
        ),
        values | real,
    )
    trial.refuse_labels()
    used = trial.used()
    if not used:
        raise TargetError(f"site {target.sites.observed[0]!r} depends on no latent site")
    # A value may serve where the real line does not.
    straight = [name for name in real if name in used and trial.straight(name)]
    valued = tuple(name for name in used if name not in straight)
    found = Predictor(target, tuple(straight), valued, trial.predictor.others)
    prior = {name: real[name] for name in straight} | {
        name: values[name] for name in valued
    }
    affine = _Trial(found, prior).straight(*prior)
    flat = np.asarray(jax.vmap(lambda t: ravel_pytree(t)[0])(prior))
    sites = ravel_pytree({name: draws[0] for name, draws in prior.items()})[1]
    centre = flat.mean(axis=0)
    scale = np.maximum(flat.std(axis=0), 1e-12)
    covariance = np.atleast_2d(np.cov(((flat - centre) / scale).T)) + 1e-9 * np.eye(
        len(centre)
    )
    return Reading(found, family, affine, centre, scale, covariance, sites)


def _family(target: NumPyroTarget) -> str:
    """Return the name of the observed site's family.

    Raises:
        TargetError: there is none.
    """
    sites = target.sites
    if len(sites.observed) > 1:
        raise TargetError(
            f"the model observes several sites ({', '.join(sites.observed)}); a score of one is derived"
        )
    (name,) = sites.observed
    params = {name: jnp.zeros(shape) for name, shape in sites.latent}
    fn = replay(target.model, params, zeros(target.bound_leaves, 2))[name]["fn"]
    kind = type(unwrapped(fn))
    if kind not in FAMILIES:
        known = ", ".join(sorted({kind.__name__ for kind in FAMILIES}))
        raise TargetError(
            f"no bounded score of {kind.__name__} (site {name!r}) is derived; there are those of {known}"
        )
    if is_masked(fn) or fn.event_shape or fn.batch_shape != (2,):
        raise TargetError(
            f"site {name!r} is masked or has several values a record; a score of one value is derived"
        )
    return FAMILIES[kind][0]


def _prior(target: NumPyroTarget) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return draws from the prior, (latent sites on the real line, all sites at their values); their seed is public."""

    def draw(key: jax.Array) -> tuple[Values, Values]:
        trace = handlers.trace(handlers.seed(target.model, key)).get_trace(
            **zeros(target.bound_leaves, 1)
        )
        latent = {name: trace[name] for name, _ in target.sites.latent}
        real = {
            name: biject_to(site["fn"].support).inv(site["value"])
            for name, site in latent.items()
        }
        return real, {
            name: trace[name]["value"] for name in (*latent, *target.sites.shared)
        }

    found = jax.device_get(
        jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), _PRIOR_DRAWS))
    )
    return jax.tree.map(
        lambda leaf: np.clip(leaf, *np.quantile(leaf, [_TAIL, 1 - _TAIL], axis=0)), found
    )


class _Trial:
    """A predictor on synthetic records and pairs of draws from the prior.

    Equality at random points is equality wherever the model is one formula, as in ``sites.py``.
    """

    def __init__(self, predictor: Predictor, prior: dict[str, np.ndarray]) -> None:
        self.predictor = predictor
        names = (*predictor.real, *predictor.valued)
        draws = [{name: prior[name][i] for name in names} for i in range(2 * _PAIRS)]
        self.pairs = list(zip(draws[::2], draws[1::2], strict=True))
        self.records = [synthetic(predictor.target.bound_leaves, 4, i) for i in range(3)]
        self.eta = jax.jit(predictor.eta)

    def used(self) -> list[str]:
        """Return the sites that η uses."""
        slopes_of = jax.jit(
            jax.jacrev(lambda t, records: self.predictor.eta(t, records)[0])
        )
        found = [slopes_of(t, records) for records in self.records for t, _ in self.pairs]
        return [
            name
            for name in found[0]
            if any(np.any(np.nan_to_num(slopes[name])) for slopes in found)
        ]

    def straight(self, *names: str) -> bool:
        """Return whether η is affine in these sites."""
        for first, second in self.pairs:
            last = first | {name: second[name] for name in names}
            middle = jax.tree.map(lambda a, b: (a + b) / 2, first, last)
            for records in self.records:
                a, b, c = (
                    np.asarray(self.eta(t, records)[0]) for t in (first, middle, last)
                )
                if not np.all(
                    np.abs(a + c - 2 * b) <= 1e-5 * (np.abs(a) + np.abs(c) + 1e-3)
                ):
                    return False
        return True

    def refuse_labels(self) -> None:
        """Refuse η that sees the label: its score has no mean of zero.

        Raises:
            TargetError: it does.
        """
        records = self.records[1]
        other = self.records[2]
        t = self.pairs[0][0]
        eta, observed = self.eta(t, records)
        for name in records:
            changed, label = self.eta(t, {**records, name: other[name]})
            if np.any(label != observed) and not np.allclose(
                changed, eta, equal_nan=True
            ):
                site = self.predictor.target.sites.observed[0]
                raise TargetError(
                    f"the parameters of site {site!r} depend on {name!r}, which it observes"
                )
