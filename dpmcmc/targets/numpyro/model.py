"""Predictors of a NumPyro model: the parameters η of a record's distribution, as functions of named values.

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
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge
from jax.flatten_util import ravel_pytree
from jax.typing import DTypeLike
from numpyro import distributions as dist
from numpyro import handlers
from numpyro.distributions import biject_to

from dpmcmc.data.checks import Marked
from dpmcmc.errors import Checked, InputError
from dpmcmc.storage.fingerprint import blocks, check_not_forked
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import (
    Leaves,
    Positive,
    TargetError,
    TargetOffers,
    model_name,
    record_shapes,
)
from dpmcmc.targets.numpyro.sites import (
    Site,
    is_masked,
    replay,
    synthetic,
    unwrapped,
    zeros,
)

if TYPE_CHECKING:
    from dpmcmc.targets.numpyro.sites import Sites


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


# ------------------------------------------------------------------------------------
# A NumPyro model as a target.
#
#     def model(x, y):
#         w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
#         with numpyro.plate("records", x.shape[0]):
#             numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)
#
#     target = from_numpyro(model)
#
# Latent sites are sampled on the real line, z = T⁻¹(value) with NumPyro's ``biject_to``; the prior carries log|det
# T'|, so draws of ``constrain(z)`` follow the model's posterior. A record's log-likelihood is that of a batch of one.


#: Records checked at once.
_ROWS = 1024


#: Kinds of arguments that are given by name.
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def from_numpyro(
    model: Callable, *, init_radius: float = 0.0, gradient_bound: float | None = None
) -> NumPyroTarget:
    """A NumPyro model as a Target.

    Records are a dict whose leaves are the model's keyword arguments, with a leading axis for the batch. Observed
    sites stand in ONE plate whose size follows the batch; everything else is shared by all records, and latent sites
    may have plates of their own. Models that are no such product over records are refused by ``bind``, with the
    reason.

    Args:
        model: NumPyro function, for example ``model(x, y)`` or ``model(x, y=None)``; called with every leaf.
        init_radius: chains start uniformly in (−r, r) on the real line. 0, the default, is NumPyro's
            ``init_to_feasible``, and 2 its ``init_to_uniform``; neither reads a record.
        gradient_bound: PUBLIC bound on one record's gradient norm, which you vouch for; None where none is known.

    Returns:
        NumPyroTarget: parameters are ``{site: float32 array}`` on the real line, ``constrain`` takes them back.

    Raises:
        ValueError: model is no hashable function, or a number that cannot be.
    """
    if not callable(model):
        raise InputError(
            f"model must be a NumPyro function such as model(x, y), got {model!r}"
        )
    try:
        hash(model)
    except TypeError:
        raise InputError(
            f"model must be hashable, and {type(model).__name__} is not: pass a function"
        ) from None
    return NumPyroTarget(model, init_radius, gradient_bound)


@dataclass(frozen=True, repr=False)
class NumPyroTarget(Checked, TargetOffers):
    """Target that :func:`from_numpyro` returns; ``leaves`` is None until the records' shapes are known.

    Args:
        model, init_radius, gradient_bound: as given.
        leaves: (name, shape, dtype) of each leaf of one record.
    """

    model: Callable
    init_radius: Annotated[float, Ge(0)] = 0.0
    gradient_bound: Positive | None = None
    leaves: Leaves | None = field(default=None, kw_only=True)

    def bind(self, record_shapes: PyTree) -> NumPyroTarget:
        """Read the model's sites from one record's shapes.

        Raises:
            TargetError: records are no dict of arrays, or the model is no sum over records.
        """
        if not isinstance(record_shapes, dict) or not all(
            hasattr(v, "shape") for v in record_shapes.values()
        ):
            raise TargetError(
                "records must be a dict of arrays, whose names are the model's keyword arguments"
            )
        leaves = tuple(
            (name, tuple(v.shape), _dtype(v.dtype))
            for name, v in sorted(record_shapes.items())
        )
        _read(self.model, leaves)
        return replace(self, leaves=leaves)

    @property
    def sites(self) -> Sites:
        """Names and shapes of the model's sites."""
        return _read(self.model, self.bound_leaves)

    @property
    def num_classes(self) -> int | None:
        """2 where the observed site is Bernoulli, K where it is Categorical; None otherwise, and before ``bind``."""
        return None if self.leaves is None else self.sites.num_classes

    def init(self, key: jax.Array) -> dict[str, jax.Array]:
        """Uniform in (−init_radius, init_radius) on the real line; holds no record."""
        keys = jax.random.split(key, len(self.sites.latent))
        return {
            name: jax.random.uniform(
                k, shape, jnp.float32, -self.init_radius, self.init_radius
            )
            if self.init_radius
            else jnp.zeros(shape, jnp.float32)
            for k, (name, shape) in zip(keys, self.sites.latent, strict=True)
        }

    def log_prior(self, params: dict[str, jax.Array]) -> jax.Array:
        """log p(T(z)) + log|det T'(z)|, ()."""
        terms = _density().log_prior(self.model, self.sites, params, self._blank(1))
        return sum(terms.values(), jnp.float32(0))

    def log_likelihood(self, params: dict[str, jax.Array], record: PyTree) -> jax.Array:
        """log p(observed sites of one record | T(z)), ()."""
        batch = {name: value[None] for name, value in record.items()}
        return _density().log_likelihood(self.model, self.sites, params, batch)

    def constrain(self, params: dict[str, jax.Array]) -> dict[str, jax.Array]:
        """Values of the latent sites, and of deterministic sites that depend on nothing else, for ONE draw.

        ``jax.vmap(jax.vmap(target.constrain))(result.positions)`` does all chains and draws.
        """
        return _density().constrained(self.model, self.sites, params, self._blank(1))

    @property
    def predict(self) -> Callable[[dict[str, jax.Array], jax.Array], jax.Array]:
        """(params, x (n, ...)) -> mean of the observed site, (n, ...); P(y = 1) (n,) or (n, K) where it is a class.

        Raises:
            AttributeError: saying why the model has no prediction from x alone.
        """
        reason = self._not_from_x()
        if reason:
            raise AttributeError(f"{self!r} has no predict: {reason}")
        return lambda params, x: InputPredictor(self).predict(params, {"x": x})

    def _not_from_x(self) -> str:
        """Return why the model has no prediction from x alone; empty where it has one."""
        if self.leaves is None:
            return "it is not bound to records yet"
        sites = self.sites
        if sites.no_prediction or sites.inputs == ("x",):
            return sites.no_prediction
        if "x" not in sites.inputs:
            return "records have no leaf x beside what is observed"
        return (
            f"the mean of site {sites.observed[0]!r} depends on more of a record than x"
        )

    def predictor(self, inputs: dict[str, np.ndarray]) -> InputPredictor:
        """Return what predicts rows from arguments of the model, whose records need not be known yet.

        Args:
            inputs: arguments by name, (n, ...) each; what the model observes may be left out.

        Raises:
            TargetError: arguments that it does not have, or fewer than its mean depends on; it has no mean.
        """
        said = f"{model_name(self.model)}{inspect.signature(self.model)}"
        named = {
            name: p
            for name, p in inspect.signature(self.model).parameters.items()
            if p.kind in _BY_NAME
        }
        for name in inputs:
            if named and name not in named:
                raise TargetError(
                    f"predict: model {said} has no argument {name!r}; give its own, by name"
                )
        if (
            () in (lengths := {np.shape(value)[:1] for value in inputs.values()})
            or len(lengths) != 1
        ):
            raise TargetError(
                f"predict: give the arguments of model {said} by name, with one row each for every row"
            )
        known = {
            name: jax.ShapeDtypeStruct(shape, dtype)
            for name, shape, dtype in self.leaves or ()
        }
        one = jax.ShapeDtypeStruct(
            (), jnp.int32
        )  # every distribution takes it, those of classes nothing else
        left = {
            name: known.get(name, one)
            for name, p in named.items()
            if name not in inputs
            and (name in known or p.default in (inspect.Parameter.empty, None))
        }
        try:
            bound = self.bind(left | record_shapes(inputs))
        except (ValueError, TypeError) as error:  # NumPyro's too
            lacks = f" (not given: {', '.join(left)})" if left else ""
            raise TargetError(
                f"predict: {' '.join(str(error).split())[:300]}{lacks}"
            ) from None
        if bound.sites.no_prediction:
            raise TargetError(f"predict: {bound.sites.no_prediction}")
        lacks = ", ".join(name for name in bound.sites.inputs if name in left)
        if lacks:
            raise TargetError(
                f"predict: the mean of model {said} depends on {lacks} too; give it by name"
            )
        return InputPredictor(bound)

    def check_records(self, records: PyTree) -> None:
        """Raise DataError on records whose observed values cannot occur, whatever the parameters.

        Supports may depend on parameters, so three points are tried, and a record is refused that fits at none.
        """
        points = {
            name: jnp.stack([jnp.full(shape, z, jnp.float32) for z in (0, -2, 2)])
            for name, shape in self.sites.latent
        }

        # Records are an argument: a closure would write them into the compilation cache.
        @jax.jit
        def possible(records: PyTree) -> dict[str, jax.Array]:
            def one(record: PyTree) -> dict[str, jax.Array]:
                batch = {name: value[None] for name, value in record.items()}
                inside = jax.vmap(
                    lambda p: _density().in_support(self.model, self.sites, p, batch)
                )(points)
                return jax.tree.map(jnp.any, inside)

            return jax.lax.map(one, records, batch_size=_ROWS)

        bad = {name: Marked() for name in self.sites.observed}
        for start, block in blocks(
            {name: records[name] for name, _, _ in self.bound_leaves}
        ):
            # A float64 beyond float32 becomes infinite. A warning would tell of the record that has it.
            with np.errstate(all="ignore"):
                device = {
                    name: jnp.asarray(block[name], dtype)
                    for name, _, dtype in self.bound_leaves
                }
            for name, good in possible(device).items():
                bad[name].add(start, ~np.asarray(good))
        for name, marked in bad.items():
            marked.refuse(
                f"{name}: some rows are outside the support of its distribution in the model; recode or remove them."
            )

    @property
    def bound_leaves(self) -> Leaves:
        """(name, shape, dtype) of each leaf of one record."""
        if self.leaves is None:
            raise TargetError(
                f"{self!r} is not bound to records yet, whose shapes decide its sites: give "
                "dpmcmc.targets.bind(target, one_record) in its place, one_record a dict of "
                f"{', '.join(inspect.signature(self.model).parameters)} that has the shape and dtype of one record's "
                "(values are not read); dpmcmc.sample does it for a sampler's plan"
            )
        return self.leaves

    def _blank(self, count: int) -> dict[str, jax.Array]:
        return _density().zeros(self.bound_leaves, count)

    def __repr__(self) -> str:
        return f"from_numpyro({model_name(self.model)})"


