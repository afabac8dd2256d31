"""Faults of what outlives a step: ledgers, checkpoints, and the files of a run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from dpmcmc.cli import run, verify
from dpmcmc.data import table_files
from dpmcmc.engine import life, loaded_result
from dpmcmc.engine import partitions as partitioned_room
from dpmcmc.engine import result as result_room
from dpmcmc.engine.device_calls import DeviceCalls
from dpmcmc.engine.reservation import Reservation
from dpmcmc.privacy import Guarantee, Ledger
from dpmcmc.privacy.ledger import LedgerError, Receipt, book, event_cost, filters, locked_file
from dpmcmc.privacy.ledger.book import Book
from dpmcmc.storage import checkpoint, released_files, surroundings
from tests.ledger.ledgers import edited
from tests.planted import Fault
from tests.planted import checks_state as checks
from tests.planted.checks_release import neighbours_look_the_same_for_the_same_draws

Patch = pytest.MonkeyPatch


def _after_settling(patch: Patch, edit: Callable[[Any, Any], object]) -> None:
    """What somebody with an editor does to the file once its third run is settled."""
    real = Ledger.settle

    def settle(self: Ledger, receipt_or_id: Any, outcome: str) -> None:
        real(self, receipt_or_id, outcome)
        if len(self.history()) == 7:
            edited(self.path, edit)

    patch.setattr(Ledger, "settle", settle)


def _entry_edited(patch: Patch) -> None:
    def cheaper(first: Any, entries: Any) -> None:
        entries[3]["text"] = entries[3]["text"].replace('"cost": ', '"cost": 0')

    _after_settling(patch, cheaper)


def _entries_rolled_back(patch: Patch) -> None:
    def rolled_back(first: Any, entries: Any) -> None:
        del entries[5:]

    _after_settling(patch, rolled_back)


def _reads_before_the_transaction(patch: Patch) -> None:
    real = Ledger.reserve

    def reserve(self: Ledger, guarantee: Guarantee, label: str) -> Receipt:
        fits = self.fits(guarantee)
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Book, "refusal", lambda self, charge: None if fits else "more than is left")
            return real(self, guarantee, label)

    patch.setattr(Ledger, "reserve", reserve)


def _locked_by_name(patch: Patch) -> None:
    real = locked_file.lock

    def lock(handle: int, patience: float = 0.0) -> None:
        name = os.readlink(f"/proc/self/fd/{handle}") + ".lock"
        beside = os.open(name, os.O_CREAT | os.O_RDWR, 0o600)
        beside_of[handle] = beside
        real(beside, patience)

    beside_of: dict[int, int] = {}
    patch.setattr(locked_file, "lock", lock)
    patch.setattr(locked_file, "unlock", lambda handle: os.close(beside_of.pop(handle)))


def _best_order_in_hindsight(patch: Patch) -> None:
    def cost(self: filters.Renyi, events: Any, adjacency: str) -> float:
        orders = (2, 4, self.order)
        return min(
            event_cost.sum_costs(events, adjacency, lambda e, a=a: event_cost.renyi_cost(e, adjacency, a))
            for a in orders
        )

    patch.setattr(filters.Renyi, "cost", cost)


def _always_given_back(patch: Patch) -> None:
    def settle(self: Reservation, ended: bool = True) -> None:
        self.ledger.settle(self.receipt, "void")

    patch.setattr(Reservation, "settle", settle)
    patch.setattr(book.Run, "read", False)


def _begun_as_the_object_says(patch: Patch) -> None:
    started: set[int] = set()

    def begin(self: Ledger, receipt: Any, name: str | None = None) -> None:
        if id(receipt) in started:
            raise LedgerError("used already")
        started.add(id(receipt))

    patch.setattr(Ledger, "begin", begin)


def _any_name(patch: Patch) -> None:
    real = Ledger.begin

    def begin(self: Ledger, receipt: Any, name: str | None = None) -> None:
        try:
            real(self, receipt, name)
        except LedgerError:
            return

    patch.setattr(Ledger, "begin", begin)


def _identified_by_whoever_reserves(patch: Patch) -> None:
    real = Reservation.__init__

    def init(self: Reservation, *arguments: Any, **named: Any) -> None:
        real(self, *arguments, **named)
        self._parts = True

    patch.setattr(Reservation, "__init__", init)


def _same_keys_elsewhere(patch: Patch) -> None:
    real = checkpoint.Checkpoint.keys

    def keys(self: Any, *arguments: Any) -> Any:
        if self.begun:
            self._run["platform"] = checkpoint.platform()
        return real(self, *arguments)

    patch.setattr(checkpoint.Checkpoint, "keys", keys)


def _draws_first(patch: Patch) -> None:
    real = result_room.Result.save

    def save(self: Any, folder: Any, **more: Any) -> Any:
        (folder / "draws.nc").write_bytes(result_room.netcdf(self))
        return real(self, folder, **more)

    patch.setattr(result_room.Result, "save", save)


def _digests_not_compared(patch: Patch) -> None:
    for room in (verify, released_files):
        patch.setattr(room, "discrepancy", lambda *_: None)


def compiled_with_noise(patch: Patch, factor: float) -> None:
    """The compiled program scales its noise, as in a cache that was filled from another copy of the code."""
    real = DeviceCalls._draw

    # Compiled into the steps, and into what draws for records on disk; the program itself says what it should.
    def scaled(self: Any, *arguments: Any) -> Any:
        draws, key = real(self, *arguments)
        noise = jax.tree.map(lambda leaf: (leaf * factor).astype(leaf.dtype), draws.noise)
        return draws._replace(noise=noise), key

    patch.setattr(DeviceCalls, "_draw", scaled)


def _cache_of_others(patch: Patch) -> None:
    folder = Path(tempfile.mkdtemp()) / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    patch.setenv("DPMCMC_CACHE", str(folder))


def _training_score(patch: Patch) -> None:
    real = run.ConfiguredRun.released_facts

    def facts(self: Any) -> dict[str, Any]:
        return real(self) | {"training": {"mean_label": float(np.mean(self.data.train["y"]))}}

    patch.setattr(run.ConfiguredRun, "released_facts", facts)


def _held_out_passes_for_public(patch: Patch) -> None:
    real = run.ConfiguredRun.released_facts

    def facts(self: Any) -> dict[str, Any]:
        return real(self) | {"rmse": float(np.sqrt(np.mean(self.data.test["y"] ** 2)))}

    patch.setattr(run.ConfiguredRun, "released_facts", facts)


FAULTS = (
    Fault(
        "ledger entry deleted",
        "Somebody with an editor removes a run from the ledger, and its budget would be there again.",
        lambda patch: _after_settling(patch, lambda first, entries: entries.pop(3)),
        (checks.every_entry_of_a_ledger_is_there,),
    ),
    Fault(
        "ledger entry edited",
        "Somebody lowers what a run has cost.",
        _entry_edited,
        (checks.every_entry_of_a_ledger_is_there,),
    ),
    Fault(
        "ledger rolled back",
        "The last entries are taken off, as putting back an old copy does.",
        _entries_rolled_back,
        (checks.every_entry_of_a_ledger_is_there,),
    ),
    Fault(
        "ledger read outside its transaction",
        "The sum of what is spent is read first and the entry written later, and two runs take the same budget.",
        _reads_before_the_transaction,
        (checks.two_runs_cannot_take_the_same_budget,),
    ),
    Fault(
        "ledger locked by its name",
        "The lock is a file beside the ledger, which whoever comes by a link, a mount or a new name does not see.",
        _locked_by_name,
        (checks.a_ledger_is_locked_under_every_name,),
    ),
    Fault(
        "hard links of a ledger not counted",
        "A ledger of two names is opened, and the first tool that breaks the link makes two budgets of it.",
        lambda patch: patch.setattr(locked_file.Inode, "check_links", lambda self: None),
        (checks.a_ledger_with_two_hard_links_is_refused,),
    ),
    Fault(
        "ledger overwritten in place",
        "The new content goes over the old one before it is safe anywhere else, and a kill leaves half of each.",
        lambda patch: patch.setattr(locked_file.Inode, "replace", locked_file.Inode._overwrite),
        (checks.a_kill_leaves_a_ledger_whole,),
    ),
    Fault(
        "ledger charges the best order in hindsight",
        "Each run costs the Rényi order that suits it best, though a filter holds for one order fixed in advance.",
        _best_order_in_hindsight,
        (checks.adaptive_analysts_stay_within_the_budget,),
    ),
    Fault(
        "reservation given back after records were read",
        "A run that ends is settled as void, whatever it has computed.",
        _always_given_back,
        (checks.a_run_that_read_records_stays_charged,),
    ),
    Fault(
        "reservation that knows by itself whether it is used",
        "Each copy of it, in this process or another, starts a run of its own, and one charge pays for all.",
        _begun_as_the_object_says,
        (checks.a_reservation_is_for_one_run,),
    ),
    Fault(
        "a begun run under another name",
        "A copy that was made before the run began draws keys of its own, and both are made for one charge.",
        _any_name,
        (checks.of_copies_from_before_a_run_one_begins,),
    ),
    Fault(
        "records not compared under the caller's reservation",
        "Whoever reserves by hand is trusted with the data set, and one budget pays for two.",
        _identified_by_whoever_reserves,
        (checks.records_of_others_are_refused_under_any_reservation,),
    ),
    Fault(
        "a run voided after it began",
        "Whoever types void gives back what a run that goes on, or crashed, may have released.",
        lambda patch: patch.setattr(book.Run, "read", False),
        (checks.a_run_that_has_begun_is_not_void,),
    ),
    Fault(
        "checkpoint in the folder that is published",
        "sample(out=, checkpoint=) keeps noise keys, and a keyed digest of the records, beside the draws.",
        lambda patch: patch.setattr(life, "check_apart", lambda *_: None),
        (checks.nothing_that_is_kept_lies_in_what_is_published,),
    ),
    Fault(
        "resume with the same keys on another platform",
        "A checkpoint is carried to another machine, whose floats round the query differently under the same noise.",
        _same_keys_elsewhere,
        (checks.a_run_that_moves_is_refused,),
    ),
    Fault(
        "resume with the same keys on other records",
        "A checkpoint is given the records of others, under the noise that fell on its own.",
        lambda patch: patch.setattr(checkpoint, "fingerprint", lambda *_: "records"),
        (checks.a_run_on_other_records_is_refused,),
    ),
    Fault(
        "draws saved before their cost",
        "A result's draws are written first, and a full disk leaves them without privacy.json.",
        _draws_first,
        (checks.no_draw_is_there_without_its_cost,),
    ),
    Fault(
        "result saved over another",
        "Files that the new result does not have stay beside a privacy.json that says less than they cost.",
        lambda patch: patch.setattr(result_room, "check_free", lambda folder: None),
        (checks.a_folder_is_one_result,),
    ),
    Fault(
        "digests that nobody compares",
        "A copy over a copy leaves files of two runs in one folder, which load and verify take for one result.",
        _digests_not_compared,
        (checks.files_of_two_results_are_not_taken_for_one,),
    ),
    Fault(
        "result loaded without its digests",
        "A result is loaded without a look at the digests that it states of its files.",
        lambda patch: patch.setattr(loaded_result, "check_result", lambda *_: None),
        (checks.what_a_kill_leaves_of_a_result_is_not_read,),
    ),
    Fault(
        "result saved in a checkpoint",
        "result.save(folder) is given the folder of a run that was stopped, and publishes keys with the draws.",
        lambda patch: patch.setattr(surroundings, "_is_checkpoint", lambda folder: False),
        (checks.nothing_is_saved_among_keys,),
    ),
    Fault(
        "checkpoint in the folder of a result",
        "A later run keeps its noise keys below a folder that was saved before and is published.",
        lambda patch: patch.setattr(life, "check_unpublished", lambda *_: None),
        (checks.no_keys_come_to_lie_in_a_result,),
    ),
    Fault(
        "cache that others can write to",
        "DPMCMC_CACHE names a folder of mode 777, from which a run would execute what somebody else has put there.",
        _cache_of_others,
        (checks.a_run_executes_what_its_program_says,),
    ),
    Fault(
        "compiled program without noise",
        "A cache holds a program compiled from a copy with noise times zero, of which accounting sees nothing.",
        lambda patch: compiled_with_noise(patch, 0.0),
        (checks.a_run_executes_what_its_program_says,),
    ),
    Fault(
        "compiled program with a tenth less noise",
        "A compiler's fault or a changed copy scales the noise by 0.9, which no draw shows by itself.",
        lambda patch: compiled_with_noise(patch, 0.9),
        (checks.a_run_executes_what_its_program_says,),
    ),
    Fault(
        "a file under two names",
        "Somebody links a file into its own folder, and each of its records is summed twice.",
        lambda patch: patch.setattr(table_files, "_check_once", lambda parts: None),
        (checks.no_record_counts_twice,),
    ),
    Fault(
        "a partition whose records changed",
        "A file is written anew between two passes with as many rows, some of which are another file's.",
        lambda patch: patch.setattr(partitioned_room.Digest, "__str__", lambda self: "x"),
        (checks.no_record_counts_twice,),
    ),
    Fault(
        "an answer for another partition",
        "A worker computes share 0 in place of share 1, and nobody asks which one its answer is about.",
        lambda patch: patch.setattr(partitioned_room, "check_each_once", lambda answers, shares: None),
        (checks.no_record_counts_twice,),
    ),
    Fault(
        "training statistic in metrics.json",
        "A number computed from training records without privacy is written where everybody reads.",
        _training_score,
        (neighbours_look_the_same_for_the_same_draws,),
    ),
    Fault(
        "held-out private records scored in metrics.json",
        "Rows held out of a private file are private too, and a score on them is a release.",
        _held_out_passes_for_public,
        (neighbours_look_the_same_for_the_same_draws,),
    ),
)
