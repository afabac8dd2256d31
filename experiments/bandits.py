r"""Thompson sampling with private counts, and Hedge as a sequence of exponential mechanisms: regret against ε.

    python -m experiments.bandits [--quick] [--out DIR] [--config configs/figures/bandits.yaml]

Left, a bandit. A person a step has a reward for each arm and shows that of the arm that is pulled. Thompson sampling
pulls the arm with the largest draw of Beta(1 + S, 1 + m − S), S of m rewards. Such a draw has no pure ε of its own:
where S moves by one, the ratio of the densities is θ/(1 − θ) up to a constant, which has no bound. So S comes from a
``TreeCounter``, an arm a counter, and the draws are post-processing: ε in all, δ = 0. ``exact`` takes the noisy counts
for the counts; ``widened`` adds the noise of a counter once more before each draw, so that an arm is not given up
because of the noise.

Right, all arms' losses are seen (experts). Hedge draws an arm with probability ∝ exp(−η Σ losses), losses in [0, 1].
One person moves each sum by at most 1, so a draw costs 2η, and T draws 2ηT; or less at δ > 0, by exact composition. η
is the largest that ε allows, at most Hedge's own √(8 log A/T).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from dpmcmc.privacy import Event, Guarantee
from dpmcmc.privacy.interactive import TreeCounter
from experiments.commands import command, folder_for
from experiments.figure_files import FigureSection, arguments_of, load, report, write_table
from experiments.pictures import BLUE, DARK, GREY, ORANGE, on_epsilon, saved

COLUMNS = ("method", "epsilon", "proved", "delta", "regret", "regret_error", "repeats")
#: Values of the column ``method``; ε, as asked for and as proved, is empty where nothing is private.
EXACT, WIDENED, PURE, APPROXIMATE, THOMPSON, HEDGE, BLIND = (
    "Thompson, exact", "Thompson, widened", "Hedge, pure", "Hedge, approximate", "Thompson", "Hedge", "any arm",
)  # fmt: skip


class Quick(FigureSection):
    """Settings that ``--quick`` shortens."""

    repeats: int = Field(gt=1, description="Runs.")


class Settings(FigureSection):
    """The whole YAML."""

    name: str = Field(description="Names the picture.")
    seed: int = Field(ge=0, description="Seed of rewards and draws.")
    means: list[Annotated[float, Field(ge=0, le=1)]] = Field(
        min_length=2, description="Mean reward of each arm, in [0, 1]."
    )
    steps: int = Field(gt=1, le=4000, description="T.")
    epsilons: list[Annotated[float, Field(gt=0)]] = Field(min_length=2, description="ε.")
    delta: float = Field(gt=0, lt=1, description="δ of Hedge's second line.")
    repeats: int = Field(gt=1, description="Runs.")
    quick: Quick = Field(description="Settings that --quick shortens.")


def thompson(
    means: np.ndarray, steps: int, epsilon: float | None, widened: bool, rng: np.random.Generator
) -> tuple[float, Guarantee | None]:
    """(regret of one run, its guarantee); without ε, counts are exact."""
    arms = len(means)
    counter = None if epsilon is None else TreeCounter(steps, epsilon, counters=arms)
    pulls = np.zeros(arms, int)
    sums = np.zeros(arms)
    spread = np.zeros(arms)
    regret = 0.0
    for _ in range(steps):
        wins = np.clip(sums + spread * rng.standard_normal(arms), 0, pulls)
        arm = int(np.argmax(rng.beta(1 + wins, 1 + pulls - wins)))
        reward = float(rng.random() < means[arm])
        pulls[arm] += 1
        if counter is None:
            sums[arm] += reward
        else:
            sums[arm] = counter.add(reward, arm)
            if widened:
                spread[arm] = counter.noise_std(int(pulls[arm]))
        regret += means.max() - means[arm]
    return regret, None if counter is None else counter.guarantee


def hedge(means: np.ndarray, steps: int, rate: float, repeats: int, rng: np.random.Generator) -> np.ndarray:
    """Regret of Hedge's draws, (repeats,)."""
    losses = np.zeros((repeats, len(means)))
    regret = np.zeros(repeats)
    for _ in range(steps):
        # The largest of −ηL + Gumbel noise is a draw of the exponential mechanism.
        arm = np.argmax(rng.gumbel(size=losses.shape) - rate * losses, axis=1)
        regret += means.max() - means[arm]
        losses += rng.random(losses.shape) >= means
    return regret


def price(rate: float, steps: int, delta: float) -> Guarantee:
    """Guarantee of ``steps`` draws of Hedge at this rate."""
    event = Event("pure", 0.0, 1.0, steps, epsilon=2 * rate)
    return Guarantee.from_events(
        (event,), delta=delta, adjacency="replace_one", accountant="one_sample", release="one_sample"
    )


