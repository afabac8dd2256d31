r"""A classifier of labels that were randomised: each is kept with probability w, and becomes each other one with v.

    q(y | x, θ) = v + (w − v) p(y | x, θ),     log q = log v + log(1 + c·p),   c = w/v − 1

For two classes q = f + (1 − 2f) p with f = v. A label then tells (1 − 2f)² p²(1 − p)²/(q(1 − q)) of the margin, where
the true one tells p(1 − p) (Fisher information). The gradient is that of log p times c·p/(1 + c·p) < 1.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from dpmcmc.errors import UnsupportedCombination
from dpmcmc.privacy.query.randomised_response import VALUES, RandomisedTable
from dpmcmc.storage.pytree import STATIC, PyTree, rebuilt
from dpmcmc.targets.base import TargetOffers, bind, require_classes
from dpmcmc.targets.logistic import LogisticRegression
from dpmcmc.targets.of_inner import of_inner as _of_inner
from dpmcmc.targets.softmax import SoftmaxRegression

if TYPE_CHECKING:
    from jaxtyping import Float


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RandomisedLabels(TargetOffers):
    """A classifier whose labels were randomised at ε, each for itself; predictions are of the true label.

    Draws from its posterior know how likely each label was changed. Use it with labels of
    :func:`dpmcmc.data.randomise_labels`, or with those that people randomised themselves (the local model).

    Args:
        target: logistic or softmax regression of the true labels, without weights.
        epsilon: ε of the randomised response, within 1e-6 and 20.

    Raises:
        UnsupportedCombination: another target, or one with weights.
        InputError: an ε outside its range.

    Example:
        >>> import jax.numpy as jnp
        >>> from dpmcmc.targets import LogisticRegression, RandomisedLabels
        >>> target = RandomisedLabels(LogisticRegression(num_features=2), epsilon=1.0)
        >>> params = jnp.array([20.0, 0.0])
        >>> record = {"x": jnp.ones(2), "y": jnp.array(1)}
        >>> round(float(jnp.exp(target.log_likelihood(params, record))), 4)  # e/(e + 1), and not 1
        0.7311
    """

    target: Any
    epsilon: float = dataclasses.field(metadata=STATIC)

    predict = _of_inner()
    check_records = _of_inner()
    num_classes = _of_inner()
    num_features = _of_inner()
    row_bound = _of_inner()
    offset_bound = _of_inner()
    prior_precision = _of_inner()
    gradient_bound = _of_inner()
    gradient_bound_within = _of_inner()

    def __post_init__(self) -> None:
        if rebuilt(self):
            return
        if type(self.target) not in (LogisticRegression, SoftmaxRegression):
            raise UnsupportedCombination(
                "randomised labels are derived for logistic and softmax regression, and the target is "
                f"{type(self.target).__name__}; take one of those.",
                "target",
            )
        if self.target.weight_scale is not None:
            raise UnsupportedCombination(
                "weight: randomised labels have no derivation for records with a weight, whose likelihood is no "
                "probability of a label; leave weights out.",
                "weight",
            )
        # Refuses an ε out of range.
        RandomisedTable(self.epsilon, self.num_classes or 2)

    @property
    def table(self) -> RandomisedTable:
        """Probabilities of each randomised label given the true one.

        Raises:
            TargetError: the number of classes was not declared.
        """
        name = type(self.target).__name__
        return RandomisedTable(self.epsilon, require_classes(self.num_classes, name))

    def bind(self, record_shapes: PyTree) -> RandomisedLabels:
        """The same around the bound target."""
        return RandomisedLabels(bind(self.target, record_shapes), self.epsilon)

    def init(self, key: jax.Array) -> PyTree:
        """The classifier's starting point."""
        return self.target.init(key)

    def log_prior(self, params: PyTree) -> jax.Array:
        """The classifier's log prior, up to a constant."""
        return self.target.log_prior(params)

    def log_likelihood(self, params: PyTree, record: PyTree) -> Float[jax.Array, ""]:
        """log q of ONE randomised label."""
        table = self.table
        own = jnp.exp(self.target.log_likelihood(params, record))
        return math.log(table.changed / VALUES) + jnp.log1p(float(table.odds - 1) * own)
