"""What a run cost each record: against brute force in float64, and against the worst case."""

import functools
import math
import stat
import types

import numpy as np
import pytest
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon
from scipy.integrate import simpson
from scipy.stats import norm

import dpmcmc
from dpmcmc.diagnostics import per_record
from dpmcmc.diagnostics.per_record import account, step
from dpmcmc.privacy import Guarantee, UnsupportedCombination
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.query.second_moment import SecondMoment
from dpmcmc.samplers.schedules import Polynomial
from dpmcmc.targets import LinearRegression, LogisticRegression, SoftmaxRegression
from dpmcmc.targets.tempered import Tempered

N, D, STEPS = 120, 5, 24
RNG = np.random.default_rng(5)
X = RNG.normal(size=(N, D))
X = (X / np.maximum(1.0, np.linalg.norm(X, axis=1))[:, None] * RNG.uniform(0.1, 1, size=(N, 1))).astype(np.float32)
Y = (X[:, 0] + 0.1 * RNG.normal(size=N) > 0).astype(np.int32)
DATA = {"x": X, "y": Y}
LOGISTIC = LogisticRegression(num_features=D)
POISSON = dpmcmc.Poisson(12)


#: Of the grid of norms, on which a divergence that grows as the square of the norm is at most so much larger.
GRID = 1.03


def made(
    adjacency="zero_out",
    sampling=POISSON,
    target=LOGISTIC,
    clip=0.25,
    sampler=None,
    steps=STEPS,
    accountant="pld",
    **more,
):
    return dpmcmc.plan(
        target,
        num_records=N,
        sampler=dpmcmc.SGLD(step_size=8.0) if sampler is None else sampler,
        sampling=sampling,
        steps=steps,
        privacy=dpmcmc.Privacy(epsilon=2.0, delta=1e-4, adjacency=adjacency, clip=clip),
        **more,
    )


def trajectory(plan, data=DATA, key=3):
    """Positions before each step, of a target that starts at zero, (chains, steps, d)."""
    after = dpmcmc.sample(plan.with_last(thin=1, burn_in=0), data, key=key).positions
    return np.concatenate([np.zeros_like(after[:, :1]), after[:, :-1]], axis=1)


def exact_norms(positions, clip, target=LOGISTIC, data=DATA):
    """Clipped norms over C in float64, (N, chains·steps); label-blind where the target's labels are bounded."""
    theta = positions.reshape(-1, positions.shape[-1]).astype(np.float64)
    x, y = data["x"].astype(np.float64), data["y"].astype(np.float64)
    margin = x @ theta.T
    length = np.linalg.norm(x, axis=1)[:, None]
    if not isinstance(target, LogisticRegression):
        return np.minimum(np.abs(margin - y[:, None]) * length / clip, 1.0)
    residual, longest = 1 / (1 + np.exp(-margin)) - y[:, None], 1 / (1 + np.exp(-np.abs(margin)))
    return np.abs(residual) * np.minimum(length / clip, 1 / longest)


def brute_force(w, z, q, alpha, adjacency):
    """The larger D_α of the record's pair, by Simpson's rule on a fine grid."""
    x = np.linspace(-40, 60, 20_001)
    held, other = (
        np.logaddexp(math.log1p(-q) + norm.logpdf(x), math.log(q) + norm.logpdf(x - shift))
        for shift in (w / z, -1 / z if adjacency == "replace_one" else 0.0)
    )

    def one(p, r):
        return math.log(simpson(np.exp(alpha * p + (1 - alpha) * r), x=x)) / (alpha - 1)

    return max(one(held, other), one(other, held))


def noise_of(plan):
    return plan.noise_multipliers[0] / (1 + KAPPA), plan.sampling.charged_rate(N)


def direct(plan, shares, record, alpha):
    """R_i(α) of one record at one order: every step integrated on its own."""
    z, q = noise_of(plan)
    return sum(brute_force(w, z, q, alpha, plan.privacy.adjacency) for w in shares[record])


@functools.cache
def accounted(adjacency):
    """(plan, positions before each step, clipped norms over C, account) of a minibatch run."""
    plan = made(adjacency)
    positions = trajectory(plan)
    shares = exact_norms(positions, plan.privacy.clip)
    return types.SimpleNamespace(
        plan=plan, positions=positions, shares=shares, got=per_record.per_record_epsilon(plan, DATA, positions)
    )


