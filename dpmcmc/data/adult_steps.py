"""Encoding ``bins`` of Adult: whether each number reaches each of a list of round numbers.

A row has 40 steps, 44 columns of levels and the intercept. A step is +1/2 where the number reaches its cut and -1/2
where it does not, so every row has the same norm √17 before it is scaled to 1. The scaling is thus a constant, and
the model adds up functions of age, schooling, gain, loss and hours that are constant between cuts.

Indicators of intervals would span the same functions, but their gradients are sums over one interval each, which the
noise of privacy hides. A step's gradient is a sum over all records.

The cuts are round numbers: five years of age, each year of schooling from the ninth, a thousand dollars of gain, two
hundred dollars of loss, ten hours a week. This list was chosen among nine such lists by cross-validated accuracy
without privacy on the training set, which the guarantee does not cover (the set is public). Three fields are left
out: ``education`` is the name of the years of schooling, ``fnlwgt`` is a survey weight, and most of the 42 levels of
``native-country`` are too rare to be learnt privately. Levels and rows are encoded in ``adult.py``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

#: Cuts of each number.
CUTS: dict[str, tuple[int, ...]] = {
    "age": tuple(range(20, 75, 5)),
    "education-num": tuple(range(9, 17)),
    "capital-gain": tuple(range(1000, 11000, 1000)),
    "capital-loss": tuple(range(1400, 2600, 200)),
    "hours-per-week": tuple(range(20, 70, 10)),
}
#: Categorical fields that it keeps.
LEVELS_OF_BINS = ("workclass", "marital-status", "occupation", "relationship", "race", "sex")
#: Names of the columns of steps.
STEPS = tuple(f"{name} {cut}+" for name, cuts in CUTS.items() for cut in cuts)


def make_steps(values: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return ±1/2 for each cut of each number, (N, 40), from the columns (N,) of :data:`CUTS`."""
    reached = [values[name][:, None] >= np.array(cuts) for name, cuts in CUTS.items()]
    return np.concatenate(reached, axis=1) - 0.5
