"""``dpmcmc plan CONFIG``: what a run would do and cost. Touches no record."""

from __future__ import annotations

import json

from dpmcmc import config as config_room
from dpmcmc.cli.options import command_words, note
from dpmcmc.config import file as config_file
from dpmcmc.report.lines import rows
from dpmcmc.report.screen import lines_of_plan, uses, width


def plan(
    config: str,
    overrides: list[str],
    allow_code: list[str],
    *,
    as_json: bool,
    details: bool,
) -> None:
    """Say what a run would do and cost; read no record."""
    asked = config_file.load(config, overrides, allow_code=allow_code, note=note)
    made = config_room.make_plan(asked)
    secret = config_room.is_secret(asked)
    if as_json:
        print(json.dumps(made.describe(secret).stated, indent=2, allow_nan=False))
        return
    spec = config_room.describe_data(asked)
    lines = lines_of_plan(
        asked.name,
        made,
        spec,
        secret=secret,
        asked=None if asked.privacy is None else asked.privacy.epsilon,
        features=spec.num_features,
        origin="none read",
    )
    if details:
        lines += made.describe(secret).lines
    else:
        if made.verdict.intervals.usable:
            lines += width(None, made.verdict.predicted_width)
        words = command_words(config, overrides)
        lines += uses(made.verdict, made, words)
        if len(made.usable_for) == len(made.verdict.reasons):
            lines.append(("more", f"dpmcmc plan {words} --all"))
    print(rows(lines))
