"""NumPyro models as targets: the same densities as NumPyro's own, and the models that are no sum over records."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import distributions as dist
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import constrain_fn, potential_energy

import dpmcmc
from dpmcmc.errors import DataError
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.targets import TargetError, bind, check, from_numpyro
from tests.targets.test_targets import N, private_run

D, GROUPS, K = 3, 4, 5
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D)).astype(np.float32) / 2
COUNTS = {"x": X, "y": RNG.poisson(1.0, size=N)}
REALS = {"x": X, "y": RNG.normal(size=N).astype(np.float32)}
LABELS = {"x": X, "y": RNG.integers(2, size=N)}
CLASSES = {"x": X, "y": RNG.integers(K, size=N)}


def weights(x, scale=1.0):
    return numpyro.sample("w", dist.Normal(0.0, scale).expand([x.shape[1]]).to_event(1))


def normal(mean, y, scale=1.0):
    """The plate over records, and the one site that is observed in it."""
    with numpyro.plate("records", mean.shape[0]):
        numpyro.sample("y", dist.Normal(mean, scale), obs=y)


def poisson(x, y):
    """Poisson regression with the prior's scale unknown: a site that is constrained to be positive."""
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    w = weights(x, scale)
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)


def robust(x, y=None):
    """Several constrained sites, one on a simplex, one whose support depends on another."""
    w = weights(x)
    low = numpyro.sample("low", dist.Uniform(0.5, 1.0))
    high = numpyro.sample("high", dist.Uniform(low, 2.0))
    mix = numpyro.sample("mix", dist.Dirichlet(jnp.ones(3)))
    df = numpyro.deterministic("df", 2.0 + high)
    numpyro.deterministic("average", jnp.mean(x))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.StudentT(df, x @ w + mix[0], low), obs=y)


def hierarchical(x, group, y):
    spread = numpyro.sample("spread", dist.HalfCauchy(1.0))
    with numpyro.plate("groups", GROUPS):
        offset = numpyro.sample("offset", dist.Normal(0.0, spread))
    w = weights(x)
    normal(x @ w + offset[group], y)


def masked(x, seen, y):
    w = weights(x)
    with numpyro.plate("records", x.shape[0]), handlers.mask(mask=seen):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def bernoulli(x, y=None):
    w = weights(x)
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def categorical(x, y=None):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([x.shape[1], K]).to_event(2))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Categorical(logits=x @ w), obs=y)


def two_outcomes(x, y, z):
    w = weights(x)
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)
        numpyro.sample("z", dist.Exponential(jnp.exp(x @ w)), obs=z)


reparametrised = handlers.reparam(poisson, {"w": LocScaleReparam(0.0)})
MODELS = {
    "poisson": (poisson, COUNTS),
    "robust": (robust, REALS),
    "hierarchical": (hierarchical, {**REALS, "group": RNG.integers(GROUPS, size=N)}),
    "masked": (masked, {**REALS, "seen": RNG.random(N) < 0.7}),
    "bernoulli": (bernoulli, LABELS),
    "categorical": (categorical, CLASSES),
    "two_outcomes": (two_outcomes, {**REALS, "z": RNG.exponential(size=N).astype(np.float32)}),
    "reparametrised": (reparametrised, COUNTS),
}


def bound(model, data, **options):
    return bind(from_numpyro(model, **options), jax.tree.map(lambda leaf: leaf[0], data))


def random_params(target, seed=0):
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(target.init, jax.random.key(0))
    return {name: jnp.asarray(rng.normal(size=value.shape), jnp.float32) for name, value in shapes.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MODELS))
def test_densities_and_gradients_add_up_to_numpyros_potential(name):
    model, data = MODELS[name]
    target, data = bound(model, data), jax.tree.map(jnp.asarray, data)

    def potential(params):
        each = jax.vmap(lambda record: target.log_likelihood(params, record))(data)
        return -jnp.sum(each) - target.log_prior(params)

    for seed in range(2):
        params = random_params(target, seed)
        ours = jax.jit(jax.value_and_grad(potential))(params)
        theirs = jax.jit(jax.value_and_grad(lambda p: potential_energy(model, (), data, p)))(params)
        np.testing.assert_allclose(ours[0], theirs[0], rtol=2e-5)
        for name in params:
            np.testing.assert_allclose(ours[1][name], theirs[1][name], rtol=1e-3, atol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["poisson", "robust", "hierarchical", "reparametrised"])
