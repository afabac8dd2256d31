"""privacy.json, and a folder of a result, spoilt, for ``verify``."""

import functools
import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dpmcmc import SGLD, Poisson, Privacy, sample, targets
from dpmcmc.mechanisms import NoiseAware
from dpmcmc.mechanisms.chain import plan
from dpmcmc.report.privacy_json import privacy_json
from tests.malformed.case import EITHER, REFUSED, Case, Make, beside, changed, leaves, plant, tree, without

_NUMBERS: list[Any] = [True, 0, -1, 1.5, 1e300, -1e300, 10**30, 10**400, float("nan"), float("inf")]
_VALUES = [None, *_NUMBERS, "x", "1", "", [], {}, [None], {"min": None}]
_TEXTS = {
    "empty": b"",
    "list": b"[]",
    "dict": b"{}",
    "random": random.Random(9).randbytes(500),
    "deep": b"[" * 100_000,
    "long-number": b'{"epsilon": ' + b"9" * 10_000 + b"}",
    "events-text": b'{"events": "abc"}',
    "events-dict": b'{"events": {"a": 1}}',
    "events-numbers": b'{"events": [1, 2]}',
    "surrogate": b'{"events": ["\\ud800"]}',
}


@functools.cache
def good() -> dict[str, Any]:
    """A privacy.json that verifies, with what only a mechanism's has."""
    made = plan(
        targets.LogisticRegression(num_features=3, row_bound=1.0),
        num_records=500,
        sampler=SGLD(step_size=1.0),
        sampling=Poisson(50),
        steps=20,
        privacy=Privacy(epsilon=1.0, delta=1e-4),
    )
    return privacy_json(made, made.guarantee) | {"charged_draws": 0, "settings": {"noise_multiplier": 1.0}}


def _saved(content: Any, arguments: str = "HERE/privacy.json") -> Make:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return beside(arguments, lambda folder: plant(folder, {"privacy.json": text}) or [])


def saved() -> Iterator[Case]:
    """Every value of a good one replaced, texts that are none, and command lines."""
    body = good()
    yield Case("verify-good", "verify", _saved(body), (0,))
    # An event that is a failure's probability has no noise, so the one that has is taken.
    [query] = [at for at, event in enumerate(body["events"]) if event["noise_multiplier"]]
    places = [*leaves(body), *((("events", query, *path), value) for path, value in leaves(body["events"][query]))]
    for path, value in places:
        yield Case(f"verify-without-{path}", "verify", _saved(without(body, path)), (0, 1, 2))
        for number, bad in enumerate(_VALUES):
            # A guarantee is recomputed from its events: a damaged one is refused, or found to cost more than stated.
            text = isinstance(bad, str | list | dict | float) and bad != 1.5 and isinstance(value, int | float)
            codes = (1, 2) if text and path[0] in ("delta", "events", "steps", "chains") else (0, 1, 2)
            yield Case(f"verify-{path}-{number}", "verify", _saved(changed(body, path, bad)), codes)
    text = json.dumps(body)
    whole = {"utf16": text.encode("utf-16"), "bom": text.encode("utf-8-sig"), "half": text[:200].encode()}
    for name, content in {**_TEXTS, **whole}.items():
        yield Case(f"verify-text-{name}", "verify", _saved(content), REFUSED, ("privacy.json",))
    for group in ("0", "-1", "x", "1.5", "EMPTY", "1e3", "9" * 30, "1000000000", "nan", "3"):
        yield Case(f"verify-group-{group[:10]}", "verify", _saved(body, f"HERE/privacy.json --group {group}"), EITHER)


@functools.cache
def result() -> dict[str, bytes]:
    """The folder of a small result, with evidence."""
    target = targets.LogisticRegression(1.0, num_features=3, row_bound=1.0)
    x = np.random.RandomState(0).uniform(-0.5, 0.5, (400, 3)).astype(np.float32)
    made = sample(
        NoiseAware(draws=20).plan(target, num_records=400, epsilon=1.0, delta=1e-5), {"x": x, "y": x[:, 0] > 0}
    )
    with tempfile.TemporaryDirectory() as name:
        return tree(made.save(Path(name) / "run"))


def damages(content: bytes, seed: int) -> Iterator[tuple[str, bytes]]:
    """A file cut short, with a bit changed, and with nonsense in it."""
    rng = random.Random(seed)
    for kind in ("cut", "bit", "nonsense"):
        at, damaged = rng.randrange(len(content) - 1), bytearray(content)
        if kind == "cut":
            del damaged[at:]
        elif kind == "bit":
            damaged[at] ^= 1 << rng.randrange(8)
        else:
            damaged[at : at + 16] = rng.randbytes(16)
        yield kind, bytes(damaged)


def damaged() -> Iterator[Case]:
    """Every file of a result damaged, in turn."""
    whole = result()
    for name, content in whole.items():
        # A digit of privacy.json may be another one that is as good.
        codes, times = ((0, 1, 2), 20) if name == "privacy.json" else ((1,), 4)
        for seed in range(times):
            for kind, spoilt in damages(content, seed):
                make = beside("HERE/privacy.json", lambda here, files=whole | {name: spoilt}: plant(here, files) or [])
                yield Case(f"damaged-{name}-{kind}-{seed}", "verify", make, codes)
