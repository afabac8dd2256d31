"""A second moment beside the gradient: one minibatch is one query, and what is charged is what is released."""

import itertools
import json
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.engine import program
from dpmcmc.engine.result import privacy_json
from dpmcmc.planning import making
from dpmcmc.privacy import FixedSize, Full, Guarantee, Poisson, Privacy, UnsupportedCombination
from dpmcmc.privacy.accounting import ADJACENCIES, TRACE_ACCOUNTANTS
from dpmcmc.privacy.accounting.account import account
from dpmcmc.privacy.accounting.charging import Schedule, charged_guarantee
from dpmcmc.privacy.accounting.float_excess import KAPPA
from dpmcmc.privacy.accounting.gaussian import gaussian_epsilon
from dpmcmc.privacy.calibration import closed_form
from dpmcmc.privacy.query import moment_sum, symmetric
from dpmcmc.privacy.query.metric import PublicMatrix
from dpmcmc.privacy.query.query import GradientQuery, PrivateGradient, StepRandomness, drawn_noise
from dpmcmc.privacy.query.second_moment import PrivateSecondMoment, SecondMoment, asked, multiples
from dpmcmc.privacy.query.selection import selector
from dpmcmc.privacy.query.symmetric import DENSE
from dpmcmc.samplers import SGFS
from tests.pairs import slow_pairs

D = 5
SPLIT = {"b": ((), 1), "w": ((2, 2), 4)}  # the same five parameters as a nested pytree


class Given:
    """−∇ log-likelihood of a record is its g, whatever the parameters; the prior is flat."""

    gradient_bound = None

    def init(self, key):
        return jnp.zeros(D)

    def log_prior(self, params):
        return 0.0 * sum(jnp.sum(leaf) for leaf in jax.tree.leaves(params))

    def log_likelihood(self, params, record):
        return -record["g"] @ jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(params)])


def nested_zeros():
    return {"outer": {name: jnp.zeros(shape) for name, (shape, _) in SPLIT.items()}}


def charged(second: SecondMoment, z: float = 1.0) -> list[float]:
    """Noise multiplier of each event of a step whose gradient has z."""
    return [z * multiple / (1 + KAPPA) for multiple in multiples(second)]


# --- what one minibatch costs -----------------------------------------------------------------------------


def golden(rate, z, steps, how, delta=1e-6, adjacency="add_remove", n=10_000):
    """ε of gradient and second moment at z each."""
    queries = Schedule(np.full(steps, z), Poisson(rate * n), n, multiples=how)
    return charged_guarantee(queries, Privacy(delta=delta, adjacency=adjacency, calibrator="free"))[0]


@pytest.mark.parametrize(
    ("rate", "z", "steps", "one", "two"), [(0.01, 1, 1000, 5.29, 2.96), (0.001, 0.8, 2000, 2.99, 0.68)]
)
def test_gradient_and_second_moment_of_one_minibatch_are_one_subsampled_gaussian(rate, z, steps, one, two):
    """Measured at δ = 1e-6. Composing the two as if their minibatches were independent says half as much, or less."""
    assert golden(rate, z, steps, multiples(SecondMoment(1.0))).epsilon == pytest.approx(one, rel=0.01)
    independent = golden(rate, z, steps, (1.0, 1.0))
    assert independent.epsilon == pytest.approx(two, rel=0.01)
    # The one event is the exact whitened pair: both kinds of noise at z are one query at z/√2.
    right = golden(rate, z * 2**-0.5, steps, (1.0,))
    assert golden(rate, z, steps, multiples(SecondMoment(1.0))).epsilon == pytest.approx(right.epsilon, rel=1e-3)


def test_two_minibatches_are_two_events_and_cost_their_composition():
    z, ratio, steps, n = 0.9, 2.0, 300, 10_000
    second = SecondMoment(ratio, own_batch=True)
    both = golden(0.01, z, steps, multiples(second))
    queries = [e for e in both.events if e.mechanism == "poisson_gaussian"]
    assert sorted(e.noise_multiplier for e in queries) == pytest.approx(sorted(charged(second, z)), rel=1e-12)
    assert [e.count for e in queries] == [steps, steps]
    assert [e.count for e in both.events if e.mechanism == "batch_overflow"] == [2 * steps]
    settings = {"steps": steps, "sampling": Poisson(100.0), "num_records": n, "delta": 1e-6, "adjacency": "add_remove"}
    alone = [account(m * z, **settings) for m in multiples(second)]
    assert both.epsilon == pytest.approx(alone[0].compose(alone[1]).epsilon, rel=2e-3)


