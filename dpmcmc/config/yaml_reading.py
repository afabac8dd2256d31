"""YAML of configs, read: 1e-6 is a number, a repeated key is an error, and every error is one sentence.

YAML 1.1 reads some texts as other values than they say (``no``, ``01234``, ``10:30``, ``2001-02-03``); these are
refused. The keys of a config are not known here (``model.py``).
"""

from __future__ import annotations

import math
import re

import yaml

from dpmcmc.config.refusals import ConfigError
from dpmcmc.config.yaml_writing import EXPONENT
from dpmcmc.errors import shown

#: Values of a config once its aliases are written out; a few lines of YAML can stand for more than memory holds.
_MOST_VALUES = 1_000_000


_MERGE = "tag:yaml.org,2002:merge"
#: Tag of a scalar that is no text -> what YAML reads it as.
_READ_AS = {
    _MERGE: "a sign",
    "tag:yaml.org,2002:value": "a sign",
    "tag:yaml.org,2002:null": "a missing value",
    "tag:yaml.org,2002:timestamp": "a date",
    "tag:yaml.org,2002:bool": "the truth value ",
    "tag:yaml.org,2002:int": "the number ",
    "tag:yaml.org,2002:float": "the number ",
}
#: Texts without quotes that say their value: those that JSON has too, and further ways to write a decimal number.
_SAYS_ITS_VALUE = re.compile(
    r"|~|null|Null|NULL|true|True|TRUE|false|False|FALSE|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
    r"|[-+]?((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][-+]?\d+)?"
)


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-6 is a number and a repeated key an error."""

    def get_single_node(self) -> yaml.Node | None:
        """Return the document; refuse one whose aliases stand for too many values."""
        node = super().get_single_node()
        if node is not None and _num_values(node, {}) > _MOST_VALUES:
            raise ConfigError(
                f"its aliases stand for more than {_MOST_VALUES} values, or for themselves; leave them out."
            )
        if node is not None:
            self._check_scalars(node, "", set())
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        """Return a scalar's value; refuse, with its line, a text that is not of its type (``!!int x``, the 45th of a
        month)."""
        try:
            return super().construct_object(node, deep)
        except (ConfigError, yaml.YAMLError, RecursionError):
            raise
        except Exception:  # readers of types raise errors of many kinds
            kind = node.tag.rpartition(":")[2]
            raise ConfigError(f"{node.value!r:.40} is no {kind}{_line(node.start_mark)}; mend or quote it.") from None

    def _check_scalars(self, node: yaml.Node, key: str, known: set) -> None:
        """Refuse scalars without quotes that YAML reads as another value than they say.

        Args:
            node: with all that is in it.
            key: nearest one above it.
            known: nodes that were checked, each with its key.
        """
        if (id(node), key) in known:
            return
        known.add((id(node), key))
        if isinstance(node, yaml.MappingNode):
            for key_node, value_node in node.value:
                if key_node.tag != _MERGE:
                    self._check_scalars(key_node, key, known)
                self._check_scalars(value_node, str(key_node.value), known)
        elif isinstance(node, yaml.SequenceNode):
            for part in node.value:
                self._check_scalars(part, key, known)
        elif node.tag == self.resolve(yaml.ScalarNode, node.value, (True, False)):
            self._check_scalar(node, key)

    def _check_scalar(self, node: yaml.Node, key: str) -> None:
        """Refuse such a scalar; below ``levels`` also one that is written otherwise than its level is named."""
        said = _READ_AS.get(node.tag, "")
        text = ""
        if said.startswith("the"):
            value = self.construct_object(node)
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            text = shown(value).lower()
        # PyYAML writes 1e-07 as 1.0e-07.
        named = key != "levels" or text in (
            "true",
            "false",
            node.value.replace(".0e", "e"),
        )
        if said and not (named and _SAYS_ITS_VALUE.fullmatch(node.value)):
            where = f"below {key!r:.40}, " if key else ""
            instead = f", or write {text}" if text else ""
            raise ConfigError(
                f"{where}{node.value!r:.40} is {said}{text} in YAML{_line(node.start_mark)}; quote it{instead}."
            )

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        """Refuse a key that is given twice: YAML would silently keep the last."""
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise ConfigError(f"key {key!r} is not text{_line(key_node.start_mark)}; keys are names: quote it.")
            if key in seen:
                raise ConfigError(f"key {key!r} is given twice{_line(key_node.start_mark)}; keep one of them.")
            seen.add(key)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(*EXPONENT)


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
