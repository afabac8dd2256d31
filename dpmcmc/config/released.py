"""Plan and data of a run that was released, by the config of its folder, or by what ``plan.json`` says of it."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from dpmcmc.config.file import IN_RUN, load, of_values, refuse_foreign_code
from dpmcmc.config.plans import data_request, make_plan
from dpmcmc.config.refusals import ConfigError
from dpmcmc.config.sections import keys
from dpmcmc.data import DataRequest
from dpmcmc.errors import InputError
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.own import is_ones_own
from dpmcmc.samplers import SAMPLERS
from dpmcmc.storage.released_files import CONFIG
from dpmcmc.targets import TARGETS


def load_released_plan(folder: Path, saved: Plan, allow_code: Collection[str] = ()) -> tuple[Plan, DataRequest]:
    """Return (plan of a released run, public facts of its data); no file of data is opened.

    A sampler's plan is made again, since no file holds the noise of each step; whoever uses it compares its events with
    those that the run was charged for. A mechanism's is ``saved``, which holds its settings.

    Args:
        folder: of the run.
        saved: plan that was loaded from it.
        allow_code: as of :func:`dpmcmc.config.load`.

    Raises:
        InputError: the folder has no config, and ``plan.json`` tells none that a YAML could say.
    """
    path = folder / CONFIG
    if path.exists():
        config = load(path, allow_code=allow_code, resumed=True)
        return make_plan(config) if saved.has_chains else saved, data_request(config)
    data = _data(saved)
    if not saved.has_chains:
        return saved, DataRequest.of(data)
    try:
        config = of_values(_values(saved, data))
    except ConfigError as error:
        raise _unknown(folder, str(error).removesuffix(".")) from None
    # An accountant's module would be imported to make the plan.
    refuse_foreign_code(folder / "plan.json", config, allow_code, IN_RUN)
    return make_plan(config), data_request(config)


def _unknown(folder: Path, why: str) -> InputError:
    return InputError(
        f"{folder}: its plan.json names what no config can ({why}); give the plan to "
        "dpmcmc.diagnostics.personal_receipt in Python",
        "plan",
    )


def _data(saved: Plan) -> dict[str, Any]:
    """Return the values of a section ``data``, of a file that nobody opens."""
    known: dict[str, Any] = {"path": "record", "num_records": saved.num_records}
    if saved.schema is not None:
        return known | {"schema": saved.schema.to_yaml()}
    target = saved.describe().sections["target"]
    facts = ("num_features", "row_bound")
    return known | {name: target[name] for name in facts if name in target}


def _values(saved: Plan, data: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a YAML that says what ``plan.json`` says.

    The file may be a stranger's, so a name in it is of this library or it is refused; no other code is imported.

    Raises:
        ConfigError: it names code of one's own, or what plan.json does not describe whole.
    """
    sections = saved.describe().sections
    target = dict(sections["target"])
    calibrator = str(sections.get("privacy", {}).get("calibrator", ""))
    named = ((target["name"], TARGETS), (sections["sampler"]["name"], SAMPLERS))
    own = [name for name, known in named if name not in known]
    if is_ones_own(calibrator):
        own.append(calibrator)
    if own or "start" in sections:
        raise ConfigError(", ".join(own) or "chains that begin at a mechanism's draw")
    # A plan binds its sampler to N anew.
    sampler = sections["sampler"]
    said = {"name", *(key.name for key in keys(SAMPLERS[sampler["name"]]))}
    sampler = {name: value for name, value in sampler.items() if name in said}
    # By its module, a target takes the facts too that a YAML has from the data.
    kind = TARGETS[target["name"]]
    target["name"] = f"{kind.__module__}:{kind.__qualname__}"
    # A plan counts the steps before the first kept draw, and a config has their share.
    run = dict(sections["run"])
    run["burn_in"] = run["burn_in"] / run["steps"]
    made = {"target": target, "sampler": sampler, "run": run}
    return {**sections, **made, "name": "released", "data": data}
