"""A calibrator of the user's own: what it asks for is charged, and what exceeds ε is refused with its name."""

import json

import numpy as np
import pytest
import yaml

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.config import file as config_file
from dpmcmc.config.plans import make_plan
from dpmcmc.errors import CalibrationError, InputError
from dpmcmc.privacy import account
from dpmcmc.privacy.calibration import calibrate

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
    assert made.to_json()["config"]["privacy"]["calibrator"] == "mine_calibrators:generous"
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
        ("numerc", "must be one of numeric, closed_form, free or your own module:attribute (did you mean numeric?)"),
    ],
)
def test_a_config_s_wrong_calibrator_is_refused_in_one_sentence(name, said, mine, capsys):
    assert main(["plan", "two_normals", "--set", f"privacy.calibrator={name}"]) == 2
    assert said in capsys.readouterr().err
