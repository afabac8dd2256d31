"""Goals of a row, what it shows against them, and the table: failures first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, NamedTuple

import pydantic
from pydantic import Field

from dpmcmc.errors import InputError
from dpmcmc.privacy.accounting.gaussian import gaussian_epsilon
from dpmcmc.samplers import SAMPLERS
from experiments.figure_files import FigureSection
from experiments.intervals.designs import NAMES, Chain, design
from experiments.intervals.measure import Row

Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]
#: Distance to the non-private fit's own coverage that counts as right; factor of a predicted width that does; least
#: share of the tables that miss which are flagged, where flagging will do.
NEAR, FACTOR, FLAGGED = 0.04, 1.5, 0.9
COLUMNS = (
    *("finding", "cell", "design", "N", "coefficients", "epsilon", "mu", "delta", "level", "tables"),
    *("measured", "failed", "refused", "failures"),
    *("coverage", "coverage_error", "reference_coverage"),
    *("intercept_coverage", "intercept_error", "reference_intercept_coverage"),
    *("width", "width_goal", "mean_width", "mean_width_goal", "reference_mean_width"),
    *("predicted_width", "predicted_over_realised"),
    *("usable", "misses", "misses_flagged", "false_alarms", "seconds"),
)
#: Columns that tell a row.
KEY = ("cell", "design", "N", "epsilon", "level", "tables")
HOLDS, FLAGGED_WHERE_IT_MISSES = "holds", "flagged where it misses"
#: All findings, the worst first.
FINDINGS = (
    *("covers too little", "failed", "refused", "too wide", "covers too much", "not called intervals", "false alarms"),
    *("predicted width off", "too slow", FLAGGED_WHERE_IT_MISSES, HOLDS),
)


class Goal(FigureSection):
    """Goals of a cell; a list has an entry an ε, null for none."""

    coverage: list[Share] = Field(
        [0.86, 0.94], min_length=2, max_length=2, description="Band of coverage, beyond two Monte Carlo errors."
    )
    width: list[Positive | None] | None = Field(None, description="Largest width over the non-private fit's.")
    mean_width: list[Positive | None] | None = Field(None, description="Largest mean width, in units of the columns.")
    or_flagged: bool = Field(False, description="Whether it will do to flag 90 % of the tables that miss.")
    intervals: Share | None = Field(None, description="Least share of tables that are called usable for intervals.")
    false_alarms: Share | None = Field(None, description="Largest share of flagged tables among those without a miss.")
    seconds: Positive | None = Field(None, description="Most seconds a fit.")


class Asked(NamedTuple):
    """One row that the YAML asks for."""

    cell: str
    design: str
    records: int
    epsilon: float
    mu: float | None
    delta: float | None
    level: float
    tables: int
    chain: Chain | None
    goal: Goal
    width: float | None
    mean_width: float | None

    @property
    def facts(self) -> Row:
        """First columns of the row; what is not given is left out."""
        facts = {
            **{"cell": self.cell, "design": self.design, "N": self.records},
            **{"coefficients": len(design(self.design).names), "epsilon": self.epsilon, "mu": self.mu},
            **{"delta": self.delta, "level": self.level, "tables": self.tables},
            **{"width_goal": self.width, "mean_width_goal": self.mean_width},
        }
        return {name: value for name, value in facts.items() if value is not None}


class Cell(FigureSection):
    """Rows: every design at every ε."""

    name: str = Field(description="Name of the cell.")
    designs: list[str] = Field(description="Names in experiments/intervals/designs.py.")
    records: int = Field(gt=10, description="N.")
    epsilons: list[Positive] | None = Field(None, description="ε; or give gdp.")
    gdp: list[Positive] | None = Field(None, description="μ of Gaussian differential privacy, turned into ε at delta.")
    delta: Annotated[float, Field(gt=0, lt=1)] | None = Field(None, description="δ; null: the default of fit.")
    level: Annotated[float, Field(gt=0, lt=1)] = Field(0.9, description="Nominal coverage.")
    chain: str | None = Field(None, description="Shipped config of a chain that is run in place of dpmcmc.fit.")
    changes: list[str] = Field([], description="Changes of that config, as --set takes them.")
    goal: Goal = Field(default_factory=Goal, description="Goals of its rows.")

    @pydantic.model_validator(mode="after")
    def _fits(self) -> Cell:
        for name in self.designs:
            if name not in NAMES:
                raise InputError(f"there is no design {name}; give one of {', '.join(NAMES)}")
        if (self.epsilons is None) == (self.gdp is None):
            raise InputError("give either epsilons or gdp")
        if self.gdp is not None and self.delta is None:
            raise InputError("gdp needs delta")
        for values in (self.goal.width, self.goal.mean_width):
            if values is not None and len(values) != len(self.epsilons or self.gdp or []):
                raise InputError("a goal has an entry an epsilon")
        return self

    def rows(self, tables: int) -> Iterator[Asked]:
        """Return the rows, ε last."""
        given = self.gdp or self.epsilons or []
        width = self.goal.width or [None] * len(given)
        mean_width = self.goal.mean_width or [None] * len(given)
        for name in self.designs:
            for number, *goals in zip(given, width, mean_width, strict=True):
                mu = number if self.gdp else None
                epsilon = gaussian_epsilon(number, self.delta) if self.gdp and self.delta else number
                facts = (self.name, name, self.records, epsilon, mu, self.delta, self.level, tables)
                chain = None if self.chain is None else Chain(self.chain, tuple(self.changes))
                yield Asked(*facts, chain, self.goal, *goals)


class Quick(FigureSection):
    """Settings that ``--quick`` replaces."""

    tables: int = Field(gt=1, le=100_000, description="Simulated tables a row.")
    cells: list[Cell] = Field(description="Cells.")


class Settings(Quick):
    """The YAML."""

    quick: Quick


def findings(row: Row, goal: Goal) -> list[str]:
    """Return what a row shows against its goal, the worst first; ``holds`` where it meets it."""
    if not row["measured"]:
        return ["refused" if row["refused"] == row["failed"] else "failed"]
    found = {_coverage(row, goal, "coverage", "coverage_error")}
    if "intercept_coverage" in row:
        found.add(_coverage(row, goal, "intercept_coverage", "intercept_error"))
    if "covers too little" in found and goal.or_flagged and _at(row, "misses_flagged", 0.0) >= FLAGGED:
        found = found - {"covers too little"} | {FLAGGED_WHERE_IT_MISSES}
    checks = {
        "refused": row["refused"] and row["refused"] == row["failed"],
        "failed": row["refused"] != row["failed"],
        "too wide": _beyond(row, "width") or _beyond(row, "mean_width"),
        "not called intervals": goal.intervals is not None and _at(row, "usable", 1.0) < goal.intervals,
        "false alarms": goal.false_alarms is not None and _at(row, "false_alarms", 0.0) > goal.false_alarms,
        "predicted width off": not 1 / FACTOR <= _at(row, "predicted_over_realised", 1.0) <= FACTOR,
        "too slow": goal.seconds is not None and _at(row, "seconds", 0.0) > goal.seconds,
    }
    found |= {name for name, is_so in checks.items() if is_so}
    return sorted(found - {HOLDS}, key=FINDINGS.index) or [HOLDS]


def _at(row: Row, name: str, usual: float) -> float:
    return float(row.get(name, usual))


def _beyond(row: Row, name: str) -> bool:
    return f"{name}_goal" in row and name in row and float(row[name]) > float(row[f"{name}_goal"])


def _coverage(row: Row, goal: Goal, name: str, error: str) -> str:
    """Return whether coverage is in the band up to two Monte Carlo errors, or near the non-private fit's own."""
    value = float(row[name])
    slack = 2 * float(row[error])
    if abs(value - _at(row, f"reference_{name}", value + 1)) <= NEAR:
        return HOLDS
    if value < goal.coverage[0] - slack:
        return "covers too little"
    return "covers too much" if value > goal.coverage[1] + slack else HOLDS


