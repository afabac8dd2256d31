r"""A private recommender (thesis, 3.7): error of ratings that users complete at home, against ε.

    python -m experiments.sources.recommender [--quick] [--out DIR]

A record is a user with all of their ratings r of 30 films. With a taste u ~ N(0, I) for each user, integrated out,

    r ~ N(0, VVᵀ + s² I)     on the films that the user rated; V, (films, rank), is all that is learnt.

SGHMC draws V from 4,000 generated users. Each user's gradient is clipped, so all of a user's ratings cost one ε. The
draws of V are released. A user who takes part in nothing completes a rating from V and their own other ratings. This
step reads no one else's record and costs no privacy.

Beside the private chain: a longer chain without privacy, the V that made the ratings, and the mean rating of each film.
The thesis names one posterior sample and prints no number. This is a chain on generated users, and all of its draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular

import dpmcmc
from dpmcmc.inference import predictive
from experiments.pictures import BLUE, DARK, GREY, LIGHT, ORANGE, RED, SKY, name_ends, saved
from experiments.sources.script import script

WITHOUT, TRUTH, MEANS = "chain without privacy", "the V that made the ratings", "mean of each film"
EPSILONS, DELTA, CLIP = (0.1, 0.3, 1.0, 3.0), 1e-5, 2.0
#: How many ratings a user has given; all are about 17.
FEW = (0, 1, 2, 4, 8, 16)
#: The generated users: number of films, length of a taste, scale of V, noise of a rating, share of films rated.
ITEMS, RANK, SCALE, NOISE, RATED = 30, 3, 0.46, 0.25, 0.6
TRAIN, TEST, SEED = 4000, 2000, 20061002

Records = dict[str, np.ndarray]
#: Rows of users, (n, 3·items), to predictions of the ratings that are asked, (n,).
Completes = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Recommender:
    """The target. A row x is the ratings shown (0 elsewhere), 1 where one is shown, 1 at the film whose rating is y.

    Integrals and inverses are of size rank (Woodbury).
    """

    items: int = ITEMS
    rank: int = RANK
    noise_scale: float = NOISE
    prior_scale: float = 0.5

    gradient_bound = None

    def init(self, key: jax.Array) -> jax.Array:
        """Return random directions: V = 0 is a stationary point, which no gradient leaves."""
        start: jax.Array = 0.6 * self.prior_scale * jax.random.normal(key, (self.items, self.rank))
        return start

    def log_prior(self, v: jax.Array) -> jax.Array:
        """Log density up to a constant."""
        return -0.5 * jnp.sum(jnp.square(v / self.prior_scale))

    def log_likelihood(self, v: jax.Array, record: dict[str, jax.Array]) -> jax.Array:
        """log N(r; 0, VVᵀ + s² I) of all ratings of a user."""
        shown, mask, asked = record["x"].reshape(3, self.items)
        ratings = shown + asked * record["y"]
        root, moment = self._reduced(v, mask + asked, ratings)
        explained = jnp.sum(jnp.square(solve_triangular(root, moment, lower=True)))
        count = jnp.sum(mask + asked)
        variance = self.noise_scale**2
        log_determinant = 2 * jnp.sum(jnp.log(jnp.diagonal(root))) + (count - self.rank) * jnp.log(variance)
        squares = (jnp.sum(jnp.square(ratings)) - explained) / variance
        return -0.5 * (squares + log_determinant + count * jnp.log(2 * jnp.pi))

    def predict(self, v: jax.Array, x: jax.Array) -> jax.Array:
        """Mean of the asked rating given those shown, (n,) of rows (n, 3·items)."""
        return jax.vmap(self._complete, (None, 0))(v, x)

    def _complete(self, v: jax.Array, row: jax.Array) -> jax.Array:
        shown, mask, asked = row.reshape(3, self.items)
        root, moment = self._reduced(v, mask, shown)
        return (asked @ v) @ cho_solve((root, True), moment)

    def _reduced(self, v: jax.Array, rated: jax.Array, ratings: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the Cholesky factor of s² I + VᵀV, V on rated items, and Vᵀr."""
        factors = rated[:, None] * v
        inner = self.noise_scale**2 * jnp.eye(self.rank) + factors.T @ factors
        return jnp.linalg.cholesky(inner), factors.T @ ratings


def films() -> np.ndarray:
    """Return V, (30, 3), that made the ratings."""
    return np.random.RandomState(SEED).normal(0.0, SCALE, (ITEMS, RANK))


def users() -> tuple[Records, Records]:
    """Return 4,000 users to train on and 2,000 to test; from a public seed."""
    random = np.random.RandomState(SEED + 1)
    parts = []
    for size in (TRAIN, TEST):
        tastes = random.normal(size=(size, RANK))
        ratings = tastes @ films().T + NOISE * random.normal(size=(size, ITEMS))
        asked = np.eye(ITEMS)[random.randint(0, ITEMS, size)]
        shown = (random.uniform(size=asked.shape) < RATED) * (1 - asked)
        x = np.concatenate([ratings * shown, shown, asked], axis=1)
        parts.append({"x": x.astype(np.float32), "y": (ratings * asked).sum(axis=1).astype(np.float32)})
    return parts[0], parts[1]


