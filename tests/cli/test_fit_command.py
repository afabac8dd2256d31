"""``dpmcmc fit`` and ``dpmcmc schema``: from a CSV to intervals by one command, and one sentence on what is amiss."""

import numpy as np
import pytest
import yaml

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.data import Schema
from dpmcmc.privacy import Ledger

SCHEMA = """\
columns:
  age: {range: [17, 90]}
  job: {levels: [office, field], other: true}
  late: {levels: ["no", "yes"]}
label: late
"""


@pytest.fixture
def people(tmp_path, monkeypatch):
    """A CSV of 3,000 people beside its schema, in the current folder."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    age, field = rng.integers(17, 90, 3000), rng.random(3000) < 0.5
    late = rng.random(3000) < 1 / (1 + np.exp(-0.03 * (age - 50) - 0.5 * field))
    lines = [
        f"{a},{'field' if f else 'office'},{'yes' if one else 'no'}" for a, f, one in zip(age, field, late, strict=True)
    ]
    (tmp_path / "people.csv").write_text("age,job,late\n" + "\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "schema.yaml").write_text(SCHEMA, encoding="utf-8")
    return tmp_path


def test_a_table_becomes_intervals_in_a_folder_that_verifies(people, capsys):
    ledger = Ledger.init(
        "people.ledger", name="people", num_records=3000, adjacency="replace_one", epsilon=2, delta=1e-4
    )
    words = ["fit", "people.csv", "schema.yaml", "late ~ age + job", "--epsilon", "1", "--out", "fit"]
    assert main([*words, "--ledger", "people.ledger"]) == 0
    said = capsys.readouterr().out
    result = dpmcmc.load("fit")
    assert str(result.summary()) in said
    assert "promise   ε 1" in said
    assert result.plan.schema.formula == "late ~ age + job"
    assert (people / "fit" / "report.html").exists()
    assert [run.outcome for run in ledger.state().runs] == ["released"]
    assert main(["verify", "fit"]) == 0
    assert main(words) == 2
    assert "--out: fit already holds a result" in capsys.readouterr().err


def test_a_schema_is_made_of_the_names_of_columns_alone_and_has_to_be_filled_in(people, capsys):
    (people / "people.csv").write_text('age,job,"late, by law"\nsecret,secret,secret,and more\n', encoding="utf-8")
    assert main(["schema", "people.csv", "--out", "made.yaml"]) == 0
    made = yaml.safe_load((people / "made.yaml").read_text(encoding="utf-8"))
    assert made == {"columns": {"age": {}, "job": {}, "late, by law": {}}, "label": ""}
    assert main(["schema", "people.csv"]) == 0
    assert "secret" not in capsys.readouterr().out
    assert main(["schema", "people.csv", "--out", "made.yaml"]) == 2
    assert main(["fit", "people.csv", "made.yaml", "--epsilon", "1"]) == 2
    assert "made.yaml: age: must be {range: [low, high]}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda text: text.replace(",", ";").encode(), "separated by semicolons; write it anew with commas"),
        (lambda text: text.replace(",", "\t").encode(), "separated by tabs; write it anew with commas"),
        (lambda text: text.replace("field", "büro").encode("latin-1"), "not in UTF-8; save it as UTF-8"),
        (lambda text: text.replace("\n", "\n$", 2).encode(), "plain numbers as 1000.5, not $1,000.50"),
    ],
)
def test_what_is_amiss_with_a_file_is_named_with_the_remedy(people, capsys, change, words):
    file = people / "people.csv"
    file.write_bytes(change(file.read_text(encoding="utf-8")))
    assert main(["fit", "people.csv", "schema.yaml", "--epsilon", "1"]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") <= 3
    assert not (people / "runs").exists()


def test_a_table_in_place_of_a_config_is_told_of_this_command(people, capsys):
    assert main(["run", "people.csv"]) == 2
    assert "dpmcmc fit people.csv schema.yaml" in capsys.readouterr().err


def test_the_command_is_dpmcmc_fit(people):
    """Its draws are those of the function, but for keys."""
    assert main(["fit", "people.csv", "schema.yaml", "--epsilon", "3", "--sampler", "sgld", "--out", "fit"]) == 0
    schema = Schema.from_yaml(yaml.safe_load(SCHEMA))
    own = dpmcmc.fit(None, "people.csv", schema, 3.0, sampler="sgld", progress=False)
    assert dpmcmc.load("fit").guarantee == own.guarantee