def ordered(rows: list[Row]) -> list[Row]:
    """Return the rows, failures first and among equals the lowest coverage first."""

    def place(row: Row) -> tuple[int, float]:
        worst = str(row["finding"]).split("; ")[0]
        lowest = min(float(row[name]) for name in ("coverage", "intercept_coverage") if name in row)
        return FINDINGS.index(worst), lowest

    # A row without coverage is refused or failed.
    return sorted(rows, key=lambda row: place(row) if "coverage" in row else (place(row | {"coverage": 0.0})[0], 0.0))


def told(rows: list[Row]) -> list[str]:
    """Return the findings, one per line."""
    lines = []
    for row in ordered(rows):
        text = f"{row['finding']}: {row['design']}, N {row['N']:g}, epsilon {row['epsilon']:g}"
        if "coverage" in row:
            text += f": coverage {row['coverage']:.3f} ± {row['coverage_error']:.3f}"
            text += f" (non-private {_at(row, 'reference_coverage', float('nan')):.3f})"
            text += f", width {_at(row, 'width', float('nan')):.2f} times the non-private fit's"
            text += f", called intervals in {100 * float(row['usable']):.0f} % of {row['measured']:g} tables"
        lines.append(text)
    held = sum(row["finding"] in (HOLDS, FLAGGED_WHERE_IT_MISSES) for row in rows)
    return [*lines, f"{held} of {len(rows)} rows meet their goal"]


#: Rows of the page that meet their goal: those with the lowest coverage.
_HELD = 8
_BEGIN, _END = "<!-- intervals -->\n", "<!-- /intervals -->"


def page(rows: list[Row]) -> str:
    """Return the table of a page, in Markdown: the rows that miss a goal, first; then ``_HELD`` of the others."""
    lines = [
        "| finding | design | N | ε | tables | coverage | non-private | width | called intervals |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    missed = sum(row["finding"] != HOLDS for row in rows)
    for row in ordered(rows)[: missed + _HELD]:
        sampler = str(row["cell"]).split()[0]
        way = f", {sampler}" if sampler.lower() in SAMPLERS else ""
        cells = [
            str(row["finding"]),
            f"`{row['design']}`{way}",
            f"{float(row['N']):,.0f}",
            f"{float(row['epsilon']):.3g}",
        ]
        cells.append(f"{float(row['measured']):g}")
        if "coverage" in row:
            cells.append(f"{float(row['coverage']):.2f} ± {float(row['coverage_error']):.2f}")
            cells += [f"{_at(row, 'reference_coverage', float('nan')):.2f}", f"{_at(row, 'width', float('nan')):.2f}"]
            cells.append(f"{100 * float(row['usable']):.0f} %")
        else:
            cells += ["–"] * 4
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def placed(text: str, rows: list[Row]) -> str:
    """Return a page's text with the table between its two marks."""
    before, rest = text.split(_BEGIN)
    return before + _BEGIN + page(rows) + _END + rest.split(_END, 1)[1]
