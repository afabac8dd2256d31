r"""Thompson sampling with private counts, and Hedge as a sequence of exponential mechanisms: regret against ε.

    python -m experiments.sources.bandits [--quick] [--out DIR]

Left, a bandit. A person a step has a reward for each arm and shows that of the arm that is pulled. Thompson sampling
pulls the arm with the largest draw of Beta(1 + S, 1 + m − S), S of m rewards. Such a draw has no pure ε of its own:
where S moves by one, the ratio of the densities is θ/(1 − θ) up to a constant, which has no bound. So S comes from a
tree counter (``tree_counter.py``), an arm a counter, and the draws are post-processing: ε in all, δ = 0. ``exact``
takes the noisy counts for the counts; ``widened`` adds the noise of a counter once more before each draw, so that an
arm is not given up because of the noise.

Right, all arms' losses are seen (experts). Hedge draws an arm with probability ∝ exp(−η Σ losses), losses in [0, 1].
One person moves each sum by at most 1, so a draw costs 2η, and T draws 2ηT; or less at δ > 0, by exact composition. η
is the largest that ε allows, at most Hedge's own √(8 log A/T). Exp3, the third algorithm that the thesis names, is not
run: it draws from weights that divide a loss by the probability of its arm, which has no bound that a price could use.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from dpmcmc.privacy import Event, Guarantee
from experiments.pictures import BLUE, DARK, GREY, ORANGE, on_epsilon, points, saved
from experiments.sources.script import script
from experiments.sources.tree_counter import TreeCounter

#: Values of the column ``method``; ε, as asked for and as proved, is empty where nothing is private.
EXACT, WIDENED, PURE, APPROXIMATE, THOMPSON, HEDGE, BLIND = (
    "Thompson, exact", "Thompson, widened", "Hedge, pure", "Hedge, approximate", "Thompson", "Hedge", "any arm",
)  # fmt: skip


#: Mean rewards of the arms, steps, δ of Hedge's second line, and runs.
MEANS, STEPS, DELTA, REPEATS = (0.7, 0.5, 0.5, 0.5, 0.5), 1000, 1e-6, 100
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


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


def rows(runs: int) -> list[dict[str, Any]]:
    """Rows of results.csv."""
    means = np.array(MEANS)
    rng = np.random.default_rng(0)
    arms, repeats = len(means), range(runs)
    found = [
        _row(THOMPSON, None, None, [thompson(means, STEPS, None, False, rng)[0] for _ in repeats]),
        _row(HEDGE, None, None, hedge(means, STEPS, math.sqrt(8 * math.log(arms) / STEPS), runs, rng)),
        _row(BLIND, None, None, np.full(runs, STEPS * (means.max() - means.mean()))),
    ]
    for epsilon in EPSILONS:
        for name in (EXACT, WIDENED):
            each = [thompson(means, STEPS, epsilon, name == WIDENED, rng) for _ in repeats]
            found.append(_row(name, epsilon, each[0][1], [regret for regret, _ in each]))
        for name, delta in ((PURE, 0.0), (APPROXIMATE, DELTA)):
            rate = largest_rate(epsilon, delta, arms, STEPS)
            found.append(_row(name, epsilon, price(rate, STEPS, delta), hedge(means, STEPS, rate, runs, rng)))
    return found


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


def draw(path: Path, rows: list[dict[str, Any]], note: str | None) -> None:
    """Regret against ε, a panel for bandits and one for experts."""
    says = "Private regret comes down to the plain one as ε grows"
    about = f"{len(MEANS)} arms, T = {STEPS:,}, {rows[0]['repeats']} runs; ±2 standard errors"
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
                (APPROXIMATE, BLUE, f"2η a draw, composed at δ = {DELTA:g}"),
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
                points(axis, found, "epsilon", "regret", "regret_error", color=colour, label=label)
            axis.axhline(alone[plain], color=DARK, ls="--", label="not private")
            on_epsilon(axis, EPSILONS)
            axis.set_ylim(0, 1.45 * alone[BLIND])
            axis.set_title(title)
            axis.legend(frameon=False, loc="upper right", fontsize=8.5)
        axes[0].set_ylabel("regret after T steps")


main = script(
    "bandits",
    "Regret of private Thompson sampling and Hedge against ε.",
    lambda quick: rows(2 if quick else REPEATS),
    "{method}, ε asked {epsilon}: regret {regret:.0f} ± {regret_error:.1f}",
    draw,
)

if __name__ == "__main__":
    raise SystemExit(main())
