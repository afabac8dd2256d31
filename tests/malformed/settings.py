"""Configs with values of wrong types, odd numbers, keys left out, unknown, given twice, or of another config."""

import random
from collections.abc import Iterator

from tests.malformed.case import (
    EITHER,
    REFUSED,
    Case,
    Raw,
    changed,
    config,
    dumped,
    good_configs,
    leaves,
    raws,
    without,
)

_NO_NUMBER = raws(
    "true | fast | '1.0' | [] | {} | [1.0] | {value: 1} | .nan | .inf | -.inf | 1e400 | 2001-01-01 | "
    "!!binary aGVsbG8= | 1,5 | 0x | 1e | '1e5' | nan | 1:60:1"
)
_ODD_NUMBER = raws(
    "0 | -1 | -1.0 | -0.0 | 1e-320 | 1e-30 | 1e15 | 1e30 | 1e308 | 1000000000000000000000000000000 | "
    "0.5 | 2.5 | 2147483648 | 9223372036854775808 | ~"
)
_NO_TEXT = raws("1 | 1.5 | true | [] | {} | [a] | {a: b} | .nan | 2001-01-01")
_ODD_TEXT = [
    *raws(
        r'"" | " " | no_such | "two\nlines" | "tab\there" | ünï✓ | "\a" | "\e[31mred" | "\uD7FF" | ../../x | a:b | ":"'
    ),
    *raws("a:b:c | /dev/zero | ~"),
    Raw("x" * 50_000),
]
_NO_FLAG = raws("1 | 0 | 'yes' | 'true' | [] | {} | 1.0")
_NO_SECTION = raws("true | 3 | .nan | [] | [1, 2] | words | a:b | {unknown: 1} | {} | !!binary aGk= | [{name: adult}]")
_NO_OPTION = raws("true | [] | {} | 1e400")
_ODD_OPTION = raws("words | 1 | -1 | 0 | 2.5 | 1000000000000000000000000000000")
_UNKNOWN = ["epsilom", "Epsilon", "ünknown", "__class__", "model_config", "num_records_", "x" * 2000, "a.b", "a\nb", ""]
#: Without these there is no config.
_NEEDED = ("name", "scheme", "data", "target", "privacy", "delta")
#: Batches of a record or two are right, and slow to plan.
_SMALL = raws("0.5 | 2.5 | 1 | 2 | 3 | 0.999 | 1e-3")


def _is_custom(body: dict, path: tuple) -> bool:
    return path[:1] == ("target",) and ":" in str(body["target"].get("name"))


def values() -> Iterator[Case]:
    """Every key of every config, with wrong types and odd values."""
    for stem, body in good_configs().items():
        for path, value in leaves(body):
            wrong, odd = {
                bool: (_NO_FLAG, [Raw("~")]),
                int: (_NO_NUMBER, _ODD_NUMBER),
                float: (_NO_NUMBER, _ODD_NUMBER),
                str: (_NO_TEXT, _ODD_TEXT),
                type(None): (_NO_OPTION, _ODD_OPTION),
                dict: (_NO_SECTION, [Raw("~")]),
            }[type(value)]
            odd = [bad for bad in odd if path[-1] != "batch_size" or bad not in _SMALL]
            # A target of one's own takes what it takes; a step size may be a number or auto.
            # {} is a mesh, of all defaults.
            either = _is_custom(body, path) or value == "auto" or path[-1] in ("mesh", "step_size")
            codes = EITHER if either else REFUSED
            for right, bads in ((codes, wrong), (EITHER, odd)):
                for bad in bads:
                    words = (path[-1],) if right == REFUSED else ()
                    name = f"{stem}-{'.'.join(path)}={bad[:30]}"
                    yield Case(name, "plan", config(changed(body, path, bad)), right, words)


def pairs(count: int = 4000) -> Iterator[Case]:
    """Two or three odd numbers at once, each of which may be right alone."""
    rng = random.Random(11)
    numbers = raws(
        "0 | 1 | 2 | 3 | 0.5 | 0.999 | 1e-3 | 1e-9 | 1e-30 | 10 | 1000 | 12345 | 1000000 | 1000000000 | 2147483648 | "
        "1e9 | 1e15 | 1e30 | 1000000000000000000 | ~"
    )
    bodies = good_configs()
    for number in range(count):
        stem = rng.choice(sorted(bodies))
        body = bodies[stem]
        places = [p for p, v in leaves(body) if isinstance(v, int | float) and not isinstance(v, bool)]
        said = []
        for path in rng.sample(places, min(len(places), rng.choice([2, 2, 3]))):
            bad = rng.choice([n for n in numbers if path[-1] != "batch_size" or n not in _SMALL])
            body = changed(body, path, bad)
            said.append(f"{'.'.join(path)}={bad}")
        yield Case(f"{number}-{stem}-{','.join(said)}", "plan", config(body), EITHER)


def sections() -> Iterator[Case]:
    """Keys left out, unknown keys at every level, keys given twice, and one config's section in another."""
    bodies = good_configs()
    for stem, body in bodies.items():
        for path, value in leaves(body):
            codes = REFUSED if path[-1] in _NEEDED and value is not None else EITHER
            yield Case(f"{stem}-without-{'.'.join(path)}", "plan", config(without(body, path)), codes)
        for path in [(), *(path for path, value in leaves(body) if isinstance(value, dict))]:
            for key in _UNKNOWN if not _is_custom(body, path) else []:
                wrong = changed(body, (*path, key), 1)
                yield Case(f"{stem}-unknown-{'.'.join(path)}-{key[:12]}", "plan", config(wrong))
        for line in ("name: again", "privacy: ~", "data: {}"):
            yield Case(f"{stem}-twice-{line}", "plan", config(dumped(body) + line + "\n"), REFUSED, ("twice",))
        for other, theirs in bodies.items():
            for key in sorted(theirs.keys() - {"name"}):
                if theirs[key] != body.get(key):
                    mixed = {**body, key: theirs[key]}
                    yield Case(f"{stem}-with-{key}-of-{other}", "plan", config(mixed), EITHER)
