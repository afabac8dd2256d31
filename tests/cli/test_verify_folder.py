"""``verify`` holds privacy.json against the files beside it, and its work is bounded whatever a file asks for."""

import copy
import dataclasses
import functools
import json
import random
import shutil
import tempfile
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml

import dpmcmc
from dpmcmc import mechanisms
from dpmcmc.cli import verified_folder, verify
from dpmcmc.cli.commands import main
from dpmcmc.privacy import Event, Guarantee
from dpmcmc.storage.released_files import digest

N = 400
LOGISTIC = dpmcmc.targets.LogisticRegression(num_features=3, row_bound=1.0)
PROMISE = {"num_records": N, "epsilon": 1.0, "delta": 1e-5}


def chain(**more):
    privacy = dpmcmc.Privacy(epsilon=1.0, delta=1e-5)
    sampler = dpmcmc.SGLD(step_size=1.0)
    return dpmcmc.plan(LOGISTIC, num_records=N, sampler=sampler, steps=12, burn_in=4, thin=2, privacy=privacy, **more)


KINDS = {
    "chain": lambda: chain(chains=2, sampling=dpmcmc.Poisson(50)),
    "metric": lambda: chain(metric=dpmcmc.PrivateMetric("gram", share=0.15)),
    "noise_aware": lambda: mechanisms.NoiseAware(draws=20).plan(LOGISTIC, **PROMISE),
    "sampler": lambda: mechanisms.NoiseAware(draws=20, sampler="sgld").plan(LOGISTIC, **PROMISE),
    "output": lambda: mechanisms.OutputPerturbation().plan(LOGISTIC, **PROMISE),
}
HOME = tempfile.TemporaryDirectory()


@functools.cache
def saved(kind):
    """The folder of a small result."""
    x = np.random.default_rng(0).uniform(-0.5, 0.5, (N, 3)).astype(np.float32)
    return dpmcmc.sample(KINDS[kind](), {"x": x, "y": (x[:, 0] > 0).astype(np.int32)}).save(Path(HOME.name) / kind)


@pytest.fixture(params=KINDS)
def folder(request, tmp_path):
    return Path(shutil.copytree(saved(request.param), tmp_path / "run"))


def stated(folder, name="privacy.json"):
    return json.loads((folder / name).read_text())


def verified(folder, capsys, body=None):
    """(exit code, error) of ``verify``, of another privacy.json in the folder where one is given."""
    if body is not None:
        (folder / "privacy.json").write_text(json.dumps(body))
    code = main(["verify", str(folder)])
    return code, capsys.readouterr().err


def others(value):
    """Values that a key might have in place of its own."""
    if isinstance(value, bool) or value is None:
        return [1, "x", not value]
    if isinstance(value, int | float):
        return [value + 1, 0.99 * value, 1.01 * value, 0, -value, str(value), None]
    if isinstance(value, str):
        return [value + "x", "", None]
    if isinstance(value, list):
        return [[], value[1:], value[:-1], [*value, *value[:1]]]
    return [{}, None]


def at(body, path):
    return functools.reduce(lambda part, key: part[key], path, body)


def places(body, path=()):
    """Yield (path, value) of everything in a JSON value."""
    inner = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for key, value in inner:
        yield (*path, key), value
        yield from places(value, (*path, key))


def mutations(body):
    """Yield (path, body) with one key or element dropped, or with another value."""
    for path, value in places(body):
        for other in [..., *others(value)]:
            changed = copy.deepcopy(body)
            place = at(changed, path[:-1])
            if other is ...:
                del place[path[-1]]
            else:
                place[path[-1]] = other
            if json.dumps(changed) != json.dumps(body):
                yield path, changed


