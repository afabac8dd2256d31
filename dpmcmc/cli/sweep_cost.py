"""Cost of all configs of a sweep together: the guarantee of whoever sees several of them.

Its own ``privacy.json`` states what one config costs alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dpmcmc import config as config_room
from dpmcmc.cli import swept_config
from dpmcmc.config.grid import SweptConfig
from dpmcmc.errors import UnsupportedCombination
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.guarantee import Guarantee, composed

#: Assumption of a sweep of which a config was run again.
RUN_AGAIN = "a config was lost, and run again, for reasons that do not depend on the records."


@dataclass(frozen=True)
class ChargedConfig:
    """A plan's unit with the guarantee that its run came to cost, which is more where it went on elsewhere."""

    guarantee: Guarantee | None
    unit: str


def charge_of(plan: Plan, folder: Path) -> ChargedConfig:
    """Return what the run in a folder came to cost."""
    said = swept_config.read_statement(folder)
    planned = plan.guarantee
    if planned is None or not said.get("events"):
        return ChargedConfig(planned, plan.unit)
    if said["events"] == [event.to_json() for event in planned.events]:
        return ChargedConfig(planned, plan.unit)
    return ChargedConfig(Guarantee.from_json(said), plan.unit)


def together(
    configs: Iterable[tuple[SweptConfig, Plan | ChargedConfig]],
) -> tuple[Guarantee | None, str]:
    """Return (guarantee of all configs together, or None; why there is none).

    The losses of configs add, whatever data they name: a person may be in all of them (:func:`composed`).
    """
    found = list(configs)
    if not found:
        return None, "no config was charged"
    without = [
        swept.number for swept, plan in found if plan.guarantee is None or not config_room.is_secret(swept.config)
    ]
    if without:
        return None, f"{len(without)} of {len(found)} configs have no guarantee"
    if len({plan.unit for _, plan in found}) > 1:
        return None, "configs protect different units, records and owners"
    try:
        whole = composed([plan.guarantee for _, plan in found if plan.guarantee])
    except UnsupportedCombination as error:
        return None, f"nothing covers all configs ({str(error).removesuffix('.')})"
    if len({swept.number for swept, _ in found}) == len(found):
        return whole, ""
    # The events do not cover a decision to run a config once more that looked at the records.
    return whole.assuming(RUN_AGAIN), ""
