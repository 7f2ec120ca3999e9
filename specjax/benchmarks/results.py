"""From seconds to what they mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specjax.benchmarks.steps import Loop
from specjax.benchmarks.subject import Subject, num_bytes, num_parameters
from specjax.benchmarks.timing import Repeated
from specjax.benchmarks.ways import Way

Medians = Mapping[str, float]


def summary(
    subject: Subject, ways: Sequence[Way], parts: Mapping[str, Repeated], medians: Medians, rates: dict[str, float],
    rows: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """Everything a reader wants, from the medians of all times; times in seconds, memory in bytes.

    The last of `rows`, if there are any, is that of all texts (see `categories.table`).
    """
    plain, *deep = ways
    base = plain_summary(subject, plain, medians, max(rates.values()))
    columns = [deep_summary(way, medians) for way in deep]
    if rows:
        base["tokens_per_second"] = rows[-1]["plain"]["tokens_per_second"]
        for column, side in zip(columns, rows[-1]["speculative"], strict=True):
            column |= text_summary(column, side, base["step"])
    return {
        "target": describe(subject.params, subject.name),
        "draft": describe(subject.draft_params, subject.draft_name),
        "bytes_per_second": rates,
        "parts": {name: medians[name] for name in parts},
        "plain": base,
        "speculative": columns,
    }


def describe(params: Any, name: str) -> dict[str, Any]:
    """Name and size of a model."""
    return {"name": name, "parameters": num_parameters(params), "bytes": num_bytes(params)}


def plain_summary(subject: Subject, plain: Way, medians: Medians, bandwidth: float) -> dict[str, Any]:
    """Plain decoding: its step, against the time to read all weights once."""
    step = round_seconds(plain.greedy, medians["loop/0/greedy"])
    reading = num_bytes(subject.params) / bandwidth
    return {
        "step": step,
        "reading_weights": reading,
        "step_over_reading_weights": step / reading,
        "sampled_over_greedy_step": round_seconds(plain.sampled, medians["loop/0/sampled"]) / step,
        **costs(plain),
    }


def deep_summary(way: Way, medians: Medians) -> dict[str, Any]:
    """Speculation with k tokens: its round against its parts."""
    k = way.k
    one_row, rows = medians["target/1"], medians[f"target/{k + 1}"]
    greedy = round_seconds(way.greedy, medians[f"loop/{k}/greedy"])
    alone = alone_seconds(way, way.greedy, medians)
    found = {
        "k": k,
        "c": medians["draft/step"] / one_row,
        "v": rows / one_row,
        "draft_step": medians["draft/step"],
        "draft_feed": medians["draft/feed"],
        "verify": rows,
        "round": greedy,
        "round_over_parts": medians[f"loop/{k}/greedy"] / alone,
        "bare_round": medians[f"bare/{k}"],
        "round_over_bare": greedy / medians[f"bare/{k}"],
        "sampled_round": round_seconds(way.sampled, medians[f"loop/{k}/sampled"]),
        "rounds_by_width": way.greedy.rounds_by_width(way.widths),
        "sampled_rounds_by_width": way.sampled.rounds_by_width(way.widths),
        **costs(way),
    }
    found["sampled_over_greedy_round"] = (medians[f"loop/{k}/sampled"] / alone_seconds(way, way.sampled, medians)
                                          / found["round_over_parts"])
    return found


def text_summary(column: dict[str, Any], side: dict[str, Any], step: float) -> dict[str, Any]:
    """What k gained over all texts, beside what its round and the plain `step` let expect."""
    parts = column["k"] * column["draft_step"] + column["draft_feed"] + column["verify"]
    return {
        "tokens_per_second": side["tokens_per_second"],
        "mean_accepted_length": side["mean_accepted_length"],
        "predicted_speedup": side["mean_accepted_length"] * step / parts,
        "measured_speedup": side["speedup"],
        "text_equals_plain": side["equal_to_plain"] == 1.0,
    }


def costs(way: Way) -> dict[str, Any]:
    """Compile time and memory of the decode loop; its arguments are weights, caches, and the rest of the state."""
    program = way.greedy.program
    whole = {} if way.writer is None else {"compile_whole_seconds": way.writer.compile_seconds}
    return {
        "compile_loop_seconds": program.compile_seconds,
        **whole,
        "temporary_bytes": program.temporary_bytes,
        "argument_bytes": program.argument_bytes,
        "temporary_over_arguments": program.temporary_bytes / max(program.argument_bytes, 1),
    }


def round_seconds(loop: Loop, seconds: float) -> float:
    """Mean time of a round of the loop."""
    return seconds / loop.rounds


def alone_seconds(way: Way, loop: Loop, medians: Medians) -> float:
    """What the parts of all rounds of a loop cost when each is timed alone."""
    total = 0.0
    for width, count in loop.rounds_by_width(way.widths).items():
        drafting = width * medians["draft/step"] + medians["draft/feed"] if width else 0.0
        total += count * (drafting + medians[f"target/{width + 1}"])
    return total
