"""Randomised labels: the table is exactly ε-DP, the likelihood knows it, nothing else of a label leaves."""

import dataclasses
import json
import math
from fractions import Fraction
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml
from scipy import stats

import dpmcmc
from dpmcmc.data import randomise_labels
from dpmcmc.errors import DataError, InputError
from dpmcmc.mechanisms import OPS, label_posterior, nuts
from dpmcmc.mechanisms.label_posterior import plan_labels
from dpmcmc.privacy import Event, Guarantee, Ledger, LedgerError, UnsupportedCombination
from dpmcmc.privacy.query.randomised_response import VALUES, RandomisedTable
from dpmcmc.privacy.query.randomness import streams_of
from dpmcmc.report.privacy_json import privacy_json
from dpmcmc.targets import LinearRegression, LogisticRegression, RandomisedLabels, SoftmaxRegression
from tests.cli.test_command_line import call

RNG = np.random.default_rng(3)
EPSILONS = (1e-6, 0.1, 0.3, 1.0, 3.0, 20.0)
LOGISTIC = LogisticRegression(num_features=2)
N = 60
X = RNG.uniform(-0.7, 0.7, size=(N, 2)).astype(np.float32)
RECORDS = {"x": X, "y": (X[:, 0] > 0).astype(np.int32)}


def matrix(table):
    """Probability of each randomised label (columns) given the true one (rows)."""
    every = np.full((table.classes, table.classes), table.changed / VALUES)
    np.fill_diagonal(every, table.kept / VALUES)
    return every


def check_exactly_private(table):
    """Count the values of the random bits that lead to each label, and compare with e^ε by exact fractions."""
    v = table.changed
    last = table.classes - 1
    # ⌊u/V⌋ is constant from jV to (j + 1)V − 1, and all values from (K − 1)V on keep the label.
    ends = [(j * v, (j + 1) * v - 1) for j in range(last)] + [(last * v, VALUES - 1)]
    bits = np.array(ends, np.uint64).ravel()
    for label in range(table.classes):
        to = table.by_bits(np.full(len(bits), label, np.int32), bits).reshape(-1, 2)
        assert np.all(to[:, 0] == to[:, 1])
        assert sorted(to[:, 0]) == list(range(table.classes))
        assert to[last, 0] == label
    kept = ends[last][1] - ends[last][0] + 1
    assert kept == table.kept >= v
    # Partial sums of positive terms lie below e^ε.
    exponent = Fraction(table.epsilon)
    term = below = Fraction(1)
    for k in range(1, 120):
        term *= exponent / k
        below += term
    assert Fraction(kept, v) <= below
    assert math.log(Fraction(kept, v)) >= table.epsilon * (1 - 1e-9)


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_table_is_exactly_epsilon_private(epsilon, classes):
    table = RandomisedTable(epsilon, classes)
    check_exactly_private(table)
    chances = matrix(table)
    np.testing.assert_allclose(chances.sum(axis=1), 1.0, rtol=1e-15)
    np.testing.assert_allclose(np.diag(chances), math.exp(epsilon) / (math.exp(epsilon) + classes - 1), rtol=1e-9)


def test_a_keep_probability_of_more_is_caught(monkeypatch):
    real = RandomisedTable.changed.func
    loud = property(lambda self: real(SimpleNamespace(epsilon=1.1 * self.epsilon, classes=self.classes)))
    monkeypatch.setattr(RandomisedTable, "changed", loud)
    with pytest.raises(AssertionError):
        check_exactly_private(RandomisedTable(1.0, 2))


def test_one_value_of_the_bits_less_is_caught(monkeypatch):
    real = RandomisedTable.changed.func
    monkeypatch.setattr(RandomisedTable, "changed", property(lambda self: real(self) - 1))
    with pytest.raises(AssertionError):
        check_exactly_private(RandomisedTable(1.0, 3))


@pytest.mark.parametrize("classes", [2, 4])
def test_drawn_labels_have_the_probabilities_of_the_table(classes):
    table = RandomisedTable(1.0, classes)
    for label in range(classes):
        drawn = table.drawn(np.full(20_000, label, np.int32), streams_of(label)[0].noise)
        assert drawn.dtype == np.int32
        counts = np.bincount(drawn, minlength=classes)
        assert stats.chisquare(counts, 20_000 * matrix(table)[label]).pvalue > 1e-4


