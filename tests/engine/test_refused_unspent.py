"""What can be refused is refused before the budget is spent: after each refusal a ledger holds no charge."""

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import dpmcmc
from dpmcmc.data import Levels, Range, Schema
from dpmcmc.engine import chain_checks, steps
from dpmcmc.engine.self_test import MiscompiledError
from dpmcmc.errors import InputError
from dpmcmc.estimators import (
    PrivateLinearRegression,
    PrivateLogisticRegression,
    PrivatePoissonRegression,
)
from dpmcmc.mechanisms import (
    MECHANISMS,
    OPS,
    AdaSSP,
    CertifiedOPS,
    Chain,
    Hybrid,
    NoiseAware,
    ObjectivePerturbation,
    OutputPerturbation,
    PrivateSelection,
    SufficientStatistics,
)
from dpmcmc.privacy.ledger import Ledger, OverBudget
from dpmcmc.privacy.query import integer_noise
from dpmcmc.targets import (
    LinearRegression,
    LogisticRegression,
    PerOwner,
    PoissonRegression,
    SoftmaxRegression,
    bind,
    record_shapes,
)
from tests.own_models import counts

N, D = 60, 3
X = np.random.default_rng(0).uniform(-0.5, 0.5, (N, D)).astype(np.float32)
TWO = {"x": X, "y": (X[:, 0] > 0).astype(np.int32)}
REAL = {"x": X, "y": X[:, 0]}
LOGISTIC = LogisticRegression(num_features=D, row_bound=1.0, prior_scale=2.0)
LINEAR = LinearRegression(num_features=D, row_bound=1.0, label_bound=1.0)
POISSON = PoissonRegression(num_features=D, row_bound=1.0)
SOFTMAX = SoftmaxRegression(num_features=D, num_classes=3, row_bound=1.0)
NUMPYRO = bind(counts(), record_shapes(TWO))
PROMISE = {"num_records": N, "epsilon": 2.0, "delta": 1e-6}
PRIVACY = dpmcmc.Privacy(epsilon=2.0, delta=1e-6)
OUTPUT, OBJECTIVE = OutputPerturbation(regularisation=5.0), ObjectivePerturbation(regularisation=50.0)
SGLD = dpmcmc.SGLD(step_size=0.1)


class Convex:
    """Logistic regression of a user's own, by his word."""

    num_features, gradient_bound, smoothness, prior_precision, log_concave = D, 1.0, 0.25, 1.0, True

    def init(self, key):
        return jnp.zeros(D)

    def log_prior(self, theta):
        return -0.5 * jnp.sum(theta**2)

    def log_likelihood(self, theta, record):
        return -jnp.log1p(jnp.exp(-(2 * record["y"] - 1) * (record["x"] @ theta)))


class InFloat32Alone(Convex):
    """Its code fails where JAX computes in float64."""

    def log_likelihood(self, theta, record):
        return jax.lax.fori_loop(
            0, 1, lambda _, total: total + Convex.log_likelihood(self, theta, record), jnp.float32(0.0)
        )


class BadUnits(Convex):
    """Its parameters cannot be brought to their own units."""

    def constrain(self, theta):
        return theta @ jnp.zeros(D + 1)


def fails(params, record):
    raise RuntimeError("a loss of the user's own")


def plan(target=LOGISTIC, **changes):
    settings = {"num_records": N, "sampler": SGLD, "steps": 4, "privacy": PRIVACY} | changes
    return dpmcmc.plan(target, **settings)


def released(mechanism, target, data, **options):
    """Plan and run a mechanism."""
    return lambda ledger, folder: dpmcmc.sample(mechanism.plan(target, **PROMISE), data, ledger=ledger, **options)


def sampled(data=TWO, target=LOGISTIC, settings=None, **options):
    """Plan and run a sampler; an option may be a function of the test's folder."""

    def run(ledger, folder):
        given = {name: value(folder) if callable(value) else value for name, value in options.items()}
        dpmcmc.sample(plan(target, **settings or {}), data, ledger=ledger, **given)

    return run


def fitted(model, y=TWO["y"], x=X, **changes):
    """Fit an estimator."""
    defaults = {"epsilon": 2.0, "delta": 1e-6, "ranges": (-1, 1)}
    return lambda ledger, folder: model(**defaults | changes, ledger=ledger).fit(x, y)


SCHEMA = Schema({"a": Range(-1, 1), "b": Range(-1, 1), "y": Levels([0, 1])}, label="y")
FRAME = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": TWO["y"]})


