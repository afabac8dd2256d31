"""Malformed configs, data files, folders and saved guarantees, the same ones every time.

A :class:`Case` writes its files into an empty folder and says what to call. ``cases()`` is all of them: every shipped
config with every key spoilt in turn, and what no edit of a config reaches. The oracle is coarse on purpose: a value
of a type that its key does not take MUST be refused; one that may make sense may also run.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import io
import json
import os
import random
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import dpmcmc
from dpmcmc import config as config_room
from dpmcmc import config_file

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = sorted((ROOT / "configs").glob("*.yaml"))
#: A config is refused before anything is read, or it makes a plan.
REFUSED, EITHER = (2,), (0, 2)

Make = Callable[[Path], list[str]]


@dataclass(frozen=True)
class Case:
    """One malformed input.

    Attributes:
        name: of the test.
        command: ``plan``, ``run``, ``verify`` or ``ledger``.
        make: writes files into a folder and returns the arguments.
        codes: exit codes that are right.
        words: what the sentence must name, where it is refused.
        data: of the environment variable DPMCMC_DATA, relative to the folder; None leaves it as it is.
    """

    name: str
    command: str
    make: Make
    codes: tuple[int, ...] = REFUSED
    words: tuple[str, ...] = ()
    data: str | None = None


class Raw(str):
    """A scalar that stands in the YAML as it is, for what ``safe_dump`` would not write."""


def dumped(values: Any) -> str:
    """YAML of nested values, with each :class:`Raw` put in unquoted."""
    raws: list[str] = []

    def plain(value: Any) -> Any:
        if isinstance(value, Raw):
            raws.append(str(value))
            return f"RAW{len(raws) - 1}RAW"
        if isinstance(value, dict):
            return {key: plain(each) for key, each in value.items()}
        return [plain(each) for each in value] if isinstance(value, list) else value

    text = yaml.safe_dump(plain(values), sort_keys=False, allow_unicode=True)
    for number, raw in enumerate(raws):
        text = text.replace(f"RAW{number}RAW", raw)
    return text


# Values that are wrong wherever a number stands, and values that may be.
_NO_NUMBER = [
    True, "fast", "1.0", [], {}, [1.0], {"value": 1}, Raw(".nan"), Raw(".inf"), Raw("-.inf"), Raw("1e400"), Raw("2001-01-01"),
    Raw("!!binary aGVsbG8="), Raw("1,5"), Raw("0x"), Raw("1e"), Raw("'1e5'"), Raw("nan"), Raw("1:60:1"),
]  # fmt: skip
_ODD_NUMBER = [0, -1, -1.0, Raw("-0.0"), Raw("1e-320"), Raw("1e-30"), Raw("1e30"), Raw("1e308"), 10**30, -(10**30), 0.5, 2.5, 2**31, 2**63, None]
_NO_TEXT = [1, 1.5, True, [], {}, ["a"], {"a": "b"}, Raw(".nan"), Raw("2001-01-01")]
_ODD_TEXT = ["", " ", "no_such", "two\nlines", "tab\there", "ünï✓", "\x07bell", "\x1b[31mred", "\ud7ff", "x" * 50_000, "../../x", "a:b", ":", "a:b:c", "/dev/zero", None]
_NO_FLAG = [1, 0, "yes", "true", [], {}, 1.0]
_NO_SECTION = [True, 3, Raw(".nan"), [], [1, 2], "words", "a:b", {"unknown": 1}, {}, Raw("!!binary aGk="), [{"name": "adult"}]]


def leaves(values: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(path, value) of everything below a mapping, sections included."""
    for key, value in values.items():
        yield (*path, key), value
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))


def changed(values: dict, path: tuple, value: Any) -> dict:
    """A copy with one value replaced."""
    out = copy.deepcopy(values)
    place: Any = out
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    return out


def resolved(path: Path) -> dict:
    """A config with every default written out, so that every key can be spoilt."""
    return yaml.safe_load(config_room.dump(config_file.load(path), path.parent))


@functools.cache
def good_configs() -> dict[str, dict]:
    """Every shipped config, and two on a file of one's own, by name."""
    out = {path.stem: resolved(path) for path in SHIPPED}
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("own", _SMALL), ("owners", _OWNERS)):
            path = Path(folder) / f"{name}.yaml"
            path.write_text(text)
            out[name] = resolved(path)
    return out


def written(text: dict | str | bytes, *sets: str) -> Make:
    """A config of these values, or of this text."""

    def make(folder: Path) -> list[str]:
        content = text if isinstance(text, bytes) else (dumped(text) if isinstance(text, dict) else text).encode()
        (folder / "config.yaml").write_bytes(content)
        return [str(folder / "config.yaml"), *(a for s in sets for a in ("--set", s))]

    return make


def spoilt_values() -> Iterator[Case]:
    """Every key of every shipped config, with wrong types and odd values; ``plan`` reads no record."""
    for stem, body in good_configs().items():
        for path, value in leaves(body):
            key = ".".join(path)
            if isinstance(value, bool):
                wrong, odd = _NO_FLAG, [None]
            elif isinstance(value, (int, float)):
                wrong, odd = _NO_NUMBER, _ODD_NUMBER
            elif isinstance(value, str):
                wrong, odd = _NO_TEXT, _ODD_TEXT
            elif value is None:
                wrong, odd = [True, [], {}, Raw("1e400")], ["words", 1, -1, 0, 2.5, 10**30]
            else:
                wrong, odd = _NO_SECTION, [None]
            custom = ":" in str(body["target"].get("name")) and path[0] == "target"
            if path[-1] == "batch_size":  # a fraction of a record is right, and slow to plan
                odd = [n for n in odd if n not in (0.5, 2.5)]
            for codes, bads in ((EITHER if custom else REFUSED, wrong), (EITHER, odd)):
                for number, bad in enumerate(bads):
                    name = f"{stem}-{key}-{'wrong' if bads is wrong else 'odd'}{number}"
                    words = (path[-1],) if codes == REFUSED else ()
                    # auto and matched are words in a number's place, and a schedule is a mapping there
                    if path[-1] in ("step_size", "friction") and isinstance(bad, dict):
                        words = ("step_size",) if path[-1] == "step_size" else ("friction",)
                    yield Case(name, "plan", written(changed(body, path, bad)), codes, words)


def odd_pairs(count: int = 4000) -> Iterator[Case]:
    """Two or three odd numbers at once, which each alone may be right."""
    rng = random.Random(11)
    # Batches of a record or two are right, and slow to plan.
    numbers: list[Any] = [0, 1, 2, 3, 0.5, 0.999, 1e-3, 1e-9, 1e-30, 10, 1000, 12345, 10**6, 10**9, 2**31, 1e9, 1e30, 10**18, None]
    bodies = good_configs()
    for number in range(count):
        stem = rng.choice(sorted(bodies))
        body = bodies[stem]
        places = [p for p, v in leaves(body) if isinstance(v, int | float) and not isinstance(v, bool)]
        changes = []
        for path in rng.sample(places, min(len(places), rng.choice([2, 2, 3]))):
            value = rng.choice([n for n in numbers if path[-1] != "batch_size" or not n or n >= 10])
            body = changed(body, path, value)
            changes.append(f"{'.'.join(path)}={value}")
        yield Case(f"odd-{number}-{stem}-{','.join(changes)}", "plan", written(body), EITHER)