@pytest.fixture(params=["zero_out", "replace_one"])
def case(request):
    return accounted(request.param)


@pytest.fixture
def one_case():
    """For planted faults, which no adjacency hides."""
    return accounted("zero_out")


def above_brute_force(case, got, records=(0, 7, 31, 64, 119)):
    """Whether the account is nowhere below direct integration at the true norms, for some records and orders."""
    for k in (0, 1, 3):
        alpha = got.orders[k]
        truth = np.array([direct(case.plan, case.shares, i, alpha) for i in records])
        if np.any(got.renyi[list(records), k] < truth * (1 - 1e-9)):
            return False
    return True


@pytest.mark.slow
def test_individual_renyi_loss_is_that_of_direct_integration(case):
    """Never below it, and above it by the grid of norms alone."""
    assert above_brute_force(case, case.got)
    for record in (0, 7, 64):
        truth = direct(case.plan, case.shares, record, case.got.orders[0])
        assert case.got.renyi[record, 0] <= truth * GRID
    # There is something to tell apart: unequal records, clipped ones among them.
    assert case.got.epsilon.max() > 1.2 * case.got.epsilon.min()
    assert 0.05 < np.mean(case.shares >= 1) < 0.95


def test_epsilon_is_that_of_the_renyi_loss(case):
    """dp-accounting's own conversion, at δ less what batch overflow may take."""
    beta = sum(e.rate * e.count for e in case.plan.guarantee.events if e.mechanism == "batch_overflow")
    for record in (0, 31, 119):
        epsilon = case.got.epsilon[record]
        left = case.plan.guarantee.delta - (1 + math.exp(epsilon)) * beta
        expected = compute_epsilon(case.got.orders, case.got.renyi[record], left)[0]
        assert epsilon == pytest.approx(expected, rel=1e-9)


def test_no_record_exceeds_the_worst_case(case):
    assert case.got.epsilon.max() <= case.got.worst_case * (1 + 1e-9)
    assert np.all(case.got.clipped_share == np.mean(case.shares >= 1 - 1e-12, axis=1))


@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT])
@pytest.mark.parametrize("sampling", [POISSON, dpmcmc.Full()], ids=["poisson", "full"])
def test_clipped_at_every_step_is_the_worst_case(adjacency, sampling):
    """Equal to the Rényi accountant of the plan."""
    plan = made(adjacency, sampling, clip=1e-3, chains=2)
    positions = np.zeros((2, STEPS, D), np.float32)
    got = per_record.per_record_epsilon(plan, DATA, positions)
    guarantee = Guarantee.from_events(plan.guarantee.events, delta=1e-4, adjacency=adjacency, accountant="rdp")
    assert np.all(got.clipped_share == 1)
    assert got.worst_case == guarantee.epsilon
    np.testing.assert_allclose(got.epsilon, guarantee.epsilon, rtol=1e-9)


@pytest.mark.parametrize(("sampling", "steps"), [(dpmcmc.Full(), 40), (POISSON, 3)], ids=["long", "short"])
def test_a_schedule_equals_the_worst_case_too(sampling, steps):
    """Noise that changes, also in more levels than the accountant tells apart."""
    sampler = dpmcmc.SGLD(step_size=Polynomial(a=0.02, b=1.0, gamma=0.4))
    plan = made(sampler=sampler, sampling=sampling, clip=1e-4, steps=steps)
    assert len(np.unique(plan.noise_multipliers)) > (24 if steps > 24 else 1)
    got = per_record.per_record_epsilon(plan, DATA, np.zeros((1, steps, D), np.float32))
    np.testing.assert_allclose(got.epsilon, got.worst_case, rtol=1e-9)


def walk(shape=(), chains=1, steps=STEPS):
    """A random walk from zero, such as a hot chain takes."""
    taken = np.random.default_rng(8).normal(size=(chains, steps, D, *shape)) * 0.3
    return np.cumsum(taken, axis=1, dtype=np.float32) - taken[:, :1].astype(np.float32)


