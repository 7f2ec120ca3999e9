"""From seconds to what they mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specjax.benchmarks.steps import Loop
from specjax.benchmarks.subject import Subject, num_bytes, num_parameters
from specjax.benchmarks.timing import Repeated

if TYPE_CHECKING:
    from specjax.benchmarks.run import Way

Medians = Mapping[str, float]


def summary(
    subject: Subject, ways: Sequence[Way], parts: Mapping[str, Repeated], medians: Medians, rates: dict[str, float]
) -> dict[str, Any]:
    """Everything a reader wants, from the medians of all times; times in seconds, memory in bytes."""
    plain, *deep = ways
    return {
        "target": describe(subject.params, subject.name),
        "draft": describe(subject.draft_params, subject.draft_name),
        "bytes_per_second": rates,
        "parts": {name: medians[name] for name in parts},
        "plain": plain_summary(subject, plain, medians, max(rates.values())),
        "speculative": [deep_summary(subject, plain, way, medians) for way in deep],
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
        **({} if plain.writer is None else {"tokens_per_second": plain.writer.tokens / text_seconds(plain, medians)}),
    }


def deep_summary(subject: Subject, plain: Way, way: Way, medians: Medians) -> dict[str, Any]:
    """Speculation with k tokens: its round against its parts, and its gain as predicted and as measured."""
    k = way.k
    one_row, rows = medians["target/1"], medians[f"target/{k + 1}"]
    greedy = round_seconds(way.greedy, medians[f"loop/{k}/greedy"])
    alone = alone_seconds(way, way.greedy, medians)
    step = round_seconds(plain.greedy, medians["loop/0/greedy"])
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
    if way.writer is not None and plain.writer is not None:
        parts = k * medians["draft/step"] + medians["draft/feed"] + rows
        mean = way.writer.mean_accepted_length
        measured = text_seconds(plain, medians) / plain.writer.tokens * way.writer.tokens / text_seconds(way, medians)
        found |= {
            "tokens_per_second": way.writer.tokens / text_seconds(way, medians),
            "mean_accepted_length": mean,
            "predicted_speedup": mean * step / parts,
            "measured_speedup": measured,
            "text_equals_plain": way.writer.equals(plain.writer),
        }
    return found


def costs(way: Way) -> dict[str, Any]:
    """Compile time and memory of the decode loop; its arguments are weights, caches, and the rest of the state."""
    program = way.greedy.program
    whole = {} if way.writer is None else {"compile_whole_seconds": way.writer.program.compile_seconds}
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


def text_seconds(way: Way, medians: Medians) -> float:
    """Time of all texts."""
    return sum(value for name, value in medians.items() if name.startswith(f"text/{way.k}/"))
