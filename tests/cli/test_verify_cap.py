"""A stranger's privacy.json costs a bounded amount of work, and what is grouped for that is still an upper bound."""

import json
import time

import numpy as np
import pytest

from dpmcmc.cli import verified_folder, verify
from dpmcmc.cli.commands import main
from dpmcmc.privacy import Event, Guarantee
from dpmcmc.privacy.accounting import pld, rdp
from dpmcmc.privacy.accounting.adjacency import Adjacency
from dpmcmc.privacy.accounting.events import MOST_BLENDED, MOST_KINDS, query_events
from dpmcmc.privacy.accounting.grouping import grouped


def saved(tmp_path, events, epsilon, delta=1e-5, adjacency="replace_one"):
    path = tmp_path / "privacy.json"
    body = {"delta": delta, "adjacency": adjacency, "accountant": "pld", "release": "trace", "epsilon": epsilon}
    path.write_text(json.dumps(body | {"events": [e.to_json() for e in events]}))
    return str(path)


def steps(z, rate=0.01, count=1):
    return Event("poisson_gaussian", float(z), float(rate), int(count))


def test_two_thousand_different_events_are_grouped_and_the_bound_is_said_to_be_one(tmp_path, capsys):
    events = tuple(steps(z) for z in np.linspace(1, 3, 2000))
    path = saved(tmp_path, events, 100.0)
    assert main(["verify", path]) == 0
    out = capsys.readouterr().out
    assert "2000 kinds of query are charged as " in out
    assert "upper bound" in out
    # The same file, stating less than the bound of its groups: it may be true, and verify cannot tell.
    assert main(["verify", saved(tmp_path, events, 0.1)]) == 1
    assert "cannot be verified within the cap" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("z", "rate", "delta", "adjacency"),
    [(1e5, 0.01, 1e-3, Adjacency.REPLACE_ONE), (3.0, 0.0157, 1e-4, Adjacency.ADD_REMOVE)],
)
def test_a_thousand_million_repetitions_are_within_the_cap(tmp_path, z, rate, delta, adjacency):
    path = saved(tmp_path, (steps(z, rate, 10**9),), 1e9, delta, adjacency)
    assert main(["verify", path]) == 0


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([steps(3.0)] * (verify._MOST_EVENTS + 1), "events"),
        ([steps(3.0, count=10**13)], "more than 1e+12 times"),
    ],
)
def test_what_no_run_writes_is_refused_before_anything_is_computed(tmp_path, events, words, capsys, monkeypatch):
    monkeypatch.setattr(Guarantee, "from_json", lambda body: pytest.fail("computed"))
    assert main(["verify", saved(tmp_path, events, 1.0)]) == 2
    assert words in capsys.readouterr().err


def test_a_long_file_is_refused(tmp_path, capsys):
    path = tmp_path / "privacy.json"
    path.write_text('{"events": "' + "x" * verified_folder.MOST_CHARACTERS + '"}')
    assert main(["verify", str(path)]) == 2
    assert "longer than" in capsys.readouterr().err


@pytest.mark.parametrize("more", [[], ["--group", "3"], ["--delta", "1e-7"]], ids=["record", "group", "delta"])
def test_a_short_file_that_asks_for_hours_is_refused_in_a_sentence(tmp_path, capsys, more):
    """Twelve events, whose pure releases add up to 2,048 losses, each with its own question to an accountant."""
    pure = (Event("pure", 0.0, 1.0, 1, epsilon=0.01 * (1 + 0.1 * i)) for i in range(11))
    started = time.process_time()
    assert main(["verify", saved(tmp_path, (steps(3.0, 0.01, 1000), *pure), 100.0), *more]) == 1
    assert time.process_time() - started < 4
    error = capsys.readouterr().err
    assert "cannot be verified within the cap" in error
    assert "--patient" in error


def test_a_file_of_ones_own_may_take_as_long_as_it_needs(tmp_path, capsys, monkeypatch):
    path = saved(tmp_path, (steps(3.2, 0.1, 20),), 100.0, 1e-4, "add_remove")
    rdp._one_step.cache_clear()
    monkeypatch.setattr(verify, "MOST_WORK", 1000)
    assert main(["verify", path]) == 1
    assert main(["verify", path, "--patient"]) == 0


def test_an_honest_long_schedule_verifies(tmp_path, capsys):
    """A plan charges a schedule in as many groups as an accountant composes, so that both say the same ε."""
    events = query_events("poisson_gaussian", np.geomspace(3, 1000, 10**5), 0.0157)
    assert 64 < len(events) <= MOST_BLENDED
    stated = Guarantee.from_events(events, delta=1e-6, adjacency="replace_one", accountant="pld").epsilon
    rdp._one_step.cache_clear()
    pld._composed_on.cache_clear()
    assert main(["verify", saved(tmp_path, events, stated, 1e-6)]) == 0
    assert "grouped" not in capsys.readouterr().out


@pytest.mark.parametrize("adjacency", [Adjacency.REPLACE_ONE, Adjacency.ADD_REMOVE])
def test_groups_cost_at_least_what_their_members_do(adjacency):
    rng = np.random.default_rng(0)
    rates = rng.choice([0.01, 0.011, 0.05, 0.2, 0.21], 80)
    parts = [steps(z, q) for z, q in zip(rng.uniform(0.8, 4, 80), rates, strict=True)]
    few = grouped(parts)
    assert len(few) <= MOST_KINDS
    assert sum(e.count for e in few) == 80
    orders = (1.5, 2.0, 8.0, 64.0)

    def total(events):
        return sum(e.count * rdp.one_step(e, adjacency, orders) for e in events)

    assert np.all(total(few) >= total(parts))


@pytest.mark.parametrize(
    "key", [("epsilon",), ("steps",), ("chains",), ("sampling", "rate"), ("settings", "noise_multiplier")], ids="/".join
)
def test_a_number_beyond_every_float_is_refused_and_no_fault_of_ours(tmp_path, key, capsys):
    path = saved(tmp_path, (steps(1.0),), 100.0)
    with open(path, encoding="utf-8") as stream:
        body = json.load(stream)
    place = body
    for part in key[:-1]:
        place = place.setdefault(part, {})
    place[key[-1]] = 10**400
    with open(path, "w", encoding="utf-8") as stream:
        json.dump(body, stream)
    assert main(["verify", path]) == 2
    assert "is not a privacy.json of this library" in capsys.readouterr().err