def test_full_batches_are_exact():
    """R_i(α) = α Σ_t w_t²/(2z²), with no grid."""
    plan, positions = made(sampling=dpmcmc.Full()), walk()
    shares = exact_norms(positions, plan.privacy.clip)
    got = per_record.per_record_epsilon(plan, DATA, positions)
    truth = got.orders[0] / 2 * np.sum(shares**2, axis=1) / noise_of(plan)[0] ** 2
    assert np.all(got.renyi[:, 0] >= truth)
    np.testing.assert_allclose(got.renyi[:, 0], truth, rtol=1e-3)


LINEAR = LinearRegression(num_features=D, noise_scale=0.7)
TARGETS = {
    "logistic": LOGISTIC,
    "linear": LINEAR,
    "softmax": SoftmaxRegression(num_classes=3, num_features=D),
    "tempered": Tempered(LOGISTIC, 0.5),
}


#: ε of records 0, 31 and 119 on a walk, as accounted before norms had one way: relation, batches, target or sampler.
GOLDEN = {
    ("zero_out", POISSON, "logistic"): (0.89194199, 0.61785332, 0.30076219),
    ("replace_one", POISSON, "logistic"): (1.6382198, 1.4701134, 1.2776132),
    ("zero_out", dpmcmc.Full(), "linear"): (0.53508401, 0.69189223, 0.12986987),
    ("zero_out", POISSON, "softmax"): (0.84220182, 0.68354009, 0.52724678),
    ("zero_out", dpmcmc.Full(), "tempered"): (0.39032452, 0.29926694, 0.128311),
    ("zero_out", POISSON, "sgfs"): (0.23815779, 0.1690527, 0.08937619),
}


@pytest.mark.parametrize("case", GOLDEN, ids=str)
def test_golden_losses_of_records(case):
    """Never below, and above by the part in 2^15 of C that a norm is enlarged by."""
    adjacency, sampling, name = case
    if name == "sgfs":
        plan = made(adjacency, sampling, sampler=dpmcmc.SGFS(step_size=1.0, own_batch=True))
    else:
        plan = made(adjacency, sampling, target=TARGETS[name])
    got = per_record.per_record_epsilon(plan, DATA, walk((3,) if name == "softmax" else ()))
    ratio = got.epsilon[[0, 31, 119]] / GOLDEN[case]
    assert np.all((ratio >= 1 - 1e-7) & (ratio < 1 + 3e-4))


def test_a_run_is_accounted_from_its_start_and_keeps_its_guarantee():
    """At θ = 0 every residual of a logistic regression is 1/2."""
    plan = made(sampling=dpmcmc.Full(), steps=1)
    result, got = per_record.sample_and_account(plan, DATA)
    truth = got.orders[0] / 2 * np.square(np.minimum(np.linalg.norm(X, axis=1) / 2 / 0.25, 1) / noise_of(plan)[0])
    np.testing.assert_allclose(got.renyi[:, 0], truth, rtol=1e-3)
    assert result.guarantee == plan.guarantee


def test_a_run_with_a_key_is_the_run_that_is_accounted(one_case):
    """The start, which no Result holds, included."""
    result, got = per_record.sample_and_account(one_case.plan, DATA, key=3)
    assert np.all(result.positions[:, :-1] == one_case.positions[:, 1:])
    assert np.all(got.renyi == one_case.got.renyi)


@pytest.mark.parametrize("own_batch", [False, True])
def test_clipped_at_every_step_is_the_worst_case_with_second_moments_too(own_batch):
    plan = made(sampler=dpmcmc.SGFS(step_size=1.0, own_batch=own_batch), clip=1e-3)
    got = per_record.per_record_epsilon(plan, DATA, walk() * 0)
    np.testing.assert_allclose(got.epsilon, got.worst_case, rtol=1e-9)


def test_second_moments_move_by_the_square():
    share = np.array([0.3, 1.0])
    for second, expected in (
        (None, [share]),
        (SecondMoment(ratio=2.0, own_batch=True), [share, share**2]),
        (SecondMoment(ratio=2.0), [np.sqrt((share**2 + share**4 / 4) / 1.25)]),
    ):
        for got, want in zip(step.sensitivities(share, second), expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-4)
            assert got[1] == pytest.approx(1)


@pytest.mark.parametrize("alpha", [1.5, 4.0, 17.3])
@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE])
def test_divergence_of_one_step_is_that_of_direct_integration(alpha, adjacency):
    moved = (0.05, 0.4, 0.93, 1.0)
    got = [step.renyi(w, 1.3, 0.07, adjacency, np.array([alpha]))[0] for w in moved]
    truth = [brute_force(w, 1.3, 0.07, alpha, adjacency) for w in moved]
    np.testing.assert_allclose(got, truth, rtol=2e-7, atol=1e-11)
    assert np.all(np.diff(got) > 0)


