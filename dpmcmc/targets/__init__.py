"""What is sampled: models with a prior and a per-record log-likelihood."""

from dpmcmc.targets.base import Target, TargetError, bind, check
from dpmcmc.targets.logistic import LogisticRegression

#: Names a YAML may use.
TARGETS = {"logistic_regression": LogisticRegression}

__all__ = ["TARGETS", "LogisticRegression", "Target", "TargetError", "bind", "check"]