def test_a_second_moment_is_never_charged_at_the_square_root_of_two():
    """‖ccᵀ − ddᵀ‖ <= √2 C² bounds one distance, not the pair of mixtures that Poisson sampling compares.

    Replacing a record by one without gradient is a replacement, so what that alone costs (remove) is a lower bound.
    """
    settings = {"steps": 1000, "sampling": Poisson(10.0), "num_records": 10_000, "delta": 1e-6}
    at_root_two = account(0.5 * 2**0.5, adjacency="replace_one", **settings).epsilon
    lower_bound = account(0.5, adjacency="zero_out", **settings).epsilon
    assert at_root_two == pytest.approx(0.95, abs=0.01)
    assert lower_bound == pytest.approx(4.24, abs=0.01)
    assert account(0.5, adjacency="replace_one", **settings).epsilon >= lower_bound


@pytest.mark.parametrize("ratio", [1e-3, 0.3, 1.0, 3.0, 1e6])
def test_the_charge_covers_the_norm_of_the_whitened_pair_in_float32(ratio):
    """‖c‖ <= (1 + κ)C and ‖ccᵀ‖ <= (1 + κ)²C², so the pair's norm is at most 1/z of its event."""
    (z,) = charged(SecondMoment(ratio))
    assert z * math.hypot(1 + KAPPA, (1 + KAPPA) ** 2 / ratio) <= 1 + 1e-12
    first, own = charged(SecondMoment(ratio, own_batch=True))
    assert first * (1 + KAPPA) <= 1 + 1e-12
    assert own * (1 + KAPPA) ** 2 / ratio <= 1 + 1e-12


# --- plans ------------------------------------------------------------------------------------------------


#: A step so large that the sampler's own noise never suffices.
LARGE = 1e9


def query_plan(sampling=None, *, steps=40, chains=1, n=400, ratio=3.0, own=False, sampler=None, **privacy):
    privacy = {"epsilon": 2.0, "delta": 1e-4, "adjacency": "replace_one"} | privacy
    return dpmcmc.plan(
        Given(), num_records=n, sampling=sampling, steps=steps, chains=chains, privacy=Privacy(**privacy),
        sampler=sampler or SGFS(step_size=LARGE, fisher="query", noise_ratio=ratio, own_batch=own),
    )  # fmt: skip


def queries_of(plan) -> list:
    return [e for e in plan.guarantee.events if e.mechanism != "batch_overflow"]


def one_event_per_minibatch(plan) -> None:
    """What every plan with a second query must satisfy, from first principles."""
    second = asked(plan.sampler.queries)
    z = plan.noise_multipliers
    assert np.all(z == z[0])
    expected = sorted(charged(second, float(z[0])))
    queries = queries_of(plan)
    assert sorted(e.noise_multiplier for e in queries) == pytest.approx(expected, rel=1e-12)
    assert [e.count for e in queries] == [plan.steps * plan.chains] * len(expected)
    assert all(e.rate >= plan.sampling.rate(plan.num_records) for e in queries)


SCHEMES = {"full": Full(), "poisson": Poisson(40.0), "fixed_size": FixedSize(40)}
CHARGED = list(itertools.product(SCHEMES, map(str, ADJACENCIES), TRACE_ACCOUNTANTS))
UNDERIVED = [c for c in CHARGED if c[0] == "fixed_size" and (c[1] != "replace_one" or c[2] == "pld")]


@pytest.mark.parametrize(("scheme", "adjacency", "accountant"), UNDERIVED)
def test_a_plan_of_a_pair_without_a_derivation_is_refused(scheme, adjacency, accountant):
    with pytest.raises(UnsupportedCombination, match="fixed_size"):
        query_plan(SCHEMES[scheme], adjacency=adjacency, accountant=accountant)


@pytest.mark.parametrize(("scheme", "adjacency", "accountant"), slow_pairs([c for c in CHARGED if c not in UNDERIVED]))
def test_a_plan_charges_the_pair_under_every_scheme_adjacency_and_accountant(scheme, adjacency, accountant):
    sampling = SCHEMES[scheme]
    epsilon = {"advanced": 8.0, "rdp": 2.0, "pld": 2.0}[accountant]
    plan = query_plan(sampling, steps=6, chains=2, adjacency=adjacency, accountant=accountant, epsilon=epsilon)
    one_event_per_minibatch(plan)
    assert 0.98 * epsilon <= plan.guarantee.epsilon <= epsilon
    same = account(
        plan.noise_multipliers * multiples(SecondMoment(3.0))[0], steps=6, chains=2, sampling=sampling,
        num_records=400, delta=1e-4, adjacency=adjacency, accountant=accountant,
    )  # fmt: skip
    assert same.epsilon == pytest.approx(plan.guarantee.epsilon, rel=1e-4)  # batch slots differ


