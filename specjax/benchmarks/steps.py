"""The parts of a round, each timed alone: draft steps, verify passes, whole loops."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax._src import rows
from specjax._src.generate import opened
from specjax._src.sampling import Sampling
from specjax._src.speculative import Decoder, checked_request
from specjax._src.state import Generation, State
from specjax._src.types import Array, Attend, Model, Params
from specjax.benchmarks.subject import Subject
from specjax.benchmarks.timing import Program, Repeated


def model_pass(model: Model, params: Any, width: int, capacity: int, length: int, *, head: bool = True) -> Repeated:
    """A pass of `width` tokens behind `length` cached ones.

    With `head` the next pass reads the likeliest tokens of this one; without it nobody asks for logits, and the
    compiler drops the head and the last layer's MLP, as it does at the end of a roll-out.
    """
    lengths, num = jnp.full(1, length, jnp.int32), jnp.full(1, width, jnp.int32)
    attend = Attend(lengths, lengths[:, None] + jnp.arange(width), jnp.ones((1, width), bool))

    def step(fixed: tuple[Any, Attend, Array], carry: tuple[Array, Any]) -> tuple[Array, Any]:
        params, attend, num = fixed
        tokens, cache = carry
        out = model.apply(params, tokens, cache, attend)
        following = rows.argmax(out.logits) if head else 1 - tokens
        return following, model.commit(out.pending, None, attend.lengths, num)

    return Repeated(step, (params, attend, num), (jnp.zeros((1, width), jnp.int32), model.init_cache(1, capacity)))


def bare_round(subject: Subject, k: int, capacity: int, length: int) -> Repeated:
    """`k` draft steps, one without head and a pass of the target over `k + 1` rows, one after the other, nothing else.

    What a round costs beside this is the library's own; what this costs beside its parts timed alone is the machine's:
    two models share the processor's caches.
    """
    one, block = jnp.ones((1, 1), bool), jnp.ones((1, k + 1), bool)

    def read(model: Model, params: Any, tokens: Array, cache: Any, at: Array, valid: Array) -> tuple[Array, Any]:
        attend = Attend(at, at[:, None] + jnp.arange(valid.shape[1]), valid)
        out = model.apply(params, tokens, cache, attend)
        return rows.argmax(out.logits), model.commit(out.pending, None, at, jnp.sum(valid, axis=1, dtype=jnp.int32))

    def step(fixed: tuple[Params, Array], carry: tuple[Array, Any, Any]) -> tuple[Array, Any, Any]:
        (params, base), (root, cache, draft_cache) = fixed, carry

        def draft(carry: tuple[Array, Any], index: Array) -> tuple[tuple[Array, Any], Array]:
            token, draft_cache = read(subject.draft_model, params.draft, carry[0], carry[1], base + index, one)
            return (token, draft_cache), token

        (last, draft_cache), drafted = jax.lax.scan(draft, (root, draft_cache), jnp.arange(k))
        _, draft_cache = read(subject.draft_model, params.draft, last, draft_cache, base + k, one)
        tokens = jnp.concatenate([root, drafted[:, :, 0].T], axis=1)
        following, cache = read(subject.model, params.target, tokens, cache, base, block)
        return following[:, -1:], cache, draft_cache

    caches = subject.model.init_cache(1, capacity), subject.draft_model.init_cache(1, capacity)
    return Repeated(step, (subject.both, jnp.full(1, length, jnp.int32)), (jnp.zeros((1, 1), jnp.int32), *caches))


@dataclasses.dataclass
class Loop:
    """The real decode loop over a few prompts, prefill and EOS left out; a call gives its seconds.

    Attributes:
      program: the compiled loop, caches donated.
      params: of target and draft.
      states: one for each prompt, after prefill.
      results: of the latest call.
    """

    program: Program
    params: Params
    states: list[State]
    results: list[Generation] = dataclasses.field(default_factory=list)

    def __call__(self) -> float:
        """Seconds of the loops of all prompts together."""
        total, self.results = 0.0, []
        for state in self.states:
            fresh = jax.block_until_ready(jax.tree.map(jnp.copy, state))
            (_, result), seconds = self.program(self.params, fresh)
            self.results.append(result)
            total += seconds
        return total

    @property
    def rounds(self) -> int:
        """Rounds of the latest call."""
        return sum(int(result.stats.rounds[0]) for result in self.results)

    def rounds_by_width(self, widths: Sequence[int]) -> dict[int, int]:
        """How many rounds of the latest call ran at each of the drafter's `widths` (see `decode.ladder`)."""
        count = dict.fromkeys(widths, 0)
        for result in self.results:
            for drafted in np.asarray(result.stats.drafted_per_round)[0, : int(result.stats.rounds[0])]:
                count[min(width for width in widths if width >= drafted)] += 1
        return count


def open_states(
    decoder: Decoder, subject: Subject, sampling: Sampling, max_new_tokens: int, count: int
) -> list[State]:
    """States of the first prompts after prefill, without EOS ids: every loop writes `max_new_tokens`."""
    params = pair_params(decoder, subject)
    states = []
    for index in range(min(count, len(subject.prompts))):
        request = checked_request(
            decoder.rules, params, *subject.row(index, subject.width), max_new_tokens=max_new_tokens,
            sampling=sampling)
        states.append(opened(decoder.rules, max_new_tokens, None, 1, params, request))
    return states


def pair_params(decoder: Decoder, subject: Subject) -> Params:
    """The parameters this decoder uses."""
    return subject.both if decoder.rules.drafter.needs_params else Params(subject.params)

