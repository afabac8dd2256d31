"""The ledger of a data set: its budget, and every run that spent from it.

Claim: A budget is taken before a record is looked at, and never twice.
Proof: an entry is appended under a lock, and a run of one name begins by one.
Held by: test_the_budget_is_taken_before_a_record_is_looked_at,
test_of_processes_that_race_for_the_last_of_a_budget_only_as_many_as_fit_get_it,
test_of_copies_from_before_a_run_has_begun_one_begins,
"ledger read outside its transaction", "ledger locked by its name", "ledger overwritten in place",
"reservation given back after records were read", "a begun run under another name"
"""

from __future__ import annotations

import functools
import hashlib
import math
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from dpmcmc.privacy.accounting import (
    ADJACENCIES,
    Adjacency,
    Event,
    overflow_probability,
    run_length,
)
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.ledger import chain, file, largest_epsilon, postgres, programme
from dpmcmc.privacy.ledger.book import Book, Run, fold
from dpmcmc.privacy.ledger.chain import (
    BrokenChain,
    Entry,
    LedgerError,
    NotMade,
    Receipt,
    Store,
    confirm,
)
from dpmcmc.privacy.ledger.place import Address, Place, place
from dpmcmc.privacy.ledger.state import State, account
from dpmcmc.privacy.ledger.terms import BUDGET_OVERFLOW_SHARE, Promise, fix_terms

OUTCOMES = ("released", "void")
#: Seconds in which a change is tried again while its server is away.
_PATIENCE = 60.0


class OverBudget(LedgerError):
    """A run that costs more than is left.

    Example:
        >>> from dpmcmc import Full
        >>> from dpmcmc.privacy import Ledger, account
        >>> terms = {"num_records": 1000, "adjacency": "replace_one", "epsilon": 1.0, "delta": 1e-5}
        >>> ledger = Ledger.init("small.ledger", name="people", **terms)
        >>> guarantee = account(1.0, steps=1, sampling=Full(), num_records=1000, delta=1e-6)
        >>> ledger.reserve(guarantee, "too much")
        Traceback (most recent call last):
            ...
        dpmcmc.privacy.ledger.ledger.OverBudget: small.ledger: run 'too much' is refused: it costs 36.1 in...
    """


_Given = ParamSpec("_Given")
_Told = TypeVar("_Told")
_Method = Callable[Concatenate["Ledger", _Given], _Told]


def _patient(method: _Method[_Given, _Told]) -> _Method[_Given, _Told]:
    """Make a change again, from the ledger as it is then, where its server was lost before it was made."""

    @functools.wraps(method)
    def call(self: Ledger, *given: _Given.args, **named: _Given.kwargs) -> _Told:
        end = time.monotonic() + _PATIENCE
        pause = 0.0
        while True:
            try:
                return method(self, *given, **named)
            except NotMade:
                if time.monotonic() > end:
                    raise
            time.sleep(pause)
            pause = min(1.0, 2 * pause + 0.02)

    return call


def _store(where: Place) -> Store:
    return postgres if isinstance(where, Address) else file


