r"""Figure 5.1 of the thesis: the worst case of a linear regression, and the privacy loss of each person.

    python -m experiments.fig5_1 [--quick] [--out DIR] [--config configs/figures/fig5_1.yaml]

Left, the ridge estimate plus N(0, σ² I): (ε, δ)-DP against the per-instance ε of the records, each against the others,
and of the worst record that could join them.

Right, one draw of the posterior exp(−(γ/2)(‖y − Xθ‖² + λ‖θ‖²)): privacy loss against excess risk, γ along each line.
Pure DP is that of the exponential mechanism, the same density on the ball ‖θ‖ <= R, where a record's share of the
exponent lies in [0, (γ/2)(1 + R)²]: adding or removing it changes the log density by no more, up or down. The other
lines are of the draw on all of space, at δ.

Excess risk is the mean squared error on fresh records above that of the best linear predictor, in expectation over the
draw: exact for a normal, by rejection for the ball. Every ε is exact or a proved upper bound.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from pydantic import Field

from dpmcmc.diagnostics.per_instance import leave_one_out, ridge_ops_epsilon
from dpmcmc.errors import InputError
from experiments.commands import command, folder_for
from experiments.fig_pdp_1 import Regression, draw_records, make_coefficients, shifts
from experiments.figure_files import FigureSection, arguments_of, load, report, write_table
from experiments.pictures import saved
from experiments.sources.per_instance import noisy_estimate_epsilon
from experiments.sources.worst_case import ForAll, draw_epsilon, draw_for_all, estimate_for_all, estimate_sensitivity

_SHARES = {"data_5": 0.05, "data_25": 0.25, "data_median": 0.5, "data_75": 0.75, "data_95": 0.95}
COLUMNS = (
    "panel",
    "repeat",
    "level",
    "delta",
    "dp",
    "for_all",
    "for_all_attained",
    "data_mean",
    "data_largest",
    *_SHARES,
    "pure_dp",
    "excess_risk",
    "pure_excess_risk",
    "inside_ball",
)
#: Proposals for each draw on the ball, and the least share of them that must lie inside.
_PROPOSALS, _FEWEST = 4, 0.02


class Quick(FigureSection):
    """Settings that ``--quick`` shortens."""

    repeats: int = Field(gt=0, description="Data sets.")
    draws: int = Field(gt=1, description="Draws of the exponential mechanism.")
    fresh_records: int = Field(gt=0, description="For the excess risk.")


class Settings(FigureSection):
    """The whole YAML."""

    name: str = Field(description="Names the picture.")
    regression: Regression = Field(description="The data.")
    ridge: float = Field(gt=0, description="λ.")
    delta: float = Field(gt=0, lt=1, description="δ.")
    noise_stds: list[float] = Field(min_length=2, description="σ, left.")
    gammas: list[float] = Field(min_length=2, description="γ, right.")
    radius: float = Field(gt=0, description="R.")
    repeats: int = Field(gt=0, description="Data sets.")
    draws: int = Field(gt=1, description="Draws of the exponential mechanism, per data set.")
    fresh_records: int = Field(gt=0, description="For the excess risk.")
    quick: Quick = Field(description="Settings that --quick shortens.")

    def shortened(self) -> Settings:
        """Return the settings of ``--quick``."""
        return self.model_copy(update=self.quick.model_dump())


def run(settings: Settings) -> tuple[list[dict[str, Any]], np.ndarray]:
    """Rows of results.csv, and ε of the first data set's records at each σ, (σ, n)."""
    body = settings.regression
    rows = []
    boxes = []
    furthest = estimate_sensitivity(body.num_records, settings.ridge)
    worst = {g: draw_epsilon(body.num_records, settings.ridge, g, settings.delta) for g in settings.gammas}
    domain = {"ridge": settings.ridge, "delta": settings.delta}
    for repeat in range(settings.repeats):
        rng, coefficients = make_coefficients(body, repeat)
        x, y = draw_records(rng, body, coefficients, body.num_records)
        fresh = draw_records(rng, body, coefficients, settings.fresh_records)
        others = leave_one_out(x, y, settings.ridge)
        moved = shifts(x, others.residual, settings.ridge)
        for sigma in settings.noise_stds:
            each = noisy_estimate_epsilon(moved, sigma, settings.delta)
            anyone = estimate_for_all(x, y, noise_std=sigma, **domain)
            dp = float(noisy_estimate_epsilon(furthest, sigma, settings.delta))
            rows.append(_row("left", repeat, sigma, settings.delta, dp, anyone, each))
            if repeat == 0:
                boxes.append(each)
        risk = _Risk(x, y, settings, fresh)
        for gamma in settings.gammas:
            each = ridge_ops_epsilon(others.leverage, others.residual, gamma, settings.delta)
            anyone = draw_for_all(x, y, gamma=gamma, **domain)
            rows.append(_row("right", repeat, gamma, settings.delta, worst[gamma], anyone, each))
            rows[-1] |= {"pure_dp": gamma / 2 * (1 + settings.radius) ** 2, **risk.at(gamma, rng)}
    return rows, np.array(boxes)


