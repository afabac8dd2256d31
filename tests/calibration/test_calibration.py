"""Calibrated noise meets its target and is not much more than that.

A calibrator of the user's own: what it asks for is charged, and what exceeds ε is refused with its name.
"""

import json
import math

import numpy as np
import pytest
import yaml

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.config import file as config_file
from dpmcmc.config.plans import make_plan
from dpmcmc.errors import CalibrationError, InputError
from dpmcmc.privacy import FixedSize, Full, Poisson
from dpmcmc.privacy.accounting.cost_of_run import account
from dpmcmc.privacy.accounting.events import KAPPA
from dpmcmc.privacy.calibration import calibrate, closed_form, numeric


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DPMCMC_CACHE", str(tmp_path))


def check(target: dict, slack: float = 0.01) -> float:
    """z of the target, after checking that it is on the private side and within ``slack`` where reachable."""
    epsilon = target["epsilon"]
    settings = {k: v for k, v in target.items() if k not in ("epsilon", "floor")}
    z = calibrate(**target)
    spent = account(np.maximum(z, target.get("floor", 0.0)), **settings).epsilon
    assert spent <= epsilon * (1 + 1e-6)
    if z > 1e-5:
        assert spent >= epsilon * (1 - slack)
    return z


# ε in [.01, 50], δ in [1e-9, 1e-3], rates 1e-4..1, steps 1..1e6.
SAMPLE = [
    (1.0, 1e-6, 512, 32_561, 1272),
    (0.01, 1e-9, 10, 100_000, 1000),
    (50.0, 1e-3, 1000, 10_000, 100_000),
    (0.01, 1e-3, 100, 100, 1),
    (3.0, 1e-9, 5000, 10_000, 1),
    (0.1, 1e-5, 10, 100_000, 1_000_000),
    (10.0, 1e-7, 900, 1000, 50),
    (50.0, 1e-9, 10, 100_000, 1),
]


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "delta", "b", "n", "steps"), SAMPLE)
def test_numeric_answers_are_private_and_within_one_percent(epsilon, delta, b, n, steps):
    check({"epsilon": epsilon, "delta": delta, "steps": steps, "sampling": Poisson(b), "num_records": n})


@pytest.mark.parametrize("accountant", ["rdp", "advanced"])
@pytest.mark.parametrize("sampling", [FixedSize(500), Full()])
def test_numeric_inverts_any_accountant(accountant, sampling):
    check(
        {
            "epsilon": 1.0,
            "delta": 1e-6,
            "steps": 400,
            "sampling": sampling,
            "num_records": 10_000,
            "accountant": accountant,
        }
    )


def test_any_noise_is_fine_where_delta_covers_the_whole_run():
    """(1 − q)^steps > 1 − δ: a record takes part with probability below δ."""
    z = calibrate(epsilon=0.1, delta=1e-3, steps=5, sampling=Poisson(1), num_records=10_000)
    assert 0 < z < 0.1
    assert account(z, delta=1e-3, steps=5, sampling=Poisson(1), num_records=10_000).epsilon <= 0.1


@pytest.mark.parametrize(("calibrator", "sampling"), [("numeric", Full()), ("closed_form", FixedSize(1000))])
def test_chains_are_paid_for(calibrator, sampling):
    base = {"epsilon": 1.0, "delta": 1e-5, "sampling": sampling, "num_records": 10_000, "calibrator": calibrator}
    four = calibrate(steps=500, chains=4, **base)
    assert four == pytest.approx(calibrate(steps=2000, **base), rel=5e-3)


def test_full_batch_needs_the_exact_gaussian_noise():
    import dp_accounting

    z = calibrate(
        epsilon=1.0, delta=1e-6, steps=1, sampling=Full(), num_records=100, adjacency="zero_out", accountant="pld"
    )
    exact = dp_accounting.get_sigma_gaussian(1.0, 1e-6)
    assert exact <= z <= exact * (1 + 5e-3)


FLOORED = {"epsilon": 1.0, "delta": 1e-6, "steps": 100, "sampling": Full(), "num_records": 1000}


