"""Keys of a config file, and the Plan that they stand for.

Unknown keys, wrong types and impossible values are errors that name the YAML path. ``docs/config.md`` is
generated from these models.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import numpy as np
import pydantic
import yaml
from jax.sharding import Mesh
from pydantic import BaseModel, ConfigDict, Discriminator, Field, model_validator

from dpmcmc import data as data_room
from dpmcmc.config import own_code
from dpmcmc.config import sections as schema
from dpmcmc.config.sections import Section
from dpmcmc.data import DataSpec
from dpmcmc.engine.mesh import mesh
from dpmcmc.errors import InputError
from dpmcmc.mechanisms import MECHANISMS, OPS, Hybrid, MechanismPlan
from dpmcmc.planning.plan import Plan, plan
from dpmcmc.privacy.accounting.events import UnsupportedCombination
from dpmcmc.privacy.accounting.sampling import FixedSize, Full, Poisson, Sampling
from dpmcmc.privacy.calibration import CalibrationError
from dpmcmc.privacy.calibration.promise import Privacy
from dpmcmc.samplers import SAMPLERS
from dpmcmc.samplers.base import missing_of
from dpmcmc.storage.cache import UnsafeCache
from dpmcmc.targets import TARGETS, PerOwner, bind


class ConfigError(InputError):
    """One sentence for the person who wrote the YAML."""


#: A plan holds its noise step by step in memory.
MOST_STEPS = 20_000_000


class DataConfig(Section):
    """Source of the records: a registered ``name``, or the ``path`` of your own .npz file or folder of .npy files."""

    name: str | None = Field(None, description=" | ".join(data_room.NAMES) + ".")
    path: str | None = Field(
        None,
        description="Your own .npz, or for records beyond memory a folder with x.npy and y.npy; relative to the config "
        "file.",
    )
    encoding: Literal["public", "linear"] = Field(
        "public", description="Feature encoding of a registered set; every constant in it is public."
    )
    standin: Literal["allow", "refuse"] = Field(
        "refuse",
        description="Whether a generated set of the same shape may replace files that cannot be had.",
    )
    x: str = Field("x", description="Name of the feature array (N, d) in your .npz.")
    y: str = Field("y", description="Name of the label array (N,) in your .npz.")
    row_bound: float | None = Field(None, description="Public bound on the l2 norm of your rows.")
    test_fraction: float = Field(0.0, description="Share of your rows held out for testing.")
    num_records: int | None = Field(
        None, description="Public number of training records of your file; needed to plan without reading it."
    )
    owner: str | None = Field(
        None,
        description="Name of the array in your .npz of who each row belongs to, numbered from 0. An owner with all "
        "their rows is then one record: what the guarantee speaks of, what is clipped and what is sampled.",
    )
    num_owners: int | None = Field(
        None,
        description="Public number of owners, held out and absent ones included; with owner, in place of num_records.",
    )
    records_per_owner: int | None = Field(
        None, description="Public number of rows of one owner that count, the first ones; with owner."
    )
    public: bool = Field(
        False,
        description="Declare your file public: its test metrics, non-private fits and draws without a guarantee may be "
        "released.",
    )


class CustomConfig(BaseModel):
    """Your own target or sampler: ``module:attribute``, called with the remaining keys."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    name: str = Field(
        pattern=own_code.PATTERN,
        description="``module:attribute``: a class, or a function whose return annotation is one.",
    )

    @model_validator(mode="after")
    def _sizes(self) -> CustomConfig:
        for key, value in (self.model_extra or {}).items():
            try:
                schema.of_a_size(value)
            except InputError as error:
                raise InputError(f"{key}: {error}, got {value}") from None
        return self