class _Risk:
    """Excess risk of draws around an estimate."""

    def __init__(self, x: np.ndarray, y: np.ndarray, settings: Settings, fresh: tuple[np.ndarray, np.ndarray]) -> None:
        self.settings = settings
        self.precision = x.T @ x + settings.ridge * np.eye(x.shape[1])
        self.estimate = np.linalg.solve(self.precision, x.T @ y)
        new_x, new_y = fresh
        self.second = new_x.T @ new_x / len(new_x)
        self.best = np.linalg.solve(self.second, new_x.T @ new_y / len(new_x))

    def of(self, theta: np.ndarray) -> np.ndarray:
        """Excess of each row of (k, d)."""
        off = theta - self.best
        return np.einsum("ki,ij,kj->k", off, self.second, off)

    def at(self, gamma: float, rng: np.random.Generator) -> dict[str, float]:
        """Return the excess of the normal draw, and of its density on the ball, which needs enough of it inside."""
        exact = float(self.of(self.estimate[None])[0] + np.trace(np.linalg.solve(self.precision, self.second)) / gamma)
        root = np.linalg.cholesky(self.precision)
        z = rng.normal(size=(_PROPOSALS * self.settings.draws, len(self.estimate)))
        theta = self.estimate + np.linalg.solve(root.T, z.T).T / np.sqrt(gamma)
        kept = theta[np.linalg.norm(theta, axis=1) <= self.settings.radius]
        share = len(kept) / len(theta)
        if share < _FEWEST:
            raise InputError(
                f"radius: at gamma = {gamma:g} only {100 * share:.2g} % of the posterior lies in the ball; take a "
                "larger radius or gamma."
            )
        return {"excess_risk": exact, "pure_excess_risk": float(self.of(kept).mean()), "inside_ball": share}


def _row(
    panel: str, repeat: int, level: float, delta: float, dp: float, anyone: ForAll, each: np.ndarray
) -> dict[str, Any]:
    return {
        "panel": panel,
        "repeat": repeat,
        "level": float(level),
        "delta": delta,
        "dp": dp,
        "for_all": anyone.epsilon,
        "for_all_attained": anyone.attained,
        "data_mean": float(each.mean()),
        "data_largest": float(each.max()),
        **{name: float(np.quantile(each, share)) for name, share in _SHARES.items()},
    }


def averages(rows: list[dict[str, Any]], panel: str, column: str) -> np.ndarray:
    """Mean over data sets of a column, one number per level."""
    levels = dict.fromkeys(row["level"] for row in rows if row["panel"] == panel)
    return np.array(
        [np.mean([r[column] for r in rows if r["panel"] == panel and r["level"] == level]) for level in levels]
    )


