r"""Per-record gradients of a network, with its dense layers' matrices left as outer products ("ghost norms").

Where a record sends ONE vector a through y = a·W, ∂ℓ/∂W = a ⊗ ∂ℓ/∂y (Goodfellow 2015, arXiv:1510.01799). Both factors
come from one backward pass, with respect to a zero that is added to y; no matrix is formed. Parameters used so
are read off the program that JAX traces, not off layers: that is the same for Linen and NNX, whatever a layer is
called. A parameter that is used twice, at several positions of a record, or in any other way is differentiated as it
is, record by record: what is not recognised costs time, never a part of the gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from dpmcmc.privacy.query import outer_products
from dpmcmc.privacy.query.exact_sums import Clip, FixedPoint
from dpmcmc.privacy.query.outer_products import Outer
from dpmcmc.storage.pytree import PyTree

#: Numbers that a block of records may be worked out with.
_NUMBERS = 1 << 23

#: Log-likelihood of parameters and one record, or another function of both.
Function = Callable[[PyTree, PyTree], jax.Array]


class Use(NamedTuple):
    """Use of one parameter in a program.

    Attributes:
        path: its place in the pytree, such as ``"Dense_0/kernel"``.
        axes: of the array.
        operation: None where its per-record gradient is an outer product, else what it enters.
    """

    path: str
    axes: int
    operation: str | None


def uses(function: Function, params: PyTree, record: PyTree) -> tuple[Use, ...]:
    """Return the use of each parameter in a function of params and ONE record; pytrees of arrays or shapes."""
    jaxpr, _ = _traced(function, params, record)
    leaves = jax.tree_util.tree_leaves_with_path(params)
    covered = set(_products(jaxpr, len(leaves)).values())
    found = []
    for i, (path, leaf) in enumerate(leaves):
        operation = None if i in covered else _operation(jaxpr, i)
        found.append(
            Use(
                jax.tree_util.keystr(path, simple=True, separator="/"),
                leaf.ndim,
                operation,
            )
        )
    return tuple(found)


def clipped_gradient_sum(
    log_likelihood: Function,
    params: PyTree,
    batch: PyTree,
    mask: jax.Array,
    clip: Clip,
    bits: int,
) -> FixedPoint:
    """Σ over unmasked records of −∇ log-likelihood clipped to norm ``clip``, exactly summed.

    Args:
        log_likelihood: of params and ONE record.
        params: pytree of float32.
        batch: pytree, leaves (n, ...).
        mask: (n,) bool.
        clip: C.
        bits: grid exponent.

    Returns:
        FixedPoint of pytrees like ``params``.
    """
    structure = jax.tree.structure(params)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), batch)
    jaxpr, constants = _traced(log_likelihood, params, shapes)
    leaves = jax.tree.leaves(params)
    products = _products(jaxpr, len(leaves))
    formed = sum(leaf.size for i, leaf in enumerate(leaves) if i not in set(products.values()))
    between = sum(_shaped(variable).size for eqn in jaxpr.eqns for variable in eqn.outvars)

    def block_sum(batch: PyTree, mask: jax.Array) -> FixedPoint:
        gradients = jax.vmap(lambda record: _gradients(jaxpr, constants, products, leaves, record))(batch)
        return outer_products.clipped_sum(gradients, mask, clip, bits)

    total = _in_blocks(block_sum, batch, mask, max(_NUMBERS // (formed + between), 1))
    return FixedPoint(
        jax.tree.unflatten(structure, total.high),
        jax.tree.unflatten(structure, total.low),
    )


def _in_blocks(block_sum: Callable[..., FixedPoint], batch: PyTree, mask: jax.Array, width: int) -> FixedPoint:
    """Sum over blocks of at most ``width`` rows, as even as possible."""
    count = mask.shape[0]
    if count <= width:
        return block_sum(batch, mask)
    blocks = -(-count // width)
    width = -(-count // blocks)

    def add(total: FixedPoint, block: jax.Array) -> tuple[FixedPoint, None]:
        at = block * width + jnp.arange(width, dtype=jnp.int32)
        inside = at < count
        at = jnp.minimum(at, count - 1)
        return total + block_sum(jax.tree.map(lambda leaf: leaf[at], batch), inside & mask[at]), None

    first = jax.tree.map(lambda leaf: leaf[:width], (batch, mask))
    zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(block_sum, *first))
    return jax.lax.scan(add, zeros, jnp.arange(blocks, dtype=jnp.int32))[0]


def _shaped(variable: Var | Literal) -> jax.core.ShapedArray:
    """Shape and dtype of a variable."""
    return cast(jax.core.ShapedArray, variable.aval)


def _traced(function: Function, params: PyTree, record: PyTree) -> tuple[Jaxpr, list[jax.Array]]:
    closed = jax.make_jaxpr(function)(params, record)
    return closed.jaxpr, closed.consts


def _products(jaxpr: Jaxpr, count: int) -> dict[int, int]:
    """Equation -> parameter, of the equations y = a·W with one vector a whose W is a parameter used nowhere else."""
    found = {}
    for i, parameter in enumerate(jaxpr.invars[:count]):
        users = _users(jaxpr, parameter)
        if len(users) == 1 and users[0] is not None and _is_product(jaxpr.eqns[users[0]], parameter):
            found[users[0]] = i
    return found


def _users(jaxpr: Jaxpr, variable: Var) -> list[int | None]:
    """Equations that use a variable, as often as they do; None where the program returns it."""
    users: list[int | None] = [i for i, eqn in enumerate(jaxpr.eqns) for v in eqn.invars if v is variable]
    return users + [None for v in jaxpr.outvars if v is variable]


def _is_product(eqn: JaxprEqn, parameter: Var) -> bool:
    """Whether an equation is y_k = Σ_j a_j W_jk in float32."""
    if eqn.primitive is not jax.lax.dot_general_p or eqn.invars[1] is not parameter:
        return False
    (of_a, of_w), batch = eqn.params["dimension_numbers"]
    a, w, y = map(_shaped, (eqn.invars[0], parameter, eqn.outvars[0]))
    one_vector = len(of_a) == 1 and tuple(of_w) == (0,) and w.ndim == 2 and a.size == w.shape[0]
    return one_vector and batch == ((), ()) and {a.dtype, w.dtype, y.dtype} == {np.dtype(np.float32)}


def _operation(jaxpr: Jaxpr, i: int) -> str:
    users = _users(jaxpr, jaxpr.invars[i])
    if len(users) != 1 or users[0] is None:
        return f"{len(users)} operations"
    eqn = jaxpr.eqns[users[0]]
    return "a product with other operands" if eqn.primitive is jax.lax.dot_general_p else str(eqn.primitive)


def _gradients(
    jaxpr: Jaxpr,
    constants: list[jax.Array],
    products: dict[int, int],
    leaves: list[jax.Array],
    record: PyTree,
) -> list[jax.Array | Outer]:
    """Leaves of −∇ log-likelihood of ONE record; those of ``products`` as the outer product of two vectors."""
    covered = set(products.values())
    others = {i: leaf for i, leaf in enumerate(leaves) if i not in covered}
    zeros = {e: jnp.zeros(_shaped(jaxpr.eqns[e].outvars[0]).shape, jnp.float32) for e in products}

    def loss(zeros: dict[int, jax.Array], others: dict[int, jax.Array]) -> tuple[jax.Array, dict[int, jax.Array]]:
        arguments = [others.get(i, leaf) for i, leaf in enumerate(leaves)]
        value, vectors = _evaluate(jaxpr, constants, [*arguments, *jax.tree.leaves(record)], zeros)
        return -value, vectors

    (of_zeros, of_others), vectors = jax.grad(loss, argnums=(0, 1), has_aux=True)(zeros, others)
    found: dict[int, jax.Array | Outer] = dict(of_others)
    for e, i in products.items():
        found[i] = Outer(vectors[e].reshape(-1), of_zeros[e].reshape(-1))
    return [found[i] for i in range(len(leaves))]


def _evaluate(
    jaxpr: Jaxpr,
    constants: list[jax.Array],
    arguments: list[jax.Array],
    zeros: dict[int, jax.Array],
) -> tuple[jax.Array, dict[int, jax.Array]]:
    """(the program's value with something added to what some equations give, what those equations took first)."""
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *arguments], strict=True))
    vectors = {}

    def read(variable: Var | Literal) -> jax.Array:
        return variable.val if isinstance(variable, Literal) else known[variable]

    for e, eqn in enumerate(jaxpr.eqns):
        bound = eqn.primitive.get_bind_params(eqn.params)
        # JAX before 0.10 hands functions apart.
        functions, options = bound if isinstance(bound, tuple) else ((), bound)
        taken = [read(variable) for variable in eqn.invars]
        given = eqn.primitive.bind(*functions, *taken, **options)
        if e in zeros:
            vectors[e] = taken[0]
            given = given + zeros[e]
        results = given if eqn.primitive.multiple_results else [given]
        known.update(zip(eqn.outvars, results, strict=True))
    return read(jaxpr.outvars[0]), vectors