#: Sections of the registered targets and samplers, derived from their constructors.
TARGET_SECTIONS = {name: schema.model(name, constructor) for name, constructor in TARGETS.items()}
SAMPLER_SECTIONS = {name: schema.model(name, constructor) for name, constructor in SAMPLERS.items()}
#: Sections of one-shot mechanisms. A hybrid's section is that of its posterior draw, with the share of ε that it takes.
MECHANISM_SECTIONS = {name: schema.model(name, constructor) for name, constructor in MECHANISMS.items()}
MECHANISM_SECTIONS["hybrid"] = pydantic.create_model(
    "HybridConfig",
    __base__=schema.model("hybrid", OPS),
    __doc__="One posterior draw at a share of epsilon, then the config's sampler from there with the rest.",
    share=(float, Field(0.5, gt=0, lt=1, description="Share of ε that the posterior draw alone may cost.")),
)


class PoissonConfig(Section):
    """Each record takes part independently."""

    scheme: Literal["poisson"]
    batch_size: float = Field(gt=0, description="Expected batch size, a public constant.")


class FixedSizeConfig(Section):
    """A uniform subset of exactly batch_size records."""

    scheme: Literal["fixed_size"]
    batch_size: int = Field(gt=0, description="Batch size.")


class FullConfig(Section):
    """All records in every step."""

    scheme: Literal["full"]


class PrivacyConfig(Section):
    """Promised guarantee. Write ``privacy: null`` for plain SG-MCMC without a guarantee."""

    epsilon: float | None = Field(
        None, gt=0, le=1e6, description="Target ε; left out with calibrator free, which reports it."
    )
    delta: float = Field(gt=0, lt=1, description="Total δ, below 1/N.")
    adjacency: Literal["replace_one", "add_remove", "zero_out"] = Field(
        "replace_one", description="Definition of a neighbour: one record replaced, present or absent, or zeroed."
    )
    release: Literal["trace", "last_iterate", "one_sample", "estimate"] = Field(
        "trace",
        description="trace: every iterate of a sampler may be published. Leave it out with a mechanism, which has a "
        "release of its own.",
    )
    accountant: Literal["pld", "rdp", "advanced"] = Field("pld", description="How ε is computed.")
    calibrator: Literal["numeric", "closed_form", "free"] = Field("numeric", description="How the noise is chosen.")
    clip: float = Field(1.0, gt=0, description="l2 norm each record's gradient is clipped to.")
    hardened: bool = Field(
        False,
        description="ChaCha20 keys, and noise drawn in integers, proved bit by bit. For a sampler's run; a mechanism's "
        "release is not.",
    )
    insecure_noise_seed: int | None = Field(
        None, description="Makes a run bit-reproducible, and takes its guarantee away."
    )
    ledger: str | None = Field(
        None, description="Budget ledger of the data set, relative to the config file; the run is charged to it."
    )


#: Keys of a promise that concern samplers alone.
_OF_SAMPLERS = ("release", "accountant", "calibrator", "clip", "hardened")
#: Keys of these that a hybrid, which has a mechanism's start, does not take either.
_NOT_OF_HYBRIDS = ("release", "hardened")


class MeshConfig(Section):
    """Devices that share the work: chains side by side along one axis, records split along the other."""

    chain: int = Field(1, gt=0, description="Devices along the chains.")
    data: int | None = Field(None, gt=0, description="Devices along the records; null: what the other axis leaves.")


class RunConfig(Section):
    """How long. Give ``passes`` or ``steps``."""

    passes: float | None = Field(None, gt=0, description="Passes over the data: steps = ceil(passes·N/b).")
    steps: int | None = Field(None, gt=0, le=MOST_STEPS, description="Steps per chain.")
    chains: int = Field(1, gt=0, le=100_000, description="Independent chains; each is charged.")
    burn_in: float = Field(0.5, ge=0, lt=1, description="Share of the steps before the first kept draw.")
    thin: int = Field(1, gt=0, description="One draw is kept every thin steps.")
    curvature: float | None = Field(
        None,
        gt=0,
        description="PUBLIC bound on the curvature of the MEAN loss, prior included; a step beyond its limit is "
        "refused.",
    )
    mesh: MeshConfig | None = Field(None, description="Devices that share the work; null: one device.")

    @model_validator(mode="after")
    def _one_length(self) -> RunConfig:
        if (self.passes is None) == (self.steps is None):
            raise InputError("give exactly one of passes and steps")
        return self


