"""Files that are no YAML, hardly YAML or too much of it; paths that are no files; and --set, malformed."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.malformed.case import CONFIGS, EITHER, REFUSED, Case, config, zipped

_GOOD = (CONFIGS / "two_normals.yaml").read_bytes()


def _nested(first: str, following: str) -> bytes:
    """Eleven anchors, each nine times the one before."""
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{i}: &a{i} " + following % ", ".join([f"*a{i - 1}"] * 9) for i in range(1, 12)]
    return "\n".join(lines).encode() + b"\n"


def files() -> Iterator[Case]:
    """What stands where a config is looked for."""
    laughs = _nested("[lol, lol, lol]", "[%s]")
    texts: dict[str, bytes] = {
        "empty": b"",
        "list": b"- name: adult\n",
        "two-documents": _GOOD + b"---\n" + _GOOD,
        "utf16": _GOOD.decode().encode("utf-16"),
        "latin1": "name: na\u00efve\n".encode("latin-1") + _GOOD,
        "not-utf8": b"name: \xff\xfe\xfa\n",
        "nul": b"name: a\x00b\n",
        "random": random.Random(1).randbytes(4096),
        "tabs": _GOOD.replace(b"  name", b"\tname"),
        "unclosed": _GOOD + b"\nextra: [1, 2\n",
        "bad-indent": _GOOD.replace(b"  step_size", b" step_size"),
        "percent": b"%YAML 9.9\n---\n" + _GOOD,
        "anchor-missing": b"name: *nowhere\n",
        "anchor-itself": b"name: x\ndata: &d {name: adult, more: *d}\n",
        "anchor-whole-itself": b"&top\nname: x\ndata: *top\n",
        "laughs-as-value": laughs.replace(b"a11: &a11", b"name: &a11"),
        "laughs-merged": _nested("{k: 1}", "{<<: [%s]}") + _GOOD,
        "merge-scalar": _GOOD + b"\n<<: 3\n",
        "deep-lists": b"name: " + b"[" * 3000 + b"]" * 3000,
        "deep-blocks": b"".join(b" " * i + b"a:\n" for i in range(1200)),
        "python-tag": b"title: !!python/object/apply:os.system [echo]\n" + _GOOD,
        "unknown-tag": b"name: !mine 3\n",
        "int-tag": b"name: !!int x\n",
        "binary-tag": b"name: !!binary '\xc3\xa9'\n",
        "bad-date": b"name: 2001-13-45\n",
        "long-integer": b"name: " + b"9" * 10_000 + b"\n",
        "long-word": b"name: " + b"x" * 200_000 + b"\n",
        "long-comment": b"# " + b"x" * 5_000_000 + b"\n" + _GOOD,
        "number-key": _GOOD + b"\n1: 2\n",
        "list-key": _GOOD + b"\n? [a, b]\n: 2\n",
        "twice": _GOOD + b"\nname: again\n",
        "twice-inside": _GOOD.replace(b"  prior_scale: 3.0", b"  prior_scale: 3.0\n  prior_scale: 2.0"),
        "half": _GOOD[: len(_GOOD) // 2],
        "zip": zipped({"x.npy": b""}),
    }
    good = {
        "bom": b"\xef\xbb\xbf" + _GOOD,
        "crlf": _GOOD.replace(b"\n", b"\r\n"),
        "anchor": _GOOD.replace(b"name: two", b"name: &n two", 1).replace(b"  name: two_normals", b"  name: *n"),
    }
    for name, text in texts.items():
        yield Case(f"text-{name}", "plan", config(text), REFUSED, ("config.yaml",))
    for name, text in good.items():
        yield Case(f"text-{name}", "plan", config(text), (0,))
    for cut in range(40, len(_GOOD), 97):
        yield Case(f"text-cut-{cut}", "plan", config(_GOOD[:cut]), EITHER, ("config.yaml",))
    rng = random.Random(2)
    for number in range(60):
        spoilt = bytearray(_GOOD)
        for _ in range(rng.choice([1, 2, 8])):
            spoilt[rng.randrange(len(spoilt))] = rng.choice(b"{}[]:,#&*!|>'\"%@`-\n\t 0eE.\x00\xff")
        yield Case(f"text-flipped-{number}", "plan", config(bytes(spoilt)), EITHER)


#: Beside values of one key, which the table of settings spoils.
_OVERRIDES = r"""
=
=1
.=1
a=1
a.b=1
privacy
privacy.
privacy.=1
.privacy=1
privacy..epsilon=1
privacy.epsilon
privacy.epsilon=
privacy.epsilon==1
privacy.epsilon=[
privacy.epsilon={
privacy.epsilon='
privacy.epsilon=*a
privacy.epsilon=&a
privacy.epsilon=!!python/name:os.system
privacy.epsilon=!!int x
privacy.epsilon=#
privacy.epsilon=---
privacy.epsilon=...
privacy.epsilon.value=1
name.first=x
name.a.b.c=x
run.steps.most=3
sampler.step_size.a=1
sampler.0=1
privacy.epsilon=1e400
prïvacy.epsilon=1
data=adult
data=[adult]
data={name: adult, path: a.npz}
data.name=[]
data.name=../adult
sampler=sgld
sampler={name: sgld}
sampler.name=ops
mechanism=ops
mechanism={name: ops}
run.passes=3
run={passes: 0}
run={passes: 1e-320}
run={passes: 1e300}
run={steps: 1, thin: 2}
privacy.delta=0.001
privacy.calibrator=free
privacy.calibrator=closed_form
privacy.accountant=advanced
privacy.accountant=last_iterate
privacy.accountant=rdp
privacy.release=one_sample
privacy.adjacency=add_remove
privacy.insecure_noise_seed=99999999999999999999999
sampling={scheme: poisson, batch_size: 1001}
sampling={scheme: poisson, batch_size: 1e-300}
sampling={scheme: fixed_size, batch_size: 2.5}
sampling={scheme: full, batch_size: 3}
sampling={scheme: cyclic, batch_size: 10}
sampling={batch_size: 3}
sampling=full
sampling={scheme: [full]}
sampling={scheme: null}
sampler.step_size={schedule: nowhere}
sampler.step_size={}
sampler.step_size={schedule: polynomial}
sampler.step_size={schedule: polynomial, a: .nan}
sampler.step_size={schedule: cyclical, a: 1, period: 0}
sampler.step_size={schedule: polynomial, a: 1, b: 1e-320}
sampler.step_size={schedule: polynomial, a: 1, gamma: 1e300}
sampler.step_size={schedule: floor, a: 1e308, floor: 1e308}
sampler.step_size={schedule: alpha_phase, alpha: 1, epsilon: 1, delta: 1e-6, steps: 5, num_records: 10}
""".strip().splitlines()
_SPECIAL = [
    "",
    "privacy.epsilon= ",
    "privacy.epsilon=\t",
    "privacy.epsilon=1\n2",
    "privacy.epsilon=\ud800",
    "privacy.epsilon=" + "9" * 5000,
    "privacy.epsilon=" + "[" * 3000,
    "x" * 100_000 + "=1",
    "privacy.epsilon=" + "x" * 100_000,
]


def overrides() -> Iterator[Case]:
    """--set, malformed or with impossible values."""
    for number, override in enumerate(_OVERRIDES + _SPECIAL):
        yield Case(f"set-{number}-{override[:50]}", "plan", config(_GOOD, override), EITHER)