def test_privacy_is_free_where_the_floor_suffices():
    needed = calibrate(**FLOORED)
    assert calibrate(floor=needed, **FLOORED) == 0
    assert calibrate(floor=np.linspace(needed, 2 * needed, 100), **FLOORED) == 0


def test_a_low_floor_changes_nothing():
    needed = calibrate(**FLOORED)
    assert calibrate(floor=0.5 * needed, **FLOORED) == pytest.approx(needed, rel=3e-3)


def test_an_array_floor_is_paid_for_once():
    needed = calibrate(**FLOORED)
    floor = np.where(np.arange(100) < 50, 0.0, 3 * needed)
    z = check({**FLOORED, "floor": floor})
    # Full batch: Σ 1/z² is what matters, and half the steps already cost 1/(3·needed)² each.
    assert z == pytest.approx(needed / math.sqrt(2 - 1 / 9), rel=4e-3)


@pytest.mark.slow
def test_a_schedule_of_many_floors_calibrates():
    settings = {**FLOORED, "steps": 2000, "sampling": Poisson(20), "accountant": "rdp"}
    check({**settings, "floor": np.geomspace(0.5, 10, 2000)})


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"steps": 0}, "steps"),
        ({"floor": -1.0}, "floor"),
        ({"floor": [1.0, 2.0]}, "floor"),
        ({"calibrator": "guess"}, "closed_form"),
        ({"sampling": Poisson(2000)}, "batch_size"),
        ({"sampling": FixedSize(10)}, "rdp"),
    ],
)
def test_impossible_requests_are_refused(bad, match):
    with pytest.raises(ValueError, match=match):
        calibrate(**{**FLOORED, **bad})


def test_a_target_out_of_reach_is_an_error_that_says_so(monkeypatch):
    monkeypatch.setattr(numeric, "_LARGEST", 10.0)
    with pytest.raises(CalibrationError, match="no noise multiplier below"):
        calibrate(**{**FLOORED, "epsilon": 0.01})


def test_free_adds_nothing():
    assert calibrate(calibrator="free", floor=0.3, **FLOORED) == 0


CLOSED = [
    (1.0, 1e-5, 256, 60_000, 20_000),
    (0.1, 1e-6, 512, 32_561, 2000),
    (5.0, 1e-7, 5000, 10_000, 300),
    (2.0, 1e-5, 1000, 1000, 50),
]


@pytest.mark.parametrize(("epsilon", "delta", "b", "n", "steps"), CLOSED)
def test_closed_form_accounted_by_its_own_route_meets_its_target(epsilon, delta, b, n, steps):
    settings = {"delta": delta, "steps": steps, "sampling": FixedSize(b), "num_records": n}
    z = calibrate(epsilon=epsilon, calibrator="closed_form", **settings)
    spent = account(z, accountant="advanced", **settings).epsilon
    assert 0 < spent <= epsilon
    # The printed constant's noise is smaller by √2.
    printed = closed_form.formula(epsilon=epsilon, delta=delta, steps=steps, rate=b / n, constant=128)
    assert z == pytest.approx(math.sqrt(2) * printed * (1 + KAPPA), rel=1e-12)


def test_closed_form_variance_is_the_theorem_with_256():
    """V = (256 k L²/ε²) log(2.5k/δ) log(2/δ) in gradient units, z = √V·b/(N·L)."""
    epsilon, delta, k, n, b = 0.5, 1e-5, 30_000, 60_000, 256
    variance = 256 * k / epsilon**2 * math.log(2.5 * k / delta) * math.log(2 / delta)
    z = calibrate(epsilon=epsilon, delta=delta, steps=k, sampling=FixedSize(b), num_records=n, calibrator="closed_form")
    assert z == pytest.approx(math.sqrt(variance) * b / n * (1 + KAPPA), rel=1e-12)


