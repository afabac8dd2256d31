"""``dpmcmc receipt RUN --record me.csv``: what a run has cost one person, by the released folder and their own record.

The number is the person's own. It is printed, and written only to a file that the person names, outside the folder.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from dpmcmc import config as config_room
from dpmcmc.cli.refusals import CommandError, check_new_file
from dpmcmc.data.one_record import read_record
from dpmcmc.diagnostics.objective import check_failure
from dpmcmc.diagnostics.receipt import of_encoded
from dpmcmc.engine.loaded_result import load
from dpmcmc.errors import InputError
from dpmcmc.report.lines import rows, say
from dpmcmc.storage.atomic import write_atomically
from dpmcmc.storage.surroundings import inside


def write_receipt(run: Path, record: Path, allow_code: Sequence[str], failure: float, out: Path | None) -> None:
    """Print what a run has cost the record of a file, or write it to a new file.

    Args:
        run: folder of the run.
        record: file of one record.
        allow_code: modules that the run's config may import.
        failure: probability that the bound of objective perturbation fails.
        out: the new file, or None to print.
    """
    try:
        check_failure(failure)
    except InputError as error:
        raise CommandError(f"--{error}.") from None
    if out is not None:
        if inside(out, run):
            raise CommandError(f"--out: {out} lies in the run folder, which others read; give a file of your own.")
        check_new_file("--out", out)
    result = load(run)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on the plan: those are for whoever runs it
        plan, request = config_room.load_released_plan(run, result.plan, allow_code)
    encoded, moved = read_record(record, request, result.columns)
    text = str(of_encoded(result, encoded, plan, failure, moved))
    if out is None:
        say(text)
        return
    try:
        write_atomically(out, lambda path: path.write_text(f"{text}\n", encoding="utf-8"), 0o600)
    except OSError as error:
        raise CommandError(f"--out: {out} cannot be written ({error.strerror}); give another file.") from None
    print(rows([("saved", f"{out}, which only you can read")]))
