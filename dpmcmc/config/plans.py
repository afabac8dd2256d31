"""From a config to the plan it stands for; no record is read.

Every constructor is called inside :func:`~dpmcmc.config.refusals.with_yaml_path`, which knows the sections that its
arguments came from, and so the YAML path of the argument that a refusal is about.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from pydantic import ConfigDict, TypeAdapter, ValidationError

from dpmcmc import data as data_room
from dpmcmc.config import named_code
from dpmcmc.config.model import Config, CustomSection, modules_of_ones_own
from dpmcmc.config.refusals import SAID_ALREADY, ConfigError, invalid, refusal, with_yaml_path
from dpmcmc.config.run_section import Length, Run
from dpmcmc.config.sections import SCHEDULE, Derived, says_schedule
from dpmcmc.data import DataRequest, DataSet, DataSpec
from dpmcmc.data.public_facts import add_public_facts
from dpmcmc.engine.devices import on_device
from dpmcmc.engine.mesh import mesh
from dpmcmc.engine.work_table import work_of
from dpmcmc.errors import Hint, InputError
from dpmcmc.mechanisms import OPS, Hybrid
from dpmcmc.mechanisms.chain import plan
from dpmcmc.mechanisms.label_posterior import plan_labels
from dpmcmc.planning.plan import Plan
from dpmcmc.privacy.accounting.own import is_ones_own
from dpmcmc.privacy.accounting.promise import Privacy
from dpmcmc.privacy.accounting.sampling import Sampling
from dpmcmc.samplers.base import Sampler, missing_of
from dpmcmc.targets import PerOwner, Target, bind
from dpmcmc.targets.base import missing_of_target, target_offers
from dpmcmc.targets.numpyro.model import NumPyroTarget


def describe_data(config: Config) -> DataSpec:
    """Return public facts about the config's data; opens no data file.

    Raises:
        ConfigError: a user's file without a declared number of records.
    """
    with with_yaml_path(config.sections("data"), "data"):
        spec = data_room.describe(_build(config.data))
    if spec.num_records is None:
        raise ConfigError.at(
            "data.num_records",
            "the number of training records of your own file must be declared as a public constant, because a plan is "
            "made without reading the file",
        )
    return spec


def data_request(config: Config) -> DataRequest:
    """Return the request that the config's section ``data`` stands for."""
    request: DataRequest = _build(config.data)
    return request


def load_data(config: Config, plan: Plan | None = None) -> DataSet:
    """Return the config's records; raises as :func:`dpmcmc.data.load`.

    Args:
        config: validated.
        plan: for which a table in partitions stays where it is, if that plan reads sums alone and takes no mesh.
    """
    partitions = plan is not None and config.where.mesh is None and work_of(plan).takes_partitions
    return data_room.load(data_request(config), partitions=partitions)