def test_constrained_values_are_numpyros(name):
    model, data = MODELS[name]
    target = bound(model, data)
    params = random_params(target)
    wanted = constrain_fn(model, (), jax.tree.map(jnp.asarray, data), params, return_deterministic=True)
    wanted.pop("average", None)  # a function of the records, so no property of the parameters
    got = jax.jit(target.constrain)(params)
    assert set(got) == set(wanted)
    for site in wanted:
        np.testing.assert_allclose(got[site], wanted[site], rtol=1e-6)


def test_chains_start_at_zero_or_in_a_box_whatever_the_records():
    zeros, box = (bound(*MODELS["robust"], init_radius=radius) for radius in (0.0, 2.0))
    assert all((value == 0).all() for value in zeros.init(jax.random.key(0)).values())
    first, second = (jax.jit(box.init)(jax.random.key(seed)) for seed in (0, 1))
    for name in first:
        assert first[name].dtype == jnp.float32
        assert (jnp.abs(first[name]) < 2).all()
        assert (first[name] != second[name]).all()


@pytest.mark.parametrize(
    ("name", "classes", "mean"),
    [
        ("poisson", None, lambda w, x: np.exp(x @ w)),
        ("bernoulli", 2, lambda w, x: 1 / (1 + np.exp(-x @ w))),
        ("categorical", K, lambda w, x: np.exp(x @ w) / np.exp(x @ w).sum(axis=1, keepdims=True)),
    ],
)
def test_predictions_are_means_or_class_probabilities(name, classes, mean):
    target = bound(*MODELS[name])
    params = random_params(target)
    values = {name: np.asarray(value, np.float64) for name, value in jax.jit(target.constrain)(params).items()}
    np.testing.assert_allclose(jax.jit(target.predict)(params, X[:50]), mean(values["w"], X[:50]), rtol=1e-4)
    assert target.num_classes == classes


def cauchy(x, y):
    w = weights(x)
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Cauchy(x @ w, 1.0), obs=y)


