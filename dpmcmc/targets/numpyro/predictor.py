r"""Predictors of a NumPyro model: the parameters η of a record's distribution, as functions of named values.

A record meets a model through η alone: the logit of a Bernoulli, the log rate of a Poisson, location and log scale of a
Normal. η is a function of coordinates t, the values that the model hands to its observed site:

* a shared ``numpyro.deterministic`` site, at its value: where a model goes on with ``a = numpyro.deterministic("a", mu
  + spread * z)``, t holds a, and a record says no more of mu, spread and z than of a;
* a latent site on the real line;
* either at its log where η is affine in that, as for a scale whose prior is Uniform; or at its value.

Sites that η does not use, such as the scale of a group-level prior, are no coordinates: the prior relates them. All of
this is found by trying the model on synthetic records and on draws from its own prior. No record is read.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro import distributions as dist
from numpyro import handlers
from numpyro.distributions import biject_to

from dpmcmc.storage.fork import check_not_forked
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import TargetError
from dpmcmc.targets.numpyro.densities import Site, is_masked, replay, unwrapped, zeros
from dpmcmc.targets.numpyro.model import NumPyroTarget
from dpmcmc.targets.numpyro.trial import synthetic

#: Draws from the prior that coordinates are scaled by, and how many pairs of them η is tried on.
_PRIOR_DRAWS, _PAIRS = 2000, 4
#: Largest relative difference that rounding makes between two equal numbers.
_SAME = 1e-5
#: Part of the draws at either end of a coordinate that is brought in before moments are taken: a prior may have none.
_TAIL = 0.01

#: Distribution of the observed site -> (name of its family, names of its predictors, and themselves, each of the shape
#: of a batch).
FAMILIES: dict[type, tuple[str, tuple[str, ...], Callable[[dist.Distribution], list[jax.Array]]]] = {
    dist.BernoulliLogits: ("logistic", ("log odds",), lambda fn: [fn.logits]),
    dist.BernoulliProbs: (
        "logistic",
        ("log odds",),
        lambda fn: [jnp.log(fn.probs) - jnp.log1p(-fn.probs)],
    ),
    dist.Poisson: ("poisson", ("log rate",), lambda fn: [jnp.log(fn.rate)]),
    dist.Normal: (
        "normal",
        ("location", "log scale"),
        lambda fn: [fn.loc, jnp.log(fn.scale)],
    ),
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
        logged: sites whose part of t is the log of their value.
        others: values on the real line of all latent sites, for those that η does not use.
    """

    target: NumPyroTarget
    real: tuple[str, ...]
    valued: tuple[str, ...]
    others: dict[str, np.ndarray]
    logged: tuple[str, ...] = ()

    def place(self, params: PyTree) -> Values:
        """Return t of parameters on the real line."""
        trace = replay(self.target.model, params, zeros(self.target.bound_leaves, 1))
        return (
            {name: params[name] for name in self.real}
            | {name: trace[name]["value"] for name in self.valued}
            | {name: jnp.log(trace[name]["value"]) for name in self.logged}
        )

    def eta(self, t: Values, batch: PyTree) -> tuple[jax.Array, jax.Array]:
        """Return (η (n, K), observed values (n,)) of a batch."""

        def value(site: Site) -> jax.Array | None:
            name = site["name"]
            if name in self.logged:
                return jnp.exp(t[name])
            if name in self.valued:
                return t[name]
            if name not in self.others:
                return None
            real = t[name] if name in self.real else jnp.asarray(self.others[name])
            return biject_to(site["fn"].support)(real)

        trace = handlers.trace(handlers.substitute(self.target.model, substitute_fn=value)).get_trace(**batch)
        site = trace[self.target.sites.observed[0]]
        fn = unwrapped(site["fn"])
        parts = FAMILIES[type(fn)][2](fn)
        shape = site["fn"].batch_shape
        return jnp.stack([jnp.broadcast_to(part, shape) for part in parts], axis=-1), site["value"]


