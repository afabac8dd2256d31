"""Generalised linear models: one file a family, over what they share; ``counts`` has two.

``base``               prior, shapes and public bounds
``linear_predictor``   families whose record enters through one number x·θ: their exact clipped sums in closed form
"""

from dpmcmc.targets.glm.counts import NegativeBinomialRegression, PoissonRegression
from dpmcmc.targets.glm.linear import LinearRegression
from dpmcmc.targets.glm.logistic import LogisticRegression
from dpmcmc.targets.glm.softmax import SoftmaxRegression

__all__ = [
    "LinearRegression",
    "LogisticRegression",
    "NegativeBinomialRegression",
    "PoissonRegression",
    "SoftmaxRegression",
]
