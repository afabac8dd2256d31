"""Sections are made from constructors: a new key touches one place, and whatever is refused names its YAML path.

A text without quotes in a YAML is what it says: YAML 1.1 would read ``no`` and ``01234`` otherwise.

The JSON schema of a config: it takes every config that is right, and refuses a misspelt key of every section.
"""

import dataclasses
import json
import subprocess
import sys
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import jsonschema
import numpy as np
import pydantic
import pytest
import yaml
from annotated_types import Ge, Gt, Le, Lt
from packaging.version import Version

import dpmcmc
from dpmcmc import config as config_room
from dpmcmc.cli.commands import main
from dpmcmc.config import ConfigError, load, make_plan
from dpmcmc.config import file as config_file
from dpmcmc.config.file import override_values, read_values
from dpmcmc.config.for_editors import json_schema
from dpmcmc.config.model import ONE_SHOT, SCHEMES, HybridStart, Promise
from dpmcmc.config.run_section import Devices, Run
from dpmcmc.config.sections import derived, keys
from dpmcmc.config.yaml_reading import parse_yaml
from dpmcmc.config.yaml_writing import to_yaml
from dpmcmc.data import DataRequest, Levels, Range, Schema
from dpmcmc.errors import InputError, alternatives, check_fields
from dpmcmc.samplers import SAMPLERS, SCHEDULES
from dpmcmc.targets import TARGETS
from tests.house.test_packaging import locked
from tests.malformed.case import changed, leaves

CHAIN = {
    "name": "small",
    "data": {"name": "two_normals"},
    "target": {"name": "logistic_regression"},
    "sampler": {"name": "sgld", "step_size": 1.0},
    "sampling": {"scheme": "full"},
    "privacy": {"epsilon": 1.0, "delta": 1.0e-5},
    "run": {"steps": 8},
}
ONE_SHOT_BODY = {key: CHAIN[key] for key in ("name", "data", "target", "privacy")}
#: Keys without which a section cannot be made.
NEEDED = {
    "sampler": {"step_size": 1.0},
    "sampling": {"batch_size": 10},
    "privacy": {"delta": 1e-5},
    "run": {"steps": 8},
    "optax": {"rule": "adam", "learning_rate": 0.1},
    "polynomial": {"a": 1.0},
    "floor": {"a": 1.0, "floor": 0.5},
    "cyclical": {"a": 1.0, "period": 3},
    "alpha_phase": {"alpha": 0.5, "epsilon": 1.0, "delta": 1e-5, "steps": 8, "num_records": 1000},
}


def planned(folder, **sections):
    path = folder / "config.yaml"
    body = (ONE_SHOT_BODY if "mechanism" in sections else CHAIN) | sections
    if sections.get("mechanism", {}).get("name") == "hybrid":
        body = CHAIN | sections
    path.write_text(yaml.safe_dump(body), encoding="utf-8")
    return make_plan(load(path))


def refused(folder, **sections) -> ConfigError:
    with pytest.raises(InputError) as refusal:
        planned(folder, **sections)
    return refusal.value


def bad_values(hint) -> list:
    """Values that an argument of this type must refuse: beyond each of its bounds, and of another kind."""
    out = [] if "Any" in str(hint) or "Sequence" in str(hint) else [["a list"]]
    for kind in alternatives(hint):
        for bound in typing.get_args(kind)[1:] if typing.get_origin(kind) is Annotated else ():
            whole = typing.get_args(kind)[0] is int
            beyond = {Gt: lambda b: b.gt, Ge: lambda b: b.ge - 1, Lt: lambda b: b.lt, Le: lambda b: 2 * b.le + 1}
            if type(bound) in beyond:
                value = beyond[type(bound)](bound)
                out.append(int(value) if whole else value)
        if kind in (float, int, bool) or typing.get_origin(kind) in (Annotated, Literal):
            out.append("nonsense")
    return out