def _registered_or_custom(value: Any) -> str | None:
    """Model that a target or sampler section is read with: its name, or ``custom`` for module:attribute."""
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    if not isinstance(name, str):
        return None
    return "custom" if ":" in name else name


_choice = Discriminator(_registered_or_custom)
_TargetSection: Any = Annotated[schema.tagged({**TARGET_SECTIONS, "custom": CustomConfig}), _choice]
_SamplerSection: Any = Annotated[schema.tagged({**SAMPLER_SECTIONS, "custom": CustomConfig}), _choice]
_MechanismSection: Any = Annotated[schema.tagged(MECHANISM_SECTIONS), _choice]
_SamplingSection: Any = Annotated[PoissonConfig | FixedSizeConfig | FullConfig, Field(discriminator="scheme")]


class Config(Section):
    """A whole configuration file."""

    name: str = Field(pattern=r"^[\w.-]+$", description="Names the run folder.")
    data: DataConfig
    target: _TargetSection
    mechanism: _MechanismSection | None = Field(
        None, description="A one-shot mechanism, in place of sampler, sampling and run; hybrid stands beside them."
    )
    sampler: _SamplerSection | None = None
    sampling: _SamplingSection | None = None
    privacy: PrivacyConfig | None = Field(description="null: plain SG-MCMC, no guarantee.")
    run: RunConfig | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_names(cls, values: Any) -> Any:
        """``target: my_module:make_target`` is short for ``target: {name: my_module:make_target}``."""
        if not isinstance(values, dict):
            return values
        values = dict(values)
        for key in ("target", "sampler"):
            if isinstance(values.get(key), str):
                values[key] = {"name": values[key]}
        return values

    @model_validator(mode="after")
    def _whole(self) -> Config:
        """A sampler with its sampling and run, or a mechanism without them; a hybrid has both."""
        name = None if self.mechanism is None else self.mechanism.name
        for key in ("sampler", "sampling", "run"):
            if self.one_shot and getattr(self, key) is not None:
                raise InputError(f"{key}: mechanism {name} takes none; leave it out")
            if not self.one_shot and getattr(self, key) is None:
                raise InputError(f"{key}: this key is required")
        if name is None:
            if self.privacy is not None and self.privacy.release != "trace":
                raise InputError(
                    f"privacy.release: a sampler's run releases its trace, not {self.privacy.release}; for a last "
                    "iterate use mechanism certified_ops, for posterior draws ops"
                )
            return self
        if self.run is not None and self.run.mesh is not None:
            raise InputError(f"run.mesh: mechanism {name} runs on one device; leave it out")
        if self.privacy is None or self.privacy.epsilon is None:
            raise InputError("privacy: a mechanism needs epsilon and delta")
        for key in _OF_SAMPLERS if self.one_shot else _NOT_OF_HYBRIDS:
            if key in self.privacy.model_fields_set:
                why = "has no integer noise" if key == "hardened" else "settles this itself"
                raise InputError(f"privacy.{key}: mechanism {name} {why}; leave it out")
        return self

    @property
    def one_shot(self) -> bool:
        """Whether a mechanism stands alone."""
        return self.mechanism is not None and self.mechanism.name != "hybrid"


def describe_data(config: Config) -> DataSpec:
    """Public facts about the config's data; opens no data file.

    Raises:
        ConfigError: a user's file without a declared number of records.
    """
    spec = data_room.describe(config.data)
    if spec.num_records is None:
        raise ConfigError(
            "data.num_records: the number of training records of your own file must be declared as a public "
            "constant, because a plan is made without reading the file."
        )
    return spec