def test_a_minibatch_of_its_own_is_charged_in_every_chain_and_for_its_overflow():
    plan = query_plan(Poisson(40.0), steps=7, chains=3, own=True, accountant="rdp")
    one_event_per_minibatch(plan)
    assert [e.count for e in plan.guarantee.events if e.mechanism == "batch_overflow"] in ([], [2 * 7 * 3])
    assert plan.guarantee.epsilon <= 2.0


def test_a_second_moment_costs_more_noise_the_less_noisy_it_is():
    needed = [query_plan(ratio=r).required_multiplier for r in (0.3, 1.0, 3.0, 1e4)]
    assert needed == sorted(needed, reverse=True)
    alone = query_plan(sampler=dpmcmc.SGLD(step_size=LARGE)).required_multiplier
    assert needed[-1] == pytest.approx(alone, rel=5e-3)
    assert needed[1] == pytest.approx(alone * 2**0.5, rel=5e-3)


@pytest.mark.parametrize("own", [False, True])
def test_the_closed_form_gives_every_minibatch_its_noise(own):
    second = SecondMoment(0.5, own_batch=own)
    plan = query_plan(
        FixedSize(100), steps=4000, ratio=0.5, own=own, calibrator="closed_form", accountant="advanced", epsilon=1.0
    )
    minibatches = plan.steps * len(multiples(second))
    formula = closed_form.formula(epsilon=1.0, delta=1e-4, steps=minibatches, rate=0.25)
    assert sum(e.count for e in queries_of(plan)) == minibatches
    assert min(e.noise_multiplier for e in queries_of(plan)) >= formula * (1 - 1e-9)
    assert plan.guarantee.epsilon <= 1.0


def test_a_plan_that_composes_as_independent_is_caught(monkeypatch):
    """Planted fault."""
    monkeypatch.setattr(making, "multiples", lambda second: (1.0, second.ratio / (1 + KAPPA)))
    with pytest.raises(AssertionError):
        one_event_per_minibatch(query_plan(Poisson(40.0), ratio=1.0, accountant="rdp"))


def test_step_size_auto_is_solved_for_the_noise_of_the_pair():
    plan = query_plan(Poisson(40.0), ratio=0.5, sampler=SGFS("auto", fisher="query", noise_ratio=0.5))
    one_event_per_minibatch(plan)
    assert 1.9 < plan.guarantee.epsilon <= 2.0
    assert plan.free_fraction == 1


# --- noise that is really added ---------------------------------------------------------------------------


class Seen(NamedTuple):
    gradient: jax.Array
    moment: jax.Array


class Recorder(SGFS):
    """Stays where it is and shows what it was given."""

    def step(self, key, state, gradient, t):
        return state, Seen(jnp.ravel(gradient.value), gradient.releases[0].value)


def recorded_noise(plan) -> tuple[np.ndarray, np.ndarray]:
    """(steps, D) and (steps, ...) draws in units of C and C² on the sum, from records without gradient."""
    clip, scale = plan.privacy.clip, plan.num_records / plan.batch_size
    info = dpmcmc.sample(plan, {"g": np.zeros((plan.num_records, D), np.float32)}, key=0).info
    gradient, moment = (np.asarray(v, np.float64)[0] for v in info)
    return gradient / (clip * scale), moment / (clip**2 * scale)


def off_diagonal(moment):
    row, column = np.triu_indices(D, 1)
    return moment[:, row, column]


def check_noise(gradient, moment, z: float, ratio: float) -> None:
    """Every part has the std its event claims, and no two parts share randomness."""

    def has_std(noise, std):
        assert abs(np.mean((noise / std) ** 2) - 1) < 5 * math.sqrt(2 / noise.size)
        assert abs(np.mean(noise)) < 5 * std / math.sqrt(noise.size)
        assert stats.kstest(np.ravel(noise) / std, "norm").pvalue > 1e-5

    parts = [gradient / z]
    has_std(gradient, z)
    if moment.ndim == 3:
        np.testing.assert_array_equal(moment, np.swapaxes(moment, 1, 2))
        diagonal, off = np.diagonal(moment, axis1=1, axis2=2), off_diagonal(moment)
        has_std(diagonal, ratio * z)
        has_std(off, ratio * z * 0.5**0.5)
        parts += [diagonal / (ratio * z), off / (ratio * z * 0.5**0.5)]
    else:
        has_std(moment, ratio * z)
        parts += [moment / (ratio * z)]
    every = np.concatenate(parts, axis=1)
    for view in (every, every**2, np.abs(every)):  # a shared radius shows in sizes, not in signs
        correlation = np.corrcoef(view.T) - np.eye(every.shape[1])
        assert np.abs(correlation).max() < 6 / math.sqrt(len(every))
    shifted = np.corrcoef(every[1:, 0], every[:-1, 0])[0, 1]
    assert abs(shifted) < 6 / math.sqrt(len(every))


