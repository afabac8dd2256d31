"""``python -m dpmcmc.plan CONFIG``: what a run would do and cost. Touches no record."""

from __future__ import annotations

import argparse
import json
import sys

from dpmcmc.cli.refusals import Parser, add_allow_code, command
from dpmcmc.config import file as config_file
from dpmcmc.config import model as config_room


def parser() -> argparse.ArgumentParser:
    """Command-line arguments."""
    out = Parser(prog="python -m dpmcmc.plan", description="Plan a configuration without reading a record.")
    out.add_argument("config", help="YAML file, for example configs/adult.yaml")
    out.add_argument("--set", action="append", default=[], metavar="a.b=VALUE", help="override one key")
    add_allow_code(out)
    out.add_argument("--json", action="store_true", help="print the plan as JSON")
    return out


@command
def main(argv: list[str] | None = None) -> None:
    """Entry point; see :func:`parser`."""
    arguments = parser().parse_args(argv)
    config = config_file.load(arguments.config, arguments.set, allow_code=arguments.allow_code)
    plan = config_room.make_plan(config)
    if arguments.json:
        print(json.dumps(plan.to_json(config_room.is_secret(config)), indent=2, allow_nan=False))
        return
    spec = config_room.describe_data(config)
    features = f", {spec.num_features} features" if spec.num_features else ""
    print(config.name)
    what = "records" if spec.records_per_owner is None else f"training owners of at most {spec.records_per_owner} rows"
    print(f"{'data':<12} {spec.name}: {spec.num_records:,} {what}{features}, declared; none read")
    for name, text in plan.lines(config_room.is_secret(config)):
        print(f"{name:<12} {text}")


if __name__ == "__main__":
    sys.exit(main())