def make_plan(config: Config, num_records: int | None = None) -> Plan | MechanismPlan:
    """The plan a config stands for; reads no record.

    Args:
        config: validated.
        num_records: N where it is not the data set's own, for instance for a run on a part of it.

    Raises:
        ConfigError: a value that makes no plan, named by its YAML path.
        UnsupportedCombination, CalibrationError: see :func:`dpmcmc.plan`.
    """
    spec = describe_data(config)
    n = spec.num_records if num_records is None else num_records
    assert n is not None
    how_long = {} if config.one_shot else _run(config, n)
    if config.privacy is not None and config.privacy.delta >= 1 / n:
        raise ConfigError(
            f"privacy.delta: {config.privacy.delta:g} is not below 1/N = {1 / n:.3g} for {n} records, so publishing a "
            "random record outright would meet it; use a smaller delta."
        )
    target = _built("target", _target, config, spec)
    if spec.records_per_owner is not None:
        if config.mechanism is not None:
            raise ConfigError(
                f"mechanism: {config.mechanism.name} bounds what one row can do, not one owner; leave data.owner out, "
                "or use a sampler alone."
            )
        target = PerOwner(target, spec.records_per_owner)
    if config.mechanism is not None:
        return _mechanism_plan(config, spec, target, n, how_long)
    sampler = _built("sampler", _sampler, config, spec)
    try:
        return plan(
            target, num_records=n, sampler=sampler, privacy=_built("privacy", _privacy, config, spec), **how_long
        )
    except (UnsupportedCombination, CalibrationError, ConfigError):
        raise
    except Exception as error:  # a user's code may raise anything
        raise _refusal(config, error, *_located(str(error))) from None


def _run(config: Config, n: int) -> dict[str, Any]:
    """sampling, steps, chains, burn_in, thin and curvature of a sampler's run."""
    assert config.run is not None
    sampling = _sampling(config, n)
    if config.run.steps is not None:
        steps = config.run.steps
    else:
        # The tolerance keeps 0.1 + 0.2 of a pass from costing a step.
        steps = max(1, math.ceil((config.run.passes or 0) / sampling.rate(n) - 1e-9))
        if steps > MOST_STEPS:
            raise ConfigError(
                f"run.passes: {config.run.passes:g} is {steps:.3g} steps, and a run has at most {MOST_STEPS}."
            )
    burn_in = math.floor(config.run.burn_in * steps + 1e-9)
    if steps - burn_in < config.run.thin:
        raise ConfigError(
            f"run.thin: {config.run.thin} keeps no draw of the {steps - burn_in} steps after burn-in; "
            "lower run.thin or run.burn_in, or take more steps."
        )
    return {
        "sampling": sampling,
        "steps": steps,
        "chains": config.run.chains,
        "burn_in": burn_in,
        "thin": config.run.thin,
        "curvature": config.run.curvature,
    }


def _mechanism_plan(config: Config, spec: DataSpec, target: Any, n: int, how_long: dict[str, Any]) -> MechanismPlan:
    """The plan of a one-shot mechanism, or of a hybrid."""
    promise = config.privacy
    assert config.mechanism is not None
    assert promise is not None
    assert promise.epsilon is not None
    try:
        arguments = schema.arguments(config.mechanism)
        mechanism: Any
        if config.one_shot:
            mechanism = MECHANISMS[config.mechanism.name](**arguments)
        else:
            mechanism = Hybrid(
                share=arguments.pop("share"),
                start=OPS(**arguments),
                sampler=_built("sampler", _sampler, config, spec),
                clip=promise.clip,
                accountant=promise.accountant,
                calibrator=promise.calibrator,
                **how_long,
            )
        return mechanism.plan(
            _with_shapes(target, spec),
            num_records=n,
            epsilon=promise.epsilon,
            delta=promise.delta,
            adjacency=promise.adjacency,
        )
    except (UnsupportedCombination, CalibrationError, ConfigError):
        raise
    except Exception as error:
        named = str(error).split(" ")[0].strip(":,")
        path, said = _located(str(error))
        if named in type(config.mechanism).model_fields:
            path, said = f"mechanism.{named}", str(error).removeprefix(f"{named}: ")
        elif path == "config" and named in type(config.target).model_fields:
            path, said = f"target.{named}", str(error).removeprefix(f"{named}: ")
        raise _refusal(config, error, path, said) from None


