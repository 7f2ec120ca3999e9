"""What a checkpoint is and how much memory it takes, told before anything is loaded."""

from __future__ import annotations

import re

from rich.console import Console
from rich.table import Table

from specjax.benchmarks.compiled.chips import CHIPS
from specjax.checkpoints.footprint import Footprint, footprint

GIB = 2**30


def run(
    target: str, draft: str | None, *, mesh: str, batch: int, context: int, num_nodes: int, dtype: str | None,
    chip: str | None, memory: float | None,
) -> None:  # fmt: skip
    """Print the memory of each device; ValueError where it can not hold that."""
    shape = parse_mesh(mesh)
    room = room_of(chip, memory)
    found = footprint(
        target, draft, mesh=shape, batch=batch, context=context, num_nodes=num_nodes, dtype=dtype)
    who = f"{target} with {draft}" if draft else target
    Console().print(as_table(f"{who}\n{batch} x {context} tokens on {shape[0]} x {shape[1]} devices", found, room))
    if room is not None and found.total > room:
        raise ValueError(
            f"this does not fit: {found.total / GIB:.2f} GiB on each device, and it has {room / GIB:.2f}: take more "
            "devices along `model` (--mesh), fewer rows, a shorter context, or a narrower --dtype")


def as_table(title: str, found: Footprint, room: float | None) -> Table:
    """GiB on one device, line by line."""
    table = Table(title=title)
    table.add_column("on each device")
    table.add_column("GiB", justify="right")
    for name, size in found._asdict().items():
        table.add_row(name.replace("_", " ") + (" (estimate)" if name == "temporary" else ""), f"{size / GIB:.3f}")
    table.add_row("in all", f"{found.total / GIB:.3f}", style="bold")
    if room is not None:
        table.add_row("a device has", f"{room / GIB:.3f}")
    return table


def parse_mesh(text: str) -> tuple[int, int]:
    """`1x8` as devices along `data` and `model`; a single number is all along `model`."""
    match = re.fullmatch(r"(?:(\d+)x)?(\d+)", text)
    shape = (int(match[1] or 1), int(match[2])) if match else (0, 0)
    if min(shape) < 1:
        raise ValueError(f"--mesh {text} is no mesh: write DATAxMODEL, such as 1x8")
    return shape


def room_of(chip: str | None, memory: float | None) -> float | None:
    """Bytes of a device, or None if nothing is said of it."""
    if chip is not None and memory is not None:
        raise ValueError("--chip and --memory say the same twice: leave one of them out")
    if chip is not None and chip not in CHIPS:
        raise ValueError(f"--chip {chip} is not one of {', '.join(CHIPS)}; say its --memory in GiB")
    return CHIPS[chip].memory if chip is not None else None if memory is None else memory * GIB
