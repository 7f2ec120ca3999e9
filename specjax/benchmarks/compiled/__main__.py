"""Compile published pairs for TPU slices and keep what the programs say: `python -m specjax.benchmarks.compiled`.

Nothing runs. Seconds are a roofline: bytes over the bandwidth of HBM or operations over peak, whichever is longer, and
what the chips tell each other over their links.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import pathlib
import sys
from typing import Any

from specjax.benchmarks import record
from specjax.benchmarks.compiled import cases, chips, measuring

SLICES = (("llama-8b", "v5e:2x4"), ("llama-8b", "v6e:2x4"), ("llama-70b", "v5p:2x2x2"))
CONTEXT = 8192


def measure(slices: list[tuple[str, str]], batches: list[int], loops: bool, path: pathlib.Path | None) -> Any:
    """Every pair on every slice; what does not fit is written down as such."""
    rows: list[dict[str, Any]] = []
    versions = {"libtpu": importlib.metadata.version("libtpu")}
    command = "python -m specjax.benchmarks.compiled"
    result = {"environment": record.environment(command) | versions, "context": CONTEXT, "rows": rows}
    for target, topology in slices:
        chip = chips.CHIPS[topology.partition(":")[0]]
        mesh = chips.tpu_mesh(topology, (1, 8))
        for name, make in cases.PAIRS.items():
            made = make(cases.TARGETS[target], mesh)
            for batch in batches:
                row: dict[str, Any] = {"target": target, "slice": topology, "pair": name, "batch": batch}
                alone = make(cases.TARGETS[target], mesh, "einsum")  # without loops, of which a reader sees one turn
                row |= measuring.passes(alone, chip, batch, CONTEXT, _tell)
                if loops:
                    row |= _whole(made, batch)
                rows.append(row)
                if path is not None:
                    record.write(result, path)
    return result


def _whole(made: cases.Pair, batch: int) -> dict[str, Any]:
    try:
        return measuring.whole(made, batch, CONTEXT, _tell)
    except Exception as error:
        if "RESOURCE_EXHAUSTED" not in str(error) and "Ran out of memory" not in str(error):
            raise
        return {"too_large": str(error).splitlines()[0]}


def _tell(stage: str) -> None:
    print(stage, file=sys.stderr, flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slices", help="such as llama-8b@v5e:2x4, with commas; default all")
    parser.add_argument("--batches", default="1,64")
    parser.add_argument("--no-loops", action="store_true", help="the parts of a round only")
    parser.add_argument("--json", type=pathlib.Path, help="where to keep the record")
    options = parser.parse_args()
    wanted = [tuple(one.split("@")) for one in options.slices.split(",")] if options.slices else list(SLICES)
    batches = [int(one) for one in options.batches.split(",")]
    result = measure(wanted, batches, not options.no_loops, options.json)
    print(table(result["rows"]))


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = ["| target on slice | pair | batch | GB a chip | bytes over needed | ms a step, a round | break-even | "
             "tokens/s |",
             "|---|---|---:|---:|---:|---:|---:|---:|"]
    for row in rows:
        loop = row.get("loop", {}).get("peak")
        memory = "too large" if "too_large" in row else "" if loop is None else f"{loop / 2**30:.1f}"
        ratios = [f"{row[part]['ratio']:.2f}" for part in ("plain", "verify", "draft") if part in row]
        spans = [row["plain"]["seconds"], row.get("seconds_per_round")]
        said = ", ".join(f"{1e3 * span:.2f}" for span in spans if span)
        speed = row.get("tokens_per_second", row["plain_tokens_per_second"])
        even = f"{row['break_even']:.2f}" if "break_even" in row else ""
        lines.append(f"| {row['target']} on {row['slice']} | {row['pair']} | {row['batch']} | {memory} | "
                     f"{', '.join(ratios)} | {said} | {even} | {speed:,.0f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
