"""The benchmark: build, time in turns, put together, report."""

from __future__ import annotations

import dataclasses
import pathlib
import statistics
from typing import Any

from rich.console import Console

from specjax._src import decode
from specjax._src.draft.model import from_model
from specjax._src.sampling import Sampling
from specjax._src.speculative import EXTEND, Decoder, speculative
from specjax._src.state import Generation, State
from specjax._src.types import Params
from specjax.benchmarks import record, report, results, steps
from specjax.benchmarks.bandwidth import Bandwidth
from specjax.benchmarks.steps import Loop
from specjax.benchmarks.subject import Subject
from specjax.benchmarks.texts import Writer, make_writer
from specjax.benchmarks.timing import Program, Repeated, Timed, in_turns

SAMPLED = Sampling(temperature=0.8, top_p=0.95, seed=0)
LOOP_PROMPTS = 3


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is asked for.

    Attributes:
      depths: k, the numbers of speculative tokens to try.
      temperature, top_p, seed: how the texts are drawn; the cost of sampling is measured in any case.
      max_new_tokens: budget of a text.
      repeats: times each thing is measured.
    """

    depths: list[int]
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    max_new_tokens: int = 128
    repeats: int = 11


@dataclasses.dataclass(frozen=True)
class Way:
    """One way of decoding, ready to be timed: plain (k = 0), or with k speculative tokens.

    Attributes:
      decoder: of this way.
      widths: draft lengths of the rungs of its loop, 0 last.
      greedy, sampled: the loop alone, over a few prompts; one program.
      writer: whole texts, or None where texts mean nothing.
    """

    decoder: Decoder
    widths: list[int]
    greedy: Loop
    sampled: Loop
    writer: Writer | None

    @property
    def k(self) -> int:
        """Speculative tokens."""
        return self.widths[0]

    @property
    def loops(self) -> dict[str, Timed]:
        """What is timed of it besides texts."""
        return {f"loop/{self.k}/greedy": self.greedy, f"loop/{self.k}/sampled": self.sampled}


def bench(subject: Subject, settings: Settings, *, command: str, out: pathlib.Path | None = None) -> dict[str, Any]:
    """Measure, print a table, and write everything to `out` if given; returns what is written."""
    status = Console(stderr=True, highlight=False)
    with status.status("compiling"):
        ways = [make_way(subject, settings, k) for k in (0, *settings.depths)]
        parts = make_parts(subject, settings, ways)
        bandwidth = Bandwidth()
    things: dict[str, Timed] = {**parts, **bandwidth.things}
    for way in ways:
        things |= way.loops
    with status.status("timing steps and rounds in turns"):
        seconds = in_turns(things, settings.repeats)
    if subject.writes:
        with status.status("timing texts in turns"):
            seconds |= in_turns(texts(subject, ways), settings.repeats)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    result = {
        "environment": record.environment(command),
        "settings": dataclasses.asdict(settings) | {"prompts": len(subject.prompts), "padded_prompt": subject.width},
        **results.summary(subject, ways, parts, medians, bandwidth.rates(medians)),
        "seconds": seconds,
    }
    if out is not None:
        record.write(result, out)
    report.show(result, Console(highlight=False))
    return result


def make_way(subject: Subject, settings: Settings, k: int) -> Way:
    """Compile plain decoding (`k = 0`) or speculation with `k` tokens."""
    decoder = speculative(subject.model, from_model(subject.draft_model, k) if k else None)
    budget, params = settings.max_new_tokens, steps.pair_params(decoder, subject)
    greedy, sampled = (
        steps.open_states(decoder, subject, sampling, budget, LOOP_PROMPTS) for sampling in (Sampling(), SAMPLED))

    def loop(params: Params, state: State) -> tuple[State, Generation]:
        state = decoder.run(params, state, budget)
        return state, decoder.result(state)

    program = Program(loop, params, greedy[0], donate=(1,))
    return Way(
        decoder, [rung.shape.num_speculative_tokens for rung in decode.ladder(decoder.rules.drafter)],
        Loop(program, params, greedy), Loop(program, params, sampled),
        make_writer(decoder, subject, settings) if subject.writes else None)


def make_parts(subject: Subject, settings: Settings, ways: list[Way]) -> dict[str, Repeated]:
    """Compile the steps that rounds are made of: passes of the target, steps of the draft."""
    text = subject.width + settings.max_new_tokens
    slots = text + max(EXTEND, max(way.k for way in ways) + 1)
    length = subject.width + settings.max_new_tokens // 2
    parts = {
        "draft/step": steps.model_pass(subject.draft_model, subject.draft_params, 1, slots, length),
        "draft/feed": steps.model_pass(subject.draft_model, subject.draft_params, 1, slots, length, head=False),
    }
    for rows in sorted({1, *(width + 1 for way in ways for width in way.widths)}):
        parts[f"target/{rows}"] = steps.model_pass(subject.model, subject.params, rows, slots, length)
    for way in ways:
        if way.k:
            parts[f"bare/{way.k}"] = steps.bare_round(subject, way.k, slots, length)
    return parts


def texts(subject: Subject, ways: list[Way]) -> dict[str, Timed]:
    """Every prompt in every way, so that the ways take turns prompt by prompt."""
    def one(writer: Writer, index: int) -> Timed:
        return lambda: writer(index)

    return {
        f"text/{way.k}/{index}": one(way.writer, index)
        for index in range(len(subject.prompts)) for way in ways if way.writer is not None}
