"""YAML as a config is written in it: 1e-6 is a number, a repeated key an error, and whatever is wrong one sentence."""

from __future__ import annotations

import math
import re

import yaml

from dpmcmc.config.refusals import ConfigError

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

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
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
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or "not valid YAML"
        line = _line(getattr(error, "problem_mark", None))
        raise ConfigError(f"{where}: {problem}{line}; mend the YAML there.") from None
    except RecursionError:
        raise ConfigError(f"{where}: values are nested too deeply; a config has at most a few levels.") from None
