"""``python -m dpmcmc.data SOURCE FOLDER --x a,b,c --y label``: Parquet or Arrow files to a folder that a run reads.

Prints how many rows there are, for the data holder, and the lines of YAML that name the folder.
"""

from __future__ import annotations

import argparse

import yaml

from dpmcmc.cli.refusals import Parser, command
from dpmcmc.data.columnar import to_rows


def parser() -> argparse.ArgumentParser:
    """Command-line arguments."""
    out = Parser(
        prog="python -m dpmcmc.data", description="Turn Parquet or Arrow files over into a folder of .npy files."
    )
    out.add_argument("source", metavar="SOURCE", help="a Parquet or Arrow (Feather) file, or a folder of them")
    out.add_argument("folder", metavar="FOLDER", help="to be made, for its owner alone")
    out.add_argument("--x", required=True, metavar="a,b,c", help="columns of the features, or one column of lists")
    out.add_argument("--y", required=True, metavar="label", help="column of the labels")
    out.add_argument("--test", metavar="SOURCE", help="files of test rows")
    return out


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point; see :func:`parser`."""
    arguments = parser().parse_args(argv)
    rows = to_rows(arguments.source, arguments.folder, x=arguments.x.split(","), y=arguments.y, test=arguments.test)
    features = "1 feature" if rows.num_features == 1 else f"{rows.num_features} features"
    labels = "class numbers or counts" if rows.labels == "int32" else "real numbers"
    print(f"# {rows.num_records:,} training rows and {rows.num_test or 'no'} test rows: {features}, {labels}")
    print("# num_records is stated in public; row_bound must be known without looking at the rows")
    section = {"data": {"path": str(rows.folder.absolute()), "num_records": rows.num_records}}
    print(yaml.safe_dump(section, sort_keys=False, allow_unicode=True), end="")


if __name__ == "__main__":
    raise SystemExit(main())
