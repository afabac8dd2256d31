"""Sentences of report.html about records and settings follow from facts of plan.json, in every case."""

import dataclasses
import datetime
import itertools
import json

import pytest
import yaml

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.config import file as config_file
from dpmcmc.config.refusals import ConfigError
from dpmcmc.config.shipped import find_config, list_shipped
from dpmcmc.errors import InputError
from dpmcmc.report.circumstances import Circumstances
from dpmcmc.report.page import Context
from tests.pairs import covering
from tests.report.test_page import text
from tests.storage.test_result import chain, released

DAY = datetime.date(2026, 11, 23)
OPEN, NOBODYS = ("public", "generated", "stand_in"), ("generated", "stand_in")
KINDS = (None, "private", *OPEN)
SETTINGS = (None, "by_dpmcmc", "without_these_records", "on_these_records")
#: A sentence follows from the kind of records and one other fact, or from the two last facts.
CASES = [
    Circumstances(*case)
    for case in covering(
        [
            case
            for case in itertools.product(KINDS, SETTINGS, (False, True), (False, True))
            if case[0] in OPEN or not any(case[2:])
        ]
    )
]


def page_of(told, result=None):
    return text((result or released()).page(Context("census", DAY, circumstances=told)))


#: A sentence of the page, and the facts that it follows from: it stands there in these cases and in no other.
SENTENCES = {
    "Your record may be one of the 5,000": lambda told: told.records in (None, "private"),
    "are public already. If yours is one of them": lambda told: told.records == "public",
    "Nobody is in the data: a program generated the 5,000 records": lambda told: told.records in NOBODYS,
    "almost as likely if yours": lambda told: told.records not in NOBODYS,
    "so they are taken for private": lambda told: told.records is None,
    "in place of the real ones": lambda told: told.records == "stand_in",
    "so the promise hides none of them": lambda told: told.records == "public",
    "so the promise protects nobody": lambda told: told.records in NOBODYS,
    "The author of the config vouches that": lambda told: told.settings == "without_these_records",
    "Nobody has vouched that": lambda told: told.settings in (None, "by_dpmcmc"),
    "dpmcmc chose the other settings": lambda told: told.settings == "by_dpmcmc",
    "Settings were chosen by looking at": lambda told: told.settings == "on_these_records",
    "ε does not cover that choice": lambda told: told.settings == "on_these_records",
    "The choice may reveal private records": lambda told: (
        told.settings == "on_these_records" and told.records in (None, "private")
    ),
    "computed from the records for this release.": lambda told: not (told.fit or told.times),
    "computed from the records for the draws.": lambda told: told.fit or told.times,
    "a fit without privacy": lambda told: told.fit,
    "the seconds that the run took": lambda told: told.times,
    "No noise was added to": lambda told: told.fit or told.times,
    "Every outcome of this release": lambda told: not (told.fit or told.times),
    "Everything released satisfies": lambda told: not (told.fit or told.times),
    "Everything released, except": lambda told: told.fit or told.times,
}


@pytest.mark.parametrize("told", CASES, ids=lambda told: "-".join(map(str, dataclasses.astuple(told))))
def test_a_sentence_stands_on_the_page_where_its_facts_hold_and_nowhere_else(told):
    words = page_of(told)
    assert {sentence: sentence in words for sentence in SENTENCES} == {s: holds(told) for s, holds in SENTENCES.items()}
    assert "were not chosen by looking" not in words


def test_every_sentence_stands_in_some_case_and_is_missing_in_another():
    for sentence, holds in SENTENCES.items():
        assert {holds(told) for told in CASES} == {True, False}, sentence


@pytest.mark.parametrize("kind", KINDS)
def test_the_page_without_a_guarantee_asks_for_public_records_unless_they_are(kind):
    without = dataclasses.replace(released(), guarantee=None)
    page = without.page(Context("census", DAY, circumstances=Circumstances(kind)))
    assert ("publish them only if" in text(page)) == (kind in (None, "private"))
    assert "<title>census: released without a finite guarantee of privacy</title>" in page
    assert "with differential privacy</title>" in released().page(Context("census", DAY))


@pytest.mark.parametrize("kind", [None, "private"])
@pytest.mark.parametrize("shown", ["fit", "times"])
def test_numbers_without_noise_are_not_shown_beside_draws_from_private_records(kind, shown):
    with pytest.raises(InputError, match="public or generated records alone"):
        Circumstances(kind, **{shown: True})


def test_unknown_facts_are_refused():
    with pytest.raises(InputError, match="records must be one of private, public, generated, stand_in"):
        Circumstances("secret")


def test_the_facts_of_a_result_are_in_its_plan_json_and_come_back(tmp_path):
    chain().save(tmp_path / "a")
    assert json.loads((tmp_path / "a/plan.json").read_text())["circumstances"] == {
        "records": None, "settings": None, "fit": False, "times": False, "came_with": None,
    }  # fmt: skip
    chain().save(tmp_path / "b", public=True)
    assert "are public already" in text((tmp_path / "b/report.html").read_text())
    loaded = dpmcmc.load(tmp_path / "b")
    assert "are public already" in text(loaded.page())
    suggested = dataclasses.replace(released().plan, reasons=("because",))
    words = text(dataclasses.replace(released(), plan=suggested).page())
    assert "dpmcmc chose the other settings" in words


def test_a_run_writes_what_its_config_declares_and_is_known_of_its_data(tmp_path):
    short = ["--set", "run.steps=20", "--set", "run.thin=2", "--quiet", "--out", str(tmp_path / "a")]
    assert main(["run", "two_normals", *short]) == 0
    told = json.loads((tmp_path / "a/plan.json").read_text())["circumstances"]
    assert told.pop("came_with") is None
    assert told == {"records": "generated", "settings": "on_these_records", "fit": True, "times": True}
    words = text((tmp_path / "a/report.html").read_text())
    for sentence, holds in SENTENCES.items():
        if "5,000" not in sentence:
            assert (sentence in words) == holds(Circumstances(**told)), sentence
    with pytest.raises(ConfigError, match=r"data\.generated"):
        config_file.load("two_normals", ["data.generated=true"])
    with pytest.raises(ConfigError, match=r"data\.settings_chosen"):
        config_file.load("two_normals", ["data.settings_chosen=by_ear"])


def test_every_shipped_config_that_was_tuned_says_so():
    for name in list_shipped():
        config = yaml.safe_load(find_config(name).read_text(encoding="utf-8"))
        assert (config["data"].get("settings_chosen") is not None) != name.endswith("noise_aware"), name