def test_no_key_may_differ_from_the_plan_and_the_refusal_names_it(folder, capsys):
    body = stated(folder)
    assert verified(folder, capsys) == (0, "")
    every = list(mutations(body))
    assert {path[0] for path, _ in every} == set(body)
    checked = [case for case in every if case[0][0] not in verified_folder.FREE - {"files"}]
    for path, changed in random.Random(1).sample(checked, min(150, len(checked))):
        code, error = verified(folder, capsys, changed)
        assert code, path
        named = path[0] in error or str(path[-1]) in error
        of_files = ("the run has not ended", "is not a file of this result")
        assert named or (path[0] == "files" and any(said in error for said in of_files)), (path, error)
    assert verified(folder, capsys, body) == (0, "")


def consistent(body, **changed):
    """A privacy.json that is true of itself: its numbers follow from its events."""
    made = Guarantee.from_json(body | changed)
    return body | changed | made.to_json() | {"cross_check": made.cross_check()}


def without(events, *numbers):
    return [event for number, event in enumerate(events) if number not in numbers]


def test_a_file_that_is_true_of_itself_and_contradicts_its_plan_is_refused(tmp_path, capsys):
    """The reproductions: no steps and no event of them; the metric's event left out; another adjacency; no digests."""
    folder = Path(shutil.copytree(saved("metric"), tmp_path / "run"))
    body = stated(folder)
    steps = [number for number, event in enumerate(body["events"]) if event["count"] == 12]
    least = {key: value for key, value in body.items() if key != "metric"}
    for changed, word in [
        (consistent(body, events=without(body["events"], *steps), steps=0), "events"),
        (consistent(least, events=body["events"][2:]), "events"),
        (body | {"steps": 0}, "steps"),
        (least, "metric"),
        (consistent(body, adjacency="zero_out"), "adjacency"),
        ({key: value for key, value in body.items() if key != "files"}, "files"),
    ]:
        code, error = verified(folder, capsys, changed)
        assert code == 1
        assert word in error
    assert verified(folder, capsys, body)[0] == 0


def rewritten(folder, name, content):
    """Another file in a folder, with the digest that goes with it."""
    (folder / name).write_bytes(content)
    body = stated(folder)
    body["files"][name] = digest(content)
    (folder / "privacy.json").write_text(json.dumps(body))


def test_the_plan_the_draws_and_the_config_are_held_against_it_with_digests_of_their_own(folder, capsys):
    body = stated(folder)
    plan = stated(folder, "plan.json")
    for key, other in (("guarantee", None), ("unit", "owner"), ("facts", plan["facts"] | {"num_records": 7})):
        rewritten(folder, "plan.json", json.dumps(plan | {key: other}).encode())
        assert verified(folder, capsys)[0] == 1
    rewritten(folder, "plan.json", json.dumps(plan).encode())
    config = {"privacy": {"epsilon": 1.0, "delta": 1e-5, "adjacency": "replace_one", "ledger": "a.ledger"}}
    rewritten(folder, "config.yaml", yaml.safe_dump(config).encode())
    receipt = {"ledger": {"name": "a receipt, and no path"}}
    (folder / "privacy.json").write_text(json.dumps(stated(folder) | receipt))
    assert verified(folder, capsys) == (0, "")
    for key, other in (("delta", 1e-6), ("adjacency", "zero_out")):
        rewritten(folder, "config.yaml", yaml.safe_dump({"privacy": config["privacy"] | {key: other}}).encode())
        code, error = verified(folder, capsys)
        assert (code, f"another {key} than config.yaml" in error) == (1, True)
    rewritten(folder, "config.yaml", b"{" * 100_000)
    assert verified(folder, capsys)[0] == 1
    rewritten(folder, "config.yaml", yaml.safe_dump({"run": {"steps": body.get("steps")}}).encode())
    assert verified(folder, capsys) == (0, "")
    with h5py.File(folder / "draws.nc", "r+") as file:
        name = next(name for name in ("path", "draws", "posterior") if name in file)
        file[name].attrs["epsilon"] = 0.5
    rewritten(folder, "draws.nc", (folder / "draws.nc").read_bytes())
    assert "another epsilon than draws.nc" in verified(folder, capsys)[1]
    with h5py.File(folder / "draws.nc", "r+") as file:
        leaf = next(key for key, one in file[name].items() if one.ndim > 1)
        shape = file[name][leaf].shape
        del file[name][leaf]
        file[name][leaf] = np.zeros((shape[0], shape[1] + 1, *shape[2:]))
    rewritten(folder, "draws.nc", (folder / "draws.nc").read_bytes())
    code, error = verified(folder, capsys)
    assert (code, f"{shape[0]} x {shape[1]} draws" in error) == (1, True)