def _with_shapes(target: Any, spec: DataSpec) -> Any:
    """The target bound to the declared number of features, where it is one of those that take it."""
    if spec.num_features is None or getattr(target, "num_features", 0) is not None:
        return target
    row = {"x": jax.ShapeDtypeStruct((spec.num_features,), np.float32), "y": jax.ShapeDtypeStruct((), np.float32)}
    return bind(target, row)


def make_mesh(config: Config) -> Mesh | None:
    """The devices that a config's run shares, or None for one.

    Raises:
        ConfigError: there are fewer.
    """
    wanted = None if config.run is None else config.run.mesh
    try:
        return None if wanted is None else mesh(wanted.chain, wanted.data)
    except InputError as error:
        raise ConfigError(f"run.{error}.") from None


def is_secret(config: Config) -> bool:
    """Whether the run's noise is secret, which its guarantee needs."""
    return config.privacy is None or config.privacy.insecure_noise_seed is None


def _built(section: str, make: Callable[[Config, DataSpec], Any], config: Config, spec: DataSpec) -> Any:
    """A part of the plan; what its constructor refuses is said with the YAML path."""
    try:
        return make(config, spec)
    except (ConfigError, UnsafeCache):
        raise
    except InputError as error:
        # Constructors name the argument first.
        named = str(error).split()[0].strip(":,")
        path = f"{section}.{named}" if hasattr(getattr(config, section), named.split(".")[0]) else section
        # A nested path is said once.
        said = str(error).removeprefix(f"{named}: ").removeprefix(f"{named.rpartition('.')[0]}.")
        raise ConfigError(f"{path}: {said}.") from None


def _located(message: str) -> tuple[str, str]:
    """(the YAML path that a message of the plan is about, from the word it names first; the message)."""
    words = {
        "step_size": "sampler.step_size",
        "temperature": "sampler.temperature",
        "friction": "sampler.friction",
        "noise multiplier": "privacy.clip",
        "clip": "privacy.clip",
        "delta": "privacy.delta",
        "batch_size": "sampling.batch_size",
        "steps": "run.steps",
        "public_fisher": "sampler.public_fisher",
        "metric": "sampler.metric",
        "curvature": "run.curvature",
        "row_bound": "data.row_bound",
        "hardened": "privacy.hardened",
        "sampler": "sampler",
    }
    named, _, rest = message.partition(": ")
    if named in words:
        return words[named], rest
    found = [(message.index(word), path) for word, path in words.items() if word in message]
    return (min(found)[1] if found else "config"), message


def _refusal(config: Config, error: Exception, path: str, said: str) -> Exception:
    """Return the error to raise for the plan's: a sentence, unless it is a fault of this library."""
    own = modules_of_ones_own(config)
    if own and (path == "config" or not isinstance(error, InputError)):
        return ConfigError(
            f"{next(iter(own))}: {' or '.join(own.values())} cannot be planned with ({own_code.said(error)}); try it "
            "with dpmcmc.testing."
        )
    return ConfigError(f"{path}: {said}.") if isinstance(error, InputError) else error


def _sampling(config: Config, n: int) -> Sampling:
    chosen = config.sampling
    assert chosen is not None
    if isinstance(chosen, FullConfig):
        return Full()
    if chosen.batch_size > n:
        raise ConfigError(
            f"sampling.batch_size: {chosen.batch_size:g} is larger than the {n} training records; use at most {n}, or "
            "scheme full."
        )
    return Poisson(chosen.batch_size) if isinstance(chosen, PoissonConfig) else FixedSize(chosen.batch_size)


