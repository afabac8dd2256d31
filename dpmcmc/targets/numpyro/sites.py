"""Sites of a NumPyro model, read from shapes, and the models that are no sum over records.

A model qualifies where its joint density is  p(shared sites) · Π_i p(observed sites of record i | shared sites), the
product being ONE ``numpyro.plate`` whose size follows the batch. Structure is read by tracing the model on abstract
batches of two and of three records; that the product really is one is tried on synthetic records
(``sites.py``).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import distributions as dist
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.primitives import Messenger

from dpmcmc.storage.fork import check_not_forked
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Leaves, TargetError, model_name

# ----------------------------------------------------------------------------------------------------
# Densities of a NumPyro model at parameters on the real line, batch by batch.
#
# They are those of ``numpyro.infer.util.potential_energy``: latent sites are pushed through ``biject_to(support)``, and
# log|det J| is added to the prior. The sites of a model are read in ``sites.py``.

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


# ----------------------------------------------------------------------------------------------------
# Trying a NumPyro model on synthetic records: does it mix them, does its prior see them, can it predict from x?
#
# Evaluations at random points, so equality there is equality wherever the model is one formula. Real records are never
# looked at.

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


@functools.lru_cache(maxsize=64)
def read(model: Callable, leaves: Leaves) -> Sites:
    """The sites of a model.

    Args:
        model: called with the leaves of a batch as keyword arguments.
        leaves: of one record.

    Raises:
        TargetError: one sentence on why the model is no sum over records.
    """
    check_not_forked()
    _check_arguments(model, leaves)
    two, three = (_Look(model, leaves, count) for count in (2, 3))
    plate = _plate(two, three)
    latent = []
    for name, site in two.latent.items():
        if plate in site.plates:
            raise TargetError(
                f"site {name!r} is a latent variable of every record (inside plate {plate!r}): marginalise it out, "
                "because a chain cannot hold one per record"
            )
        if name not in three.latent or site.shape != three.latent[name].shape:
            raise TargetError(f"latent site {name!r} grows with the batch: it must be shared by all records")
        if site.discrete:
            raise TargetError(f"latent site {name!r} is discrete, and has no gradient: marginalise it out")
        latent.append((name, site.shape))
    if not latent:
        raise TargetError("the model has no latent site, so there is nothing to sample")
    shared = tuple(
        name
        for name, found in two.deterministic.items()
        if three.deterministic.get(name) == found and plate not in found[1]
    )
    sites = Sites(tuple(latent), tuple(two.observed), shared)
    return with_prediction(model, replace(sites, shared=independent_sites(model, sites, leaves)), leaves)


@dataclass(frozen=True)
class _Latent:
    shape: tuple[int, ...]
    discrete: bool
    plates: tuple[str, ...]


class _Watch(Messenger):
    """Sees what a model does, even where the model then fails, and refuses what cannot be a sum over records."""

    def __init__(self, fn: Callable) -> None:
        super().__init__(fn)
        self.plates: dict[str, tuple[int, int | None]] = {}

    def process_message(self, msg: Site) -> None:
        kind = msg["type"]
        name = str(msg.get("name"))
        if kind == "plate":
            self.plates[name] = (msg["args"][0], msg["args"][1])
        elif kind in ("param", "mutable"):
            raise TargetError(
                f"site {name!r} is a numpyro.{kind}, which has no prior: make it a numpyro.sample, or a constant"
            )
        elif kind == "control_flow":
            raise TargetError("numpyro.contrib.control_flow is not supported: write the model without scan and cond")
        elif kind == "prng_key":
            raise TargetError("the model draws random numbers (numpyro.prng_key), and a log-likelihood must not")


class _Look:
    """Findings of one abstract run of a model on ``count`` records."""

    def __init__(self, model: Callable, leaves: Leaves, count: int) -> None:
        self.count = count
        watch = _Watch(model)
        seen: dict[str, Site] = {}

        def run(key: jax.Array, batch: PyTree) -> None:
            trace = handlers.trace(handlers.seed(watch, key)).get_trace(**batch)
            seen.update(trace)
            # Supports may depend on values, which are gone after tracing.
            for site in trace.values():
                if site["type"] == "sample" and not site["is_observed"] and not site["fn"].support.is_discrete:
                    site["real_shape"] = jnp.shape(biject_to(site["fn"].support).inv(site["value"]))

        try:
            jax.eval_shape(run, jax.random.key(0), jax.eval_shape(lambda: zeros(leaves, count)))
        except TargetError:
            raise
        except Exception as error:  # a user's model may raise anything
            self.plates = watch.plates
            self._refuse_subsamples()
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            last = next(reversed(self.plates), "")
            if last and not self.following and _runs(model, leaves, self.plates[last][0]):
                raise TargetError(f"{self._wrong_size(last)}; there it fails ({reason})") from error
            raise TargetError(f"model {model_name(model)} fails on {count} synthetic records ({reason})") from error
        self.plates = watch.plates
        self._refuse_subsamples()
        self.latent: dict[str, _Latent] = {}
        self.observed: dict[str, tuple[str, ...]] = {}
        self.deterministic: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {}
        for name, site in seen.items():
            self._sort(name, site)
        if not self.observed:
            raise TargetError("the model observes nothing: give one site per record obs=y")
        for name, plates in self.observed.items():
            self._refuse_unless_per_record(name, plates)

    def _sort(self, name: str, site: Site) -> None:
        plates = tuple(frame.name for frame in site.get("cond_indep_stack", ()))
        if site["type"] == "deterministic":
            self.deterministic[name] = (jnp.shape(site["value"]), plates)
        if site["type"] != "sample":
            return
        if site["is_observed"] and site["infer"].get("is_auxiliary"):
            raise TargetError(
                f"numpyro.factor({name!r}) cannot be told apart by record: write it as a numpyro.sample with obs="
            )
        if site["scale"] is not None:
            raise TargetError(
                f"site {name!r} is under numpyro.handlers.scale: remove it, because a minibatch is already scaled to "
                "all records"
            )
        if site["is_observed"]:
            self.observed[name] = plates
        elif site["fn"].support.is_discrete:
            self.latent[name] = _Latent(jnp.shape(site["value"]), True, plates)
        else:
            self.latent[name] = _Latent(site["real_shape"], False, plates)

    def _refuse_subsamples(self) -> None:
        for name, (size, subsample) in self.plates.items():
            if subsample not in (None, size):
                raise TargetError(
                    f"plate {name!r} has a subsample_size: remove it, because minibatches are drawn outside the model"
                )

    def _refuse_unless_per_record(self, name: str, plates: tuple[str, ...]) -> None:
        if not plates and not self.following:
            raise TargetError(
                f"the model has no plate over records: put the observed site {name!r} inside `with numpyro.plate("
                "'records', x.shape[0]):`"
            )
        if not plates:
            raise TargetError(
                f"site {name!r} is observed outside the plate over records: only what is observed once per record "
                "can be subsampled"
            )
        if len(plates) > 1:
            raise TargetError(
                f"site {name!r} is inside more than one plate ({', '.join(plates)}): keep the one over records, and "
                "make the rest event dimensions with .to_event"
            )
        if plates[0] not in self.following:
            raise TargetError(self._wrong_size(plates[0]))

    def _wrong_size(self, plate: str) -> str:
        return (
            f"plate {plate!r} has size {self.plates[plate][0]} on a batch of {self.count} records: its size must "
            f"follow the batch, as in numpyro.plate({plate!r}, x.shape[0])"
        )

    @property
    def following(self) -> set[str]:
        """Plates as large as the batch."""
        return {name for name, (size, _) in self.plates.items() if size == self.count}


def _runs(model: Callable, leaves: Leaves, count: int) -> bool:
    """Return whether the model runs on so many records, and has nothing else that is refused."""
    try:
        _Look(model, leaves, count)
    except TargetError:
        return False
    return True


def _plate(two: _Look, three: _Look) -> str:
    """The one plate over records."""
    following = two.following & three.following
    if len(following) > 1:
        raise TargetError(
            f"the model has more than one plate over records ({', '.join(sorted(following))}): put all observed sites "
            "into one"
        )
    return next(iter(following))


def _check_arguments(model: Callable, leaves: Leaves) -> None:
    names = [name for name, _, _ in leaves]
    try:
        inspect.signature(model).bind(**dict.fromkeys(names))
    except TypeError as error:
        raise TargetError(
            f"model {model_name(model)}{inspect.signature(model)} cannot be called with the leaves of a record, "
            f"{', '.join(names)} ({error})"
        ) from None
