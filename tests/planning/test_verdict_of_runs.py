"""A verdict is true of runs: intervals cover where it says so, and a warning comes where it does not."""

import warnings

import numpy as np
import pytest

import dpmcmc
from dpmcmc.mechanisms import MECHANISMS, OPS, Hybrid
from dpmcmc.planning import obstacles, permitted_uses, verdict
from dpmcmc.targets import LinearRegression, LogisticRegression
from tests.long_runs import BURN_IN, CUSTOM, LOGISTIC, PRECISION, STEP, STEPS, N, long_run, loose

SMALL = {"x": np.full((N, 3), 0.5, np.float32), "y": np.arange(N) % 2}


@pytest.mark.slow
def test_sampling_warns_once_where_a_private_run_is_not_for_intervals():
    short = long_run(privacy=loose(epsilon=1.0), steps=10, burn_in=0, thin=1)
    with pytest.warns(dpmcmc.NotForIntervals) as seen:
        dpmcmc.sample(short, SMALL, key=0)
    assert [warning.filename for warning in seen] == [__file__]
    said = str(seen[0].message)
    for words in (short.verdict.reasons["intervals"], "mechanism noise_aware", "dpmcmc.PrivateMetric()"):
        assert words in said
    custom = long_run(CUSTOM, loose(), steps=10, burn_in=0, thin=1)
    with pytest.warns(dpmcmc.NotForIntervals, match="no private intervals of Custom are offered yet") as seen:
        dpmcmc.sample(custom, SMALL, key=0)
    assert "PrivateMetric" not in str(seen[0].message)
    hybrid = Hybrid(OPS(), dpmcmc.SGLD(1.0), steps=20, accountant="rdp")
    with pytest.warns(dpmcmc.NotForIntervals) as seen:
        dpmcmc.sample(hybrid.plan(LOGISTIC, num_records=N, epsilon=1.0, delta=1e-3), SMALL, key=0)
    assert len(seen) == 1


def test_the_warning_names_the_path_only_where_it_leads_to_intervals():
    privacy = dpmcmc.Privacy(epsilon=1.0, delta=1e-6, accountant="rdp")
    linear = LinearRegression(num_features=3, row_bound=1.0, label_bound=1.0)
    logistic = LogisticRegression(num_features=3, row_bound=1.0)
    second = dpmcmc.PrivateMetric("second_moment")
    cases = (
        (logistic, second, "NoiseAware)."),
        (logistic, None, "(metric=dpmcmc.PrivateMetric())."),
        (linear, dpmcmc.PrivateMetric(), "NoiseAware)."),
        (linear, None, "NoiseAware)."),
    )
    for target, metric, said in cases:
        made = long_run(target, privacy, num_records=10_000, steps=40, burn_in=0, thin=1, metric=metric)
        with pytest.warns(dpmcmc.NotForIntervals) as seen:
            verdict.warn_unless_for_intervals(made)
        assert said in str(seen[0].message)
    gives = long_run(logistic, privacy, num_records=10_000, steps=40, burn_in=0, thin=1, metric=dpmcmc.PrivateMetric())
    assert gives.verdict.from_path
    assert gives.usable_for == ["prediction", "intervals"]
    few = long_run(logistic, privacy, num_records=10_000, steps=40, burn_in=20, thin=1, metric=dpmcmc.PrivateMetric())
    assert few.usable_for == ["prediction"]


def test_the_warning_comes_before_a_record_is_read():
    short = long_run(privacy=loose(epsilon=1.0), steps=10, burn_in=0, thin=1)
    with pytest.warns(dpmcmc.NotForIntervals), pytest.raises(ValueError, match="num_records 20"):
        dpmcmc.sample(short, {"x": SMALL["x"][:3], "y": SMALL["y"][:3]})