def recorder(ratio, structure="dense", **more):
    return Recorder(step_size=LARGE, fisher="query", noise_ratio=ratio, structure=structure, **more)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ratio", "structure", "clip", "sampling"),
    [
        (3.0, "dense", 0.7, Poisson(40.0)),
        pytest.param(0.02, "dense", 1.0, FixedSize(40), marks=pytest.mark.slow),
        pytest.param(1e4, "dense", 1e-3, Full(), marks=pytest.mark.slow),
        pytest.param(1.0, "diagonal", 30.0, Poisson(40.0), marks=pytest.mark.slow),
    ],
)
def test_gradient_and_second_moment_carry_independent_noise_of_the_charged_size(ratio, structure, clip, sampling):
    plan = query_plan(sampling, steps=2000, sampler=recorder(ratio, structure), clip=clip, accountant="rdp")
    one_event_per_minibatch(plan)
    gradient, moment = recorded_noise(plan)
    z = float(plan.noise_multipliers[0])
    check_noise(gradient, moment, z, ratio)
    # What the event claims, from the noise as measured.
    diagonal = moment if moment.ndim == 2 else np.diagonal(moment, axis1=1, axis2=2)
    measured = (1 / np.mean(gradient**2) + 1 / np.mean(diagonal**2)) ** -0.5
    (event,) = queries_of(plan)
    assert measured == pytest.approx(event.noise_multiplier, rel=5 / math.sqrt(2000 * D))


@pytest.mark.slow
def test_a_metric_shapes_the_gradients_noise_and_leaves_the_second_moments_whitened():
    rng = np.random.default_rng(3)
    f = rng.normal(size=(D, D)) + 3 * np.eye(D)
    plan = query_plan(Poisson(40.0), steps=2000, sampler=recorder(2.0, metric=f, own_batch=True), accountant="rdp")
    one_event_per_minibatch(plan)
    gradient, moment = recorded_noise(plan)
    check_noise(gradient @ np.linalg.inv(f).T, moment, float(plan.noise_multipliers[0]), 2.0)


@pytest.mark.slow
def test_off_diagonal_noise_twice_too_small_is_caught(monkeypatch):
    """Planted fault."""
    right = DENSE.noise_scale

    def halved(parameters):
        scale = right(parameters)
        return np.where(scale < 1, scale / 2, scale).astype(np.float32)

    monkeypatch.setattr(symmetric, "DENSE", DENSE._replace(noise_scale=halved))
    plan = query_plan(Poisson(39.0), steps=1000, sampler=recorder(3.0), accountant="rdp")  # a plan not compiled before
    with pytest.raises(AssertionError):
        check_noise(*recorded_noise(plan), float(plan.noise_multipliers[0]), 3.0)


class SameKey(GradientQuery):
    """Planted fault: both queries draw their noise from one key."""

    def draw(self, params, batch_key, noise_key, noise_std):
        drawn = super().draw(params, batch_key, noise_key, noise_std)
        moment = self._moment(params)
        shared, std = jax.random.split(noise_key)[0], moment.noise_in_grid(noise_std)
        return drawn._replace(second_noise=drawn_noise(shared, moment.entries, std, moment.noise_scale, 0))


@pytest.mark.slow
@pytest.mark.parametrize("structure", ["dense", "diagonal"])
def test_one_key_for_both_noises_is_caught(structure):
    q = SameKey(Given(), 8, 8.0, 1.0, None, second=SecondMoment(1.0, structure))
    records, batch = {"g": jnp.zeros((8, D))}, jax.random.key(1)
    draw = jax.jit(jax.vmap(lambda key: q(jnp.zeros(D), records, batch, key, jnp.float32(1.0))))
    out = draw(jax.random.split(jax.random.key(0), 2000))
    with pytest.raises(AssertionError):
        check_noise(np.asarray(out.value, np.float64), np.asarray(out.releases[0].value, np.float64), 1.0, 1.0)


# --- replay on neighbouring records -----------------------------------------------------------------------


def rotation(seed=0):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(D, D)))[0]


METRICS = {
    "identity": None,
    "number": PublicMatrix(7.0),
    "diagonal": PublicMatrix(np.array([1.0, 1e-3, 30.0, 0.5, 1e2])),
    "dense": PublicMatrix(np.random.default_rng(1).normal(size=(D, D)) + 2 * np.eye(D)),
    "ill-conditioned": PublicMatrix(rotation(1) @ np.diag([1.0, 1e-1, 1e-2, 1e-4, 2e-5]) @ rotation(2)),
}


