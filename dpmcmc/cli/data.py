"""``dpmcmc data SOURCE FOLDER --x a,b,c --y label``: Parquet or Arrow files to a folder that a run reads.

Prints the number of rows, for the data holder, and the lines of YAML that name the folder.
"""

from __future__ import annotations

from dpmcmc.data.conversion import to_rows
from dpmcmc.report.lines import yaml_of


def data(source: str, folder: str, x: str, y: str, test: str | None) -> None:
    """Convert Parquet or Arrow files to a folder of .npy files."""
    rows = to_rows(source, folder, x=x.split(","), y=y, test=test)
    features = "1 feature" if rows.num_features == 1 else f"{rows.num_features} features"
    labels = "class numbers or counts" if rows.labels == "int32" else "real numbers"
    print(f"# {rows.num_records:,} training rows and {rows.num_test or 'no'} test rows: {features}, {labels}")
    print("# num_records is stated in public; row_bound must be known without looking at the rows")
    section = {"data": {"path": str(rows.folder.absolute()), "num_records": rows.num_records}}
    print(yaml_of(section), end="")
