"""Models with a prior and a per-record log-likelihood."""

from dpmcmc.targets.base import (
    Custom,
    Target,
    TargetError,
    bind,
    check,
    check_rows,
    immutable,
    record_shapes,
)
from dpmcmc.targets.flax import from_flax
from dpmcmc.targets.glm import (
    LinearRegression,
    LogisticRegression,
    NegativeBinomialRegression,
    PoissonRegression,
    SoftmaxRegression,
)
from dpmcmc.targets.numpyro import from_numpyro
from dpmcmc.targets.ordinal import OrdinalRegression
from dpmcmc.targets.randomised_labels import RandomisedLabels
from dpmcmc.targets.transformed import PerOwner

#: Names a YAML may use.
TARGETS: dict[str, type[Target]] = {
    "linear_regression": LinearRegression,
    "logistic_regression": LogisticRegression,
    "negative_binomial_regression": NegativeBinomialRegression,
    "ordinal_regression": OrdinalRegression,
    "poisson_regression": PoissonRegression,
    "softmax_regression": SoftmaxRegression,
}

__all__ = [
    "TARGETS",
    "Custom",
    "LinearRegression",
    "LogisticRegression",
    "NegativeBinomialRegression",
    "OrdinalRegression",
    "PerOwner",
    "PoissonRegression",
    "RandomisedLabels",
    "SoftmaxRegression",
    "Target",
    "TargetError",
    "bind",
    "check",
    "check_rows",
    "from_flax",
    "from_numpyro",
    "immutable",
    "record_shapes",
]