def spoilt_sections() -> Iterator[Case]:
    """Keys left out, unknown keys at every level, keys given twice, and one config's section in another."""
    bodies = good_configs()
    for stem, body in bodies.items():
        for path, _ in leaves(body):
            short = copy.deepcopy(body)
            place = short
            for part in path[:-1]:
                place = place[part]
            del place[path[-1]]
            codes = REFUSED if path[-1] in ("name", "scheme", "data", "target", "privacy", "delta") else EITHER
            yield Case(f"{stem}-without-{'.'.join(path)}", "plan", written(short), codes)
        sections = [(), *(path for path, value in leaves(body) if isinstance(value, dict))]
        for path in sections:
            if path[:1] == ("target",) and ":" in body["target"]["name"]:
                continue
            for key in ("epsilom", "Epsilon", "ünknown", "__class__", "model_config", "num_records_", "x" * 2000, "a.b", "a\nb", ""):
                wrong = changed(body, (*path, key), 1)
                yield Case(f"{stem}-unknown-{'.'.join(path)}-{key[:12]!r}", "plan", written(wrong), REFUSED)
        text = dumped(body)
        for line in ("name: again", "privacy: null", "run: {steps: 1}"):
            yield Case(f"{stem}-twice-{line[:4]}", "plan", written(text + line + "\n"), EITHER)
        for other, theirs in bodies.items():
            for key in body.keys() & theirs.keys() - {"name"}:
                if theirs[key] != body[key] and other != stem:
                    mixed = {**body, key: theirs[key]}
                    yield Case(f"{stem}-with-{key}-of-{other}", "plan", written(mixed), EITHER)
            for key in theirs.keys() - body.keys():
                added = {**body, key: theirs[key]}
                yield Case(f"{stem}-and-{key}-of-{other}", "plan", written(added), EITHER)


