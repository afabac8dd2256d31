"""Real data that scikit-learn carries with it: no download, no file to look for.

One specification and one loader per set; a further set is added below in the same form, with one line in the
registry. The column ranges are constants of this file: rounded by us from the published documentation of the
public benchmark, and never computed at run time.
"""

from __future__ import annotations

import numpy as np

from dpmcmc.data.base import DataRequest, DataSet, DataSpec
from dpmcmc.data.encoding import normalised_rows, ranged_columns, with_intercept
from dpmcmc.data.split import fixed_split

BREAST_CANCER = DataSpec(
    name="breast_cancer",
    num_records=426,
    num_features=31,
    num_classes=2,
    public=True,
    row_bound=1.0,
    encoding="public",
    description="Wisconsin breast cancer: benign (1) or malignant (0) from 30 measurements; rows of norm 1.",
)

# Upper ends of [0, upper] for ten properties: radius, texture, perimeter, area, smoothness, compactness,
# concavity, concave points, symmetry, fractal dimension; lengths in the data set's own image units.
_NUCLEUS_MEAN = (30.0, 40.0, 200.0, 2500.0, 0.2, 0.4, 0.5, 0.25, 0.35, 0.1)
_NUCLEUS_ERROR = (3.0, 5.0, 25.0, 600.0, 0.035, 0.15, 0.4, 0.06, 0.08, 0.03)
_NUCLEUS_WORST = (40.0, 50.0, 260.0, 4500.0, 0.25, 1.1, 1.3, 0.3, 0.7, 0.25)


def load_breast_cancer(spec: DataSpec, request: DataRequest) -> DataSet:
    """569 records, 426 of them for training; columns scaled by public ranges, then rows to norm 1.

    Source: W. Wolberg, O. Mangasarian, N. Street and W. Street, UCI Machine Learning Repository, 1995, as
    shipped by ``sklearn.datasets.load_breast_cancer``; labels keep its coding.
    """
    from sklearn.datasets import load_breast_cancer as bundled_breast_cancer

    bundle = bundled_breast_cancer()
    ranges = np.array(_NUCLEUS_MEAN + _NUCLEUS_ERROR + _NUCLEUS_WORST)
    scaled = ranged_columns(np.asarray(bundle.data, dtype=float), ranges, str(spec.encoding))
    columns = (*(str(name) for name in bundle.feature_names), "intercept")
    return _split(spec, normalised_rows(with_intercept(scaled)), np.asarray(bundle.target, dtype=np.int32), columns)


def _split(spec: DataSpec, x: np.ndarray, y: np.ndarray, columns: tuple[str, ...]) -> DataSet:
    parts = fixed_split(x.shape[0], x.shape[0] - (spec.num_records or 0))
    train, test = ({"x": x[part], "y": y[part]} for part in parts)
    return DataSet(spec, train, test, True, "scikit-learn", {}, columns)