def make_plan(config: Config, num_records: int | None = None) -> Plan:
    """Return the plan a config stands for; reads no record.

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
    length = None if config.one_shot else _length(config, n)
    target = target_of(config, spec)
    if config.data.labels is not None:
        with _refusing_own_code(config, "target", "data"):
            return plan_labels(_with_shapes(target, spec), n, config.data.labels.randomised, spec.schema)
    if config.mechanism is not None:
        return _mechanism_plan(config, spec, target, n, length)
    assert length is not None
    sampler = _sampler(config)
    with _refusing_own_code(config, "run", "sampler", "privacy", "sampling", "target", "data", "metric", "end"):
        return plan(
            target,
            num_records=n,
            sampler=sampler,
            metric=None if config.metric is None else add_public_facts(_build(config.metric), spec.facts),
            end=config.end if config.end in (None, "auto") else add_public_facts(_build(config.end), spec.facts),
            privacy=_privacy(config),
            schema=spec.schema,
            **length,
        )


def make_mesh(config: Config) -> Mesh | None:
    """Return the devices that a config's run shares, or None for one.

    Raises:
        ConfigError: there are fewer.
    """
    wanted = config.where.mesh
    with with_yaml_path({}, "run.mesh"):
        return None if wanted is None else mesh(wanted.chain, wanted.data)


@contextmanager
def run_device(config: Config) -> Iterator[None]:
    """Compute on the kind of device that a config's run asks for, while the context is open.

    Raises:
        ConfigError: there is none.
    """
    with ExitStack() as stack:
        with with_yaml_path(config.sections("run"), "run"):
            stack.enter_context(on_device(config.where.device))
        yield


@contextmanager
def _refusing_own_code(config: Config, *sections: str) -> Iterator[None]:
    """Refuse as :func:`with_yaml_path` does, and report an exception of a user's own code as theirs to mend."""
    try:
        yield
    except SAID_ALREADY:
        raise
    except Exception as error:  # a user's code may raise anything
        found = refusal(error, config.sections(*sections), "config") if isinstance(error, InputError) else None
        own = modules_of_ones_own(config)
        if own and (found is None or found.about == "config"):
            path = next(iter(own))
            raise ConfigError.at(
                path,
                f"{' or '.join(own.values())} cannot be planned with ({named_code.describe_error(error)}); try it with "
                "dpmcmc.testing",
            ) from None
        if found is None:
            raise
        raise found from None


def _length(config: Config, n: int) -> Length:
    """How long a sampler runs, and on which records of each step."""
    with with_yaml_path(config.sections("sampling", "run", "data"), "sampling"):
        sampling: Sampling = _build(config.sampling)
        sampling.validate(n)
        run: Run = _build(config.run)
        return run.counted(sampling, n)


def _mechanism_plan(config: Config, spec: DataSpec, target: Target, n: int, length: Length | None) -> Plan:
    """The plan of a one-shot mechanism, or of a hybrid."""
    promise = _privacy(config)
    assert promise is not None  # the config's own check
    assert promise.epsilon is not None
    assert isinstance(config.mechanism, Derived)
    if spec.records_per_owner is not None and not isinstance(target, PerOwner):
        raise ConfigError.at(
            "mechanism",
            f"{config.mechanism.name} bounds what one row can do, not one owner; leave data.owner out, or use "
            "noise_aware or a sampler alone",
        )
    with _refusing_own_code(config, "mechanism", "target", "sampler", "run", "sampling", "privacy", "data"):
        if length is None:
            mechanism = add_public_facts(_build(config.mechanism), spec.facts)
        else:
            mechanism = _hybrid(config.mechanism, _sampler(config), promise, length)
        return mechanism.plan(
            _with_shapes(target, spec),
            num_records=n,
            epsilon=promise.epsilon,
            delta=promise.delta,
            adjacency=promise.adjacency,
            schema=spec.schema,
        )


def _hybrid(section: Any, sampler: Sampler, promise: Privacy, length: Length) -> Hybrid:
    start = section.arguments()
    return Hybrid(
        share=start.pop("share"),
        start=OPS(**start),
        sampler=sampler,
        clip=promise.clip,
        clipping=promise.clipping,
        accountant=promise.accountant,
        calibrator=promise.calibrator,
        **length,
    )


def _with_shapes(target: Target, spec: DataSpec) -> Target:
    """The target bound to the declared number of features, where it is one of those that wait for it."""
    if spec.num_features is None or not _waits(target):
        return target
    row = {
        "x": jax.ShapeDtypeStruct((spec.num_features,), np.float32),
        "y": jax.ShapeDtypeStruct((), np.float32),
    }
    offers = target_offers(target)
    if offers.offset_bound is not None:
        row["offset"] = row["y"]
    if offers.weight_scale is not None:
        row["weight"] = row["y"]
    return bind(target, row)


def _waits(target: Target) -> bool:
    """Whether a target's shapes are known from its number of features alone, and that is not said yet."""
    if isinstance(target, NumPyroTarget):
        return target.leaves is None
    fields = {field.name for field in dataclasses.fields(target)} if dataclasses.is_dataclass(target) else set[str]()
    return "num_features" in fields and target_offers(target).num_features is None