# The likelihood.

MARGINS = np.array([-6.0, -1.5, 0.0, 0.4, 3.0])


def check_information(target):
    """Compare the expected square of the score with (1 − 2f)² p²(1 − p)²/(q(1 − q)), with f from the table."""
    f = target.table.changed / VALUES
    x = jnp.ones(1)
    for m in MARGINS:

        def log_q(m, y):
            return target.log_likelihood(jnp.array([m]), {"x": x, "y": y})

        chances = np.exp([log_q(m, y) for y in (0, 1)])
        scores = np.array([jax.grad(log_q)(m, y) for y in (0, 1)])
        p = 1 / (1 + math.exp(-m))
        q = f + (1 - 2 * f) * p
        expected = (1 - 2 * f) ** 2 * p**2 * (1 - p) ** 2 / (q * (1 - q))
        np.testing.assert_allclose(chances, [1 - q, q], rtol=1e-5)
        np.testing.assert_allclose(chances @ scores**2, expected, rtol=1e-4)


@pytest.mark.parametrize("epsilon", [0.3, 3.0])
def test_fisher_information_is_that_of_a_changed_label(epsilon):
    check_information(RandomisedLabels(LogisticRegression(num_features=1), epsilon))


def test_a_likelihood_without_the_change_is_caught(monkeypatch):
    monkeypatch.setattr(RandomisedLabels, "log_likelihood", lambda self, *a: self.target.log_likelihood(*a))
    with pytest.raises(AssertionError):
        check_information(RandomisedLabels(LogisticRegression(num_features=1), 1.0))


def test_class_probabilities_are_mixed_by_the_table():
    target = RandomisedLabels(SoftmaxRegression(num_classes=3, num_features=2), 0.7)
    params = jnp.asarray(RNG.normal(size=(2, 3)), jnp.float32)
    p = np.asarray(target.predict(params, X[:1])[0])  # of the true label
    q = [math.exp(target.log_likelihood(params, {"x": jnp.asarray(X[0]), "y": jnp.array(k)})) for k in range(3)]
    np.testing.assert_allclose(q, matrix(target.table).T @ p, rtol=1e-5)


# Nothing but the randomised labels.


@pytest.fixture(scope="module", autouse=True)
def short():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(label_posterior, "_WARMUP", 40)
        yield


def neighbour():
    return RECORDS | {"y": np.where(np.arange(N) == 7, 1 - RECORDS["y"], RECORDS["y"]).astype(np.int32)}


def test_neighbours_with_the_same_keys_differ_in_one_randomised_label(monkeypatch):
    seen = []

    def run_chains(posteriors, released, *rest, **options):
        seen.append(released)
        return [np.zeros((4, 250, 2))]

    monkeypatch.setattr(nuts, "run_chains", run_chains)
    monkeypatch.setattr(label_posterior.convergence, "summary", lambda chains: {"rhat": 1.0})
    plan = plan_labels(LOGISTIC, N, 1.0)
    for records in (RECORDS, neighbour()):
        plan.mechanism.draw(plan, records, streams_of(0)[0])
    first, second = seen
    assert first["x"] is second["x"] is X
    assert np.flatnonzero(first["y"] != second["y"]).tolist() == [7]
    # A run's labels are those of the function, given the same key.
    np.testing.assert_array_equal(first["y"], randomise_labels(RECORDS["y"], 1.0, num_classes=2, key=0)[0])


def test_all_that_leaves_follows_from_the_randomised_labels(monkeypatch):
    same = RandomisedTable(1.0, 2).drawn(RECORDS["y"], streams_of(1)[0].noise)
    monkeypatch.setattr(RandomisedTable, "drawn", lambda *_: same)
    results = [dpmcmc.sample(plan_labels(LOGISTIC, N, 1.0), records, key=5) for records in (RECORDS, neighbour())]
    np.testing.assert_array_equal(*(result.draws for result in results))


