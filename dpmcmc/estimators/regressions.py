"""Private regressions with scikit-learn's interface.

Facts that scikit-learn's estimators learn from data without a guarantee are arguments here: the range of each feature,
the two classes, the range of a label. So is ε. Values beyond a range are clipped to it, in
``fit`` and in ``predict``.

Coefficients are in the units of the features: logit or mean = x·coef_ + intercept_ for rows within their ranges.

**Every fit spends ε, and a guarantee covers one fit.** k fits together cost at most k·ε if neighbouring tables lead to
training sets that differ in at most one record in each fit. :class:`~dpmcmc.estimators.PublicKFold` ensures that;
scikit-learn's default for classifiers does not. With ``ledger=`` all fits are charged to one budget.

**The number of rows of a fit is public.** A call of ``fit`` declares it. Cross-validation and meta-estimators fit
clones, and their number of rows may be a private count, such as that of the two classes which ``OneVsOneClassifier``
selects. So a clone needs ``num_records``, and refuses any other number.

No guarantee covers what happens to rows before a fit or to predictions after it: a fitted step of a ``Pipeline``, a
calibration, a threshold, or a choice by scores on private rows. ``docs/tutorials/dataframe_to_intervals.md`` lists
which meta-estimators keep the promise.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from annotated_types import Gt, Le, Lt
from numpy.typing import ArrayLike
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted

from dpmcmc.data.column_kinds import Column, Counts, Levels, Range
from dpmcmc.data.schema import Schema
from dpmcmc.engine.life import sample
from dpmcmc.engine.reservation import Reservation
from dpmcmc.engine.result import Result
from dpmcmc.errors import InputError, NoGuarantee, NotForIntervals, check_fields, shown
from dpmcmc.estimators.fitting import model_of, settings_of
from dpmcmc.estimators.row_checks import check_records, check_rows
from dpmcmc.estimators.suggestion import Goal, ask
from dpmcmc.planning.permitted_uses import INTERVALS
from dpmcmc.planning.plan import Plan

Ranges = tuple[float, float] | list[tuple[float, float]]
_LABEL = "label"
#: Value that declares a fact of the records public: the labels that occur, or the number of rows of every fit.
OBSERVED = "observed"
#: Range of a column or label whose range is not declared.
_UNDECLARED = (-1.0, 1.0)
#: Most predictors (of a row under a draw) in memory at once.
_ENTRIES = 1 << 22


@dataclass(eq=False, repr=False)
class PrivateRegression(BaseEstimator):
    """Common part: encoding by public ranges, the plan of :func:`dpmcmc.suggest`, and coefficients in units of X.

    Args:
        epsilon: ε of one fit. ``fit`` refuses None, the default that lets scikit-learn construct an estimator.
        delta: δ; None: the least of 1e-5 and N^-1.2.
        num_records: public number of rows that ``fit`` is handed, or several of them; another number is refused. None:
            the number in hand, and a clone, which cross-validation or a meta-estimator has made, is refused.
            ``"observed"``: you declare that the number of rows of every fit is public, also where labels decide it.
        ranges: public (low, high) of all features, or one pair for each; values beyond are clipped. None: (-1, 1), with
            a warning.
        level: of the intervals.
        goal: ``intervals`` or ``prediction``; see :func:`dpmcmc.suggest`.
        random_state: None: secret noise, and a guarantee. Anything else makes the fit reproducible, and takes the
            guarantee away; every such fit warns.
        ledger: path of the budget ledger to charge for every fit. Its data set is the one that all rows of ``X`` come
            from. Rows are not compared with it, since a fold has only a part of them.

    Attributes:
        coef_, intercept_: posterior means in the units of X.
        intervals_: of ``coef_``, (d, 2); None where the plan gives none. ``intercept_interval_``: (2,).
        guarantee_: what was spent, or None.
        result_: the release itself.

    Raises:
        InputError: in ``fit``, before anything is charged: no ε, a number of rows that it was not told, or an argument
            that cannot be.

    Warns:
        NoGuarantee: a fit with a ``random_state``.
        NotForIntervals: the goal is out of reach.

    Example:
        >>> from dpmcmc.estimators import PrivateLogisticRegression
        >>> model = PrivateLogisticRegression(epsilon=0.5, ranges=[(0, 10), (-1, 1)])  # one pair for each feature
        >>> model.get_params()["epsilon"]
        0.5
    """

    epsilon: Annotated[float, Gt(0), Le(1e6)] | None = None
    _: KW_ONLY
    delta: Annotated[float, Gt(0), Lt(1)] | None = None
    num_records: int | Sequence[int] | Literal["observed"] | None = None
    ranges: Ranges | None = None
    level: Annotated[float, Gt(0), Lt(1)] = 0.9
    goal: Goal = "intervals"
    random_state: int | np.random.RandomState | None = None
    ledger: str | Path | None = None

    _is_clone = False

    def _label(self) -> Column:
        """Return the public facts of the label."""
        raise NotImplementedError

    def _labels(self, y: np.ndarray) -> np.ndarray:
        """Return labels as the schema takes them."""
        return y

    def __sklearn_clone__(self) -> Self:
        made = super().__sklearn_clone__()
        made._is_clone = True
        return made

    def _read(self, X: ArrayLike, y: ArrayLike, **options: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return checked arrays of rows and labels."""
        x, labels = check_records(self, X, y, **options)
        self._check(len(x))
        return x, labels

    def _check(self, rows: int) -> None:
        """Refuse arguments that cannot be, and a number of rows that is not declared; it is private, so it is not said.

        Raises:
            InputError: one of these.
        """
        check_fields(self)
        declared = self.num_records
        if declared == OBSERVED or (declared is None and not self._is_clone):
            return
        if declared is None:
            raise InputError(
                "num_records: this is a clone, as cross-validation and meta-estimators make, whose number of rows may "
                "be a private count; tell it, for example num_records=folds.train_records with cv=folds and "
                "folds=dpmcmc.estimators.PublicKFold(5, num_records=...), or 'observed' where all of them are public",
                "num_records",
            )
        if rows not in ((declared,) if isinstance(declared, int | np.integer | str) else declared):
            raise InputError(
                f"num_records: {declared} was declared, and fit was handed another number of rows, which is private "
                "then: stratified folds and meta-estimators that take rows out by their labels do so; "
                "docs/tutorials/dataframe_to_intervals.md lists what keeps the promise",
                "num_records",
            )

    def _schema(self, size: int) -> Schema:
        given = _UNDECLARED if self.ranges is None else self.ranges
        try:
            pairs = np.asarray(given, float)
        except (
            TypeError,
            ValueError,
            OverflowError,
        ):  # no numbers, or not as many for each column
            pairs = np.empty(0)
        if pairs.shape not in ((2,), (size, 2)):
            raise InputError(
                f"ranges: give (low, high) for all columns, or one pair for each of {size}, got {shown(given)}",
                "ranges",
            )
        ends = np.broadcast_to(pairs, (size, 2)).tolist()
        return Schema(
            {
                **{f"x{j}": Range(*pair) for j, pair in enumerate(ends)},
                _LABEL: self._label(),
            },
            label=_LABEL,
        )

    def _table(self, x: np.ndarray) -> dict[str, np.ndarray]:
        return {f"x{j}": x[:, j] for j in range(x.shape[1])}

    @property
    def _undeclared(self) -> list[str]:
        """Names of the public facts that are not declared."""
        return ["ranges"] if self.ranges is None else []

    def _fitted(self, x: np.ndarray, y: np.ndarray) -> Self:
        """Fit on checked arrays, and set the fitted attributes."""
        if self._undeclared:
            warnings.warn(
                f"{' and '.join(self._undeclared)}: nothing is declared, so values are clipped to (-1, 1); give "
                "public ends",
                stacklevel=3,
            )
        schema = self.schema_ = self._schema(x.shape[1])
        records = schema.encode({**self._table(x), _LABEL: self._labels(y)})
        target = model_of(schema)
        asked = ask(
            target,
            len(x),
            self.epsilon,
            self.delta,
            schema,
            None,
            settings_of(target, self.goal, schema.num_features),
        )
        plan = asked.attempted(self.goal, stacklevel=3)
        self.result_ = self._released(plan, records)
        self.guarantee_ = self.result_.guarantee
        draws = schema.to_original_units(self.result_.flat_draws())
        self._set_coefficients(draws[:, :-1].mean(axis=0), draws[:, -1].mean())
        ends = np.quantile(draws, [(1 - self.level) / 2, (1 + self.level) / 2], axis=0).T
        given = INTERVALS in self.result_.usable_for
        self.intervals_ = ends[:-1] if given else None
        self.intercept_interval_ = ends[-1] if given else None
        return self

    def _released(self, plan: Plan, records: dict[str, np.ndarray]) -> Result:
        """Return the release, charged to the ledger where there is one."""
        key = None
        if self.random_state is not None:
            key = int(check_random_state(self.random_state).randint(2**31 - 1))
            warnings.warn(
                f"random_state: {type(self).__name__} has one, so that its noise can be computed and taken away: this "
                "fit has NO privacy guarantee. Leave random_state=None; BaggingClassifier and other meta-estimators "
                "set it for their members, so use none of these on private records",
                NoGuarantee,
                stacklevel=4,
            )
        reservation = None
        if self.ledger is not None:
            guarantee = plan.guarantee if key is None else None
            reservation = Reservation(self.ledger, guarantee, type(self).__name__, parts=True)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NotForIntervals)
                return sample(plan, records, key=key, ledger=reservation)
        finally:
            if reservation is not None:
                reservation.settle()

    def _set_coefficients(self, coefficients: np.ndarray, intercept: float) -> None:
        self.coef_: np.ndarray = coefficients
        self.intercept_: np.ndarray | float = float(intercept)

    def _mean(self, x: ArrayLike) -> np.ndarray:
        """Return the posterior predictive mean of the encoded label, (n,)."""
        check_is_fitted(self)
        rows = self.schema_.encode_features(self._table(check_rows(self, x)))
        draws = self.result_.flat_draws()
        block = max(1, _ENTRIES // len(draws))
        parts = (self._link(rows[i : i + block] @ draws.T).mean(axis=1) for i in range(0, len(rows), block))
        return np.concatenate(list(parts))

    def _link(self, predictor: np.ndarray) -> np.ndarray:
        """Return the mean label at predictors."""
        raise NotImplementedError

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = True
        return tags


@dataclass(eq=False, repr=False)
class PrivateLogisticRegression(ClassifierMixin, PrivateRegression):
    """Logistic regression of two classes under (ε, δ)-differential privacy; see :class:`PrivateRegression`.

    Args:
        classes: the two public labels, the second one the event; None: 0 and 1. ``"observed"``: you declare that it is
            public which labels occur in ``y``.

    Attributes:
        classes_: the two labels.
        coef_: (1, d); ``intercept_``: (1,).

    Example:
        >>> import numpy as np
        >>> from dpmcmc.estimators import PrivateLogisticRegression
        >>> rng = np.random.default_rng(0)
        >>> x = rng.uniform(-1, 1, size=(2000, 2))
        >>> y = (2 * x[:, 0] + rng.logistic(size=2000) > 0).astype(int)
        >>> model = PrivateLogisticRegression(epsilon=1.0, ranges=(-1, 1)).fit(x, y)
        >>> model.coef_.shape, model.intervals_.shape
        ((1, 2), (2, 2))
        >>> model.guarantee_.epsilon <= 1.0
        True
    """

    classes: ArrayLike | None = field(default=None, kw_only=True)

    def _label(self) -> Column:
        return Levels(("0", "1"))

    def _labels(self, y: np.ndarray) -> np.ndarray:
        return (y == self.classes_[1]).astype(int)

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to rows (n, d) and labels (n,), each one of the two classes.

        Raises:
            ValueError: a label that is no class, or values that are not finite.
        """
        x, labels = self._read(X, y)
        check_classification_targets(labels)
        observed = isinstance(self.classes, str) and self.classes == OBSERVED
        given = np.unique(labels) if observed else (0, 1) if self.classes is None else self.classes
        self.classes_ = np.asarray(given)
        if len(self.classes_) != 2 or type_of_target(labels) == "multiclass":
            # The first sentence is scikit-learn's own.
            raise InputError(
                f"Only binary classification is supported. The type of the target is {type_of_target(labels)}. "
                f"{len(self.classes_)} class{'es are' * (len(self.classes_) != 1)} declared or observed, and the model "
                "has two",
                "classes",
            )
        if not np.isin(labels, self.classes_).all():
            raise InputError(
                f"classes: a label is neither {self.classes_[0]!s} nor {self.classes_[1]!s}; declare the two labels of "
                "y, which are public, with classes=",
                "classes",
            )
        return self._fitted(x, labels)

    def _set_coefficients(self, coefficients: np.ndarray, intercept: float) -> None:
        self.coef_ = coefficients[None]
        self.intercept_ = np.array([intercept])

    def _link(self, predictor: np.ndarray) -> np.ndarray:
        return expit(predictor)

    def predict_proba(self, X: ArrayLike) -> np.ndarray:
        """Return posterior predictive probabilities of both classes, (n, 2)."""
        p = self._mean(X)
        return np.column_stack([1 - p, p])

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return the likelier class of each row, (n,)."""
        likelier = (self._mean(X) > 0.5).astype(int)
        return self.classes_[likelier]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.classifier_tags.poor_score = True
        return tags


class _PrivateRegressor(RegressorMixin, PrivateRegression):
    """A regression of numbers."""

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Fit to rows (n, d) and labels (n,).

        Raises:
            ValueError: values that are not finite.
        """
        return self._fitted(*self._read(X, y, y_numeric=True))

    def predict(self, X: ArrayLike) -> np.ndarray:
        """Return posterior predictive means, (n,)."""
        return self._mean(X)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        # The checks fit 200 rows, too few for a good score under privacy.
        tags.regressor_tags.poor_score = True
        return tags


@dataclass(eq=False, repr=False)
class PrivateLinearRegression(_PrivateRegressor):
    """Linear regression under (ε, δ)-differential privacy, with a sandwich variance; see :class:`PrivateRegression`.

    Args:
        label_range: public (low, high) of the label; values beyond are clipped. None: (-1, 1), with a warning.

    Example:
        >>> import numpy as np
        >>> from dpmcmc.estimators import PrivateLinearRegression
        >>> x = np.random.default_rng(0).uniform(-1, 1, size=(2000, 2))
        >>> model = PrivateLinearRegression(epsilon=1.0, ranges=(-1, 1), label_range=(-1, 1)).fit(x, x[:, 0])
        >>> model.coef_.shape, model.predict(x[:3]).shape
        ((2,), (3,))
        >>> model.guarantee_.epsilon <= 1.0
        True
    """

    label_range: tuple[float, float] | None = field(default=None, kw_only=True)

    @property
    def _undeclared(self) -> list[str]:
        return [
            *super()._undeclared,
            *(["label_range"] if self.label_range is None else []),
        ]

    def _label(self) -> Range:
        ends = _UNDECLARED if self.label_range is None else self.label_range
        if np.shape(ends) != (2,):
            raise InputError(f"label_range: give (low, high), got {ends!r}", "label_range")
        return Range(*ends)

    def _link(self, predictor: np.ndarray) -> np.ndarray:
        middle, half = self._label().middle_and_half
        return middle + half * predictor


@dataclass(eq=False, repr=False)
class PrivatePoissonRegression(_PrivateRegressor):
    """Poisson regression with a log link under (ε, δ)-differential privacy; see :class:`PrivateRegression`.

    Args:
        largest_count: public; larger labels are clipped to it. Labels are rounded to whole numbers.

    Example:
        >>> import numpy as np
        >>> from dpmcmc.estimators import PrivatePoissonRegression
        >>> rng = np.random.default_rng(0)
        >>> x = rng.uniform(-1, 1, size=(2000, 2))
        >>> y = rng.poisson(np.exp(x[:, 0]))
        >>> model = PrivatePoissonRegression(epsilon=1.0, ranges=(-1, 1), largest_count=10).fit(x, y)
        >>> model.coef_.shape
        (2,)
        >>> model.guarantee_.epsilon <= 1.0
        True
    """

    largest_count: int = field(default=100, kw_only=True)

    def _label(self) -> Counts:
        return Counts(self.largest_count)

    def _labels(self, y: np.ndarray) -> np.ndarray:
        return np.rint(y)

    def _link(self, predictor: np.ndarray) -> np.ndarray:
        return np.exp(np.minimum(predictor, math.log(self.largest_count)))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags
