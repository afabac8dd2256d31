"""``dpmcmc suggest``: a config whose settings are chosen from public facts. Touches no record.

The config that is printed makes the plan that ``dpmcmc.suggest`` makes in Python.
"""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from dpmcmc import config as config_room
from dpmcmc.cli.options import note
from dpmcmc.cli.refusals import CommandError, check_new_file
from dpmcmc.config import file as config_file
from dpmcmc.config.model import SCHEMES, Config, Promise
from dpmcmc.config.plans import target_of
from dpmcmc.config.sections import Derived, keys
from dpmcmc.config.yaml_writing import to_yaml
from dpmcmc.data.public_facts import add_public_facts
from dpmcmc.errors import printable
from dpmcmc.estimators.fitting import settings_of, usual
from dpmcmc.estimators.suggestion import Given, Goal, NotAchievable, Request, ask
from dpmcmc.estimators.width_picture import picture as save_picture
from dpmcmc.mechanisms import MECHANISMS
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.settings_json import settings
from dpmcmc.report.lines import WIDTH
from dpmcmc.samplers import SAMPLERS
from dpmcmc.storage.atomic import write_atomically
from dpmcmc.targets import TARGETS

#: Keys of ``privacy`` that a suggestion keeps, and sections that it chooses.
_KEPT = ("epsilon", "delta", "adjacency", "ledger")
_OF_METHOD = ("mechanism", "sampler", "sampling", "metric", "end", "run")
#: Option that states a fact -> its key of a config.
_FACTS = {
    "num_records": "data.num_records",
    "num_features": "data.num_features",
    "epsilon": "privacy.epsilon",
    "delta": "privacy.delta",
}
#: Path in a config that names no file, and δ of a config until N gives the default.
_YOURS, _STAND_IN = "my.npz", 1e-9
#: Endings of a picture's file.
_PICTURES = (".png", ".pdf", ".svg")


def suggest(
    config: str | None,
    overrides: list[str],
    allow_code: list[str],
    *,
    goal: str,
    target: str,
    picture: str | None,
    as_json: bool,
    **facts: float | None,
) -> None:
    """Print a config whose settings are chosen from public facts, those of ``_FACTS`` among them; read no record."""
    if config is None and None in (facts[name] for name in _FACTS if name != "delta"):
        raise CommandError("suggest: give a CONFIG, or --num-records, --num-features and --epsilon.")
    if picture is not None:
        _check_picture(Path(picture))
    given = {key: facts[name] for name, key in _FACTS.items() if facts[name] is not None}
    changes = [*(f"{key}={value!r}" for key, value in given.items()), *overrides]
    question = _ConfigRequest(cast(Goal, goal))
    if config is None:
        data = {"path": _YOURS, "row_bound": 1.0}
        question.of_fit = True
        asked = config_file.of_values({"data": data, "target": _usual(target)}, changes, question.completed)
    else:
        asked = config_file.load(
            config,
            changes,
            allow_code=allow_code,
            completed=question.completed,
            note=note,
        )
    request = question.request(asked)
    if picture is not None:
        write_atomically(Path(picture), lambda file: save_picture(file, request))
    try:
        plan = request.suggested(question.goal)
        request.require(plan, question.goal)
    except NotAchievable as error:
        raise CommandError(str(error), code=1) from None
    values = config_of(asked, plan, request.delta)
    if as_json:
        said = {
            "config": values,
            "reasons": list(plan.reasons),
            "chosen_anew": question.anew,
            "plan": plan.describe().stated,
        }
        print(json.dumps(said, indent=2, allow_nan=False))
    else:
        print(_commented(values, plan.reasons, question.anew), end="")


def _check_picture(file: Path) -> None:
    """Refuse a file that is there already, or that cannot be a picture."""
    check_new_file("--picture", file)
    if file.suffix not in _PICTURES:
        raise CommandError(f"--picture: {file} must end in one of {', '.join(_PICTURES)}.")


def _usual(name: str) -> dict[str, object]:
    """Return the section of a model with the prior that ``dpmcmc.fit`` takes."""
    if name not in TARGETS:
        raise CommandError(f"--target: must be one of {', '.join(TARGETS)}, got {name!r}.")
    return _section(TARGETS, usual(TARGETS[name]))


@dataclasses.dataclass
class _ConfigRequest:
    """Request that a config makes, and the parts of the config that are chosen anew.

    Attributes:
        goal: use of the draws.
        of_fit: whether model and settings are those that ``dpmcmc.fit`` chooses.
        mechanism, delta: whether the config gives them.
        anew: YAML paths that the config gives and the suggestion does not keep.
    """

    goal: Goal
    of_fit: bool = False
    mechanism: bool = False
    delta: bool = False
    anew: list[str] = dataclasses.field(default_factory=list)

    def completed(self, values: dict) -> dict:
        """Return a config's values with stand-ins for what is to be chosen, so that they make a config.

        Raises:
            CommandError: there is no ε to plan for.
        """
        promise = values.get("privacy")
        known = {field.name for field in keys(Promise)}
        if promise is None or (isinstance(promise, dict) and known >= {*promise} and promise.get("epsilon") is None):
            raise CommandError(
                "privacy.epsilon: a suggestion is made for an epsilon; give it, for example --epsilon 1."
            )
        mechanism = values.get("mechanism")
        self.mechanism = isinstance(mechanism, dict) and mechanism.get("name") != "hybrid"
        if not self.mechanism:
            self.anew = [key for key in _OF_METHOD if values.get(key) is not None]
            values = {key: value for key, value in values.items() if key not in _OF_METHOD}
            values["mechanism"] = {"name": "noise_aware"}
        if isinstance(promise, dict):
            dropped = known - {*_KEPT}
            self.anew += [f"privacy.{key}" for key in promise if key in dropped]
            self.delta = promise.get("delta") is not None
            remaining = {key: value for key, value in promise.items() if key not in dropped}
            values = values | {"privacy": remaining | ({} if self.delta else {"delta": _STAND_IN})}
        return {"name": "suggested"} | values

    def request(self, config: Config) -> Request:
        """Return the question that a config's data, target and privacy ask."""
        spec = config_room.describe_data(config)
        promise = config.privacy
        assert promise is not None
        assert promise.epsilon is not None
        assert spec.num_records is not None
        target = target_of(config, spec)
        given: Given = {"adjacency": promise.adjacency}
        if self.mechanism and isinstance(config.mechanism, Derived):
            given["mechanism"] = add_public_facts(config.mechanism.built(), spec.facts)
        elif self.of_fit:
            given |= settings_of(target, self.goal, spec.num_features)
        delta = promise.delta if self.delta else None
        schema = spec.schema
        request = ask(
            target,
            spec.num_records,
            promise.epsilon,
            delta,
            schema,
            spec.num_features,
            given,
        )
        return dataclasses.replace(request, structure=spec.structure)


def config_of(config: Config, plan: Plan, delta: float) -> dict[str, object]:
    """Return the values of a config that makes a plan.

    Args:
        config: whose data, target and promise are kept.
        plan: that was suggested.
        delta: δ of the promise.
    """
    assert config.privacy is not None
    given = config.model_dump(mode="json", exclude_unset=True)
    said = given["privacy"] | {"delta": delta, "adjacency": config.privacy.adjacency}
    target = {key: value for key, value in config.target.model_dump(mode="json").items() if value is not None}
    out: dict[str, object] = {
        "name": config.name,
        "data": given["data"],
        "target": target,
    }
    if plan.release is not None:
        out["mechanism"] = _section(MECHANISMS, plan.mechanism)
    else:
        out["sampler"] = _section(SAMPLERS, plan.sampler)
        out["sampling"] = _section(SCHEMES, plan.sampling, "scheme")
        if plan.metric is not None:
            out |= {"metric": _said(plan.metric.asked), "end": None}
        out["run"] = {
            "steps": plan.steps,
            "chains": plan.chains,
            "burn_in": plan.burn_in / plan.steps,
            "thin": plan.thin,
        }
    out["privacy"] = {key: said[key] for key in _KEPT if key in said}
    return out


def _commented(values: Mapping[str, object], reasons: Sequence[str], anew: Sequence[str]) -> str:
    """Return the YAML of a suggested config, with the reasons for it as comments.

    Args:
        values: of the config.
        reasons: for its settings.
        anew: YAML paths of the given config that are not kept.
    """
    lines = [*reasons, *([f"not kept, because they are chosen anew: {', '.join(anew)}"] if anew else [])]
    comments = "".join(
        f"{part}\n"
        for line in lines
        for part in textwrap.wrap(printable(line), WIDTH, initial_indent="# ", subsequent_indent="#   ")
    )
    text = to_yaml(values)
    return comments + text.replace(
        f"path: {_YOURS}\n",
        f"path: {_YOURS}  # replace it by the path of your own file\n",
    )


def _section(known: Mapping[str, type], made: object, tag: str = "name") -> dict[str, object]:
    """Return the section that builds what is made."""
    name = next(name for name, kind in known.items() if kind is type(made))
    return {tag: name} | _said(made)


def _said(made: object) -> dict[str, object]:
    """Return the keys of a section whose values are not the defaults, with their values."""
    said = settings(made)
    return {field.name: said[field.name] for field in keys(type(made)) if field.name in said}
