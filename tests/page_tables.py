"""Tables of the documentation, and the committed results that they are made of (``docs/images/NAME.csv``)."""

import csv
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def results(name):
    """Rows of a committed table."""
    with (ROOT / "docs" / "images" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def page(name):
    """Text of a page of the documentation."""
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def section(title, name="figures"):
    """Text of one section of a page."""
    text = page(name)
    (part,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return part


def tables(text):
    """Cells of each table, header first, without emphasis."""
    return [
        [
            [cell.strip().replace("**", "") for cell in line.strip("|").split("|")]
            for line in block.strip().splitlines()
            if not re.fullmatch(r"[|\- ]+", line)
        ]
        for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    ]


def number(cell):
    """The first number of a cell."""
    return float(cell.replace(",", "").replace("−", "-").split()[0])


def said(cell, value, *, up=False):
    """Whether a cell is a value to as many digits as it shows, or, of an ε, rounded up."""
    text = cell.replace(",", "").split()[0]
    digits = len(text.partition(".")[2])
    unit = 10.0**-digits if digits else 10.0 ** (len(text) - len(text.rstrip("0")))
    gap = (float(text) - value) / unit
    return -1e-6 <= gap < 1 if up else abs(gap) <= 0.5 + 1e-6


def with_error(cell, value, error):
    """Whether a cell is a mean and its error."""
    mean, _, spread = cell.partition(" ± ")
    return said(mean, value) and said(spread, error)
