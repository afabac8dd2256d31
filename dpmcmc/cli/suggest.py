"""``dpmcmc suggest``: a config whose settings are chosen from public facts. Touches no record.

The config that is printed makes the plan that ``dpmcmc.suggest`` makes in Python.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, cast

import typer
import yaml

from dpmcmc import config as config_room
from dpmcmc.cli.options import AllowCode, Overrides, one_of
from dpmcmc.cli.refusals import CommandError
from dpmcmc.config import file as config_file
from dpmcmc.config.model import SCHEMES, Config
from dpmcmc.config.plans import target_of
from dpmcmc.config.sections import keys
from dpmcmc.estimators.picture import picture as save_picture
from dpmcmc.estimators.suggestion import Goal, NotAchievable, Request, ask, default_delta
from dpmcmc.mechanisms import MECHANISMS, MechanismPlan
from dpmcmc.planning.any_plan import AnyPlan
from dpmcmc.planning.plan import Plan
from dpmcmc.planning.verdict import INTERVALS, PREDICTION
from dpmcmc.samplers import SAMPLERS

app = typer.Typer(add_completion=False)


@app.command()
def suggest(
    config: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONFIG]",
            help="A YAML file or a shipped config, whose data, target, epsilon, delta, adjacency and ledger are kept; "
            "without it use the options.",
        ),
    ] = None,
    overrides: Overrides = None,
    allow_code: AllowCode = None,
    goal: Annotated[str, typer.Option(help="Use of the draws.", **one_of([INTERVALS, PREDICTION]))] = INTERVALS,
    target: Annotated[str, typer.Option(help="Without CONFIG: the model.")] = "logistic_regression",
    num_records: Annotated[int | None, typer.Option(help="Without CONFIG: N, public.")] = None,
    num_features: Annotated[int | None, typer.Option(help="Without CONFIG: columns of a row, public.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Epsilon of the promise.")] = None,
    delta: Annotated[float | None, typer.Option(help="Delta; by default the least of 1e-5 and N^-1.2.")] = None,
    picture: Annotated[
        str | None, typer.Option(metavar="FILE", help="Save predicted widths against N and epsilon.")
    ] = None,
) -> None:
    """Print a config whose settings are chosen from public facts; read no record."""
    if config is None and None in (num_records, num_features, epsilon):
        raise CommandError("suggest: give a CONFIG, or --num-records, --num-features and --epsilon.")
    if config is None:
        assert num_records is not None
        delta = default_delta(num_records) if delta is None else delta
    changes = [
        f"privacy.{key}={value!r}" for key, value in (("epsilon", epsilon), ("delta", delta)) if value is not None
    ]
    changes += overrides or []
    if config is None:
        data = {"path": "my.npz", "row_bound": 1.0, "num_records": num_records, "num_features": num_features}
        started = {"name": "suggested", "data": data, "target": {"name": target}, "mechanism": {"name": "noise_aware"}}
        asked = config_file.of_values(started, changes)
    else:
        asked = config_file.load(config, changes, allow_code=allow_code or ())
    request, wanted = _request(asked), cast(Goal, goal)
    if picture is not None:
        save_picture(Path(picture), request)
    try:
        plan = request.suggested(wanted)
        request.require(plan, wanted)
    except NotAchievable as error:
        raise CommandError(str(error), code=1) from None
    print(config_of(asked, plan), end="")


def _request(config: Config) -> Request:
    """Return the question that a config's data, target and privacy ask.

    Raises:
        CommandError: there is no privacy to plan for.
    """
    spec, promise = config_room.describe_data(config), config.privacy
    if promise is None or promise.epsilon is None:
        raise CommandError("privacy.epsilon: a suggestion is made for an epsilon; give it, for example --epsilon 1.")
    assert spec.num_records is not None
    schema = getattr(spec, "schema", None)
    target = target_of(config, spec)
    request = ask(
        target,
        spec.num_records,
        promise.epsilon,
        promise.delta,
        schema,
        spec.num_features,
        {"adjacency": promise.adjacency},
    )
    return dataclasses.replace(request, structure=spec.structure)


def config_of(config: Config, plan: AnyPlan) -> str:
    """Return a YAML that makes a plan, with the reasons for it as comments."""
    assert config.privacy is not None
    whole = config.model_dump(mode="json", exclude_unset=True)
    privacy = {key: whole["privacy"][key] for key in _KEPT if key in whole["privacy"]}
    out: dict[str, object] = {"name": config.name, "data": whole["data"], "target": whole["target"]}
    if isinstance(plan, MechanismPlan):
        out["mechanism"] = _section(MECHANISMS, plan.mechanism)
    else:
        assert isinstance(plan, Plan)
        out["sampler"] = _section(SAMPLERS, plan.sampler)
        out["sampling"] = _section(SCHEMES, plan.sampling, "scheme")
        if plan.metric is not None:
            out["metric"] = {"name": plan.metric.asked.name} | _changed(plan.metric.asked)
        out["run"] = {
            "steps": plan.steps,
            "chains": plan.chains,
            "burn_in": plan.burn_in / plan.steps,
            "thin": plan.thin,
        }
    out["privacy"] = privacy
    reasons = "".join(f"# {reason}\n" for reason in plan.reasons)
    return reasons + yaml.safe_dump(out, sort_keys=False, allow_unicode=True)


#: Keys of the promise that a suggestion keeps.
_KEPT = ("epsilon", "delta", "adjacency", "ledger")


def _section(known: Mapping[str, type], made: object, tag: str = "name") -> dict[str, object]:
    """Return the section that builds what is made."""
    name = next(name for name, kind in known.items() if kind is type(made))
    return {tag: name} | _changed(made)


def _changed(made: object) -> dict[str, object]:
    """Return the keys of a section whose values are not the default."""
    return {f.name: getattr(made, f.name) for f in keys(type(made)) if getattr(made, f.name) != f.default}