def test_each_line_of_the_closed_form_proof_holds():
    for epsilon, delta, b, n, k in CLOSED:
        q = b / n
        z = closed_form.formula(epsilon=epsilon, delta=delta, steps=k, rate=q)
        step = 2 * math.sqrt(2 * math.log(2.5 * k / delta)) / z
        sampled = math.log1p(q * math.expm1(step))
        assert step <= 1
        assert sampled <= 2 * q * step
        assert 2 * q * step * math.sqrt(2 * k * math.log(2 / delta)) == pytest.approx(epsilon / 2)
        assert k * 2 * q * step * math.expm1(2 * q * step) <= epsilon / 2


def test_closed_form_refuses_what_it_does_not_prove():
    base = {"epsilon": 1.0, "delta": 1e-5, "num_records": 10_000, "calibrator": "closed_form"}
    with pytest.raises(CalibrationError, match="fixed_size"):
        calibrate(steps=500, sampling=Poisson(100), **base)
    with pytest.raises(CalibrationError, match="replace_one"):
        calibrate(steps=500, sampling=FixedSize(100), adjacency="zero_out", **base)
    with pytest.raises(CalibrationError, match="steps >="):
        calibrate(steps=5, sampling=FixedSize(100), **base)
    with pytest.raises(CalibrationError, match="beyond the range"):
        calibrate(steps=10**7, sampling=FixedSize(5000), **{**base, "epsilon": 200.0})


CACHED = {"epsilon": 1.0, "delta": 1e-6, "steps": 50, "sampling": Poisson(10), "num_records": 1000, "accountant": "rdp"}


def saved_file(folder):
    (path,) = (folder / "calibrations").glob("*.json")
    return path


@pytest.mark.parametrize("value", [0.01, 0.0, -5.0, math.nan, "text", None])
def test_a_tampered_cache_is_not_believed(tmp_path, value):
    first = calibrate(**CACHED)
    path = saved_file(tmp_path)
    saved = json.loads(path.read_text())
    path.write_text(json.dumps(saved | {"noise_multiplier": value}))
    assert calibrate(**CACHED) == first
    path.write_text(json.dumps(saved | {"inputs": saved["inputs"] | {"epsilon": 2.0}}))
    assert calibrate(**CACHED) == first
    path.write_text("{")
    assert calibrate(**CACHED) == first


TARGET = dpmcmc.targets.LogisticRegression(num_features=3, row_bound=1.0)
N, STEPS, DELTA = 5000, 40, 1e-6
MINE = """
import numpy as np

def generous(queries, promise) -> float:
    return 40.0

def stingy(queries, promise) -> float:
    return 0.01

def unsaid(queries, promise):
    raise AssertionError("called")
"""


def plan(calibrator, **more):
    privacy = dpmcmc.Privacy(epsilon=1.0, delta=DELTA, calibrator=calibrator)
    settings = {"sampler": dpmcmc.SGLD(step_size=32.0), "steps": STEPS} | more
    return dpmcmc.plan(TARGET, num_records=N, privacy=privacy, **settings)


def needed():
    """The least noise multiplier, of an independent call."""
    return calibrate(epsilon=1.0, delta=DELTA, steps=STEPS, sampling=dpmcmc.Full(), num_records=N)


def test_the_noise_that_it_asks_for_is_added_and_charged():
    seen = []

    def mine(queries, promise):
        seen.append((queries.num_records, len(queries.noise_multipliers), promise.epsilon))
        return 1.5 * needed()

    made = plan(mine)
    assert seen == [(N, STEPS, 1.0)]
    np.testing.assert_allclose(made.noise_multipliers, 1.5 * needed(), rtol=1e-6)
    charged = account(1.5 * needed(), steps=STEPS, sampling=dpmcmc.Full(), num_records=N, delta=DELTA, accountant="pld")
    assert made.guarantee.epsilon == pytest.approx(charged.epsilon, rel=1e-3)
    assert made.guarantee.epsilon < 0.7