def places():
    """(section, its other keys, constructor, the path of a key in it) of everything that a config may say."""
    yield "data", {}, DataRequest, "data"
    yield "privacy", NEEDED["privacy"], Promise, "privacy"
    yield "run", NEEDED["run"], Run, "run"
    yield "run", NEEDED["run"], Devices, "run.mesh"
    for section, known, tag in (
        ("target", TARGETS, "name"),
        ("sampler", SAMPLERS, "name"),
        ("mechanism", ONE_SHOT, "name"),
        ("sampling", SCHEMES, "scheme"),
    ):
        for name, constructor in known.items():
            needed = NEEDED.get(name, NEEDED.get(section, {}) if name != "full" else {})
            yield section, {tag: name, **needed}, constructor, section
    for name, constructor in SCHEDULES.items():
        yield "sampler", {"schedule": name, **NEEDED[name]}, constructor, "sampler.step_size"


def keys_and_bad_values(constructor):
    """Every key that a constructor gives a section, its type, and values that it must refuse."""
    hints = typing.get_type_hints(constructor, include_extras=True)
    for key in keys(constructor):
        values = bad_values(hints[key.name])
        assert values
        yield key.name, hints[key.name], values


@pytest.mark.parametrize(("section", "others", "constructor", "path"), list(places()))
def test_a_bad_value_of_any_key_is_refused_with_its_path(tmp_path, section, others, constructor, path):
    for key, _, values in keys_and_bad_values(constructor):
        for value in values:
            body = {**others, key: value}
            if path == "run.mesh":
                body = {**others, "mesh": {key: value}}
            if path == "sampler.step_size":
                body = {"name": "sgld", "step_size": body}
            error = refused(tmp_path, **{section: body})
            assert error.about == f"{path}.{key}", value
            assert f"{path}.{key}: " in str(error)


@pytest.mark.parametrize(
    ("others", "constructor"),
    # Sampling is checked against N, and a mechanism by hand.
    [place[1:3] for place in places() if place[0] not in ("sampling", "mechanism")],
)
def test_the_constructor_itself_refuses_and_names_its_argument(others, constructor):
    known = {key.name for key in keys(constructor)}
    given = {name: one for name, one in others.items() if name in known - {"name"}}
    if constructor is DataRequest:
        given = {"name": "two_normals"}
    for key, hint, values in keys_and_bad_values(constructor):
        names_code = constructor is Promise and key in ("accountant", "calibrator")  # the section refuses, as above
        if not names_code and any(typing.get_origin(kind) in (Annotated, Literal) for kind in alternatives(hint)):
            for value in values:
                with pytest.raises(InputError) as refusal:
                    constructor(**{**given, key: value})
                assert refusal.value.about == key, value


SGHMC_BODY = {"name": "sghmc", "step_size": 1.0}
SGFS_BODY = {"name": "sgfs", "step_size": 1.0}


