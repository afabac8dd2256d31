"""``dpmcmc export RUN --registry``: the entry of a run in OpenDP's registry of deployments of differential privacy.

The entry follows the schema of github.com/opendp/deployments-registry-data as of July 2026.
Its fields of tiers 1 and 2 have these origins:

* six and the authors are given, since no file of a run has them;
* three come from privacy.json: the variant, the unit of privacy, and ε with δ;
* four are the same for every run: a curator is trusted with the records (central), there is one release, the records do
  not change, and nobody asks them anything through it.

Fields of tier 3 are filled in where the run's files tell them. Nothing is read but released files.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from pathlib import Path
from typing import Any

from dpmcmc.cli.refusals import CommandError
from dpmcmc.cli.verify import unit_of, verify_file
from dpmcmc.errors import InputError
from dpmcmc.report.lines import rows, yaml_of
from dpmcmc.storage.atomic import write_atomically
from dpmcmc.storage.files import read_json
from dpmcmc.storage.released_files import PRIVACY, check_result

_NEIGHBOURS = {
    "replace_one": "one {unit} is replaced by any other, and their number is public",
    "add_remove": "one {unit} is added or removed",
    "zero_out": "one {unit} is left out of every sum, and their number is public",
    "one_label": "one {unit} has another value; features are taken as public, and nothing protects them",
}
_NOT_PROTECTED = (
    "Unprotected: the number of {unit}s, N = {count:,}{columns}. They were stated as public facts, and so was every "
    "setting in plan.json. ε does not cover them."
)
_RANGES = ", and the ranges and levels of the columns ({listed})"
_WHOLE = {
    "owner": "all of its rows together",
    "record": "one row of the table",
    "label": "of one row of the table, whose features are not protected",
}
#: Ranges that the entry lists.
_MOST_COLUMNS = 40


def _slug(basic: dict[str, Any]) -> str:
    """Return the registry's name of the entry, as its own script makes it."""
    texts = basic["name"], "-".join(basic["data_curators"]), basic["publication_date"][:4]
    parts = [re.sub(r"\W+", "_", text.lower()) for text in texts]
    return "_".join(parts).replace("_", "-")


def _given(facts: dict[str, Any]) -> dict[str, Any]:
    """Return what the user gave.

    Raises:
        CommandError: some is missing, or the date is none.
    """
    missing = [f"--{name}" for name, value in facts.items() if not _there(value)]
    if missing:
        raise CommandError(
            f"{', '.join(missing)}: the registry needs what no file of a run has; give each of these options."
        )
    try:
        datetime.date.fromisoformat(facts["published"])
    except ValueError:
        raise CommandError(f"--published: {facts['published']!r} is no day; give YYYY-MM-DD.") from None
    return facts


def _there(value: str | list[str] | None) -> bool:
    texts = [value] if isinstance(value, str) else value or []
    return bool(texts) and all(text.strip() for text in texts)


def _plan(folder: Path, privacy: dict[str, Any]) -> dict[str, Any]:
    """Return plan.json of a run that has ended, whose files are those that it released.

    Raises:
        CommandError: it is none.
    """
    try:
        check_result(folder, privacy)
        return read_json(folder / "plan.json")
    except OSError as error:
        why = str(error.strerror or error)
    except (InputError, ValueError, TypeError, AttributeError, RecursionError) as error:
        why = str(error)
    raise CommandError(f"{folder}: holds no run that has ended ({why}); give the folder of one.")


def _columns(plan: dict[str, Any]) -> str:
    """Return the clause on ranges and levels; empty where the plan has no schema."""
    columns = plan.get("schema", {}).get("columns", {})
    shown = [f"{name}: {_ends(column)}" for name, column in columns.items()]
    left = len(shown) - _MOST_COLUMNS
    listed = "; ".join(shown[:_MOST_COLUMNS]) + (f"; and {left} more" if left > 0 else "")
    return _RANGES.format(listed=listed) if shown else ""


