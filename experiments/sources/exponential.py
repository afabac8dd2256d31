r"""Exponential mechanism for penalised empirical risk minimisation (thesis, Algorithm 1; McSherry and Talwar 2007).

    python -m experiments.sources.exponential [--quick] --out DIR

    p(h) ∝ exp(−c·(Σ_i ℓ(h, z_i) + g(h))),      h in a public set H, g a public penalty

Two records' losses differ by at most Δ over H. A neighbour changes Σℓ by D(h), and the log density by
−cD(h) − log E[e^{−cD}], which is within c·(sup D − inf D). For ``replace_one`` D = ℓ_z − ℓ_z' varies by at most 2Δ;
where a record is added, removed or zeroed D = ±ℓ_z varies by what one record's loss does over H. So

    c = ε/(2Δ) (replace_one),      c = ε/Δ (add_remove, zero_out; 0 <= ℓ <= Δ),

and the release is ε-DP with no δ. The source's c is ε/4 for losses in [0, 1] and replace_one: half of what its own
argument allows, since q = −(1/n)Σℓ moves by 1/n there, not by 2/n.

* H is a public covering set (Example 2.24): the choice is the vote of ``dpmcmc/mechanisms/vote.py``, exact in whole
  numbers, and nothing is assumed.
* H is the ball ‖θ‖ <= R with Lebesgue measure: a draw is that of ``ops`` of form ``range``, at any temper and with the
  penalty (Λ/2)‖θ‖²; NUTS draws are taken for exact. A set of infinite measure has no density in general.

Written: the mean excess risk of a choice against ε, with both coefficients, and the privacy loss that two neighbours
attain, for the median on 401 points and for logistic regression on a ball.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from dpmcmc.mechanisms import nuts, vote
from dpmcmc.privacy import Event, Guarantee
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.query.randomness import Streams, streams_of
from dpmcmc.targets import LogisticRegression
from dpmcmc.targets.tempered import Tempered
from experiments.sources.script import script

EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
N, DRAWS, RADIUS, PENALTY = 200, 100, 2.0, 1.0
#: Coefficients over ε, for losses in [0, 1].
COEFFICIENTS = {"ours, ε/2": 1 / 2, "printed, ε/4": 1 / 4}
#: Points of a covering set, and a loss in [0, 1] on them.
POINTS = np.linspace(-1.0, 1.0, 401)[:, None]


def absolute(params: Any, record: Any) -> Any:
    """ℓ(h, y) = |h − y|/2."""
    return jnp.abs(params[0] - record["y"]) / 2


def guarantee_of(epsilon: float, adjacency: str = "replace_one") -> Guarantee:
    """Return the accountant's guarantee of one choice."""
    event = Event("pure", 0.0, 1.0, 1, epsilon=epsilon)
    return Guarantee.from_events(
        (event,), delta=1e-6, adjacency=Adjacency(adjacency), accountant="one_sample", release="one_sample"
    )


def chances(records: Any, coefficient: float) -> np.ndarray:
    """Return the probability of each point, (M,)."""
    weights = vote.weights_of_losses(absolute, POINTS, records, 1.0, coefficient)
    return np.array([weight / sum(weights) for weight in weights])


def on_set(y: np.ndarray, coefficient: float) -> tuple[float, float]:
    """Return (mean excess risk of a choice of the median, largest privacy loss to the neighbours y₁ = ±1)."""
    sums = np.abs(POINTS - y).sum(axis=1) / 2
    own = chances({"y": y}, coefficient)
    laws = [chances({"y": np.array([end, *y[1:]])}, coefficient) for end in (-1.0, 1.0)]
    return float(own @ (sums - sums.min())) / len(y), float(np.abs(np.log(laws[0]) - np.log(laws[1])).max())


def on_ball(target: LogisticRegression, records: Any, coefficient: float, draws: int, streams: Streams) -> np.ndarray:
    """Return draws of p on the ball ‖θ‖ <= ``RADIUS`` with the penalty (``PENALTY``/2)‖θ‖², (draws, d)."""
    posterior = Tempered(target, coefficient, coefficient, PENALTY)
    return nuts.posterior_draws(posterior, records, streams, draws=draws, radius=RADIUS)


def rows_of(draws: int) -> list[dict[str, Any]]:
    """Return a row for each set, ε and coefficient."""
    rng = np.random.default_rng(0)
    y = np.clip(rng.normal(0.3, 0.4, N), -1, 1)
    x = rng.normal(size=(N, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True) * (1 + 1e-6)
    records = {"x": x.astype(np.float32), "y": (x @ [1.0, -1.0, 0.5] + 0.3 * rng.normal(size=N) > 0).astype(np.int32)}
    target = LogisticRegression(1.0, num_features=3, row_bound=1.0)
    difference = target.loss_bounds(RADIUS)[1]
    best = on_ball(target, records, 1e4, 1, streams_of(0)[0])[0]
    rows = []
    for epsilon in EPSILONS:
        for name, share in COEFFICIENTS.items():
            # Rounding of weights takes a little of ε.
            excess, loss = on_set(y, 2 * share * vote.coefficient_of(epsilon, 1.0, 2.0))
            rows.append(
                {
                    "set": "median on 401 points",
                    "epsilon": epsilon,
                    "guarantee_epsilon": guarantee_of(epsilon).epsilon,
                    "coefficient": name,
                    "excess_risk": excess,
                    "attained": loss,
                }
            )
            drawn = on_ball(target, records, share * epsilon / difference, draws, streams_of(1)[0])
            thetas = np.array([*drawn, best])
            margins = (2 * records["y"] - 1)[:, None] * (x @ thetas.T)
            risk = np.logaddexp(0, -margins).mean(axis=0) + PENALTY / (2 * N) * np.sum(thetas**2, axis=1)
            rows.append(rows[-1] | {"set": "ball", "excess_risk": float(np.mean(risk[:-1] - risk[-1])), "attained": ""})
    return rows


main = script(
    "exponential",
    "The exponential mechanism on a covering set and on a ball.",
    lambda quick: rows_of(20 if quick else DRAWS),
    "{set}, ε {epsilon:g}, {coefficient}: {excess_risk:.3g}",
)

if __name__ == "__main__":
    raise SystemExit(main())
