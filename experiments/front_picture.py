"""The picture of the README: coverage of nominal 90 % intervals against their width, by method, from benchmark.csv.

python -m experiments.front_picture   write docs/images/front.svg

A point is a method at ε = 1, on the public tables where it says that its intervals may be used. One colour is this
library, one other libraries, and grey is without privacy.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from dpmcmc.engine.results_table import numbers
from dpmcmc.report.figures import STYLE
from experiments.benchmark import summary
from experiments.figure_files import read_table
from experiments.pictures import BLUE, GREY, RED

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
#: Name on the picture, colour, and where the name stands beside its point, in points.
SHOWN = {
    "fit": ("dpmcmc.fit", BLUE, (8, -16)),
    "noise_aware": ("noise_aware", BLUE, (8, 6)),
    "sgld": ("fit, sampler sgld", BLUE, (10, -1)),
    "jax_privacy_dpsgd": ("jax-privacy, ten models", RED, (8, -12)),
    "opacus_dpsgd": ("Opacus, ten models", RED, (8, 4)),
    "dp_bootstrap": ("DP bootstrap", RED, (8, -3)),
    "mle": ("without privacy", GREY, (-80, -22)),
}


def main() -> None:
    """Draw."""
    rows = [numbers(row) for row in read_table(IMAGES / "benchmark.csv")]
    found = {row["method"]: row for row in summary.summarised(rows) if row["epsilon"] == 1}
    with rc_context(STYLE):
        figure = Figure(figsize=(4.4, 3.6), layout="constrained")
        axis = figure.subplots()
        axis.axhspan(0.85, 0.95, color=GREY, alpha=0.25, lw=0)
        for method, (name, colour, place) in SHOWN.items():
            at = float(found[method]["width"]), float(found[method]["coverage"])
            axis.plot(*at, "o", ms=8, color=colour)
            axis.annotate(name, at, place, textcoords="offset points", color=colour, fontsize=11)
        axis.set(xscale="log", xlim=(0.5, 4), ylim=(0, 1), xlabel="width ÷ without privacy (ε = 1)")
        axis.set_ylabel("coverage of 90 % intervals")
        axis.set_xticks([0.5, 1, 2, 4], ["½", "1", "2", "4"])
        axis.xaxis.set_minor_locator(NullLocator())
        figure.savefig(IMAGES / "front.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