def _ends(column: object) -> str:
    return json.dumps(column, ensure_ascii=False).strip("{}").replace('"', "")


def _entry(
    given: dict[str, Any],
    privacy: dict[str, Any],
    plan: dict[str, Any],
    composition: str,
) -> dict[str, Any]:
    """Return the entry of the registry."""
    unit = unit_of(privacy)
    delta = float(privacy["delta"])
    epsilon = float(privacy["epsilon"])
    unprotected = _NOT_PROTECTED.format(unit=unit, count=int(plan["num_records"]), columns=_columns(plan))
    told = plan.get("circumstances") or {}
    for key, what in (
        ("fit", "A fit without privacy"),
        ("times", "The time that the run took"),
    ):
        if told.get(key):
            unprotected += f" {what} is published without noise, since the {unit}s are nobody's or public."
    basic = {
        "name": given["name"],
        "data_curators": given["curator"],
        "intended_use": given["use"],
        "data_product_type": given["type"],
        "data_product_region": given["region"],
        "description": given["description"],
        "publication_date": given["published"],
    }
    if given["sector"]:
        basic["data_product_sector"] = given["sector"]
    whole = _WHOLE[unit]
    if unit == "label":
        unprotected += " Unprotected too: the features of every record, which are taken as public."
    versions = privacy.get("versions", {})
    software = ", ".join(f"{name} {version}" for name, version in versions.items())
    proved = (
        "Noise is drawn in integers, without floating-point error."
        if privacy.get("hardened") and not privacy.get("in_floats")
        else "Noise, or a part of it, is drawn in floating point, and its rounding is not proved to be private."
    )
    return {
        "url_slug": _slug(basic),
        "status": "Draft",
        "tier": 2,
        "deployment": {
            "basic": basic,
            "dp_variant": {
                "variant_name": "Approximate DP" if delta else "Pure DP",
                "unprotected_quantities": unprotected,
            },
            "privacy_loss": {
                "privacy_unit": f"{unit} ({whole})",
                "privacy_unit_details": "Two data sets are adjacent if "
                + _NEIGHBOURS[privacy["adjacency"]].format(unit=unit)
                + ".",
                "privacy_parameters": {"epsilon": epsilon, "delta": delta},
            },
            "deployment_model": {
                "model_name": "Central",
                "release_type": "One release",
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "accounting": {"composition": composition},
            "implementation": {"mechanisms": f"{plan['label']}, by {software}. {proved}"},
            "administrative": {"registry_authors": given["author"]},
        },
    }


def export(
    run: str,
    registry: bool,
    needed: dict[str, Any],
    *,
    kind: str,
    sector: str | None,
    out: Path | None,
) -> None:
    """Write the entry of a run in a registry of deployments, as YAML."""
    if not registry:
        raise CommandError(f"export: {run} can be exported in one form, that of OpenDP's registry; add --registry.")
    folder = Path(run)
    privacy, guarantee = verify_file(folder / PRIVACY)
    plan = _plan(folder, privacy)
    if not math.isfinite(guarantee.epsilon):
        raise CommandError(f"{folder}: its ε is not finite, so there is nothing to register.")
    given = _given(needed) | {"type": kind, "sector": sector}

    from dpmcmc.report.words import accounting  # loads JAX

    try:
        entry = _entry(given, privacy, plan, f"{accounting(guarantee)}.")
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CommandError(
            f"{folder}: its plan.json or privacy.json is not of this library ({type(error).__name__} at {error}); give "
            "them as they were written."
        ) from None
    text = yaml_of(entry, width=100)
    if out is None:
        print(text, end="")
        return
    try:
        if out.exists() or out.is_symlink():
            raise CommandError(f"--out: {out} is there already; give another file.")
        write_atomically(out, lambda path: path.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"--out: {out} cannot be written ({error.strerror}); give another file.") from None
    said = f"{out}; a pull request to opendp/deployments-registry-data adds it"
    print(rows([("saved", said)]))