@pytest.mark.parametrize(
    ("sections", "path"),
    [
        # found by the sampler once it is bound to the data
        ({"sampler": SGHMC_BODY | {"minibatch_variance": 1e9}}, "sampler.minibatch_variance"),
        ({"sampler": SGHMC_BODY | {"friction": "matched", "step_size": "auto"}}, "sampler.friction"),
        ({"sampler": {"name": "sgld", "step_size": "auto", "temperature": 0.0}}, "sampler.temperature"),
        ({"sampler": {"name": "sgnht", "step_size": 1.0, "temperature": 0.0}}, "sampler.temperature"),
        ({"sampler": {"name": "sgnht", "step_size": 1000.0}}, "sampler.step_size"),
        ({"sampler": SGFS_BODY | {"metric": [1.0, 0.0, 1.0]}}, "sampler.metric"),
        ({"sampler": SGFS_BODY | {"metric": "nowhere.npy"}}, "sampler.metric"),
        ({"sampler": SGFS_BODY | {"metric": [1.0, 1.0]}}, "sampler.metric"),
        ({"sampler": SGFS_BODY | {"public_fisher": 1.0}}, "sampler.public_fisher"),
        ({"sampler": SGFS_BODY | {"fisher": "public", "public_fisher": -1.0}}, "sampler.public_fisher"),
        # found by the plan
        ({"privacy": None, "sampler": {"name": "sgld", "step_size": "auto"}}, "sampler.step_size"),
        ({"run": {"steps": 8, "curvature": 1e6}}, "sampler.step_size"),
        ({"run": {"steps": 8, "thin": 9}}, "run.thin"),
        ({"run": {"passes": 1e12}}, "run.passes"),
        ({"run": {"passes": 1.0, "steps": 8}}, "run"),
        ({"sampling": {"scheme": "poisson", "batch_size": 1001}}, "sampling.batch_size"),
        ({"sampling": {"scheme": "fixed_size", "batch_size": 1001}}, "sampling.batch_size"),
        ({"privacy": {"epsilon": 1.0, "delta": 0.5}}, "privacy.delta"),
        ({"privacy": {"delta": 1e-5}}, "privacy.epsilon"),
        ({"privacy": {"epsilon": 1.0, "delta": 1e-5, "calibrator": "free"}}, "privacy.epsilon"),
        ({"privacy": {"epsilon": 1.0, "delta": 1e-5, "release": "one_sample"}}, "privacy.release"),
        # of a mechanism
        ({"mechanism": {"name": "ops", "form": "range"}}, "mechanism.radius"),
        ({"mechanism": {"name": "ops", "steps": 1}}, "mechanism.steps"),
        ({"mechanism": {"name": "ops"}, "privacy": {"epsilon": 1.0, "delta": 1e-5, "clip": 1.0}}, "privacy.clip"),
        ({"mechanism": {"name": "ops"}, "sampler": {"name": "sgld", "step_size": 1.0}}, "sampler"),
        ({"mechanism": {"name": "sufficient_statistics"}, "data": {"name": "diabetes"},
          "target": {"name": "linear_regression"}, "privacy": {"epsilon": 1.0, "delta": 1e-5}}, "target.label_bound"),
        # of a file of one's own
        ({"data": {"path": "mine.npz"}}, "data.num_records"),
        ({"data": {"path": "mine.npz", "num_records": 10, "encoding": "linear"}}, "data.encoding"),
        ({"data": {"path": "mine.npz", "num_records": 10, "num_owners": 3}}, "data.num_owners"),
        ({"data": {"name": "two_normals", "num_records": 10}}, "data.num_records"),
        ({"data": {"name": "two_normals", "num_features": 10}}, "data.num_features"),
    ],
    ids=str,
)  # fmt: skip
def test_a_refusal_that_needs_more_than_one_key_names_the_one_to_mend(tmp_path, monkeypatch, sections, path):
    monkeypatch.chdir(tmp_path)
    error = refused(tmp_path, **sections)
    assert error.about == path
    assert f"{path}: " in str(error)


def test_every_key_is_documented_and_every_constructor_has_keys():
    for _, _, constructor, _ in places():
        made = derived(constructor)
        assert all(field.description for field in made.model_fields.values())


def test_a_config_has_to_say_its_privacy(tmp_path):
    """Left out, it is refused; null says that there is none."""
    values = yaml.safe_load((Path(__file__).parents[2] / "configs" / "two_normals.yaml").read_text())
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(values | {"privacy": None}))
    assert make_plan(load(path)).guarantee is None
    del values["privacy"]
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError, match=r"privacy: this key is required; say epsilon and delta, or null") as refused:
        load(path)
    assert refused.value.about == "privacy"


def test_num_features_of_a_file_of_ones_own_lets_a_mechanism_plan(tmp_path):
    own = {"path": "mine.npz", "num_records": 100, "row_bound": 1.0}
    sections = {"mechanism": {"name": "output_perturbation"}, "privacy": {"epsilon": 1.0, "delta": 1e-5}}
    plan = planned(tmp_path, data=own | {"num_features": 12}, **sections)
    assert plan.target.num_features == 12
    assert refused(tmp_path, data=own, **sections).about == "data.num_features"


