"""From a table and an ε to a result, with no setting chosen by hand.

``suggestion``   ``dpmcmc.suggest``: the plan for a model, from public facts alone;  ``suggested_chain`` of a chain
``outlook``      width of intervals and accuracy to expect, over ``simulated_rows``;  ``width_picture`` of it
``fitting``      ``dpmcmc.fit``: from a table to a result
``regressions``  the same with scikit-learn's interface;  ``folds``, ``row_checks`` and ``scikit_checks`` of it
"""

from dpmcmc.estimators.fitting import fit as fit
from dpmcmc.estimators.folds import PublicKFold as PublicKFold
from dpmcmc.estimators.regressions import (
    PrivateLinearRegression as PrivateLinearRegression,
)
from dpmcmc.estimators.regressions import (
    PrivateLogisticRegression as PrivateLogisticRegression,
)
from dpmcmc.estimators.regressions import (
    PrivatePoissonRegression as PrivatePoissonRegression,
)
from dpmcmc.estimators.scikit_checks import expected_failed_checks as expected_failed_checks
from dpmcmc.estimators.suggestion import NotAchievable as NotAchievable
from dpmcmc.estimators.suggestion import default_delta as default_delta
from dpmcmc.estimators.suggestion import suggest as suggest
