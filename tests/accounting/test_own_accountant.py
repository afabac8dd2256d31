"""An accountant of the user's own: its word is marked, checked from below, and shown beside the library's own."""

import json
import math
import sys

import numpy as np
import pytest

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.errors import InputError, UnsupportedCombination
from dpmcmc.privacy import Guarantee, account
from dpmcmc.privacy.accounting import hockey_stick, lower_bound, pld, rdp
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.composition import Composed
from dpmcmc.privacy.accounting.events import Event
from dpmcmc.privacy.accounting.gaussian_queries import gaussian_parameter

N, STEPS, DELTA = 5000, 40, 1e-6
NAME = f"{__name__}:concentrated"
MINE = """
import math
from dpmcmc.privacy.accounting.gaussian_queries import gaussian_parameter

def concentrated(events, adjacency, delta) -> float:
    rho = gaussian_parameter(events, adjacency) ** 2 / 2
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))

def hopeful(events, adjacency, delta) -> float:
    return concentrated(events, adjacency, delta) / 4

def unsaid(events, adjacency, delta):
    raise AssertionError("called")
"""


def concentrated(events, adjacency, delta) -> float:
    rho = gaussian_parameter(events, adjacency) ** 2 / 2
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def hopeful(events, adjacency, delta) -> float:
    return 0.3


def broken(events, adjacency, delta) -> float:
    raise RuntimeError("no\nidea")


def negative(events, adjacency, delta) -> float:
    return -1.0


def unsaid(events, adjacency, delta):
    raise AssertionError("called")


def counted(accountant, z=100.0, **more):
    settings = {"steps": STEPS, "sampling": dpmcmc.Full(), "num_records": N, "delta": DELTA} | more
    return account(z, **settings, accountant=accountant)


def test_its_epsilon_is_stated_and_marked_as_the_user_s_word():
    found = counted(concentrated)
    mu = 2 * math.sqrt(STEPS) / 100.0
    assert found.epsilon == pytest.approx(mu**2 / 2 + mu * math.sqrt(2 * math.log(1 / DELTA)), rel=1e-3)
    assert found.accountant == NAME
    assert found.assumptions == (
        f"The accountant {NAME}, which is not the library's, never says less than the true epsilon.",
    )
    assert found.cross_check()["pld"] == pytest.approx(counted("pld").epsilon)
    # δ(ε) is that of the same function.
    assert found.delta_at(found.epsilon) == pytest.approx(DELTA, rel=1e-6)
    assert found.epsilon_at(1e-4) < found.epsilon


def test_it_is_recomputed_from_a_file_and_composed():
    found = counted(concentrated)
    again = Guarantee.from_json(json.loads(json.dumps(found.to_json())))
    assert again == found
    twice = found.compose(counted("pld"))
    assert twice.accountant == NAME
    assert twice.assumptions == found.assumptions


def test_one_below_the_lower_bound_is_refused_by_name():
    with pytest.raises(UnsupportedCombination, match=r"hopeful says epsilon 0\.3 .* cost at least 0\.5"):
        counted(hopeful)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (broken, "says: RuntimeError: no idea"),
        (negative, "must return an epsilon >= 0, got -1"),
        (unsaid, "does not say that it returns an epsilon, so it is not called"),
        (lambda events, adjacency, delta: 1.0, "is no function at the top of a module"),
        ("nowhere_at_all:mine", "is no function at the top of a module that is imported"),
        ("os:getcwd", "is no function at the top of a module"),
        ("pdl", "unknown accountant 'pdl'"),
    ],
)
def test_what_is_no_accountant_is_refused(function, said):
    with pytest.raises(InputError, match=said):
        counted(function)


def test_a_plan_is_calibrated_by_it():
    target = dpmcmc.targets.LogisticRegression(num_features=3, row_bound=1.0)

    def made(accountant):
        privacy = dpmcmc.Privacy(epsilon=1.0, delta=DELTA, accountant=accountant)
        sampler = dpmcmc.SGLD(step_size=32.0)
        return dpmcmc.plan(target, num_records=N, privacy=privacy, sampler=sampler, steps=STEPS)

    mine = made(concentrated)
    assert 0.99 < mine.guarantee.epsilon <= 1.0
    assert mine.noise_multipliers[0] > made("pld").noise_multipliers[0]
    with pytest.raises(UnsupportedCombination, match="hopeful says epsilon"):
        made(hopeful)


# The lower bound.

EVENTS = [
    (Event("poisson_gaussian", 8.0, 0.05, 3000), 1.01),
    (Event("poisson_gaussian", 1.0, 0.01, 1000), 1.01),
    (Event("poisson_gaussian", 100.0, 0.3, 100_000), 1.01),
    (Event("poisson_gaussian", 2.0, 0.1, 1), 1.01),
    (Event("gaussian", 10.0, 1.0, 20), 1 + 1e-6),
]


@pytest.mark.parametrize(("event", "ratio"), EVENTS, ids=lambda part: str(part)[:40])
@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT])
def test_it_lies_below_pld_and_close_to_it(event, ratio, adjacency):
    lower = lower_bound.epsilon((event,), adjacency, 1e-6)
    upper = pld.epsilon((event,), adjacency, 1e-6)
    assert lower <= upper <= ratio * lower


