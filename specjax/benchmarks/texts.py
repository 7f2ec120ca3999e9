"""Whole generations, prompt to last token, one compiled program each."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from specjax._src.generate import whole
from specjax._src.request import Request, bucket
from specjax._src.sampling import Sampling
from specjax._src.speculative import Decoder, checked_request
from specjax._src.types import Params
from specjax.benchmarks.settings import Settings
from specjax.benchmarks.subject import padded
from specjax.benchmarks.timing import Program, Timed


class Written(NamedTuple):
    """A text: its token ids without the prompt, and how many passes of the target it took."""

    ids: tuple[int, ...]
    rounds: int


class Writes(Protocol):
    """Who writes the texts of all prompts in one way: this library or another.

    Attributes:
      k: tokens drafted in a round, 0 for plain decoding.
      written: the latest text of each prompt.
    """

    k: int
    written: dict[int, Written]

    @property
    def name(self) -> str:
        """`text/K` for this library, `PEER/K` for another; of a drafter, its own name."""

    def __call__(self, index: int) -> float:
        """Write the text of prompt `index`; the seconds it took."""


@dataclasses.dataclass
class Writer:
    """One way of decoding, compiled for the prompts of a subject: `Writes` by this library.

    Each prompt is padded as `specjax.generate` pads it, so there is a program for each padded length.

    Attributes:
      name, k, written: see `Writes`.
      params: of target and draft.
      requests: one for each prompt.
      programs: prompt to last token, by the padded length of the prompt.
    """

    name: str
    k: int
    params: Params
    requests: list[Request]
    programs: dict[int, Program]
    written: dict[int, Written] = dataclasses.field(default_factory=dict)

    def __call__(self, index: int) -> float:
        """Write the text of prompt `index`; the seconds it took."""
        request = self.requests[index]
        result, seconds = self.programs[request.prompts.shape[1]](self.params, request)
        tokens = np.asarray(result.tokens)[0, : int(result.lengths[0])]
        self.written[index] = Written(tuple(tokens.tolist()), int(result.stats.rounds[0]))
        return seconds

    @property
    def compile_seconds(self) -> float:
        """Of the program that took longest."""
        return max(program.compile_seconds for program in self.programs.values())


def make_writer(
    name: str, decoder: Decoder, params: Params, prompts: Sequence[Sequence[int]], eos_ids: tuple[int, ...],
    settings: Settings,
) -> Writer:
    """Compile `decoder` for `prompts`."""
    requests: list[Request] = []
    for index, prompt in enumerate(prompts):
        sampling = Sampling(temperature=settings.temperature, top_p=settings.top_p, seed=settings.seed + index)
        requests.append(checked_request(
            decoder.rules, params, *padded(prompt, bucket(len(prompt))), max_new_tokens=settings.max_new_tokens,
            sampling=sampling, eos_ids=eos_ids))
    programs = {
        width: Program(
            lambda params, request: whole(decoder.rules, settings.max_new_tokens, None, 1, params, request),
            params, request)
        for width, request in {request.prompts.shape[1]: request for request in requests}.items()}
    return Writer(name, decoder.rules.drafter.shape.num_speculative_tokens, params, requests, programs)


def turns(writers: Sequence[Writes], count: int) -> dict[str, Timed]:
    """Every one of `count` prompts in every way, so that the ways take turns prompt by prompt."""
    def one(writer: Writes, index: int) -> Timed:
        return lambda: writer(index)

    return {f"{writer.name}/{index}": one(writer, index) for index in range(count) for writer in writers}


def finished(writers: Sequence[Writes], count: int, timed: Iterable[str]) -> list[int]:
    """Of `count` prompts those that everybody has written, by the names of what was `timed`."""
    names = set(timed)
    return [index for index in range(count) if all(f"{writer.name}/{index}" in names for writer in writers)]
