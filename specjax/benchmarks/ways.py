"""The ways of decoding that are compared, and the steps they are made of, compiled."""

from __future__ import annotations

import dataclasses

from specjax._src import decode
from specjax._src.draft.model import from_model
from specjax._src.sampling import Sampling
from specjax._src.speculative import EXTEND, Decoder, speculative
from specjax._src.state import Generation, State
from specjax._src.types import Params
from specjax.benchmarks import steps
from specjax.benchmarks.settings import Settings
from specjax.benchmarks.steps import Loop
from specjax.benchmarks.subject import Subject
from specjax.benchmarks.texts import Writer, make_writer
from specjax.benchmarks.timing import Program, Repeated, Timed

SAMPLED = Sampling(temperature=0.8, top_p=0.95, seed=0)
LOOP_PROMPTS = 3


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


def make_way(subject: Subject, settings: Settings, k: int) -> Way:
    """Compile plain decoding (`k = 0`) or speculation with `k` tokens."""
    decoder = speculative(subject.model, from_model(subject.draft_model, k) if k else None)
    budget, params = settings.loop_budget, steps.pair_params(decoder, subject)
    greedy, sampled = (
        steps.open_states(decoder, subject, sampling, budget, LOOP_PROMPTS) for sampling in (Sampling(), SAMPLED))

    def loop(params: Params, state: State) -> tuple[State, Generation]:
        state = decoder.run(params, state, budget)
        return state, decoder.result(state)

    program = Program(loop, params, greedy[0], donate=(1,))
    writer = None
    if subject.writes:
        writer = make_writer(f"text/{k}", decoder, params, subject.prompts, subject.eos_ids, settings)
    return Way(
        decoder, [rung.shape.num_speculative_tokens for rung in decode.ladder(decoder.rules.drafter)],
        Loop(program, params, greedy), Loop(program, params, sampled), writer)


def make_parts(subject: Subject, settings: Settings, ways: list[Way]) -> dict[str, Repeated]:
    """Compile the steps that rounds are made of: passes of the target, steps of the draft."""
    text = subject.width + settings.loop_budget
    slots = text + max(EXTEND, max(way.k for way in ways) + 1)
    length = subject.width + settings.loop_budget // 2
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