@dataclass(frozen=True, eq=False)
class Reading:
    """Findings of a model; t is flat here, (d,).

    Attributes:
        predictor: η.
        family: name of the observed site's family.
        bent: what of η is not affine in which sites, a clause; empty where η is affine in t.
        centre, scale: mean and standard deviation of t under the prior, (d,).
        covariance: of (t − centre)/scale under the prior, (d, d).
        sites: takes t to a dictionary of its sites.
    """

    predictor: Predictor
    family: str
    bent: str
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
    family, parts = _family(target)
    real, values = _prior(target)
    trial = _Trial(
        Predictor(target, tuple(real), target.sites.shared, {k: v[0] for k, v in real.items()}),
        values | real,
    )
    trial.refuse_labels()
    used = trial.used()
    if not used:
        raise TargetError(f"site {target.sites.observed[0]!r} depends on no latent site")
    found, prior = _coordinates(trial, used, real, values)
    bent = _Trial(found, prior).bent(parts)
    flat = np.asarray(jax.vmap(lambda t: ravel_pytree(t)[0])(prior))
    sites = ravel_pytree({name: draws[0] for name, draws in prior.items()})[1]
    centre = flat.mean(axis=0)
    scale = np.maximum(flat.std(axis=0), 1e-12)
    covariance = np.atleast_2d(np.cov(((flat - centre) / scale).T)) + 1e-9 * np.eye(len(centre))
    return Reading(found, family, bent, centre, scale, covariance, sites)


def _coordinates(
    trial: _Trial,
    used: list[str],
    real: dict[str, np.ndarray],
    values: dict[str, np.ndarray],
) -> tuple[Predictor, dict[str, np.ndarray]]:
    """Return the predictor of these sites, and draws of its t from the prior.

    A log may serve where the real line does not, and a value where neither does.
    """
    bent = [name for name in used if trial.bends(name).any()]
    logs = {name: np.log(values[name]) for name in bent if np.all(values[name] > 0)}
    logged: tuple[str, ...] = ()
    if logs:
        tried = replace(trial.predictor, logged=tuple(logs))
        again = _Trial(tried, values | real | logs)
        logged = tuple(name for name in logs if not again.bends(name).any())
    straight = tuple(name for name in real if name in used and name not in bent)
    valued = tuple(name for name in used if name not in (*straight, *logged))
    found = replace(trial.predictor, real=straight, valued=valued, logged=logged)
    return found, (
        {name: real[name] for name in straight}
        | {name: values[name] for name in valued}
        | {name: logs[name] for name in logged}
    )


def _family(target: NumPyroTarget) -> tuple[str, tuple[str, ...]]:
    """Return the names of the observed site's family, and of its predictors.

    Raises:
        TargetError: there is none.
    """
    sites = target.sites
    if len(sites.observed) > 1:
        raise TargetError(f"the model observes several sites ({', '.join(sites.observed)}); a score of one is derived")
    (name,) = sites.observed
    found: dict[str, dist.Distribution] = {}

    def look(params: PyTree, batch: PyTree) -> None:
        found["fn"] = replay(target.model, params, batch)[name]["fn"]

    # Abstract, so that a value outside a support is no error of the user's distribution.
    params = {name: jnp.zeros(shape) for name, shape in sites.latent}
    jax.eval_shape(look, params, zeros(target.bound_leaves, 2))
    fn = found["fn"]
    kind = type(unwrapped(fn))
    if kind not in FAMILIES:
        known = ", ".join(sorted({kind.__name__ for kind in FAMILIES}))
        raise TargetError(f"no bounded score of {kind.__name__} (site {name!r}) is derived; there are those of {known}")
    if is_masked(fn):
        raise TargetError(f"site {name!r} is masked; a score of all records is derived")
    if fn.event_shape or fn.batch_shape != (2,):
        raise TargetError(f"site {name!r} has several values a record; a score of one value is derived")
    return FAMILIES[kind][:2]


