"""Costs of a compiled program, read from its optimised HLO text: operations of the device and bytes that they move.

A device operation is an instruction that is launched on its own: a fusion, a copy, a call of a library. Instructions
that only name or group values are none. An operation in a loop counts as often as the loop goes round, and once where
that is not known beforehand; such a loop counts as a conditional. The dearest branch of a conditional counts. A loop or
a conditional in a named scope whose chance is given counts with it: so often the loop goes round, or the dearest branch
is taken and not the cheapest.

Bytes of an operation are those of its operands and of its result. An operand that is only gathered or sliced from
counts with what is taken of it, and a buffer that is updated in place with the update. This is what must pass between
memory (or the cache above it) and the cores; an operation that reads a value twice for itself counts it once.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

_WIDTHS = {"pred": 1, "token": 0, "u4": 1, "s4": 1, "bf16": 2, "c64": 8, "c128": 16}
_ARRAY = re.compile(r"([a-z]+\d*[a-z0-9]*)\[([\d,]*)\]")
_HEAD = re.compile(r"^(?:ENTRY )?%([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^  (ROOT )?%([\w.\-]+) = ")
_NAMES = re.compile(r"%([\w.\-]+)")
_BRANCHES = ("branch_computations", "true_computation", "false_computation")
_CALLED = re.compile(rf"(calls|body|condition|to_apply|{'|'.join(_BRANCHES)})=\{{?((?:%[\w.\-]+(?:, )?)+)\}}?")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_OP_NAME = re.compile(r'op_name="([^"]*)"')
#: Instructions that launch nothing.
_FREE = {
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier", "partition-id"),
    *("replica-id", "copy-done", "async-done", "while", "conditional", "call", "domain"),
}
#: Instructions that read of their first operand only what their result holds.
_TAKING = {"gather", "dynamic-slice", "slice"}


class Instruction(NamedTuple):
    """One instruction of a computation.

    Attributes:
        shape: of its result, as text.
        operands: names, in order.
        called: computations, by the role that they have for it.
        text: the whole line.
    """

    name: str
    shape: str
    opcode: str
    operands: list[str]
    called: dict[str, list[str]]
    text: str
    root: bool

    @property
    def bytes(self) -> int:
        """Bytes of its result."""
        return bytes_of(self.shape)

    @property
    def trips(self) -> int | None:
        """How often a loop goes round, or None where that is not known before it runs."""
        found = _TRIPS.search(self.text)
        return int(found[1]) if found else None

    @property
    def branches(self) -> list[str]:
        """Computations of which a conditional takes one."""
        return [name for role in _BRANCHES for name in self.called.get(role, [])]

    @property
    def op_name(self) -> str:
        """JAX's name for where it comes from."""
        found = _OP_NAME.search(self.text)
        return found[1] if found else ""

    @property
    def target(self) -> str:
        """Function that a custom call calls, or ''."""
        found = _TARGET.search(self.text)
        return found[1] if found else ""


class Cost(NamedTuple):
    """Device operations, bytes that they move, and conditionals."""

    operations: float = 0.0
    bytes: float = 0.0
    conditionals: float = 0.0

    def times(self, factor: float) -> Cost:
        """The cost of doing it so many times."""
        return Cost(*(factor * part for part in self))

    def plus(self, other: Cost) -> Cost:
        """The cost of both."""
        return Cost(*(a + b for a, b in zip(self, other, strict=True)))


def bytes_of(shape: str) -> int:
    """Return the bytes of an array or of a tuple of arrays, from its shape as text."""
    total = 0
    for kind, dims in _ARRAY.findall(shape):
        bits = re.search(r"\d+", kind)
        width = _WIDTHS[kind] if kind in _WIDTHS else int(bits[0]) // 8 if bits else 0
        total += width * math.prod(int(n) for n in dims.split(",") if n)
    return total


