"""Tables as Markdown and as JSON; a document keeps each section between two marker comments of its own."""

from __future__ import annotations

import dataclasses
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.timing import Ratio, short


@dataclass
class Table:
    """Rows by column name; a value is text, a whole number, a float, a Ratio, or None where there is none.

    Attributes:
        title: what is compared.
        note: how to read it, under the title.
        rows: one dictionary per row, all with the same keys.
        skipped: what was left out, and why.
    """

    title: str
    note: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        """The table, headed by its title."""
        parts = [f"### {self.title}", self.note]
        if self.rows:
            columns = list(self.rows[0])
            align = ["---" if isinstance(self.rows[0][name], str) else "---:" for name in columns]
            lines = [columns, align, *([_text(row[name]) for name in columns] for row in self.rows)]
            parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
        parts += self.skipped
        return "\n\n".join(parts)


def _text(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool | str | Ratio):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else short(value)


def section_markdown(tables: list[Table], machine: dict[str, Any]) -> str:
    """A section: where and when it ran, and its tables."""
    load = machine["load average before and after"]
    where = (
        f"*{machine['device']}, {machine['cores']} cores, {machine['memory GB']} GB; {machine['versions']}; "
        f"{machine['date']}; load average {load[0]} before, {load[1]} after; {machine['sizes']}.*"
    )
    return "\n\n".join([where, *(table.markdown() for table in tables)])


def put_into_document(path: Path, device: str, sections: dict[str, str]) -> None:
    """Replace each section between its markers in a Markdown file, or append it where it has none yet."""
    text = path.read_text() if path.exists() else ""
    for name, body in sections.items():
        begin, end = f"<!-- benchmark {device} {name} -->", f"<!-- end of benchmark {device} {name} -->"
        block = f"{begin}\n{body}\n{end}"
        marked = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
        if marked.search(text):
            text = marked.sub(lambda _, block=block: block, text)
        else:
            text = f"{text.rstrip()}\n\n{block}\n".lstrip()
    path.write_text(text)


def write_json(path: Path, sections: dict[str, list[Table]], machines: dict[str, dict[str, Any]]) -> None:
    """Every number of every table, and the machine of every section."""
    body = {
        name: {"machine": machines[name], "tables": [dataclasses.asdict(table) for table in tables]}
        for name, tables in sections.items()
    }
    path.write_text(json.dumps(body, indent=2, ensure_ascii=False) + "\n")
