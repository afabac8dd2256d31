"""``dpmcmc ledger init|show|history|copy``: the privacy budget of a data set, in a file or a database.

Exit code 0, 2 for what the user can mend, and 1 where entries were edited, removed or rolled back, or where more is
spent than the budget.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from dpmcmc import config as config_room
from dpmcmc.cli.options import note
from dpmcmc.cli.refusals import CommandError
from dpmcmc.config import file as config_file
from dpmcmc.privacy.accounting.guarantee import Guarantee
from dpmcmc.privacy.accounting.shown_numbers import round_down, round_up
from dpmcmc.privacy.ledger import BrokenChain, Entry, Ledger, Receipt, State
from dpmcmc.privacy.ledger.place import Place, place
from dpmcmc.report.lines import YES, rows, say
from dpmcmc.storage.files import read_json


def init(
    file: str,
    *,
    name: str | None,
    filter: str | None,
    typical: str | None,
    programme: list[str],
    overrides: list[str],
    allow_code: list[str],
    **terms: Any,
) -> None:
    """Make a ledger; its budget is fixed for good. ``terms`` are those that :meth:`Ledger.init` takes as they are."""

    def planned(config: str) -> Guarantee:
        return _load_guarantee(config, overrides, allow_code, terms["num_records"])

    with _verdicts():
        ledger = Ledger.init(
            file,
            **terms,
            name=name or place(file).stem,
            filter=filter or ("programme" if programme else "renyi"),
            programme=[planned(config) for config in programme],
            typical=planned(typical) if typical else None,
        )
        say(f"made {ledger.path}")
        _show(ledger, ledger.state())


def show(file: str, receipt: list[str], as_json: bool) -> None:
    """Print what is left."""
    with _verdicts():
        ledger = _open_confirmed(file, receipt)
        state = ledger.state()
        print(json.dumps(_json(state), indent=2)) if as_json else _show(ledger, state)
        ledger.check()


def history(file: str, receipt: list[str], as_json: bool) -> None:
    """Print every entry."""
    with _verdicts():
        ledger = _open_confirmed(file, receipt)
        entries = ledger.history()
        if as_json:
            print(json.dumps([entry.to_json() for entry in entries], indent=2))
        else:
            for entry in entries:
                when = f"{entry.time[:16].replace('T', ' ')}  {entry.kind}"
                print(rows([(f"{entry.sequence:>5}", f"{when}  {_said(entry)}")]))
        ledger.check()


def copy(file: str, url: str) -> None:
    """Copy a file into a database, and close the file."""
    with _verdicts():
        ledger = Ledger(file).copy(url)
        say(f"copied {file} to {ledger.path}; {file} is closed")
        _show(ledger, ledger.state())


@contextlib.contextmanager
def _verdicts() -> Iterator[None]:
    """Give a broken chain of entries exit code 1: it is a verdict against the ledger, not a user's error."""
    try:
        yield
    except BrokenChain as error:
        raise CommandError(str(error), code=1) from None


def _open_confirmed(file: str, receipts: list[str]) -> Ledger:
    """Return the ledger, after checking that it holds the runs of these receipts."""
    ledger = Ledger(file)
    for name in receipts:
        for receipt in _receipts(Path(name), ledger.path):
            ledger.confirm(receipt)
    return ledger


def _load_guarantee(name: str, overrides: list[str], allow_code: Collection[str], num_records: int | None) -> Guarantee:
    """The guarantee that a config's plan states; reads no record."""
    config = config_file.load(name, overrides, allow_code=allow_code, note=note)
    plan = config_room.make_plan(config)
    if plan.guarantee is None or not config_room.is_secret(config):
        raise CommandError(f"{name}: has no guarantee, so a ledger cannot count on it; give it a privacy section.")
    if num_records is not None and plan.num_records != num_records:
        raise CommandError(f"{name}: is planned for {plan.num_records} records where --num-records is {num_records}.")
    return plan.guarantee