@dataclass(frozen=True)
class InputPredictor:
    """Mean of the observed site of a bound model, from arguments of the model by name."""

    target: NumPyroTarget

    @property
    def num_classes(self) -> int | None:
        """K of a class."""
        return self.target.num_classes

    def predict(
        self, params: dict[str, jax.Array], inputs: dict[str, jax.Array]
    ) -> jax.Array:
        """Return the mean, (n, ...); P(y = 1) (n,) or (n, K) where it is a class."""
        model = self.target.model
        sites = self.target.sites
        count = len(next(iter(inputs.values())))
        # The mean does not depend on what stands in for the rest: ``sites.py`` has tried.
        return _density().predicted(
            model, sites, params, self.target._blank(count) | inputs
        )


def _dtype(dtype: DTypeLike) -> str:
    """The dtype records have on the device."""
    return (
        "float32"
        if jnp.issubdtype(dtype, jnp.floating)
        else str(jax.dtypes.canonicalize_dtype(dtype))
    )


# NumPyro takes half a second to import, and most runs do not need it.


def _read(model: Callable, leaves: Leaves) -> Sites:
    from dpmcmc.targets.numpyro import sites

    return sites.read(model, leaves)


def _density() -> ModuleType:
    from dpmcmc.targets.numpyro import sites

    return sites
