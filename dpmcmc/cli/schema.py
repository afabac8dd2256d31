"""``dpmcmc schema people.csv``: a schema to fill in, made of the names of a table's columns alone.

Ranges and levels are public knowledge, which a code book or the questionnaire has. No value of the table is read.
"""

from __future__ import annotations

from pathlib import Path

from dpmcmc.cli.refusals import CommandError, check_new_file
from dpmcmc.config.yaml_writing import to_yaml
from dpmcmc.data.tables import read_header
from dpmcmc.report.lines import say
from dpmcmc.storage.atomic import write_atomically

_HEAD = """\
# Fill in from what is known without the data: a code book, the questionnaire, the law. A column is one of
#   {range: [low, high]}    a number; values beyond its ends are clipped to them
#   {levels: [a, b, c]}     one of these; quote "yes", "no" and codes such as "01"
#   {counts: largest}       0, 1, 2, ... of a label
# Delete columns that are not used, and name the label.
"""


def schema(table: str, out: str | None) -> None:
    """Print the schema, or write it to a new file."""
    columns: dict[str, dict] = {name: {} for name in read_header(Path(table))}
    text = f"{_HEAD}{to_yaml({'columns': columns, 'label': ''})}"
    if out is None:
        print(text, end="")
        return
    path = Path(out)
    check_new_file("--out", path)
    try:
        write_atomically(path, lambda file: file.write_text(text, encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"--out: {path} cannot be written ({error.strerror}); choose another file.") from None
    say(f"wrote {path}; fill it in, then: dpmcmc fit {table} {path} 'label ~ a + b' --epsilon 1")
