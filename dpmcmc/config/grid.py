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
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpmcmc.config import file
from dpmcmc.config.model import Config
from dpmcmc.config.refusals import ConfigError
from dpmcmc.errors import meant

SECTION = "sweep"
_KEYS = ("over", "together", "repeats")
#: Configs of a grid, at most.
MOST_CONFIGS = 10_000
#: Keys that no grid changes: they name a config, or say what the configs are.
_FIXED = ("name", SECTION)

#: Dotted key -> value in one config.
Values = dict[str, Any]


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
        repeats: configs of each combination.
        configs: in their order.
        about: what makes the grid: its values after overrides, and the folder that paths are relative to.
    """

    name: str
    keys: tuple[str, ...]
    repeats: int
    configs: tuple[SweptConfig, ...]
    about: dict[str, Any]


def describe_values(values: Values) -> str:
    """Return the values of a config in parentheses; empty where nothing is swept."""
    each = ", ".join(f"{key}={text_of(value)}" for key, value in values.items())
    return f" ({each})" if each else ""


def text_of(value: object) -> str:
    """Return a value of a swept key as tables and messages write it."""
    return value if isinstance(value, str) else json.dumps(value)


def load(
    path: str | Path,
    overrides: list[str] | None = None,
    *,
    allow_code: Collection[str] = (),
    resumed: bool = False,
    note: Callable[[str], object] = lambda said: None,
) -> Grid:
    """Read a grid; arguments as of :func:`dpmcmc.config.load`.

    Raises:
        ConfigError: one sentence naming the file and the YAML path; values that make no config.
    """
    values, where, base = file.read_values(path)
    try:
        for override in overrides or []:
            dropped = file.apply(values, override)
            if dropped:
                note(f"--set {override} takes {', '.join(dropped)} away")
        grid = of_values(values, base)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}", error.about) from None
    why = file.IN_RUN if resumed else file.lying(where)
    for swept in grid.configs:
        file.refuse_foreign_code(where, swept.config, allow_code, why)
    return grid


def of_values(values: dict[str, Any], base: Path) -> Grid:
    """Return the grid of a YAML's values; raises as :func:`load`."""
    name = values.get("name")
    plain = {key: value for key, value in values.items() if key != SECTION}
    axes, repeats = _axes(values)
    keys = tuple(key for axis in axes for key in axis[0])
    count = math.prod(len(axis) for axis in axes) * repeats
    if count > MOST_CONFIGS:
        raise ConfigError.at(
            SECTION,
            f"makes {count:,} configs, and a sweep has at most {MOST_CONFIGS:,}; take fewer values, or several sweeps",
        )
    combinations = [(combined, _config(plain, combined, base)) for combined in _combinations(axes)]
    configs: list[SweptConfig] = []
    for combined, config in combinations:
        for repeat in range(1, repeats + 1):
            number = len(configs) + 1
            own = config.model_copy(update={"name": f"{name}-{number:04d}"})
            configs.append(SweptConfig(number, combined, repeat, own))
    _check_seeds(configs)
    try:
        about = json.loads(json.dumps({"values": values, "base": str(base)}))
    except (TypeError, ValueError):
        raise ConfigError.at(SECTION, "holds a value that JSON has not, such as a date; quote it") from None
    return Grid(str(name), keys, repeats, tuple(configs), about)


def _combinations(axes: list[list[Values]]) -> Iterator[Values]:
    for parts in itertools.product(*axes):
        yield {key: value for part in parts for key, value in part.items()}


def _config(plain: dict[str, Any], combined: Values, base: Path) -> Config:
    """Return the config of one combination."""
    values = copy.deepcopy(plain)
    try:
        for key, value in combined.items():
            file.assign(values, key, value, f"{SECTION}: {key}")
        return file.with_base(file.of_values(values), base)
    except ConfigError as error:
        place: Any = plain
        for part in error.about.split("."):
            place = place.get(part) if isinstance(place, dict) else None
        listed = isinstance(place, list) and error.about not in combined
        hint = (
            f" Values to sweep over are written sweep: {{over: {{{error.about}: {text_of(place)}}}}}." if listed else ""
        )
        raise ConfigError(f"{str(error).removesuffix('.')}{describe_values(combined)}.{hint}", error.about) from None