def of_table(*arguments, frame=FRAME, schema=SCHEMA, **options):
    """Call ``dpmcmc.fit``."""
    settings = {"epsilon": 2.0, "delta": 1e-6, "goal": "prediction"} | options
    return lambda ledger, folder: dpmcmc.fit(*arguments or [None], frame, schema, ledger=ledger, **settings)


def a_file(folder):
    path = folder / "a file"
    path.write_text("of somebody's")
    return path


#: Releases of a few numbers each; the limit of what is charged for is set to 2.
NUMBERS = {
    "noise_aware, logistic": (NoiseAware(), LOGISTIC, TWO),
    "noise_aware, linear": (NoiseAware(), LINEAR, REAL),
    "noise_aware, sandwich": (NoiseAware(covariance="sandwich"), LINEAR, REAL),
    "noise_aware, poisson": (NoiseAware(), POISSON, TWO),
    "noise_aware, softmax": (NoiseAware(), SOFTMAX, TWO),
    "noise_aware, owners": (NoiseAware(), PerOwner(LOGISTIC, 3), None),
    "noise_aware, numpyro": (NoiseAware(), NUMPYRO, TWO),
    "objective_perturbation": (OBJECTIVE, LOGISTIC, TWO),
    "output_perturbation": (OUTPUT, LOGISTIC, TWO),
    "sufficient_statistics": (SufficientStatistics(), LINEAR, REAL),
    "adassp": (AdaSSP(), LINEAR, REAL),
    "certified_ops": (CertifiedOPS(steps=5), LOGISTIC, TWO),
    "selection": (PrivateSelection([OUTPUT, OUTPUT], loss_bound=2.0), LOGISTIC, TWO),
}
#: Anything that can be wrong about a run, an estimator or a fit.
REFUSED = {
    # More than memory holds.
    "draws of noise_aware, linear": released(NoiseAware(draws=10**12), LINEAR, REAL),
    "draws of ops": released(OPS(prior_precision=1.0, draws=10**12), LOGISTIC, TWO),
    # Code and facts of the user's own.
    "a vote whose loss is none": released(
        PrivateSelection([OUTPUT, OUTPUT], loss_bound=1.0, loss="zero_one"), LOGISTIC, TWO
    ),
    "a vote whose loss fails": released(PrivateSelection([OUTPUT, OUTPUT], loss_bound=1.0, loss=fails), LOGISTIC, TWO),
    "a candidate whose losses fail": released(
        PrivateSelection([OUTPUT, OUTPUT], loss_bound=1.0, loss=lambda p, r: 0.0 * p[0]), InFloat32Alone(), TWO
    ),
    "losses that fail in float64, output": released(OUTPUT, InFloat32Alone(), TWO),
    "units that fail, chain": sampled(target=BadUnits()),
    "units that fail, hybrid": released(Hybrid(OPS(prior_precision=1.0), SGLD, steps=3), BadUnits(), TWO),
    "a candidate that is none": lambda ledger, folder: PrivateSelection([OUTPUT, "ops"], loss_bound=1.0),
    # Records.
    "another number of records": sampled({name: leaf[1:] for name, leaf in TWO.items()}),
    "records of other shapes, chain": sampled({"x": X[:, :2], "y": TWO["y"]}),
    "labels of another kind": sampled({"x": X, "y": TWO["y"] + 7}),
    "labels beyond their bound": released(AdaSSP(), LINEAR, {"x": X, "y": 9 * X[:, 0]}),
    "rows beyond their bound": released(AdaSSP(), LINEAR, {"x": 9 * X, "y": X[:, 0]}),
    "rows that are not finite": released(SufficientStatistics(), LINEAR, {"x": X * np.nan, "y": X[:, 0]}),
    "rows of text": sampled({"x": X.astype(str), "y": TWO["y"]}),
    "no labels": released(NoiseAware(), LOGISTIC, {"x": X}),
    "no records": sampled(None),
    # Options of a run.
    "out is a file": sampled(out=a_file),
    "out is below a file": sampled(out=lambda folder: a_file(folder) / "below"),
    "a checkpoint is a file": sampled(checkpoint=a_file),
    "the ledger lies in out": sampled(out=lambda folder: folder),
    "the checkpoint lies in out": sampled(
        out=lambda folder: folder / "o", checkpoint=lambda folder: folder / "o" / "c"
    ),
    "a known key": sampled(key=1),
    "a key that is none": sampled(key="secret"),
    "starts that nothing covers": sampled(starts=np.zeros((1, D))),
    "a mesh of a mechanism": released(OUTPUT, LOGISTIC, TWO, mesh=jax.make_mesh((1, 1), ("chain", "data"))),
    # Options of an estimator.
    "no epsilon": fitted(PrivateLogisticRegression, epsilon=None),
    "a delta of 1/N": fitted(PrivateLogisticRegression, delta=1 / N),
    "a level of 95": fitted(PrivateLogisticRegression, level=95),
    "a goal that is none": fitted(PrivateLogisticRegression, goal="inference"),
    "another number of rows": fitted(PrivateLogisticRegression, num_records=N - 1),
    "ranges of other columns": fitted(PrivateLogisticRegression, ranges=[(-1, 1)] * (D + 1)),
    "ranges that are no pairs": fitted(PrivateLogisticRegression, ranges=[(-1, 1), (0,), (0, 1)]),
    "three classes": fitted(PrivateLogisticRegression, classes=(0, 1, 2)),
    "a label range upside down": fitted(PrivateLinearRegression, y=REAL["y"], label_range=(1, -1)),
    "a largest count of zero": fitted(PrivatePoissonRegression, largest_count=0),
    "a known seed": fitted(PrivateLogisticRegression, random_state=0),
    "features that are not finite": fitted(PrivateLogisticRegression, x=X * np.inf),
    # Options of a fit.
    "a fit without epsilon": of_table(epsilon=None),
    "a fit by a formula of no column": of_table("y ~ c"),
    "a fit without a schema": of_table(schema=None),
    "a fit to levels that are not declared": of_table(frame=FRAME.assign(y=7)),
    "a fit of a model of other labels": of_table(target=LogisticRegression(num_features=9)),
}