def draw(path: Path, settings: Settings, rows: list[dict[str, Any]], boxes: np.ndarray, note: str | None) -> None:
    """Boxes of the records against σ; lines of privacy loss against excess risk."""
    body = settings.regression
    delta = f"{settings.delta:.0e}".replace("e-0", "e-")
    says = "The people in the data lose hundreds to thousands of times less than the worst case"
    about = (
        f"Linear regression, n = {body.num_records:,}, d = {body.dimension}, δ = {delta}: {settings.repeats} data sets"
    )
    with saved(path, (12.0, 5.8), says, about, note) as figure:
        left, right = figure.subplots(1, 2)
        _draw_noise(left, settings, rows, boxes, delta)
        _draw_risk(right, settings, rows, delta)
        for axis in (left, right):
            axis.legend(frameon=False, fontsize=8.5, loc="upper center", bbox_to_anchor=(0.5, -0.13))


def _draw_noise(axis: Axes, settings: Settings, rows: list[dict[str, Any]], boxes: np.ndarray, delta: str) -> None:
    """Privacy loss against the noise of a ridge estimate."""
    sigma = np.array(settings.noise_stds)
    for column, colour, dashes, name in (
        ("dp", "C3", "-", f"differential privacy (δ = {delta})"),
        ("for_all", "C1", "--", "anyone who could join these data"),
        ("data_mean", "C0", ":", "mean of the people in the data"),
    ):
        axis.plot(sigma, averages(rows, "left", column), color=colour, ls=dashes, label=name)
    axis.set_xscale("log")
    parts = axis.boxplot(
        np.maximum(boxes, 1e-300).T,
        positions=sigma,
        widths=0.25 * sigma,
        whis=(5, 95),
        showfliers=False,
        manage_ticks=False,
        patch_artist=True,
        medianprops={"color": "k"},
        boxprops={"facecolor": "C0", "alpha": 0.45},
    )
    parts["boxes"][0].set_label("the people in one data set: quartiles, and 5 to 95 %")
    axis.set_yscale("log")
    axis.set_xlabel("noise σ on each coefficient")
    axis.set_ylabel("ε")
    axis.set_title("Ridge estimate plus Gaussian noise")


def _draw_risk(axis: Axes, settings: Settings, rows: list[dict[str, Any]], delta: str) -> None:
    """Excess risk of a posterior draw against its privacy loss."""
    risk = averages(rows, "right", "excess_risk")
    for column, colour, dashes, name in (
        ("dp", "C3", "-", f"differential privacy of the draw (δ = {delta})"),
        ("for_all", "C1", "--", f"anyone who could join these data (δ = {delta})"),
        ("data_mean", "C0", "-", f"mean of the people in the data (δ = {delta})"),
    ):
        axis.plot(averages(rows, "right", column), risk, color=colour, ls=dashes, marker=".", label=name)
    least, most = (averages(rows, "right", column) for column in ("data_5", "data_95"))
    axis.fill_betweenx(risk, least, most, color="C0", alpha=0.2, lw=0, label="5 to 95 % of the people")
    axis.plot(
        averages(rows, "right", "pure_dp"),
        averages(rows, "right", "pure_excess_risk"),
        color="C2",
        ls="-.",
        marker=".",
        label=f"exponential mechanism, pure DP on ‖θ‖ ≤ {settings.radius:g} (δ = 0)",
    )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("ε")
    axis.set_ylabel("excess risk")
    axis.set_title(f"One posterior draw, γ from {settings.gammas[0]:g} (above) to {settings.gammas[-1]:g}")


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    arguments = arguments_of("fig5_1", "Redraw Figure 5.1.", argv)
    settings = load(arguments.config, Settings)
    if arguments.quick:
        settings = settings.shortened()
    with folder_for(arguments.out):
        rows, boxes = run(settings)
        write_table(arguments.out / "results.csv", COLUMNS, rows)
        draw(
            arguments.out / f"{settings.name}.png",
            settings,
            rows,
            boxes,
            "quick: few data sets" if arguments.quick else None,
        )
    report([], arguments.out)


if __name__ == "__main__":
    raise SystemExit(main())
