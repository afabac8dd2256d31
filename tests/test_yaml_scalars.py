"""A text without quotes in a YAML is what it says, or it is refused: YAML 1.1 reads ``no`` and ``01234`` otherwise."""

import numpy as np
import pytest
import yaml

from dpmcmc.config.file import apply, read_values
from dpmcmc.config.yaml_reading import parse_yaml
from dpmcmc.config.yaml_writing import to_yaml
from dpmcmc.data import Levels, Range, Schema
from dpmcmc.errors import InputError

#: What YAML 1.1 turns into another value, and what it turned it into.
MISREAD = [
    *("01234", "010", "-017", "+07", "00", "0x1F", "0b101", "1_000", "1_0.5", "0_1", "10:30", "13:30:59", "-1:30"),
    *("190:20:30.15", "0:0.5", "no", "No", "NO", "yes", "YES", "on", "Off", "OFF", "2001-02-03", "2001-12-14 21:59:43"),
    *("2001-12-14T21:59:43Z", "007.5", "01e5", "=", "<<", "0x_", "2001-13-45"),
]
#: What is a number or nothing as in JSON, and is refused as a level alone, whose text is another.
NO_LEVEL = [
    "+5",
    "-0",
    "1.50",
    "1.0",
    "1.",
    ".5",
    "1e3",
    "1E5",
    "1e-5",
    "1.5e3",
    "~",
    "null",
    "",
    ".inf",
    "-.INF",
    ".nan",
]


def levels(*texts):
    body = f"columns: {{g: {{levels: [a, {', '.join(texts)}]}}, y: {{range: [0, 1]}}}}\nlabel: y\n"
    return Schema.from_yaml(parse_yaml(body, "schema.yaml")).columns["g"]


@pytest.mark.parametrize("text", MISREAD)
def test_a_text_that_yaml_misreads_is_refused_wherever_it_stands(text):
    for body in (
        f"a: {text}",
        f"a: [b, {text}]",
        f"a: {{b: [{{c: {text}}}]}}",
        f"{text}: 1" if text != "<<" else "a: <<",
    ):
        with pytest.raises(InputError, match=r"in line \d.*quote it|quote it.*in line"):
            parse_yaml(body, "x.yaml")
    for override in (f"a.b={text}", f"a=[1, {text}]"):
        with pytest.raises(InputError, match="quote it"):
            apply({}, override)


@pytest.mark.parametrize("text", [*MISREAD, *(text for text in NO_LEVEL if text)])
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
        ("01234", "'01234' is the number 668 in YAML in line 1; quote it, or write 668."),
        ("NO", "'NO' is the truth value false in YAML in line 1; quote it, or write false."),
        ("10:30", "'10:30' is the number 630 in YAML in line 1; quote it, or write 630."),
        ("2001-02-03", "'2001-02-03' is a date in YAML in line 1; quote it."),
        ("1.0", "'1.0' is the number 1 in YAML in line 1; quote it, or write 1."),
    ):
        with pytest.raises(InputError) as refusal:
            levels(text)
        assert str(refusal.value) == f"schema.yaml: below 'levels', {said}"
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


def test_levels_of_the_reports_are_refused_with_the_cause():
    for text in ("01234, 02139, 03000", "DK, NO, SE", "10:30, 13:30"):
        with pytest.raises(InputError, match="quote it"):
            levels(text)


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
    path.write_text("name: a\ndata:\n  schema:\n    columns:\n      on: {range: [0, 1]}\n", encoding="utf-8")
    with pytest.raises(
        InputError, match=r"a\.yaml: below 'columns', 'on' is the truth value true in YAML in line 5; quote it"
    ):
        read_values(path)
    path.write_text(yaml.safe_dump({"label": "no", "levels": ["01", "10:30"]}), encoding="utf-8")
    assert read_values(path)[0] == {"label": "no", "levels": ["01", "10:30"]}