def test_a_counterpart_of_its_own_is_never_worse_than_the_worst_pair():
    """Vectors that are not antiparallel, or shorter: below the pair that is charged."""
    q, z, alpha = 0.1, 1.0, 6.0
    grid = np.linspace(-9, 9, 361)
    first, second = np.meshgrid(grid, grid)

    def mixture(m):
        ring = lambda u: np.exp(-((first - u[0]) ** 2 + (second - u[1]) ** 2) / 2) / (2 * np.pi)  # noqa: E731
        return (1 - q) * ring((0, 0)) + q * ring(m)

    charged = step.renyi(0.4, z, q, Adjacency.REPLACE_ONE, np.array([alpha]))[0]
    for angle in (0.0, 1.0, 2.0, 3.0, math.pi):
        for size in (0.2, 0.7, 1.0):
            p, r = mixture((0.4, 0)), mixture((size * math.cos(angle), size * math.sin(angle)))
            for a, b in ((p, r), (r, p)):
                value = math.log(np.sum(a**alpha * b ** (1 - alpha)) * 0.05**2) / (alpha - 1)
                assert value <= charged * (1 + 1e-6)


def test_norms_before_clipping_are_seen(one_case, monkeypatch):
    """Unclipped norms charge too much: more than the worst one_case."""
    grid = lambda s, second: [np.asarray(s) * 3.0]  # noqa: E731
    monkeypatch.setattr(step, "sensitivities", grid)
    got = per_record.per_record_epsilon(one_case.plan, DATA, one_case.positions)
    assert got.epsilon.max() > got.worst_case * 1.1


def test_norms_of_sampled_steps_alone_are_seen(one_case, monkeypatch):
    """An estimate, and not ε: a step that left the record out has cost it too."""
    real = account._StepLoss.__call__

    def sampled(self, share):
        return real(self, np.where(np.random.default_rng(0).uniform(size=share.shape) < 0.1, share, 1e-9))

    monkeypatch.setattr(account._StepLoss, "__call__", sampled)
    assert not above_brute_force(one_case, per_record.per_record_epsilon(one_case.plan, DATA, one_case.positions))


def test_positions_after_the_step_are_seen(one_case):
    after = np.concatenate([one_case.positions[:, 1:], one_case.positions[:, -1:]], axis=1)
    assert not above_brute_force(one_case, per_record.per_record_epsilon(one_case.plan, DATA, after))


def test_norms_rounded_down_are_seen(one_case, monkeypatch):
    real = account._StepLoss.__call__
    monkeypatch.setattr(account._StepLoss, "__call__", lambda self, share: real(self, share * math.exp(-account.STEP)))
    assert not above_brute_force(one_case, per_record.per_record_epsilon(one_case.plan, DATA, one_case.positions))


def test_what_has_no_derivation_is_refused():
    zeros = np.zeros((1, STEPS, D), np.float32)
    with pytest.raises(UnsupportedCombination, match="fixed_size"):
        per_record.per_record_epsilon(made("replace_one", dpmcmc.FixedSize(12)), DATA, zeros)
    plain = dpmcmc.plan(LOGISTIC, num_records=N, sampler=dpmcmc.SGLD(step_size=1.0), steps=STEPS, privacy=None)
    with pytest.raises(ValueError, match="no privacy"):
        per_record.per_record_epsilon(plain, DATA, zeros)
    with pytest.raises(ValueError, match="positions"):
        per_record.per_record_epsilon(made(), DATA, zeros[:, :-1])


def test_the_account_is_the_owners_alone(tmp_path, one_case):
    one_case.got.save(tmp_path / "per_record.csv")
    assert stat.S_IMODE((tmp_path / "per_record.csv").stat().st_mode) == 0o600
    kept = np.genfromtxt(tmp_path / "per_record.csv", delimiter=",", names=True)
    assert kept.dtype.names == account.COLUMNS
    np.testing.assert_array_equal(kept["epsilon"], one_case.got.epsilon)
    assert str(one_case.got.epsilon[0])[:6] not in repr(one_case.got)