class Ledger:
    """The privacy budget of one data set, and every run that spent from it, in a file or in a database.

    Args:
        path: of an existing file, or ``postgresql://USER@HOST/DATABASE#SCHEMA``, which several machines share.

    Raises:
        LedgerError: missing, damaged, or not a ledger; a server that cannot be reached.
        BrokenChain: entries were edited or removed.
        InputError: a URL with a password, or of no database of PostgreSQL.

    Example:
        >>> from dpmcmc import Full
        >>> from dpmcmc.privacy import Ledger, account
        >>> terms = {"num_records": 1000, "adjacency": "replace_one", "epsilon": 1.0, "delta": 1e-5}
        >>> ledger = Ledger.init("people.ledger", name="people", **terms)
        >>> guarantee = account(20.0, steps=1, sampling=Full(), num_records=1000, delta=1e-6)
        >>> receipt = ledger.reserve(guarantee, "first run")
        >>> ledger.settle(receipt, "released")
        >>> ledger.state().left < ledger.terms.budget
        True
    """

    def __init__(self, path: str | Path | Address) -> None:
        self.path = place(path)
        entries, self._key = _store(self.path).read(self.path)
        self._book: Book | None = fold(entries, self.path)
        self.terms = self._book.terms
        if self._key is None:  # a database hides it from those who may only read
            return
        if hashlib.sha256(self._key).hexdigest() != entries[0].body.get("key_sha256"):
            raise BrokenChain(f"{self.path}: the ledger's key was replaced; restore an untouched copy.")

    @classmethod
    def init(
        cls,
        path: str | Path | Address,
        *,
        name: str,
        num_records: int | None,
        adjacency: str,
        epsilon: float,
        delta: float,
        filter: str = "renyi",
        order: int | None = None,
        programme: Sequence[Guarantee] = (),
        typical: Guarantee | None = None,
        overflow_share: float = BUDGET_OVERFLOW_SHARE,
    ) -> Ledger:
        """Make the ledger of a data set; its budget is fixed for good.

        Args:
            path: of the new file, or the URL of a database.
            name: of the data set.
            num_records: N if it is public.
            adjacency: of every run: ``replace_one`` | ``add_remove`` | ``zero_out``.
            epsilon, delta: promised for all runs together.
            filter: ``renyi`` | ``zcdp`` | ``gdp`` | ``programme`` (see ``filters.py`` and ``filters.py``).
            order: of filter renyi, an integer >= 2; by default the best for runs like ``typical``.
            programme: guarantees of the runs, of filter programme alone.
            typical: guarantee of a run, for the default order; by default full-batch Gaussian queries.
            overflow_share: share of δ kept for batch overflow and approximate draws.

        Raises:
            LedgerError: the ledger exists, or numbers that make no budget.
            UnsupportedCombination: a programme that no accountant covers.
        """
        like = () if typical is None else typical.events
        if adjacency not in ADJACENCIES:
            raise LedgerError(f"adjacency must be one of {', '.join(ADJACENCIES)}, got {adjacency!r}.")
        promise = Promise(
            name,
            num_records,
            Adjacency(adjacency),
            float(epsilon),
            float(delta),
            filter,
            order,
        )
        terms = fix_terms(promise, programme, like, overflow_share)
        key = secrets.token_bytes(32)
        body = terms.__dict__ | {
            "items": list(terms.items),
            "key_sha256": hashlib.sha256(key).hexdigest(),
        }
        where = place(path)
        _store(where).create(where, key, [chain.following([], "init", "", body)])
        return cls(where)

    @_patient
    def reserve(self, guarantee: Guarantee, label: str) -> Receipt:
        """Take a run's whole cost from the budget, before it reads a record.

        Args:
            guarantee: of everything the run releases; its events are charged, whatever ε it states.
            label: for people.

        Returns:
            Receipt that the run keeps, to settle and to prove its place.

        Raises:
            OverBudget: it costs more than is left; the message says what would fit.
            LedgerError: another adjacency or number of records, or a run without noise.
            UnsupportedCombination: an event that the filter does not cover.
        """
        charge = self._charge(guarantee.events, guarantee.adjacency, label)
        stated = {
            "epsilon": guarantee.epsilon if math.isfinite(guarantee.epsilon) else None,
            "delta": guarantee.delta,
            "accountant": guarantee.accountant,
            "release": guarantee.release,
        }
        with _store(self.path).change(self.path) as (entries, append):
            refusal = self._replayed(entries).refusal(charge)
            if refusal is None:
                entry = append(
                    "reserve",
                    secrets.token_hex(8),
                    charge | {"label": label, "guarantee": stated},
                )
                return Receipt(entry.run, entry.sequence, entry.hash, self.path)
        raise OverBudget(f"{self.path}: run {label!r} is refused: {refusal}; {self._advice(guarantee)}.")

    @_patient
    def begin(self, receipt_or_id: Receipt | str, name: str | None = None) -> None:
        """Say that a run begins to compute from records, or goes on; it is never void after.

        A reservation is for one run, which has a name. Copies of its checkpoint have the same name and the same keys,
        so they make the same bits, and nothing is entered for them.

        Args:
            receipt_or_id: from :meth:`reserve`, or the run's id.
            name: random, kept beside the run's keys; None: the run keeps none, and does not go on.

        Raises:
            LedgerError: a run of another name has begun, or the run is settled and had not begun.
        """
        name = secrets.token_hex(16) if name is None else name
        with _store(self.path).change(self.path) as (entries, append):
            run = self._run(entries, receipt_or_id)
            if run.begun is None and run.outcome == "open":
                append("begin", run.id, {"by": name})
            elif run.begun != name:
                how = "has begun" if run.outcome == "open" else f"is settled as {run.outcome}"
                raise LedgerError(
                    f"{self.path}: run {run.id} ({run.label}) {how} already, from another copy of its checkpoint if it "
                    "has one, and a reservation is for one run; a new run is charged by itself."
                )

    @_patient
    def settle(self, receipt_or_id: Receipt | str, outcome: str | None = None) -> None:
        """Close a reservation.

        Args:
            receipt_or_id: from :meth:`reserve`, or the run's id.
            outcome: ``released`` keeps what was spent; ``void`` gives it back, and is for a run that ended before it
                computed anything from a record. None: ``released`` where the run has begun, else ``void``; a run that
                is settled stays as it is.

        Raises:
            LedgerError: an unknown or settled run, or ``void`` for one that has begun.
        """
        if outcome not in (None, *OUTCOMES):
            raise LedgerError(f"{self.path}: outcome must be one of {', '.join(OUTCOMES)}, got {outcome!r}.")
        with _store(self.path).change(self.path) as (entries, append):
            run = self._run(entries, receipt_or_id)
            if outcome is None and run.outcome != "open":
                return
            self._check_open(run)
            outcome = outcome or ("released" if run.read else "void")
            if outcome == "void" and run.read:
                raise LedgerError(
                    f"{self.path}: run {run.id} ({run.label}) has begun or was extended, so it may have read records, "
                    "and cannot be void; settle it as released."
                )
            append("settle", run.id, {"outcome": outcome})

    @_patient
    def give_back(self, receipt_or_id: Receipt | str) -> None:
        """Void a reservation whose run has ended before it began; one that has begun, or is settled, stays as it is.

        Args:
            receipt_or_id: from :meth:`reserve`, or the run's id.

        Raises:
            LedgerError: an unknown run.
        """
        with _store(self.path).change(self.path) as (entries, append):
            run = self._run(entries, receipt_or_id)
            if run.outcome == "open" and not run.read:
                append("settle", run.id, {"outcome": "void"})

    @_patient
    def identify(
        self,
        fingerprint: Callable[[bytes], str],
        columns: Callable[[bytes], Mapping[str, str]] = lambda key: {},
    ) -> None:
        """Check that the data are those that the ledger is about; the first call says which.

        Args:
            fingerprint: key -> HMAC of the records, hex; keyed, so that the ledger says nothing about them to others.
            columns: key -> name -> HMAC of each column of the table that the records were made of. A table is known by
                its columns, whichever of them a formula chose: those that the ledger knows must be the same.

        Raises:
            LedgerError: other data.
        """
        if self._key is None:
            raise LedgerError(
                f"{self.path}: your role may only read this ledger, so it cannot tell whose data these are; ask its "
                "owner for the rights to reserve (docs/ledger.md lists them)."
            )
        found = fingerprint(self._key)
        named = columns(self._key)
        with _store(self.path).change(self.path) as (entries, append):
            book = self._replayed(entries)
            if not book.about(found, named):
                raise LedgerError(
                    f"{self.path}: these are not the data that the ledger of {self.terms.name!r} was first used with; "
                    "give those data. Other columns of the same people belong on the same ledger: give their whole "
                    "table with its schema, which is known under any formula. Another ledger is for other people."
                )
            new = {name: one for name, one in named.items() if name not in book.columns}
            if new or found not in book.fingerprints:
                append("data", "", {"fingerprint": found} | ({"columns": new} if new else {}))

    def copy(self, to: str | Address) -> Ledger:
        """Copy a file into a database that has no ledger there, with every entry as it is; the file is closed.

        The file says first where it goes, and admits nothing from then on, so there is one budget at any time. A copy
        that was stopped in between is finished by the same call.

        Args:
            to: URL of the database.

        Raises:
            LedgerError: the ledger is no file, was copied elsewhere, or there is a ledger already.
        """
        where = place(to)
        if not isinstance(where, Address) or isinstance(self.path, Address):
            raise LedgerError(
                f"{where}: a ledger is copied from a file into a database; give FILE and postgresql://USER@HOST/DATABASE."
            )
        assert self._key is not None  # a file is read whole
        with (
            postgres.making(where, self._key) as fill,
            file.change(self.path) as (entries, append),
        ):
            moved = fold(entries, self.path).moved
            if moved not in (None, str(where)):
                raise LedgerError(f"{self.path}: was copied to {moved} already; name that as the ledger.")
            fill([entry for entry in entries if entry.kind != "moved"])
            if moved is None:
                append("moved", "", {"to": str(where)})
        return Ledger(where)

    def state(self) -> State:
        """Return the account of the ledger as it is now."""
        return account(self.history(), self.path)

    def history(self) -> list[Entry]:
        """Every entry, the chain verified."""
        return _store(self.path).read(self.path)[0]

    def check(self) -> None:
        """Raise BrokenChain unless every entry is there and unedited, and together they are within the budget."""
        overspent = fold(self.history(), self.path).overspent
        if overspent is not None:
            raise BrokenChain(
                f"{self.path}: the ledger is overspent ({overspent}), so two copies or an edited one were used; "
                "release nothing more of these data under it."
            )

    def confirm(self, receipt: Receipt) -> None:
        """Raise BrokenChain unless the entry that a receipt names is in this ledger, which an old copy lacks."""
        confirm(self.history(), receipt, self.path)

    def find(self, label: str, guarantee: Guarantee | None = None) -> Receipt | None:
        """The reservation of the run with this label, for a run that was stopped and goes on; None without one.

        Args:
            label: as given to :meth:`reserve`; void runs do not count.
            guarantee: if given, what the run costs now; it must be what was reserved.

        Raises:
            LedgerError: several runs have the label, or the run has changed.
        """
        entries = self.history()
        runs = fold(entries, self.path).runs
        found = [
            e for e in entries if e.kind == "reserve" and e.body["label"] == label and runs[e.run].outcome != "void"
        ]
        if not found:
            return None
        if len(found) > 1:
            raise LedgerError(f"{self.path}: {len(found)} runs are labelled {label!r}; give the run's own id.")
        reserved = run_length(Event(**e) for e in found[0].body["events"])
        if guarantee is not None and programme.key_of_run(guarantee.events) != programme.key_of_run(reserved):
            raise LedgerError(
                f"{self.path}: run {label!r} was reserved with other noise or another length; resume it unchanged, or "
                "start a new run."
            )
        return Receipt(found[0].run, found[0].sequence, found[0].hash, self.path)

    def is_open(self, receipt_or_id: Receipt | str) -> bool:
        """Whether a run is reserved and not settled."""
        name = receipt_or_id.id if isinstance(receipt_or_id, Receipt) else receipt_or_id
        run = fold(self.history(), self.path).runs.get(name)
        return run is not None and run.outcome == "open"

    def fits(self, guarantee: Guarantee) -> bool:
        """Whether :meth:`reserve` would admit it now."""
        charge = self._charge(guarantee.events, guarantee.adjacency, "run")
        return fold(self.history(), self.path).refusal(charge) is None

    def fitting_epsilon(self, guarantee: Guarantee) -> float | None:
        """ε to ask for so that a run of the same shape is admitted, at the guarantee's own δ and accountant.

        Its noise is scaled up by one factor until it fits (``largest_epsilon.py``). None where no noise is enough.
        """
        if self.terms.filter == "programme":
            return guarantee.epsilon if self.fits(guarantee) else None
        book = fold(self.history(), self.path)

        def fits(events: tuple[Event, ...]) -> bool:
            cost, overflow = self._cost(events, guarantee.adjacency)
            return book.refusal({"cost": cost, "overflow": overflow}) is None

        return largest_epsilon.find_largest_epsilon(guarantee, fits, planned_against=self.terms.epsilon)

    def _charge(self, events: Sequence[Event], adjacency: Adjacency, label: str) -> dict:
        """Return an entry's fields about a cost."""
        terms = self.terms
        if adjacency != terms.adjacency:
            raise LedgerError(
                f"{self.path}: run {label!r} promises {adjacency} and the ledger {terms.adjacency}: different things; "
                f"set privacy.adjacency={terms.adjacency}."
            )
        sizes = {e.num_records for e in events if e.num_records is not None}
        if terms.num_records is not None and sizes - {terms.num_records}:
            raise LedgerError(
                f"{self.path}: run {label!r} is planned for {max(sizes)} records and the ledger is about "
                f"{terms.num_records}; plan it for those."
            )
        cost, overflow = self._cost(events, adjacency)
        if not math.isfinite(cost):
            raise LedgerError(
                f"{self.path}: run {label!r} has no bound on what it reveals (a step without noise); give it noise."
            )
        charge = {
            "cost": cost,
            "overflow": overflow,
            "events": [e.to_json() for e in run_length(events)],
        }
        return charge | ({"item": programme.key_of_run(events)} if terms.filter == "programme" else {})

    def _cost(self, events: Sequence[Event], adjacency: Adjacency) -> tuple[float, float]:
        overflow = overflow_probability(events)
        if self.terms.filter == "programme":
            return 1.0, overflow
        return self.terms.additive.cost(events, adjacency), overflow

    def _replayed(self, entries: list[Entry]) -> Book:
        """The book of entries that are about to be added to; those that were replayed before are not replayed again.

        Raises:
            LedgerError: the ledger was copied into a database, and is spent from there.
        """
        book, self._book = self._book, None  # left out where an entry is unknown
        if book is not None:
            number = book.last.sequence
            same = len(entries) >= number and entries[number - 1].hash == book.last.hash
            book = book if same else None
        self._book = fold(entries, self.path, book)
        if self._book.moved is not None:
            raise LedgerError(
                f"{self.path}: was copied to {self._book.moved} and is spent from there alone; name that as the ledger."
            )
        return self._book

    def _run(self, entries: list[Entry], receipt_or_id: Receipt | str) -> Run:
        if isinstance(receipt_or_id, Receipt):
            confirm(entries, receipt_or_id, self.path)
            receipt_or_id = receipt_or_id.id
        run = self._replayed(entries).runs.get(receipt_or_id)
        if run is None:
            raise LedgerError(f"{self.path}: no run {receipt_or_id!r}; ledger history lists them.")
        return run

    def _check_open(self, run: Run) -> None:
        if run.outcome != "open":
            raise LedgerError(
                f"{self.path}: run {run.id} ({run.label}) is settled as {run.outcome} already; reserve a new one."
            )

    def _advice(self, guarantee: Guarantee) -> str:
        """How to mend a refusal."""
        if self.terms.filter == "programme":
            return "run one of those as it was declared, or keep other runs in another ledger"
        epsilon = self.fitting_epsilon(guarantee)
        if epsilon is None:
            return "no noise makes this run fit, so ask the data's holder for another budget"
        return f"epsilon {epsilon:g} at delta {guarantee.delta:g} would fit: set privacy.epsilon={epsilon:g}"