class Module:
    """A program's computations.

    Args:
        text: optimised HLO, as ``jax.stages.Compiled.as_text`` gives it.
        chances: of what hardly ever happens, by the named scope that it is in.
    """

    def __init__(self, text: str, chances: dict[str, float] | None = None) -> None:
        self._chances = chances or {}
        self.computations: dict[str, dict[str, Instruction]] = {}
        self.entry = ""
        current: dict[str, Instruction] = {}
        for line in text.splitlines():
            if head := _HEAD.match(line):
                current = self.computations[head[1]] = {}
                if line.startswith("ENTRY"):
                    self.entry = head[1]
            elif found := _INSTRUCTION.match(line):
                current[found[2]] = _instruction(found[2], bool(found[1]), line[found.end() :])

    def instructions(self) -> Iterator[Instruction]:
        """Yield every instruction, those within fusions too."""
        for computation in self.computations.values():
            yield from computation.values()

    def cost(self, computation: str) -> Cost:
        """Return what a computation costs, loops and branches included."""
        total = Cost()
        for each in self.computations[computation].values():
            total = total.plus(self._cost_of(each, computation))
        return total

    def _cost_of(self, each: Instruction, within: str) -> Cost:
        if each.opcode == "while":
            # A loop of known length asks nothing of the device before it goes round again.
            rounds = self.cost(each.called["body"][0])
            if each.trips is None:
                asked = self.cost(each.called["condition"][0]).plus(Cost(conditionals=1))
                return asked.plus(rounds.times(self._chance(each)))
            return rounds.times(each.trips)
        if each.opcode == "conditional":
            costs = sorted((self.cost(branch) for branch in each.branches), key=lambda cost: cost.bytes)
            chance = self._chance(each)
            return costs[-1].times(chance).plus(costs[0].times(1 - chance)).plus(Cost(conditionals=1))
        if each.opcode == "call":
            return self.cost(each.called["to_apply"][0])
        if each.opcode in _FREE:
            return Cost()
        return Cost(1, self.moved(each, within))

    def _chance(self, each: Instruction) -> float:
        """Return the chance of a loop or of a conditional by the scope that it is in itself, not by one around that."""
        scopes = each.op_name.split("/")
        return self._chances.get(scopes[-2], 1.0) if len(scopes) > 1 else 1.0

    def moved(self, each: Instruction, within: str) -> int:
        """Return the bytes that an operation of a computation reads and writes."""
        around = self.computations[within]
        if each.opcode == "fusion":
            return self._moved_by_fusion(self.computations[each.called["calls"][0]])
        read = [around[name].bytes for name in each.operands]
        if each.opcode in _TAKING:
            return 2 * each.bytes + sum(read[1:])
        if each.opcode == "dynamic-update-slice":
            return 2 * read[1] + sum(read[2:])
        return each.bytes + sum(read)

    def _moved_by_fusion(self, inside: dict[str, Instruction]) -> int:
        users: dict[str, list[Instruction]] = {name: [] for name in inside}
        for each in inside.values():
            for name in set(each.operands):
                users[name].append(each)
        total = 0
        updated = set()
        for each in inside.values():
            if each.opcode == "parameter":
                total += _read(each, users, updated)
        (root,) = (each for each in inside.values() if each.root)
        results = [inside[name] for name in root.operands] if root.opcode == "tuple" else [root]
        for result in results:
            while result.opcode == "bitcast":
                result = inside[result.operands[0]]
            if result.opcode == "dynamic-update-slice" and result.name in updated:
                total += inside[result.operands[1]].bytes
            else:
                total += result.bytes
        return total

    def loops(self, computation: str = "", rounds: int = 1) -> Iterator[tuple[Instruction, int]]:
        """Yield (a loop, how often its body runs in one run of the program), outer loops before inner ones."""
        for each in self.computations[computation or self.entry].values():
            if each.opcode == "while":
                inner = rounds * (each.trips or 1)
                yield each, inner
                yield from self.loops(each.called["body"][0], inner)
            elif each.opcode in ("conditional", "call"):
                for branch in (*each.branches, *each.called.get("to_apply", [])):
                    yield from self.loops(branch, rounds)

    def operations(self, computation: str) -> Counter[str]:
        """Return the names of the operations of one run of a computation and how often each comes, loops included."""
        found: Counter[str] = Counter()
        for each in self.computations[computation].values():
            if each.opcode == "while":
                for name, count in self.operations(each.called["body"][0]).items():
                    found[name] += count * (each.trips or 1)
            elif each.opcode == "call":
                found += self.operations(each.called["to_apply"][0])
            elif each.opcode not in _FREE:
                found[each.name] += 1
        return found


def _read(parameter: Instruction, users: dict[str, list[Instruction]], updated: set[str]) -> int:
    """Return the bytes that a fusion reads of a parameter; the updates that are made in its place go to ``updated``."""
    total = 0
    names = [parameter.name]
    while names:
        name = names.pop()
        for user in users[name]:
            if user.opcode == "bitcast":
                names.append(user.name)
            elif user.opcode in _TAKING and user.operands[0] == name:
                total += user.bytes
            elif user.opcode == "dynamic-update-slice" and user.operands[0] == name:
                updated.add(user.name)
            else:
                return parameter.bytes
    return min(total, parameter.bytes) if not _gathered(parameter, users) else total


def _gathered(parameter: Instruction, users: dict[str, list[Instruction]]) -> bool:
    """Whether a parameter is gathered from, so that its rows may be read more than once."""
    names = [parameter.name]
    while names:
        for user in users[names.pop()]:
            if user.opcode == "gather":
                return True
            if user.opcode == "bitcast":
                names.append(user.name)
    return False


def _instruction(name: str, root: bool, rest: str) -> Instruction:
    shape, rest = _balanced(rest) if rest.startswith("(") else rest.split(" ", 1)
    opcode, rest = rest.lstrip().split("(", 1)
    arguments, attributes = _balanced("(" + rest)
    operands = [] if opcode in ("parameter", "constant") else _NAMES.findall(arguments)
    called = {role: _NAMES.findall(names) for role, names in _CALLED.findall(attributes)}
    return Instruction(name, shape, opcode, operands, called, attributes, root)


def _balanced(text: str) -> tuple[str, str]:
    """Return (the text up to the parenthesis that closes its first one, the rest)."""
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[: at + 1], text[at + 1 :]
    raise ValueError(f"an instruction that does not end: {text[:100]}")
