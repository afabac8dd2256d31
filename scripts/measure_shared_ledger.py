"""Time of a reservation in a ledger on PostgreSQL that many processes share, and how many are lost.

python scripts/measure_shared_ledger.py [--url URL] [--clients 16] [--reservations 10000] [--seconds 120]

Each client is a process that reserves again and again, with no pause. Without ``--url`` a server of its own is started
with PostgreSQL's settings as they come, so each change is flushed to the disk, and removed at the end. The URL's schema
must hold no ledger; drop it afterwards. It prints the median, and the tail, of a reservation's time as its caller sees
it, reservations a second, and the receipts that the ledger does not confirm, of which there must be none.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from dpmcmc.privacy import Event, Guarantee, Ledger  # noqa: E402
from dpmcmc.privacy.ledger import Receipt  # noqa: E402

#: Small enough that any number of them fits.
RUN = Guarantee.from_events((Event("gaussian", 1e6, 1.0, 1),), delta=1e-6, adjacency="replace_one", accountant="pld")
Told = tuple[list[float], list[Receipt]]


def reserve(url: str, number: int, most: float, ready: object) -> Told:
    """Reserve so many times, or for so many seconds; return the seconds of each, and the receipts."""
    ledger = Ledger(url)
    ledger.reserve(RUN, "first")  # connects
    ready.wait()  # type: ignore[attr-defined]
    end = time.time() + most
    seconds, receipts = [], []
    while len(seconds) < number and time.time() < end:
        start = time.perf_counter()
        receipts.append(ledger.reserve(RUN, "run"))
        seconds.append(time.perf_counter() - start)
    return seconds, receipts


def main() -> int:
    """Print the table; exit code 1 where a reservation was lost."""
    parser = argparse.ArgumentParser(description="Time reservations in a shared ledger.")
    parser.add_argument("--url")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--reservations", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=120.0)
    given = parser.parse_args()
    if given.url is not None:
        return measure(given.url, given)
    from tests.ledger.server import Server

    server = Server(quick=False)
    try:
        return measure(server.url(), given)
    finally:
        server.remove()


def measure(url: str, given: argparse.Namespace) -> int:
    """Print the table of one server."""
    terms = {"name": "measured", "num_records": None, "adjacency": "replace_one", "epsilon": 1.0, "delta": 1e-5}
    ledger = Ledger.init(url, **terms)
    with multiprocessing.get_context("spawn").Manager() as manager:
        ready = manager.Barrier(given.clients)
        with multiprocessing.get_context("spawn").Pool(given.clients) as pool:
            each = -(-given.reservations // given.clients)
            told = pool.starmap(reserve, [(url, each, given.seconds, ready)] * given.clients)
    seconds = np.concatenate([taken for taken, _ in told])
    entries = {(entry.sequence, entry.hash, entry.run) for entry in ledger.history()}
    receipts = [receipt for _, some in told for receipt in some]
    lost = [one for one in receipts if (one.sequence, one.hash, one.id) not in entries]
    ledger.check()
    median, tail = np.quantile(seconds, [0.5, 0.99]) * 1e3
    rate = given.clients / seconds.mean()
    print(
        f"{given.clients} clients: median {median:.1f} ms, 99 % within {tail:.1f} ms; {rate:.0f} reservations a second"
    )
    print(f"{len(receipts)} reservations told, {len(lost)} lost; {len(entries)} entries, whole")
    return 1 if lost else 0


if __name__ == "__main__":
    raise SystemExit(main())
