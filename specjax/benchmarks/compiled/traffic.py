"""Bytes between HBM and the cores, by reading a compiled program without loops, instruction by instruction.

The compiler's own figure ("bytes accessed") also counts what moves inside the chip: a weight that is read ahead into
on-chip memory counts when it is written there too.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

_LINE = re.compile(r"^\s*(?:ROOT )?%?(?P<name>[\w.-]+) = (?P<kind>.*?) (?P<op>[a-z][a-z0-9-]*)\((?P<rest>.*)$")
_ARRAY = re.compile(r"([a-z]+\d*)\[([\d,]*)\](\{[^}]*\})?")
_NAME = re.compile(r"%([\w.-]+)")
BITS = {"pred": 8, "token": 0}
FREE = ("parameter", "constant", "bitcast", "tuple", "get-tuple-element", "after-all", "partition-id", "iota")
"""These move nothing."""
PARTS = ("dynamic-slice", "slice", "gather")
"""These read no more of their first operand than they give."""
UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
"""These write no more into their first operand, in place, than the operand of this number."""


class Instruction(NamedTuple):
    """One line.

    Attributes:
      op: what it does.
      sizes: bytes of each array of its result, 0 for those in on-chip memory.
      smallest: bytes of the smallest array of its result, wherever it stands, without counters.
      operands: names.
      calls: name of the computation that it runs, if it is a fusion.
      number: of a parameter.
    """

    op: str
    sizes: list[int]
    smallest: int
    operands: list[str]
    calls: str | None
    number: int


Computation = dict[str, Instruction]


def hbm_bytes(text: str) -> float:
    """Bytes read from HBM and written to it by the entry computation of a compiled program."""
    computations, entry = _parse(text)
    return sum(_moved(one, computations[entry], computations) for one in computations[entry].values())


def _moved(one: Instruction, here: Computation, computations: dict[str, Computation]) -> float:
    """Bytes that an instruction of the entry moves."""
    if one.op in FREE or one.op.endswith("-done") or one.op in ("call", "conditional", "while"):
        return 0
    sources = [here[name].sizes[0] if name in here and here[name].sizes else 0 for name in one.operands]
    if one.op.startswith(("copy-start", "slice-start")):  # the whole source stands in the result too
        ends = [sources[0], one.sizes[0] if one.op == "copy-start" else one.sizes[1]]
        return sum(min(one.smallest, end) for end in ends)
    if one.calls is None:
        return _by_itself(one, sources)
    inside = computations[one.calls]
    read = sum(min(size, _read(inside, index)) for index, size in enumerate(sources))
    return read + sum(min(size, _written(inside, size)) for size in one.sizes)


def _by_itself(one: Instruction, sources: list[int]) -> float:
    if one.op in PARTS:
        return 2 * sum(one.sizes) if sources and sources[0] else sum(one.sizes)
    if one.op in UPDATES:
        return 2 * sources[UPDATES[one.op]]
    return sum(sources) + sum(one.sizes)


def _read(inside: Computation, index: int) -> float:
    """The most that a fusion reads of its parameter: all, or what its slices take."""
    (name,) = [name for name, one in inside.items() if one.op == "parameter" and one.number == index]
    users = _users(inside, name)
    total = 0
    for user, one in users:
        first = one.operands and one.operands[0] in _aliases(inside, name)
        if one.op in PARTS and first:
            total += sum(inside[user].sizes)
        elif one.op in UPDATES and first:
            total += 0
        else:
            return math.inf
    return total


def _written(inside: Computation, size: int) -> float:
    """The most that a fusion writes of a result: all, or the update where it gives back an array it got."""
    updates = [inside[one.operands[UPDATES[one.op]]].sizes[0] for one in inside.values()
               if one.op in UPDATES and sum(one.sizes) == size]
    return sum(updates) if updates else math.inf


def _aliases(inside: Computation, name: str) -> set[str]:
    same = {name}
    for other, one in inside.items():
        if one.op == "bitcast" and set(one.operands) & same:
            same.add(other)
    return same


def _users(inside: Computation, name: str) -> list[tuple[str, Instruction]]:
    same = _aliases(inside, name)
    return [(other, one) for other, one in inside.items() if set(one.operands) & same and other not in same]


def _parse(text: str) -> tuple[dict[str, Computation], str]:
    computations: dict[str, Computation] = {}
    entry, current = "", {}
    for line in text.splitlines():
        if line.endswith("{") and "->" in line:
            name = _NAME.search(line)
            current = computations.setdefault(name[1] if name else "", {})
            entry = name[1] if name and line.startswith("ENTRY") else entry
        elif match := _LINE.match(line):
            current[match["name"]] = _instruction(match["op"], match["kind"], match["rest"])
    return computations, entry


def _instruction(op: str, kind: str, rest: str) -> Instruction:
    arrays = _ARRAY.findall(kind)
    everywhere = [_size(array[0], array[1], "") for array in arrays]
    calls, digits = re.search(r"calls=%([\w.-]+)", rest), re.match(r"\d+", rest)
    return Instruction(
        op, [_size(*array) for array in arrays], min((size for size in everywhere if size > 4), default=0),
        _NAME.findall(rest.split("), ")[0]), calls[1] if calls else None, int(digits[0]) if digits else -1)


def _size(kind: str, sizes: str, layout: str) -> int:
    """Bytes of an array in HBM; 0 of one in another memory."""
    if "S(" in layout:
        return 0
    bits = BITS.get(kind) if kind in BITS else int(re.sub(r"\D", "", kind) or 0)
    return math.prod(int(size) for size in sizes.split(",") if size) * (bits or 0) // 8
