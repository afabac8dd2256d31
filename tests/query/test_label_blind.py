"""Label-blind clipping: the score stays unbiased at the truth, the sensitivity is that of any clip, on every path."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, softmax

import dpmcmc
from dpmcmc import config
from dpmcmc.audit.neighbours import Neighbours
from dpmcmc.audit.scores import Observed
from dpmcmc.config import ConfigError
from dpmcmc.diagnostics.per_record.account import _norms_of
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.query import exact_sums as fixed_point
from dpmcmc.privacy.query.metric import PublicMatrix
from dpmcmc.privacy.query.query import GradientQuery
from dpmcmc.privacy.query.second_moment import SecondMoment
from dpmcmc.targets import Custom, LinearRegression, LogisticRegression, PerOwner, SoftmaxRegression
from dpmcmc.targets.tempered import Tempered
from dpmcmc.targets.whitened import Whitened, WhitenedRows
from tests.query.test_query import exact_sum

D, K, CLIP = 3, 4, 0.3
RNG = np.random.default_rng(5)
TRUTH = np.array([1.0, 0.5, 1.5], np.float32)
CLASSES = RNG.normal(size=(D, K)).astype(np.float32)
METRIC = PublicMatrix(np.array([[1.0, 0.3, 0.0], [0.0, 0.5, 0.2], [0.0, 0.0, 2.0]]))
LOGISTIC, SOFTMAX = LogisticRegression(num_features=D), SoftmaxRegression(num_classes=K, num_features=D)
#: name -> (target, the parameter that made the labels, settings of the query)
PATHS = {
    "closed form": (LOGISTIC, TRUTH, {}),
    "metric": (LOGISTIC, TRUTH, {"metric": METRIC}),
    "second moment": (LOGISTIC, TRUTH, {"second": SecondMoment(1.0)}),
    "tempered": (Tempered(LOGISTIC, 0.8), TRUTH, {}),
    "softmax": (SOFTMAX, CLASSES, {}),
    "whitened rows": (WhitenedRows(LOGISTIC, np.eye(D), np.eye(D)), TRUTH, {}),
    "softmax on whitened rows": (WhitenedRows(SOFTMAX, np.eye(D), np.eye(D)), CLASSES, {}),
    "softmax in a metric": (SOFTMAX, CLASSES, {"metric": PublicMatrix(np.linspace(0.5, 2, D * K))}),
}


def table(n, truth, seed=0):
    """Rows on one side of the origin, so that biases of records add up, and labels that the truth makes."""
    rng = np.random.default_rng(seed)
    x = np.abs(rng.normal(size=(n, D))).astype(np.float32)
    if truth.ndim == 1:
        y = (rng.random(n) < expit(x @ truth)).astype(np.int32)
    else:
        y = (rng.random((n, 1)) > np.cumsum(softmax(x @ truth, axis=1), axis=1)).sum(axis=1).astype(np.int32)
    return {"x": x, "y": y}


def query(target, n, label_blind=True, clip=CLIP, **settings):
    return GradientQuery(target, n, float(n), clip, None, label_blind=label_blind, **settings)


#: Equal queries share a program.
_row_norms = jax.jit(lambda q, params, records: fixed_point.row_norms(q.scores(params, records)), static_argnums=0)


#: Quick where a path has code of its own; the others are put together of these.
EACH = [pytest.param(path, marks=pytest.mark.slow) if path.startswith("softmax ") else path for path in PATHS]


@pytest.mark.parametrize("path", EACH)
def test_the_score_at_the_truth_is_unbiased_and_that_of_residual_clipping_is_not(path):
    target, truth, settings = PATHS[path]
    n = 40_000
    records = table(n, truth)
    # No contribution is longer than C, so the standard error of a sum is at most C √n. Five of them.
    off = {blind: exact_sum(query(target, n, blind, **settings), truth, records) for blind in (True, False)}
    largest = {blind: np.abs(value).max() / (CLIP * np.sqrt(n)) for blind, value in off.items()}
    assert largest[True] < 5 < 12 < largest[False]


@pytest.mark.parametrize("path", EACH)
def test_a_weight_is_the_same_for_every_label(path):
    target, truth, settings = PATHS[path]
    rows = query(target, 50, **settings)
    records = table(50, truth)
    plain = dataclasses.replace(rows, label_blind=False)
    labels = range(2 if truth.ndim == 1 else K)

    def norms(q, label):
        return np.asarray(_row_norms(q, truth, records | {"y": np.full(50, label, np.int32)}))

    weights = np.array([norms(rows, label) / norms(plain, label) for label in labels])
    np.testing.assert_allclose(weights, weights[:1] + 0 * weights, rtol=1e-4)
    # It is no smaller than it must be: some label has a gradient of norm C, or the weight is 1.
    longest = np.max([norms(rows, label) for label in labels], axis=0)
    assert np.all((np.abs(longest - CLIP) < 1e-5) | (np.abs(weights[0] - 1) < 1e-5))


@pytest.mark.parametrize(("target", "truth"), [(LOGISTIC, TRUTH), (SOFTMAX, CLASSES)], ids=["logistic", "softmax"])
def test_a_target_in_the_coordinates_of_a_metric_has_the_weights_of_that_metric(target, truth):
    records = table(400, truth)
    factor = np.random.default_rng(2).normal(size=(truth.size, truth.size))
    root = (factor @ factor.T / truth.size + 0.5 * np.eye(truth.size)).astype(np.float32)
    own = exact_sum(query(target, 400, metric=PublicMatrix(root)), truth, records)
    inside = Whitened(target, root, np.linalg.inv(root))
    np.testing.assert_allclose(
        exact_sum(query(inside, 400), root @ truth.ravel(), records), own, atol=400 * CLIP * 1e-4
    )


@pytest.mark.parametrize(
    ("target", "truth", "clip"), [(LOGISTIC, TRUTH, 1e-3), (LOGISTIC, TRUTH, CLIP), (SOFTMAX, CLASSES, CLIP)]
)
def test_the_closed_form_is_the_sum_of_weighted_gradients(target, truth, clip):
    records, allowed = table(500, truth), 500 * clip * KAPPA
    closed = exact_sum(query(target, 500, clip=clip), truth, records)
    generic = exact_sum(query(target, 500, clip=clip, metric=PublicMatrix(1.0)), truth, records)
    np.testing.assert_allclose(closed, generic, atol=allowed)
    prepared = exact_sum(query(target, 500, clip=clip), truth, target.prepared(records))
    np.testing.assert_allclose(closed, prepared, atol=allowed)
    if truth.ndim == 1:
        likely = np.stack([expit(-records["x"] @ truth), expit(records["x"] @ truth)], axis=1)
    else:
        likely = softmax(records["x"] @ truth, axis=1)
    residual = np.eye(likely.shape[1]) - likely[:, None]
    own = -residual[np.arange(500), records["y"]]
    if truth.ndim == 1:
        residual, own = residual[:, :, 1:], own[:, 1:]
    longest = np.linalg.norm(residual, axis=2).max(axis=1) * np.linalg.norm(records["x"], axis=1)
    weighted = np.minimum(1, clip / longest)[:, None] * own
    np.testing.assert_allclose(closed, (records["x"].T @ weighted).ravel(), atol=allowed)


@pytest.mark.slow
@pytest.mark.optimised
def test_a_clip_beyond_every_gradient_changes_no_bit():
    records = table(500, TRUTH)
    clip = float(np.linalg.norm(records["x"], axis=1).max()) * 1.001
    for settings in ({}, {"second": SecondMoment(1.0)}, {"metric": PublicMatrix(1.0)}):
        blind, plain = (exact_sum(query(LOGISTIC, 500, b, clip, **settings), TRUTH, records) for b in (True, False))
        np.testing.assert_array_equal(blind, plain)


@pytest.mark.optimised
@pytest.mark.parametrize("path", EACH)
def test_a_replaced_record_moves_the_sum_by_at_most_2c(path):
    """Labels and rows that no check would let pass are held by the clip behind the weights."""
    target, truth, settings = PATHS[path]
    n, rng, worst = 40, np.random.default_rng(1), 0.0
    q = query(target, n, **settings)
    for seed in range(6):
        records = table(n, truth, seed)
        before, without = exact_sum(q, truth, records), None
        for x, y in (
            (np.zeros(D), 0), (records["x"][0], 1 - records["y"][0] % 2), (-1e4 * rng.normal(size=D), 1),
            (1e30 * np.ones(D), 0), (np.full(D, np.nan), 0), (np.full(D, np.inf), 1), (rng.normal(size=D), 1000),
        ):  # fmt: skip
            other = {"x": records["x"].copy(), "y": records["y"].copy()}
            other["x"][0], other["y"][0] = x, y
            after = exact_sum(q, truth, other)
            without = after if without is None else without
            worst = max(worst, np.linalg.norm(after - before) / (2 * CLIP), np.linalg.norm(after - without) / CLIP)
    assert 0.5 < worst <= 1 + KAPPA


def plan(target=LOGISTIC, n=200, sampler=None, steps=20, **privacy):
    promise = dpmcmc.Privacy(**({"epsilon": 2.0, "delta": 1e-4, "accountant": "rdp", "clip": CLIP} | privacy))
    sampler = dpmcmc.SGLD(step_size=1.0) if sampler is None else sampler
    return dpmcmc.plan(target, num_records=n, sampler=sampler, steps=steps, burn_in=steps - 5, privacy=promise)


def test_it_is_the_default_where_labels_are_bounded():
    custom = Custom(lambda key: jnp.zeros(D), lambda p: -jnp.sum(p**2), lambda p, r: r["y"] * (r["x"] @ p))
    for target, blind in (
        (LOGISTIC, True), (SOFTMAX, True), (Tempered(LOGISTIC, 2.0), True),
        (LinearRegression(), False), (custom, False), (PerOwner(LOGISTIC), False), (Tempered(custom, 2.0), False),
    ):  # fmt: skip
        made = plan(target)
        assert made.label_blind == blind
        assert made.describe().stated["clipping"] == ("label_blind" if blind else "residual")
        assert not plan(target, clipping="residual").label_blind
        if not blind:
            name = type(target).__name__
            with pytest.raises(ValueError, match=f"clipping label_blind .* {name} states no bounded labels"):
                plan(target, clipping="label_blind")
    nothing = dpmcmc.plan(LOGISTIC, num_records=200, sampler=dpmcmc.SGLD(step_size=1.0), steps=20, privacy=None)
    assert not nothing.label_blind
    assert nothing.describe().stated["clipping"] is None
    with pytest.raises(ValueError, match="clipping must be one of residual, label_blind"):
        plan(clipping="both")


def test_a_config_says_it_and_a_mechanism_refuses_it():
    assert config.make_plan(config.load("adult_prediction", ["privacy.clipping=label_blind"])).label_blind
    assert config.make_plan(config.load("adult_prediction", ["privacy.clipping=null"])).label_blind
    assert not config.make_plan(config.load("adult_prediction", ["privacy.clipping=residual"])).label_blind
    with pytest.raises(ConfigError, match=r"privacy\.clipping: .*LinearRegression states no bounded labels"):
        config.make_plan(config.load("diabetes_linear", ["privacy.clipping=label_blind"]))
    with pytest.raises(ConfigError, match=r"privacy\.clipping: mechanism ops settles this itself"):
        config.load("adult_ops", ["privacy.clipping=residual"])
    hybrid = config.make_plan(config.load("adult_hybrid", ["privacy.clipping=residual"]))
    assert not hybrid.label_blind


@pytest.mark.slow
def test_a_run_takes_weighted_steps():
    records = table(200, TRUTH)
    ways = (None, "label_blind", "residual")
    default, *alone = (dpmcmc.sample(plan(clipping=how), records, key=1).draws for how in ways)
    np.testing.assert_array_equal(default, alone[0])
    assert np.abs(default - alone[1]).max() > 1e-6


@pytest.mark.parametrize(
    ("target", "metric"), [(LOGISTIC, None), (LOGISTIC, "metric"), (Tempered(LOGISTIC, 0.5), None), (SOFTMAX, "metric")]
)
def test_norms_of_records_are_those_of_weighted_gradients(target, metric):
    truth = CLASSES if target is SOFTMAX else TRUTH
    metric = None if metric is None else PublicMatrix(np.linspace(0.5, 2, truth.size))
    records = {name: jnp.asarray(leaf) for name, leaf in table(300, truth).items()}
    positions = jnp.asarray(RNG.normal(size=(4, *truth.shape)), jnp.float32)
    weighted, plain = (query(target, 300, blind, metric=metric) for blind in (True, False))
    exact = np.minimum([_row_norms(weighted, p, records) for p in positions], CLIP).T
    unweighted = np.array([_row_norms(plain, p, records) for p in positions]).T
    assert np.any(exact < 0.8 * np.minimum(unweighted, CLIP))
    found = CLIP * np.asarray(_norms_of(target, metric, CLIP, True)(positions, records))
    np.testing.assert_allclose(found, exact, atol=1e-4)
    assert np.all(found >= exact * (1 - 1e-6))


@pytest.mark.parametrize(
    "sampler", [dpmcmc.SGLD(step_size=1.0), dpmcmc.SGFS(step_size=1.0, fisher="public", public_fisher=1.0, metric=2.0)]
)
def test_an_audit_scores_the_gradients_that_the_query_sums(sampler):
    records = table(4, TRUTH)
    one, two, rest = ({name: leaf[i : i + 1] for name, leaf in records.items()} for i in (0, 1, 2))
    known = Neighbours(one, two, {name: leaf[0] for name, leaf in rest.items()}, 200)
    made = plan(sampler=sampler)
    found = np.asarray(Observed(made, LOGISTIC, known)._clipped(jnp.asarray(TRUTH)))
    for i in range(3):
        alone = {name: leaf[i : i + 1] for name, leaf in records.items()}
        wanted = exact_sum(query(LOGISTIC, 1, metric=getattr(made.sampler, "metric", None)), TRUTH, alone)
        np.testing.assert_allclose(found[i], wanted, atol=2e-6)