def _axes(values: dict[str, Any]) -> tuple[list[list[Values]], int]:
    """Return the axes of the grid, each a list of the values that its keys take together, and the repeats."""
    if SECTION not in values:
        raise ConfigError.at(
            SECTION,
            "this section is required: it has the lists to sweep over, for example "
            "{over: {privacy.epsilon: [1, 3]}, repeats: 10}",
        )
    section = values[SECTION]
    if not isinstance(section, dict):
        raise ConfigError.at(SECTION, f"must be a mapping with the keys {', '.join(_KEYS)}")
    for key in section:
        if key not in _KEYS:
            raise ConfigError.at(
                f"{SECTION}.{key}",
                f"unknown key{meant(key, _KEYS)}; the keys are {', '.join(_KEYS)}, and a swept key such as "
                "privacy.epsilon stands below over",
            )
    repeats = section.get("repeats", 1)
    if not isinstance(repeats, int) or isinstance(repeats, bool) or repeats < 1:
        raise ConfigError.at(f"{SECTION}.repeats", f"must be a whole number >= 1, got {repeats!r}")
    over = _lists(section.get("over"), f"{SECTION}.over")
    axes = [[{key: value} for value in listed] for key, listed in over.items()]
    groups = section.get("together") or []
    if not isinstance(groups, list):
        raise ConfigError.at(
            f"{SECTION}.together",
            "must be a list of mappings, each of keys that change together",
        )
    for at, group in enumerate(groups):
        where = f"{SECTION}.together.{at}"
        lists = _lists(group, where)
        lengths = {len(listed) for listed in lists.values()}
        if len(lengths) != 1:
            counts = ", ".join(f"{key} has {len(v)}" for key, v in lists.items())
            raise ConfigError.at(
                where,
                f"lists that change together have one length ({counts or 'none is given'}); make them equal",
            )
        axes.append([dict(zip(lists, each, strict=True)) for each in zip(*lists.values(), strict=True)])
    keys = [key for axis in axes for key in axis[0]]
    for key in keys:
        within = [other for other in keys if other.startswith(f"{key}.")]
        if keys.count(key) > 1 or within:
            raise ConfigError.at(
                SECTION,
                f"{key} is swept twice{f' (by {within[0]} too)' if within else ''}; keep one of them",
            )
    if not keys and repeats == 1:
        raise ConfigError.at(SECTION, "sweeps over nothing; give lists below over, or repeats above 1")
    return axes, repeats


def _lists(given: object, where: str) -> dict[str, list[Any]]:
    """Return the lists of a mapping of dotted keys."""
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise ConfigError.at(where, "must be a mapping of keys such as privacy.epsilon to lists of values")
    for key, listed in given.items():
        if key.partition(".")[0] in _FIXED or not all(key.split(".")):
            raise ConfigError.at(where, f"{key} cannot be swept over; name a key such as privacy.epsilon")
        if not isinstance(listed, list) or not listed:
            raise ConfigError.at(
                f"{where}.{key}",
                f"must be a list of the values to sweep over, got {listed!r:.60}; a key with one value stands in its "
                "own section",
            )
        for at, value in enumerate(listed):
            if value in listed[:at]:
                raise ConfigError.at(
                    f"{where}.{key}",
                    f"holds {text_of(value)} twice; runs that differ in their noise alone are written repeats",
                )
    return given


def _check_seeds(configs: list[SweptConfig]) -> None:
    """Refuse repeats of one insecure seed, which would all be one run."""
    for swept in configs:
        promise = swept.config.privacy
        if swept.repeat > 1 and promise is not None and promise.insecure_noise_seed is not None:
            raise ConfigError.at(
                f"{SECTION}.repeats",
                "repeats of one privacy.insecure_noise_seed are one run; sweep over the seed instead",
            )
