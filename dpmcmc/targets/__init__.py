"""What is sampled: models with a prior and a per-record log-likelihood."""

from dpmcmc.targets.base import Target, bind
from dpmcmc.targets.logistic import LogisticRegression

#: Names a YAML may use.
TARGETS = {"logistic_regression": LogisticRegression}

__all__ = ["TARGETS", "LogisticRegression", "Target", "bind"]
