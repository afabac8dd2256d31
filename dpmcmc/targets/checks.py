"""Laws of a target on which its guarantee and its posterior rest, tried on records.

The query trusts three things of a target: that one record's log-likelihood sees one record, that
``clipped_gradient_sum``, where it has one, is  Σ clip_C(−∇ log-likelihood)  summed exactly, and that
``gradient_bound`` is one. The first is so by signature; the others are tried here, on given records, at random
parameters, for clips below and above the gradients' norms. A check on records is not a proof for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from dpmcmc.errors import InputError
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.query import exact_sums
from dpmcmc.privacy.query.exact_sums import FixedPoint
from dpmcmc.storage.fork import check_not_forked
from dpmcmc.storage.pytree import PyTree
from dpmcmc.targets.base import Target, bind, check, missing_of_target, predicts, record_shapes, target_offers
from dpmcmc.targets.predicting import by_row

_BITS = 21
#: Records looked at; the rest says nothing new about the code.
_MOST_RECORDS = 200
#: Coefficients, and records, whose curvature is looked at.
_MOST_CURVED = 32
#: Relative error two float32 formulas for one gradient may differ by.
_FLOAT32 = 1e-3


def check_target(target: Target, records: PyTree, seed: int = 0) -> None:
    """Raise AssertionError on the first thing a target breaks.

    * Shapes suffice to bind it.
    * ``init`` returns finite float32 arrays and is a function of its key.
    * Densities are single finite numbers with finite gradients.
    * ``gradient_bound``, ``loss_bounds``, ``log_concave`` and ``smoothness`` hold on these records.
    * ``clipped_gradient_sum`` agrees with the generic path under masks and clips, drops rows that are not finite, and
      moves by at most 2C when a record is replaced.
    * ``predict`` returns one finite prediction a row, probabilities where ``num_classes`` is set.

    Args:
        target: a Target, bound or not.
        records: pytree of arrays, leaves (n, ...): synthetic or public ones, because they are read without privacy.
        seed: of the check.
    """
    check_not_forked()
    name = type(target).__name__
    missing = missing_of_target(target)
    _demand(not missing, f"{name} lacks {', '.join(missing)} of the Target protocol")
    records = jax.tree.map(lambda leaf: _on_device(np.asarray(leaf)[:_MOST_RECORDS]), records)
    try:
        check(target, records)
    except ValueError as error:  # a TargetError, or what check_records says
        raise AssertionError(str(error)) from error
    bound = bind(target, record_shapes(records))
    checks = _Checks(name, bound, records, np.random.default_rng(seed))
    checks.starting_point(seed)
    checks.densities()
    checks.bound()
    checks.losses()
    checks.curvature()
    checks.clipped_sums()
    checks.predictions()


class _Checks:
    def __init__(self, name: str, target: Target, records: PyTree, rng: np.random.Generator) -> None:
        self.name = name
        self.target = target
        self.records = records
        self.rng = rng
        self.offers = target_offers(target)
        self.count = len(jax.tree.leaves(records)[0])
        start = target.init(jax.random.key(0))
        flat, self.unravel = ravel_pytree(start)
        noise = rng.normal(size=(3, flat.size))
        # At the start, near it and far away, where likelihoods saturate.
        self.points = [
            start,
            *(self.unravel(jnp.asarray(flat + s * z, jnp.float32)) for s, z in zip((0.1, 1, 5), noise, strict=True)),
        ]
        self.scores = jax.jit(
            lambda params, batch: jax.vmap(lambda r: jax.grad(lambda p: -target.log_likelihood(p, r))(params))(batch)
        )

    def starting_point(self, seed: int) -> None:
        """``init`` is a function of its key, finite, and works under jit and vmap, as the engine calls it."""
        keys = jax.random.split(jax.random.key(seed), 2)
        first, again = (jax.jit(jax.vmap(self.target.init))(keys) for _ in range(2))
        for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True):
            _demand(np.array_equal(a, b), f"{self.name}.init is not a function of its key")
            _demand(
                np.isfinite(a).all(),
                f"{self.name}.init returns values that are not finite",
            )

    def densities(self) -> None:
        """Finite at the start, for every record, with finite gradients."""
        params = self.points[0]
        each = jax.jit(jax.vmap(self.target.log_likelihood, (None, 0)))(params, self.records)
        for what, values in (
            ("log_prior at init", self.target.log_prior(params)),
            (
                "the gradient of log_prior at init",
                jax.grad(self.target.log_prior)(params),
            ),
            ("log_likelihood at init", each),
            ("the gradient of log_likelihood at init", self.scores(params, self.records)),
        ):
            finite = all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(values))
            _demand(finite, f"{self.name}: {what} is not finite on these records")
        alone = self.target.log_likelihood(params, _row(self.records, 0))
        _demand(
            np.allclose(alone, each[0], rtol=1e-4, atol=1e-5),
            f"{self.name}.log_likelihood gives {float(alone):.6g} for record 0, and {float(each[0]):.6g} under jit and "
            "vmap",
        )

    def bound(self) -> None:
        """No record's gradient is longer than ``gradient_bound``."""
        largest = self.offers.gradient_bound
        if largest is None:
            return
        for params in self.points:
            norms = self._norms(params, self.records)
            row = int(np.argmax(norms))
            _demand(
                norms[row] <= largest * (1 + 1e-5),
                f"{self.name}.gradient_bound is {largest:.6g}, and record {row} has a gradient of norm "
                f"{norms[row]:.6g}",
            )

    def losses(self) -> None:
        """No loss, and no difference of two records', is larger than ``loss_bounds`` within a ball."""
        if self.offers.loss_bounds is None:
            return
        each = jax.jit(jax.vmap(self.target.log_likelihood, (None, 0)))
        for params in self.points:
            flat, _ = ravel_pytree(params)
            radius = max(float(jnp.linalg.norm(flat)), 1e-3)
            try:
                largest, difference = self.offers.loss_bounds(radius)
            except InputError:  # it follows from bounds that this target was not given
                return
            values = np.asarray(each(params, self.records), np.float64)
            for what, bound, found in (
                ("losses", largest, np.abs(values).max()),
                ("differences of losses", difference, np.ptp(values)),
            ):
                _demand(
                    found <= bound * (1 + 1e-5) + 1e-6,
                    f"{self.name}.loss_bounds({radius:.3g}) says that {what} are at most {bound:.6g}, and on these "
                    f"records one is {found:.6g}",
                )

    def curvature(self) -> None:
        """Losses are convex where ``log_concave`` says so, and curve at most by ``smoothness``."""
        most = self.offers.smoothness
        flat, unravel = ravel_pytree(self.points[0])
        if flat.size > _MOST_CURVED or not (self.offers.log_concave or most is not None):
            return
        batch = jax.tree.map(lambda leaf: leaf[:_MOST_CURVED], self.records)

        def loss(at: jax.Array, record: PyTree) -> jax.Array:
            return -self.target.log_likelihood(unravel(at), record)

        curvatures = jax.jit(jax.vmap(jax.hessian(loss), (None, 0)))
        for params in self.points:
            found = np.linalg.eigvalsh(curvatures(ravel_pytree(params)[0], batch))
            largest = float(np.abs(found).max())
            rounding = 1e-5 * (1 + largest)
            _demand(
                not self.offers.log_concave or found.min() >= -rounding,
                f"{self.name} declares log_concave, and a record's loss has curvature {found.min():.6g}",
            )
            _demand(
                most is None or largest <= most + rounding,
                f"{self.name}.smoothness is {most}, and a record's loss has curvature {largest:.6g}",
            )

    def clipped_sums(self) -> None:
        """``clipped_gradient_sum`` is the generic clipped sum, and no further from its neighbours than 2C."""
        fast = self.offers.clipped_gradient_sum

        def generic(params: PyTree, batch: PyTree, mask: jax.Array, clip: float) -> FixedPoint:
            return exact_sums.clipped_sum(self.scores(params, batch), mask, clip, _BITS)

        prepare = self.offers.prepared or (lambda records: records)
        self._each_alone(prepare)

        def own(params: PyTree, batch: PyTree, mask: jax.Array, clip: float) -> FixedPoint:
            assert fast is not None
            return fast(params, prepare(batch), mask, clip, bits=_BITS)

        for params in self.points:
            norms = self._norms(params, self.records)
            # Below that, a norm is the rounding of a gradient that is zero.
            positive = norms[norms > 1e-6 * norms.max(initial=0.0)]
            if not positive.size:
                continue
            for clip in (
                float(np.quantile(positive, 0.1)),
                float(np.median(positive)),
                2 * float(positive.max()),
            ):
                if fast is not None:
                    self._same(generic, own, params, clip, norms)
                self._neighbours(generic if fast is None else own, params, clip)

    def _each_alone(self, prepare: Callable) -> None:
        """``prepared`` computes of each record alone."""
        every = prepare(self.records)
        for j in (0, self.count - 1):
            alone = prepare(jax.tree.map(lambda leaf, j=j: leaf[j : j + 1], self.records))
            for one, of_all in zip(jax.tree.leaves(alone), jax.tree.leaves(every), strict=True):
                _demand(
                    np.shape(of_all)[:1] == (self.count,) and np.allclose(one[0], of_all[j], rtol=1e-5, equal_nan=True),
                    f"{self.name}.prepared gives record {j} other numbers alone than among the others: it must compute "
                    "of each record alone",
                )

    def _same(
        self,
        generic: Callable,
        own: Callable,
        params: PyTree,
        clip: float,
        norms: np.ndarray,
    ) -> None:
        """The two sums agree within float32, for full, partial and empty masks."""
        for mask in (
            np.ones(self.count, bool),
            self.rng.random(self.count) < 0.5,
            np.zeros(self.count, bool),
        ):
            total = own(params, self.records, jnp.asarray(mask), clip)
            _demand(
                isinstance(total, FixedPoint),
                f"{self.name}.clipped_gradient_sum must return an exact FixedPoint sum (fixed_point.linear_sum or "
                f"clipped_sum), not a {type(total).__name__}",
            )
            got = _flat(total, clip)
            wanted = _flat(generic(params, self.records, jnp.asarray(mask), clip), clip)
            _demand(
                got.shape == wanted.shape,
                f"{self.name}.clipped_gradient_sum has {got.size} coordinates, and the parameters {wanted.size}",
            )
            # Each row may lose a grid step a coordinate, and differ by float32's rounding of its gradient.
            rows = mask.sum() * clip * (2.0 * 2.0**-_BITS + KAPPA)
            allowed = rows + _FLOAT32 * np.minimum(norms, clip)[mask].sum()
            off = np.abs(got - wanted).max(initial=0.0)
            _demand(
                off <= allowed,
                f"{self.name}.clipped_gradient_sum is off by {off:.3g} from the sum of clipped jax.grad (allowed "
                f"{allowed:.3g}) at clip {clip:.3g} with {int(mask.sum())} of {self.count} rows",
            )

    def _neighbours(self, total: Callable, params: PyTree, clip: float) -> None:
        """A record weighs at most C, a replaced one moves the sum by 2C, and one that is not finite by nothing."""
        every = jnp.ones(self.count, bool)
        full = _flat(total(params, self.records, every, clip), clip)
        j = int(self.rng.integers(self.count))
        without = np.arange(self.count) != j
        left_out = _flat(total(params, self.records, jnp.asarray(without), clip), clip)
        self._within(np.linalg.norm(full - left_out), clip, "leaving out a record")
        for factor in (1.0, -1e3, 1e30):
            moved = _flat(total(params, self._with_row(j, factor), every, clip), clip)
            self._within(np.linalg.norm(moved - left_out), clip, "adding a record")
            self._within(np.linalg.norm(moved - full), 2 * clip, "replacing a record")
        for broken in self._broken(j):
            if np.isfinite(self._norms(params, broken)[j]):
                continue  # a target may ignore what it is given
            got = _flat(total(params, broken, every, clip), clip)
            _demand(
                bool(np.linalg.norm(got - left_out) <= clip * KAPPA),
                f"{self.name}: a record whose gradient is not finite must contribute zero to the clipped sum",
            )

    def _within(self, distance: np.floating, sensitivity: float, what: str) -> None:
        _demand(
            bool(distance <= sensitivity * (1 + KAPPA)),
            f"{self.name}: {what} moves the clipped sum by {distance:.6g}, more than its sensitivity {sensitivity:.6g}",
        )

    def predictions(self) -> None:
        """One finite prediction a row, and probabilities where classes are declared."""
        target, records = by_row(self.target, self.records)
        if not predicts(target) or not isinstance(records, dict) or "x" not in records:
            return
        classes = target_offers(target).num_classes
        count = len(records["x"])
        for params in self.points:
            out = np.asarray(target.predict(params, records["x"]))
            _demand(
                out.shape[:1] == (count,),
                f"{self.name}.predict returns shape {out.shape} for {count} rows",
            )
            _demand(
                np.isfinite(out).all(),
                f"{self.name}.predict returns values that are not finite",
            )
            if classes is None:
                continue
            shapes = ((count, classes), (count,)) if classes == 2 else ((count, classes),)
            _demand(
                out.shape in shapes,
                f"{self.name}.predict returns shape {out.shape} for {count} rows and num_classes {classes}",
            )
            _demand(
                bool(((out >= 0) & (out <= 1 + 1e-5)).all()),
                f"{self.name}.predict returns no probabilities",
            )
            if out.ndim == 2:
                _demand(
                    np.allclose(out.sum(axis=1), 1, atol=1e-4),
                    f"{self.name}.predict: classes do not add up to 1",
                )

    def _norms(self, params: PyTree, batch: PyTree) -> np.ndarray:
        each = [
            np.asarray(leaf, np.float64).reshape(self.count, -1) for leaf in jax.tree.leaves(self.scores(params, batch))
        ]
        return np.linalg.norm(np.concatenate(each, axis=1), axis=1)

    def _with_row(self, j: int, factor: float) -> PyTree:
        """The records with record j replaced: another one, its real-valued parts multiplied by ``factor``."""
        other = int(self.rng.integers(self.count))

        def replaced(leaf: jax.Array) -> jax.Array:
            scaled = leaf[other] * factor if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf[other]
            return leaf.at[j].set(scaled)

        return jax.tree.map(replaced, self.records)

    def _broken(self, j: int) -> Iterator[PyTree]:
        """The records with one real-valued part of record j not finite."""
        leaves, tree = jax.tree.flatten(self.records)
        for i, leaf in enumerate(leaves):
            if jnp.issubdtype(leaf.dtype, jnp.floating):
                for bad in (np.nan, np.inf):
                    yield jax.tree.unflatten(tree, [*leaves[:i], leaf.at[j].set(bad), *leaves[i + 1 :]])


def _demand(holds: bool | np.bool_, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


def _flat(total: FixedPoint, clip: float) -> np.ndarray:
    leaves = jax.tree.leaves(total.to_float64(clip, _BITS))
    return np.concatenate([np.ravel(leaf) for leaf in leaves])


def _row(records: PyTree, i: int) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[i], records)


def _on_device(leaf: np.ndarray) -> jax.Array:
    return jnp.asarray(leaf, jnp.float32 if np.issubdtype(leaf.dtype, np.floating) else None)