def _build(section: object) -> Any:
    """Return what a section's constructor makes."""
    assert isinstance(section, Derived)
    return section.built()


def _privacy(config: Config) -> Privacy | None:
    """The promise without what only a config says of it."""
    if config.privacy is None:
        return None
    values = {field.name: getattr(config.privacy, field.name) for field in dataclasses.fields(Privacy)}
    if is_ones_own(name := str(config.privacy.calibrator)):
        with _about("privacy.calibrator", name):
            values["calibrator"] = named_code.find_calibrator(name)
    if is_ones_own(name := str(config.privacy.accountant)):
        with _about("privacy.accountant", name):
            named_code.import_named(name)
    return Privacy(**values)


@contextmanager
def _about(key: str, name: str) -> Iterator[None]:
    """Begin what is refused of a function of the user's with its key and its name."""
    try:
        yield
    except InputError as error:
        raise ConfigError.at(key, f"{name} {error}") from None


def target_of(config: Config, spec: DataSpec) -> Target:
    """Return the target, with the public facts of the data that its constructor takes and the YAML does not say."""
    if isinstance(config.target, CustomSection):
        target = _custom("target", config.target)
        missing = missing_of_target(target)
        if missing:
            raise ConfigError.at(
                "target.name",
                f"{config.target.name} makes no target: it lacks {', '.join(missing)}",
            )
    else:
        with with_yaml_path(config.sections("target", "data"), "target"):
            target = add_public_facts(config.target.built(), spec.facts)
    for_owners = spec.records_per_owner is not None and (not config.mechanism or config.mechanism.name == "noise_aware")
    return PerOwner(target, spec.records_per_owner) if for_owners else target


def _sampler(config: Config) -> Sampler:
    if not isinstance(config.sampler, CustomSection):
        with with_yaml_path(config.sections("sampler"), "sampler"):
            return _build(config.sampler)
    sampler = _custom("sampler", config.sampler)
    missing = missing_of(sampler)
    if missing:
        raise ConfigError.at(
            "sampler.name",
            f"{config.sampler.name} lacks {', '.join(missing)} of the Sampler protocol",
        )
    return sampler


def _custom(section: str, chosen: CustomSection) -> Any:
    """Return what a user's own ``module:attribute`` makes of the section's other keys."""
    given = chosen.model_extra or {}
    with_keys = f" with the keys {', '.join(sorted(given))}" if given else ""
    try:
        factory = named_code.find_code(section, chosen.name)
    except InputError as error:
        raise ConfigError.at(f"{section}.name", f"{chosen.name} {error}") from None
    arguments = {key: _argument(f"{section}.{key}", value) for key, value in given.items()}
    for key, kind in named_code.types_of_keys(factory).items():
        if key in given and not says_schedule(given[key]):
            _check_argument(f"{section}.{key}", kind, given[key])
    try:
        made = factory(**arguments)
        repr(made)  # plan.json holds it
        return made
    except (Exception, SystemExit) as error:  # a user's code may raise anything
        raise ConfigError.at(
            section, f"{chosen.name} called{with_keys} says: {named_code.describe_error(error)}"
        ) from None


def _check_argument(path: str, kind: Hint, value: object) -> None:
    """Refuse a value that is not of its annotation's type, which the user's code may find out late."""
    try:
        TypeAdapter[object](kind, config=ConfigDict(strict=True)).validate_python(value)
    except ValidationError as error:
        found = invalid(error, value)
        raise ConfigError(f"{path}: {str(found).removeprefix('the file: ')}", path) from None


def _argument(path: str, value: object) -> object:
    """A mapping that says a schedule is one, in a section of one's own as anywhere."""
    if not says_schedule(value):
        return value
    try:
        section = SCHEDULE.validate_python(value)
    except ValidationError as error:
        found = invalid(error, value)
        raise ConfigError(f"{path}.{found}", f"{path}.{found.about}") from None
    with with_yaml_path({path: section}, path):
        return _build(section)
