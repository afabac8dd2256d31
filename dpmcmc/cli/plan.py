"""``dpmcmc plan CONFIG``: what a run would do and cost. Touches no record."""

from __future__ import annotations

import json

from dpmcmc import config as config_room
from dpmcmc.cli.options import note
from dpmcmc.config import file as config_file
from dpmcmc.planning.description import INTERVALS

#: Lines that only help to tune a chain. The width of intervals is printed wherever draws give intervals.
_DETAILS = ("thesis", "free", "time", "relaxations", "width", "clip bias")


def plan(
    config: str,
    overrides: list[str] | None,
    allow_code: list[str] | None,
    *,
    as_json: bool,
    details: bool,
) -> None:
    """Say what a run would do and cost; read no record."""
    asked = config_file.load(config, overrides, allow_code=allow_code or (), note=note)
    planned = config_room.make_plan(asked)
    if as_json:
        print(
            json.dumps(
                planned.to_json(config_room.is_secret(asked)), indent=2, allow_nan=False
            )
        )
        return
    spec = config_room.describe_data(asked)
    features = f", {spec.num_features} features" if spec.num_features else ""
    print(asked.name)
    what = (
        "records"
        if spec.records_per_owner is None
        else f"training owners of at most {spec.records_per_owner} rows"
    )
    print(
        f"{'data':<12} {spec.name}: {spec.num_records:,} {what}{features}, declared; none read"
    )
    given = ("width",) if INTERVALS in planned.usable_for else ()
    hidden = {*_DETAILS}.difference(_DETAILS if details else given)
    lines = planned.lines(config_room.is_secret(asked))
    for name, text in lines:
        if name not in hidden:
            print(f"{name:<12} {text}")
    left_out = [name for name, _ in lines if name in hidden]
    if left_out:
        print(f"{'more':<12} --all also prints {', '.join(left_out)}")