def test_noise_may_differ_from_step_to_step_and_never_falls_below_the_sampler_s_own():
    asked = needed() * np.linspace(2.0, 0.8, STEPS)
    made = plan(lambda queries, promise: asked)
    assert np.all(np.diff(made.noise_multipliers) <= 0)
    assert made.noise_multipliers[0] == pytest.approx(asked[0], rel=1e-6)
    assert made.guarantee.epsilon <= 1.0
    quiet = plan(lambda queries, promise: 0.0, sampler=dpmcmc.SGLD(step_size=1e-4))  # its own noise is enough
    np.testing.assert_allclose(quiet.noise_std, (2 * N / 1e-4) ** 0.5, rtol=1e-6)


def test_one_that_asks_for_too_little_is_refused_by_name():
    def stingy(queries, promise):
        return 0.5 * needed()

    with pytest.raises(
        CalibrationError, match=r"calibrator .*stingy asks for noise that accountant pld does not accept"
    ):
        plan(stingy)


@pytest.mark.parametrize(
    "found", [float("nan"), -1.0, float("inf"), np.ones(STEPS - 1), "much", None], ids=lambda found: str(found)[:8]
)
def test_one_that_returns_no_noise_is_refused(found):
    with pytest.raises(InputError, match=r"calibrator .*(must return a finite noise multiplier|says)"):
        plan(lambda queries, promise: found)


def test_one_that_fails_is_refused_in_its_own_words():
    def broken(queries, promise):
        raise RuntimeError("no\nidea")

    with pytest.raises(InputError, match="says: RuntimeError: no idea"):
        plan(broken)


def test_a_step_size_is_solved_from_one_number_alone():
    made = plan(lambda queries, promise: 2 * needed(), sampler=dpmcmc.SGLD(step_size="auto"))
    assert made.temperatures.max() == pytest.approx(1.0, abs=1e-3)
    with pytest.raises(InputError, match="step_size auto and friction matched are solved from one noise multiplier"):
        plan(lambda queries, promise: np.full(STEPS, 99.0), sampler=dpmcmc.SGLD(step_size="auto"))


def test_it_runs_beside_a_private_metric_on_what_the_metric_left():
    made = plan(lambda queries, promise: 3 * needed(), metric=dpmcmc.PrivateMetric(share=0.2))
    assert made.guarantee.epsilon < 1.0
    with pytest.raises(CalibrationError, match="does not accept"):
        plan(lambda queries, promise: needed(), metric=dpmcmc.PrivateMetric(share=0.2))


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine_calibrators.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_a_config_names_one(mine, capsys):
    changes = ["privacy.calibrator=mine_calibrators:generous", "run={steps: 8, burn_in: 0, thin: 1}"]
    made = make_plan(config_file.load("two_normals", changes))
    np.testing.assert_allclose(made.noise_multipliers, 40.0, rtol=1e-6)
    assert made.describe().stated["config"]["privacy"]["calibrator"] == "mine_calibrators:generous"
    words = [word for change in changes for word in ("--set", change)]
    assert main(["run", "two_normals", "--out", "out", *words, "--allow-code", "mine_calibrators"]) == 0
    assert yaml.safe_load((mine / "out" / "config.yaml").read_text())["privacy"]["calibrator"] == (
        "mine_calibrators:generous"
    )
    assert main(["verify", "out"]) == 0
    capsys.readouterr()
    # The config of a run folder may be somebody else's.
    assert main(["plan", "out/config.yaml"]) == 2
    assert "--allow-code mine_calibrators" in capsys.readouterr().err
    assert main(["plan", "out/config.yaml", "--allow-code", "mine_calibrators", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["guarantee"]["epsilon"] == made.guarantee.epsilon


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mine_calibrators:stingy", "calibrator mine_calibrators:stingy asks for noise"),
        ("mine_calibrators:unsaid", "is no function that says that it returns a noise multiplier, so it is not called"),
        ("mine_calibrators:none", "cannot be imported"),
        ("os:getcwd", "is no function that says that it returns a noise multiplier"),
        ("numerc", "'numeric', 'closed_form' or 'free' (did you mean numeric?) or your own module:attribute"),
    ],
)
def test_a_config_s_wrong_calibrator_is_refused_in_one_sentence(name, said, mine, capsys):
    assert main(["plan", "two_normals", "--set", f"privacy.calibrator={name}"]) == 2
    assert said in capsys.readouterr().err
