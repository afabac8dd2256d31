"""A grid: one YAML that stands for many configs.

It is a config with one more section::

    sweep:
      over:                             # every combination of these
        privacy.epsilon: [0.5, 1, 3]
        sampler.step_size: [8, 32]
      together:                         # keys of one mapping change together
        - {privacy.clip: [0.5, 1], run.steps: [400, 100]}
      repeats: 10                       # configs of each combination, which differ in their noise

A list elsewhere keeps its meaning. Configs are numbered from 1, the last key fastest, then the repeats. A key is set as
``--set`` does it. This module reads and checks; it plans nothing and imports nothing that a config names.
"""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pydantic
from annotated_types import Ge, Le, Len

from dpmcmc.config import file
from dpmcmc.config.model import Config
from dpmcmc.config.refusals import ConfigError, invalid

SECTION = "sweep"
#: Dotted key -> value in one config.
Values = dict[str, Any]
#: Dotted key -> its values.
Lists = dict[str, Annotated[list[Any], Len(1)]]


class _Sweep(pydantic.BaseModel):
    """The section ``sweep``."""

    model_config = pydantic.ConfigDict(extra="forbid")
    over: Lists = {}
    together: list[Annotated[Lists, Len(1)]] = []
    repeats: Annotated[pydantic.StrictInt, Ge(1), Le(10_000)] = 1


class _Grid(pydantic.BaseModel):
    """The section of a grid that other configs have not."""

    sweep: _Sweep


@dataclass(frozen=True)
class SweptConfig:
    """One config of a grid.

    Attributes:
        number: from 1.
        values: of the swept keys.
        repeat: from 1.
        config: of the config; its name ends in the number.
    """

    number: int
    values: Values
    repeat: int
    config: Config

    def __str__(self) -> str:
        return f"config {self.number}{describe_values(self.values)}"


@dataclass(frozen=True)
class Grid:
    """All configs of a YAML.

    Attributes:
        name: of the config.
        keys: swept ones, in their order.
        configs: in their order.
    """

    name: str
    keys: tuple[str, ...]
    configs: tuple[SweptConfig, ...]


def describe_values(values: Values) -> str:
    """Return the values of a config in parentheses; empty where nothing is swept."""
    each = ", ".join(f"{key}={text_of(value)}" for key, value in values.items())
    return f" ({each})" if each else ""


def text_of(value: object) -> str:
    """Return a value of a swept key as tables and messages write it."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def load(
    path: str | Path,
    overrides: Iterable[str] | None = None,
    *,
    allow_code: Collection[str] = (),
    note: Callable[[str], object] = lambda said: None,
) -> Grid:
    """Read a grid; arguments as of :func:`dpmcmc.config.load`.

    Raises:
        ConfigError: one sentence naming the file and the YAML path; values that make no config.
    """
    values, where, base = file.read_values(path)
    try:
        file.override_values(values, overrides, note)
        grid = of_values(values, base)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}", error.about) from None
    why = file.lying(where)
    for swept in grid.configs:
        file.refuse_foreign_code(where, swept.config, allow_code, why)
    return grid


def of_values(values: dict[str, Any], base: Path) -> Grid:
    """Return the grid of a YAML's values; raises as :func:`load`."""
    try:
        section = _Grid.model_validate(values).sweep
    except pydantic.ValidationError as error:
        raise invalid(error, values) from None
    axes = _axes(section)
    keys = [key for axis in axes for key in axis[0]]
    for key in keys:
        if keys.count(key) > 1:
            raise ConfigError.at(SECTION, f"{key} is swept twice; keep one of them")
    if not keys and section.repeats == 1:
        raise ConfigError.at(SECTION, "sweeps over nothing; give lists below over, or repeats above 1")
    plain = {key: value for key, value in values.items() if key != SECTION}
    configs: list[SweptConfig] = []
    for parts in itertools.product(*axes):
        combined = {key: value for part in parts for key, value in part.items()}
        config = _config(plain, combined, base)
        if section.repeats > 1 and config.noise_seed is not None:
            raise ConfigError.at(
                f"{SECTION}.repeats",
                "repeats of one privacy.insecure_noise_seed are one run; sweep over the seed instead",
            )
        for repeat in range(1, section.repeats + 1):
            number = len(configs) + 1
            own = config.model_copy(update={"name": f"{values.get('name')}-{number:04d}"})
            configs.append(SweptConfig(number, combined, repeat, own))
    return Grid(str(values.get("name")), tuple(keys), tuple(configs))


def _axes(section: _Sweep) -> list[list[Values]]:
    """Return the axes of the grid, each a list of the values that its keys take together."""
    axes = [[{key: value} for value in listed] for key, listed in section.over.items()]
    for at, group in enumerate(section.together):
        if len({len(listed) for listed in group.values()}) > 1:
            counts = ", ".join(f"{key} has {len(listed)}" for key, listed in group.items())
            raise ConfigError.at(
                f"{SECTION}.together.{at}", f"lists that change together have one length ({counts}); make them equal"
            )
        axes.append([dict(zip(group, each, strict=True)) for each in zip(*group.values(), strict=True)])
    return axes


def _config(plain: dict[str, Any], combined: Values, base: Path) -> Config:
    """Return the config of one combination."""
    values = copy.deepcopy(plain)
    try:
        for key, value in combined.items():
            file.assign(values, key, value, f"{SECTION}: {key}")
        return file.with_base(file.of_values(values), base)
    except ConfigError as error:
        raise ConfigError(f"{str(error).removesuffix('.')}{describe_values(combined)}.", error.about) from None