@pytest.mark.parametrize("clip", [1e-9, 1e9])
def test_a_clip_at_either_bound_is_planned_and_runs(clip):
    """The sum's grid is relative to the clip, and float32 holds it at both ends."""
    target = dpmcmc.targets.LogisticRegression(num_features=2)
    plan, one = (
        dpmcmc.plan(
            target, num_records=16, sampler=dpmcmc.SGLD(step_size=10.0 / c**2), steps=2,
            privacy=dpmcmc.Privacy(epsilon=1.0, delta=1e-3, clip=c),
        )
        for c in (clip, 1.0)
    )  # fmt: skip
    assert plan.noise.required_multiplier == pytest.approx(one.noise.required_multiplier)
    x = np.random.RandomState(0).uniform(-1, 1, (16, 2)).astype(np.float32)
    draws = dpmcmc.sample(plan, {"x": x, "y": (x[:, 0] > 0).astype(np.int32)}, key=0).draws
    assert np.isfinite(draws).all()
    for beyond in (clip / 2, clip * 2):
        if not 1e-9 <= beyond <= 1e9:
            with pytest.raises(InputError, match="clip must be a finite number in"):
                dpmcmc.Privacy(epsilon=1.0, delta=1e-3, clip=beyond)


def test_a_hybrid_takes_the_keys_of_its_start():
    of_start = {key.name for key in keys(ONE_SHOT["ops"])}
    assert {key.name for key in keys(HybridStart)} == of_start - {"draws"} | {"share"}


@dataclass(frozen=True)
class Sample:
    """Fields that check_fields looks at.

    Args:
        share: in (0, 1).
        word: one of two.
        free: anything.
    """

    share: Annotated[float, Gt(0), Lt(1)] | Literal["auto"] = 0.5
    count: Annotated[int, Ge(2)] | None = None
    word: Literal["a", "b"] = "a"
    free: float = 0.0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"share": 1.0}, "share must be a finite number in (0, 1) or auto, got 1.0"),
        ({"share": float("nan")}, "share must be a finite number in (0, 1) or auto, got nan"),
        ({"share": True}, "share must be a finite number in (0, 1) or auto, got True"),
        ({"share": "x"}, "share must be a finite number in (0, 1) or auto, got 'x'"),
        ({"share": 10**400}, "share must be a finite number in (0, 1) or auto, got 1000"),
        ({"count": 2.0}, "count must be a whole number >= 2, got 2.0"),
        ({"count": 1}, "count must be a whole number >= 2, got 1"),
        ({"word": "c"}, "word must be one of a, b, got 'c'"),
    ],
)
def test_check_fields_says_what_an_annotation_declares(changes, said):
    check_fields(Sample())
    check_fields(Sample(share="auto", count=2, word="b", free=float("inf")))
    with pytest.raises(InputError) as refusal:
        check_fields(dataclasses.replace(Sample(), **changes))
    assert str(refusal.value).startswith(said)
    assert refusal.value.about == next(iter(changes))


#: What YAML 1.1 turns into another value, and is the text that it says here.
MISREAD = [
    *("01234", "010", "-017", "+07", "00", "0x1F", "0b101", "1_000", "1_0.5", "0_1", "10:30", "13:30:59", "-1:30"),
    *("190:20:30.15", "0:0.5", "no", "No", "NO", "yes", "YES", "on", "Off", "OFF", "2001-02-03", "2001-12-14 21:59:43"),
    *("2001-12-14T21:59:43Z", "007.5", "01e5", "=", "0x_", "2001-13-45"),
]
#: What is a number or nothing as in JSON, and is refused as a level alone, whose text is another.
NO_LEVEL = [
    *("+5", "-0", "1.50", "1.0", "1.", ".5", "1e3", "1E5", "1e-5", "1.5e3"),
    *("~", "null", "", ".inf", "-.INF", ".nan"),
]


