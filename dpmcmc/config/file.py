"""Reads a YAML file into a :class:`~dpmcmc.config.Config`: overrides, and one sentence for whatever is wrong."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pydantic
import yaml
from pydantic import BaseModel

from dpmcmc.config import own_code
from dpmcmc.config.model import (
    MECHANISM_SECTIONS,
    SAMPLER_SECTIONS,
    TARGET_SECTIONS,
    Config,
    ConfigError,
    CustomConfig,
    FixedSizeConfig,
    FullConfig,
    PoissonConfig,
    modules_of_ones_own,
)
from dpmcmc.config.sections import SCHEDULE_SECTIONS
from dpmcmc.config.shipped import located, shipped
from dpmcmc.samplers import SAMPLERS, SCHEDULES
from dpmcmc.storage.regular_file import opened_text
from dpmcmc.targets import TARGETS

#: A config file has a few hundred characters; what is longer is something else (a data file, a device).
_MOST_CHARACTERS = 1_000_000
#: Values of a config once its aliases are written out; a few lines of YAML can stand for more than memory holds.
_MOST_VALUES = 1_000_000


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-6 is a number and a repeated key an error."""

    def get_single_node(self) -> yaml.Node | None:
        """The document, where it is of a size that can be looked at."""
        node = super().get_single_node()
        if node is not None and _num_values(node, {}) > _MOST_VALUES:
            raise ConfigError(
                f"its aliases stand for more than {_MOST_VALUES} values, or for themselves; leave them out."
            )
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Refuse a text that is not of its type (``!!int x``, the 45th of a month) with its line."""
        try:
            return super().construct_object(node, deep)
        except (ConfigError, yaml.YAMLError, RecursionError):
            raise
        except Exception:  # each type's reader raises what it happens to meet
            kind = node.tag.rpartition(":")[2]
            raise ConfigError(f"{node.value!r:.40} is no {kind}{_line(node.start_mark)}; mend or quote it.") from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        """Refuse a key that is given twice: YAML would silently keep the last."""
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise ConfigError(f"key {key!r} is not text{_line(key_node.start_mark)}; keys are names.")
            if key in seen:
                raise ConfigError(f"key {key!r} is given twice{_line(key_node.start_mark)}; keep one of them.")
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)$"),
    list("-+.0123456789"),
)


def _num_values(node: yaml.Node, known: dict[int, float]) -> float:
    """Values that a node stands for, each alias counted as often as it is used; infinite where it holds itself."""
    if id(node) not in known:
        known[id(node)] = math.inf
        held = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
        parts = () if isinstance(node, yaml.ScalarNode) else held
        known[id(node)] = 1 + sum(_num_values(part, known) for part in parts)
    return known[id(node)]


def _line(mark: Any) -> str:
    return f" in line {mark.line + 1}" if mark is not None else ""


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML; a syntax error becomes one sentence.

    Raises:
        ConfigError: not YAML.
    """
    try:
        return yaml.load(text, _Loader)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    except yaml.reader.ReaderError as error:
        number = text.count("\n", 0, error.position) + 1
        raise ConfigError(
            f"{where}: line {number} holds character number {error.character}, which YAML does not allow; take it out."
        ) from None
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or "not valid YAML"
        line = _line(getattr(error, "problem_mark", None))
        raise ConfigError(f"{where}: {problem}{line}; mend the YAML there.") from None
    except RecursionError:
        raise ConfigError(f"{where}: values are nested too deeply; a config has at most a few levels.") from None


def load(
    path: str | Path,
    overrides: list[str] | None = None,
    *,
    allow_code: Collection[str] = (),
    resumed: bool = False,
) -> Config:
    """Read and validate a configuration; imports nothing that it names.

    Args:
        path: YAML file, or the name of a shipped config.
        overrides: ``a.b=value`` strings, values in YAML, applied in order.
        allow_code: modules outside this library that a config in a run folder may name. Run folders are made to be
            passed on, so a config in one may be somebody else's.
        resumed: whether it lies in a run folder, whatever the folder holds.

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
    for override in overrides or []:
        _apply(values, override)
    try:
        config = Config.model_validate(values)
    except pydantic.ValidationError as error:
        raise ConfigError(f"{path}: {_sentence(error, values)}") from None
    if resumed or own_code.in_run_folder(path):
        _refuse_foreign_code(path, config, allow_code)
    return config.model_copy(
        update={"data": _with_base(config.data, "path", base)}
        | ({} if config.privacy is None else {"privacy": _with_base(config.privacy, "ledger", base)})
    )


def _refuse_foreign_code(path: Path, config: Config, allowed: Collection[str]) -> None:
    """Refuse what a config in a run folder would import, unless the user has named it."""
    modules = dict.fromkeys(module for _, module in own_code.foreign(modules_of_ones_own(config), allowed))
    if modules:
        options = " ".join(f"--allow-code {module}" for module in modules)
        raise ConfigError(
            f"{path}: names code outside this library ({', '.join(modules)}), and lies in a run folder, which may come "
            f"from somebody else; read that code, then run it with {options}."
        )


def _with_base(section: Any, name: str, folder: Path) -> Any:
    """The section with its path ``name`` made absolute, which is relative to the config file's folder."""
    if getattr(section, name) is None:
        return section
    # joining keeps an absolute path as it is
    return section.model_copy(update={name: str(folder.resolve() / os.path.expanduser(getattr(section, name)))})


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


