r"""A NumPyro model as a target.

    def model(x, y):
        w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)

    target = from_numpyro(model)

Latent sites are sampled on the real line, z = T⁻¹(value) with NumPyro's ``biject_to``; the prior carries log|det T'|,
so draws of ``constrain(z)`` follow the model's posterior. A record's log-likelihood is that of a batch of one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import TYPE_CHECKING, Annotated

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge
from jax.typing import DTypeLike

from dpmcmc.data.checks import Marked
from dpmcmc.errors import Checked, InputError
from dpmcmc.storage.pytree import PyTree
from dpmcmc.storage.record_blocks import blocks
from dpmcmc.targets.base import Leaves, Positive, TargetError, TargetOffers, model_name, record_shapes

if TYPE_CHECKING:
    from dpmcmc.targets.numpyro.densities import Sites

#: Records checked at once.
_ROWS = 1024


#: Kinds of arguments that are given by name.
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def from_numpyro(model: Callable, *, init_radius: float = 0.0, gradient_bound: float | None = None) -> NumPyroTarget:
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
        raise InputError(f"model must be a NumPyro function such as model(x, y), got {model!r}")
    try:
        hash(model)
    except TypeError:
        raise InputError(f"model must be hashable, and {type(model).__name__} is not: pass a function") from None
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
    takes_every_leaf = True
    leaves: Leaves | None = field(default=None, kw_only=True)

    def bind(self, record_shapes: PyTree) -> NumPyroTarget:
        """Read the model's sites from one record's shapes.

        Raises:
            TargetError: records are no dict of arrays, or the model is no sum over records.
        """
        if not isinstance(record_shapes, dict) or not all(hasattr(v, "shape") for v in record_shapes.values()):
            raise TargetError("records must be a dict of arrays, whose names are the model's keyword arguments")
        leaves = tuple((name, tuple(v.shape), _dtype(v.dtype)) for name, v in sorted(record_shapes.items()))
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
            name: jax.random.uniform(k, shape, jnp.float32, -self.init_radius, self.init_radius)
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
        return f"the mean of site {sites.observed[0]!r} depends on more of a record than x"

    def predictor(self, inputs: dict[str, np.ndarray]) -> InputPredictor:
        """Return what predicts rows from arguments of the model, whose records need not be known yet.

        Args:
            inputs: arguments by name, (n, ...) each; what the model observes may be left out.

        Raises:
            TargetError: arguments that it does not have, or fewer than its mean depends on; it has no mean.
        """
        said = f"{model_name(self.model)}{inspect.signature(self.model)}"
        named = {name: p for name, p in inspect.signature(self.model).parameters.items() if p.kind in _BY_NAME}
        for name in inputs:
            if named and name not in named:
                raise TargetError(f"predict: model {said} has no argument {name!r}; give its own, by name")
        if () in (lengths := {np.shape(value)[:1] for value in inputs.values()}) or len(lengths) != 1:
            raise TargetError(f"predict: give the arguments of model {said} by name, with one row each for every row")
        known = {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape, dtype in self.leaves or ()}
        one = jax.ShapeDtypeStruct((), jnp.int32)  # every distribution takes it, those of classes nothing else
        left = {
            name: known.get(name, one)
            for name, p in named.items()
            if name not in inputs and (name in known or p.default in (inspect.Parameter.empty, None))
        }
        try:
            bound = self.bind(left | record_shapes(inputs))
        except (ValueError, TypeError) as error:  # NumPyro's too
            lacks = f" (not given: {', '.join(left)})" if left else ""
            raise TargetError(f"predict: {' '.join(str(error).split())[:300]}{lacks}") from None
        if bound.sites.no_prediction:
            raise TargetError(f"predict: {bound.sites.no_prediction}")
        lacks = ", ".join(name for name in bound.sites.inputs if name in left)
        if lacks:
            raise TargetError(f"predict: the mean of model {said} depends on {lacks} too; give it by name")
        return InputPredictor(bound)

    def check_records(self, records: PyTree) -> None:
        """Raise DataError on records whose observed values cannot occur, whatever the parameters.

        Supports may depend on parameters, so three points are tried, and a record is refused that fits at none.
        """
        points = {
            name: jnp.stack([jnp.full(shape, z, jnp.float32) for z in (0, -2, 2)]) for name, shape in self.sites.latent
        }

        # Records are an argument: a closure would write them into the compilation cache.
        @jax.jit
        def possible(records: PyTree) -> dict[str, jax.Array]:
            def one(record: PyTree) -> dict[str, jax.Array]:
                batch = {name: value[None] for name, value in record.items()}
                inside = jax.vmap(lambda p: _density().in_support(self.model, self.sites, p, batch))(points)
                return jax.tree.map(jnp.any, inside)

            return jax.lax.map(one, records, batch_size=_ROWS)

        bad = {name: Marked() for name in self.sites.observed}
        for start, block in blocks({name: records[name] for name, _, _ in self.bound_leaves}):
            # A float64 beyond float32 becomes infinite. A warning would tell of the record that has it.
            with np.errstate(all="ignore"):
                device = {name: jnp.asarray(block[name], dtype) for name, _, dtype in self.bound_leaves}
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

    def predict(self, params: dict[str, jax.Array], inputs: dict[str, jax.Array]) -> jax.Array:
        """Return the mean, (n, ...); P(y = 1) (n,) or (n, K) where it is a class."""
        model = self.target.model
        sites = self.target.sites
        count = len(next(iter(inputs.values())))
        # The mean does not depend on what stands in for the rest: ``trial.py`` has tried.
        return _density().predicted(model, sites, params, self.target._blank(count) | inputs)


def _dtype(dtype: DTypeLike) -> str:
    """The dtype records have on the device."""
    return "float32" if jnp.issubdtype(dtype, jnp.floating) else str(jax.dtypes.canonicalize_dtype(dtype))


# NumPyro takes half a second to import, and most runs do not need it.


def _read(model: Callable, leaves: Leaves) -> Sites:
    from dpmcmc.targets.numpyro import sites

    return sites.read(model, leaves)


def _density() -> ModuleType:
    from dpmcmc.targets.numpyro import densities

    return densities