def test_secret_labels_have_a_guarantee_and_known_ones_none():
    y = np.arange(10_000) % 3
    (first, guarantee), (second, _) = (randomise_labels(y, 1.0, num_classes=3) for _ in range(2))
    assert (guarantee.epsilon, guarantee.delta, guarantee.adjacency) == (1.0, 0.0, "one_label")
    assert "features are taken as public" in " ".join(guarantee.assumptions)
    assert not np.array_equal(first, second)
    assert abs(np.mean(first == y) - math.e / (math.e + 2)) < 0.03
    assert guarantee.compose(guarantee).epsilon == 2.0
    assert guarantee.for_group(3).epsilon == 3.0
    labels, nothing = randomise_labels(y, 1.0, num_classes=3, key=4)
    assert nothing is None
    np.testing.assert_array_equal(labels, randomise_labels(y, 1.0, num_classes=3, key=4)[0])


@pytest.mark.parametrize("y", [[0, 3], [-1, 0], [0.5, 1.0], [[0], [1]]])
def test_what_is_no_label_is_refused_and_not_quoted(y):
    with pytest.raises(DataError, match=r"^y: must be one array of whole numbers in 0\.\.2"):
        randomise_labels(np.array(y), 1.0, num_classes=3)


def simulated(target, truth, n, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, size=(n, truth.shape[0])).astype(np.float32)
    p = np.asarray(target.predict(jnp.asarray(truth, jnp.float32), x))
    p = np.stack([1 - p, p], axis=1) if p.ndim == 1 else p
    y = (p.cumsum(axis=1) < rng.random((n, 1))).sum(axis=1)
    return {"x": x, "y": np.minimum(y, p.shape[1] - 1).astype(np.int32)}


@pytest.mark.slow
def test_any_sampler_recovers_coefficients_from_the_labels_and_a_naive_likelihood_does_not():
    target = SoftmaxRegression(prior_scale=2.0, num_classes=3, num_features=2)
    truth = np.array([[0.0, 2.0, -1.0], [0.0, 1.0, 2.0]])
    records = simulated(target, truth, 20_000, 0)
    labels, _ = randomise_labels(records["y"], 1.0, num_classes=3, key=3)

    def apart(model):
        plan = dpmcmc.plan(
            model, num_records=20_000, sampler=dpmcmc.SGLD(step_size=4.0), steps=8000, thin=8, privacy=None
        )
        draws = dpmcmc.sample(plan, records | {"y": labels}, key=1).flat_draws()
        contrast = draws[:, :, 1:] - draws[:, :, :1]
        return np.abs(contrast.mean(axis=0) - truth[:, 1:]) / contrast.std(axis=0)

    assert apart(RandomisedLabels(target, 1.0)).max() < 4.5
    assert apart(target).max() > 9


@pytest.mark.slow
def test_ninety_per_cent_intervals_cover_coefficients_of_the_prior():
    target = LogisticRegression(prior_scale=1.5, num_features=4)
    inside = []
    for seed in range(40):
        truth = np.random.default_rng(1000 + seed).normal(scale=1.5, size=4)
        records = simulated(target, truth, 1500, seed)
        draws = dpmcmc.sample(plan_labels(target, 1500, 1.0), records, key=seed).flat_draws()
        low, high = np.quantile(draws, [0.05, 0.95], axis=0)
        inside += list((low <= truth) & (truth <= high))
    # 4 standard errors of 160 intervals, and of quantiles of 1,000 draws.
    assert abs(np.mean(inside) - 0.9) < 4 * math.sqrt(0.09 / len(inside))


# Refusals.


@pytest.mark.parametrize(
    ("target", "epsilon", "word"),
    [
        (LinearRegression(num_features=2), 1.0, "logistic and softmax"),
        (LogisticRegression(num_features=2, weight_scale=1.0), 1.0, "weight"),
        (LOGISTIC, 0.0, "epsilon"),
        (LOGISTIC, math.inf, "epsilon"),
        (LOGISTIC, math.nan, "epsilon"),
        (SoftmaxRegression(num_features=2), 1.0, "num_classes"),
        (SoftmaxRegression(num_features=2, num_classes=10**13), 1e-6, "num_classes"),
    ],
)
def test_what_has_no_derivation_is_refused(target, epsilon, word):
    with pytest.raises(InputError, match=word):
        plan_labels(target, N, epsilon)


