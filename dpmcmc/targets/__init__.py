"""Models with a prior and a per-record log-likelihood.

``base``     the protocol;  ``checks``, ``labels``, ``absent_records`` what is tried of a target and its records
``custom``   a target from plain functions;  ``flax`` networks;  ``numpyro`` models
``linear``, ``logistic``, ``softmax``, ``counts``, ``ordinal``  families of ``generalised_linear``, ``linear_predictor``
``randomised_labels``  a regression whose labels were changed at random
``tempered``, ``whitened``, ``per_owner``, ``predicting``  a target made of another (``of_inner``)
"""

from dpmcmc.storage.structure import immutable
from dpmcmc.targets.base import Target, TargetError, bind, check, check_rows, record_shapes
from dpmcmc.targets.counts import NegativeBinomialRegression, PoissonRegression
from dpmcmc.targets.custom import Custom
from dpmcmc.targets.flax import from_flax
from dpmcmc.targets.linear import LinearRegression
from dpmcmc.targets.logistic import LogisticRegression
from dpmcmc.targets.numpyro import from_numpyro
from dpmcmc.targets.ordinal import OrdinalRegression
from dpmcmc.targets.per_owner import PerOwner
from dpmcmc.targets.randomised_labels import RandomisedLabels
from dpmcmc.targets.softmax import SoftmaxRegression

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