def _prior(target: NumPyroTarget) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return draws from the prior, (latent sites on the real line, all sites at their values); their seed is public."""

    def draw(key: jax.Array) -> tuple[Values, Values]:
        trace = handlers.trace(handlers.seed(target.model, key)).get_trace(**zeros(target.bound_leaves, 1))
        latent = {name: trace[name] for name, _ in target.sites.latent}
        real = {name: biject_to(site["fn"].support).inv(site["value"]) for name, site in latent.items()}
        return real, {name: trace[name]["value"] for name in (*latent, *target.sites.shared)}

    found = jax.device_get(jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), _PRIOR_DRAWS)))
    return jax.tree.map(lambda leaf: np.clip(leaf, *np.quantile(leaf, [_TAIL, 1 - _TAIL], axis=0)), found)


class _Trial:
    """A predictor on synthetic records and pairs of draws from the prior.

    Equality at random points is equality wherever the model is one formula, as in ``trial.py``.
    """

    def __init__(self, predictor: Predictor, prior: dict[str, np.ndarray]) -> None:
        self.predictor = predictor
        self.names = (*predictor.real, *predictor.valued, *predictor.logged)
        draws = [{name: prior[name][i] for name in self.names} for i in range(2 * _PAIRS)]
        self.records = [synthetic(predictor.target.bound_leaves, 4, i) for i in range(3)]
        pairs = zip(draws[::2], draws[1::2], strict=True)
        #: (t, another t, records).
        self.cases = [(*pair, records) for pair in pairs for records in self.records]
        self.eta = jax.jit(predictor.eta)
        self.site = predictor.target.sites.observed[0]

    def used(self) -> list[str]:
        """Return the sites that change η."""

        def changes(name: str) -> bool:
            return any(
                not np.array_equal(
                    self.eta(first, records)[0],
                    self.eta(first | {name: second[name]}, records)[0],
                    equal_nan=True,
                )
                for first, second, records in self.cases
            )

        return [name for name in self.names if changes(name)]

    def bends(self, *names: str) -> np.ndarray:
        """Return which of η is not affine in these sites, (K,), where it is finite."""
        found = []
        for first, second, records in self.cases:
            last = first | {name: second[name] for name in names}
            middle = jax.tree.map(lambda a, b: (a + b) / 2, first, last)
            a, b, c = (np.asarray(self.eta(t, records)[0]) for t in (first, middle, last))
            most = _SAME * (np.abs(a) + np.abs(c) + 1e-3)
            found.append((np.abs(a + c - 2 * b) > most).any(axis=0))
        return np.any(found, axis=0)

    def bent(self, parts: tuple[str, ...]) -> str:
        """Return what of η is not affine in which sites, or not finite, a clause; empty where all of it is.

        Args:
            parts: names of η, K.
        """
        found = [self.eta(t, records)[0] for t, _, records in self.cases]
        finite: np.ndarray = np.all(np.isfinite(found), axis=(0, 1))
        bends = self.bends(*self.names)
        said = []
        for k, part in enumerate(parts):
            why = "" if finite[k] else "not finite for all that the prior draws"
            if finite[k] and bends[k]:
                of: set[str] = set()
                # A product is affine in each of two sites.
                for size in (1, 2):
                    for some in itertools.combinations(set(self.names) - of, size):
                        of |= set(some) if self.bends(*some)[k] else set()
                why = f"no linear function of {', '.join(sorted(of or self.names))}"
            said += [f"the {part} of site {self.site!r} is {why}"] if why else []
        return ", and ".join(said)

    def refuse_labels(self) -> None:
        """Refuse η that sees the label: its score has no mean of zero.

        Raises:
            TargetError: it does.
        """
        records = self.records[1]
        other = self.records[2]
        t = self.cases[0][0]
        eta, observed = self.eta(t, records)
        for name in records:
            changed, label = self.eta(t, {**records, name: other[name]})
            if np.any(label != observed) and not np.allclose(changed, eta, equal_nan=True):
                raise TargetError(f"the parameters of site {self.site!r} depend on {name!r}, which it observes")
