r"""Exponential mechanism for penalised empirical risk minimisation (thesis, Algorithm 1; McSherry and Talwar 2007).

    p(h) ∝ exp(−c·(Σ_i ℓ(h, z_i) + g(h))),      h in a public set H, g a public penalty

Two records' losses differ by at most Δ over H. A neighbour changes Σℓ by D(h), and the log density by
−cD(h) − log E[e^{−cD}], which is within c·(sup D − inf D). For ``replace_one`` D = ℓ_z − ℓ_z' varies by at most 2Δ;
where a record is added, removed or zeroed D = ±ℓ_z, which varies by what one record's loss does over H. So

    c = ε/(2Δ) (replace_one),      c = ε/Δ (add_remove, zero_out; 0 <= ℓ <= Δ),

and the release is ε-DP with no δ. The source's c is ε/4 for losses in [0, 1] and replace_one: half of what its own
argument allows, since q = −(1/n)Σℓ moves by 1/n there, not by 2/n.

``hypotheses`` given, H is finite and losses are clipped to [0, loss_bound]. They are rounded to whole levels, 2^-20 of
the bound, and so are penalties, so that sums are exact in any order; a hypothesis is drawn by whole numbers, whose
weights are e^{−c·sum} up to a relative 2^-36, which is charged. Nothing is assumed.

``radius`` given, H is a ball with Lebesgue measure, and a draw is made by an engine of ``ops``: its form ``range`` at
any temper, with a penalty of its own. A set of infinite measure has no density in general, and cannot be asked for.

Claim: The exponential mechanism is ε-DP at δ = 0.
Proof: a neighbour changes the log density by at most c times the range of its change of the sum.
Held by: test_no_outcome_s_probability_moves_by_more_than_epsilon,
test_epsilon_is_attained_where_two_records_disagree_everywhere, test_weights_are_as_exact_as_is_charged
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge

from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.mechanisms.base import MechanismPlan, OneShot, PrivacySpec
from dpmcmc.mechanisms.engines import ENGINES, EngineName, Wanted, drawn
from dpmcmc.mechanisms.minimise import Loss, check_loss, float64, in_float64
from dpmcmc.mechanisms.ops import OPS
from dpmcmc.privacy.accounting import Event
from dpmcmc.privacy.accounting.events import Adjacency
from dpmcmc.privacy.query.randomness import Streams
from dpmcmc.storage.pytree import PyTree, length_of
from dpmcmc.targets.base import Positive, Target, bind, record_shapes
from dpmcmc.targets.transformed import Tempered

#: A loss in whole numbers, as a share of its bound.
LEVELS = 1 << 20
#: Weights are whole numbers with so many bits after the point of the largest, 1; smaller ones count as one.
_BITS = 4096
#: Relative error of a weight: its exponent is at most 4096 bits, with an error of a few 2^-53 of that.
_WEIGHT_ERROR = 2.0**-36
#: Penalties beyond the least one are cut off here, in levels; no sum of losses comes near.
_LARGEST_PENALTY = 1 << 60


@dataclass(frozen=True, eq=False)
class Exponential(OneShot):
    """One hypothesis from a public set, exponentially unlikely in its penalised loss.

    Args:
        radius: R: the set is the ball ‖θ‖ <= R, for targets with ``loss_bounds``.
        regularisation: Λ: the penalty (Λ/2)‖θ‖², of the sum of losses.
        engine: how a draw from the ball is made: ``nuts`` (assumed to converge) | ``closed_form``.
        hypotheses: in place of a ball: pytree like the target's parameters, leaves (M, ...), public.
        penalty: g of each of them, (M,), public; added to (Λ/2)‖θ‖².
        loss: (params, record) -> loss; left out: −log p(record|θ).
        loss_bound: losses are clipped to [0, loss_bound]; with ``hypotheses``.

    Raises:
        ValueError: a value outside these; both a ball and hypotheses, or neither.

    Example:
        >>> from dpmcmc.mechanisms import Exponential
        >>> from dpmcmc.targets import LogisticRegression
        >>> target = LogisticRegression(num_features=2, row_bound=1.0)
        >>> plan = Exponential(radius=1.0).plan(target, num_records=1000, epsilon=1.0, delta=1e-5)
        >>> plan.guarantee.epsilon <= 1.0
        True
    """

    radius: Positive | None = None
    regularisation: Annotated[float, Ge(0)] = 1.0
    engine: EngineName = "nuts"
    hypotheses: PyTree = field(default=None, kw_only=True, repr=False)
    penalty: np.ndarray | None = field(default=None, kw_only=True, repr=False)
    loss: Loss | None = field(default=None, kw_only=True)
    loss_bound: Positive | None = field(default=None, kw_only=True)

    release = "one_sample"
    pure = True
    honours = frozenset({"offset", "weight"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.radius is None) == (self.hypotheses is None):
            raise InputError("radius: give the radius of a ball, or hypotheses (in Python)", "radius")
        if self.hypotheses is None:
            self._check_ball()
        else:
            self._check_hypotheses()

    @property
    def in_floats(self) -> str:
        """Name a draw from a ball; a hypothesis is chosen by whole numbers."""
        return OPS.in_floats if self.hypotheses is None else ""

    def _check_ball(self) -> None:
        of_hypotheses = {
            "penalty": self.penalty,
            "loss": self.loss,
            "loss_bound": self.loss_bound,
        }
        for name, given in of_hypotheses.items():
            if given is not None:
                raise InputError(f"{name}: is for hypotheses; leave it out with a radius", name)
        if not self.regularisation > 0:
            raise InputError(
                f"regularisation: must be > 0 on a ball, got {self.regularisation}",
                "regularisation",
            )

    def _check_hypotheses(self) -> None:
        if self.loss_bound is None:
            raise InputError("loss_bound: hypotheses need a finite number > 0, got None", "loss_bound")
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(self.hypotheses)]
        sizes = {len(np.atleast_1d(leaf)) for leaf in leaves}
        if not all(np.issubdtype(leaf.dtype, np.number) and np.all(np.isfinite(leaf)) for leaf in leaves):
            raise InputError("hypotheses: must be finite numbers", "hypotheses")
        if len(sizes) != 1 or min(sizes) < 1:
            raise InputError(
                f"hypotheses: leaves must share a leading axis of at least 1, got lengths {sorted(sizes)}",
                "hypotheses",
            )
        if self.penalty is not None:
            penalty = np.asarray(self.penalty, np.float64)
            if penalty.shape != (sizes.pop(),) or not np.all(np.isfinite(penalty)):
                raise InputError(
                    f"penalty: must be one finite number per hypothesis, got shape {penalty.shape}",
                    "penalty",
                )

    def calibrate(self, target: Target, spec: PrivacySpec) -> MechanismPlan:
        """Settle c; ε is spent in full, and δ is not: the guarantee is stated at it.

        Raises:
            UnsupportedCombination: a ball, and a target without bounded losses there; a loss of one's own under
                add_remove.
            ValueError: an ε within what rounding costs.
        """
        if self.hypotheses is None:
            ball = OPS(form="range", engine=self.engine, radius=self.radius)
            ENGINES[self.engine].check(target)
            unit = ball.unit_epsilon(target, spec.adjacency)
            rounding = 0.0
            assumptions = ball.assumptions()
        else:
            assert self.loss_bound is not None
            if self.loss is not None and spec.adjacency == Adjacency.ADD_REMOVE:
                raise UnsupportedCombination(
                    "loss: under add_remove a record may be absent and add nothing, and an absent record may have any "
                    "loss of your own; leave the loss out, or take zero_out or replace_one.",
                    "loss",
                )
            unit = spec.moved * self.loss_bound
            rounding = 4 * _WEIGHT_ERROR
            assumptions = ()
        if spec.epsilon <= rounding:
            raise InputError(
                f"epsilon: {spec.epsilon:g} is within what rounding costs, {rounding:.3g}; raise it",
                "epsilon",
            )
        # A hair below, so that rounding ends on the private side.
        coefficient = (spec.epsilon - rounding) / unit * (1 - 1e-12)
        settings = {"coefficient": coefficient, "epsilon_per_draw": spec.epsilon}
        event = Event("pure", 0.0, 1.0, 1, epsilon=spec.epsilon)
        return self.planned(target, spec, (event,), settings, assumptions)

    def check(self, plan: MechanismPlan, records: PyTree) -> None:
        """Refuse hypotheses of other shapes than the parameters, and a loss that fails on them."""
        if self.hypotheses is None:
            return
        wanted = jax.eval_shape(bind(plan.target, record_shapes(records)).init, jax.random.key(0))
        shapes = jax.tree.map(lambda leaf: leaf.shape, wanted)
        found = jax.tree.map(lambda leaf: np.shape(leaf)[1:], self.hypotheses)
        if found != shapes:
            raise InputError(
                f"hypotheses: each must have the shape of the parameters, {shapes}, got {found}",
                "hypotheses",
            )
        self.check_vote(plan, records)

    def check_vote(self, plan: MechanismPlan, records: PyTree) -> None:
        """Refuse a loss that fails on parameters and records."""
        check_loss(self._loss(plan.target), plan.target, records)

    def draw(self, plan: MechanismPlan, records: PyTree, streams: Streams) -> PyTree:
        """Return the hypothesis, leaves (1, ...).

        Raises:
            DrawError: an engine has no draw; nothing leaves.
        """
        if self.hypotheses is not None:
            index = self.draw_index(plan, records, streams.noise)
            return jax.tree.map(lambda leaf: np.asarray(leaf)[index : index + 1], self.hypotheses)
        c = plan.settings["coefficient"]
        posterior = Tempered(plan.target, c, c, self.regularisation)
        return drawn(self.engine, posterior, records, Wanted(1, self.radius), streams)

    def draw_index(self, plan: MechanismPlan, records: PyTree, key: jax.Array) -> int:
        """Return the number of the released hypothesis.

        Args:
            plan: made by :meth:`OneShot.plan`.
            records: pytree, leaves (N, ...).
            key: secret JAX key.
        """
        return choice(self.weights(plan, records), key)

    def weights(self, plan: MechanismPlan, records: PyTree) -> list[int]:
        """Return whole numbers proportional to the probability of each hypothesis; not private."""
        assert self.loss_bound is not None
        energy = level_sums(self._loss(plan.target), self.hypotheses, records, self.loss_bound) + self._penalties()
        level = plan.settings["coefficient"] * self.loss_bound / LEVELS
        return weights_of(-level * (energy - np.min(energy)))

    def _loss(self, target: Target) -> Loss:
        return self.loss or (lambda params, record: -target.log_likelihood(params, record))

    def _penalties(self) -> np.ndarray:
        """Return penalties in whole levels of the loss, (M,) int64."""
        assert self.loss_bound is not None
        leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(self.hypotheses)]
        squares = sum(np.sum(leaf.reshape(len(leaf), -1) ** 2, axis=1) for leaf in leaves)
        own = 0.0 if self.penalty is None else np.asarray(self.penalty, np.float64)
        whole = 0.5 * self.regularisation * np.asarray(squares) + own
        levels = np.minimum((whole - np.min(whole)) * (LEVELS / self.loss_bound), _LARGEST_PENALTY)
        return np.rint(levels).astype(np.int64)


def level_sums(loss: Loss, hypotheses: PyTree, records: PyTree, bound: float) -> np.ndarray:
    """Return Σ over records of their losses in whole levels of bound/2^20, (M,) int64: exact, and in any order.

    One record at a time, so that what a record adds does not depend on the others, nor on where it stands. A loss that
    is not a number counts as the bound.

    Args:
        loss: (params, record) -> scalar.
        hypotheses: pytree, leaves (M, ...).
        records: pytree, leaves (N, ...).
        bound: losses are clipped to [0, bound].
    """

    with float64():
        return np.asarray(_level_sums(loss, in_float64(hypotheses), in_float64(records), jnp.float64(bound)))


@functools.partial(jax.jit, static_argnums=0)
def _level_sums(loss: Loss, hypotheses: PyTree, records: PyTree, bound: jax.Array) -> jax.Array:
    def add(total: jax.Array, record: PyTree) -> tuple[jax.Array, None]:
        losses = jax.vmap(lambda params: loss(params, record))(hypotheses)
        share = jnp.where(jnp.isnan(losses), 1.0, jnp.clip(losses / bound, 0.0, 1.0))
        return total + jnp.floor(share * LEVELS).astype(jnp.int64), None

    start = jnp.zeros(length_of(hypotheses), jnp.int64)
    return jax.lax.scan(add, start, records)[0]


def weights_of(scores: np.ndarray) -> list[int]:
    """Return whole numbers proportional to e^{score}, up to a relative 2^-36.

    Weights below 2^-4096 of the largest count as that: raising scores to a floor below their maximum moves none of
    them by more than the scores moved, so the range of their differences between neighbours, on which privacy rests,
    does not grow.

    Args:
        scores: (M,) float64, finite.
    """
    bits = np.maximum((scores - np.max(scores)) / math.log(2), -float(_BITS))
    whole = np.floor(bits)
    mantissas = np.floor(np.exp2(bits - whole) * 2.0**52).astype(np.int64)
    return [int(m) << (_BITS + int(w)) for m, w in zip(mantissas, whole, strict=True)]


def choice(weights: list[int], key: jax.Array) -> int:
    """Return an index with probability exactly proportional to its weight.

    Args:
        weights: whole numbers >= 0, not all 0.
        key: secret JAX key, used for nothing else.
    """
    point = _below(sum(weights), key)
    index = 0
    while point >= weights[index]:
        point = point - weights[index]
        index = index + 1
    return index


def _below(limit: int, key: jax.Array) -> int:
    """Return a whole number uniform on [0, limit), by rejection: fewer than 2 tries on average."""
    size = limit.bit_length()
    tries = 0
    while True:
        words = np.asarray(jax.random.bits(jax.random.fold_in(key, tries), (-(-size // 32),), np.uint32))
        value = int.from_bytes(words.tobytes(), "little") >> (-size % 32)
        if value < limit:
            return value
        tries += 1