def test_mixed_queries_are_counted_together():
    events = (
        *(Event("poisson_gaussian", 4.0 + 0.05 * i, 0.05, 50) for i in range(40)),
        Event("gaussian", 40.0, 1.0, 3),
    )
    lower = lower_bound.epsilon(events, Adjacency.REPLACE_ONE, 1e-6)
    upper = pld.epsilon(events, Adjacency.REPLACE_ONE, 1e-6)
    assert lower <= upper <= 1.05 * lower


def test_a_batch_of_fixed_size_costs_at_least_its_pair():
    event = Event("fixed_size_gaussian", 3.0, 0.01, 1000, num_records=10_000)
    lower = lower_bound.epsilon((event,), Adjacency.REPLACE_ONE, 1e-6)
    assert 0.1 < lower <= rdp.epsilon((event,), Adjacency.REPLACE_ONE, 1e-6)


def below(z, q, direction, interval):
    """(δ of the drawn curve, the exact δ), each between the points of its grid too."""
    curve = Composed(lower_bound.one_step(z, q, direction, interval, -40.0).masses, interval)
    points = interval * np.arange(1, 400) / 3
    return np.array([curve.delta(e) for e in points]), hockey_stick.excess(points, z, q, direction)


@pytest.mark.parametrize("direction", ["replace", "remove", "add"])
@pytest.mark.parametrize(
    ("z", "q", "interval"), [(1.0, 0.01, 2**-9), (4.0, 0.2, 2**-8), (0.7, 0.5, 2**-5), (30, 0.9, 2**-8)]
)
def test_one_step_s_curve_lies_below_its_exact_curve(direction, z, q, interval):
    drawn, exact = below(z, q, direction, interval)
    assert np.all(drawn <= exact * (1 + 1e-9) + 1e-15)
    assert np.all(drawn >= 0.5 * exact - 1e-3)


def test_points_that_are_not_lowered_are_caught(monkeypatch):
    """Planted: the curve connects points of δ itself, and lies above it between them."""
    monkeypatch.setattr(lower_bound, "_points_below", lambda losses, *step: hockey_stick.excess(losses, *step))
    drawn, exact = below(4.0, 0.2, "replace", 2.0**-8)
    assert np.any(drawn > exact * (1 + 1e-6))


# The command line.

FULL = "sampling={scheme: full}"


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine_accountants.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("mine_accountants", None)


def test_a_config_names_one_and_verify_shows_the_library_s_own(mine, capsys):
    words = ["privacy.accountant=mine_accountants:concentrated", "run={steps: 8, burn_in: 0, thin: 1}", FULL]
    changes = [word for change in words for word in ("--set", change)]
    assert main(["run", "two_normals", "--out", "out", *changes]) == 0
    stated = json.loads((mine / "out" / "privacy.json").read_text())
    assert stated["accountant"] == "mine_accountants:concentrated"
    assert "not the library's" in stated["assumptions"][-1]
    capsys.readouterr()
    sys.modules.pop("mine_accountants")
    assert main(["verify", "out"]) == 2
    assert "--allow-code mine_accountants" in capsys.readouterr().err
    assert main(["verify", "out", "--allow-code", "mine_accountants", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["accountants"]["pld"] < said["epsilon"] == stated["epsilon"]
    assert any("word of accountant mine_accountants:concentrated" in remark for remark in said["remarks"])


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mine_accountants:hopeful", "accountant mine_accountants:hopeful says epsilon"),
        ("mine_accountants:unsaid", "does not say that it returns an epsilon, so it is not called"),
        ("mine_accountants:none", "cannot be imported"),
        ("pdl", "'pld', 'rdp' or 'advanced' (did you mean pld?) or your own module:attribute"),
    ],
)
def test_a_config_s_wrong_accountant_is_refused_in_one_sentence(name, said, mine, capsys):
    assert main(["plan", "two_normals", "--set", FULL, "--set", f"privacy.accountant={name}"]) == 2
    assert said in capsys.readouterr().err


def test_a_function_of_the_library_is_no_accountant_of_ones_own():
    """Its lower bound would pass the check that it is, below the true epsilon."""
    with pytest.raises(UnsupportedCombination, match="take pld, rdp or advanced"):
        counted("dpmcmc.privacy.accounting.lower_bound:epsilon", sampling=dpmcmc.Poisson(50), z=0.8)


@pytest.mark.parametrize(
    "events",
    [
        [Event("poisson_gaussian", 1.0, 0.01, 1000), Event("poisson_gaussian", 100.0, 0.001, 1)],
        [Event("poisson_gaussian", 0.5, 0.1, 10), Event("poisson_gaussian", 3000.0, 0.001, 5)],
        [Event("gaussian", 1.0, 1.0, 235), Event("poisson_gaussian", 11.7, 0.005, 10)],
        [Event("gaussian", 0.23, 1.0, 235), Event("poisson_gaussian", 11.7, 0.005, 10)],
    ],
    ids=["quiet beside loud", "far quieter", "a Gaussian of a far larger loss", "larger yet"],
)
@pytest.mark.parametrize("adjacency", ["replace_one", "zero_out"])
def test_the_lower_bound_has_a_number_for_steps_of_different_size(events, adjacency):
    """A step whose losses all fit into one cell, and one whose losses are more cells than there is memory for."""
    found = lower_bound.epsilon(events, Adjacency(adjacency), DELTA)
    alone = lower_bound.epsilon(events[:1], Adjacency(adjacency), DELTA)
    assert 0.99 * alone <= found <= rdp.epsilon(events, Adjacency(adjacency), DELTA)
