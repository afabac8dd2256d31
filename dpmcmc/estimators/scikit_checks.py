"""Checks of scikit-learn that privacy rules out, each with its reason.

from sklearn.utils.estimator_checks import parametrize_with_checks
from dpmcmc.estimators import PrivateLogisticRegression, expected_failed_checks

model = PrivateLogisticRegression(epsilon=1.0, num_records="observed")

@parametrize_with_checks([model], expected_failed_checks=expected_failed_checks)
def test_scikit_learn_check(estimator, check):
    check(estimator)
"""

from __future__ import annotations

from sklearn.base import BaseEstimator

from dpmcmc.estimators.regressions import OBSERVED, PrivateLogisticRegression

_CLASSES = "the two classes are public and declared, 0 and 1 here, and the check's labels are others"
_FAILED = {
    "check_estimators_dtypes": _CLASSES,
    "check_classifier_data_not_an_array": _CLASSES,
    "check_classifiers_classes": _CLASSES,
    "check_fit2d_1feature": _CLASSES,
    "check_classifiers_one_label": "which of the declared classes occur in y is private, so one label alone is no case "
    "of its own: it is fitted with noise, as any other y",
}


def expected_failed_checks(estimator: BaseEstimator) -> dict[str, str]:
    """Return the names of the checks that privacy rules out for an estimator, with reasons.

    They concern classes that were declared. With ``classes="observed"`` a classifier passes every check. The checks fit
    clones to tables of many sizes, so they are for an estimator with an ε and ``num_records="observed"``.
    """
    declared = estimator.classes if isinstance(estimator, PrivateLogisticRegression) else OBSERVED
    return {} if isinstance(declared, str) and declared == OBSERVED else dict(_FAILED)
