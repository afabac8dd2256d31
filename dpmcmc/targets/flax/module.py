r"""A Flax network as a target: a Bayesian neural network.

    θ_j ~ N(0, prior_scale²) for every parameter,   f = network(x; θ)

    categorical:  P(y = k) = softmax(f)_k         f (K,)
    bernoulli:    P(y = 1) = σ(f)                 f () or (1,)
    gaussian:     y = f + N(0, noise_scale²)      f () or (1,)

Per-record gradients are those of a batch of one, by ``vmap``; the matrices of dense layers are summed without being
formed (``networks.py``).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge

from dpmcmc.errors import InputError, check_fields
from dpmcmc.privacy.query.exact_sums import Clip, FixedPoint
from dpmcmc.storage.fork import check_not_forked
from dpmcmc.storage.pytree import STATIC, PyTree, rebuilt
from dpmcmc.targets.base import Positive, TargetError
from dpmcmc.targets.flax import ghost_norms
from dpmcmc.targets.flax.network import Network
from dpmcmc.targets.gaussian_prior import GaussianPrior
from dpmcmc.targets.labels import check_labels

if TYPE_CHECKING:
    from dpmcmc.targets.flax.networks import FlaxModule


def from_flax(
    module: FlaxModule,
    *,
    likelihood: Literal["categorical", "bernoulli", "gaussian"] = "categorical",
    prior_scale: float = 1.0,
    noise_scale: float = 1.0,
    num_classes: int | None = None,
    per_record: Literal["auto", "plain", "ghost"] = "auto",
) -> FlaxTarget:
    """A Flax network as a Target. Records are ``{"x": ONE input without a batch axis, "y": ()}``.

    Args:
        module: a Linen module; an NNX module, all of whose chains start at the parameters it has now; or a function
            ``rngs -> NNX module`` (a class, a ``functools.partial``), whose chains start each at its own.
        likelihood: what the outputs mean; ``categorical`` takes K logits, the others one number.
        prior_scale: prior standard deviation of every parameter.
        noise_scale: standard deviation of y given x under ``gaussian``, a public constant.
        num_classes: K, checked against the network's outputs; None takes it from them.
        per_record: how gradients are clipped, to the same sums: ``plain`` forms each record's; ``auto`` leaves out the
            matrices of dense layers on one vector a record, several times faster; ``ghost`` is ``auto``, and refuses a
            network with other matrices (convolutions, embeddings, layers on sequences, shared weights).

    Returns:
        FlaxTarget: parameters are the module's own nested dict.

    Raises:
        ValueError: an argument that cannot be.
        TargetError: an NNX module that holds more than parameters. Other networks are looked at by ``bind``.
    """
    # Flax takes half a second to import, and most runs do not need it.
    from dpmcmc.targets.flax.networks import network

    made = network(module)
    return FlaxTarget(
        made,
        likelihood,
        prior_scale,
        noise_scale,
        num_classes=num_classes,
        per_record=per_record,
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FlaxTarget(GaussianPrior):
    """Target that :func:`from_flax` returns; ``row`` is None until the records' shapes are known.

    Args:
        network: parameters and outputs of the module.
        likelihood, prior_scale, noise_scale, num_classes, per_record: as given.
        row: (shape, dtype) of one input.
    """

    network: Network = dataclasses.field(metadata=STATIC)
    likelihood: Literal["categorical", "bernoulli", "gaussian"] = dataclasses.field(metadata=STATIC)
    prior_scale: Positive
    noise_scale: Positive
    num_classes: Annotated[int, Ge(2)] | None = dataclasses.field(default=None, kw_only=True, metadata=STATIC)
    per_record: Literal["auto", "plain", "ghost"] = dataclasses.field(default="auto", kw_only=True, metadata=STATIC)
    row: tuple[tuple[int, ...], str] | None = dataclasses.field(default=None, kw_only=True, metadata=STATIC)

    gradient_bound = None

    def __post_init__(self) -> None:
        if rebuilt(self):
            return
        check_fields(self)
        allowed = {"categorical": self.num_classes, "bernoulli": 2, "gaussian": None}[self.likelihood]
        if self.num_classes not in (None, allowed):
            raise InputError(
                f"num_classes must be {allowed} under likelihood {self.likelihood}, got {self.num_classes}",
                "num_classes",
            )
        object.__setattr__(self, "num_classes", allowed)

    def bind(self, record_shapes: PyTree) -> FlaxTarget:
        """Fix the input's shape, and K from the outputs.

        Raises:
            TargetError: records that do not fit, a network that mixes rows, holds state or draws random numbers,
                outputs that the likelihood cannot use, or matrices that ``per_record="ghost"`` has no closed form for.
        """
        if not isinstance(record_shapes, dict) or not {"x", "y"} <= set(record_shapes):
            raise TargetError('records must be a dict {"x": inputs, "y": labels or numbers}')
        if not {"offset", "weight"}.isdisjoint(record_shapes):
            raise TargetError("a network takes no offset and no weight: leave these arrays out, or take a regression")
        if tuple(record_shapes["y"].shape) != ():
            raise TargetError(f"y must be one number a record, and its shape is {tuple(record_shapes['y'].shape)}")
        check_not_forked()
        x = record_shapes["x"]
        dtype = "float32" if jnp.issubdtype(x.dtype, jnp.floating) else str(jax.dtypes.canonicalize_dtype(x.dtype))
        row = (tuple(x.shape), dtype)
        outputs = _outputs(self.network, row)
        if self.per_record == "ghost":
            for use in _uses(self.network, row):
                if use.operation and use.axes > 1:
                    raise TargetError(
                        f"per_record ghost needs each matrix of {self.network!r} in ONE product with one vector a "
                        f"record, and {use.path} enters {use.operation}: use per_record auto"
                    )
        if self.likelihood != "categorical":
            if outputs not in ((), (1,)):
                raise TargetError(
                    f"likelihood {self.likelihood} takes one output a row, and {self.network!r} gives shape {outputs}"
                )
            return dataclasses.replace(self, row=row)
        if len(outputs) != 1 or outputs[0] < 2:
            raise TargetError(
                f"likelihood categorical takes one logit a class, and {self.network!r} gives shape {outputs} a row"
            )
        if self.num_classes not in (None, outputs[0]):
            raise TargetError(f"num_classes is {self.num_classes}, and {self.network!r} gives {outputs[0]} logits")
        return dataclasses.replace(self, row=row, num_classes=outputs[0])

    def check_records(self, records: PyTree) -> None:
        """Raise ValueError unless every label of a classifier is one of 0..K−1."""
        if self.num_classes is not None:
            check_labels(records["y"], self.num_classes, f"likelihood {self.likelihood}")

    def init(self, key: jax.Array) -> PyTree:
        """The module's own initialiser: a nested dict of float32. Reads shapes, never records."""
        if self.row is None:
            raise TargetError("the shape of x is not known before init: let dpmcmc.sample bind the target")
        shape, dtype = self.row
        return self.network.init(key, jax.ShapeDtypeStruct(shape, dtype))

    def log_likelihood(self, params: PyTree, record: PyTree) -> jax.Array:
        """log p(y | network(x; θ)) of one record, normalised."""
        outputs = self._outputs(params, record["x"][None])[0]
        if self.likelihood == "categorical":
            chosen = jax.nn.one_hot(record["y"].astype(jnp.int32), outputs.shape[0])
            return chosen @ jax.nn.log_softmax(outputs)
        if self.likelihood == "bernoulli":
            return record["y"] * outputs - jax.nn.softplus(outputs)
        return jax.scipy.stats.norm.logpdf(record["y"], outputs, self.noise_scale)

    @property
    def clipped_gradient_sum(self) -> Callable[..., FixedPoint] | None:
        """Σ clip(−∇ log-likelihood) over a batch, exactly summed.

        None where every record's whole gradient is formed: ``per_record="plain"``, a target that is not bound, or no
        matrix to leave out.
        """
        if self.per_record == "plain" or self.row is None or all(u.operation for u in _uses(self.network, self.row)):
            return None

        def total(params: PyTree, batch: PyTree, mask: jax.Array, clip: Clip, bits: int = 21) -> FixedPoint:
            return ghost_norms.clipped_gradient_sum(self.log_likelihood, params, batch, mask, clip, bits)

        return total

    def predict(self, params: PyTree, x: jax.Array) -> jax.Array:
        """P(y = k | x, θ) (n, K); P(y = 1 | x, θ) (n,) under bernoulli; E[y | x, θ] (n,) under gaussian."""
        outputs = self._outputs(params, x)
        if self.likelihood == "categorical":
            return jax.nn.softmax(outputs)
        return jax.nn.sigmoid(outputs) if self.likelihood == "bernoulli" else outputs

    def _outputs(self, params: PyTree, x: jax.Array) -> jax.Array:
        """(n, K) logits, or (n,)."""
        outputs = self.network.apply(params, x)
        return outputs if self.likelihood == "categorical" else outputs.reshape(x.shape[0])


