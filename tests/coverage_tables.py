"""Tables of the documentation whose rows are rows of the benchmark's results."""

import csv
from collections.abc import Callable
from pathlib import Path

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"


def results(name: str) -> list[dict[str, str]]:
    """Return the rows of a committed table."""
    with (IMAGES / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _size(text: str) -> str:
    value = float(text)
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def _with_error(name: str, digits: int = 2) -> Callable[[dict[str, str]], str]:
    """Return how a mean is written: with one digit more where its standard error would be 0.00."""

    def text(row: dict[str, str]) -> str:
        value, error = float(row[name]), float(row[f"{name}_error"])
        shown = digits + (error < 0.5 * 10**-digits)
        return f"{value:.{shown}f} ± {error:.{shown}f}"

    return text


#: Columns of a page's table, from a row of results: those that say which row it is, and those that it shows.
KEYS: dict[str, Callable[[dict[str, str]], str]] = {
    "task": lambda row: row["task"],
    "way": lambda row: f"`{row['way']}`",
    "d": lambda row: row["d"],
    "N": lambda row: f"{int(row['N']):,}",
    "ε": lambda row: f"{float(row['epsilon']):g}",
    "truth": lambda row: f"{float(row['truth_scale']):g}",
}
SHOWN: dict[str, Callable[[dict[str, str]], str]] = {
    "verdict": lambda row: row["verdict"],
    "tables": lambda row: f"{int(row['tables']):,}",
    "coverage": _with_error("coverage"),
    "width": lambda row: _size(row["width"]),
    "CRPS": lambda row: _size(row["crps"]),
    "TARP error": lambda row: f"{float(row['tarp_error']):.3f}",
    "exact posterior": lambda row: f"{float(row['reference_tarp_error']):.3f}",
    "accuracy": _with_error("accuracy", 4),
    "calibration error": _with_error("calibration_error", 4),
}


def filled(text: str) -> str:
    """Return a page with every row of such tables as the results say; KeyError where there is no such row.

    Such a table has the column ``way`` and no unknown one; its rows are of ``coverage.csv`` where it has ``task``. A
    table that begins with the columns d, N and goes on with values of ε has coverage and width of ``noise_aware``.
    """
    lines, header = text.splitlines(), []
    for number, line in enumerate(lines):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|"):
            header = []
        elif not header:
            header = cells
        elif line.startswith("|---"):
            continue
        elif header[:2] == ["d", "N"]:
            asked = {"task": "logistic", "way": "`noise_aware`", "d": cells[0], "N": cells[1]}
            rows = [_row("coverage.csv", asked | {"ε": name.removeprefix("ε = ")}) for name in header[2:]]
            found = (rf"{float(row['coverage']):.2f} \\| {float(row['width']):.2f}" for row in rows)
            lines[number] = "| " + " | ".join([*cells[:2], *found]) + " |"
        elif "way" in header and set(header) <= KEYS.keys() | SHOWN.keys():
            asked = {name: cell for name, cell in zip(header, cells, strict=False) if name in KEYS}
            row = _row("coverage.csv" if "task" in header else "adult_calibration.csv", asked)
            lines[number] = "| " + " | ".join((KEYS | SHOWN)[name](row) for name in header) + " |"
    return "\n".join(lines) + "\n"


def _row(name: str, asked: dict[str, str]) -> dict[str, str]:
    """Return the row of these keys; a truth that is not asked for has the prior's scale."""
    for row in results(name):
        right = row.get("truth_scale", "1") == "1" or "truth" in asked
        if right and all(KEYS[key](row) == value for key, value in asked.items()):
            return row
    raise KeyError(f"{name} has no row {asked}")