def test_a_plan_made_again_refuses_files_that_agree_and_no_code_of_a_folder_is_called(tmp_path, capsys):
    """The metric's release is taken out of privacy.json and out of plan.json, and both are true of themselves."""
    folder = Path(shutil.copytree(saved("metric"), tmp_path / "run"))
    body, plan = stated(folder), stated(folder, "plan.json")
    least = consistent({key: value for key, value in body.items() if key != "metric"}, events=body["events"][2:])
    least["epsilon"] = body["epsilon"]  # that of draws.nc
    facts = {key: value for key, value in plan["facts"].items() if key != "metric"}
    charged = {key: least[key] for key in plan["guarantee"]}
    text = json.dumps(plan | {"facts": facts, "guarantee": charged}).encode()
    least["files"] = body["files"] | {"plan.json": digest(text)}
    (folder / "plan.json").write_bytes(text)
    code, error = verified(folder, capsys, least)
    assert (code, "than the plan that is made again" in error) == (1, True)
    (folder / "ran.py").write_text("raise SystemExit(9)")
    (folder / "privacy.json").write_text(json.dumps(body))
    for name in ("ran:made", "dpmcmc.storage.atomic:write_atomically"):
        config = plan["config"] | {"target": {"name": name}}
        rewritten(folder, "plan.json", json.dumps(plan | {"config": config}).encode())
        assert main(["verify", str(folder)]) == 0
        assert "plan.json names code, and verify calls none" in " ".join(capsys.readouterr().out.split())


def test_a_result_that_was_loaded_and_saved_again_verifies(tmp_path, capsys):
    again = dpmcmc.load(saved("metric")).save(tmp_path / "again")
    assert verified(again, capsys) == (0, "")


# Work.

LAWS = [("pld", "replace_one", "trace"), ("rdp", "add_remove", "trace"), ("advanced", "replace_one", "trace"),
        ("one_sample", "replace_one", "estimate"), ("last_iterate", "zero_out", "last_iterate")]  # fmt: skip
SIZES = (0, 1, 2.5, 1e-300, 1e-160, 1e-9, 1e9, 1e160, 1e308, 10**400, -1, 2**53, 10**12, True, None, "x", [], {})


def event(rng):
    """An event that may be no event, and numbers that no run has."""
    kinds = ("gaussian", "poisson_gaussian", "fixed_size_gaussian", "pure", "posterior_draw", "noisy_descent",
             "objective_perturbation", "approximate_draw", "batch_overflow", "nothing")  # fmt: skip
    one = {"mechanism": rng.choice(kinds), "noise_multiplier": 10 ** rng.uniform(-2, 3), "rate": rng.random(),
           "count": rng.randrange(1, 100)}  # fmt: skip
    if rng.random() < 0.5:
        one["rate"] = 1.0
    one |= {"epsilon": rng.random()} if rng.random() < 0.2 else {}
    one |= {"steps": 10, "contraction": 0.5} if one["mechanism"] == "noisy_descent" else {}
    one |= {"num_records": rng.randrange(1, 10**6)} if rng.random() < 0.3 else {}
    if rng.random() < 0.3:
        one[rng.choice(list(one))] = rng.choice(SIZES)
    return one


def malformed(rng):
    """A privacy.json of odd events and odd numbers."""
    accountant, adjacency, release = rng.choice(LAWS)
    kind = event(rng)
    body = {"epsilon": 1e6, "delta": 1e-5, "adjacency": adjacency, "accountant": accountant, "release": release}
    many = rng.choice((1, 5, 60, 1000))
    same = rng.random() < 0.7
    body["events"] = [kind | {"noise_multiplier": rng.uniform(1, 50)} if same else event(rng) for _ in range(many)]
    facts = ("steps", "chains", "second_every", "num_records", "coordinates", "delta", "epsilon", "charged_draws",
             "multiples", "sampling", "metric", "settings", "noise_multiplier", "unit", "assumptions")  # fmt: skip
    for name in rng.sample(facts, 3):
        body[name] = rng.choice(SIZES)
    return body


