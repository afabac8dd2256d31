"""A noise-aware posterior covers, and its releases are unbiased and move no further than they are charged for."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import expit
from scipy.stats import poisson

from dpmcmc.inference import denoised_moment, normal_law
from dpmcmc.inference.count_score import Counts
from dpmcmc.inference.curvature import ScoredRows
from dpmcmc.inference.logistic_score import Logistic
from dpmcmc.inference.normal_law import Gaussian, GradientRelease, Local
from dpmcmc.inference.softmax_score import Softmax
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.mechanisms.noise_aware.gradients import Bounds, Design
from dpmcmc.privacy.accounting import Adjacency
from dpmcmc.privacy.query import gram_release
from dpmcmc.privacy.query.gram_release import NoisyGram
from dpmcmc.samplers import SGLD
from dpmcmc.targets import LinearRegression, LogisticRegression
from tests import extreme_rows
from tests.bounded_rows import Reading
from tests.one_shot_replay import charged, measured
from tests.planted import Scene, require

_D, _N, _TABLES = 6, 12_000, 60


def intervals_cover_where_the_gram_matrix_is_noisy(scene: Scene) -> None:
    """Its noise outweighs that of labels; the gradient is released at 0, 360 coefficients, 90 % intervals."""
    rng, exact, std, inside = np.random.default_rng(0), np.eye(_D) * _N / _D, 100.0, []
    start = Gaussian(np.zeros(_D), np.eye(_D))
    for _ in range(_TABLES):
        truth = rng.normal(size=_D)
        noisy = NoisyGram(exact + std * normal_law.symmetric_noise(rng, _D), std, float(_N), 0.0)
        gram, error = denoised_moment.denoised(noisy, None)
        # Curvatures at the truth: how they are found is the path's part.
        right, known = (
            ScoredRows(Logistic(), one, _N, np.zeros(_D), 0.6, law).local(truth)
            for one, law in ((exact, np.zeros_like), (gram, error))
        )
        gradient = right.curvature @ -truth + rng.multivariate_normal(np.zeros(_D), right.spread)
        seen = GradientRelease(np.zeros(_D), gradient, np.zeros((_D, _D)))
        now = normal_law.posterior(seen, known, np.eye(_D), start, rounds=12)
        inside.append(np.abs(now.mean - truth) < 1.6449 * np.sqrt(np.diag(now.covariance)))
    share = float(np.mean(inside))
    require(0.85 < share < 0.99, f"90 % intervals cover {share:.3f}")


def the_error_of_the_curvature_is_as_long_as_stated(scene: Scene) -> None:
    """E‖(H(Ĝ) − H(G))u‖² over simulated releases, near θ = 0, where H = cG."""
    rng, exact, std, u = np.random.default_rng(2), np.eye(_D) * _N / _D, 30.0, np.ones(_D)
    theta, error = np.full(_D, 1e-3), normal_law.isotropic_error(std)

    def near(gram: np.ndarray) -> Local:
        return ScoredRows(Logistic(), gram, _N, np.zeros(_D), 0.6, error).local(theta)

    noisy = [exact + std * normal_law.symmetric_noise(rng, _D) for _ in range(400)]
    found = np.mean([np.sum(((near(one).curvature - near(exact).curvature) @ u) ** 2) for one in noisy])
    stated = float(np.trace(near(exact).curvature_error(np.outer(u, u))))
    require(0.75 < stated / found < 1.33, f"the error is {found:.4g}, and {stated:.4g} is stated")


def scores_have_mean_zero_at_the_truth(scene: Scene) -> None:
    """The mean over labels of what the mechanism sums, one record at a time, at a clip that binds."""
    rng, d = np.random.default_rng(1), 3
    x, theta = rng.normal(size=(40, d)) / 3, 4 * rng.normal(size=d)
    p, mean, total = expit(x @ theta), np.zeros(d), 0.0
    design = Design(1, d, 3.0, 100.0)
    for row, chance in zip(x, p, strict=True):
        for label, probability in ((1.0, chance), (0.0, 1 - chance)):
            access = Reading.of(x.T @ x / len(x), design, Logistic(), row[None], np.array([label]))
            score = probability * access.sum(theta)
            mean, total = mean + score, total + float(np.linalg.norm(score))
    require(
        np.linalg.norm(mean) < 1e-7 * total, f"scores of length {total:.3g} have the mean {np.linalg.norm(mean):.3g}"
    )


def scores_of_counts_are_bounded_and_have_mean_zero(scene: Scene) -> None:
    """Sums over all counts up to 200 of means of at most 3, at limits that clip and one that does not."""
    count = np.arange(200.0)
    for eta in (-1.0, 0.3, 1.1):
        for limit in (0.1, 1.0, 5.0):
            score = Counts().residual(np.full(200, eta), count, np.full(200, limit)) / limit
            mean = float(poisson.pmf(count, np.exp(eta)) @ score)
            require(abs(mean) < 1e-9, f"scores within 1 have the mean {mean:.3g}")
            require(float(np.abs(score).max()) < 1 + 1e-9, f"a score is {np.abs(score).max():.3g} limits long")


def a_replaced_row_moves_the_gram_matrix_within_its_charge(scene: Scene) -> None:
    """Rows at right angles lie farthest apart."""
    rows = gram_release.RowFacts(num_records=2, size=2, row_bound=1.0)
    one, two = (gram_release.gram_of(np.eye(2)[[k, 0]], 1.0).floats for k in (0, 1))
    moved = float(np.linalg.norm(gram_release.svec(one) - gram_release.svec(two)))
    charged = rows.moved(Adjacency.REPLACE_ONE)[0]
    require(moved <= charged * (1 + 1e-12), f"a replaced row moves it by {moved:.4g}, and {charged:.4g} is charged")


def a_row_whose_norm_overflows_counts_nowhere(scene: Scene) -> None:
    """The norm of a row at 1e160 is no number of float64; each sum moves within what is charged."""
    found, records = extreme_rows.reading("counted", "float64"), extreme_rows.table("float64")
    other = {name: leaf.copy() for name, leaf in records.items()}
    other["x"][extreme_rows.AT] = 1e160
    at = np.zeros(len(found.centre))
    apart = extreme_rows.Sums(found, records, at).apart(extreme_rows.Sums(found, other, at))
    for name, share in apart.items():
        require(share <= 1, f"{name} moves {share:.3g} times as far as is charged")


def leverages_are_within_the_bound_of_their_family(scene: Scene) -> None:
    """Rows as long as allowed at even odds, where v tr(slope)‖z‖² is largest."""
    for score, largest in ((Logistic(), 1 / 4), (Softmax(3), 2 / 3)):
        eta = np.zeros(1) if score.size == 1 else np.zeros((1, score.size))
        slope = score.slope(eta, np.zeros(1), np.full(1, 1e9))
        trace = float(np.sum(slope if slope.ndim == 1 else np.trace(slope, axis1=1, axis2=2)))
        bound = score.leverage(1e9, 5.0)
        require(abs(trace - largest) < 1e-12, f"the trace at even odds is {trace:.3g}")
        require(trace * 5.0**2 <= bound * (1 + 1e-12), f"a leverage is {trace * 25:.3g}, and {bound:.3g} is its bound")


def a_replaced_row_moves_whitened_rows_within_its_charge(scene: Scene) -> None:
    """A row far beyond the bound in the metric, replaced by one along another axis."""
    design, gram = Design(100, 3, 1.0, 100.0, 1e-3), np.diag([50.0, 10.0, 0.1])
    one, two = (
        Reading.of(gram, design, Logistic(), row[None], np.zeros(1)).moment(2.0) for row in (np.eye(3)[2], np.eye(3)[0])
    )
    moved = float(np.linalg.norm(one - two))
    require(moved <= math.sqrt(2) * (1 + 1e-9), f"whitened rows move by {moved:.3g}, and √2 is charged")


def the_spread_of_a_record_is_the_square_of_its_score(scene: Scene) -> None:
    """A row that is not clipped, with a weight of its own: B is the variance of the sum that noise is added to."""
    x, position = np.array([[0.0, 0.0, 1.0]]), np.array([0.3, -0.2, 0.5])
    design, gram = Design(100, 3, 1.0, 100.0, 1e-3), np.diag([50.0, 10.0, 0.1])
    made = Reading.of(gram, design, Logistic(), x, np.ones(1), weight=np.full(1, 0.4))
    access = made.bounded(Bounds(40.0, 3.0, 2.25))
    score, spread = access.sum(position), access.spread(position)
    apart = float(np.linalg.norm(spread - np.outer(score, score)) / np.sum(score**2))
    require(apart < 1e-4, f"the spread of one record is off its squared score by {apart:.3g} of it")


def a_cold_sampler_adds_no_less_noise_than_is_charged(scene: Scene) -> None:
    """Next to no noise is a sampler's own; a label moves releases by what they are charged for at most."""
    rng, n = np.random.default_rng(0), 400
    records = {"x": rng.uniform(-0.5, 0.5, (n, 2)), "y": rng.integers(0, 2, n)}
    other = {**records, "y": np.append(1 - records["y"][0], records["y"][1:])}
    target = LogisticRegression(prior_scale=1.0, num_features=2, row_bound=1.0)
    sampler = SGLD(step_size=0.2, temperature=1e-6)
    plan = NoiseAware(draws=4, steps=16, sampler=sampler).plan(target, num_records=n, epsilon=2.0, delta=1e-5)
    found, most = measured(plan, records, other), charged(plan)
    require(
        found <= most, f"a label moves the releases by {found:.3g} noise standard deviations, and {most:.3g} is charged"
    )


def one_label_costs_a_run_no_more_than_it_is_charged(scene: Scene) -> None:
    """A linear regression with a sandwich; one residual is what the quantile of all of them hangs on."""
    rng, n = np.random.default_rng(0), 400
    target = LinearRegression(prior_scale=1.0, noise_scale=0.5, label_bound=3.0, num_features=2, row_bound=1.0)
    y = 0.01 * rng.normal(size=n)
    y[:40] = 3.0
    records = {"x": rng.uniform(-0.5, 0.5, (n, 2)), "y": y}
    others = [{**records, "y": np.append(label, y[1:])} for label in (-3.0, 0.0)]
    more = {**records, "y": np.append(y[:-1], 3.0)}
    plan = NoiseAware(draws=4, steps=16, covariance="sandwich").plan(target, num_records=n, epsilon=2.0, delta=1e-5)
    found, most = measured(plan, records, *others, more), charged(plan)
    require(
        found <= most, f"a label moves the releases by {found:.3g} noise standard deviations, and {most:.3g} is charged"
    )