def broken_texts() -> Iterator[Case]:
    """Files that are no YAML, hardly YAML, or too much of it."""
    good = (ROOT / "configs" / "two_normals.yaml").read_bytes()
    laughs = "a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n" + "".join(
        f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
    )
    merges = "m0: &m0 {k: 1}\n" + "".join(f"m{i}: &m{i}\n  <<: [{', '.join([f'*m{i - 1}'] * 9)}]\n" for i in range(1, 12))
    texts: dict[str, str | bytes] = {
        "empty": b"",
        "blank": b"\n\n   \n",
        "comment": b"# nothing\n",
        "null": b"null\n",
        "scalar": b"42\n",
        "word": b"adult\n",
        "list": b"- name: adult\n",
        "two-documents": good + b"---\n" + good,
        "bom": b"\xef\xbb\xbf" + good,
        "utf16": good.decode().encode("utf-16"),
        "latin1": "name: na\u00efve\n".encode("latin-1") + good,
        "not-utf8": b"name: \xff\xfe\xfa\n",
        "nul": b"name: a\x00b\n",
        "nuls": b"\x00" * 4096,
        "control": b"name: a\x07b\n",
        "random": random.Random(1).randbytes(4096),
        "tabs": good.replace(b"  name", b"\tname"),
        "tab-after-colon": b"name:\tx\ndata:\t{name: adult}\n",
        "unclosed": good + b"\nextra: [1, 2\n",
        "unclosed-quote": b"name: 'a\n" + good,
        "bad-indent": good.replace(b"  step_size", b" step_size"),
        "colon": b"name: a: b\n",
        "percent": b"%YAML 9.9\n---\n" + good,
        "directive": b"%FOO bar\n",
        "anchor-missing": b"name: *nowhere\n",
        "anchor-itself": b"name: x\ndata: &d {name: adult, more: *d}\n",
        "anchor-list-itself": b"name: &n [*n]\n",
        "anchor-whole-itself": b"&top\nname: x\ndata: *top\n",
        "anchor-good": good.replace(b"name: two_normals", b"name: &n two_normals", 1).replace(b"  name: two_normals", b"  name: *n"),
        "laughs": laughs.encode(),
        "laughs-in-place": laughs.encode() + good + b"\nextra: *a11\n",
        "laughs-as-value": laughs.replace("a11: &a11", "name: &a11").encode(),
        "laughs-merged": merges.encode() + good,
        "merge-scalar": good + b"\n<<: 3\n",
        "merge-missing": good + b"\n<<: *nowhere\n",
        "deep-lists": b"name: " + b"[" * 5000 + b"]" * 5000,
        "deep-maps": b"name: " + b"{a: " * 5000 + b"1" + b"}" * 5000,
        "deep-blocks": b"".join(b" " * i + b"a:\n" for i in range(1500)),
        "python-tag": b"name: !!python/object/apply:os.system [echo]\n" + good,
        "unknown-tag": b"name: !mine 3\n",
        "set-tag": b"name: !!set {a, b}\n",
        "omap-tag": b"name: !!omap 3\n",
        "int-tag": b"name: !!int x\n",
        "int-tag-empty": b"name: !!int ''\n",
        "float-tag": b"name: !!float x\n",
        "bool-tag": b"name: !!bool x\n",
        "time-tag": b"name: !!timestamp x\n",
        "binary-tag": b"name: !!binary '\xc3\xa9'\n",
        "bad-date": b"name: 2001-13-45\n",
        "long-integer": b"name: " + b"9" * 10_000 + b"\n",
        "long-word": b"name: " + b"x" * 200_000 + b"\n",
        "long-line-of-keys": b"\n".join(b"k%d: 1" % i for i in range(3000)),
        "huge-file": b"# " + b"x" * 5_000_000 + b"\n" + good,
        "number-key": good + b"\n1: 2\n",
        "null-key": good + b"\nnull: 2\n",
        "list-key": good + b"\n? [a, b]\n: 2\n",
        "map-key": good + b"\n? {a: b}\n: 2\n",
        "true-key": good + b"\nyes: 2\n",
        "twice": good + b"\nname: again\n",
        "twice-inside": good.replace(b"  prior_scale: 3.0", b"  prior_scale: 3.0\n  prior_scale: 2.0"),
        "crlf": good.replace(b"\n", b"\r\n"),
        "cr": good.replace(b"\n", b"\r"),
        "half": good[: len(good) // 2],
        "json": b'{"name": "x", "data": {"name": "adult"}}',
        "toml": b"[data]\nname = 'adult'\n",
        "zip": _zipped({"x.npy": b""}),
    }  # fmt: skip
    fine = {"bom", "anchor-good", "crlf", "cr", "huge-file"}
    for name, text in texts.items():
        yield Case(f"text-{name}", "plan", written(text), EITHER if name in fine else REFUSED, ("config.yaml",))
    for cut in range(40, len(good), 97):
        yield Case(f"text-cut-{cut}", "plan", written(good[:cut]), EITHER, ("config.yaml",))
    rng = random.Random(2)
    for number in range(60):
        spoilt = bytearray(good)
        for _ in range(rng.choice([1, 2, 8])):
            spoilt[rng.randrange(len(spoilt))] = rng.choice(b"{}[]:,#&*!|>'\"%@`-\n\t 0eE.\x00\xff")
        yield Case(f"text-flipped-{number}", "plan", written(bytes(spoilt)), EITHER)

    def folder(at: Path) -> list[str]:
        (at / "config.yaml").mkdir()
        return [str(at / "config.yaml")]

    def nowhere(at: Path) -> list[str]:
        return [str(at / "config.yaml")]

    def locked(at: Path) -> list[str]:
        (at / "config.yaml").write_bytes(good)
        (at / "config.yaml").chmod(0)
        return [str(at / "config.yaml")]

    def below_file(at: Path) -> list[str]:
        (at / "file").write_bytes(good)
        return [str(at / "file" / "config.yaml")]

    def loop(at: Path) -> list[str]:
        (at / "config.yaml").symlink_to(at / "config.yaml")
        return [str(at / "config.yaml")]

    for command in ("plan", "run"):
        yield Case(f"{command}-config-folder", command, folder, words=("config.yaml",))
        yield Case(f"{command}-config-nowhere", command, nowhere, words=("config.yaml",))
        yield Case(f"{command}-config-locked", command, locked, EITHER, ("config.yaml",))
        yield Case(f"{command}-config-below-file", command, below_file, words=("config.yaml",))
        yield Case(f"{command}-config-link-to-itself", command, loop, words=("config.yaml",))
        yield Case(f"{command}-config-endless", command, lambda at: ["/dev/zero"], words=("/dev/zero",))
        yield Case(f"{command}-config-null-device", command, lambda at: ["/dev/null"], words=("/dev/null",))
        yield Case(f"{command}-config-empty-name", command, lambda at: [""])
        yield Case(f"{command}-config-long-name", command, lambda at: ["x" * 5000])


def overrides() -> Iterator[Case]:
    """--set, malformed."""
    good = (ROOT / "configs" / "two_normals.yaml").read_bytes()
    for number, override in enumerate(
        [
            "", "=", "=1", ".=1", "a=1", "a.b=1", "privacy", "privacy.", "privacy.=1", ".privacy=1", "privacy..epsilon=1",
            "privacy.epsilon", "privacy.epsilon=", "privacy.epsilon= ", "privacy.epsilon==1", "privacy.epsilon=[", "privacy.epsilon={",
            "privacy.epsilon='", "privacy.epsilon=*a", "privacy.epsilon=&a", "privacy.epsilon=!!python/name:os.system",
            "privacy.epsilon=!!int x", "privacy.epsilon=\t", "privacy.epsilon=#", "privacy.epsilon=---", "privacy.epsilon=...",
            "privacy.epsilon.value=1", "name.first=x", "name.a.b.c=x", "run.steps.most=3", "sampler.step_size.a=1", "sampler.0=1",
            "privacy.epsilon=1\n2", "privacy.epsilon=1e400", "privacy.epsilon=\ud800", "pr\u00efvacy.epsilon=1", "privacy.epsilon=\x00",
            "privacy.epsilon=" + "9" * 5000, "privacy.epsilon=" + "[" * 5000, "x" * 100_000 + "=1", "privacy.epsilon=" + "x" * 100_000,
            "privacy={}", "privacy=[]", "privacy=1", "data=adult", "data=[adult]", "data={name: adult, path: a.npz}", "data={}",
            "sampler=sgld", "sampler={name: sgld}", "sampler.name=ops", "mechanism=ops", "mechanism={name: ops}", "mechanism={}",
            "sampler=null", "sampling=null", "run=null", "target=null", "data=null", "name=null", "run={}", "run.steps=null",
            "run.passes=3", "run={passes: 0}", "run={passes: -1}", "run={passes: 1e-320}", "run={passes: 1e300}", "run.burn_in=1",
            "run.burn_in=-0.1", "run.burn_in=1.5", "run.burn_in=0.999", "run.thin=0", "run.thin=51", "run.thin=-1", "run.thin=10000000000000000000000",
            "run.steps=1", "run={steps: 1, thin: 2}", "run.chains=100001", "run.chains=-3", "run.curvature=0", "run.curvature=1e-300", "run.curvature=1e300",
            "privacy.delta=0", "privacy.delta=1", "privacy.delta=0.001", "privacy.delta=0.01", "privacy.delta=1e-300", "privacy.delta=1e-320",
            "privacy.delta=-1e-6", "privacy.epsilon=1e-300", "privacy.epsilon=1e-9", "privacy.epsilon=1e9", "privacy.epsilon=1e300", "privacy.epsilon=null",
            "privacy.calibrator=free", "privacy.calibrator=closed_form", "privacy.accountant=advanced", "privacy.accountant=last_iterate",
            "privacy.accountant=rdp", "privacy.release=one_sample", "privacy.release=estimate", "privacy.adjacency=add_remove",
            "privacy.clip=1e-12", "privacy.clip=1e12", "privacy.clip=-1", "privacy.insecure_noise_seed=-1", "privacy.insecure_noise_seed=1e3",
            "privacy.insecure_noise_seed=99999999999999999999999", "privacy.insecure_noise_seed=true",
            "sampling={scheme: poisson, batch_size: 1001}", "sampling={scheme: poisson, batch_size: 0}", "sampling={scheme: poisson, batch_size: 1e-300}",
            "sampling={scheme: fixed_size, batch_size: 1001}", "sampling={scheme: fixed_size, batch_size: 2.5}", "sampling={scheme: full, batch_size: 3}",
            "sampling={batch_size: 3}", "sampling=full", "sampling={scheme: [full]}", "sampling={scheme: null}",
            "sampler.step_size={schedule: nowhere}", "sampler.step_size={}", "sampler.step_size={schedule: polynomial}",
            "sampler.step_size={schedule: polynomial, a: .nan}", "sampler.step_size={schedule: cyclical, a: 1, period: 0}",
            "sampler.step_size={schedule: polynomial, a: 1, b: 1e-320}", "sampler.step_size={schedule: polynomial, a: 1, gamma: 1e300}",
            "sampler.step_size={schedule: floor, a: 1, floor: 1e-320}", "sampler.step_size={schedule: floor, a: 1e308, floor: 1e308}",
            "sampler.step_size={schedule: alpha_phase, alpha: 1, epsilon: 1, delta: 1e-6, steps: 5, num_records: 10}",
            "sampler.step_size=1e-300", "sampler.step_size=1e300", "sampler.temperature=1e300", "sampler.temperature=1e-300", "sampler.temperature=0",
            "target.prior_scale=1e-300", "target.prior_scale=1e300", "target.prior_scale=.inf", "target.row_bound=1", "target.num_features=3",
            "data.encoding=linear", "data.standin=maybe", "data.row_bound=1", "data.test_fraction=0.5", "data.num_records=999", "data.num_records=0",
            "data.public=1", "data.x=x", "data.name=[]", "data.name=../adult",
        ]
    ):  # fmt: skip
        yield Case(f"set-{number}-{override[:40]!r}", "plan", written(good, override), EITHER)


def customs() -> Iterator[Case]:
    """Targets and samplers of one's own that are missing, raise, or return nonsense."""
    module = """
import dpmcmc
def raises(**keys): raise RuntimeError("two\\nlines of trouble")
def exits(**keys): raise SystemExit(3)
def interrupts(**keys): raise KeyboardInterrupt
def asserts(**keys): assert False
def nothing(**keys): return None
def number(**keys): return 3
def text(**keys): return "target"
def needs(scale): return dpmcmc.targets.LogisticRegression(prior_scale=scale)
constant = 5
class Empty: pass
class Half:
    def init(self, key): return 1.0
class Raising:
    def init(self, key): raise KeyError("init")
    def log_prior(self, params): raise ZeroDivisionError
    def log_likelihood(self, params, record): raise ZeroDivisionError
class Vague(Raising):
    def __repr__(self): raise RuntimeError("no repr")
class Lying(dpmcmc.SGLD):
    def noise_std(self, t): return float("nan")
class Wordy(dpmcmc.SGLD):
    def noise_std(self, t): return "loud"
class Failing(dpmcmc.SGLD):
    def noise_std(self, t): raise LookupError("no noise today")
class Stepless(dpmcmc.SGLD):
    def step(self, key, state, gradient, t): return None
class Breaking(dpmcmc.SGLD):
    def step(self, key, state, gradient, t): raise LookupError("no step today")
class Unbound(dpmcmc.SGLD):
    def bind(self, num_records): return None
class Cold(dpmcmc.SGLD):
    def temperature_at(self, noise_std, t): return "cold"
"""
    broken = {"syntax_wrong": "def (", "import_fails": "import no_such_module_at_all\n", "import_raises": "1 / 0\n", "import_exits": "raise SystemExit(4)\n", "import_empty": ""}
    names = ["raises", "exits", "asserts", "nothing", "number", "text", "needs", "constant", "Empty", "Half", "Raising", "Vague", "no_such", "raises.deeper", "__name__", "__dict__"]
    samplers = ["Lying", "Wordy", "Failing", "Stepless", "Breaking", "Unbound", "Cold"]
    good = (ROOT / "configs" / "two_normals.yaml").read_text()

    one_shot = yaml.safe_load(good)
    for key in ("sampler", "sampling", "run"):
        del one_shot[key]
    one_shot["privacy"] = {"epsilon": 1.0, "delta": 1e-4}

    def make(section: str, name: str, keys: str, alone: bool = False, mechanism: str | None = None) -> Make:
        def at(folder: Path) -> list[str]:
            (folder / "malformed_module.py").write_text(module)
            for file, text in broken.items():
                (folder / f"malformed_{file}.py").write_text(text)
            settings = {"name": mechanism} | ({"regularisation": 1.0} if "perturbation" in str(mechanism) else {})
            (folder / "config.yaml").write_text(good if mechanism is None else dumped({**one_shot, "mechanism": settings}))
            value = name if alone else f"{{name: '{name}'{keys}}}"
            return [str(folder / "config.yaml"), "--set", f"{section}={value}"]

        return at

    for name in [*names, "builtins"]:
        for mechanism in ("ops", "certified_ops", "output_perturbation", "objective_perturbation", "sufficient_statistics"):
            yield Case(f"{mechanism}-of-{name}", "plan", make("target", f"malformed_module:{name}", "", mechanism=mechanism), REFUSED)
    for section in ("target", "sampler"):
        step = ", step_size: 1.0" if section == "sampler" else ""
        for name in [*names, *(samplers if section == "sampler" else [])]:
            # A target may have its shapes from the data, so a plan does not call it.
            codes = EITHER if name == "Raising" and section == "target" else REFUSED
            full = f"malformed_module:{name}"
            yield Case(f"{section}-{name}", "plan", make(section, full, step), codes, (section,))
            yield Case(f"{section}-{name}-run", "run", make(section, full, step), codes, (section,))
        yield Case(f"{section}-exits-alone", "plan", make(section, "malformed_module:exits", "", True), REFUSED, (section,))
        for file in broken:
            yield Case(f"{section}-{file}", "plan", make(section, f"malformed_{file}:x", step), REFUSED, (section,))
        for name in (":", "a:", ":b", "os:", "os.path:join.x", "..os:path", "a b:c", "os:path:join", "os;system:x", "builtins:exit", "builtins:quit", "os:abort_", "builtins:object", "builtins:dict", "json:loads", "sys:modules"):
            yield Case(f"{section}-named-{name!r}", "plan", make(section, name, ""), REFUSED, (section,))
        yield Case(f"{section}-number-keys", "plan", make(section, "malformed_module:needs", ", 1: 2"), REFUSED)
        yield Case(f"{section}-schedule-key", "plan", make(section, "malformed_module:needs", ", scale: {schedule: [1]}"), REFUSED, (section,))
        yield Case(f"{section}-other-schedule", "plan", make(section, "malformed_module:needs", ", scale: {schedule: polynomial, a: -1}"), REFUSED, (section,))


def _zipped(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def npy(array: np.ndarray) -> bytes:
    """One array in NumPy's format."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def header(text: str, body: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    """NumPy's format with a header of one's own."""
    content = text.encode("latin-1") + b"\n"
    size = struct.pack("<H" if version[0] == 1 else "<I", len(content))
    return b"\x93NUMPY" + bytes(version) + size + content + body


ROWS = 40
_SMALL = """
name: small
data: {path: mine.npz, num_records: 40, row_bound: 1.0}
target: {name: logistic_regression}
sampler: {name: sgld, step_size: 1.0}
sampling: {scheme: full}
privacy: {epsilon: 1.0, delta: 1.0e-3}
run: {steps: 8}
"""


_OWNERS = _SMALL.replace("num_records: 40", "owner: u, num_owners: 10, records_per_owner: 4").replace("1.0e-3", "1.0e-2")


def small_records() -> dict[str, np.ndarray]:
    """Records that the small config runs on."""
    rng = np.random.RandomState(0)
    return {"x": rng.uniform(-0.5, 0.5, (ROWS, 3)), "y": rng.randint(0, 2, ROWS)}


def saved(arrays: dict[str, np.ndarray]) -> bytes:
    """An .npz."""
    return _zipped({f"{name}.npy": npy(array) for name, array in arrays.items()})


def on_file(content: bytes | None, *sets: str, text: str = _SMALL) -> Make:
    """The small config on a data file of this content."""

    def make(folder: Path) -> list[str]:
        (folder / "config.yaml").write_text(text)
        if content is not None:
            (folder / "mine.npz").write_bytes(content)
        return [str(folder / "config.yaml"), *(a for s in sets for a in ("--set", s))]

    return make


def data_files() -> Iterator[Case]:
    """A user's .npz that is damaged, foreign, too large, of the wrong shape, type or values."""
    good = small_records()
    x, y = good["x"], good["y"]
    whole = saved(good)
    stored = "{'descr': '<f8', 'fortran_order': False, 'shape': (%s), }"

    def having(**arrays: np.ndarray | None) -> bytes:
        return saved({name: array for name, array in {**good, **arrays}.items() if array is not None})

    def at(row: Any, value: Any, array: np.ndarray = x) -> np.ndarray:
        out = array.astype(np.result_type(array, type(value)) if not isinstance(value, float) else float)
        out[row] = value
        return out

    contents: dict[str, bytes | None] = {
        "nowhere": None,
        "empty": b"",
        "text": b"x,y\n1,2\n",
        "zeros": b"\x00" * 1000,
        "random": random.Random(3).randbytes(2000),
        "single-array": npy(x),
        "pickle": b"\x80\x04K\x01.",
        "zip-of-nothing": _zipped({}),
        "zip-of-text": _zipped({"x": b"1", "y": b"2"}),
        "zip-of-text-npy": _zipped({"x.npy": b"words", "y.npy": b"words"}),
        "zip-of-empty-npy": _zipped({"x.npy": b"", "y.npy": b""}),
        "zip-of-folder": _zipped({"x.npy/": b"", "y.npy/": b""}),
        "no-x": having(x=None),
        "no-y": having(y=None),
        "other-names": saved({"features": x, "labels": y}),
        "object-x": having(x=np.array([[1, "a", None]] * ROWS, dtype=object)),
        "object-y": having(y=np.array([None] * ROWS)),
        "text-x": having(x=np.full((ROWS, 3), "a")),
        "digits-as-text": having(x=np.full((ROWS, 3), "0.1")),
        "bytes-x": having(x=np.full((ROWS, 3), b"a")),
        "complex-x": having(x=x.astype(complex)),
        "complex-y": having(y=y.astype(complex)),
        "dates": having(x=np.full((ROWS, 3), np.datetime64("2001-01-01"))),
        "structured": having(x=np.zeros(ROWS, [("a", float), ("b", int)])),
        "x-0d": having(x=np.array(1.0)),
        "x-1d": having(x=x[:, 0]),
        "x-3d": having(x=x[:, :, None]),
        "y-0d": having(y=np.array(1)),
        "y-2d": having(y=y[:, None]),
        "y-shorter": having(y=y[:-1]),
        "y-longer": having(y=np.append(y, 1)),
        "x-transposed": having(x=x.T),
        "no-rows": saved({"x": x[:0], "y": y[:0]}),
        "no-columns": having(x=x[:, :0]),
        "one-row": saved({"x": x[:1], "y": y[:1]}),
        "fewer-rows": saved({"x": x[:-3], "y": y[:-3]}),
        "more-rows": saved({"x": np.tile(x, (2, 1)), "y": np.tile(y, 2)}),
        "nan-row": having(x=at(7, np.nan)),
        "inf-row": having(x=at(7, np.inf)),
        "huge-row": having(x=at(7, 1e300)),
        "long-row": having(x=at(7, 1.0)),
        "all-nan": having(x=np.full((ROWS, 3), np.nan)),
        "nan-y": having(y=at(3, np.nan, y)),
        "inf-y": having(y=at(3, np.inf, y)),
        "y-minus-one": having(y=2 * y - 1),
        "y-two": having(y=at(5, 2, y)),
        "y-huge": having(y=at(5, 2**40, y)),
        "y-uint64": having(y=np.full(ROWS, 2**64 - 1, np.uint64)),
        "y-real": having(y=y + 0.25),
        "y-text": having(y=np.full(ROWS, "cat")),
        "one-trillion": _zipped({"x.npy": header(stored % "1000000, 1000000"), "y.npy": npy(y)}),
        "one-trillion-y": _zipped({"x.npy": npy(x), "y.npy": header(stored % "1000000000000,")}),
        "beyond-int64": _zipped({"x.npy": header(stored % "10000000000, 10000000000, 3"), "y.npy": npy(y)}),
        "beyond-python": _zipped({"x.npy": header(stored % ("9" * 400 + ", 3")), "y.npy": npy(y)}),
        "negative-shape": _zipped({"x.npy": header(stored % "-1, 3"), "y.npy": npy(y)}),
        "shape-of-text": _zipped({"x.npy": header(stored % "'a', 3"), "y.npy": npy(y)}),
        "shape-of-float": _zipped({"x.npy": header(stored % "2.5, 3"), "y.npy": npy(y)}),
        "header-no-dict": _zipped({"x.npy": header("[1, 2]"), "y.npy": npy(y)}),
        "header-code": _zipped({"x.npy": header("__import__('os').system('true')"), "y.npy": npy(y)}),
        "header-unclosed": _zipped({"x.npy": header("{'descr': '<f8'"), "y.npy": npy(y)}),
        "header-nested": _zipped({"x.npy": header("(" * 5000), "y.npy": npy(y)}),
        "header-long": _zipped({"x.npy": header(" " * 200_000, version=(2, 0)), "y.npy": npy(y)}),
        "header-version": _zipped({"x.npy": header(stored % "40, 3", version=(9, 0)), "y.npy": npy(y)}),
        "header-size": _zipped({"x.npy": b"\x93NUMPY\x01\x00\xff\xff{", "y.npy": npy(y)}),
        "descr-unknown": _zipped({"x.npy": header((stored % "40, 3").replace("<f8", "<q9")), "y.npy": npy(y)}),
        "descr-object": _zipped({"x.npy": header((stored % "40, 3").replace("<f8", "|O")), "y.npy": npy(y)}),
        "too-few-bytes": _zipped({"x.npy": npy(x)[:-8], "y.npy": npy(y)}),
        "zip-bomb": _bomb(),
        "zip-size-lies": _lying(whole),
        "zip-encrypted": _flagged(whole, 0x1),
        "zip-method": _method(whole, 99),
        "twice": _twice(x, y),
    }  # fmt: skip
    fine = {"one-row": EITHER, "y-uint64": REFUSED, "twice": EITHER, "zip-size-lies": EITHER}
    for name, content in contents.items():
        yield Case(f"data-{name}", "run", on_file(content), fine.get(name, REFUSED), ("mine.npz",) if name not in ("y-real", "y-two", "nothing") else ())
    for kind in ("f2", "f4", ">f8", "g", "i1", "u8", "?", "i8"):
        yield Case(f"data-x-{kind}", "run", on_file(having(x=x.astype(kind))), EITHER)
        yield Case(f"data-y-{kind}", "run", on_file(having(y=y.astype(kind))), EITHER)
    yield Case("data-fortran", "run", on_file(having(x=np.asfortranarray(x))), (0,))
    yield Case("data-compressed", "run", on_file(_compressed(good)), (0,))
    yield Case("data-good", "run", on_file(whole), (0,))
    yield Case("data-more-arrays", "run", on_file(having(z=np.zeros(3))), (0,))
    for cut in (1, 10, 30, 100, 300, 700, 1000, len(whole) - 100, len(whole) - 22, len(whole) - 1):
        yield Case(f"data-cut-{cut}", "run", on_file(whole[:cut]), REFUSED, ("mine.npz",))
    rng = random.Random(4)
    for number in range(40):
        spoilt = bytearray(whole)
        for _ in range(rng.choice([1, 3, 20])):
            spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
        yield Case(f"data-flipped-{number}", "run", on_file(bytes(spoilt)), EITHER)
    for number in range(30):
        array = bytearray(npy(x))
        for _ in range(rng.choice([1, 3, 8])):
            array[rng.randrange(128)] = rng.randrange(256)
        content = _zipped({"x.npy": bytes(array), "y.npy": npy(y)})
        yield Case(f"data-header-flipped-{number}", "run", on_file(content), EITHER)
    for number, sets in enumerate(
        [
            "data.num_records=39", "data.num_records=41", "data.num_records=0", "data.num_records=-1", "data.num_records=1000000000000000000000",
            "data.num_records=4000000000", "data.num_records=null", "data.row_bound=0.1", "data.row_bound=0", "data.row_bound=-1", "data.row_bound=.inf", "data.row_bound=1e-300",
            "data.row_bound=1e300", "data.test_fraction=1", "data.test_fraction=-0.1", "data.test_fraction=0.99", "data.test_fraction=0.5", "data.test_fraction=1e-9",
            "data.x=y", "data.y=x", "data.x=", "data.x=z", "data.x=''", "data.x=\"\\n\"", "data.encoding=linear", "data.standin=allow", "data.name=adult",
            "data.path=''", "data.path=.", "data.path=/", "data.path=/dev/null", "data.path=/dev/zero", "data.path=\"a\\0b\"", "data.path=~nobody_at_all/x.npz", "data.path=" + "x" * 5000, "data.path=" + "x/" * 3000,
            "data.path=\"\\ud800\"", "data.path=config.yaml", "data.path=config.yaml/x.npz", "target={name: softmax_regression}", "target={name: softmax_regression, num_classes: 1}", "target={name: softmax_regression, num_classes: 2}",
            "target={name: linear_regression}", "target={name: linear_regression, noise_scale: 1e-300}", "target={name: linear_regression, label_bound: 0.5}",
        ]
    ):  # fmt: skip
        for command in ("plan", "run"):
            yield Case(f"data-set-{number}-{sets[:40]!r}-{command}", command, on_file(whole, sets), EITHER)

    u = np.arange(ROWS) // 4
    for name, array in {
        "good": u, "missing": None, "real": u + 0.0, "text": u.astype(str), "object": u.astype(object), "complex": u + 0j, "flag": u > 3, "beyond": u + 1,
        "huge": u + 2**40, "negative": u - 1, "shorter": u[:-1], "longer": np.append(u, 9), "table": u[:, None], "none": u[:0], "single": np.array(3),
        "nan": np.where(u == 2, np.nan, u), "uint64": u.astype(np.uint64) + np.uint64(2**63), "one-owner": np.zeros(ROWS, int),
    }.items():  # fmt: skip
        content = saved({"x": x, "y": y} | ({} if array is None else {"u": array}))
        codes = {"good": (0,), "flag": EITHER, "one-owner": EITHER, "real": EITHER}.get(name, REFUSED)
        yield Case(f"data-owner-{name}", "run", on_file(content, text=_OWNERS), codes)
    for number, override in enumerate(
        ["num_owners=9", "num_owners=11", "num_owners=0", "num_owners=1", "num_owners=10000000000", "num_owners=null", "records_per_owner=0", "records_per_owner=1",
         "records_per_owner=1000000000000", "records_per_owner=null", "owner=x", "owner=y", "owner=z", "owner=null", "num_records=40", "test_fraction=0.5", "test_fraction=0.99", "name=adult"]
    ):  # fmt: skip
        yield Case(f"data-owner-set-{number}-{override}", "run", on_file(saved({**good, "u": u}), f"data.{override}", text=_OWNERS), EITHER)

    def folder(at_: Path) -> list[str]:
        arguments = on_file(None)(at_)
        (at_ / "mine.npz").mkdir()
        return arguments

    def locked(at_: Path) -> list[str]:
        arguments = on_file(whole)(at_)
        (at_ / "mine.npz").chmod(0)
        return arguments

    def link(at_: Path) -> list[str]:
        arguments = on_file(None)(at_)
        (at_ / "mine.npz").symlink_to(at_ / "mine.npz")
        return arguments

    yield Case("data-folder", "run", folder, words=("mine.npz",))
    yield Case("data-locked", "run", locked, EITHER, ("mine.npz",))
    yield Case("data-link-to-itself", "run", link, words=("mine.npz",))


def _bomb() -> bytes:
    """Fifty kilobytes that unpack to 48 MB of zeros, with no labels beside them."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as stream:
        stream.write(header("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 6), }"))
        for _ in range(48):
            stream.write(b"\x00" * 1_000_000)
    return buffer.getvalue()


def _lying(whole: bytes) -> bytes:
    """The archive with a wrong uncompressed size in its directory."""
    out = bytearray(whole)
    start = out.rindex(b"PK\x01\x02")
    out[start + 24 : start + 28] = struct.pack("<I", 2**31)
    return bytes(out)


def _flagged(whole: bytes, flag: int) -> bytes:
    out = bytearray(whole)
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = 0
        while (start := out.find(signature, start)) >= 0:
            out[start + offset] |= flag
            start += 4
    return bytes(out)


def _method(whole: bytes, method: int) -> bytes:
    out = bytearray(whole)
    for signature, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        start = 0
        while (start := out.find(signature, start)) >= 0:
            out[start + offset : start + offset + 2] = struct.pack("<H", method)
            start += 4
    return bytes(out)


def _twice(x: np.ndarray, y: np.ndarray) -> bytes:
    """Two arrays of one name; zipfile reads the last."""
    import warnings

    buffer = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "w") as archive:
        warnings.simplefilter("ignore")
        for name, array in (("x", 100 * x), ("y", y), ("x", x)):
            archive.writestr(f"{name}.npy", npy(array))
    return buffer.getvalue()


def _compressed(arrays: dict[str, np.ndarray]) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def planted(files: dict[str, bytes], folder: Path) -> None:
    """Write what :func:`tree` read."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@functools.cache
def stopped_run() -> dict[str, bytes]:
    """A run of the small config in ``out`` that was stopped after its first chunk."""
    from dpmcmc import run

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder, sample = Path(name), run.sample
        patch.setattr(run, "sample", lambda *a, **k: sample(*a, **{**k, "progress": stop}))
        with contextlib.redirect_stderr(io.StringIO()):
            code = run.main([*on_file(saved(small_records()))(folder), "--out", str(folder / "out"), "--quiet"])
        assert code == 130
        return tree(folder)


def resumed(files: dict[str, bytes | None], *more: str) -> Make:
    """``--resume`` of the stopped run with some files replaced, or taken away."""

    def make(folder: Path) -> list[str]:
        planted({k: v for k, v in {**stopped_run(), **files}.items() if v is not None}, folder)
        return ["--resume", str(folder / "out"), "--quiet", *more]

    return make


def folders() -> Iterator[Case]:
    """--out, --confidential and --resume on what is no place for a run."""
    whole = saved(small_records())

    def into(*arguments: str, before: Callable[[Path], Any] = lambda folder: None) -> Make:
        def make(folder: Path) -> list[str]:
            sets = on_file(whole)(folder)
            before(folder)
            return [*sets, *(a.replace("HERE", str(folder)) for a in arguments)]

        return make

    def file(name: str) -> Callable[[Path], Any]:
        return lambda folder: planted({name: b"precious"}, folder)

    def locked(folder: Path) -> None:
        (folder / "locked").mkdir(mode=0o500)

    def link(folder: Path) -> None:
        (folder / "out").symlink_to(folder / "nowhere")

    outs: dict[str, Make] = {
        "file": into("--out", "HERE/out", before=file("out")),
        "below-file": into("--out", "HERE/out/deeper/still", before=file("out")),
        "full": into("--out", "HERE/out", before=file("out/draws.nc")),
        "full-hidden": into("--out", "HERE/out", before=file("out/.hidden")),
        "full-below": into("--out", "HERE/out", before=file("out/a/b/c")),
        "device": into("--out", "/dev/null"),
        "below-device": into("--out", "/dev/null/run"),
        "proc": into("--out", "/proc/dpmcmc"),
        "long-name": into("--out", "HERE/" + "x" * 300),
        "long-path": into("--out", "HERE/" + "x/" * 3000),
        "broken-link": into("--out", "HERE/out", before=link),
        "confidential-inside": into("--out", "HERE/out", "--confidential", "HERE/out/mine"),
        "confidential-same": into("--out", "HERE/out", "--confidential", "HERE/out"),
        "confidential-around": into("--out", "HERE/a/../a", "--confidential", "HERE/b/../a/c"),
        "confidential-file": into("--out", "HERE/out", "--confidential", "HERE/mine", before=file("mine")),
        "confidential-full": into("--out", "HERE/out", "--confidential", "HERE/mine", before=file("mine/a")),
        "confidential-device": into("--out", "HERE/out", "--confidential", "/dev/null"),
        "confidential-long": into("--out", "HERE/out", "--confidential", "HERE/" + "x" * 300),
        "empty": into("--out", ""),
        "confidential-empty": into("--out", "HERE/out", "--confidential", ""),
    }
    for name, make in outs.items():
        yield Case(f"out-{name}", "run", make, REFUSED, ("--confidential" if "conf" in name else "--out",))
    yield Case("out-locked", "run", into("--out", "HERE/locked/out", before=locked), EITHER)
    for number, arguments in enumerate(
        [
            [], ["--quiet"], ["--out"], ["--set"], ["--resume"], ["--confidential"], ["--nonsense"], ["--seed", "1"], ["a", "b"],
            ["--set", "a=1"], ["--out", "x", "--resume", "x"], ["--resume", "x", "--set", "name=y"], ["--resume", ""], ["--resume", "/"],
            ["--resume", "/dev/null"], ["--resume", "HERE"], ["--resume", "HERE/nowhere"], ["--resume", "HERE/config.yaml"],
            ["--resume", "x" * 5000], ["--resume", "HERE", "HERE/config.yaml"], ["--quiet=yes"], ["--quie", "--ou"],
        ]
    ):  # fmt: skip
        for command in ("run", "plan"):
            yield Case(f"{command}-arguments-{number}-{' '.join(arguments)[:20]}", command, _only(arguments, whole), REFUSED)
    kept = "out/confidential/checkpoint/"
    run, state = kept + "run.json", (kept + "state-0.bin", kept + "state-1.bin")

    def body(**facts: Any) -> bytes:
        return json.dumps({**json.loads(stopped_run()[run]), **facts}).encode()

    def later(files: Callable[[], dict[str, bytes | None]], *more: str) -> Make:
        return lambda folder: resumed(files(), *more)(folder)

    def spoilt(name: str, seed: int) -> bytes:
        content, rng = bytearray(stopped_run()[name]), random.Random(seed)
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        return bytes(content)

    resumes: dict[str, Callable[[], dict[str, bytes | None]]] = {
        "no-config": lambda: {"out/config.yaml": None},
        "empty-config": lambda: {"out/config.yaml": b""},
        "other-config": lambda: {"out/config.yaml": stopped_run()["out/config.yaml"].replace(b"step_size: 1.0", b"step_size: 2.0")},
        "random-config": lambda: {"out/config.yaml": random.Random(5).randbytes(500)},
        "no-checkpoint": lambda: {name: None for name in stopped_run() if name.startswith(kept)},
        "no-run-json": lambda: {run: None},
        "no-data": lambda: {"mine.npz": None},
        "other-data": lambda: {"mine.npz": saved({**small_records(), "x": small_records()["x"] / 2})},
        "fewer-data": lambda: {"mine.npz": saved({k: v[:-1] for k, v in small_records().items()})},
        "damaged-data": lambda: {"mine.npz": b"PK"},
        **{
            f"run-json-{name}": lambda content=content: {run: content}
            for name, content in {
                "empty": b"", "random": random.Random(6).randbytes(300), "null": b"null", "list": b"[]", "dict": b"{}", "number": b"1", "text": b'"a"',
                "version": b'{"version": 99}', "bare": b'{"version": 1}', "plan-alone": b'{"version": 1, "plan": "x"}', "deep": b"[" * 100_000,
                "bom": b"\xef\xbb\xbf{}", "utf16": "{}".encode("utf-16"), "nan": b'{"version": NaN}', "long-number": b'{"version": ' + b"9" * 10_000 + b"}",
            }.items()
        },
        **{
            f"run-json-{key}-{number}": lambda key=key, value=value: {run: body(**{key: value})}
            for key in ("plan", "records", "records_key", "platform", "secret", "keys", "again", "notes")
            for number, value in enumerate([None, 1, "x", [], {}, [[1, 2]], True])
        },
        "state-random": lambda: {name: random.Random(7).randbytes(500) for name in state},
        "state-empty": lambda: {name: b"" for name in state},
        "state-short": lambda: {name: stopped_run().get(name, b"")[:50] for name in state},
        **{f"state-flipped-{seed}": lambda seed=seed: {kept + "state-0.bin": spoilt(kept + "state-0.bin", seed)} for seed in range(4)},
        "state-signed-nonsense": lambda: {name: _signed(b"nonsense") for name in state},
        "state-signed-zip": lambda: {name: _signed(_zipped({"a": b"b"})) for name in state},
        "state-signed-npz": lambda: {name: _signed(saved({"body": np.frombuffer(b"{}", np.uint8)})) for name in state},
        "state-signed-other": lambda: {name: _signed(saved({"body": np.frombuffer(b'{"more": 1}', np.uint8)})) for name in state},
        "state-signed-text": lambda: {name: _signed(saved({"body": np.frombuffer(b"words", np.uint8)})) for name in state},
        "done": lambda: {run: b'{"version": 1, "done": true}', "out/metrics.json": b"{}"},
    }  # fmt: skip
    for name, files in resumes.items():
        yield Case(f"resume-{name}", "run", later(files), EITHER)
    yield Case("resume-with-other-set", "run", later(lambda: {}, "config.yaml", "--set", "run.steps=9"), REFUSED, ("--resume",))
    yield Case("resume-elsewhere", "run", later(lambda: {}, "--confidential", "nowhere"), REFUSED, ("--resume",))


def _only(arguments: list[str], data: bytes) -> Make:
    """Just these arguments, beside a good config."""

    def make(folder: Path) -> list[str]:
        on_file(data)(folder)
        return [a.replace("HERE", str(folder)) for a in arguments]

    return make


def _signed(content: bytes) -> bytes:
    """With the digest in front that a checkpoint's files have."""
    return hashlib.sha256(content).digest() + content


def registered_files() -> Iterator[Case]:
    """A DPMCMC_DATA folder that holds something else than the official files."""
    real = Path(os.environ.get("DPMCMC_DATA", "nowhere"))
    official = (real / "abalone.data").read_bytes() if (real / "abalone.data").exists() else b"M,1\n" * 4177
    files: dict[str, bytes] = {
        "empty": b"",
        "text": b"not the data",
        "cut": official[:-1],
        "half": official[: len(official) // 2],
        "longer": official + b"\n",
        "flipped": official[:1000] + b"9" + official[1001:] if official[1000:1001] != b"9" else official[:1000] + b"8" + official[1001:],
        "crlf": official.replace(b"\n", b"\r\n"),
        "random": random.Random(8).randbytes(10_000),
        "html": b"<html>503</html>",
    }
    for standin in ("allow", "refuse"):
        for config, first in (("abalone", "abalone.data"), ("adult", "adult.data")):
            for name, content in files.items():

                def make(folder: Path, content: bytes = content, config: str = config, first: str = first, standin: str = standin) -> list[str]:
                    planted({f"data/{first}": content}, folder)
                    return [str(ROOT / "configs" / f"{config}.yaml"), "--set", f"data.standin={standin}"]

                # A wrong file is never replaced by a stand-in.
                yield Case(f"files-{config}-{name}-{standin}", "run", make, REFUSED, (first,), data="data")

        def folder_for_file(folder: Path, standin: str = standin) -> list[str]:
            (folder / "data" / "abalone.data").mkdir(parents=True)
            return [str(ROOT / "configs" / "abalone.yaml"), "--set", f"data.standin={standin}"]

        yield Case(f"files-folder-{standin}", "run", folder_for_file, REFUSED, ("abalone.data",), data="data")
        for place in ("data", "config.yaml", "~nobody_at_all", "a\udc80"):

            def nowhere(folder: Path, standin: str = standin) -> list[str]:
                planted({"config.yaml": b""}, folder)
                return [str(ROOT / "configs" / "abalone.yaml"), "--set", f"data.standin={standin}"]

            yield Case(f"files-no-folder-{place!r}-{standin}", "run", nowhere, REFUSED, ("DPMCMC_DATA",), data=place)

    def missing(folder: Path) -> list[str]:
        (folder / "data").mkdir()
        return [str(ROOT / "configs" / "abalone.yaml"), "--set", "data.standin=refuse"]

    yield Case("files-missing-refuse", "run", missing, REFUSED, ("abalone.data", "standin"), data="data")


@functools.cache
def guarantee() -> dict[str, Any]:
    """A privacy.json that verifies."""
    made = dpmcmc.privacy.account(
        20.0, steps=50, sampling=dpmcmc.Full(), num_records=500, delta=1e-4, adjacency="replace_one", accountant="pld"
    )
    facts = {
        "noise_multiplier": {"min": 20.0, "max": 20.0}, "steps": 50, "chains": 1, "multiples": [1.0], "sampling": {"rate": 1.0},
        "charged_draws": 0, "settings": {"noise_multiplier": 20.0},
    }  # fmt: skip
    return made.to_json() | facts


def saved_guarantees() -> Iterator[Case]:
    """privacy.json, spoilt, for ``verify``."""
    body = guarantee()

    def held(content: Any, *more: str) -> Make:
        def make(folder: Path) -> list[str]:
            text = content if isinstance(content, bytes) else json.dumps(content).encode()
            (folder / "privacy.json").write_bytes(text)
            return [str(folder / "privacy.json"), *more]

        return make

    yield Case("verify-good", "verify", held(body), (0,))
    values: list[Any] = [None, True, 0, -1, 1.5, 1e300, -1e300, 10**30, "x", "1", "", [], {}, [None], {"min": None}, float("nan"), float("inf")]
    places = [*leaves(body), *((("events", 0, *path), value) for path, value in leaves(body["events"][0]))]
    for path, value in places:
        short = copy.deepcopy(body)
        inner: Any = short
        for part in path[:-1]:
            inner = inner[part]
        del inner[path[-1]]
        yield Case(f"verify-without-{path}", "verify", held(short), (0, 1, 2))
        for number, bad in enumerate(values):
            words = isinstance(bad, str | list | dict) and not isinstance(value, str | list | dict | type(None))
            # A guarantee is taken from its events, so a damaged figure is refused or found to be too small.
            codes = (1, 2) if words and path[0] in ("epsilon", "delta", "events") else (0, 1, 2)
            yield Case(f"verify-{path}-{number}", "verify", held(changed(body, path, bad)), codes)
    texts = {
        "empty": b"", "null": b"null", "number": b"3", "list": b"[]", "dict": b"{}", "text": b'"a"', "half": json.dumps(body).encode()[:200],
        "random": random.Random(9).randbytes(500), "utf16": json.dumps(body).encode("utf-16"), "bom": b"\xef\xbb\xbf" + json.dumps(body).encode(),
        "deep": b"[" * 100_000, "deep-dict": b'{"a":' * 100_000, "long-number": b'{"epsilon": ' + b"9" * 10_000 + b"}", "nul": b"\x00" * 100,
        "yaml": b"epsilon: 1\n", "events-text": b'{"events": "abc"}', "events-dict": b'{"events": {"a": 1}}', "events-number": b'{"events": 7}',
        "events-numbers": b'{"events": [1, 2]}', "surrogate": b'{"events": ["\\ud800"]}',
    }  # fmt: skip
    for name, content in texts.items():
        yield Case(f"verify-text-{name}", "verify", held(content), REFUSED, ("privacy.json",))
    for group in ("0", "-1", "x", "1.5", "", "1e3", "9" * 30, "1000000000", "nan", "3"):
        yield Case(f"verify-group-{group[:10]}", "verify", held(body, "--group", group), EITHER)
    for name, path in {"nowhere": "HERE/nowhere", "folder": "HERE", "device": "/dev/null", "endless": "/dev/zero", "long": "x" * 5000, "empty": ""}.items():
        yield Case(f"verify-{name}", "verify", lambda folder, path=path: [path.replace("HERE", str(folder))], REFUSED)
    yield Case("verify-nothing", "verify", lambda folder: [], REFUSED)
    yield Case("verify-two", "verify", lambda folder: ["a", "b"], REFUSED)


@functools.cache
def ledger() -> bytes:
    """A good ledger for the small config."""
    from dpmcmc.privacy import Ledger

    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "small.ledger"
        Ledger.init(path, name="small", num_records=ROWS, adjacency="replace_one", epsilon=3.0, delta=5e-3)
        return path.read_bytes()


def ledgers() -> Iterator[Case]:
    """privacy.ledger, and the ledger command, on files that are no ledgers."""
    whole = saved(small_records())

    def contents() -> dict[str, bytes | None]:
        good = ledger()
        flipped = {f"flipped-{seed}": _flip(good, seed) for seed in range(12)}
        return {
            "nowhere": None, "empty": b"", "text": b"words", "random": random.Random(10).randbytes(9000), "sqlite-header": good[:100],
            "cut": good[:-4096], "half": good[: len(good) // 2], "longer": good + b"\x00" * 4096, "zeros": b"\x00" * 8192,
            "npz": whole, "json": b"{}", "no-application": good[:68] + b"\x00" * 4 + good[72:], "version": good[:60] + b"\x00\x00\x00\x63" + good[64:],
            **flipped,
        }  # fmt: skip

    def running(name: str) -> Make:
        def make(folder: Path) -> list[str]:
            content = contents()[name]
            if content is not None:
                (folder / "small.ledger").write_bytes(content)
            return on_file(whole, "privacy.ledger=small.ledger")(folder)

        return make

    def commanded(name: str, *arguments: str) -> Make:
        def make(folder: Path) -> list[str]:
            content = contents()[name]
            if content is not None:
                (folder / "small.ledger").write_bytes(content)
            return [*arguments, str(folder / "small.ledger")]

        return make

    for name in contents():
        codes = (0, 1, 2) if name.startswith(("flipped", "longer")) else (1, 2)
        yield Case(f"ledger-run-{name}", "run", running(name), (0, 1, 2) if codes[0] == 0 else REFUSED, () if codes[0] == 0 else ("small.ledger",))
        yield Case(f"ledger-show-{name}", "ledger", commanded(name, "show"), codes)
        yield Case(f"ledger-history-{name}", "ledger", commanded(name, "history", "--json"), codes)

    def planned(*sets: str) -> Make:
        return on_file(whole, *sets)

    for number, value in enumerate(["''", ".", "/", "/dev/null", "/dev/zero", "\"a\\0b\"", "~nobody_at_all/x", "x" * 5000, "config.yaml", "mine.npz", "config.yaml/x", "1", "[]", "true"]):
        yield Case(f"ledger-named-{number}", "run", planned(f"privacy.ledger={value}"), REFUSED)
    yield Case("ledger-of-no-guarantee", "run", running_of(whole, "privacy.insecure_noise_seed=0"), REFUSED, ("ledger",))
    yield Case("ledger-over-budget", "run", running_of(whole, "privacy.epsilon=30", "sampler.step_size=auto"), REFUSED, ("small.ledger",))
    yield Case("ledger-other-adjacency", "run", running_of(whole, "privacy.adjacency=add_remove"), REFUSED)
    yield Case("ledger-other-records", "run", running_of(whole, "data.num_records=39"), REFUSED)
    good = ["--epsilon", "1", "--delta", "1e-6"]
    for number, arguments in enumerate(
        [
            [], ["show"], ["nothing"], ["init"], ["init", "HERE/l"], ["init", "HERE/l", "--epsilon", "1"], ["init", "HERE/l", "--epsilon", "x", "--delta", "1e-6"],
            *(["init", "HERE/l", "--epsilon", e, "--delta", d] for e in ("0", "-1", "nan", "inf", "1e400", "1e300", "1e-300") for d in ("1e-6",)),
            *(["init", "HERE/l", "--epsilon", "1", "--delta", d] for d in ("0", "-1", "1", "2", "nan", "inf", "1e-300", "1e-320")),
            *(["init", "HERE/l", *good, "--order", o] for o in ("0", "1", "-3", "1.5", "x", "1000000000", "9" * 30)),
            *(["init", "HERE/l", *good, "--num-records", n] for n in ("0", "-1", "x", "1.5", "9" * 30)),
            *(["init", "HERE/l", *good, "--filter", f] for f in ("nothing", "programme", "")), ["init", "HERE/l", *good, "--adjacency", "swap"],
            ["init", "HERE/nowhere/l", *good], ["init", "HERE", *good], ["init", "/dev/null", *good], ["init", "HERE/config.yaml", *good], ["init", "x" * 5000, *good], 
            ["init", "", *good], ["init", "HERE/l", *good, "--programme", "HERE/nowhere.yaml"], ["init", "HERE/l", *good, "--programme", "HERE/mine.npz"],
            ["init", "HERE/l", *good, "--name", ""], ["init", "HERE/l", *good, "--name", "a\nb\x1b[31m"], ["init", "HERE/l", *good, "--set", "a"],
            ["show", "HERE/nowhere"], ["show", "HERE"], ["show", "HERE/config.yaml"], ["show", "/dev/zero"], ["show", "/dev/null"], ["show", ""], ["history", "HERE/mine.npz"],
            ["show", "HERE/small.ledger", "--receipt", "HERE/nowhere"], ["show", "HERE/small.ledger", "--receipt", "HERE/mine.npz"], ["show", "HERE/small.ledger", "--receipt", "HERE/config.yaml"],
        ]
    ):  # fmt: skip

        def make(folder: Path, arguments: list[str] = arguments) -> list[str]:
            on_file(whole)(folder)
            (folder / "small.ledger").write_bytes(ledger())
            return [a.replace("HERE", str(folder)) for a in arguments]

        yield Case(f"ledger-arguments-{number}-{' '.join(arguments)[:50]}", "ledger", make, EITHER)


def running_of(whole: bytes, *sets: str) -> Make:
    """The small config with a good ledger."""

    def make(folder: Path) -> list[str]:
        (folder / "small.ledger").write_bytes(ledger())
        return on_file(whole, "privacy.ledger=small.ledger", *sets)(folder)

    return make


def _flip(content: bytes, seed: int) -> bytes:
    out, rng = bytearray(content), random.Random(seed)
    for _ in range(8):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


#: Every kind of bad input.
GROUPS = (spoilt_values, odd_pairs, spoilt_sections, broken_texts, overrides, customs, data_files, folders, registered_files, saved_guarantees, ledgers)


def cases() -> list[Case]:
    """All of them."""
    return [case for group in GROUPS for case in group()]
