"""What a pass costs beside caches of several sizes, and behind texts of several lengths.

`python -m specjax.benchmarks.context`: random weights, since what they say does not matter here. A pass of one token is
a decode step, wider ones are verify passes.
"""

from __future__ import annotations

import dataclasses
import statistics
from typing import Any, NamedTuple

from flax import nnx
from rich.console import Console
from rich.table import Table

from specjax.benchmarks import progress, record
from specjax.benchmarks.steps import model_pass
from specjax.benchmarks.timing import in_turns
from specjax.models import Decoder, DecoderConfig, from_nnx

FULL = DecoderConfig(
    vocab_size=49152, hidden_size=576, num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64, intermediate_size=1536,
    max_position=8192)
"""The shape of SmolLM2-135M."""
WINDOW, PERIOD = 512, 6
"""Of `rings`, the same shape as Gemma 3 would have it: but for every sixth layer all see a window only."""
WAYS = {"einsum": "einsum", "blocks": "auto", "rings": "auto"}
"""Columns, and how attention is done in them."""
WIDTHS = (1, 5, 9)
CAPACITIES, LENGTHS = (512, 2048, 8192), (300, 2000, 8000)


class Point(NamedTuple):
    """What is measured: so many entries in a cache with room for `capacity`."""

    way: str
    capacity: int
    length: int


def points() -> list[Point]:
    """All capacities behind the shortest text, all lengths in the largest cache."""
    sizes = [(capacity, LENGTHS[0]) for capacity in CAPACITIES]
    sizes += [(CAPACITIES[-1], length) for length in LENGTHS[1:]]
    return [Point(way, *size) for way in WAYS for size in sizes]


def shape_of(way: str, layers: int) -> DecoderConfig:
    """The decoder of a column, with so many layers."""
    sliding = tuple(index for index in range(layers) if (index + 1) % PERIOD) if way == "rings" else ()
    return dataclasses.replace(
        FULL, num_layers=layers, sliding_layers=sliding, sliding_window=WINDOW if sliding else None)


def measure(layers: int, repeats: int, command: str) -> dict[str, Any]:
    """Seconds of each pass, in turns with the others of its width, and the medians of their ratios to the pass of the
    same column beside the least cache, which `auto` reads with the einsum."""
    rows: list[dict[str, Any]] = []
    with progress.shown() as stage:
        for width in WIDTHS:
            rows += _of_width(width, layers, repeats, stage)
    return {
        "environment": record.environment(command),
        "settings": {"layers": layers, "repeats": repeats, "window": WINDOW, "period": PERIOD},
        "rows": rows}


def _of_width(width: int, layers: int, repeats: int, stage: progress.Stage) -> list[dict[str, Any]]:
    """One width at a time: each pass has a cache of its own, and those of all widths would be much memory."""
    models = {}
    for way, attention in WAYS.items():
        module = Decoder(shape_of(way, layers), rngs=nnx.Rngs(params=0))
        models[way] = from_nnx(module, attention=attention)
    tell, timed = stage(f"compiling {width}", len(points())), {}
    for point in points():
        timed[str(point)] = model_pass(*models[point.way], width, point.capacity, point.length)
        tell()
    seconds = in_turns(timed, repeats, tell=stage(f"passes of {width}", (1 + repeats) * len(timed)))
    rows = []
    for point in points():
        base = seconds[str(Point(point.way, CAPACITIES[0], LENGTHS[0]))]
        mine = seconds[str(point)]
        rows.append({
            "tokens": width, **point._asdict(), "seconds_median": statistics.median(mine),
            "over_least": statistics.median(a / b for a, b in zip(mine, base, strict=True)),
            "temporary_bytes": timed[str(point)].program.temporary_bytes, "seconds": mine})
    return rows


def main() -> None:
    """Command line."""
    result = record.script("context", __doc__, {"layers": FULL.num_layers, "repeats": 11}, measure)
    table = Table("tokens", "capacity", "length", *(f"{way}, ms" for way in WAYS), *(f"{way}, ratio" for way in WAYS))
    for width in WIDTHS:
        for point in points()[: len(points()) // len(WAYS)]:
            same = [row for row in result["rows"] if row["tokens"] == width and row["capacity"] == point.capacity
                    and row["length"] == point.length]
            table.add_row(
                str(width), str(point.capacity), str(point.length), *(f"{1e3 * r['seconds_median']:.1f}" for r in same),
                *(f"{row['over_least']:.2f}" for row in same))
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
