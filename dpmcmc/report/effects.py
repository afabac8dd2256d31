r"""Effects of columns in words that a reader of a table asks for, from the draws of one release, at no further cost.

* **odds ratio** (logistic regression, and ordinal regression of being above any level) and **rate ratio** (counts): e^β
  of one unit of a column, and e^(β·(high − low)) of a change over its declared range;
* **average marginal effect**: the mean over records of the derivative of the mean label in the column, β·E[μ'(η)].
  Predictors η = x·θ are taken for normal: each draw has their mean and variance from the released Gram matrix, so that
  no record is read. A linear regression's is its coefficient;
* **contrast**: Σ w β of coefficients in the units of their columns.

A level's effect is that of its difference from the first level of its column.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, ndtri

from dpmcmc.data.column_kinds import Range
from dpmcmc.data.schema import Schema
from dpmcmc.errors import InputError, UnsupportedCombination, printable, shown
from dpmcmc.inference.curvature import mean_row
from dpmcmc.inference.denoised_moment import project
from dpmcmc.inference.evidence import Evidence
from dpmcmc.targets.base import Target
from dpmcmc.targets.counts import NegativeBinomialRegression, PoissonRegression
from dpmcmc.targets.linear import LinearRegression
from dpmcmc.targets.logistic import LogisticRegression
from dpmcmc.targets.ordinal import OrdinalRegression

#: Standard normal quantiles over which predictors are averaged.
_NODES = ndtri((np.arange(200) + 0.5) / 200)
_RATIOS: dict[type, str] = {
    LogisticRegression: "odds ratio",
    OrdinalRegression: "odds ratio",
    PoissonRegression: "rate ratio",
    NegativeBinomialRegression: "rate ratio",
}
_MARGINAL, _CONTRAST = "average marginal effect", "contrast"
#: Largest argument of exp, beyond which a ratio is infinite.
_LARGEST = 700.0


def decimals(std: float) -> int:
    """Return how many decimal places give a spread two digits, and other numbers of its row as many; at most 9."""
    return int(np.clip(1 - np.floor(np.log10(std)), 0, 9)) if 0 < std < math.inf else 0


@dataclass(frozen=True, eq=False)
class Effects:
    """Effects with their intervals.

    Attributes:
        names: of the columns, (k,).
        kinds: of each effect, (k,).
        draws: (draws, k).
        level: share of the draws that an interval holds.
        uses: whether each interval may be reported (``inference/evidence.py``): ``yes``, ``prior`` or ``no``, (k,);
            empty where all may.

    Example:
        >>> import numpy as np
        >>> found = Effects(("age",), ("odds ratio, per unit",), np.array([[1.1], [1.2], [1.3]]), 0.9)
        >>> found.to_dict()["name"]
        ['age']
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    draws: np.ndarray
    level: float
    uses: tuple[str, ...] = ()

    @property
    def intervals(self) -> np.ndarray:
        """Central intervals, (k, 2)."""
        ends = ((1 - self.level) / 2, (1 + self.level) / 2)
        return np.quantile(self.draws, ends, axis=0).T

    @property
    def has_ratios(self) -> bool:
        """Whether odds or rate ratios are among them."""
        return any("ratio" in kind for kind in self.kinds)

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Return (titles, rows) of the table in print."""
        columns = self.to_dict()
        rows = []
        for name, kind, mean, std, *ends in zip(*columns.values(), strict=True):
            places = decimals(std)
            cells = (f"{number:.{places}f}" for number in (mean, std, *ends[:2]))
            rows.append([printable(name), kind, *cells, *ends[2:]])
        return list(columns), rows

    def to_dict(self) -> dict[str, list[str] | list[float]]:
        """Return columns by name: ``name``, ``kind``, ``mean``, ``sd``, the ends of the intervals, and ``use``."""
        low, high = (f"{50 * (1 + sign * self.level):g} %" for sign in (-1, 1))
        intervals = self.intervals
        return {
            "name": list(self.names),
            "kind": list(self.kinds),
            "mean": self.draws.mean(axis=0).tolist(),
            "sd": self.draws.std(axis=0).tolist(),
            low: intervals[:, 0].tolist(),
            high: intervals[:, 1].tolist(),
            "use": list(self.uses) or ["yes"] * len(self.names),
        }

    def __str__(self) -> str:
        titles, rows = self.cells()
        lines = [titles, *rows]
        widths = [max(len(line[k]) for line in lines) for k in range(len(titles))]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
        )


def effects_of(
    draws: np.ndarray,
    target: Target,
    schema: Schema,
    evidence: Evidence | None,
    directions: np.ndarray | None,
    level: float,
    contrast: Mapping[str, float] | None,
) -> Effects:
    """Return the effects of columns, or one contrast of coefficients.

    Args:
        draws: of the encoded coefficients, (draws, d).
        target: of the regression.
        schema: of its table.
        evidence: of the release; None: no marginal effects of a model that is not linear.
        directions: weights of the encoded coefficients in each one in own units, (names, d), or None.
        level: of the intervals.
        contrast: weights by name of a coefficient in its own units; None: all effects.

    Raises:
        UnsupportedCombination: another model than a regression of one predictor, or one without columns.
        InputError: a name that no coefficient has, or a level outside (0, 1).
    """
    if not 0 < level < 1:
        raise InputError(f"level must be in (0, 1), got {level}", "level")
    if np.ndim(draws) != 2 or type(target) not in (*_RATIOS, LinearRegression):
        raise UnsupportedCombination(
            f"effects are derived for linear, logistic and count regressions, and the model is {type(target).__name__}"
            "; use result.summary()"
        )
    names = schema.own_names
    coefficients = schema.to_original_units(draws)

    def used(weights: np.ndarray) -> tuple[str, ...]:
        """Return the uses of sums of coefficients in own units, given their weights, (k, names); () if none is told."""
        if evidence is None or directions is None:
            return ()
        return tuple(one.use for one in evidence.uses(weights @ directions))

    if contrast is not None:
        weights = np.zeros(len(names))
        for name, weight in contrast.items():
            if name not in names:
                raise InputError(
                    f"contrast: {shown(name)} is no coefficient; the names are {', '.join(names)}",
                    "contrast",
                )
            weights[names.index(name)] = weight
        said = " ".join(f"{weight:+g}·{name}" for name, weight in contrast.items())
        return Effects((said,), (_CONTRAST,), (coefficients @ weights)[:, None], level, used(weights[None]))
    kept = [j for j, constant in enumerate(schema.constant_sum) if not constant and coefficients[:, j].any()]
    found: list[tuple[int, str, np.ndarray]] = []
    ratio = _RATIOS.get(type(target))
    for j in kept if ratio is not None else ():
        beta = coefficients[:, j]
        found.append((j, f"{ratio}, per unit", _exp(beta)))
        column = schema.columns.get(schema.names[j])
        if isinstance(column, Range) and column.scale != "log1p":
            kind = f"{ratio}, from {column.low:g} to {column.high:g}"
            found.append((j, kind, _exp(beta * (column.high - column.low))))
    slope = _mean_slope(draws, target, evidence)
    if slope is not None:
        found += [(j, _MARGINAL, coefficients[:, j] * slope) for j in kept]
    if not found:
        raise UnsupportedCombination("effects: no column has one; use result.summary(), or give the formula a column")
    columns, kinds, values = zip(*found, strict=True)
    uses = used(np.eye(len(names))[list(columns)])
    return Effects(tuple(names[j] for j in columns), kinds, np.stack(values, axis=1), level, uses)


def _exp(values: np.ndarray) -> np.ndarray:
    return np.exp(np.minimum(values, _LARGEST))


def _mean_slope(draws: np.ndarray, target: Target, evidence: Evidence | None) -> np.ndarray | None:
    """Return E[μ'(η)] under each draw, (draws,); None where nothing tells how predictors spread."""
    if isinstance(target, LinearRegression):
        return np.ones(len(draws))
    if isinstance(target, OrdinalRegression) or evidence is None or evidence.gram is None:
        return None
    structure = evidence.structure
    constant = None if structure is None else structure.constant
    if target.offset_bound is not None or constant is None:  # type: ignore[attr-defined]
        return None
    gram = project(evidence.gram.gram, evidence.gram.trace, structure)
    mean = draws @ mean_row(gram, evidence.num_records, constant)
    square = np.einsum("nd,de,ne->n", draws, gram, draws) / evidence.num_records
    variance = np.maximum(square - mean**2, 0.0)
    if isinstance(target, LogisticRegression):
        eta = mean[:, None] + np.sqrt(variance)[:, None] * _NODES
        return np.mean(expit(eta) * expit(-eta), axis=1)
    return _exp(mean + variance / 2)