def dose(age, given, response=None):
    w = weights(age)
    effect = numpyro.sample("effect", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", age.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=age @ w + effect * given), obs=response)


def test_a_result_predicts_from_the_models_own_arguments_by_name():
    given = RNG.integers(2, size=N)
    plan = dpmcmc.plan(from_numpyro(dose), num_records=N, sampler=dpmcmc.SGLD(step_size=0.1), steps=20, privacy=None)
    draws = {"w": RNG.normal(size=(1, 20, D)), "effect": RNG.normal(size=(1, 20))}
    result = dpmcmc.Result(plan, draws, draws, None, None, {})
    found = result.predict(age=X[:5], given=given[:5])
    logits = draws["w"][0] @ X[:5].T + draws["effect"][0][:, None] * given[:5]
    np.testing.assert_allclose(found, (1 / (1 + np.exp(-logits))).mean(axis=0), rtol=1e-5)
    for arguments, said in [
        ({"x": X[:5]}, r"model dose\(age, given, response=None\) has no argument 'x'"),
        ({"age": X[:5]}, "depends on given too; give it by name"),
        ({"age": X[:5], "given": given[:4]}, "one row each for every row"),
        ({"age": X[:5, :2], "given": given[:5]}, "predict fails on rows of shape"),
    ]:
        with pytest.raises(TargetError, match=said):
            result.predict(**arguments)


@pytest.mark.parametrize(
    ("model", "data", "reason"),
    [
        (*MODELS["hierarchical"], "the mean of site 'y' depends on more of a record than x"),
        (*MODELS["two_outcomes"], "observes several sites"),
        (cauchy, REALS, "the mean of site 'y' is not finite"),
    ],
)
def test_models_without_a_prediction_from_x_have_none_and_say_why(model, data, reason):
    target = bound(model, data)
    assert getattr(target, "predict", None) is None
    with pytest.raises(AttributeError, match=reason):
        target.predict(None, X)
    assert target.num_classes is None


@pytest.mark.slow
def test_a_model_runs_privately():
    draws = private_run(from_numpyro(poisson), COUNTS).draws
    assert {name: value.shape for name, value in draws.items()} == {"scale": (2, 5), "w": (2, 5, D)}


def no_plate(x, y):
    numpyro.sample("y", dist.Normal(x @ weights(x), 1.0), obs=y)


def subsampled(x, y):
    w = weights(x)
    with numpyro.plate("records", 1000, subsample_size=x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def hard_coded(x, y):
    w = weights(x)
    with numpyro.plate("records", N):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def hard_coded_unseen(x, y):
    """Nothing in the plate has the batch's size, so tracing does not fail."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", N):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def nested(x, y):
    w = weights(x)
    with numpyro.plate("outcomes", 2, dim=-2), numpyro.plate("records", x.shape[0], dim=-1):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=jnp.stack([y, y]))


def two_plates(x, y):
    w = weights(x)
    for name in ("first", "second"):
        with numpyro.plate(name, x.shape[0]):
            numpyro.sample(f"y_{name}", dist.Normal(x @ w, 1.0), obs=y)


def local(x, y):
    w = weights(x)
    with numpyro.plate("records", x.shape[0]):
        z = numpyro.sample("z", dist.Normal(x @ w, 1.0))
        numpyro.sample("y", dist.Normal(z, 1.0), obs=y)


def local_without_plate(x, y):
    z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([x.shape[0]]).to_event(1))
    normal(z, y)


def missing_values(x, y):
    w = weights(x)
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y, obs_mask=y > 0)


def outside(x, y):
    w = weights(x)
    numpyro.sample("total", dist.Normal(jnp.sum(w), 1.0), obs=jnp.sum(y))
    normal(x @ w, y)


def discrete(x, y):
    k = numpyro.sample("k", dist.Bernoulli(0.5))
    w = weights(x)
    normal(k * (x @ w), y)


def with_factor(x, y):
    w = weights(x)
    numpyro.factor("penalty", -jnp.sum(jnp.abs(w)))
    normal(x @ w, y)


def with_param(x, y):
    scale = numpyro.param("scale", 1.0)
    w = weights(x)
    normal(x @ w, y, scale)


def with_scale(x, y):
    w = weights(x)
    with numpyro.plate("records", x.shape[0]), handlers.scale(scale=10.0):
        numpyro.sample("y", dist.Normal(x @ w, 1.0), obs=y)


def with_randomness(x, y):
    w = weights(x)
    keep = jax.random.bernoulli(numpyro.prng_key(), 0.5, (x.shape[1],))
    normal((x * keep) @ w, y)


def with_scan(x, y):
    w = weights(x)
    scan(lambda carry, t: (carry, numpyro.sample("z", dist.Normal(0.0, 1.0))), 0.0, jnp.arange(3))
    normal(x @ w, y)


def standardised(x, y):
    w = weights(x)
    normal(x @ w, (y - y.mean()) / (y.std() + 1e-3))


def column_against_row(x, y):
    """The classic slip: (n,) means against (n, 1) outcomes make n² terms."""
    w = weights(x)
    normal(x @ w, y[:, None])


def prior_from_data(x, y):
    w = weights(x, 1.0 + y.std())
    normal(x @ w, y)


def prior_from_size(x, y):
    w = weights(x, 1.0 / x.shape[0])
    normal(x @ w, y)


def nothing_latent(x, y):
    normal(x[:, 0], y)


def nothing_observed(x, y):
    w = weights(x)
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ w, 1.0))


def fails(x, y):
    w = weights(x)
    if y[0] > 0:
        w = -w
    normal(x @ w, y)


REFUSED = [
    (no_plate, "no plate over records: put the observed site 'y' inside"),
    (subsampled, "plate 'records' has a subsample_size: remove it"),
    (hard_coded, "plate 'records' has size 200 on a batch of 2 records: its size must follow the batch"),
    (hard_coded_unseen, "plate 'records' has size 200 on a batch of 2 records: its size must follow the batch"),
    (nested, r"site 'y' is inside more than one plate \(.*outcomes.*\): keep the one over records"),
    (two_plates, r"more than one plate over records \(first, second\)"),
    (local, "site 'z' is a latent variable of every record"),
    (local_without_plate, "latent site 'z' grows with the batch"),
    (missing_values, "is a latent variable of every record"),
    (outside, "site 'total' is observed outside the plate"),
    (discrete, "latent site 'k' is discrete"),
    (with_factor, r"numpyro.factor\('penalty'\) cannot be told apart by record"),
    (with_param, "site 'scale' is a numpyro.param, which has no prior"),
    (with_scale, "site 'y' is under numpyro.handlers.scale: remove it"),
    (with_randomness, "draws random numbers"),
    (with_scan, "control_flow is not supported"),
    (standardised, "mixes records: 3 synthetic ones"),
    (column_against_row, "mixes records"),
    (prior_from_data, "prior of site 'w' depends on the records"),
    (prior_from_size, "prior of site 'w' depends on the records"),
    (nothing_latent, "no latent site"),
    (nothing_observed, "observes nothing"),
    (fails, "fails on 2 synthetic records"),
    (lambda x, counts: None, "cannot be called with the leaves of a record, x, y"),
]


@pytest.mark.parametrize(("model", "reason"), REFUSED, ids=[model.__name__ for model, _ in REFUSED])
def test_models_that_are_no_sum_over_records_are_refused_in_one_sentence(model, reason):
    with pytest.raises(TargetError, match=reason) as caught:
        check(from_numpyro(model), REALS)
    assert "fails on records of shapes" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_model_is_refused_before_a_run_starts():
    plan = dpmcmc.plan(from_numpyro(local), num_records=N, sampler=dpmcmc.SGLD(step_size=0.1), steps=2, privacy=None)
    with pytest.raises(TargetError, match="latent variable of every record"):
        dpmcmc.sample(plan, REALS)


@pytest.mark.parametrize("data", [X, {"x": {"deep": X}, "y": REALS["y"]}])
def test_records_must_be_a_dict_of_arrays(data):
    with pytest.raises(TargetError, match="must be a dict of arrays"):
        check(from_numpyro(poisson), data)


@pytest.mark.parametrize(
    ("model", "data", "value", "site"),
    [(poisson, COUNTS, -1, "y"), (categorical, CLASSES, -2, "y"), (bernoulli, LABELS, 2, "y")],
)
def test_values_that_cannot_occur_are_refused_and_their_rows_kept(model, data, value, site):
    check(from_numpyro(model), data)
    data = {**data, "y": data["y"].copy()}
    data["y"][7] = value
    with pytest.raises(DataError, match=f"^{site}: some rows are outside the support") as caught:
        check(from_numpyro(model), data)
    assert caught.value.rows == (7,)
    assert "7" not in str(caught.value)


def test_masked_values_may_be_anything():
    seen = np.ones(N, bool)
    seen[3] = False

    def counts(x, seen, y):
        w = weights(x)
        with numpyro.plate("records", x.shape[0]), handlers.mask(mask=seen):
            numpyro.sample("y", dist.Poisson(jnp.exp(x @ w)), obs=y)

    data = {**COUNTS, "seen": seen, "y": np.where(seen, COUNTS["y"], -99)}
    check(from_numpyro(counts), data)
    target = bound(counts, data)
    record = jax.tree.map(lambda leaf: jnp.asarray(leaf[3]), data)
    gradient = jax.jit(jax.grad(target.log_likelihood))(random_params(target), record)
    np.testing.assert_array_equal(gradient["w"], 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: from_numpyro(3), "^model must be a NumPyro function"),
        (lambda: from_numpyro(poisson, init_radius=-1.0), "^init_radius must be a finite number >= 0"),
        (lambda: from_numpyro(poisson, gradient_bound=0.0), "^gradient_bound must be a finite number > 0"),
        (lambda: from_numpyro(Unhashable()), "^model must be hashable"),
    ],
)
def test_wrong_arguments_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@dataclasses.dataclass
class Unhashable:
    scale: float = 1.0

    def __call__(self, x, y):
        poisson(x, y)


def test_a_target_that_is_not_bound_says_how_to_bind_it():
    target = from_numpyro(poisson)
    with pytest.raises(TargetError, match=r"dpmcmc.targets.bind\(target, one_record\) .* a dict of x, y that"):
        target.init(jax.random.key(0))
    with pytest.raises(TargetError, match=r"dpmcmc.targets.bind\(target, one_record\)"):
        NoiseAware().plan(target, num_records=N, epsilon=1.0, delta=1e-5)
    assert getattr(target, "predict", None) is None
    assert target.num_classes is None
