"""``dpmcmc export --registry``: an entry of OpenDP's registry, of released facts and of what the user gives."""

import dataclasses
import json

import pytest
import yaml

import dpmcmc
from tests.test_command_line import call, refused
from tests.test_result import classes, released

GIVEN = {
    "name": "Income model, 2026",
    "curator": "Our office",
    "use": "research",
    "region": "Nowhere",
    "description": "Log odds of a high income",
    "published": "2026-12-01",
    "author": "A. Name",
}
#: Keys that the schema requires of ``basic``, and values of others that it enumerates (July 2026).
REQUIRED = {
    "name",
    "data_curators",
    "description",
    "intended_use",
    "data_product_type",
    "data_product_region",
    "publication_date",
}
TIER_2 = {"model_name": "Central", "release_type": "One release", "data_source_type": "Static"}


def options(**changed):
    return [part for name, value in (GIVEN | changed).items() if value for part in (f"--{name}", value)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return released().save(tmp_path_factory.mktemp("released") / "run")


def entry(folder, capsys, *more):
    assert call("export", folder, "--registry", *options(), *more) == 0
    return yaml.safe_load(capsys.readouterr().out)


def test_an_entry_has_what_the_schema_requires_and_the_guarantee_as_stated(folder, capsys):
    found = entry(folder, capsys, "--curator", "Another", "--sector", "Finance")
    assert (found["status"], found["tier"]) == ("Draft", 2)
    assert found["url_slug"] == "income-model-2026-our-office-another-2026"
    deployment = found["deployment"]
    assert set(deployment["basic"]) == REQUIRED | {"data_product_sector"}
    assert deployment["basic"]["data_curators"] == ["Our office", "Another"]
    assert deployment["administrative"] == {"registry_authors": ["A. Name"]}
    privacy = json.loads((folder / "privacy.json").read_text())
    stated = {name: privacy[name] for name in ("epsilon", "delta")}
    assert deployment["privacy_loss"]["privacy_parameters"] == stated
    assert deployment["privacy_loss"]["privacy_unit"] == "record (one row of the table)"
    assert deployment["dp_variant"]["variant_name"] == "Approximate DP"
    assert deployment["deployment_model"] == TIER_2 | {"access_type": "Non-interactive"}
    assert "Gaussian mechanisms" in deployment["accounting"]["composition"]


def test_the_number_of_records_and_ranges_are_unprotected(folder, tmp_path, capsys):
    said = entry(folder, capsys)["deployment"]["dp_variant"]["unprotected_quantities"]
    assert said.startswith("Unprotected: the number of records, N = 5,000. ")
    table = dpmcmc.Result.save(classes(released().draws[..., :2, None].repeat(3, -1)), tmp_path / "table")
    said = entry(table, capsys)["deployment"]["dp_variant"]["unprotected_quantities"]
    assert "ranges and levels of the columns (inc: range: [0" in said


def test_what_is_missing_is_named_in_one_sentence(folder, capsys):
    assert call("export", folder, "--registry", "--name", "a", "--author", "b") == 2
    error = capsys.readouterr().err
    assert "--curator, --use, --region, --description, --published: the registry needs" in error
    assert error.count("\n") == 1
    for name in GIVEN:
        assert f"error: --{name}: " in refused(capsys, "export", folder, "--registry", *options(**{name: ""}))
    assert "add --registry" in refused(capsys, "export", folder, *options())


def test_a_file_is_written_once(folder, tmp_path, capsys):
    out = tmp_path / "entry.yaml"
    assert call("export", folder, "--registry", *options(), "--out", out) == 0
    capsys.readouterr()
    assert yaml.safe_load(out.read_text()) == entry(folder, capsys)
    assert "is there already" in refused(capsys, "export", folder, "--registry", *options(), "--out", out)


def test_a_run_that_is_none_or_whose_epsilon_is_not_covered_has_no_entry(folder, tmp_path, capsys):
    without = dataclasses.replace(released(), guarantee=None)
    assert "states no guarantee" in refused(capsys, "export", without.save(tmp_path / "none"), "--registry", *options())
    again = released().save(tmp_path / "again")
    (again / "draws.nc").write_bytes(b"other")
    assert call("export", again, "--registry", *options()) == 1  # as of verify
    assert "draws.nc is not the file that was released" in capsys.readouterr().err
    less = released().save(tmp_path / "less")
    path = less / "privacy.json"
    body = json.loads(path.read_text())
    path.write_text(json.dumps(body | {"epsilon": body["epsilon"] / 2}))
    assert call("export", less, "--registry", *options()) == 1
    assert "states another epsilon than plan.json; do not rely on" in capsys.readouterr().err
