"""Reads a YAML file into a :class:`~dpmcmc.config.model.Config`, with overrides; imports nothing that it names."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

import pydantic

from dpmcmc.config.model import (
    CHOICES,
    OF_CHAINS,
    OF_SAMPLERS,
    ONE_SHOT,
    WHERE,
    Config,
    in_database,
    modules_of_ones_own,
)
from dpmcmc.config.refusals import ConfigError, invalid
from dpmcmc.config.sections import keys
from dpmcmc.config.shipped import find_config, list_shipped
from dpmcmc.config.yaml_reading import parse_yaml
from dpmcmc.data.tables import SUFFIXES
from dpmcmc.errors import meant
from dpmcmc.storage.files import open_text
from dpmcmc.storage.surroundings import written_beside

#: Most characters of a config file. One has a few hundred; a longer file is a data file or a device.
_MOST_CHARACTERS = 1_000_000


def foreign_modules(config: Config, allowed: Collection[str] = ()) -> tuple[str, ...]:
    """Return the modules outside this library that a config names and that are not allowed, each once."""
    modules = dict.fromkeys(name.partition(":")[0] for name in modules_of_ones_own(config).values())
    return tuple(name for name in modules if name.partition(".")[0] != "dpmcmc" and name not in allowed)


def lying(path: Path) -> str:
    """Return a clause on why a config may be somebody else's: it lies in a folder of ours; empty where it does not."""
    mark = written_beside(path)
    return "" if mark is None else f"lies in a folder that dpmcmc wrote, as {mark} shows"


def read_values(path: str | Path) -> tuple[dict, Path, Path]:
    """Return (values of a YAML file, its path, folder that its paths are relative to).

    Args:
        path: YAML file, or the name of a shipped config, whose paths are relative to the current folder.

    Raises:
        ConfigError: it cannot be read, or holds no mapping.
    """
    given = Path(path)
    path = find_config(path)
    if path.suffix.lower() in SUFFIXES:
        raise ConfigError(
            f"{path}: is a table, and a config is a YAML file; for intervals from it: dpmcmc schema {path} --out "
            f"schema.yaml, fill that in, then dpmcmc fit {path} schema.yaml 'label ~ a + b' --epsilon 1"
        )
    base = path.parent if path == given else Path.cwd()
    try:
        with open_text(path, encoding="utf-8-sig") as stream:
            text = stream.read(_MOST_CHARACTERS + 1)
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: there is no such config file{meant(path, list_shipped())}; give the path of a YAML file, or a "
            "name that dpmcmc configs lists."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path}: cannot be read ({reason}); give the path of a YAML text file.") from None
    if len(text) > _MOST_CHARACTERS:
        raise ConfigError(
            f"{path}: holds more than {_MOST_CHARACTERS} characters, so it is no config; give the path of a YAML file."
        )
    values = _mapping(text, str(path))
    return values, path, base.resolve()


def load(
    path: str | Path,
    overrides: Iterable[str] | None = None,
    *,
    allow_code: Collection[str] = (),
    resumed: bool = False,
    completed: Callable[[dict], dict] | None = None,
    note: Callable[[str], object] = lambda said: None,
) -> Config:
    """Read and validate a configuration; imports nothing that it names.

    Args:
        path: YAML file, or the name of a shipped config.
        overrides: ``a.b=value`` strings, values in YAML, applied in order.
        allow_code: modules outside this library that a config in a run folder may name. Run folders are passed on, so
            somebody else may have written the config.
        resumed: whether it lies in a run folder, whatever the folder holds.
        completed: function that adds the values which the file may leave out.
        note: takes a sentence for each override that takes other keys away.

    Raises:
        ConfigError: one sentence naming the file and the YAML path.
    """
    values, path, base = read_values(path)
    try:
        config = of_values(values, overrides, completed, note)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}", error.about) from None
    refuse_foreign_code(path, config, allow_code, IN_RUN if resumed else lying(path))
    return with_base(config, base)


def of_text(text: str, base: Path, where: str, allow_code: Collection[str] = ()) -> Config:
    """Return the config of a YAML that another process has sent; raises as :func:`load`.

    Args:
        text: the YAML.
        base: folder that its paths are relative to.
        where: names it in a refusal.
        allow_code: as of :func:`load`, of a config in a run folder.
    """
    config = of_values(_mapping(text, where))
    refuse_foreign_code(where, config, allow_code, IN_RUN)
    return with_base(config, base)


def _mapping(text: str, where: str) -> dict:
    values = parse_yaml(text, where)
    if not isinstance(values, dict):
        raise ConfigError(
            f"{where}: a config is a mapping with the keys {', '.join(Config.model_fields)}; this file holds "
            f"{'nothing' if values is None else type(values).__name__}."
        )
    return values


