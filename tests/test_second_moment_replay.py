"""One record moves a gradient and its second moment by at most what is charged: replay on neighbours."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpmcmc
from dpmcmc.privacy import FixedSize, Full, Poisson
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.query import moment_sum
from dpmcmc.privacy.query.matrix_forms import DENSE
from dpmcmc.privacy.query.query import GradientQuery
from dpmcmc.privacy.query.second_moment import SecondMoment
from dpmcmc.privacy.query.selection import selector
from tests.second_moments import METRICS, D, Replay, charged, worst_rows

CASES = {
    "dense, nested, several microbatches": (SecondMoment(0.5, "dense"), "identity", Poisson(120.0), True),
    "ill-conditioned metric": (SecondMoment(1.0, "dense"), "ill-conditioned", FixedSize(65), False),
    "own batch, metric": (SecondMoment(0.5, "dense", own_batch=True), "dense", Poisson(75.0), True),
    "diagonal, nested": (SecondMoment(0.5, "diagonal"), "identity", FixedSize(75), True),
    "diagonal metric": (SecondMoment(1.0, "dense"), "diagonal", Poisson(60.0), False),
    "dense metric, diagonal": (SecondMoment(1.0, "diagonal"), "dense", Full(), False),
    "own batch, diagonal": (SecondMoment(0.5, "diagonal", own_batch=True), "dense", FixedSize(75), False),
}


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_one_record_moves_the_released_pair_by_at_most_what_is_charged(name):
    second, metric, sampling, nested = CASES[name]
    replay = Replay(second, METRICS[metric], sampling, nested)
    share = replay.excess()
    assert max(share.values()) <= 1 + 1e-9
    # Nearly attained by a record that is zeroed, so a smaller charge would fail. Replacement by the opposite record
    # moves the gradient alone, and by an orthogonal one the second moment by √2: together below 2.
    structured = second.structure == "diagonal" and not second.own_batch
    assert share["zeroed"] >= (0.8 if structured else 1 - 5e-4)
    assert share["replaced"] >= 0.5

    # Everything but the sums stays as it is: releases differ by the difference of the sums, up to float32.
    zero, base = worst_rows()["zero"], replay.release(worst_rows()["zero"])
    assert np.isfinite(base).all()
    for name, white in worst_rows().items():
        released = replay.release(white)
        moved = [a - b for a, b in zip(replay.sums(white), replay.sums(zero), strict=True)]
        if not any(np.any(part) for part in moved):
            np.testing.assert_array_equal(released, base)
        if metric == "identity" and name in ("aligned", "mixed"):
            step = (released - base)[:D] / (replay.clip * replay.scale)
            np.testing.assert_allclose(step, moved[0], atol=1e-6 * np.abs(base).max())
    for name in ("nan", "inf", "beyond float32 squares"):
        np.testing.assert_array_equal(replay.release(worst_rows()[name]), base)
    # A record that is not drawn changes nothing at all.
    if replay.left_out is not None:
        outside = [replay.release(white, replay.left_out) for white in worst_rows().values()]
        for other in outside[1:]:
            np.testing.assert_array_equal(other, outside[0])


@pytest.mark.parametrize("structure", ["dense", "diagonal"])
def test_replay_catches_a_second_moment_of_unclipped_rows(structure, monkeypatch):
    """Planted fault: not clipped below 2C."""
    original = moment_sum.clipped_sum

    def planted(form, rows, mask, clip, bits):
        return original(form, jax.tree.map(lambda leaf: leaf / 2, rows), mask, clip, bits + 2)

    monkeypatch.setattr(moment_sum, "clipped_sum", planted)
    assert Replay(SecondMoment(1.0, structure)).excess()["zeroed"] > 1.3


@pytest.mark.optimised
def test_replay_catches_a_charge_of_the_gradient_alone():
    replay = Replay(SecondMoment(0.5, "dense"))
    (right,) = charged(replay.second)
    assert replay.excess()["zeroed"] / right > 2


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "structure"), [("identity", "dense"), ("dense", "dense"), ("dense", "diagonal"), ("diagonal", "diagonal")]
)
def test_the_exact_second_moment_is_that_of_rows_clipped_in_the_metric(name, structure):
    metric = METRICS[name]
    replay = Replay(SecondMoment(1.0, structure), metric, nested=True)
    gradient, moment = replay.sums(worst_rows()["aligned"])
    raw = np.asarray(replay.records(worst_rows()["aligned"], replay.at)["g"], np.float64)
    f = np.eye(D) if metric is None else DENSE.of(metric.operator(D))
    white = raw @ np.linalg.inv(np.asarray(f, np.float64)).T
    clipped = white * np.minimum(1 / replay.clip, 1 / np.linalg.norm(white, axis=1, keepdims=True))
    np.testing.assert_allclose(gradient, clipped.sum(0), atol=replay.n * 2.0**-20)
    outer = np.einsum("ni,nj->ij", clipped, clipped)
    row, column = np.triu_indices(D)
    unit = np.where(row == column, 1.0, math.sqrt(2)) * outer[row, column]
    expected = unit if structure == "dense" else (clipped**2).sum(0)
    np.testing.assert_allclose(moment, expected, atol=replay.n * 2.0**-20)


@pytest.mark.slow
@pytest.mark.parametrize("own", [False, True])
def test_a_minibatch_of_its_own_is_another_minibatch(own):
    """Record i has gradient e_i, so both sums show who took part."""
    n, b = 120, 30
    target = dpmcmc.targets.Custom(
        init=lambda key: jnp.zeros(n), log_prior=lambda p: 0.0 * jnp.sum(p), log_likelihood=lambda p, r: r["g"] @ p
    )
    select = selector(FixedSize(b), n, b)
    q = GradientQuery(target, n, float(b), 1.0, select, second=SecondMoment(1.0, "diagonal", own))
    draw = jax.jit(lambda k: q(jnp.zeros(n), {"g": jnp.eye(n)}, k, jax.random.key(0), jnp.float32(1e-3)))
    shared = []
    for seed in range(4):
        out = draw(jax.random.key(seed))
        first, second = np.abs(np.asarray(out.value)) > 2, np.asarray(out.releases[0].value) > 2
        assert first.sum() == second.sum() == b
        shared.append(float(np.mean(second[first])))
    if own:  # hypergeometric: mean 1/4, std .069 each
        assert abs(np.mean(shared) - b / n) < 5 * 0.069 / 2
    else:
        assert shared == [1.0] * 4


def separable(params, record):
    """Independent counts with log-rates x_j θ_j: each coordinate's gradient is a difference of two products."""
    return jnp.sum(record["y"] * (record["x"] * params) - jnp.exp(record["x"] * params))


