"""``python -m dpmcmc.ledger init|show|history FILE``: the privacy budget of a data set.

Exit code 0, 2 for what the user can mend, and 1 where entries were edited, removed or rolled back, or where more is
spent than the budget.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from dpmcmc import config as config_room
from dpmcmc import config_file
from dpmcmc.command import CommandError, Parser, add_allow_code, command
from dpmcmc.privacy import Guarantee
from dpmcmc.privacy.accounting import ADJACENCIES
from dpmcmc.privacy.guarantee import round_up
from dpmcmc.privacy.ledger import BrokenChain, Entry, Ledger, Receipt, State
from dpmcmc.privacy.ledger.filters import FILTERS
from dpmcmc.privacy.ledger.fitting import round_down
from dpmcmc.regular_file import opened_text

#: A privacy.json has a few thousand; its events are not looked at here.
_MOST_CHARACTERS = 4_000_000


def parser() -> argparse.ArgumentParser:
    """Command-line arguments."""
    out = Parser(prog="python -m dpmcmc.ledger", description="The privacy budget of a data set.")
    commands = out.add_subparsers(dest="command", required=True)
    init = commands.add_parser("init", help="make a ledger; its budget is fixed for good")
    init.add_argument("file", help="new file, for example adult.ledger")
    init.add_argument("--name", help="of the data set; by default the file's")
    init.add_argument("--epsilon", type=float, required=True, help="promised for all runs together")
    init.add_argument("--delta", type=float, required=True, help="likewise")
    init.add_argument("--adjacency", choices=ADJACENCIES, default="replace_one")
    init.add_argument("--num-records", type=int, metavar="N", help="if it is public")
    init.add_argument("--filter", choices=FILTERS, help="default renyi, or programme with --programme")
    init.add_argument("--order", type=int, help="of filter renyi; by default the best for full-batch runs")
    init.add_argument("--typical", metavar="CONFIG", help="choose the order for runs like this one instead")
    init.add_argument("--programme", nargs="+", default=[], metavar="CONFIG", help="the only runs there will be")
    init.add_argument("--set", action="append", default=[], metavar="a.b=VALUE", help="override a key of every CONFIG")
    add_allow_code(init)
    for name, text in (("show", "what is left"), ("history", "every entry")):
        each = commands.add_parser(name, help=text)
        each.add_argument("file", help="a ledger")
        each.add_argument("--json", action="store_true", help="print JSON")
        each.add_argument(
            "--receipt", action="append", default=[], metavar="FILE", help="privacy.json of a run that it must hold"
        )
    return out


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point; see :func:`parser`."""
    arguments = parser().parse_args(argv)
    try:
        if arguments.command == "init":
            ledger = _init(arguments)
            print(f"made {ledger.path}")
            _show(ledger.state())
            return
        ledger = Ledger(arguments.file)
        for name in arguments.receipt:
            for receipt in _receipts(Path(name), ledger.path):
                ledger.confirm(receipt)
        if arguments.command == "show":
            state = ledger.state()
            print(json.dumps(_json(state), indent=2)) if arguments.json else _show(state)
        else:
            entries = ledger.history()
            if arguments.json:
                print(json.dumps([entry.to_json() for entry in entries], indent=2))
            else:
                for entry in entries:
                    print(f"{entry.sequence:>5}  {entry.time}  {entry.kind:<8} {entry.run:<16}  {_said(entry)}")
        ledger.check()
    except BrokenChain as error:
        raise CommandError(str(error), code=1) from None


def _init(arguments: argparse.Namespace) -> Ledger:
    filter = arguments.filter or ("programme" if arguments.programme else "renyi")
    return Ledger.init(
        arguments.file,
        name=arguments.name or Path(arguments.file).stem,
        num_records=arguments.num_records,
        adjacency=arguments.adjacency,
        epsilon=arguments.epsilon,
        delta=arguments.delta,
        filter=filter,
        order=arguments.order,
        programme=[_planned(name, arguments) for name in arguments.programme],
        typical=_planned(arguments.typical, arguments) if arguments.typical else None,
    )


def _planned(name: str, arguments: argparse.Namespace) -> Guarantee:
    """The guarantee that a config's plan states; reads no record."""
    num_records = arguments.num_records
    config = config_file.load(name, arguments.set, allow_code=arguments.allow_code)
    plan = config_room.make_plan(config)
    if plan.guarantee is None or not config_room.is_secret(config):
        raise CommandError(f"{name}: has no guarantee, so a ledger cannot count on it; give it a privacy section.")
    if num_records is not None and plan.num_records != num_records:
        raise CommandError(f"{name}: is planned for {plan.num_records} records where --num-records is {num_records}.")
    return plan.guarantee


def _receipts(path: Path, ledger: Path) -> list[Receipt]:
    """Those of a run folder's ``privacy.json``, or of a file that holds one alone."""
    try:
        with opened_text(path) as stream:
            body = json.loads(stream.read(_MOST_CHARACTERS))  # what is cut short is no JSON
        found = body.get("ledger", body)
        found = found if isinstance(found, list) else [found]
        return [Receipt(str(r["id"]), int(r["sequence"]), str(r["hash"]), ledger) for r in found]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CommandError(f"{path}: cannot be read ({reason}); give a run folder's privacy.json.") from None
    except (AttributeError, KeyError, TypeError, ValueError, ArithmeticError, RecursionError):
        raise CommandError(f"{path}: holds no receipt of a ledger; give the privacy.json of a run with one.") from None


def _show(state: State) -> None:
    terms = state.terms
    print(terms.name)
    records = "" if terms.num_records is None else f", {terms.num_records:,} records"
    rows = [("promise", f"epsilon {terms.epsilon:g}, delta {terms.delta:g}, {terms.adjacency}{records}")]
    rows.append(("filter", terms.filter + ("" if terms.filter == "programme" else f": {terms.unit} adds")))
    percent = f"{round_up(100 * state.spent / terms.budget, 3)} %"
    if terms.filter == "programme":
        rows.append(("spent", f"{state.spent:g} of {terms.budget:g} runs of the programme"))
        rows.append(("all", f"epsilon {round_up(terms.joint_epsilon or 0.0)} together"))
    else:
        worth = f"; as a budget of its own: epsilon {round_up(state.epsilon)}" if state.spent else ""
        rows.append(("spent", f"{percent} ({round_up(state.spent, 3)} of {terms.budget:.4g}{worth})"))
        rows.append(("left", f"one full-batch Gaussian run of epsilon {round_down(state.epsilon_left):g}"))
        rows.append(("overflow", f"{round_down(state.overflow_left):.3g} of {terms.overflow:.3g} left"))
    void = sum(run.outcome == "void" for run in state.runs)
    rows.append(("runs", f"{len(state.runs)} reserved, {len(state.open)} open, {void} void"))
    rows += [("open", f"{run.id} {run.label}: running, or crashed and spent") for run in state.open]
    rows.append(("chain", f"{state.entries} entries, whole; the last is {state.head[:16]}"))
    for name, text in rows:
        print(f"{name:<9} {text}")


def _json(state: State) -> dict[str, Any]:
    return {
        "name": state.terms.name,
        "num_records": state.terms.num_records,
        "adjacency": state.terms.adjacency,
        "epsilon": state.terms.epsilon,
        "delta": state.terms.delta,
        "filter": state.terms.filter,
        "order": state.terms.order,
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
    if entry.kind == "settle":
        return body["outcome"]
    return f"{body.get('label', body.get('why'))}: {round_up(body['cost'])}"


if __name__ == "__main__":
    sys.exit(main())
