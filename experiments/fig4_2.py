r"""Figure 4.2 of the thesis: what one posterior draw reveals on average, how it generalises, and its ε under
differential privacy.

    python -m experiments.fig4_2 [--quick] [--out DIR] [--config configs/figures/fig4_2.yaml]

Left, the mean Z of 100 truncated normals, released as h ~ exp(−γ|Z − h|). The data set is one record here (thesis,
Remark 4.1): On-average KL replaces all of it, and so does the printed differential privacy, ε = 4γ, since two means may
be 4 apart. One person moves the mean by 4/n: that ε, 4γ/n, is drawn beside it.

Right, y = x + noise, released as h ~ exp(−γΣ(y − xh)²), one record replaced. The draw is normal on ℝ, which the closed
form needs; the printed 64γ and the sharp 32γ (losses in [0, 16], replace one) are of that draw restricted to [−2, 2].

Above ε, below losses: On-average KL over γ is the generalisation gap (Theorem 3), by a closed form for each pair of
data sets, and by risks of draws on training and fresh records.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field
from scipy.special import ndtr, ndtri

from experiments.commands import command, folder_for
from experiments.figure_files import FigureSection, arguments_of, load, report, write_table
from experiments.pictures import saved
from experiments.sources import on_average

COLUMNS = (
    "panel",
    "gamma",
    "kl",
    "kl_error",
    "gap",
    "gap_error",
    "disagreement",
    "excess_risk",
    "excess_risk_error",
    "dp_printed",
    "dp_record",
    "dp_label",
)

SAID = (
    "{panel}, γ = {gamma:g}: On-average KL {kl:.4g} ± {kl_error:.2g}, gap {gap:.4g} ± {gap_error:.2g} "
    "({disagreement:.1f} standard errors apart), DP as printed {dp_printed:g}, excess risk {excess_risk:.3g}"
)


class Mean(FigureSection):
    """The release on the left."""

    num_records: int = Field(gt=0, description="Records of the mean.")
    truncation: float = Field(gt=0, description="The normals lie in [-truncation, truncation].")
    gammas: list[float] = Field(min_length=2, description="γ.")
    repeats: int = Field(gt=1, description="Pairs of data sets.")


class Regression(FigureSection):
    """The release on the right."""

    num_records: int = Field(gt=2, description="n.")
    gammas: list[float] = Field(min_length=2, description="γ.")
    repeats: int = Field(gt=1, description="Data sets.")


class Quick(FigureSection):
    """Settings that ``--quick`` shortens."""

    repeats: int = Field(gt=1, description="On both sides.")


class Settings(FigureSection):
    """The whole YAML."""

    name: str = Field(description="Names the picture.")
    seed: int = Field(ge=0, description="Seed of everything drawn.")
    mean: Mean = Field(description="Left.")
    regression: Regression = Field(description="Right.")
    quick: Quick = Field(description="Settings that --quick shortens.")

    def shortened(self) -> Settings:
        """Return the settings of ``--quick``."""
        change = {"repeats": self.quick.repeats}
        return self.model_copy(
            update={
                "mean": self.mean.model_copy(update=change),
                "regression": self.regression.model_copy(update=change),
            }
        )


def truncated_means(rng: np.random.Generator, body: Mean, count: int) -> np.ndarray:
    """Means of truncated normals, (count,)."""
    low = ndtr(-body.truncation)
    out = np.empty(count)
    for start in range(0, count, 20_000):
        part = out[start : start + 20_000]
        part[:] = ndtri(rng.uniform(low, 1 - low, (len(part), body.num_records))).mean(axis=1)
    return out


def left(body: Mean, seed: int) -> list[dict[str, Any]]:
    """Rows of the mean release."""
    rng = np.random.default_rng([seed, 0])
    # Pairs for the closed form, and others for the risks: the two estimates are independent.
    pairs = truncated_means(rng, body, body.repeats), truncated_means(rng, body, body.repeats)
    train = truncated_means(rng, body, body.repeats)
    fresh = truncated_means(rng, body, body.repeats)
    noise = rng.laplace(size=body.repeats)
    rows = []
    for gamma in body.gammas:
        kl = on_average.from_divergences(on_average.laplace_kl(pairs[0] - pairs[1], 1 / gamma))
        draw = train + noise / gamma
        risks = np.abs(train - draw), np.abs(fresh - draw)
        # No loss is smaller on average than at the centre of the law of Z, which is 0.
        rows.append(_row("mean", gamma, kl, on_average.from_risks(*risks, gamma), risks[1] - np.abs(fresh)))
        rows[-1] |= {
            "dp_printed": 2 * body.truncation * gamma,
            "dp_record": 2 * body.truncation * gamma / body.num_records,
            "dp_label": "dp_printed is of the data set: all records may change; dp_record of one of them",
        }
    return rows


def uniform_records(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Records of y = x + noise, both uniform on [-1, 1]."""
    x = rng.uniform(-1, 1, (*shape, 1))
    return x, x[..., 0] + rng.uniform(-1, 1, shape)