def test_a_promise_about_one_label_is_not_added_to_one_about_records(tmp_path):
    plan = plan_labels(LOGISTIC, N, 1.0)
    bound = dataclasses.replace(LOGISTIC, row_bound=1.0)
    whole = OPS(prior_precision=1.0).plan(bound, num_records=N, epsilon=1.0, delta=1e-4).guarantee
    for one, other in ((plan.guarantee, whole), (whole, plan.guarantee)):
        with pytest.raises(UnsupportedCombination, match="promise different things"):
            one.compose(other)
    ledger = Ledger.init(tmp_path / "book", name="n", num_records=N, adjacency="replace_one", epsilon=5.0, delta=1e-4)
    with pytest.raises(LedgerError, match="promises one_label and the ledger replace_one"):
        dpmcmc.sample(plan, RECORDS, ledger=ledger)
    with pytest.raises(LedgerError, match="adjacency"):
        Ledger.init(tmp_path / "labels", name="n", num_records=N, adjacency="one_label", epsilon=5.0, delta=1e-4)
    with pytest.raises(UnsupportedCombination, match="randomised labels"):
        dpmcmc.audit.audit(plan)


@pytest.mark.parametrize(
    ("adjacency", "release"),
    [("one_label", "estimate"), ("replace_one", "labels"), ("replace_one", "estimate + labels")],
)
def test_no_other_release_is_about_one_label(adjacency, release):
    with pytest.raises(UnsupportedCombination, match="randomised labels"):
        Guarantee.from_events(
            (Event("pure", 0.0, 1.0, 1, epsilon=1.0),),
            delta=1e-5, adjacency=adjacency, accountant="one_sample", release=release,
        )  # fmt: skip


def test_records_of_other_methods_are_not_promised_by_labels():
    bound = dataclasses.replace(LOGISTIC, row_bound=1.0)
    with pytest.raises(UnsupportedCombination, match="one_label"):
        OPS().plan(bound, num_records=N, epsilon=1.0, delta=1e-4, adjacency="one_label")
    with pytest.raises(InputError, match="adjacency"):
        dpmcmc.Privacy(epsilon=1.0, delta=1e-5, adjacency="one_label")


# The YAML key.

CONFIG = {
    "name": "labels",
    "data": {"name": "breast_cancer", "labels": {"randomised": 1.0}},
    "target": {"name": "logistic_regression"},
    "privacy": None,
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"privacy": {"epsilon": 1.0, "delta": 1e-4}}, "privacy: is for a promise about whole records"),
        ({"mechanism": {"name": "noise_aware"}}, "mechanism: is for a promise about whole records"),
        ({"sampler": {"name": "sgld", "step_size": 1.0}}, "sampler: data.labels takes none"),
        ({"data": {"name": "breast_cancer", "labels": {"randomised": 0}}}, "data.labels.randomised"),
        ({"target": {"name": "poisson_regression"}}, "target"),
    ],
)
def test_a_config_that_says_two_things_is_refused(change, words, tmp_path, capsys):
    path = tmp_path / "labels.yaml"
    path.write_text(yaml.safe_dump(CONFIG | change))
    assert call("plan", path) == 2
    assert words in capsys.readouterr().err


def test_a_run_says_what_it_protects_and_is_not_audited(tmp_path, capsys):
    path = tmp_path / "labels.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    assert call("run", path, "--out", tmp_path / "out") == 0
    assert "label of one record changed, features not protected" in " ".join(capsys.readouterr().out.split())
    result = dpmcmc.load(tmp_path / "out")
    assert result.usable_for == ["prediction", "intervals"]
    assert result.draws.shape == (1, 1000, 31)
    assert (result.guarantee.epsilon, result.guarantee.adjacency) == (1.0, "one_label")
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "all features being public and not protected" in page
    assert "features are taken as public, and nothing protects them" in page
    assert "One label of one record" in page
    assert call("verify", tmp_path / "out") == 0
    assert call("audit", path) == 2
    assert "nothing is claimed of whole records" in capsys.readouterr().err


def test_verify_recomputes_epsilon_and_refuses_another_adjacency(tmp_path, capsys):
    plan = plan_labels(LOGISTIC, N, 1.0)
    said = privacy_json(plan, plan.guarantee)
    path = tmp_path / "privacy.json"
    path.write_text(json.dumps(said))
    assert call("verify", path, "--group", "2") == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "(1, 0)-DP, one_label" in out
    assert "for any 2 records, one_label" in out
    for change in ({"adjacency": "replace_one"}, {"epsilon": 0.9}, {"release": "estimate"}):
        path.write_text(json.dumps(said | change))
        assert call("verify", path) != 0