@functools.lru_cache(maxsize=64)
def _outputs(network: Network, row: tuple[tuple[int, ...], str]) -> tuple[int, ...]:
    """Shape of the outputs for one row of a network that treats rows one by one.

    Raises:
        TargetError: one sentence on why it is no such network.
    """
    shape, dtype = row
    count = 3
    try:
        params = jax.eval_shape(lambda: network.init(jax.random.key(0), jax.ShapeDtypeStruct(shape, dtype)))
        found = jax.eval_shape(network.apply, params, jax.ShapeDtypeStruct((count, *shape), dtype))
    except TargetError:
        raise
    except Exception as error:  # a user's module may raise anything
        reason = " ".join(str(error).split(" (http")[0].split())[:200]
        raise TargetError(
            f"{network!r} fails on {count} rows of shape {shape}, given x alone ({type(error).__name__}: {reason})"
        ) from error
    wrong = [leaf.dtype for leaf in jax.tree.leaves(params) if leaf.dtype != jnp.float32]
    if wrong:
        raise TargetError(f"{network!r} has {wrong[0]} parameters: dpmcmc samples float32 ones")
    if not isinstance(found, jax.ShapeDtypeStruct) or found.shape[:1] != (count,):
        raise TargetError(f"{network!r} must return one array with a leading axis for rows")
    if _mixes_rows(network, row, count):
        raise TargetError(
            f"{network!r} mixes rows: the outputs of {count} synthetic rows differ from those of each alone, so a "
            "record's likelihood would depend on the others"
        )
    return tuple(found.shape[1:])


@functools.lru_cache(maxsize=64)
def _uses(network: Network, row: tuple[tuple[int, ...], str]) -> tuple[ghost_norms.Use, ...]:
    """Return the use of each parameter of the network on one row."""
    one = jax.ShapeDtypeStruct(*row)
    params = jax.eval_shape(lambda: network.init(jax.random.key(0), one))
    return ghost_norms.uses(lambda params, x: network.apply(params, x[None]), params, one)


def _mixes_rows(network: Network, row: tuple[tuple[int, ...], str], count: int) -> bool:
    """Whether outputs on synthetic rows depend on the company."""
    shape, dtype = row
    rng = np.random.default_rng(0)
    size = (count, *shape)
    draw = rng.normal(size=size) if np.issubdtype(dtype, np.floating) else rng.integers(0, 2, size=size)

    @jax.jit
    def both(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        params = network.init(jax.random.key(0), jax.ShapeDtypeStruct(shape, dtype))
        alone = jnp.concatenate([network.apply(params, x[i : i + 1]) for i in range(count)])
        return network.apply(params, x), alone

    together, alone = both(jnp.asarray(draw, dtype))
    return not np.allclose(together, alone, rtol=1e-2, atol=1e-4, equal_nan=True)