def of_values(
    values: dict,
    overrides: Iterable[str] | None = None,
    completed: Callable[[dict], dict] | None = None,
    note: Callable[[str], object] = lambda said: None,
) -> Config:
    """Return the validated config of a YAML's values, which overrides change in place; raises as :func:`load`."""
    override_values(values, overrides, note)
    values = values if completed is None else completed(values)
    try:
        config = Config.model_validate(values)
    except pydantic.ValidationError as error:
        raise invalid(error, values) from None
    config.check()
    return config


#: Why the config of a run folder may be somebody else's.
IN_RUN = "lies in a run folder"


def refuse_foreign_code(path: Path | str, config: Config, allowed: Collection[str], why: str) -> None:
    """Refuse modules that a config names which may be somebody else's, unless the user has allowed them.

    Args:
        path: names the config.
        config: that was read.
        allowed: modules.
        why: clause on why it may be somebody else's; empty where it may not, and then nothing is refused.
    """
    modules = foreign_modules(config, allowed)
    if modules and why:
        options = " ".join(f"--allow-code {module}" for module in modules)
        raise ConfigError(
            f"{path}: names code outside this library ({', '.join(modules)}), and {why}, so it may come from somebody "
            f"else; read that code, then run it with {options}."
        )


def with_base(config: Config, folder: Path) -> Config:
    """The config with its paths made absolute, which are relative to its file's folder."""
    update = {}
    for (name, section), key in zip(config.sections("data", "privacy").items(), ("path", "ledger"), strict=True):
        path = None if section is None else dict(section).get(key)
        if section is not None and path is not None and not in_database(key, path):
            if "\0" in path:
                raise ConfigError(f"{name}.{key}: {path!r} holds NUL, which no file's name can; name a file.")
            # joining keeps an absolute path as it is
            update[name] = section.model_copy(update={key: str(folder / os.path.expanduser(path))})
    return config.model_copy(update=update)


def override_values(values: dict, overrides: Iterable[str] | None, note: Callable[[str], object]) -> None:
    """Set the key of each ``a.b=value``, and note the keys of an old choice that one takes away."""
    for override in overrides or ():
        given, equals, text = override.partition("=")
        key = given.strip()
        if not equals or not all(key.split(".")):
            raise ConfigError(
                f"--set {override}: write --set section.key=value, for example --set privacy.epsilon=0.5."
            )
        if not text.strip():
            raise ConfigError(f"--set {override}: give a value; null is written {key}=null.")
        dropped = assign(values, key, parse_yaml(text, f"--set {key}"), f"--set {override}")
        if dropped:
            note(f"--set {override} takes {', '.join(dropped)} away")


def assign(values: dict, key: str, value: object, said: str) -> list[str]:
    """Set a key, ``a.b``, to a value; return the keys of the old choice that it takes away.

    Args:
        values: of a YAML, changed in place.
        key: dotted.
        value: of it.
        said: begins the error of a key that lies in no section.
    """
    parts = key.split(".")
    place = values
    for part in parts[:-1]:
        following = place.get(part)
        if not isinstance(following, dict | None):
            raise ConfigError(f"{said}: {part} is a value, not a section, in the config; name one of its sections.")
        # A copy: sections that share an alias are changed one by one.
        place[part] = dict(following or {})
        place = place[part]
    before = place.get(parts[-1])
    place[parts[-1]] = value
    return [] if value == before else _without_the_old_choice(values, parts)


def _without_the_old_choice(values: dict, parts: list[str]) -> list[str]:
    """Take away the keys that belong to what an override has just replaced; return their paths."""
    dropped = []
    section = values[parts[0]]
    name = section.get("name") if isinstance(section, dict) else None
    if parts[0] == "mechanism" and name in ONE_SHOT and name != "hybrid":
        _keep(values, "run", WHERE.__contains__)
        where = values.get("run")
        dropped = [key for key in OF_CHAINS if values.pop(key, None) is not None]
        if where:
            values["run"] = where
        dropped += _keep(values, "privacy", lambda key: key not in OF_SAMPLERS)
    tag, known = CHOICES.get(parts[0], ("", {}))
    if parts[1:] == [tag] and section[tag] in known:
        allowed = {tag, *(one.name for one in keys(known[section[tag]]))}
        dropped += _keep(values, parts[0], allowed.__contains__)
    return dropped


def _keep(values: dict, section: str, allowed: Callable[[str], bool]) -> list[str]:
    """Take away the keys of a section that are not allowed; return their paths."""
    given = values.get(section) or {}
    if given:
        values[section] = {key: one for key, one in given.items() if allowed(key)}
    return [f"{section}.{key}" for key in given if not allowed(key)]
