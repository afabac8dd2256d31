"""Reads a YAML file into a :class:`~dpmcmc.config.model.Config`, with overrides; imports nothing that it names."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path

import pydantic

from dpmcmc.config import own_code
from dpmcmc.config.model import Config, modules_of_ones_own
from dpmcmc.config.refusals import ConfigError, invalid
from dpmcmc.config.shipped import located, shipped
from dpmcmc.config.yaml_text import parse_yaml
from dpmcmc.storage.regular_file import opened_text

#: A config file has a few hundred characters; a longer one is something else (a data file, a device).
_MOST_CHARACTERS = 1_000_000


def load(
    path: str | Path,
    overrides: list[str] | None = None,
    *,
    allow_code: Collection[str] = (),
    resumed: bool = False,
    completed: Callable[[dict], dict] | None = None,
) -> Config:
    """Read and validate a configuration; imports nothing that it names.

    Args:
        path: YAML file, or the name of a shipped config.
        overrides: ``a.b=value`` strings, values in YAML, applied in order.
        allow_code: modules outside this library that a config in a run folder may name. Run folders are made to be
            passed on, so a config in one may be somebody else's.
        resumed: whether it lies in a run folder, whatever the folder holds.
        completed: returns the values with those that the file may leave out.

    Raises:
        ConfigError: one sentence naming the file and the YAML path.
    """
    given, path = Path(path), located(path)
    # Files that a shipped config reads lie where the user is, not inside the package.
    base = path.parent if path == given else Path.cwd()
    try:
        with opened_text(path, encoding="utf-8-sig") as stream:
            text = stream.read(_MOST_CHARACTERS + 1)
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: there is no such config file; give the path of a YAML file, or one of {', '.join(shipped())}."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path}: cannot be read ({reason}); give the path of a YAML text file.") from None
    if len(text) > _MOST_CHARACTERS:
        raise ConfigError(
            f"{path}: holds more than {_MOST_CHARACTERS} characters, so it is no config; give the path of a YAML file."
        )
    values = parse_yaml(text, str(path))
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path}: a config is a mapping with the keys {', '.join(Config.model_fields)}; this file holds "
            f"{'nothing' if values is None else type(values).__name__}."
        )
    try:
        config = of_values(values, overrides, completed)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}", error.about) from None
    if resumed or own_code.in_run_folder(path):
        _refuse_foreign_code(path, config, allow_code)
    return _with_base(config, base.resolve())


def of_values(
    values: dict, overrides: list[str] | None = None, completed: Callable[[dict], dict] | None = None
) -> Config:
    """Return the validated config of a YAML's values, which overrides change in place; raises as :func:`load`."""
    for override in overrides or []:
        _apply(values, override)
    values = values if completed is None else completed(values)
    try:
        config = Config.model_validate(values)
    except pydantic.ValidationError as error:
        raise invalid(error, values) from None
    config.check()
    return config


def _refuse_foreign_code(path: Path, config: Config, allowed: Collection[str]) -> None:
    """Refuse what a config in a run folder would import, unless the user has named it."""
    modules = dict.fromkeys(module for _, module in own_code.foreign(modules_of_ones_own(config), allowed))
    if modules:
        options = " ".join(f"--allow-code {module}" for module in modules)
        raise ConfigError(
            f"{path}: names code outside this library ({', '.join(modules)}), and lies in a run folder, which may come "
            f"from somebody else; read that code, then run it with {options}."
        )


def _with_base(config: Config, folder: Path) -> Config:
    """The config with its paths made absolute, which are relative to its file's folder."""
    update = {}
    for (name, section), key in zip(config.sections("data", "privacy").items(), ("path", "ledger"), strict=True):
        path = getattr(section, key, None)
        if section is not None and path is not None:
            # joining keeps an absolute path as it is
            update[name] = section.model_copy(update={key: str(folder / os.path.expanduser(path))})
    return config.model_copy(update=update)


def _apply(values: dict, override: str) -> None:
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"--set {override}: write --set section.key=value, for example --set privacy.epsilon=0.5.")
    if not text.strip():
        raise ConfigError(f"--set {override}: give a value; null is written {key.strip()}=null.")
    value = parse_yaml(text, f"--set {key.strip()}")
    place = values
    for part in parts[:-1]:
        following = place.get(part)
        if not isinstance(following, dict | None):
            raise ConfigError(
                f"--set {override}: {part} is a value, not a section, in the config; name one of its sections."
            )
        # A copy: sections that share an alias are changed one by one.
        place[part] = dict(following or {})
        place = place[part]
    place[parts[-1]] = value