def levels(*texts):
    body = f"columns: {{g: {{levels: [a, {', '.join(texts)}]}}, y: {{range: [0, 1]}}}}\nlabel: y\n"
    return Schema.from_yaml(parse_yaml(body, "schema.yaml")).columns["g"]


@pytest.mark.parametrize("text", MISREAD)
def test_a_text_that_yaml_1_1_misreads_is_what_it_says_wherever_it_stands(text):
    assert parse_yaml(f"a: [b, {{{text}: {text}}}]", "x.yaml") == {"a": ["b", {text: text}]}
    values = {}
    override_values(values, [f"a.b={text}"], print)
    assert values == {"a": {"b": text}}
    assert levels(text).texts == levels(f'"{text}"').texts == ("a", text)


@pytest.mark.parametrize("text", [text for text in NO_LEVEL if text])
def test_a_level_whose_text_is_another_is_refused(text):
    with pytest.raises(InputError, match="quote it"):
        levels(text)
    assert levels(f'"{text}"').texts == ("a", text)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        *(("+5", 5), ("1.50", 1.5), ("1.", 1.0), (".5", 0.5), ("1e-5", 1e-5), ("1e3", 1000.0), ("-2.5E+4", -25000.0)),
        *(("~", None), ("null", None), ("true", True), ("False", False), (".inf", float("inf")), ("0", 0), ("y", "y")),
        *(("02139", None), ("089", "089"), ("08:30", "08:30"), ("1.2.3", "1.2.3"), ("!!str no", "no"), ("'01'", "01")),
    ],
)
def test_numbers_of_a_config_are_read_as_before(body, value):
    if body == "02139":  # a digit that no octal number has
        value = body
    found = parse_yaml(f"a: {body}", "x.yaml")["a"]
    assert (type(found), found) == (type(value), value)


def test_the_refusals_say_what_was_read_and_what_to_write():
    for text, said in (
        ("1.0", "'1.0' is the number 1 in line 1; quote it."),
        ("~", "'~' is a missing value in line 1; quote it."),
    ):
        with pytest.raises(InputError) as refusal:
            levels(text)
        assert str(refusal.value) == f"schema.yaml: below 'levels', {said}"
    with pytest.raises(InputError, match=r"x\.yaml: .* in line 2"):
        parse_yaml("b: 1\na: <<", "x.yaml")
    with pytest.raises(InputError, match="key 1 is not text in line 1; keys are names: quote it"):
        parse_yaml("{1: {range: [0, 1]}}", "x.yaml")
    with pytest.raises(InputError, match="must be texts; quote them in YAML"):
        Schema.from_yaml(parse_yaml("{columns: {a: {range: [0, 1]}}, label: 1990}", "x.yaml"))


def drawn(rng):
    """A random scalar without quotes."""
    signs = rng.choice(["", "", "-", "+"])
    digits = "".join(rng.choice([*"0123456789"], rng.integers(1, 6)))
    more = "".join(rng.choice([*"0123456789_.:eExXbBoO-+"], rng.integers(0, 5)))
    words = ["no", "yes", "on", "off", "y", "n", "true", "false", "null", "nan", ".inf", "~", "none", "inf", "=", "<"]
    word = str(rng.choice(words))
    word = rng.choice([word, word.upper(), word.title()])
    return str(rng.choice([word, f"{signs}{digits}{more}", f"{digits}-{digits[:2]}-{digits[:2]}", f"{digits}{word}"]))


def test_random_levels_are_what_is_written_or_refused():
    rng = np.random.default_rng(0)
    accepted = 0
    for text in {drawn(rng) for _ in range(3000)}:
        found, said = None, ""
        try:
            found = levels(text)
        except InputError as error:
            said = str(error)
        if found is None:
            assert "quote it" in said or "mend the YAML" in said, (text, said)
            continue
        accepted += 1
        assert found.texts[1] == (text.lower() if text.lower() in ("true", "false") else text)
    assert accepted > 500