def worst_rows() -> dict[str, np.ndarray]:
    """Whitened gradients of the changed record."""
    e, axis = np.ones(D) / math.sqrt(D), np.eye(D)
    across = (axis[0] - axis[1]) / math.sqrt(2)
    bad_nan, bad_inf = e.copy(), e.copy()
    bad_nan[1], bad_inf[2] = np.nan, -np.inf
    return {
        "zero": np.zeros(D),
        "aligned": 3 * e,
        "opposite": -3 * e,
        "orthogonal": 2 * across,
        "axis": 5 * axis[3],
        "at the clip": e,
        "inside": 0.5 * e,
        "huge": 1e17 * e,
        "beyond float32 squares": 1e30 * across,
        "tiny": 1e-30 * e,
        "denormal": 1e-42 * e,
        "mixed": np.array([1e17, -1e-17, 1e9, 1.0, -1e-30]),
        "nan": bad_nan,
        "inf": bad_inf,
    }


def as_raw(white: np.ndarray, metric: PublicMatrix | None) -> np.ndarray:
    f = 1.0 if metric is None else metric.array
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        return np.asarray(white @ f.T if np.ndim(f) == 2 else white * f, np.float32)


def background(n, rng) -> np.ndarray:
    return rng.normal(size=(n, D)) * 10.0 ** rng.uniform(-3, 3, size=(n, 1))


class Replay:
    """Exact sums and releases of one query under fixed keys, for every value of one record that takes part."""

    def __init__(self, second, metric=None, sampling=None, nested=False):
        n, z, sampling = 151, 0.25, sampling or Full()
        slots = sampling.capacity(n, 1e-9)[0]
        select = selector(sampling, n, slots)
        self.second, self.n, self.clip = second, n, 0.7
        b = float(n) if select is None else float(sampling.batch_size)
        self.scale = np.float32(n / b)
        self.query = GradientQuery(Given(), n, b, self.clip, select, second=second, metric=metric)
        self.metric = metric
        self.params = nested_zeros() if nested else jnp.zeros(D)
        self.std = jnp.float32(z * self.clip * self.scale)
        self.batch_key, self.noise_key = jax.random.key(5), jax.random.key(6)
        self.at, self.left_out = self._positions(select)
        self.rows = as_raw(background(n, np.random.default_rng(n)) * self.clip, metric)
        self._sums = jax.jit(self._exact)
        self._release = jax.jit(lambda r: self.query(self.params, r, self.batch_key, self.noise_key, self.std))

    def _keys(self):
        if self.second.own_batch:
            return tuple(jax.random.split(self.batch_key))
        return self.batch_key, None

    def _positions(self, select):
        """(the last record that takes part, which padding would repeat; one that does not, or None)."""
        if select is None:
            return self.n - 1, None
        batches = []
        for key in self._keys():
            if key is not None:
                indices, mask = (np.asarray(v) for v in jax.jit(select)(key))
                batches.append(indices[mask].tolist())
        at = [i for i in batches[0] if all(i in batch for batch in batches)][-1]
        return at, min(set(range(self.n)).difference(*batches))

    def _exact(self, records):
        batch, second = (None if key is None else self.query._batch(key) for key in self._keys())
        return self.query.sums(self.params, records, StepRandomness(batch, second, None, None))

    def records(self, white, at):
        rows = self.rows.copy()
        rows[at] = as_raw(white * self.clip, self.metric)
        return {"g": jnp.asarray(rows)}

    def sums(self, white, at=None) -> tuple[np.ndarray, np.ndarray]:
        """(gradient sum / C, second-moment sum / C² in coordinates of unit Frobenius norm), float64, exact."""
        gradient, moment = self._sums(self.records(white, self.at if at is None else at))
        flat = np.concatenate([np.ravel(v) for v in jax.tree.leaves(gradient.to_float64(1.0, self.query.bits))])
        entries = moment.to_float64(1.0, self.query.second_bits)
        if len(entries) > D:
            row, column = np.triu_indices(D)
            entries = entries * np.where(row == column, 1.0, math.sqrt(2))
        return flat, entries

    def release(self, white, at=None) -> np.ndarray:
        """Everything that is released, raveled."""
        out = self._release(self.records(white, self.at if at is None else at))
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves((out.value, out.releases, out.noise_std))])

    def excess(self) -> dict[str, float]:
        """Largest whitened distance over what each event allows, of a record zeroed and of one replaced."""
        ratio = self.second.ratio
        sums = {name: self.sums(white) for name, white in worst_rows().items()}
        out = {"zeroed": 0.0, "replaced": 0.0}
        for i, (name, (g, v)) in enumerate(sums.items()):
            for other, (h, w) in list(sums.items())[:i]:
                distances = [np.linalg.norm(g - h), np.linalg.norm(v - w) / ratio]
                if not self.second.own_batch:
                    distances = [math.hypot(*distances)]
                # Event z says: the sum moves by 1/z noise stds where a record goes, by 2/z where one is replaced.
                share = max(d * z for d, z in zip(distances, charged(self.second), strict=True))
                kind = "zeroed" if "zero" in (name, other) else "replaced"
                out[kind] = max(out[kind], share if kind == "zeroed" else share / 2)
        return out