@pytest.mark.optimised
@pytest.mark.parametrize("second", [None, SecondMoment(1.0, "dense")], ids=["gradient", "pair"])
def test_a_row_is_clipped_by_its_own_norm_however_it_is_compiled(second):
    """KAPPA's proof takes the norm of the numbers that are summed. Chains side by side, batches of 4."""
    n, d, chains, large = 4, 3, 2, 2.0**40
    target = dpmcmc.targets.Custom(
        init=lambda key: jnp.zeros(d), log_prior=lambda p: 0.0 * jnp.sum(p), log_likelihood=separable
    )
    q = GradientQuery(target, n, float(n), 1.0, None, second=second)
    sums = jax.jit(jax.vmap(lambda p, r: q.clipped_sum(p, r, jax.random.key(0)), in_axes=(0, None)))
    rng, worst = np.random.default_rng(0), 0.0
    for _ in range(60):
        params = np.tile((rng.uniform(0.3, 3, size=d) / large).astype(np.float32), (chains, 1))
        x = np.zeros((n, d), np.float32)
        x[0] = rng.uniform(1, 2, size=d) * large
        y = np.exp(x * params[0]) * (1 + rng.integers(-2, 3, size=(n, d)) * 2.0**-23)
        total = sums(params, {"x": x, "y": y.astype(np.float32)}).to_float64(1.0, q.bits)
        worst = max(worst, float(np.linalg.norm(total, axis=1).max()))
    assert worst <= 1 + KAPPA
