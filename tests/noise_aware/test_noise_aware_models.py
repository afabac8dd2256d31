"""Noise-aware posteriors of NumPyro models: scores, releases, refusals, and intervals that cover."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import distributions as dist
from numpyro import handlers
from scipy.stats import norm

import dpmcmc
from dpmcmc.errors import UnsupportedCombination
from dpmcmc.inference.normal_score import Normal
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.mechanisms.noise_aware import model_draws
from dpmcmc.mechanisms.noise_aware.model_draws import Likelihood
from dpmcmc.mechanisms.noise_aware.model_rows import LOG, Metric, ModelRows
from dpmcmc.mechanisms.sums_in_blocks import float64
from dpmcmc.targets import TargetError, bind, from_numpyro
from dpmcmc.targets.numpyro.predictor import read
from tests.one_shot_replay import distance

GROUPS, D, N = 3, 2, 60
SHAPES = {
    "x": jax.ShapeDtypeStruct((D,), np.float32),
    "group": jax.ShapeDtypeStruct((), np.int32),
    "y": jax.ShapeDtypeStruct((), np.float32),
}
PROMISE = {"num_records": 5_000, "epsilon": 1.0, "delta": 1e-5}


def grouped(x, group, y=None):
    """Group effects that are named, coefficients that are positive, and an unknown scale."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("groups", GROUPS):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    effect = numpyro.deterministic("effect", mean + spread * z)
    w = numpyro.sample("w", dist.LogNormal(0.0, 0.5).expand([D]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(effect[group] + x @ w, scale), obs=y)


def logistic(x, group, y=None):
    """Group effects under a prior of their own."""
    spread = numpyro.sample("spread", dist.HalfNormal(1.0))
    with numpyro.plate("groups", GROUPS):
        effect = numpyro.sample("effect", dist.Normal(0.0, spread))
    w = numpyro.sample("w", dist.Normal(0.0, 1.0).expand([D]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=effect[group] + x @ w), obs=y)


def table(model, n, seed):
    """Records of a model, and the values of its sites that made them."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, D)).astype(np.float32)
    group = rng.integers(GROUPS, size=n).astype(np.int32)
    trace = handlers.trace(handlers.seed(model, jax.random.key(seed))).get_trace(x=jnp.asarray(x), group=group)
    truth = {name: np.asarray(site["value"]) for name, site in trace.items() if site["type"] != "plate"}
    return {"x": x, "group": group, "y": truth.pop("y").astype(np.float32)}, truth


@pytest.fixture(scope="module")
def target():
    return bind(from_numpyro(grouped), SHAPES)


@pytest.fixture(scope="module")
def reading(target):
    with float64():
        return read(target)


def metric(reading, seed=0):
    root = np.random.default_rng(seed).normal(size=(len(reading.centre),) * 2) / 3
    return Metric.of(root @ root.T + np.eye(len(root))).bounded(0.5)


# Scores.

LIMITS = [(0.5, 0.4), (3.0, 0.9), (1.0, 1.0), (1.0, 1.5), (2.0, 10.0), (np.inf, np.inf)]


def moments(score, limits):
    """Return E[ψ], E[ψ sᵀ], E[ψ ψᵀ] and the largest |ψ| at one η, by quadrature."""
    eta, r = np.array([[0.3, -0.7]]), norm.ppf((np.arange(100_000) + 0.5) / 100_000)
    y = eta[0, 0] + np.exp(eta[0, 1]) * r
    psi = score.residual(np.repeat(eta, len(y), axis=0), y, np.tile(limits, (len(y), 1)))
    own = np.stack([-r / np.exp(eta[0, 1]), 1 - r**2], axis=1)
    return psi.mean(axis=0), psi.T @ own / len(y), psi.T @ psi / len(y), np.abs(psi).max(axis=0)


@pytest.mark.parametrize("limits", LIMITS)
def test_normal_scores_are_bounded_unbiased_and_have_the_moments_that_are_stated(limits):
    mean, curvature, variance, largest = moments(Normal(), limits)
    law = Normal().law(np.array([[0.3, -0.7]]), np.array([limits]))
    assert np.all(largest <= np.array(limits) * (1 + 1e-12))
    assert np.allclose(mean, 0, atol=5e-4)
    assert np.allclose(curvature, law.curvature[0], atol=4e-3)
    assert np.allclose(variance, law.variance[0], atol=4e-3)


def bilinear(x, y=None):
    a, b = (numpyro.sample(name, dist.Normal(0.0, 1.0)) for name in "ab")
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(a * b * x[:, 0], 1.0), obs=y)


def bound(model):
    return bind(from_numpyro(model), {name: SHAPES[name] for name in ("x", "y")})


def sees_its_label(x, y=None):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(a * x[:, 0] + y, 1.0), obs=y)


def two_labels(x, y=None):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(a, 1.0), obs=y)
        numpyro.sample("v", dist.Normal(a, 1.0), obs=x[:, 0])


def heavy(x, y=None):
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.StudentT(3.0, a, 1.0), obs=y)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (sees_its_label, "depend on 'y', which it observes"),
        (two_labels, "observes several sites"),
        (heavy, "no bounded score of StudentT"),
    ],
)
def test_models_that_nothing_is_derived_for_are_refused_by_their_reason(model, said):
    with pytest.raises(TargetError, match=said):
        NoiseAware().plan(bound(model), **PROMISE)


def test_a_model_that_is_no_linear_function_of_its_sites_gets_no_intervals():
    plan = NoiseAware().plan(bound(bilinear), **PROMISE)
    assert plan.usable_for == ["prediction"]
    assert "numpyro.deterministic" in plan.verdict.to_json()["usable_for_reasons"]["intervals"]


# A refusal names the site, and the condition that it fails, and no other condition.

#: Priors of a positive number, whose log or whose place on the real line the log of a scale is linear in.
POSITIVE = {
    "uniform": dist.Uniform(0.0, 10.0),
    "far from zero": dist.Uniform(0.2, 3.0),
    "truncated": dist.TruncatedNormal(1.0, 2.0, low=0.0),
    "beta": dist.Beta(2.0, 3.0),
    "half normal": dist.HalfNormal(2.0),
    "inverse gamma": dist.InverseGamma(3.0, 2.0),
    "log normal": dist.LogNormal(0.0, 1.0),
}
#: Condition -> what a refusal by it says.
CONDITIONS = {
    "linear": "is no linear function of",
    "finite": "is not finite",
    "family": "no bounded score of",
    "one site": "observes several sites",
    "label": ", which it observes",
    "mask": "is masked",
    "one value": "several values a record",
    "no plate": "no plate over records",
    "plate": "its size must follow the batch",
    "runs": "fails on 2 synthetic records",
    "local": "latent variable of every record",
    "mixes": "mixes records",
    "prior": "depends on the records",
}


class Case(NamedTuple):
    """A linear model of random names, with at most one condition broken.

    Attributes:
        broken: name of the condition, or of a part that is no linear function; empty where none is.
        prior: of the scale.
        names: of the coefficients, the scale, another number, and the observed site.
    """

    broken: str
    prior: str
    names: tuple[str, ...]

    @property
    def said(self):
        """The condition, and the parts of its sentence."""
        a, b, s, c, y = self.names
        product, scales = ", ".join(sorted([a, b])), ", ".join(sorted([s, c]))
        location, scale = f"the location of site '{y}'", f"the log scale of site '{y}'"
        return {
            "product": ("linear", f"{location} is no linear function of {product},"),
            "curve": ("linear", f"{location} is no linear function of {b},"),
            "jump": ("linear", f"{location} is no linear function of {b},"),
            "sum of scales": ("linear", f"{scale} is no linear function of {scales},"),
            "spread of a row": ("linear", f"{scale} is no linear function of {scales},"),
            "negative scale": ("finite", f"{scale} is not finite for all that the prior draws,"),
            "family": ("family", f"StudentT (site '{y}')"),
            "one site": ("one site", f"({y}, {y}2)"),
            "label": ("label", f"site '{y}' depend on 'y'"),
            "mask": ("mask", f"site '{y}'"),
            "one value": ("one value", f"site '{y}'"),
            "no plate": ("no plate", f"'{y}'"),
            "plate": ("plate", "plate 'rows' has size 7"),
            "runs": ("runs", "TypeError"),
            "local": ("local", f"site '{c}'"),
            "mixes": ("mixes", "one by one"),
            "prior": ("prior", f"site '{s}'"),
        }[self.broken]

    def __call__(self, x, y=None):
        a, b, s, c, seen = self.names
        broken = self.broken
        with numpyro.plate("effects", 4):
            numpyro.sample("others", dist.Normal(0.0, 1.0))
        first, slope = (numpyro.sample(name, dist.Normal(0.0, 3.0)) for name in (a, b))
        prior = dist.HalfNormal(1.0 + y.mean() ** 2) if broken == "prior" else POSITIVE[self.prior]
        scale = numpyro.sample(s, prior)
        u = x[:, 0] - (x[:, 0].mean() if broken == "mixes" else 0.0)
        mean = {
            "product": lambda: first * slope * u,
            "curve": lambda: first + jnp.tanh(slope) * u,
            "jump": lambda: first + jnp.round(slope) * u,
            "label": lambda: first + slope * u + y,
            "runs": lambda: first + slope * u + "no number",
        }.get(broken, lambda: first + slope * u)()
        if broken in ("sum of scales", "spread of a row"):
            more = numpyro.sample(c, dist.HalfNormal(1.0))
            scale = scale + more * (u**2 if broken == "spread of a row" else 1.0)
        if broken == "negative scale":
            scale = scale * numpyro.sample(c, dist.Normal(0.0, 1.0))
        law = dist.StudentT(3.0, mean, scale) if broken == "family" else dist.Normal(mean, scale)
        if broken == "one value":
            law, y = dist.Normal(jnp.stack([mean] * 2, -1), scale).to_event(1), jnp.stack([y] * 2, -1)
        if broken == "mask":
            law = law.mask(x[:, 1] > 0)
        if broken == "no plate":
            numpyro.sample(seen, law, obs=y)
            return
        with numpyro.plate("rows", 7 if broken == "plate" else x.shape[0]):
            if broken == "local":
                law = dist.Normal(numpyro.sample(c, dist.Normal(0.0, 1.0)) + mean, scale)
            numpyro.sample(seen, law, obs=y)
            if broken == "one site":
                numpyro.sample(f"{seen}2", law, obs=x[:, 1])

    def __hash__(self):
        return id(self)


def cases():
    """Each break once, and each prior where none is, with names and the prior drawn at random."""
    rng = np.random.default_rng(20)
    broken = [name for names in BROKEN for name in names.split(", ")]
    for name, prior in [*((name, None) for name in broken), *(("", prior) for prior in POSITIVE)]:
        names = tuple(f"{letter}{rng.integers(100)}" for letter in rng.permutation(list("bcdefgz"))[:5])
        yield Case(name, prior or str(rng.choice(list(POSITIVE))), names)


BROKEN = (
    "product, curve, jump, sum of scales, spread of a row, negative scale",
    "family, one site, label, mask, one value, no plate, plate, runs, local, mixes, prior",
)


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: f"{case.broken or 'whole'}, {case.prior}")
def test_a_refusal_of_a_linear_model_names_the_condition_that_fails(case):
    try:
        plan = NoiseAware().plan(bound(case), **PROMISE)
    except TargetError as error:
        said = str(error)
    else:
        said = "" if "intervals" in plan.usable_for else plan.verdict.reasons["intervals"]
    condition, part = case.said if case.broken else ("", "")
    assert part in said
    assert [name for name, words in CONDITIONS.items() if words in said] == [condition] * bool(condition)
    assert bool(said) == bool(case.broken)


@pytest.mark.slow
def test_a_scale_under_a_uniform_prior_is_found():
    """A line whose residuals have an unknown scale, within bounds: NumPyro issue 1309."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(5000, D)).astype(np.float32)
    y = (1 + 2 * x[:, 0] + rng.normal(0, 0.5, 5000)).astype(np.float32)
    plan = NoiseAware(draws=400).plan(
        bound(Case("", "uniform", tuple("abscW"))), num_records=5000, epsilon=3.0, delta=1e-5
    )
    draws = dpmcmc.sample(plan, {"x": x, "y": y}).draws
    for name, truth in (("a", 1.0), ("b", 2.0), ("s", 0.5)):
        assert abs(draws[name][0].mean() - truth) < 5 * draws[name][0].std()
        assert draws[name][0].std() < 0.1


def far_line(x, y=None):
    a = numpyro.sample("a", dist.Normal(0, 20))
    b = numpyro.sample("b", dist.Normal(0, 5))
    s = numpyro.sample("s", dist.HalfNormal(5))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(a + b * x, s), obs=y)


