"""Real data that scikit-learn carries with it: no download, no file to look for.

One specification and one loader per set; a further set is added below in the same form, with one line in the
registry. The column ranges are constants of this file: rounded by us from the published documentation of the public
benchmark or taken from common knowledge, and never computed at run time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dpmcmc.data.base import DataSet, DataSpec
from dpmcmc.data.request import DataRequest
from dpmcmc.data.row_maps import add_intercept, clip_rows, normalise_rows, scale_columns
from dpmcmc.data.split import split_rows

if TYPE_CHECKING:
    from sklearn.utils import Bunch


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

DIGITS = DataSpec(
    name="digits",
    num_records=1347,
    num_features=65,
    num_classes=10,
    public=True,
    row_bound=1.0,
    encoding="public",
    description="Handwritten digits 0 to 9, images of 8 x 8 pixels with values 0 to 16; rows of norm 1.",
)

_BRIGHTEST = 16.0

DIABETES = DataSpec(
    name="diabetes",
    num_records=332,
    num_features=11,
    num_classes=None,
    public=True,
    row_bound=1.0,
    encoding=None,
    description="Progression of diabetes after a year, in units of 100 around 150, from ten measurements.",
)

# Age (years), sex (1 or 2), body mass index (kg/m2), mean arterial pressure (mm Hg), total, low- and high-density
# cholesterol (mg/dl), the ratio of total to high, log triglycerides (log mg/dl), glucose (mg/dl). Middle and half
# width of the range in which an adult is expected; a value beyond it is clipped.
_ADULT_MIDDLE = np.array([50.0, 1.5, 25.0, 95.0, 200.0, 120.0, 50.0, 4.0, 4.6, 90.0])
_ADULT_HALF_WIDTH = np.array([30.0, 0.5, 15.0, 35.0, 100.0, 80.0, 40.0, 3.0, 1.5, 35.0])
# Public: columns are within [-1, 1], rows are halved, and the few still beyond norm 1 are drawn back onto the ball.
_ROW_SCALE = 2.0
# The score runs from 0 to 350; a label is (score - 150) / 100, clipped to the range that this gives.
_SCORE_MIDDLE, _SCORE_UNIT = 150.0, 100.0
DIABETES_LABELS = (-1.5, 2.0)


def load_breast_cancer(spec: DataSpec, request: DataRequest) -> DataSet:
    """569 records, 426 of them for training; columns scaled by public ranges, then rows to norm 1.

    Source: W. Wolberg, O. Mangasarian, N. Street and W. Street, UCI Machine Learning Repository, 1995, as
    shipped by ``sklearn.datasets.load_breast_cancer``; labels keep its coding.
    """
    from sklearn.datasets import load_breast_cancer as bundled_breast_cancer

    bundle = bundled_breast_cancer()
    ranges = np.array(_NUCLEUS_MEAN + _NUCLEUS_ERROR + _NUCLEUS_WORST)
    return _classified(spec, bundle, ranges)


def load_digits(spec: DataSpec, request: DataRequest) -> DataSet:
    """1797 records, 1347 of them for training; pixels scaled by their public range, then rows to norm 1.

    Rows of norm 1 keep the gradient of every linear model within sqrt(2), so a small clip loses nothing. A
    network wants inputs of order one and should multiply its rows by 8, the root of the number of pixels.

    Source: E. Alpaydin and C. Kaynak, "Optical recognition of handwritten digits", UCI Machine Learning
    Repository, 1998 (its test file), as shipped by ``sklearn.datasets.load_digits``.
    """
    from sklearn.datasets import load_digits as bundled_digits

    bundle = bundled_digits()
    return _classified(spec, bundle, np.array(_BRIGHTEST))


def load_diabetes(spec: DataSpec, request: DataRequest) -> DataSet:
    """442 records, 332 of them for training; real labels within ``DIABETES_LABELS``.

    Rows are clipped to norm 1 and not normalised, so that a linear model stays linear in the measurements.

    Source: B. Efron, T. Hastie, I. Johnstone and R. Tibshirani, "Least angle regression", Annals of Statistics
    32, 2004, as shipped by ``sklearn.datasets.load_diabetes`` in raw units (its scaled form divides by
    statistics of the table, which a private loader may not read).
    """
    from sklearn.datasets import load_diabetes as bundled_diabetes

    bundle = bundled_diabetes(scaled=False)
    scaled = np.clip(
        (np.asarray(bundle.data, dtype=float) - _ADULT_MIDDLE) / _ADULT_HALF_WIDTH,
        -1.0,
        1.0,
    )
    rows = clip_rows(add_intercept(scaled) / _ROW_SCALE, spec.row_bound)
    labels = np.clip(
        (np.asarray(bundle.target, dtype=float) - _SCORE_MIDDLE) / _SCORE_UNIT,
        *DIABETES_LABELS,
    )
    return _split(spec, bundle, rows, labels.astype(np.float32))


def _classified(spec: DataSpec, bundle: Bunch, upper: np.ndarray) -> DataSet:
    """Rows of norm 1 from columns of public range [0, upper], and class numbers."""
    scaled = scale_columns(np.asarray(bundle.data, dtype=float), upper, str(spec.encoding))
    return _split(
        spec,
        bundle,
        normalise_rows(add_intercept(scaled)),
        np.asarray(bundle.target, dtype=np.int32),
    )


def _split(spec: DataSpec, bundle: Bunch, x: np.ndarray, y: np.ndarray) -> DataSet:
    columns = (*(str(name) for name in bundle.feature_names), "intercept")
    parts = split_rows(x.shape[0], x.shape[0] - (spec.num_records or 0))
    train, test = ({"x": x[part], "y": y[part]} for part in parts)
    return DataSet(spec, train, test, True, "scikit-learn", {}, columns)
