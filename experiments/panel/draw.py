"""Pictures of a panel: accuracy against ε, the thesis's version beside ours, on the same axes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

from dpmcmc.report.figures import STYLE
from experiments.panel.cells import Row
from experiments.panel.config import Panel
from experiments.panel.methods import METHODS, Method

#: Columns of the results that can be drawn, and how they are called.
QUANTITIES = {
    "accuracy": "test accuracy",
    "log_predictive_density": "log predictive density (test)",
    "wasserstein": "distance to the posterior (mean marginal W₁, in stds)",
    "coverage90": "posterior mass in the draws' 90 % interval",
}
_VERSIONS = {
    "printed": "as printed: ε is the source's claim (what is proved of it)",
    "tight": "tight accounting: ε is the guarantee",
}
#: Colour, marker, dashes: samplers solid, one-shot releases dashed.
_LOOKS: dict[tuple[str, str], tuple[str, str, str]] = {
    ("tight", "sgld"): ("C0", "o", "-"),
    ("tight", "sghmc"): ("C2", "s", "-"),
    ("tight", "sgnht"): ("C4", "^", "-"),
    ("tight", "sgfs"): ("C9", "D", "-"),
    ("tight", "hybrid"): ("C1", "P", "-"),
    ("tight", "certified_ops"): ("C6", "*", "-"),
    ("tight", "noisy_sgd"): ("0.55", "o", ":"),
    ("tight", "objective_perturbation"): ("C3", "v", "--"),
    ("tight", "output_perturbation"): ("0.25", "x", "--"),
    ("tight", "ops_printed"): ("C5", "<", "--"),
    ("tight", "ops_range"): ("C8", ">", "--"),
    ("tight", "ops_gdp"): ("darkgoldenrod", "h", "--"),
    ("printed", "objective_perturbation"): ("C3", "v", "--"),
    ("printed", "output_perturbation"): ("0.25", "x", "--"),
    ("printed", "ops"): ("C5", "<", "--"),
    ("printed", "sgld"): ("C0", "o", "-"),
    ("printed", "sgnht"): ("C4", "^", "-"),
    ("printed", "hybrid"): ("C1", "P", "-"),
}


def look(method: Method) -> dict[str, Any]:
    """How a method's curve is drawn."""
    colour, marker, dashes = _LOOKS[method.version, method.name]
    return {"color": colour, "marker": marker, "ls": dashes, "ms": 4.5, "lw": 1.3, "mew": 1.0, "capsize": 2}


def curve(rows: list[Row], encoding: str, method: Method, quantity: str) -> np.ndarray:
    """(ε, mean, standard deviation) rows over repeats, where there are numbers."""
    values: dict[float, list[float]] = {}
    for row in rows:
        if (row["encoding"], row["version"], row["method"]) == (encoding, method.version, method.name) and row[
            quantity
        ] != "":
            values.setdefault(float(row["epsilon"]), []).append(float(row[quantity]))
    return np.array([(e, np.mean(v), np.std(v, ddof=1) if len(v) > 1 else 0.0) for e, v in sorted(values.items())])


def proved(rows: list[Row], encoding: str, method: Method) -> str:
    """Return what is proved of a claimed ε, as a share of it, for a legend."""
    shares = [
        float(row["guarantee_epsilon"]) / float(row["epsilon"])
        for row in rows
        if (row["encoding"], row["version"], row["method"]) == (encoding, method.version, method.name)
    ]
    low, high = (f"{share:.2g}" for share in (min(shares), max(shares)))
    return f" ({low} ε)" if low == high else f" ({low} to {high} ε)"


def curves(axis: Any, rows: list[Row], encoding: str, version: str, quantity: str) -> list[Any]:
    """Draw every curve of a version; returns handles for a legend."""
    drawn = [m for m in METHODS if m.version == version and len(curve(rows, encoding, m, quantity))]
    handles = []
    for at, method in enumerate(drawn):
        epsilon, mean, std = curve(rows, encoding, method, quantity).T
        # Slightly apart, so that error bars do not hide each other.
        shifted = epsilon * 1.012 ** (at - len(drawn) / 2)
        label = method.label + (proved(rows, encoding, method) if version == "printed" else "")
        handles.append(axis.errorbar(shifted, mean, std, label=label, elinewidth=0.8, **look(method)))
    plain = [float(r[quantity]) for r in rows if (r["encoding"], r["method"]) == (encoding, "nuts") and r[quantity]]
    if plain and quantity in ("accuracy", "log_predictive_density"):
        handles.append(axis.axhline(plain[0], color="k", lw=1, ls="-.", label="not private (NUTS)"))
    return handles


def on_epsilon(axis: Any, epsilons: list[float]) -> None:
    """A logarithmic ε axis with the grid's own values."""
    axis.set_xscale("log")
    axis.set_xticks(epsilons, [f"{e:g}" for e in epsilons])
    axis.minorticks_off()
    axis.set_xlabel("ε")


def panel_figure(path: Path, panel: Panel, rows: list[Row], encoding: str, about: str, note: str | None) -> None:
    """Both versions of one panel side by side.

    Args:
        path: PNG file.
        panel: whose results these are.
        rows: of ``results.csv``.
        encoding: drawn.
        about: data, encoding, δ and adjacency, for the title.
        note: what must stand on the picture, or None.
    """
    with rc_context(STYLE):
        figure = Figure(figsize=(11.0, 6.4))
        axes = figure.subplots(1, 2, sharex=True, sharey=True)
        for axis, (version, title) in zip(axes, _VERSIONS.items(), strict=True):
            handles = curves(axis, rows, encoding, version, "accuracy")
            on_epsilon(axis, panel.epsilons)
            axis.set_title(title)
            axis.legend(
                handles=handles,
                frameon=False,
                ncols=2 if version == "printed" else 3,
                loc="upper center",
                bbox_to_anchor=(0.5, -0.12),
                fontsize=8.5,
            )
        axes[0].set_ylabel(QUANTITIES["accuracy"])
        figure.suptitle(about, fontsize=11)
        finish(figure, path, note)


def finish(figure: Figure, path: Path, note: str | None) -> None:
    """Write a picture, with what must stand on it."""
    if note:
        figure.text(0.99, 0.005, note, ha="right", va="bottom", fontsize=8, color="C3", weight="bold")
    figure.tight_layout(rect=(0, 0.03 if note else 0, 1, 1))
    figure.savefig(path)
