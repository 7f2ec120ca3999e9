"""Whole generations, prompt to last token, one compiled program each."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from specjax._src.generate import whole
from specjax._src.request import Request
from specjax._src.sampling import Sampling
from specjax._src.speculative import Decoder, checked_request
from specjax._src.state import Generation
from specjax._src.types import Params
from specjax.benchmarks.steps import pair_params
from specjax.benchmarks.subject import Subject
from specjax.benchmarks.timing import Program


@dataclasses.dataclass
class Writer:
    """One way of decoding, compiled once for all prompts of a subject.

    Attributes:
      params: of target and draft.
      requests: one for each prompt.
      program: prompt to last token.
      results: of the latest call for each prompt.
    """

    params: Params
    requests: list[Request]
    program: Program
    results: dict[int, Generation] = dataclasses.field(default_factory=dict)

    def __call__(self, index: int) -> float:
        """Write the text of prompt `index`; the seconds it took."""
        self.results[index], seconds = self.program(self.params, self.requests[index])
        return seconds

    @property
    def tokens(self) -> int:
        """Tokens of the latest texts."""
        return sum(int(result.lengths[0]) for result in self.results.values())

    @property
    def mean_accepted_length(self) -> float:
        """Tokens a round over all texts, the target's own included."""
        return self.tokens / sum(int(result.stats.rounds[0]) for result in self.results.values())

    def equals(self, other: Writer) -> bool:
        """Whether all texts are those of `other`."""
        return all(
            bool(np.array_equal(np.asarray(result.tokens), np.asarray(other.results[index].tokens)))
            for index, result in self.results.items())


def make_writer(decoder: Decoder, subject: Subject, settings: Any) -> Writer:
    """Compile `decoder` for the prompts of `subject`."""
    params = pair_params(decoder, subject)
    requests = []
    for index in range(len(subject.prompts)):
        sampling = Sampling(temperature=settings.temperature, top_p=settings.top_p, seed=settings.seed + index)
        requests.append(checked_request(
            decoder.rules, params, *subject.row(index), max_new_tokens=settings.max_new_tokens, sampling=sampling,
            eos_ids=subject.eos_ids))
    program = Program(
        lambda params, request: whole(decoder.rules, settings.max_new_tokens, None, 1, params, request),
        params, requests[0])
    return Writer(params, requests, program)
