r"""dpmcmc from scratch: private SGLD on Adult in one file of plain JAX and NumPy.

    python experiments/from_scratch.py [--epsilon 1.0]

The run draws from the posterior of a logistic regression, and everything that it releases is (ε, δ)-differentially
private: nobody who sees all draws can tell whether one person's record was replaced by another. The idea fits in one
line. Langevin dynamics adds Gaussian noise to every gradient; privacy needs Gaussian noise on every gradient; so add
the larger of the two, once. docs/from_scratch.md says what the library does beyond this file, and why.

Parts, in order: 1. records, 2. gradient, 3. privacy, 4. chain, 5. prediction.
"""

import argparse
import functools
import hashlib
import os
import urllib.request
from pathlib import Path

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting.pld import privacy_loss_distribution
from scipy.optimize import brentq
from scipy.stats import binom

# 1. Records
# A record is one line of UCI Adult: 14 attributes of a person, and whether the person earns more than 50,000 dollars.
# Every constant of the encoding is public: a range or a list of levels that was read off the records would be a
# release of its own, which no noise protects.

UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
SHA256 = {
    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
}
# Columns of a line that are categories, by their place, with their public levels; "?" is a missing value.
LEVELS = {
    1: "? Federal-gov Local-gov Never-worked Private Self-emp-inc Self-emp-not-inc State-gov Without-pay",
    3: "10th 11th 12th 1st-4th 5th-6th 7th-8th 9th Assoc-acdm Assoc-voc Bachelors Doctorate HS-grad Masters "
    "Preschool Prof-school Some-college",
    5: "Divorced Married-AF-spouse Married-civ-spouse Married-spouse-absent Never-married Separated Widowed",
    6: "? Adm-clerical Armed-Forces Craft-repair Exec-managerial Farming-fishing Handlers-cleaners Machine-op-inspct "
    "Other-service Priv-house-serv Prof-specialty Protective-serv Sales Tech-support Transport-moving",
    7: "Husband Not-in-family Other-relative Own-child Unmarried Wife",
    8: "Amer-Indian-Eskimo Asian-Pac-Islander Black Other White",
    9: "Female Male",
    13: "? Cambodia Canada China Columbia Cuba Dominican-Republic Ecuador El-Salvador England France Germany Greece "
    "Guatemala Haiti Holand-Netherlands Honduras Hong Hungary India Iran Ireland Italy Jamaica Japan Laos Mexico "
    "Nicaragua Outlying-US(Guam-USVI-etc) Peru Philippines Poland Portugal Puerto-Rico Scotland South Taiwan Thailand "
    "Trinadad&Tobago United-States Vietnam Yugoslavia",
}


def read(name):
    """Return the text of adult.data or adult.test, from the folder DPMCMC_DATA or from UCI."""
    if "DPMCMC_DATA" in os.environ:
        content = Path(os.environ["DPMCMC_DATA"], name).read_bytes()
    else:
        content = urllib.request.urlopen(UCI + name).read()
    if hashlib.sha256(content).hexdigest() != SHA256[name]:
        raise ValueError(f"{name} is not the official file")
    return content.decode("ascii")


def encode(text):
    """Return rows x (N, 109) of norm 1 and labels y (N,) in {0, 1}; each row is a function of its record alone."""
    records = [line.replace(" ", "").split(",") for line in text.splitlines() if "," in line]
    column = {place: np.array([record[place] for record in records]) for place in range(15)}
    age, schooling, gain, loss, hours = (column[place].astype(float) for place in (0, 4, 10, 11, 12))
    # Common knowledge sets the scales: a working age near 40, nine years of school, money by its logarithm. The
    # column of zeros is the survey weight fnlwgt, which says nothing about a person.
    numbers = [(age - 40) / 25, 0 * age, (schooling - 9) / 4, np.log1p(gain) / 4, np.log1p(loss) / 4, (hours - 40) / 20]
    one_hot = [column[place] == level for place, levels in LEVELS.items() for level in levels.split()]
    rows = np.stack([*(np.clip(number, -3, 3) for number in numbers), *one_hot, np.ones(len(records))], axis=1)
    rows *= (1 - 1e-6) / np.linalg.norm(rows, axis=1, keepdims=True)
    return rows.astype(np.float32), np.char.startswith(column[14], ">50K").astype(np.float32)


# 2. Gradient
# The only function that reads records. The potential is U(θ) = ‖θ‖²/2 − Σ log p(y | x, θ): a standard normal prior and
# a logistic likelihood. A minibatch holds each record independently with probability b/N (Poisson sampling).


def private_gradient(key, theta, x, y, *, batch_size, room, clip, noise_std):
    """Return an estimate of ∇U(θ) plus N(0, noise_std² I).

    Replacing one record moves the clipped sum by at most 2·clip, in the steps where the record takes part.
    """
    num_records = len(y)
    chosen_key, noise_key = jax.random.split(key)
    chosen = jax.random.uniform(chosen_key, (num_records,)) < batch_size / num_records
    # XLA needs fixed shapes: the batch is padded to ``room`` rows. Padding is rows of zeros, whose gradient is zero.
    (rows,) = jnp.nonzero(chosen, size=room, fill_value=num_records)
    x, y = x.at[rows].get(mode="fill", fill_value=0), y.at[rows].get(mode="fill", fill_value=0)
    # The gradient of one record's −log-likelihood is (σ(x·θ) − y)·x; its norm is |σ − y|·‖x‖.
    residual = jax.nn.sigmoid(x @ theta) - y
    norm = jnp.abs(residual) * jnp.linalg.norm(x, axis=1)
    residual *= jnp.minimum(1, clip / jnp.maximum(norm, 1e-12))
    # b is the expected batch size, a public constant: dividing by the actual size would change the sensitivity.
    gradient = theta + num_records / batch_size * (residual @ x)
    return gradient + noise_std * jax.random.normal(noise_key, theta.shape)