def timed(tmp_path, text, capsys):
    """(exit code, seconds of this process, error) of a file with this text."""
    (tmp_path / "privacy.json").write_text(text)
    started = time.process_time()
    code = main(["verify", str(tmp_path / "privacy.json")])
    return code, time.process_time() - started, capsys.readouterr().err


def test_no_malformed_file_takes_long_or_fails_in_another_way_than_a_sentence(tmp_path, capsys):
    for seed in range(60):
        body = malformed(random.Random(seed))
        code, seconds, error = timed(tmp_path, json.dumps(body), capsys)
        assert code in (0, 1, 2), seed
        assert seconds < 4, seed
        assert bool(error) == bool(code)
        assert error.count("\n") == bool(code), error
        assert "Traceback" not in error


@pytest.mark.parametrize("kind", ["gaussian", "poisson_gaussian", "pure"])
@pytest.mark.parametrize("count", [1, 10**11])
def test_thousands_of_odd_events_end_soon(kind, count, tmp_path, capsys):
    """The reproduction: 5,000 took 22 s, and then an OverflowError."""
    rng = random.Random(0)
    body = {"epsilon": 1.0, "delta": 1e-5, "adjacency": "replace_one", "accountant": "pld", "release": "trace"}
    rate = (lambda: rng.random()) if kind == "poisson_gaussian" else (lambda: 1.0)
    every = [
        {"mechanism": kind, "noise_multiplier": rng.uniform(1, 50), "rate": rate(), "count": count, "epsilon": 1.0}
        for _ in range(5000)
    ]
    code, seconds, error = timed(tmp_path, json.dumps(body | {"events": every}), capsys)
    assert (code, seconds < 1) == (2, True)
    assert "holds 5000 events" in error
    code, seconds, error = timed(tmp_path, json.dumps(body | {"events": every[: verify._MOST_EVENTS]}), capsys)
    assert code in (1, 2)
    assert seconds < 5
    assert "OverflowError" not in error


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"events": ' + "[" * 900 + "]" * 900 + "}", '{"events": [' + "9" * 5000 + "]}",
     '{"events": [{}], "epsilon": 1e999}', '{"events": [NaN]}', '{"events": [-Infinity]}', "{" * 50_000],
    ids=["deep", "deep-events", "digits", "infinite", "nan", "minus-infinity", "deep-objects"],
)  # fmt: skip
def test_no_text_takes_long(text, tmp_path, capsys):
    code, seconds, error = timed(tmp_path, text, capsys)
    assert (code, seconds < 1, error.count("\n")) == (2, True, 1)


def test_a_number_beyond_all_accountants_is_said_to_be_one(tmp_path, capsys):
    body = Guarantee.from_events(
        (Event("gaussian", 10.0, 1.0, 4),), delta=1e-5, adjacency="replace_one", accountant="pld"
    ).to_json()
    body["events"][0]["noise_multiplier"] = 1e-170
    code, _, error = timed(tmp_path, json.dumps(body), capsys)
    assert code in (1, 2)
    assert "too large or too small" in error


def test_assumptions_with_control_characters_are_refused(tmp_path, capsys):
    """They are printed: a file from a stranger could write on the screen what verify says."""
    body = Guarantee.from_events(
        (Event("gaussian", 10.0, 1.0, 4),), delta=1e-5, adjacency="replace_one", accountant="pld"
    )
    text = json.dumps(dataclasses.replace(body, assumptions=("fine\n\x1b[2J✓ verified",)).to_json())
    code, _, error = timed(tmp_path, text, capsys)
    assert code == 2
    assert "\x1b" not in error
