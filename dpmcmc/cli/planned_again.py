"""The plan of a run, made again from the files of its folder, beside what the run was charged for.

A folder may be a stranger's. So no data are read, and no code is imported or called that a file names as
``module:attribute``, of this library or of another. Where that leaves no plan, nothing is compared, and
:class:`NotPlanned` says why. Planning needs JAX, which verifying a privacy.json without its folder does not wait for.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpmcmc.privacy.accounting.own import is_ones_own
from dpmcmc.storage.released_files import CONFIG
from dpmcmc.storage.versions import versions

if TYPE_CHECKING:
    from dpmcmc.planning.plan import Plan

#: Keys that a plan and the files of its run must agree in. A plan states its draws, or those of each chain.
_COMPARED = ("num_records", "steps", "chains", "draws", "draws_per_chain")
_CHARGED = ("adjacency", "events")
#: Most steps of a plan that is made again, and most of any other count but the records: a plan holds the noise of every
#: step, and a model all its parameters. A second or two, and a few hundred megabytes.
_MOST = 1_000_000
#: Counts that take no room in a plan.
_OF_RECORDS = ("num_records", "batch_size")


class NotPlanned(Exception):
    """A clause on why the plan of a folder is not made again."""


def plan_again(folder: Path, stated: dict[str, Any], made_by: object) -> dict[str, Any]:
    """Return what the plan says that a folder's config stands for, or its plan.json where a chain has no config.

    Args:
        folder: of the run.
        stated: content of its plan.json.
        made_by: versions that the run states; others may calibrate another noise.

    Returns:
        The compared facts by their names in plan.json, as JSON takes them.

    Raises:
        NotPlanned: it was made by others, needs code that a file names, or is more than these files say.
    """
    if made_by != versions():
        raise NotPlanned("other versions of the software made the run")
    try:
        plan = _of_config(folder / CONFIG) if (folder / CONFIG).exists() else _of_sections(stated)
    except NotPlanned:
        raise
    except Exception:  # whatever a stranger's values lead to; none of them is quoted
        raise NotPlanned("the files beside it make none by themselves within the cap on work") from None
    return compared(json.loads(json.dumps(plan.describe().stated)))


def compared(stated: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a plan.json that a plan made again must have too."""
    guarantee = stated["guarantee"] or {}
    return {name: stated.get(name) for name in _COMPARED} | {name: guarantee.get(name) for name in _CHARGED}


def _check_size(sections: Mapping[str, Any]) -> None:
    """Refuse counts that would make planning long; a model's parameters are at most the product of its counts."""
    counts: dict[str, list[int]] = {}
    for name, section in sections.items():
        numbers = section.items() if isinstance(section, Mapping) else ()
        counts[name] = [value for key, value in numbers if type(value) is int and value > 1 and key not in _OF_RECORDS]
    parameters = math.prod(counts.get("target", [])) * math.prod(counts.get("data", []))
    if max(parameters, *(count for each in counts.values() for count in each), 0) > _MOST:
        raise NotPlanned(f"its plan counts more than {_MOST:,} steps or parameters, too many for verify")


def _of_config(path: Path) -> Plan:
    """Return the plan of a config that names no code."""
    from dpmcmc.config.file import load
    from dpmcmc.config.model import modules_of_ones_own
    from dpmcmc.config.plans import describe_data, make_plan

    config: Any = load(path, resumed=True)  # sections have the types that their names choose
    if modules_of_ones_own(config):
        raise NotPlanned(f"{CONFIG} names code, and verify calls none")
    _check_size(config.model_dump(mode="json", exclude_none=True))
    if not config.one_shot:
        length = config.run.built().counted(config.sampling.built(), describe_data(config).num_records)
        _check_size({"run": {"steps": length["steps"]}})
    return make_plan(config)


def _of_sections(stated: dict[str, Any]) -> Plan:
    """Return the plan of a chain that was made in Python, from classes that the library has names for."""
    from dpmcmc import Privacy, PrivateMetric, plan
    from dpmcmc.config.model import SCHEMES
    from dpmcmc.data import Schema
    from dpmcmc.mechanisms import NoiseAware
    from dpmcmc.planning.saved import target_of
    from dpmcmc.samplers import SAMPLERS
    from dpmcmc.targets import TARGETS

    sections = stated["config"]
    if "mechanism" in sections or "start" in sections:
        raise NotPlanned("there is no config, and plan.json does not say which epsilon the mechanism was asked for")
    sampler = dict(sections["sampler"])
    sampling = dict(sections["sampling"])
    end = dict(sections.get("end", {}))
    known = sections["target"]["name"] in TARGETS and sampler["name"] in SAMPLERS
    if not known or any(is_ones_own(str(value)) for value in sections["privacy"].values()):
        raise NotPlanned("plan.json names code, and verify calls none")
    _check_size(sections)
    end.pop("name", None)
    return plan(
        target_of(stated),
        num_records=stated["num_records"],
        sampler=SAMPLERS[sampler.pop("name")](**sampler),
        sampling=SCHEMES[sampling.pop("scheme")](**sampling),
        privacy=Privacy(**sections["privacy"]),
        metric=PrivateMetric(**sections["metric"]) if "metric" in sections else None,
        end=NoiseAware(**end) if end else None,
        schema=Schema.from_yaml(stated["schema"]) if "schema" in stated else None,
        **sections["run"],
    )
