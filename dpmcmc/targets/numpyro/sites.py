"""Sites of a NumPyro model, read from shapes, and the models that are no sum over records.

A model qualifies where its joint density is  p(shared sites) · Π_i p(observed sites of record i | shared sites), the
product being ONE ``numpyro.plate`` whose size follows the batch. Structure is read by tracing the model on abstract
batches of two and of three records; that the product really is one is tried on synthetic records
(``trial.py``).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.primitives import Messenger

from dpmcmc.storage.fork import check_not_forked
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Leaves, TargetError, model_name
from dpmcmc.targets.numpyro.densities import Site, Sites, zeros
from dpmcmc.targets.numpyro.trial import independent_sites, with_prediction


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
