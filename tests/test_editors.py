"""The JSON schema of a config: it takes every config that is right, and refuses a misspelt key of every section."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pydantic
import pytest
import yaml
from packaging.version import Version

from dpmcmc import config as config_room
from dpmcmc.cli.commands import main
from dpmcmc.config import file as config_file
from dpmcmc.config.for_editors import json_schema
from dpmcmc.config.model import CHOICES, Config
from dpmcmc.config.sections import keys
from dpmcmc.samplers import SCHEDULES
from tests.malformed.case import changed, leaves
from tests.test_packaging import locked

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
SCHEMA = jsonschema.Draft202012Validator(json_schema())
SMALL = {
    "name": "small",
    "data": {"path": "mine.npz", "num_records": 40, "row_bound": 1.0},
    "target": {"name": "logistic_regression"},
    "sampler": {"name": "sgld", "step_size": 1.0},
    "sampling": {"scheme": "full"},
    "privacy": {"epsilon": 1.0, "delta": 1.0e-3},
    "run": {"steps": 8},
}


def values(config):
    return config_room.parse_yaml(config.read_text(encoding="utf-8"), str(config))


def problems(config):
    """Return the faults, also those of every alternative of a value."""
    found = [*SCHEMA.iter_errors(config)]
    for error in found:
        found += error.context
    return [f"{error.json_path}: {error.message}" for error in found]


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(json_schema())
    assert json_schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"


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


@pytest.mark.parametrize(("section", "tag"), CHOICES, ids=str)
def test_every_choice_has_its_own_keys_with_descriptions(section, tag):
    known = CHOICES[section, tag]
    named, *_ = (part for part in _parts(json_schema()["properties"][section]) if "allOf" in part)
    assert [one["const"] for one in named["properties"][tag]["anyOf"] if "const" in one] == [*known]
    branches = {part["if"]["properties"][tag].get("const"): part["then"] for part in named["allOf"]}
    for name, constructor in known.items():
        branch = branches[name]
        if "$ref" in branch:  # as older versions of pydantic have it
            branch = json_schema()["$defs"][branch["$ref"].rpartition("/")[2]]
        takes_any = any("rest" in field.metadata for field in dataclasses.fields(constructor))
        assert branch["additionalProperties"] is takes_any
        assert set(branch["properties"]) == {tag, *(key.name for key in keys(constructor))}
        assert branch["description"]
        assert all(entry.get("description") for key, entry in branch["properties"].items() if key != tag), name
        assert takes_any or problems(SMALL | {section: {tag: name, "epsilom": 1}})
    assert problems(SMALL | {section: {tag: f"{next(iter(known))}x"}})
    assert problems(SMALL | {section: {}})


def _parts(schema):
    yield schema
    for part in schema.get("anyOf", ()):
        yield from _parts(part)


def test_code_of_ones_own_stays_allowed_where_a_config_may_name_it():
    for section in ("target", "sampler"):
        for own in ("my_module:make", {"name": "my.module:Made.here", "anything": [1, 2]}):
            assert not problems(SMALL | {section: own})
        assert problems(SMALL | {section: "no module"})
        assert problems(SMALL | {section: {"name": "my module:make"}})
    assert problems(SMALL | {"sampling": {"scheme": "my_module:make"}})


def test_a_step_size_is_a_number_or_a_schedule():
    for schedule in SCHEDULES:
        found = problems(SMALL | {"sampler": {"name": "sgld", "step_size": {"schedule": schedule, "epsilom": 1}}})
        assert found
    assert problems(SMALL | {"sampler": {"name": "sgld", "step_size": "large"}})
    assert problems(SMALL | {"sampler": {"name": "sgld", "step_size": {"schedule": "none"}}})


def test_every_key_of_a_config_is_in_the_schema():
    assert set(json_schema()["properties"]) == set(Config.model_fields)
    assert problems({key: value for key, value in SMALL.items() if key != "privacy"})
    assert not problems(SMALL | {"privacy": None})


def test_the_command_prints_what_lies_beside_the_configs(tmp_path, capsys):
    assert main(["schema"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed) == json_schema()
    assert main(["schema", "--out", str(tmp_path / "schema.json")]) == 0
    assert "# yaml-language-server: $schema=schema.json" in capsys.readouterr().out
    assert (tmp_path / "schema.json").read_text(encoding="utf-8") == printed
    assert main(["schema", "--out", str(tmp_path / "schema.json")]) == 2, "a file is never replaced"


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
