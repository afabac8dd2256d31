"""Reads a YAML file into a :class:`~dpmcmc.config.Config`: overrides, and one sentence for whatever is wrong."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pydantic
import yaml
from pydantic import BaseModel

from dpmcmc.config import (
    MECHANISM_SECTIONS,
    SAMPLER_SECTIONS,
    TARGET_SECTIONS,
    Config,
    ConfigError,
    CustomConfig,
    FixedSizeConfig,
    FullConfig,
    PoissonConfig,
)
from dpmcmc.samplers import SAMPLERS, SCHEDULES
from dpmcmc.schema import SCHEDULE_SECTIONS
from dpmcmc.targets import TARGETS


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-6 is a number and a repeated key an error."""

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
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or "not valid YAML"
        line = _line(getattr(error, "problem_mark", None))
        raise ConfigError(f"{where}: {problem}{line}; mend the YAML there.") from None


def load(path: str | Path, overrides: list[str] | None = None) -> Config:
    """Read and validate a configuration.

    Args:
        path: YAML file.
        overrides: ``a.b=value`` strings, values in YAML, applied in order.

    Raises:
        ConfigError: one sentence naming the file and the YAML path.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such config file; give the path of a YAML file.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); give the path of a YAML text file.") from None
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
    return config.model_copy(
        update={"data": _with_base(config.data, "path", path.parent)}
        | ({} if config.privacy is None else {"privacy": _with_base(config.privacy, "ledger", path.parent)})
    )


def _with_base(section: Any, name: str, folder: Path) -> Any:
    """The section with its path ``name`` made absolute, which is relative to the config file's folder."""
    if getattr(section, name) is None:
        return section
    # joining keeps an absolute path as it is
    return section.model_copy(update={name: str(folder.resolve() / Path(getattr(section, name)).expanduser())})


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
        if following is None:
            following = place[part] = {}
        if not isinstance(following, dict):
            raise ConfigError(f"--set {override}: {part} is a value, not a section, in the config.")
        place = following
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
    return f"{path}: {text}{given}." + (f" ({more} more problem{'s' * (more > 1)} after this one.)" if more else "")


_NOTHING = object()


def _plain(error: Any, values: dict) -> tuple[list[str], str, Any]:
    """(YAML path, what is wrong, the offending value) of one pydantic error."""
    path = _yaml_path(error["loc"], values)
    kind, message = error["type"], re.sub(r"^(Value error|Assertion failed), ", "", error["msg"])
    message = message[0].lower() + message[1:]
    # What the whole config is refused for names its key first.
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
    return path, message, error.get("input")


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
