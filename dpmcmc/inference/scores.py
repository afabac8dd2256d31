r"""Bounded, Fisher-consistent scores of one record at its predictor η, one class for each family.

A family's own score is s = −∂ log p(y | η)/∂η. A bounded score ψ(η, y) replaces it (:class:`BoundedScore`):

* ‖ψ‖ <= limit for every label y; each record may have its own limit;
* E[ψ(η, y) | η] = 0 under the model, so the sum of scores has mean zero at the parameter that made the labels;
* Λ = E[ψ sᵀ] and V = E[ψ ψᵀ] are known functions of η and of the limit (:class:`Law`). As E[ψ] = 0 for every η, Λ is
  the derivative of E_{y ~ η*}[ψ(η, y)] in η at η = η*: it is the curvature, and V the variance, of the score.

A model's record has the gradient J(x)ᵀψ, J = ∂η/∂θ: x ψ for a regression with one predictor x·θ, x ψᵀ for one of K with
parameters (d, K). With limit = C/‖F⁻¹Jᵀ‖ a record's gradient is at most C long in the metric F, and remains unbiased.

Shapes: η is (n,) for a family of one predictor, and (n, K) for one of ``size`` K > 1; so are scores. Λ and V are (n,),
or (n, K, K). A limit is a number or (n,).

:func:`score_of` returns the family of a target. A new family is one class here, its target's file, and one line of
``SCORES``. A family whose bounded score is the model's own times a weight that does not see the label, as chains clip,
is a :class:`LabelBlind` one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dpmcmc.inference.bounded_score import BoundedScore, LabelBlind, Law
from dpmcmc.inference.count_score import Counts
from dpmcmc.inference.linear_score import Linear
from dpmcmc.inference.logistic_score import Logistic
from dpmcmc.inference.normal_score import Normal
from dpmcmc.inference.softmax_score import Softmax
from dpmcmc.targets.counts import NegativeBinomialRegression, PoissonRegression
from dpmcmc.targets.linear import LinearRegression
from dpmcmc.targets.logistic import LogisticRegression
from dpmcmc.targets.softmax import SoftmaxRegression

#: From a target to its score.
SCORES: dict[type, Callable[[Any], BoundedScore]] = {
    LogisticRegression: lambda target: Logistic(),
    LinearRegression: lambda target: Linear(target.noise_scale**2),
    SoftmaxRegression: lambda target: Softmax(target.classes),
    PoissonRegression: lambda target: Counts(),
    NegativeBinomialRegression: lambda target: Counts(target.dispersion),
}
#: Scores of the observed site of a NumPyro model, by the name of its family in ``targets/numpyro/model.py``.
MODEL_SCORES: dict[str, BoundedScore | Normal] = {
    "logistic": Logistic(),
    "normal": Normal(),
    "poisson": Counts(),
}


def score_of(target: object) -> BoundedScore | None:
    """Return the bounded score of a target, or None where none is derived."""
    made = SCORES.get(type(target))
    return None if made is None else made(target)


__all__ = [
    "MODEL_SCORES",
    "SCORES",
    "BoundedScore",
    "LabelBlind",
    "Law",
    "score_of",
]