# 3. Privacy
# The noise multiplier z is the noise on the clipped SUM over the clip norm. In units of the clip norm, one step of
# Poisson sampling at rate q releases (1−q)·N(0, z²) + q·N(±1, z²): + with the one record and − with the other in its
# place. The privacy loss distribution (PLD) of a step, convolved with itself once per step, gives ε at δ. The grid is
# pessimistic: dp-accounting rounds the loss up, so the computed ε is an upper bound.


def epsilon_of(noise_multiplier, *, rate, steps, delta, interval=1e-4):
    """Return ε of ``steps`` queries when one record is replaced (``interval``: spacing of the loss's grid)."""
    one_step = privacy_loss_distribution.from_gaussian_mechanism(
        noise_multiplier,
        sampling_prob=rate,
        value_discretization_interval=interval,
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE,
    )
    return one_step.self_compose(steps).get_epsilon_for_delta(delta)


def calibrate(epsilon, **setting):
    """Return the smallest noise multiplier whose ε is at most ``epsilon``, up to one part in a thousand."""

    def excess(log_z):
        return epsilon_of(np.exp(log_z), **setting) - epsilon

    return float(np.exp(brentq(excess, np.log(0.2), np.log(50), xtol=5e-4) + 5e-4))


# 4. Chain
# Langevin dynamics at step η and temperature 1 is θ' = θ − η·(∇U + N(0, 2/η)). Its own noise, in units of the gradient,
# has std √(2/η). Privacy needs z·C·N/b. The larger of the two is added. If that is the dynamics' own, privacy costs
# nothing. If not, the chain runs at temperature T = η·s²/2 > 1 and its draws are wider than the posterior.


def noise_stds(noise_multiplier, *, num_records, batch_size, clip, step_size):
    """Return (what the dynamics adds by itself, what privacy needs), std in units of the gradient of U."""
    return np.sqrt(2 * num_records / step_size), noise_multiplier * clip * num_records / batch_size


def room_for(num_records, batch_size, steps):
    """Return rows that a padded batch needs so that ``steps`` batches all fit except with probability 1e-18."""
    return min(num_records, int(binom.isf(1e-18 / steps, num_records, batch_size / num_records)) + 1)


@functools.partial(jax.jit, static_argnames=("steps", "batch_size", "room"))
def chain(key, x, y, *, steps, batch_size, room, clip, noise_std, step_size):
    """Return all positions of one SGLD chain from θ = 0, (steps, d)."""
    eta = step_size / len(y)  # step_size is a learning rate on the MEAN loss, η the step on its sum U

    def step(theta, key):
        theta = theta - eta * private_gradient(
            key, theta, x, y, batch_size=batch_size, room=room, clip=clip, noise_std=noise_std
        )
        return theta, theta

    return jax.lax.scan(step, jnp.zeros(x.shape[1]), jax.random.split(key, steps))[1]


# 5. Prediction
# Everything below reads released draws and public test records, so it costs no privacy (post-processing).


def accuracy(draws, x, y):
    """Return the share of rows whose label the posterior predictive probability, averaged over draws, gets right."""
    probability = np.mean(1 / (1 + np.exp(-(x @ draws.T))), axis=1)
    return float(np.mean((probability > 0.5) == (y == 1)))


def main(argv=None):
    """Calibrate, sample, predict, and print each number."""
    parser = argparse.ArgumentParser(description="Private SGLD on UCI Adult.")
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--delta", type=float, default=1e-6)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--passes", type=float, default=20)
    parser.add_argument("--clip", type=float, default=0.5)
    parser.add_argument("--step-size", type=float, default=32.0)
    given = parser.parse_args(argv)

    x, y = encode(read("adult.data"))
    num_records = len(y)
    steps = int(np.ceil(given.passes * num_records / given.batch_size))
    setting = {"rate": given.batch_size / num_records, "steps": steps, "delta": given.delta}
    shape = {"num_records": num_records, "batch_size": given.batch_size}

    own, private = noise_stds(calibrate(given.epsilon, **setting), **shape, clip=given.clip, step_size=given.step_size)
    noise_std = max(own, private)
    multiplier = noise_std * given.batch_size / (num_records * given.clip)
    print(
        f"noise added      std {noise_std:.1f}: dynamics {own:.1f}, privacy {private:.1f}; multiplier {multiplier:.3f}"
    )
    print(f"temperature      {given.step_size / num_records * noise_std**2 / 2:.1f}")
    print(f"guarantee        ({epsilon_of(multiplier, **setting):.3f}, {given.delta:g})-DP, one record replaced")

    # The key is the secret that the guarantee rests on: whoever knows it can subtract the noise.
    key = jax.random.wrap_key_data(np.frombuffer(os.urandom(8), np.uint32))
    positions = chain(
        key, x, y, steps=steps, batch_size=given.batch_size, room=room_for(**shape, steps=steps),
        clip=given.clip, noise_std=noise_std, step_size=given.step_size,
    )  # fmt: skip
    draws = np.asarray(positions)[steps // 2 :: 10]
    print(f"test accuracy    {accuracy(draws, *encode(read('adult.test'))):.4f} ({len(draws)} draws averaged)")
    print("use the draws    for prediction, not for intervals: their spread is that of the noise")


if __name__ == "__main__":
    main()