def right(body: Regression, seed: int) -> list[dict[str, Any]]:
    """Rows of the regression."""
    shared: dict[str, Any] = {"num_records": body.num_records, "ridge": 0.0, "repeats": body.repeats}
    kls = on_average.ridge_divergence(uniform_records, body.gammas, seed=seed + 1, **shared)
    gaps = on_average.ridge_risk_gap(uniform_records, body.gammas, seed=seed + 2, **shared)
    rng = np.random.default_rng([seed, 3])
    precision = np.concatenate(
        [(uniform_records(rng, (1000, body.num_records))[0] ** 2).sum(axis=(1, 2)) for _ in range(body.repeats // 1000)]
    )
    rows = []
    for gamma, kl, gap in zip(body.gammas, kls, gaps, strict=True):
        # E (h − 1)² E x², the draw's own variance and that of its mean: noise and x have variance 1/3.
        excess = (1 / 3 + 1 / (2 * gamma)) / precision / 3
        rows.append(_row("regression", gamma, kl, gap, excess))
        rows[-1] |= {
            "dp_printed": 64 * gamma,
            "dp_record": 32 * gamma,
            "dp_label": "both of one record, for the draw restricted to [-2, 2]",
        }
    return rows


def _row(
    panel: str,
    gamma: float,
    kl: on_average.OnAverageKL,
    gap: on_average.OnAverageKL,
    excess: np.ndarray,
) -> dict[str, Any]:
    return {
        "panel": panel,
        "gamma": float(gamma),
        "kl": kl.value,
        "kl_error": kl.standard_error,
        "gap": gap.value / gamma,
        "gap_error": gap.standard_error / gamma,
        "disagreement": on_average.disagreement(kl, gap),
        "excess_risk": float(excess.mean()),
        "excess_risk_error": float(excess.std(ddof=1) / np.sqrt(len(excess))),
    }


_TITLES = {
    "mean": "Mean of {n} truncated normals (the data set is one record)",
    "regression": "Regression in one dimension, n = {n}",
}
_LINES = {
    "mean": (
        ("dp_printed", "C3", "-", "DP of the data set, 4γ: everyone may change"),
        ("dp_record", "C3", ":", "DP of one person, 4γ/n"),
    ),
    "regression": (
        ("dp_printed", "C3", "-", "DP of one person as printed, 64γ"),
        ("dp_record", "C3", ":", "DP of one person, sharp, 32γ"),
    ),
}
_REPLACED = {"mean": "the data set replaced", "regression": "one person replaced"}


def draw(path: Path, settings: Settings, rows: list[dict[str, Any]], note: str | None) -> None:
    """ε above, losses below."""
    sizes = {"mean": settings.mean.num_records, "regression": settings.regression.num_records}
    says = "On-average KL is γ times the generalisation gap, and far below differential privacy's worst case"
    about = f"{settings.mean.repeats:,} and {settings.regression.repeats:,} repeats; generated data"
    with saved(path, (10.4, 8.4), says, about, note) as figure:
        axes = figure.subplots(2, 2)
        for column, (panel, size) in zip(axes.T, sizes.items(), strict=True):
            found = {key: np.array([r[key] for r in rows if r["panel"] == panel]) for key in COLUMNS[1:-1]}
            gamma = found["gamma"]
            above = column[0]
            below = column[1]
            for axis in column:
                axis.set_xscale("log")
                axis.set_yscale("log")
            for key, colour, dashes, name in _LINES[panel]:
                above.plot(gamma, found[key], color=colour, ls=dashes, label=name)
            above.plot(gamma, found["kl"], color="C0", label=f"On-average KL, {_REPLACED[panel]}: closed form")
            _points(above, gamma, gamma * found["gap"], gamma * found["gap_error"], "γ × generalisation gap, measured")
            above.set_ylabel("ε, or On-average KL (nats)")
            # Room for the legend above the lines.
            above.set_ylim(top=300 * found["dp_printed"].max())
            above.set_title(_TITLES[panel].format(n=size))
            below.plot(gamma, found["kl"] / gamma, color="C0", label="On-average KL / γ: closed form")
            _points(below, gamma, found["gap"], found["gap_error"], "generalisation gap, measured")
            below.plot(gamma, found["excess_risk"], color="C2", ls="--", label="excess risk of a draw")
            below.set_ylabel("loss")
            for axis in column:
                axis.set_xlabel("γ")
                axis.legend(frameon=False, fontsize=8.5, loc="upper left" if axis is above else "upper right")


def _points(axis: Any, gamma: np.ndarray, values: np.ndarray, errors: np.ndarray, name: str) -> None:
    """Draw points with two standard errors. A log axis cannot show points below 0, so the legend counts them."""
    kept = values > 0
    lost = int((~kept).sum())
    low = np.minimum(2 * errors, 0.95 * values)[kept]
    label = f"{name} (±2 standard errors)" + (f"; {lost} below 0" if lost else "")
    axis.errorbar(
        gamma[kept], values[kept], yerr=[low, 2 * errors[kept]], fmt="o", ms=4, color="k", capsize=2, label=label
    )


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    arguments = arguments_of("fig4_2", "Redraw Figure 4.2.", argv)
    settings = load(arguments.config, Settings)
    if arguments.quick:
        settings = settings.shortened()
    with folder_for(arguments.out):
        rows = left(settings.mean, settings.seed) + right(settings.regression, settings.seed)
        write_table(arguments.out / "results.csv", COLUMNS, rows)
        draw(arguments.out / f"{settings.name}.png", settings, rows, "quick: few repeats" if arguments.quick else None)
    report((SAID.format(**row) for row in rows), arguments.out)


if __name__ == "__main__":
    raise SystemExit(main())