def test_runs_that_need_no_warning_give_none():
    long = long_run(privacy=loose(adjacency="zero_out"), steps=2 * STEPS, burn_in=2 * BURN_IN)
    plain, one_draw = long_run(privacy=None, steps=10, burn_in=0, thin=1), long_run(steps=10, burn_in=0, thin=10)
    exact = OPS().plan(LOGISTIC, num_records=N, epsilon=1.0, delta=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for made in (long, plain, one_draw, exact):
            verdict.warn_unless_for_intervals(made)
        noise_aware_plan = MECHANISMS["noise_aware"]().plan(LOGISTIC, num_records=1000, epsilon=1.0, delta=1e-5)
        verdict.warn_unless_for_intervals(noise_aware_plan)


def simulate(made, repeats):
    """Data sets drawn from prior and model: (coverage of 90 % intervals, mean width, share said to be for intervals).

    The coverage is that of the results that are said to be for intervals, of all where none is.
    """
    rng, hit, width, said = np.random.default_rng(0), [], [], []
    count, scale = made.num_records, made.target.prior_scale
    for repeat in range(repeats):
        theta = rng.normal(size=3) * scale
        x = rng.normal(size=(count, 3))
        x = (x / np.linalg.norm(x, axis=1, keepdims=True) * (1 - 1e-6)).astype(np.float32)
        y = (rng.random(count) < 1 / (1 + np.exp(-x @ theta))).astype(np.int32)
        result = dpmcmc.sample(made, {"x": x, "y": y}, key=repeat)
        draws = np.asarray(result.draws).reshape(-1, 3)
        low, high = np.quantile(draws, [0.05, 0.95], axis=0)
        hit.append((low <= theta) & (theta <= high))
        width.append(high - low)
        said.append("intervals" in result.usable_for)
    counted = np.array(hit)[said] if any(said) else np.array(hit)
    return float(np.mean(counted)), float(np.mean(width)), float(np.mean(said))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "privacy"),
    [(dpmcmc.SGLD(STEP), None), (dpmcmc.SGHMC(STEP / 20, friction=0.1), loose())],
    ids=["sgld", "private sghmc"],
)
def test_intervals_cover_where_a_plan_says_so(sampler, privacy):
    """.88 is due at the edge of the conditions; 180 intervals of 60 data sets have a standard error of .024."""
    steps = obstacles.BURN_IN + permitted_uses.SPAN
    probe = long_run(sampler=sampler, privacy=privacy, steps=2 * STEPS)
    per_step = float(probe.sampler_run.times[0]) * PRECISION
    burn_in = int(obstacles.BURN_IN / per_step) + 1
    made = long_run(sampler=sampler, privacy=privacy, steps=burn_in + int(steps / per_step), burn_in=burn_in)
    assert "intervals" in made.usable_for
    coverage, width, said = simulate(made, 60)
    assert said > 0.6
    assert 0.83 <= coverage <= 0.96
    # The prior alone would cover too, at this width.
    assert width < 0.97 * 2 * 1.645 * PRECISION**-0.5


@pytest.mark.optimised  # most of it is steps
@pytest.mark.slow
def test_label_blind_weights_make_intervals_as_wide_as_is_said():
    """Every weight is below 1 at either clip. 120 intervals have a standard error of .027 at .9."""
    wide, count = LogisticRegression(prior_scale=2.0, num_features=3, row_bound=1.0), 60
    settings = {"num_records": count, "sampler": dpmcmc.SGLD(0.18), "steps": 71_000, "burn_in": 4_000, "thin": 134}
    made, tight = (
        long_run(wide, loose(adjacency="zero_out", clip=clip, clipping=None), **settings) for clip in (0.5, 0.3)
    )
    assert "intervals" not in tight.usable_for
    assert "times too wide" in tight.verdict.reasons["intervals"]
    assert "intervals" in made.usable_for
    coverage, _, _ = simulate(made, 40)
    assert 0.86 <= coverage <= 0.98


@pytest.mark.slow
def test_intervals_do_not_cover_where_a_plan_warns():
    hot = long_run(sampler=dpmcmc.SGLD(STEP, temperature=9.0), steps=2000)
    short = long_run(steps=BURN_IN, burn_in=0, thin=1, sampler=dpmcmc.SGLD(STEP / 30))
    for made, low, high in ((hot, 0.98, 1.0), (short, 0.0, 0.7)):
        assert "intervals" not in made.usable_for
        assert low <= simulate(made, 20)[0] <= high