def with_at_most(x: np.ndarray, ratings: int) -> np.ndarray:
    """Rows of the same users when they have given no more than their first few ratings."""
    shown, mask, asked = np.split(x, 3, axis=1)
    kept = mask * (np.cumsum(mask, axis=1) <= ratings)
    return np.concatenate([shown * kept, kept, asked], axis=1)


def errors(ways: list[Completes], test: Records) -> list[dict[str, Any]]:
    """Error of each run for users with all of their ratings, and with a few of them."""
    rows = []
    for name, x in [("all", test["x"]), *((str(few), with_at_most(test["x"], few)) for few in FEW)]:
        rmse = [float(np.sqrt(np.mean(np.square(completes(x) - test["y"])))) for completes in ways]
        spread = float(np.std(rmse, ddof=1)) if len(rmse) > 1 else ""
        rows.append({"ratings": name, "rmse": float(np.mean(rmse)), "rmse_std": spread})
    return rows


def of_a_chain(epsilon: float | None, steps: int, runs: int, train: Records, test: Records) -> list[dict[str, Any]]:
    """Return the rows of a chain at ε, or without privacy."""
    plan = dpmcmc.plan(
        Recommender(),
        num_records=TRAIN,
        sampler=dpmcmc.SGHMC(step_size=0.015, friction=0.1),
        privacy=None if epsilon is None else dpmcmc.Privacy(epsilon=epsilon, delta=DELTA, clip=CLIP),
        steps=steps,
        burn_in=3 * steps // 5,
        thin=2,
    )
    draws = [dpmcmc.sample(plan, train).flat_draws() for _ in range(runs)]
    about = {
        "method": WITHOUT if epsilon is None else f"ε = {epsilon:g}",
        "epsilon": "" if epsilon is None else epsilon,
        "guarantee_epsilon": "" if plan.guarantee is None else plan.guarantee.epsilon,
        "temperature": float(plan.temperatures.max()),
        "steps": plan.steps,
        "runs": runs,
    }
    return [about | row for row in errors([partial(predictive.mean, plan.target, each) for each in draws], test)]


def of_baselines(train: Records, test: Records) -> list[dict[str, Any]]:
    """Return the rows of the truth, and of a mean for each film; neither is private."""
    asked = train["x"][:, 2 * ITEMS :]
    means = (train["y"] @ asked) / asked.sum(axis=0)
    ways: dict[str, Completes] = {
        TRUTH: lambda x: np.asarray(Recommender().predict(films().astype(np.float32), x)),
        MEANS: lambda x: x[:, 2 * ITEMS :] @ means,
    }
    return [{"method": name, "runs": 1} | row for name, way in ways.items() for row in errors([way], test)]


def rows(quick: bool) -> list[dict[str, Any]]:
    """Return the rows of results.csv."""
    train, test = users()
    found = []
    for epsilon in (1.0,) if quick else EPSILONS:
        found += of_a_chain(epsilon, 200, 1 if quick else 5, train, test)
    return found + of_a_chain(None, 200 if quick else 1000, 1, train, test) + of_baselines(train, test)


def picture(path: Path, rows: list[dict[str, Any]], note: str | None) -> None:
    """Error against the number of ratings that a user has."""
    names = list(dict.fromkeys(row["method"] for row in rows))
    colours = dict(zip(names, (RED, ORANGE, SKY, BLUE), strict=False)) | {WITHOUT: DARK, TRUTH: GREY, MEANS: LIGHT}
    says = "From ε = 1 on, ratings completed at home are nearly as good as without privacy"
    about = f"4,000 generated users of 30 films, 2,000 others to test; {rows[0]['runs']} runs; a record is a user"
    with saved(path, (7.6, 4.6), says, about, note) as figure:
        axis = figure.subplots()
        for name in names:
            errors = [row["rmse"] for row in rows if row["method"] == name and row["ratings"] != "all"]
            style = "o-" if name.startswith("ε") else "--"
            axis.plot(range(len(errors)), errors, style, color=colours[name], ms=4.5)
        axis.set(yscale="log", ylim=(0.25, 1.0), xlabel="ratings that the user has given")
        ticks = [0.3, 0.4, 0.5, 0.6, 0.8]
        axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
        axis.set_xticks(range(len(FEW)), [str(few) for few in FEW])
        axis.set_ylabel("rmse of one more rating")
        ends = {row["method"]: row["rmse"] for row in rows if row["ratings"] == str(FEW[-1])}
        name_ends(axis, [(rmse, name, colours[name]) for name, rmse in ends.items()])


main = script(
    "recommender",
    "Ratings completed at home from private factors, against ε.",
    rows,
    "{method}, {ratings} ratings: rmse {rmse:.4f}",
    picture,
)

if __name__ == "__main__":
    raise SystemExit(main())
