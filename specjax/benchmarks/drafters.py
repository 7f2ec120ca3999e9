"""All drafters of one target beside each other: tokens per round, and the speed over plain decoding."""

from __future__ import annotations

import dataclasses
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import rich.box
from rich.console import Console
from rich.table import Table

from specjax._src.speculative import speculative
from specjax._src.types import Drafter, Model, Params, Verifier
from specjax.benchmarks import categories, progress, record
from specjax.benchmarks.settings import Settings
from specjax.benchmarks.subject import num_bytes, num_parameters
from specjax.benchmarks.texts import Writer, finished, make_writer, turns
from specjax.benchmarks.timing import in_turns

PLAIN = "plain"


class Entry(NamedTuple):
    """A drafter that takes part.

    Attributes:
      name: for the report.
      drafter: None for plain decoding.
      params: of the drafter.
      verifier: None chooses.
    """

    name: str
    drafter: Drafter | None = None
    params: Any = None
    verifier: Verifier | None = None


class Target(NamedTuple):
    """Who writes, and what.

    Attributes:
      name: for the report.
      model, params: the target.
      prompts: token ids.
      eos_ids: what ends a text.
    """

    name: str
    model: Model
    params: Any
    prompts: list[list[int]]
    eos_ids: tuple[int, ...]


def bench_drafters(
    target: Target, entries: Sequence[Entry], temperatures: Sequence[float], settings: Settings, *, command: str,
    out: pathlib.Path | None = None,
) -> dict[str, Any]:
    """Write all texts with each of `entries` and plainly, in turns, at each temperature; print a table.

    Args:
      target: who writes, and what.
      entries: drafters with their weights.
      temperatures: of the texts; 0 is greedy.
      settings: budget, seed, top-p, and how often each text is written (`text_repeats`).
      command: for the record.
      out: where everything is written, or None.

    Returns:
      What is written to `out`.
    """
    if out is not None:
        record.check_writable(out)
    seconds: dict[str, dict[str, list[float]]] = {}
    rows: list[dict[str, Any]] = []

    def collect() -> dict[str, Any]:
        return {
            "environment": record.environment(command),
            "settings": dataclasses.asdict(settings.resolved()) | {"prompts": len(target.prompts)},
            "target": {"name": target.name, "parameters": num_parameters(target.params),
                       "bytes": num_bytes(target.params)},
            "drafters": rows, "seconds": seconds}

    with progress.shown() as stage, record.kept(out, collect) as keep:
        for temperature in temperatures:
            asked = dataclasses.replace(settings, temperature=temperature)
            tell = stage(f"compiling, temperature {temperature:g}", 1 + len(entries))
            writers = []
            for entry in (Entry(PLAIN), *entries):
                writers.append(_writer(entry, target, asked))
                tell()
            timed = seconds.setdefault(f"{temperature:g}", {})
            things, repeats = turns(writers, len(target.prompts)), settings.repeats_of_texts
            warm = [f"{writer.name}/0" for writer in writers]
            advance = stage(f"texts in turns, temperature {temperature:g}", len(warm) + repeats * len(things))
            in_turns(things, repeats, warm=warm, into=timed, tell=advance)
            rows += _rows(temperature, (Entry(PLAIN), *entries), writers, timed, target)
            keep()
    result = collect()
    if out is not None:
        record.write(result, out)
    show(result, Console(highlight=False))
    return result


def _writer(entry: Entry, target: Target, settings: Settings) -> Writer:
    decoder = speculative(target.model, entry.drafter, entry.verifier)
    return make_writer(
        entry.name, decoder, Params(target.params, entry.params), target.prompts, target.eos_ids, settings)


def _rows(
    temperature: float, entries: Sequence[Entry], writers: Sequence[Writer], timed: Mapping[str, list[float]],
    target: Target,
) -> list[dict[str, Any]]:
    medians = {name: statistics.median(values) for name, values in timed.items()}
    done = finished(writers, len(target.prompts), medians)
    rows: list[dict[str, Any]] = []
    for entry, writer in zip(entries, writers, strict=True):
        rules = speculative(target.model, entry.drafter, entry.verifier).rules
        made = categories.totals(writer, done, medians)
        rows.append({
            "drafter": entry.name, "temperature": temperature, "verifier": rules.verifier.name,
            "siblings": rules.drafter.kind, "num_nodes": rules.drafter.shape.num_nodes,
            "depth": rules.drafter.shape.depth, "tokens": made["tokens"],
            "rounds": sum(writer.written[index].rounds for index in done),
            "mean_accepted_length": made["mean_accepted_length"], "tokens_per_second": made["tokens_per_second"],
            "equal_to_plain": categories.share_equal(writer, writers[0], done)})
    for row in rows:
        row["speedup"] = row["tokens_per_second"] / rows[0]["tokens_per_second"]
    return rows


def show(result: dict[str, Any], console: Console) -> None:
    """Print a line for each drafter, with columns for each temperature."""
    environment, settings = result["environment"], result["settings"]
    console.print(f"{environment['command']}\n{environment['platform']}, {environment['processor']}, jax "
                  f"{environment['jax']}; {settings['prompts']} texts of up to {settings['max_new_tokens']} tokens, "
                  f"medians of {settings['text_repeats']}, taken in turns")
    rows = result["drafters"]
    temperatures = list(dict.fromkeys(row["temperature"] for row in rows))
    table = Table(box=rich.box.SIMPLE_HEAD, padding=0, collapse_padding=True)
    table.add_column("drafter", no_wrap=True)
    for name in ("nodes", "depth", *(f"T = {one:g}" for one in temperatures)):
        table.add_column(name, justify="right", no_wrap=True)
    for name in dict.fromkeys(row["drafter"] for row in rows):
        mine = [row for row in rows if row["drafter"] == name]
        cells = [f"{row['mean_accepted_length']:.2f} {row['speedup']:.2f}x {row['verifier']}" for row in mine]
        table.add_row(name, str(mine[0]["num_nodes"]), str(mine[0]["depth"]), *cells)
    console.print(table)
    console.print("tokens per round, the target's own included; speed-up: time per token plain over speculative, "
                  "prompt included; the rule that verified")