CASES = {
    "dense, nested, several microbatches": (SecondMoment(0.5, "dense"), "identity", Poisson(120.0), True),
    "ill-conditioned metric": (SecondMoment(1.0, "dense"), "ill-conditioned", FixedSize(65), False),
    "own batch, metric": (SecondMoment(0.5, "dense", own_batch=True), "dense", Poisson(75.0), True),
    "diagonal, nested": (SecondMoment(0.5, "diagonal"), "identity", FixedSize(75), True),
    "diagonal metric": (SecondMoment(1.0, "dense"), "diagonal", Poisson(60.0), False),
    "dense metric, diagonal": (SecondMoment(1.0, "diagonal"), "dense", Full(), False),
    "own batch, diagonal": (SecondMoment(0.5, "diagonal", own_batch=True), "dense", FixedSize(75), False),
}
#: Parts that the others have already, put together in other ways.
MORE_CASES = {
    "dense": (SecondMoment(3.0, "dense"), "identity", Full(), False),
    "number": (SecondMoment(1.0, "auto"), "number", Full(), True),
    "dense metric": (SecondMoment(0.2, "dense"), "dense", FixedSize(100), True),
    "own batch": (SecondMoment(0.5, "dense", own_batch=True), "identity", Poisson(75.0), True),
}


@pytest.mark.optimised
@pytest.mark.slow
@pytest.mark.parametrize("name", [*CASES, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in MORE_CASES)])
def test_one_record_moves_the_released_pair_by_at_most_what_is_charged(name):
    second, metric, sampling, nested = (CASES | MORE_CASES)[name]
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
@pytest.mark.parametrize("name", ["identity", "dense", "diagonal"])
@pytest.mark.parametrize("structure", ["dense", "diagonal"])
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


# --- what may be asked ------------------------------------------------------------------------------------


def test_a_centred_second_moment_is_refused():
    with pytest.raises(UnsupportedCombination, match="batch mean moves"):
        SecondMoment(centred=True)


@pytest.mark.parametrize(
    "queries",
    [
        (),
        ("gradient", "gradient"),
        ("gradient", SecondMoment(), SecondMoment()),
        (SecondMoment(),),
        (SecondMoment(), "gradient"),
        ("second_moment",),
        "gradient",
        ("gradient", None),
    ],
)
def test_queries_without_a_derivation_are_refused_before_a_record_is_read(queries):
    class Asks(SGFS):
        pass

    Asks.queries = property(lambda self: queries)
    for privacy in (Privacy(epsilon=1.0, delta=1e-4), None):
        with pytest.raises(UnsupportedCombination, match="a step asks for"):
            dpmcmc.plan(Given(), num_records=400, sampler=Asks(step_size=1.0), steps=5, privacy=privacy)


@pytest.mark.parametrize("ratio", [0.0, -1.0, math.nan, math.inf])
def test_impossible_noise_ratios_are_refused(ratio):
    with pytest.raises(ValueError, match="ratio"):
        SGFS(step_size=1.0, fisher="query", noise_ratio=ratio)


@pytest.mark.parametrize("ratio", [1e-12, 1e12, 1e30])
def test_noise_that_no_grid_can_hold_is_refused(ratio):
    with pytest.raises(ValueError, match=r"noise_ratio must be .* in"):
        query_plan(ratio=ratio)


@pytest.mark.parametrize("metric", [0.0, [1.0, 0.0, 1, 1, 1], np.diag([1.0, 1, 1, 1, 1e-9]), np.ones((D, D))])
def test_a_singular_metric_is_refused(metric):
    with pytest.raises(ValueError, match=r"metric is singular.*needs an invertible matrix"):
        query_plan(sampler=SGFS(step_size=1.0, metric=metric))