def test_levels_of_the_reports_are_what_they_say():
    for texts in (("01234", "02139", "03000"), ("DK", "NO", "SE"), ("10:30", "13:30")):
        assert levels(*texts).texts == ("a", *texts)


def test_what_is_written_reads_back_the_same():
    """PyYAML leaves ``1e5`` without quotes, which the loader reads as a number."""
    rng = np.random.default_rng(1)
    texts = {drawn(rng) for _ in range(500)} | {"1e5", "12e4", "no", "01", "1:30", "5E-3", *MISREAD, *NO_LEVEL}
    values = {"texts": sorted(texts), "keys": dict.fromkeys(sorted(texts), 1)}
    assert parse_yaml(to_yaml(values), "x.yaml") == values
    schema = Schema({"g": Levels(["1e5", "no", 2, 0.25, 1e-7, 1e22, True]), "1e5": Range(0, 1e-9)}, label="1e5")
    assert Schema.from_yaml(parse_yaml(to_yaml(schema.to_yaml()), "x.yaml")) == schema


def test_a_config_of_a_file_names_the_file_and_the_line(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("name: a\ndata:\n  schema:\n    columns:\n      5: {range: [0, 1]}\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"a\.yaml: key 5 is not text in line 5; keys are names: quote it"):
        read_values(path)
    path.write_text(yaml.safe_dump({"label": "no", "levels": ["01", "10:30"]}), encoding="utf-8")
    assert read_values(path)[0] == {"label": "no", "levels": ["01", "10:30"]}


ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
SCHEMA = jsonschema.Draft202012Validator(json_schema())


def values(config):
    return config_file.parse_yaml(config.read_text(encoding="utf-8"), str(config))


def problems(config):
    """Return the faults, also those of every alternative of a value."""
    found = [*SCHEMA.iter_errors(config)]
    for error in found:
        found += error.context
    return [f"{error.json_path}: {error.message}" for error in found]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda p: p.stem)
def test_every_shipped_config_is_right_and_a_misspelt_key_of_it_is_not(config, tmp_path):
    given = values(config)
    assert not problems(given)
    # with every default written out, as a run folder has it
    assert not problems(yaml.safe_load(config_room.dump(config_file.load(config), tmp_path)))
    for path, value in leaves(given):
        of_optax = path == ("sampler",) and value["name"] == "optax"  # its keys are the rule's, which optax knows
        takes_any = path[:2] == ("data", "schema") or path == ("target",) or of_optax
        if isinstance(value, dict) and not takes_any:
            found = problems(changed(given, path, value | {"epsilom": 1}))
            assert any("epsilom" in each for each in found), path
    assert any("epsilom" in each for each in problems(given | {"epsilom": 1}))


def test_the_command_prints_what_lies_beside_the_configs(capsys):
    assert main(["configs", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json_schema()


def test_every_shipped_config_names_the_schema_and_is_right_by_it():
    for config in CONFIGS:
        first = config.read_text(encoding="utf-8").splitlines()[0]
        assert first == "# yaml-language-server: $schema=schema.json", f"{config}: run python scripts/config_schema.py"
    current = json.loads((ROOT / "configs" / "schema.json").read_text(encoding="utf-8"))
    for config in CONFIGS:
        assert jsonschema.Draft202012Validator(current).is_valid(values(config))


@pytest.mark.skipif(
    Version(pydantic.VERSION).release[:2] not in {version.release[:2] for version in locked("dev")["pydantic"]},
    reason="another pydantic lays the same schema out otherwise",
)
def test_the_schema_beside_the_configs_is_current():
    done = subprocess.run([sys.executable, ROOT / "scripts" / "config_schema.py", "--check"], check=False)
    assert done.returncode == 0
