"""The tables a person reads."""

from __future__ import annotations

from typing import Any

import rich.box
from rich.console import Console
from rich.table import Table


def show(result: dict[str, Any], console: Console) -> None:
    """Print what was measured; every number is a median of the same process."""
    environment, settings, plain = result["environment"], result["settings"], result["plain"]
    texts = "" if settings["text_repeats"] == settings["repeats"] else f" (texts: of {settings['text_repeats']})"
    console.print(f"{environment['command']}\n{environment['platform']}, {environment['processor']}, jax "
                  f"{environment['jax']}; medians of {settings['repeats']}{texts}, taken in turns")
    for role in ("target", "draft"):
        console.print(f"{role}: {result[role]['name']}, {result[role]['parameters'] / 1e6:.2f} M parameters, "
                      f"{result[role]['bytes'] / 1e6:.1f} MB")
    table = _table(result, "", ("plain",))
    for label, key, form in ROWS:
        cells = [_cell(column, key, form) for column in (plain, *result["speculative"])]
        if any(cells):
            table.add_row(label, *cells)
    console.print(table)
    rates = ", ".join(f"{name} {rate / 1e9:.1f}" for name, rate in result["bytes_per_second"].items())
    console.print(f"memory bandwidth in GB/s: {rates}; reading all weights once: {_ms(plain['reading_weights'])}; "
                  f"a plain step takes {plain['step_over_reading_weights']:.2f} of that")
    if result["categories"]:
        _show_categories(result, console)
    if "peer" in environment:
        _show_peer(result, console)


def _show_categories(result: dict[str, Any], console: Console) -> None:
    table = _table(result, "category", ("texts", "plain"))
    for row in result["categories"]:
        cells = [f"{_rate(side['tokens_per_second'])} {side['speedup']:.2f}x {side['mean_accepted_length']:.2f}"
                 + " *"[side["k"] == row["best_k"]] for side in row["speculative"]]
        table.add_row(row["category"] or "-", str(row["prompts"]), _rate(row["plain"]["tokens_per_second"]), *cells)
    console.print(table)
    console.print("tokens per second; speed-up: time per token plain over speculative, prompt included; tokens per "
                  "round; * the best k")


def _show_peer(result: dict[str, Any], console: Console) -> None:
    peer = result["environment"]["peer"]
    table = _table(result, peer["name"], ("plain", "same"))
    for row in result["categories"]:
        plain, assisted = row["peer"]["plain"], row["peer"]["assisted"]
        table.add_row(
            row["category"] or "-", f"{_rate(plain['tokens_per_second'])} {plain['ours_over_theirs']:.2f}x",
            f"{100 * plain['equal_to_ours']:.0f} %",
            *(f"{_rate(side['tokens_per_second'])} {side['ours_over_theirs']:.2f}x {side['mean_accepted_length']:.2f}"
              for side in assisted))
    console.print(table)
    console.print(f"its tokens per second, ours over its, its tokens per round; same: plain texts equal to ours; "
                  f"{peer['name']} {peer[peer['name']]}, torch {peer['torch']}, {peer['torch_threads']} threads")


def _table(result: dict[str, Any], name: str, before: tuple[str, ...]) -> Table:
    """An empty table with a column for names, these `before`, and one for each k."""
    table = Table(box=rich.box.SIMPLE_HEAD, padding=0, collapse_padding=True)
    table.add_column(name, no_wrap=True)
    for label in (*before, *(f"k = {deep['k']}" for deep in result["speculative"])):
        table.add_column(label, justify="right", min_width=9 if name == "" else 5, no_wrap=True)
    return table


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3f} ms"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _number(value: float) -> str:
    return f"{value:.2f}"


def _rate(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _seconds(value: float) -> str:
    return f"{value:.1f} s"


def _said(value: bool) -> str:
    return "yes" if value else "no"


def _cell(column: dict[str, Any], key: str, form: Any) -> str:
    return form(column[key]) if key in column else ""


ROWS = (
    ("tokens per second", "tokens_per_second", _rate),
    ("mean accepted length", "mean_accepted_length", _number),
    ("speed-up, measured", "measured_speedup", _number),
    ("speed-up, predicted", "predicted_speedup", _number),
    ("texts equal to plain", "text_equals_plain", _said),
    ("step", "step", _ms),
    ("draft step", "draft_step", _ms),
    ("draft step, no head", "draft_feed", _ms),
    ("verify pass, k + 1 rows", "verify", _ms),
    ("c = draft / one-row pass", "c", _number),
    ("v = verify / one-row pass", "v", _number),
    ("round", "round", _ms),
    ("round / its parts alone", "round_over_parts", _number),
    ("round / bare round", "round_over_bare", _number),
    ("sampled / greedy step", "sampled_over_greedy_step", _number),
    ("sampled / greedy round", "sampled_over_greedy_round", _number),
    ("temporaries / arguments", "temporary_over_arguments", _percent),
    ("compile time of the loop", "compile_loop_seconds", _seconds),
    ("compile time with prompt", "compile_whole_seconds", _seconds),
)