@pytest.mark.parametrize(
    ("fisher", "prior", "condition"),
    [
        (-1.0, 1.0, "positive semidefinite"),
        ([1.0, -1e-3, 1, 1, 1], 1.0, "positive semidefinite"),
        (np.eye(D) - 0.5 * np.ones((D, D)), 1.0, "positive semidefinite"),
        (np.triu(np.ones((D, D))), 1.0, "symmetric"),
        (0.0, 0.0, "prior_precision > 0"),
        ([1.0, 0.0, 1, 1, 1], 0.0, "prior_precision > 0"),
        (np.ones((D, D)), 0.0, "prior_precision > 0"),
        (np.eye(D - 1), 1.0, "4 parameters, and the target has 5"),
        ([math.nan, 1, 1, 1, 1], 1.0, "finite"),
    ],
)
def test_a_public_fisher_matrix_that_is_none_is_refused(fisher, prior, condition):
    with pytest.raises(ValueError, match=condition):
        query_plan(sampler=SGFS(step_size=1.0, fisher="public", public_fisher=fisher, prior_precision=prior))


def test_a_singular_public_fisher_matrix_is_taken_with_a_prior():
    plan = query_plan(sampler=SGFS(step_size=1.0, fisher="public", public_fisher=np.ones((D, D)), prior_precision=1.0))
    assert sum(e.count for e in plan.guarantee.events) == plan.steps


# --- nothing else is read ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fisher", ["gradients", "public"])
def test_free_fisher_information_asks_for_one_gradient_and_ignores_other_releases(fisher):
    sampler = SGFS(step_size=1.0, fisher=fisher, public_fisher=1.0 if fisher == "public" else None).bind(10)
    assert sampler.queries == ("gradient",)
    state = sampler.init(jax.random.key(0), jnp.ones(D))
    key, value, std = jax.random.key(1), jnp.arange(float(D)), jnp.float32(3.0)
    poison = (PrivateSecondMoment(jnp.full((D, D), jnp.nan), std),)
    clean = sampler.step(key, state, PrivateGradient(value, std), jnp.int32(0))
    with_poison = sampler.step(key, state, PrivateGradient(value, std, poison), jnp.int32(0))
    for a, b in zip(jax.tree.leaves(clean), jax.tree.leaves(with_poison), strict=True):
        np.testing.assert_array_equal(a, b)


class Reached(Exception):
    pass


@pytest.mark.parametrize("own", [False, True])
def test_a_private_run_never_takes_the_plain_path(own, monkeypatch):
    asked = []

    def spy(*arguments, **more):
        asked.append(GradientQuery(*arguments, **more))
        raise Reached

    def plain(*arguments):
        raise Reached

    monkeypatch.setattr(program, "GradientQuery", spy)
    monkeypatch.setattr(GradientQuery, "plain_sums", plain)
    sampler = SGFS(step_size=LARGE, fisher="query", noise_ratio=1e4, own_batch=own, metric=2.0)
    for privacy in (Privacy(epsilon=2.0, delta=1e-4, accountant="rdp"), None):
        plan = dpmcmc.plan(Given(), num_records=400, sampling=Poisson(41.5), sampler=sampler, steps=2, privacy=privacy)
        with pytest.raises(Reached):
            dpmcmc.sample(plan, {"g": np.ones((400, D), np.float32)}, key=0)
        inputs = jnp.zeros(D), {"g": jnp.ones((400, D))}, jax.random.key(0), jax.random.key(1), jnp.float32(1.0)
        if privacy is not None:
            assert asked[-1].clip == privacy.clip
            assert (asked[-1].bits, asked[-1].second_bits) == (plan.bits, plan.second_bits)
            assert plan.second_bits < plan.bits
            jax.eval_shape(asked[-1], *inputs)
        else:
            assert asked[-1].clip is None
            with pytest.raises(Reached):
                jax.eval_shape(asked[-1], *inputs)


@pytest.mark.optimised
def test_the_compiled_query_holds_no_record():
    replay = Replay(SecondMoment(1.0, "dense"), METRICS["dense"], Poisson(75.0))
    records = replay.records(worst_rows()["aligned"], replay.at)
    call = lambda r, k: replay.query(replay.params, r, k, k, replay.std)  # noqa: E731
    program = jax.make_jaxpr(call)(records, jax.random.key(0))
    assert all(np.size(c) < replay.n for c in program.consts)


def test_equal_public_matrices_share_a_program_and_others_do_not():
    a, b, c = (SGFS(step_size=1.0, fisher="query", metric=m) for m in (np.eye(3), np.eye(3).tolist(), 2 * np.eye(3)))
    assert a == b
    assert hash(a) == hash(b)
    assert a != c


# --- saved guarantees -------------------------------------------------------------------------------------


def test_a_saved_guarantee_of_two_queries_is_verified(tmp_path, capsys):
    for own in (False, True):
        plan = query_plan(Poisson(40.0), steps=6, own=own, accountant="rdp")
        (tmp_path / "privacy.json").write_text(json.dumps(privacy_json(plan, plan.guarantee)))
        assert main(["verify", str(tmp_path / "privacy.json")]) == 0
        assert "verified" in capsys.readouterr().out