def largest_rate(epsilon: float, delta: float, arms: int, steps: int) -> float:
    """Largest η <= √(8 log A/T) whose draws cost at most ε, to 1e-3 of it where δ > 0."""
    # Basic composition always meets ε.
    low = epsilon / (2 * steps)
    high = max(low, math.sqrt(8 * math.log(arms) / steps))
    while delta > 0 and high - low > 1e-3 * low:
        middle = math.sqrt(low * high)
        met = price(middle, steps, 0.0).delta_at(epsilon) <= delta
        low, high = (middle, high) if met else (low, middle)
    return min(low, math.sqrt(8 * math.log(arms) / steps))


def run(settings: Settings) -> list[dict[str, Any]]:
    """Rows of results.csv."""
    means = np.array(settings.means)
    rng = np.random.default_rng(settings.seed)
    arms = len(means)
    steps = settings.steps
    repeats = range(settings.repeats)
    rows = [
        _row(THOMPSON, None, None, [thompson(means, steps, None, False, rng)[0] for _ in repeats]),
        _row(HEDGE, None, None, hedge(means, steps, math.sqrt(8 * math.log(arms) / steps), settings.repeats, rng)),
        _row(BLIND, None, None, np.full(settings.repeats, steps * (means.max() - means.mean()))),
    ]
    for epsilon in settings.epsilons:
        for name in (EXACT, WIDENED):
            runs = [thompson(means, steps, epsilon, name == WIDENED, rng) for _ in repeats]
            rows.append(_row(name, epsilon, runs[0][1], [regret for regret, _ in runs]))
        for name, delta in ((PURE, 0.0), (APPROXIMATE, settings.delta)):
            rate = largest_rate(epsilon, delta, arms, steps)
            regrets = hedge(means, steps, rate, settings.repeats, rng)
            rows.append(_row(name, epsilon, price(rate, steps, delta), regrets))
    return rows


def _row(name: str, epsilon: float | None, guarantee: Guarantee | None, regrets: Any) -> dict[str, Any]:
    regrets = np.asarray(regrets)
    return {
        "method": name,
        "epsilon": epsilon,
        "proved": None if guarantee is None else guarantee.epsilon,
        "delta": None if guarantee is None else guarantee.delta,
        "regret": float(regrets.mean()),
        "regret_error": float(regrets.std(ddof=1) / math.sqrt(len(regrets))),
        "repeats": len(regrets),
    }


def draw(path: Path, settings: Settings, rows: list[dict[str, Any]], note: str | None) -> None:
    """Regret against ε, a panel for bandits and one for experts."""
    says = "Private regret comes down to the plain one as ε grows"
    about = f"{len(settings.means)} arms, T = {settings.steps:,}, {settings.repeats} runs; ±2 standard errors"
    panels = (
        (
            "Thompson sampling: one reward a step",
            THOMPSON,
            ((EXACT, ORANGE, "noisy counts taken for exact"), (WIDENED, BLUE, "noise of the counts added again")),
        ),
        (
            "Hedge: all losses are seen",
            HEDGE,
            (
                (PURE, ORANGE, "2η a draw, added: δ = 0"),
                (APPROXIMATE, BLUE, f"2η a draw, composed at δ = {settings.delta:g}"),
            ),
        ),
    )
    alone = {row["method"]: row["regret"] for row in rows if row["epsilon"] is None}
    with saved(path, (9.6, 4.4), says, about, note) as figure:
        axes = figure.subplots(1, 2, sharey=True)
        for axis, (title, plain, lines) in zip(axes, panels, strict=True):
            axis.axhline(alone[BLIND], color=GREY, ls=":", label="arms chosen at random")
            for name, colour, label in lines:
                found = [row for row in rows if row["method"] == name]
                axis.errorbar(
                    [row["epsilon"] for row in found],
                    [row["regret"] for row in found],
                    yerr=[2 * row["regret_error"] for row in found],
                    color=colour, marker="o", ms=4, capsize=2, label=label,
                )  # fmt: skip
            axis.axhline(alone[plain], color=DARK, ls="--", label="not private")
            on_epsilon(axis, settings.epsilons)
            axis.set_ylim(0, 1.45 * alone[BLIND])
            axis.set_title(title)
            axis.legend(frameon=False, loc="upper right", fontsize=8.5)
        axes[0].set_ylabel("regret after T steps")


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """One line a row."""
    lines = []
    for row in rows:
        private = "not private" if row["epsilon"] is None else f"ε = {row['epsilon']:g} (proved {row['proved']:.4g})"
        lines.append(f"{row['method']}, {private}: regret {row['regret']:.0f} ± {row['regret_error']:.1f}")
    return lines


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    arguments = arguments_of("bandits", "Regret of private Thompson sampling and Hedge against ε.", argv)
    settings = load(arguments.config, Settings)
    if arguments.quick:
        settings = settings.model_copy(update={"repeats": settings.quick.repeats})
    with folder_for(arguments.out):
        rows = run(settings)
        write_table(arguments.out / "results.csv", COLUMNS, rows)
        draw(arguments.out / f"{settings.name}.png", settings, rows, "quick: few runs" if arguments.quick else None)
        report(summary(rows), arguments.out)


if __name__ == "__main__":
    raise SystemExit(main())
