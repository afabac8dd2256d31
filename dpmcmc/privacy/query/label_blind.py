"""A weight of each record that shrinks its gradient to the clip norm and does not see its label.

    w(x, θ) = min(1, C / max_y ‖∇ log p(y | x, θ)‖)

Sensitivity. ‖w g‖ <= w max_y ‖g‖ <= C for the gradient g of the record's own label. The clip that follows is the one on
which every guarantee rests; here it corrects rounding alone, unless a label is none of those that the maximum is over.

Unbiased. w is a function of x and θ, and not of y. At the parameter that made the labels E[g | x] = 0, so E[w g] = 0
for every clip norm. Clipping each gradient by its own norm, which depends on y, has no such property.

The weighted score of a linear predictor increases with x·θ, as the score does: for a logistic record with s = ±x·θ and
|g| = σ(s)‖x‖, w|g| = min(σ(s)‖x‖, C σ(s)/σ(|s|)), and σ(s)/σ(|s|) is e^s for s < 0 and 1 for s >= 0. Its slope is at
most ‖x‖/2, which is twice that of the score.

Claim: A weight that does not see the label keeps the sensitivity, and leaves the score unbiased.
Proof: the weight is a maximum over all labels, and a function of x and θ alone.
Held by: test_a_weight_is_the_same_for_every_label, test_a_replaced_record_moves_the_sum_by_at_most_2c,
test_the_score_at_the_truth_is_unbiased_and_that_of_residual_clipping_is_not, "weights that see labels",
"weights that see the label"
"""

from __future__ import annotations

from typing import TypeVar

import jax
import numpy as np

from dpmcmc.privacy.query.exact_sums import Clip

#: Norms of records: of NumPy in a mechanism, of JAX in a query.
Norms = TypeVar("Norms", np.ndarray, jax.Array)


def label_blind_weight(longest: Norms, clip: Clip | np.ndarray) -> Norms:
    """Return min(1, C/longest), (n,), of the largest norm that each record's gradient has over all labels."""
    ratio: Norms = clip / longest  # type: ignore[assignment]
    return ratio.clip(max=1.0)
