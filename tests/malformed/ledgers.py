"""privacy.ledger, and the ledger command, on files that are no ledgers and numbers that make no budget."""

import functools
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from dpmcmc.privacy import Ledger
from tests.malformed.case import EITHER, REFUSED, ROWS, Case, beside, npz, on_file, plant, records


@functools.cache
def good() -> bytes:
    """A ledger for the small config."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "small.ledger"
        Ledger.init(path, name="small", num_records=ROWS, adjacency="replace_one", epsilon=3.0, delta=5e-3)
        return path.read_bytes()


def _flipped(seed: int) -> bytes:
    out, rng = bytearray(good()), random.Random(seed)
    for _ in range(8):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


_NAMED = ["''", ".", "/", "/dev/null", "/dev/zero", r'"a\0b"', "~nobody_at_all/x", "config.yaml", "mine.npz"]
_NAMED += ["config.yaml/x", "1", "[]", "true", "x" * 5000]
_NAMED += ["postgresql://ana@127.0.0.1:1/x", "postgresql://ana:secret@h/x", "mysql://ana@h/x"]
_NEW = "init HERE/l --epsilon 1 --delta 1e-6"
_LINES = [
    *["", "show", "nothing", "init", "init HERE/l", "init HERE/l --epsilon 1", "init HERE/l --epsilon x --delta 1e-6"],
    *(f"init HERE/l --epsilon {e} --delta 1e-6" for e in ["0", "-1", "nan", "inf", "1e400", "1e300", "1e-300"]),
    *(f"init HERE/l --epsilon 1 --delta {d}" for d in ["0", "-1", "1", "2", "nan", "inf", "1e-300", "1e-320"]),
    *(f"{_NEW} --order {order}" for order in ("0", "1", "-3", "1.5", "x", "1000000000", "9" * 30)),
    *(f"{_NEW} --num-records {n}" for n in ("0", "-1", "x", "1.5", "9" * 30)),
    *(f"{_NEW} --filter {f}" for f in ("nothing", "programme", "EMPTY")),
    *(f"{_NEW} --programme HERE/{name}" for name in ("nowhere.yaml", "mine.npz")),
    *(f"{_NEW} {more}" for more in ("--adjacency swap", "--name EMPTY", "--name \x1b[31m", "--set a")),
    *(_NEW.replace("HERE/l", p) for p in ["HERE/nowhere/l", "HERE", "/dev/null", "HERE/config.yaml", "LONG", "EMPTY"]),
    *(
        f"show {path}"
        for path in ["HERE/nowhere", "HERE", "HERE/config.yaml", "/dev/zero", "/dev/null", "EMPTY", "HERE/mine.npz"]
    ),
    *(f"show HERE/small.ledger --receipt HERE/{name}" for name in ("nowhere", "mine.npz", "config.yaml")),
]


def ledgers() -> Iterator[Case]:
    """Runs that name a ledger, and the command."""
    whole = npz(records())
    damaged: dict[str, Callable[[], bytes]] = {
        "empty": lambda: b"",
        "header": lambda: good()[:100],
        "cut": lambda: good()[:-40],
        "npz": lambda: whole,
        "no-format": lambda: good().replace(b"dpmcmc ledger", b"dpmcmc budget"),
        "version": lambda: good().replace(b'"version": 3', b'"version": 99'),
        "no-key": lambda: good().replace(b'"key"', b'"kex"', 1),
        "no-terms": lambda: good().replace(b'"init"', b'"reserve"'),
        "database": lambda: b"SQLite format 3\x00" + b"\x00" * 8176,
        "database-of-ours": lambda: b"SQLite format 3\x00" + b"\x00" * 52 + b"dpLg" + b"\x00" * 8120,
    }
    perhaps = {f"flipped-{seed}": functools.partial(_flipped, seed) for seed in range(12)}
    perhaps["longer"] = lambda: good() + b"\x00" * 4096
    for name, content in {**damaged, **perhaps}.items():
        broken = name in damaged

        def before(folder: Path, content: Callable[[], bytes] = content) -> list[str]:
            plant(folder, {"small.ledger": content()})
            return on_file(whole, "privacy.ledger=small.ledger")(folder)

        yield Case(f"ledger-run-{name}", "run", before, REFUSED if broken else (0, 1, 2))
        for line in ("show HERE/small.ledger", "history --json HERE/small.ledger"):
            yield Case(f"ledger-{line}-{name}", "ledger", beside(line, before), (1, 2) if broken else (0, 1, 2))

    def running(*sets: str) -> Callable[[Path], list[str]]:
        def make(folder: Path) -> list[str]:
            plant(folder, {"small.ledger": good()})
            return on_file(whole, *sets)(folder)

        return make

    for number, value in enumerate(_NAMED):
        yield Case(f"ledger-named-{number}", "run", running(f"privacy.ledger={value}"))
    yield Case("ledger-nowhere", "run", running("privacy.ledger=none.ledger"), REFUSED, ("none.ledger",))
    for number, override in enumerate(
        ["privacy.insecure_noise_seed=0", "privacy.adjacency=add_remove", "data.num_records=39", "privacy=null"]
    ):
        sets = (
            ("privacy.ledger=small.ledger", override) if override != "privacy=null" else (override, "privacy.ledger=x")
        )
        yield Case(f"ledger-other-{number}", "run", running(*sets))
    over = running("privacy.ledger=small.ledger", "privacy.epsilon=30", "sampler.step_size=auto")
    yield Case("ledger-over-budget", "run", over, REFUSED, ("small.ledger",))
    for number, line in enumerate(_LINES):
        yield Case(f"ledger-line-{number}-{line[:60]}", "ledger", beside(line, running()), EITHER)