@pytest.mark.parametrize(("centre", "called"), [(1.0, True), (15.0, False)])
def test_gradients_that_do_not_reach_the_posterior_are_told(centre, called):
    """A label 30 of its standard deviations from the prior's mean: the scale is far off when the gradients end."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 20_000).astype(np.float32)
    records = {"x": x, "y": (centre + 2 * x + 0.5 * rng.normal(size=20_000)).astype(np.float32)}
    target = bind(from_numpyro(far_line), dpmcmc.targets.record_shapes(records))
    plan = NoiseAware().plan(target, num_records=20_000, epsilon=10.0, delta=1e-6)
    result = dpmcmc.sample(plan, records, progress=False)
    draws = result.draws["s"][0]
    assert ("intervals" in result.usable_for) is called
    assert bool(abs(draws.mean() - 0.5) < 4 * draws.std()) is called
    assert called or "posterior standard deviations from where they were" in result.verdict.reasons["intervals"]


@pytest.mark.parametrize("option", [{"prior_scale": "evidence"}, {"covariance": "sandwich"}, {"gram_share": 0.2}])
def test_an_option_that_a_model_does_not_take_is_refused_alone(target, option):
    (name,) = option
    with pytest.raises(UnsupportedCombination, match=f"^{name}: ") as refused:
        NoiseAware(**option).plan(target, **PROMISE)
    assert not any(other in str(refused.value) for other in {"prior_scale", "covariance", "gram_share"} - {name})


def test_what_a_plan_of_a_model_cannot_take_is_refused(target):
    with pytest.raises(UnsupportedCombination, match=r"adjacency: .* take zero_out"):
        NoiseAware().plan(target, **PROMISE, adjacency="add_remove")
    with pytest.raises(UnsupportedCombination, match="covariance: noise_aware takes none on a NumPyro model"):
        NoiseAware(covariance="sandwich").plan(target, **PROMISE)
    with pytest.raises(TargetError, match="not bound to records yet"):
        NoiseAware().plan(from_numpyro(grouped), **PROMISE)
    few = NoiseAware().plan(target, **PROMISE | {"num_records": 300})
    assert few.usable_for == ["prediction"]
    assert "noise of the curvature of 6 numbers" in few.verdict.to_json()["usable_for_reasons"]["intervals"]
    plan = NoiseAware().plan(target, **PROMISE)
    assert plan.usable_for == ["prediction", "intervals"]
    assert 0.999 < plan.guarantee.epsilon <= 1.0


# Releases.

WORST = [
    {"y": 1e30},
    {"y": -1e30, "x": [1e15, -1e15]},
    {"y": np.inf},
    {"x": [np.nan, 0.0]},
    {"group": 2, "y": 0.0, "x": [1e-20, 0.0]},
]


def test_a_replaced_record_moves_no_release_beyond_what_is_charged(reading):
    """The farthest neighbours that were thought of, at two points; all other records keep their bits."""
    records, _ = table(grouped, N, 1)
    here = metric(reading)
    for tau in (np.zeros(len(reading.centre)), np.random.default_rng(5).normal(size=len(reading.centre))):
        moved = {"scores": 0.0, "curvature": 0.0, "spread": 0.0, "log": 0.0}
        rows = ModelRows(reading, Normal(), records)
        own = here._replace(clip=np.inf)
        scores, (gram, spread), log = rows.scores(tau, here), rows.curvature(tau, here), rows.log_leverage(tau, here)
        own_gram = rows.curvature(tau, own)[0]
        for worst in WORST:
            other = {name: leaf.copy() for name, leaf in records.items()}
            for name, value in worst.items():
                other[name][7] = value
            there = ModelRows(reading, Normal(), other)
            gram_there, spread_there = there.curvature(tau, here)
            found = {
                "scores": distance(there.scores(tau, here), scores),
                "curvature": max(distance(gram_there, gram), distance(there.curvature(tau, own)[0], own_gram)),
                "spread": distance(spread_there, spread),
                "log": distance(there.log_leverage(tau, here), log),
            }
            assert all(np.isfinite(list(found.values())))
            moved = {name: max(moved[name], found[name]) for name in moved}
        assert moved["scores"] <= 2 + 1e-12
        assert moved["scores"] > 0.5
        assert moved["curvature"] <= np.sqrt(2) + 1e-12
        assert moved["spread"] <= 1 + 1e-12
        assert moved["log"] <= 2 * LOG


def test_scores_have_mean_zero_and_the_curvature_that_is_released(reading):
    """Labels drawn again and again at one t: the mean score there, and at a point nearby, in standard errors."""
    rng, repeats = np.random.default_rng(3), 4000
    t, here = reading.centre, metric(reading)
    tau = np.zeros(len(t))
    records, _ = table(grouped, 5, 2)
    many = {name: np.repeat(leaf, repeats, axis=0) for name, leaf in records.items()}
    with float64():
        eta = np.repeat(np.asarray(reading.program(t, records)[0]), repeats, axis=0)
    many["y"] = (eta[:, 0] + np.exp(eta[:, 1]) * rng.normal(size=len(eta))).astype(np.float32)
    rows = ModelRows(reading, Normal(), many)
    gram, spread = (one.floats for one in rows.curvature(tau, here))
    size = np.sqrt(spread[0])
    assert np.linalg.norm(rows.scores(tau, here).floats) < 4 * size
    step = 0.15 * np.ones(len(t))
    expected = gram @ (here.root @ step) * here.leverage / here.clip
    assert np.linalg.norm(expected) > 15 * size
    assert np.linalg.norm(rows.scores(tau + step, here).floats - expected) < 4 * size + 0.15 * np.linalg.norm(expected)


@pytest.mark.slow
def test_draws_follow_the_prior_times_the_likelihood():
    """A normal prior and a normal likelihood of two numbers, whose posterior is known."""

    def normal(x, y=None):
        w = numpyro.sample("w", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    with float64():
        found = read(bound(normal))
    slope, seen = np.array([[1.0, 0.5], [0.0, 2.0]]), np.array([1.0, -1.0])
    drawn, places = model_draws.draws(found, Likelihood(seen, slope), np.zeros(2), 4000, jax.random.key(0))
    precision = np.eye(2) / 4 + slope.T @ slope
    assert np.allclose(drawn["w"], places, atol=1e-6)
    assert np.allclose(np.cov(places.T), np.linalg.inv(precision), atol=0.06)
    assert np.allclose(places.mean(axis=0), np.linalg.solve(precision, slope.T @ seen), atol=0.06)


@pytest.mark.slow
def test_intervals_of_a_hierarchical_model_cover():
    """Truths from the prior, 8 tables of 4,000 at ε = 3: 90 % intervals of six numbers each."""
    plan = NoiseAware(draws=400).plan(bind(from_numpyro(logistic), SHAPES), num_records=4000, epsilon=3.0, delta=1e-5)
    inside = []
    for seed in range(8):
        records, truth = table(logistic, 4000, seed)
        draws = dpmcmc.sample(plan, records).draws
        for name, value in truth.items():
            low, high = np.quantile(draws[name][0], [0.05, 0.95], axis=0)
            inside += list(np.ravel((value >= low) & (value <= high)))
    assert len(inside) == 48
    assert np.mean(inside) >= 0.72