@pytest.fixture
def ledger(tmp_path):
    terms = {"num_records": N, "adjacency": "replace_one", "epsilon": 4.0, "delta": 2e-3}
    return Ledger.init(tmp_path / "people.ledger", name="people", **terms)


def check_unspent(ledger):
    state = ledger.state()
    assert state.spent == 0
    assert not state.open
    assert {run.outcome for run in state.runs} <= {"void"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_refused_before_anything_is_charged(name, ledger, tmp_path):
    with pytest.raises((ValueError, OSError)) as refusal:
        REFUSED[name](ledger.path, tmp_path)
    assert not isinstance(refusal.value, OverBudget)
    check_unspent(ledger)


@pytest.mark.parametrize("name", NUMBERS)
def test_integer_noise_of_too_many_numbers_is_refused_by_the_plan(name, ledger, monkeypatch):
    mechanism, target, data = NUMBERS[name]
    monkeypatch.setattr(integer_noise, "MOST_NUMBERS", 2)
    with pytest.raises(InputError, match=r"a release has .* numbers, and integer noise is charged for 2 at most"):
        released(mechanism, target, data)(ledger.path, None)
    check_unspent(ledger)


def test_a_second_moment_of_3000_columns_is_refused_by_the_plan():
    wide = LinearRegression(num_features=3_000, row_bound=1.0, label_bound=1.0)
    with pytest.raises(InputError, match="has 4504500 numbers, and integer noise is charged for 4194304 at most"):
        SufficientStatistics().plan(wide, **PROMISE)


def test_draws_of_a_chain_that_memory_does_not_hold_are_refused(ledger, monkeypatch):
    monkeypatch.setattr(chain_checks, "memory", lambda: 8 * 4 * D - 1)
    with pytest.raises(InputError, match="draws: 4 draws of 3 numbers take more than"):
        sampled()(ledger.path, None)
    check_unspent(ledger)
    monkeypatch.setattr(chain_checks, "memory", lambda: 8 * 4 * D)
    sampled()(ledger.path, None)
    assert [run.outcome for run in ledger.state().runs] == ["void", "released"]


@pytest.mark.parametrize(
    "mechanism",
    [PrivateSelection([Chain(SGLD, steps=3)] * 2, loss_bound=1.0), Hybrid(OPS(prior_precision=1.0), SGLD, steps=3)],
    ids=["selection", "hybrid"],
)
def test_a_mechanism_whose_chain_is_miscompiled_is_refused_before_it_is_charged(mechanism, ledger, monkeypatch):
    def miscompiled(*_):
        raise MiscompiledError

    monkeypatch.setattr(steps, "check_steps", miscompiled)
    with pytest.raises(MiscompiledError):
        released(mechanism, LOGISTIC, TWO)(ledger.path, None)
    check_unspent(ledger)


def test_every_mechanism_is_among_them():
    listed = {type(mechanism) for mechanism, _, _ in NUMBERS.values()}
    # These release no sum of many numbers with Gaussian noise.
    assert listed | {OPS} >= set(MECHANISMS.values())
