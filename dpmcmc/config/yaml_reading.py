"""YAML of configs, read: 1e-6 is a number, a repeated key is an error, and every error is one sentence.

A text without quotes is what it says. YAML 1.1 would read ``no``, ``01234``, ``10:30`` and ``2001-02-03`` as other
values. The keys of a config are not known here (``model.py``).
"""

from __future__ import annotations

import math

import yaml

from dpmcmc.config.refusals import ConfigError
from dpmcmc.config.yaml_writing import RESOLVERS
from dpmcmc.errors import shown

#: Values of a config once its aliases are written out; a few lines of YAML can stand for more than memory holds.
_MOST_VALUES = 1_000_000
_MERGE = "tag:yaml.org,2002:merge"


class _Loader(yaml.SafeLoader):
    """YAML whose texts are what they say, and in which a repeated key is an error."""

    yaml_implicit_resolvers: dict = {}  # noqa: RUF012  # none of YAML 1.1

    def get_single_node(self) -> yaml.Node | None:
        """Return the document; refuse one whose aliases stand for too many values."""
        node = super().get_single_node()
        if node is not None and _num_values(node, {}) > _MOST_VALUES:
            raise ConfigError(
                f"its aliases stand for more than {_MOST_VALUES} values, or for themselves; leave them out."
            )
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        """Return a scalar's value; refuse, with its line, a text that is not of its type (``!!int x``)."""
        try:
            return super().construct_object(node, deep)
        except (ConfigError, yaml.YAMLError, RecursionError):
            raise
        except Exception:  # readers of types raise errors of many kinds
            kind = node.tag.rpartition(":")[2]
            raise ConfigError(f"{node.value!r:.40} is no {kind}{_line(node.start_mark)}; mend or quote it.") from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        """Refuse a key that is given twice, of which YAML would silently keep the last, and a level by two names."""
        seen = set()
        for key_node, value_node in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise ConfigError(f"key {key!r} is not text{_line(key_node.start_mark)}; keys are names: quote it.")
            if key in seen:
                raise ConfigError(f"key {key!r} is given twice{_line(key_node.start_mark)}; keep one of them.")
            seen.add(key)
            for level in value_node.value if key == "levels" else ():
                self._check_level(level)
        return super().construct_mapping(node, deep)

    def _check_level(self, node: object) -> None:
        """Refuse a level that is written otherwise than the number or truth value that it stands for is named."""
        if not isinstance(node, yaml.ScalarNode):
            return
        value = self.construct_object(node)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        text = "" if value is None else shown(value).lower()
        # PyYAML writes 1e-07 as 1.0e-07.
        if isinstance(value, str | bool) or text == node.value.replace(".0e", "e"):
            return
        meaning = f"the number {text}" if text else "a missing value"
        raise ConfigError(f"below 'levels', {node.value!r:.40} is {meaning}{_line(node.start_mark)}; quote it.")


for _resolver in RESOLVERS:
    _Loader.add_implicit_resolver(*_resolver)


def _num_values(node: yaml.Node, known: dict[int, float]) -> float:
    """Return the number of values in a node, with aliases written out; infinite where a node contains itself."""
    if id(node) not in known:
        known[id(node)] = math.inf
        if isinstance(node, yaml.ScalarNode):
            parts = []
        elif isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        else:
            parts = node.value
        known[id(node)] = 1 + sum(_num_values(part, known) for part in parts)
    return known[id(node)]


def _line(mark: yaml.Mark | None) -> str:
    return f" in line {mark.line + 1}" if mark is not None else ""


def parse_yaml(text: str, where: str) -> object:
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
    except yaml.MarkedYAMLError as error:
        problem = error.problem or "not valid YAML"
        raise ConfigError(f"{where}: {problem}{_line(error.problem_mark)}; mend the YAML there.") from None
    except yaml.YAMLError:
        raise ConfigError(f"{where}: not valid YAML; mend it.") from None
    except RecursionError:
        raise ConfigError(f"{where}: values are nested too deeply; a config has at most a few levels.") from None