def test_a_saved_guarantee_that_leaves_out_the_second_minibatches_is_not_verified(tmp_path):
    plan = query_plan(Poisson(40.0), steps=6, own=True, accountant="rdp")
    body = privacy_json(plan, plan.guarantee)
    body["events"] = body["events"][:1]
    body["epsilon"] = Guarantee.from_json(body).epsilon
    (tmp_path / "privacy.json").write_text(json.dumps(body))
    assert main(["verify", str(tmp_path / "privacy.json")]) != 0


# --- plans that must not be made --------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [1e-33, 1e-39])
def test_a_clip_whose_noise_float32_cannot_hold_is_refused(clip):
    """There the division by the unit overflows, every noise saturates alike, and the exact sum is left to see."""
    with pytest.raises(ValueError, match="clip"):
        query_plan(sampler=dpmcmc.SGLD(step_size=1.0, temperature=0.0), steps=1, clip=clip)


def test_a_sampler_whose_queries_change_with_its_step_size_is_charged_for_what_it_asks():
    class Late(SGFS):
        @property
        def queries(self):
            return ("gradient",) if self.unresolved else super().queries

    with pytest.raises(ValueError, match="changes what the sampler asks for"):
        query_plan(sampler=Late("auto", fisher="query"))


def test_a_public_matrix_is_a_copy():
    whole = np.eye(D + 1)
    part = whole[:D, :D]
    matrix = PublicMatrix(part)
    before = hash(matrix)
    whole[0, 0] = 7.0
    assert hash(matrix) == before
    assert part.flags.writeable


# --- an attack --------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("structure", [pytest.param("dense", marks=pytest.mark.exhaustive), "diagonal"])
def test_the_best_attack_on_the_pair_stays_below_its_charge_and_beats_that_of_the_gradient(structure):
    """One step at rate 1, two parameters, a record of norm C or none: the likelihood ratio is linear in the pair."""
    draws, z, ratio, delta = 400_000, 1.0, 0.5, 1e-5
    target = dpmcmc.targets.Custom(
        init=lambda key: jnp.zeros(2), log_prior=lambda p: 0.0 * jnp.sum(p), log_likelihood=lambda p, r: -r["g"] @ p
    )
    n = 20
    q = GradientQuery(target, n, float(n), 1.0, None, second=SecondMoment(ratio, structure))
    rows = np.random.default_rng(0).normal(size=(n, 2)).astype(np.float32)
    # All of its second moment must show: in both parts of a dense matrix, in the diagonal of a diagonal one.
    row = np.array([1, 1]) / math.sqrt(2) if structure == "dense" else np.array([1.0, 0.0])
    batch = jax.random.key(9)

    def observe(present: bool, seed: int) -> np.ndarray:
        mine = rows.copy()
        mine[0] = 10 * row * present
        records = {"g": jnp.asarray(mine)}
        one = lambda k: q(jnp.zeros(2), records, batch, k, jnp.float32(z))  # noqa: E731
        out = jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=4096))(
            jax.random.split(jax.random.key(seed), draws)
        )
        return whitened(np.asarray(out.value, np.float64), np.asarray(out.releases[0].value, np.float64))

    def whitened(gradient, moment):
        if structure == "dense":
            moment = np.stack([moment[..., 0, 0], moment[..., 1, 1], math.sqrt(2) * moment[..., 0, 1]], axis=-1)
        return np.concatenate([gradient / z, moment / (ratio * z)], axis=-1)

    shift = whitened(row, np.outer(row, row) if structure == "dense" else row**2)
    mu = float(np.linalg.norm(shift))
    assert mu == pytest.approx(1 / charged(SecondMoment(ratio), z)[0], rel=1e-4)
    base = observe(False, 1)
    centre = float(np.mean(base @ shift / mu))
    # A threshold fixed by the theory alone, where false alarms are about one in 10⁵.
    threshold = centre + 4.2
    alarms = [int(np.sum(observe(present, seed) @ shift / mu > threshold)) for present, seed in ((False, 2), (True, 3))]
    false_alarms = stats.beta.ppf(0.995, alarms[0] + 1, draws - alarms[0])
    hits = stats.beta.ppf(0.005, alarms[1], draws - alarms[1] + 1)
    found = math.log((hits - delta) / false_alarms)
    claimed = account(
        z * multiples(SecondMoment(ratio))[0], steps=1, sampling=Full(), num_records=n, delta=delta,
        adjacency="zero_out",
    ).epsilon  # fmt: skip
    gradient_alone = account(z, steps=1, sampling=Full(), num_records=n, delta=delta, adjacency="zero_out").epsilon
    assert claimed == pytest.approx(gaussian_epsilon(mu, delta), rel=1e-3)
    assert gradient_alone < found < claimed