#: Models by the name a union knows them under; such names stand in pydantic's locations but not in the YAML.
_MODELS: dict[str, type[BaseModel]] = {
    **TARGET_SECTIONS,
    **SAMPLER_SECTIONS,
    **SCHEDULE_SECTIONS,
    **MECHANISM_SECTIONS,
    "custom": CustomConfig,
    "poisson": PoissonConfig,
    "fixed_size": FixedSizeConfig,
    "full": FullConfig,
}


#: Keys whose section is one of several.
_CHOICES = ("target", "sampler", "sampling", "mechanism")


def _sentence(error: pydantic.ValidationError, values: dict) -> str:
    """The most telling of pydantic's errors as one sentence with its YAML path."""
    errors = [_plain(e, values) for e in error.errors(include_url=False)]
    # Alternatives of one value (a number, auto, a schedule) report one error each; a mapping means the schedule.
    best = max(errors, key=lambda e: len(e[0]))
    first = best if errors[0][0] == best[0][: len(errors[0][0])] else errors[0]
    path, text = ".".join(first[0]) or "the file", first[1]
    text = text.replace("dictionary or object to extract fields from", "mapping with a schedule")
    same = [e[1] for e in errors if e[0] == first[0] and e[1] != text]
    if same and "unknown key" not in text:
        text = " or ".join(dict.fromkeys([text, *same]))
    text = text.replace("dictionary or object to extract fields from", "mapping with a schedule")
    given = "" if first[2] is _NOTHING else f", got {first[2]!r}"
    more = len({tuple(e[0]) for e in errors if e[0][: len(first[0])] != first[0] and first[0][: len(e[0])] != e[0]})
    return f"{path}: {text}{given}" + (f" ({more} more problem{'s' * (more > 1)} after this one)" if more else "") + "."


_NOTHING = object()


def _plain(error: Any, values: dict) -> tuple[list[str], str, Any]:
    """(YAML path, what is wrong, the offending value) of one pydantic error."""
    path = _yaml_path(error["loc"], values)
    kind, message = error["type"], re.sub(r"^(Value error|Assertion failed), ", "", error["msg"])
    message = message[0].lower() + message[1:]
    # A refusal of the whole config names its key first.
    named = re.match(r"([\w.]+): ", message)
    if not path and named:
        return named.group(1).split("."), message[named.end() :], _NOTHING
    if kind == "extra_forbidden":
        known = _known_keys(error["loc"])
        return path, "unknown key" + (f"; known keys: {', '.join(known)}" if known else ""), _NOTHING
    if kind == "missing":
        return path, "this key is required", _NOTHING
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        if path[-1:] == ["step_size"]:
            return (
                path,
                f"a mapping whose schedule is {', '.join(SCHEDULES)}",
                error["input"],
            )
        field = "scheme" if path == ["sampling"] else "name"
        section = values.get(path[0]) if path else None
        given = section.get(field, _NOTHING) if isinstance(section, dict) else section
        registered = {"target": ", ".join(TARGETS), "sampler": ", ".join(SAMPLERS)}
        if path[:1] == ["mechanism"]:
            return [*path, field], f"must be one of {', '.join(MECHANISM_SECTIONS)}", given
        names = (
            f"{registered[path[0]]} or your own module:attribute"
            if path[0] in registered
            else "poisson, fixed_size, full"
        )
        return [*path, field], f"must be one of {names}", given
    # A refusal of a whole section says it all.
    return path, message, _NOTHING if kind == "value_error" and isinstance(error["input"], dict) else error["input"]


def _yaml_path(loc: tuple, values: dict) -> list[str]:
    """pydantic's location without the names of union alternatives."""
    out: list[str] = []
    place: Any = values
    for before, part in zip(("", *loc), loc, strict=False):
        # A union's alternatives stand in pydantic's location by their tag, or by their type.
        tag = part in _MODELS and (before in _CHOICES or str(before).startswith("tagged-"))
        kind = str(part).startswith(("constrained-", "literal[", "tagged-union[", "list[")) or (
            part in ("float", "int", "str", "bool") and not (isinstance(place, dict) and part in place)
        )
        if tag or kind:
            continue
        out.append(str(part))
        place = place.get(part) if isinstance(place, dict) else None
    return out


def _known_keys(loc: tuple) -> list[str]:
    """Keys allowed beside the unknown one."""
    model: Any = Config
    for part in loc[:-1]:
        if part in _MODELS:
            model = _MODELS[part]
            continue
        field = model.model_fields.get(part)
        annotation = getattr(field, "annotation", None)
        for candidate in getattr(annotation, "__args__", (annotation,)):
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                model = candidate
                break
    return list(model.model_fields)
