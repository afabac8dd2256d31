"""``dpmcmc fit people.csv schema.yaml "late ~ age + job" --epsilon 1``: a table to intervals, by ``dpmcmc.fit``."""

from __future__ import annotations

import contextlib
import sys
import warnings
from pathlib import Path

from dpmcmc.cli.place import default_folder
from dpmcmc.cli.refusals import CommandError
from dpmcmc.config.yaml_reading import parse_yaml
from dpmcmc.data.schema import Schema
from dpmcmc.engine.saving import check_apart
from dpmcmc.errors import InputError, printable
from dpmcmc.estimators import fitting
from dpmcmc.mechanisms.noise_aware.options import SamplerName
from dpmcmc.report import page
from dpmcmc.report.lines import rows, say
from dpmcmc.report.screen import line_of_promise, saved
from dpmcmc.storage.files import open_text
from dpmcmc.storage.surroundings import check_free

#: Coefficients on the screen; the page has more.
_SHOWN = 12


def fit(
    table: str,
    schema: str,
    formula: str | None,
    epsilon: float,
    delta: float | None,
    sampler: SamplerName | None,
    ledger: str | None,
    out: str | None,
) -> None:
    """Fit, save what is released in a new folder, and print its first coefficients."""
    declared = _read_schema(Path(schema))
    folder = Path(default_folder(Path(table).stem) if out is None else out)
    check_free(folder, "--out")
    check_apart(folder, None, ledger)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"--out: {folder} cannot be made ({error.strerror}); give another folder.") from None
    try:
        with warnings.catch_warnings(record=True) as said:
            result = fitting.fit(formula, table, declared, epsilon, delta=delta, sampler=sampler, ledger=ledger)
        result.save(folder)
    finally:
        with contextlib.suppress(OSError):  # where something was released
            for path in made:
                path.rmdir()
    for one in said:
        print(f"warning: {printable(str(one.message))}", file=sys.stderr)
    assert result.guarantee is not None
    print(rows([("promise", line_of_promise(result.guarantee, result.plan.unit))]))
    say(result.summary(most=_SHOWN))
    print(rows(saved(folder, f"open {page.FILE}; all of it may be shared")))


def _read_schema(path: Path) -> Schema:
    """Return the schema that a YAML file says.

    Raises:
        CommandError: it says none; or a column is not filled in yet.
    """
    try:
        with open_text(path) as stream:
            given = parse_yaml(stream.read(), str(path))
        if not isinstance(given, dict):
            raise InputError("a schema is a mapping with the keys columns and label")
        return Schema.from_yaml(given)
    except (OSError, UnicodeDecodeError):
        raise CommandError(f"{path}: is no text that can be read; dpmcmc schema TABLE makes a schema.") from None
    except InputError as error:
        raise CommandError(f"{path}: {str(error).removesuffix('.')}.") from None
