"""What a compiled program says of itself: memory, bytes, operations, and how its devices speak to each other."""

from __future__ import annotations

import collections
import math
import re
from typing import Any, NamedTuple

import jax

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?[\w.-]+ = (.*?) ([a-z][a-z-]*?)(?:-start)?\(")
_SHAPE = re.compile(r"([a-z]+\d+|pred)\[([\d,]*)\]")
_LAID_OUT = re.compile(r"(?:[a-z]+\d+|pred)\[[\d,]*\](?:\{[^}]*\})?")
_BITS = {"pred": 8, "bf16": 16, "s4": 4, "u4": 4}


class Instruction(NamedTuple):
    """A line of a compiled program.

    Attributes:
      op: such as `all-reduce`; asynchronous pairs count once.
      num_bytes: of its largest array on one device.
      line: as it stands there.
      once: whether it is run once, outside every loop.
    """

    op: str
    num_bytes: int
    line: str
    once: bool


class Figures(NamedTuple):
    """Of one device.

    Attributes:
      arguments: bytes of what comes in, weights and donated state.
      outputs: bytes of what goes out, without what stands where an argument stood.
      aliased: bytes of the arguments that are written in place.
      temporary: bytes in between.
      code: bytes of the program.
      accessed: bytes that all instructions read and write, on the chip too (see `traffic`); of a loop, one turn.
      flops: of all instructions; of a loop, one turn.
    """

    arguments: int
    outputs: int
    aliased: int
    temporary: int
    code: int
    accessed: float
    flops: float

    @property
    def peak(self) -> int:
        """Bytes that must be there together."""
        return self.arguments + self.outputs + self.temporary + self.code


def figures(compiled: Any) -> Figures:
    """Of a compiled program (`jax.stages.Compiled`)."""
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis()
    cost = cost[0] if isinstance(cost, list) else cost
    return Figures(
        memory.argument_size_in_bytes, memory.output_size_in_bytes - memory.alias_size_in_bytes,
        memory.alias_size_in_bytes, memory.temp_size_in_bytes, memory.generated_code_size_in_bytes,
        cost.get("bytes accessed", 0.0), cost.get("flops", 0.0))


def instructions(text: str, ops: tuple[str, ...]) -> list[Instruction]:
    """The instructions of these kinds in the text of a compiled program."""
    found, entry = [], False
    for line in text.splitlines():
        if line.endswith("{") and "->" in line:
            entry = line.startswith("ENTRY")
        match = _INSTRUCTION.match(line)
        if match and match[2] in ops:
            sizes = [_num_bytes(shape) for shape in _SHAPE.findall(match[1])]
            found.append(Instruction(match[2], max(sizes, default=0), line.strip(), entry))
    return found


def collectives(text: str) -> dict[str, int]:
    """How many instructions of each kind make devices speak."""
    return dict(collections.Counter(found.op for found in instructions(text, COLLECTIVES)))


def spoken_bytes(text: str) -> int:
    """Bytes that one device sends for the collectives of a program without loops: a sum over a ring sends about twice
    its array, the others about once."""
    return sum(one.num_bytes * (2 if one.op == "all-reduce" else 1) for one in instructions(text, COLLECTIVES))


def copies(text: str, at_least: int) -> list[Instruction]:
    """Copies from HBM to HBM of so many bytes or more."""
    return [found for found in instructions(text, ("copy",))
            if found.num_bytes >= at_least and not _on_chip(found.line)]


def device_bytes(tree: Any) -> int:
    """Bytes on one device of shapes with shardings, without padding of tiles."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _on_chip(line: str) -> list[tuple[str, str]]:
    """Kinds and sizes of the arrays of an instruction's result that stand in on-chip memory."""
    kind = line.split(" = ", 1)[1].split(" copy", 1)[0].split(" slice", 1)[0].split(" dynamic-slice", 1)[0]
    return [_SHAPE.findall(array)[0] for array in _LAID_OUT.findall(kind) if "S(1)" in array]


def _num_bytes(shape: tuple[str, str]) -> int:
    kind, sizes = shape
    bits = _BITS.get(kind) or int(re.sub(r"\D", "", kind))
    return math.prod(int(size) for size in sizes.split(",") if size) * bits // 8