def _privacy(config: Config, spec: DataSpec) -> Privacy | None:
    if config.privacy is None:
        return None
    return Privacy(**config.privacy.model_dump(exclude={"insecure_noise_seed", "ledger"}))


def _target(config: Config, spec: DataSpec) -> Any:
    chosen = config.target
    if isinstance(chosen, CustomConfig):
        target = _custom("target", chosen)
        missing = [name for name in own_code.REQUIRED["target"] if not hasattr(target, name)]
        if missing:
            raise ConfigError(f"target.name: {chosen.name} makes no target: it lacks {', '.join(missing)}.")
        return target
    public = {
        "num_features": spec.num_features,
        "num_classes": spec.num_classes,
        "row_bound": spec.row_bound if math.isfinite(spec.row_bound) else None,
    }
    constructor: Any = TARGETS[chosen.name]
    given = schema.arguments(chosen)
    taken = {f.name for f in dataclasses.fields(constructor) if given.get(f.name) is None}
    return constructor(**{**given, **{key: public[key] for key in taken & public.keys()}})


def _sampler(config: Config, spec: DataSpec) -> Any:
    chosen = config.sampler
    assert chosen is not None
    if not isinstance(chosen, CustomConfig):
        return SAMPLERS[chosen.name](**schema.arguments(chosen))
    sampler = _custom("sampler", chosen)
    missing = missing_of(sampler)
    if missing:
        raise ConfigError(f"sampler.name: {chosen.name} lacks {', '.join(missing)} of the Sampler protocol.")
    return sampler


def _custom(section: str, chosen: CustomConfig) -> Any:
    keys = f" with the keys {', '.join(sorted(chosen.model_extra))}" if chosen.model_extra else ""
    try:
        factory = own_code.found(section, chosen.name)
    except ValueError as error:
        raise ConfigError(f"{section}.name: {chosen.name} {error}.") from None
    try:
        made = factory(**{key: _value(key, value) for key, value in (chosen.model_extra or {}).items()})
        repr(made)  # plan.json holds it
        return made
    except (Exception, SystemExit) as error:  # a user's code may raise anything
        raise ConfigError(f"{section}: {chosen.name} called{keys} says: {own_code.said(error)}.") from None


def modules_of_ones_own(config: Config) -> dict[str, str]:
    """section -> ``module:attribute``, for the target and the sampler that are no registered ones."""
    sections = {key: getattr(config, key) for key in ("target", "sampler")}
    return {key: section.name for key, section in sections.items() if isinstance(section, CustomConfig)}


def _value(key: str, value: Any) -> Any:
    """A mapping with the key ``schedule`` is a schedule, in a section of one's own as anywhere."""
    if not isinstance(value, dict) or "schedule" not in value:
        return value
    name = value["schedule"]
    if not isinstance(name, str) or name not in schema.SCHEDULE_SECTIONS:
        raise InputError(f"{key}.schedule must be one of {', '.join(schema.SCHEDULE_SECTIONS)}, got {name!r}")
    try:
        return schema.schedule(schema.SCHEDULE_SECTIONS[name].model_validate(value), key)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        raise InputError(f"{'.'.join(map(str, (key, *first['loc'])))}: {first['msg']}") from None


def dump(config: Config, folder: Path) -> str:
    """The resolved config as YAML, every default written out; a data path is written relative to ``folder``."""
    values = config.model_dump(mode="json")
    if config.mechanism is None:
        del values["mechanism"]
    else:
        for key in _OF_SAMPLERS if config.one_shot else _NOT_OF_HYBRIDS:
            del values["privacy"][key]
    if config.one_shot:
        values = {key: value for key, value in values.items() if key not in ("sampler", "sampling", "run")}
    if config.data.path is not None:
        values["data"]["path"] = os.path.relpath(config.data.path, folder)
    if config.privacy is not None and config.privacy.ledger is not None:
        values["privacy"]["ledger"] = os.path.relpath(config.privacy.ledger, folder)
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