def _receipts(path: Path, ledger: Place) -> list[Receipt]:
    """Return the receipts of a run folder's ``privacy.json``, or of a file that holds one receipt."""
    try:
        body = read_json(path)
        told = body.get("ledger", body)
        found = told if isinstance(told, list) else [told]
        return [Receipt(str(r["id"]), int(r["sequence"]), str(r["hash"]), ledger) for r in found]
    except OSError as error:
        raise CommandError(f"{path}: cannot be read ({error.strerror}); give a run folder's privacy.json.") from None
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError):
        raise CommandError(f"{path}: holds no receipt of a ledger; give the privacy.json of a run with one.") from None


#: Runs that ``show`` prints, the last ones.
_SHOWN = 6
#: Words for what became of a run.
_OUTCOMES = {"open": "running or crashed", "released": "released", "void": "void"}


def _show(ledger: Ledger, state: State) -> None:
    """Print the promise, what is spent of it and what the next run may cost, and the last runs."""
    terms = state.terms
    records = "" if terms.num_records is None else f"; {terms.num_records:,} records"
    promised = f"ε {terms.epsilon:g}, δ {terms.delta:g}, {terms.adjacency}{records}"
    unit = "" if terms.filter == "programme" else f": {terms.unit} adds"
    lines = [(terms.name, promised), ("filter", f"{terms.filter}{unit}")]
    if terms.filter == "programme":
        lines += [
            ("spent", f"{state.spent:g} of {terms.budget:g} runs of the programme"),
            ("all", f"ε {round_up(terms.joint_epsilon or 0.0)} together"),
        ]
    else:
        worth = round_up(state.epsilon) if state.spent else "0"
        left = f"{round_down(state.epsilon_left, 3):g}"
        overflow = f"{round_down(state.overflow_left, 3):.3g} of {terms.overflow:.3g}"
        lines += [
            ("spent", f"worth ε {worth} of {terms.epsilon:g}; next run up to ε {left}"),
            ("overflow", f"{overflow} left"),
        ]
    entries = ledger.history()
    moved = [("moved", _said(entry)) for entry in entries if entry.kind == "moved"]
    reserved = [entry for entry in entries if entry.kind == "reserve"]
    outcomes = {run.id: _OUTCOMES[run.outcome] for run in state.runs}
    if len(reserved) > _SHOWN:
        lines.append(("runs", f"{len(reserved) - _SHOWN} earlier; dpmcmc ledger history lists them"))
    for entry in reserved[-_SHOWN:]:
        epsilon = entry.body.get("guarantee", {}).get("epsilon")
        cost = "no ε" if epsilon is None else f"ε {round_up(epsilon, 3)}"
        lines.append(("run", f"{cost}  {entry.time[:10]}  {outcomes[entry.run]}  {entry.body['label']}"))
    print(rows([*lines, *moved, (YES, f"{state.entries} entries, whole; the last is {state.head[:16]}")]))


def _json(state: State) -> dict[str, Any]:
    promised = ("name", "num_records", "adjacency", "epsilon", "delta", "filter", "order")
    terms = dataclasses.asdict(state.terms)
    return {
        **{name: terms[name] for name in promised},
        "unit": state.terms.unit,
        "budget": state.terms.budget,
        "spent": state.spent,
        "left": state.left,
        "overflow_budget": state.terms.overflow,
        "overflow_left": state.overflow_left,
        "epsilon_of_spent": state.epsilon,
        "epsilon_left": state.epsilon_left,
        "joint_epsilon": state.terms.joint_epsilon,
        "runs": [{"id": r.id, "label": r.label, "outcome": r.outcome, "charges": r.charges} for r in state.runs],
        "entries": state.entries,
        "head": state.head,
    }


def _said(entry: Entry) -> str:
    """An entry's body in a few words."""
    body = entry.body
    if entry.kind == "init":
        return f"{body['name']}: epsilon {body['epsilon']:g}, delta {body['delta']:g}, {body['filter']}"
    if entry.kind == "data":
        return "the data's fingerprint"
    if entry.kind == "moved":
        return f"copied to {body['to']}, and spent from there"
    if entry.kind == "begin":
        return "goes on, or has ended" if "after" in body else "computes from records"
    if entry.kind == "settle":
        return body["outcome"]
    return f"{body.get('label', body.get('why'))}: {round_up(body['cost'])}"
