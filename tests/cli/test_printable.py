"""No name of a user's reaches a terminal with characters that it would obey, or that make it read as another."""

import csv
import random
import re
import sys
import unicodedata
import warnings
from pathlib import Path

import numpy as np
import pytest
import yaml

import dpmcmc
from dpmcmc.cli.commands import main
from dpmcmc.data import Levels, Range, Schema
from dpmcmc.errors import DataError, InputError, printable
from dpmcmc.report.console import Screen
from dpmcmc.report.lines import rows

#: Control characters of both sets, an escape sequence, orders of writing, ends of lines, half of a pair, a tag.
BAD = [*map(chr, (*range(1, 9), *range(11, 32), *range(127, 160))), "\x1b[31m", "\x1b]0;t\x07", "\u202e", "\u2066",
       "\u200f", "\u2028", "\u2029", "\ud800", "\udcff", "\ufeff", "\u00ad", "\U000e0041"]  # fmt: skip
#: Signs of names that stay as they are.
GOOD = ["é", "漢字", "ñ", "😀", "👩\u200d👩\u200d👧", "❤\ufe0f", "می\u200cخواهم", "\u00a0", "ß", "Ω", "∑"]


def check(text):
    """Refuse what is printed with raw control characters."""
    seen = {sign for sign in text if unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert not seen - {"\n", "\t", "\u200d", "\u200c"}, ascii(text)


def odd(chance, surrogates=True):
    """A name with bad characters among good ones."""
    bad = BAD if surrogates else [one for one in BAD if not any("\ud800" <= sign <= "\udfff" for sign in one)]
    parts = [*chance.sample(bad, 3), *chance.sample(GOOD, 2), "name"]
    chance.shuffle(parts)
    return "".join(parts)


@pytest.mark.parametrize("seed", range(30))
def test_bad_characters_are_escaped_and_good_ones_stay(seed):
    chance = random.Random(seed)
    name = odd(chance)
    shown = printable(name)
    check(shown)
    assert "\n" not in printable(name + "\n")
    for sign in GOOD:
        assert (sign in shown) == (sign in name)
        assert printable(sign) == sign
    check(rows([(name, f"of {name}"), ("plain", "é 漢字 😀")]))
    for kind in (InputError, DataError, dpmcmc.NotForIntervals):
        check(str(kind(f"{name}: no such column")))


def test_a_terminal_has_the_styles_of_the_program_alone(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    Screen().print("a \x1b[8m hidden \u202e name", style="bold red")
    said = capsys.readouterr().out
    assert re.fullmatch(r"\x1b\[[\d;]+ma \\x1b\[8m hidden \\u202e name\x1b\[0m\n", said)


def _table(chance):
    """A table with odd names of columns and levels, its schema, and its label."""
    column, group, label = (odd(chance, surrogates=False) + end for end in "xgy")
    levels = [odd(chance, surrogates=False) + end for end in "abc"]
    rng = np.random.default_rng(chance.randrange(1000))
    x = rng.uniform(-1, 1, 300)
    g = np.array(levels, object)[rng.integers(3, size=300)]
    y = np.clip(x + rng.normal(0, 0.3, 300), -2, 2)
    schema = Schema({column: Range(-1, 1), group: Levels(levels), label: Range(-2, 2)}, label=label)
    return {column: x, group: g, label: y}, schema


@pytest.mark.filterwarnings("always")
def test_what_a_fit_says_of_odd_names_is_printable(tmp_path, capsys, recwarn):
    table, schema = _table(random.Random(3))
    result = dpmcmc.fit(None, table, schema, epsilon=20.0)
    posterior = result.posterior
    summary = result.summary()
    said = [str(result), str(summary), repr(posterior), str(result.plan), result.page(), result._repr_html_(),
            summary._repr_html_(), result.plan._repr_html_(), str(result.effects())]  # fmt: skip
    assert main(["verify", str(result.save(tmp_path / "run"))]) == 0
    said += [str(one.message) for one in recwarn]
    with pytest.raises(KeyError) as refused:
        posterior["none"]
    said.append(str(refused.value))
    with pytest.raises(ValueError, match="name") as refused:
        dpmcmc.fit(None, {name: table[name] for name in list(table)[1:]}, schema, epsilon=1.0)
    said.append(str(refused.value))
    captured = capsys.readouterr()
    for text in (*said, captured.out, captured.err):
        check(text)


@pytest.mark.parametrize("seed", range(4))
def test_commands_print_no_control_characters(tmp_path, capfd, monkeypatch, seed):
    """Of levels, columns, files, keys and values; whether they plan, refuse, or name what they wrote."""
    chance = random.Random(seed)
    monkeypatch.chdir(tmp_path)
    table, schema = _table(chance)
    folder = Path(odd(chance, surrogates=False).replace("/", ""))
    folder.mkdir()
    path = folder / f"{odd(chance, surrogates=sys.platform != 'darwin').replace(chr(0xD800), '')}.yaml"
    body = {
        "name": "odd",
        "data": {"path": f"{odd(chance, surrogates=False)}.csv", "num_records": 300, "schema": schema.to_yaml()},
        "target": {"name": "linear_regression", "prior_scale": 1.0, "noise_scale": 0.3},
        "mechanism": {"name": "noise_aware"},
        "privacy": {"epsilon": 3.0, "delta": 1e-5},
    }
    path.write_text(yaml.safe_dump(body), encoding="utf-8")
    with (folder / body["data"]["path"]).open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([table, *zip(*table.values(), strict=True)])
    lone = odd(chance)
    out = str(folder / "schema.json")
    for words in (
        ["plan", path],
        ["plan", path, "--all"],
        ["plan", path, "--json"],
        ["suggest", path],
        ["suggest", path, "--json"],
        *([["run", path, "--out", folder / "out"]] if seed == 0 else []),
        ["plan", path, "--set", f"{odd(chance)}=1"],
        ["plan", path, "--set", f"target.name={odd(chance)}"],
        ["plan", path, "--set", f"data.schema.{odd(chance)}={odd(chance)}"],
        ["plan", lone.replace("/", "")],
        ["schema", "--out", out],
        ["schema", "--out", out],
        ["verify", folder / "out"],
        ["verify", lone],
        ["receipt", folder, "--record", lone],
        ["ledger", "init", folder / f"{odd(chance, surrogates=False)}.ledger", "--epsilon", "1", "--delta", "1e-6",
         "--name", odd(chance)],
        ["ledger", "show", lone],
        ["sweep", path],
        ["audit", path, "--runs", "0"],
        [lone],
        ["plan", f"--{lone}"],
    ):  # fmt: skip
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")  # Matplotlib names the signs that its font lacks
            code = main([str(word) for word in words])
        assert words[0] not in ("run", "suggest") or code == 0
        captured = capfd.readouterr()
        check("".join(str(one.message) for one in warned))
        assert captured.out or captured.err, words
        check(captured.out)
        check(captured.err)
