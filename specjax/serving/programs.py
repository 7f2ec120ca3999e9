"""The compiled programs of an engine: a row is read apart, put into the running batch, and goes through its rounds.

They are shared by all engines of one size and one set of rules. Every leaf of a state begins with the row axis.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax._src import decode, speculative
from specjax._src.decode import Rules
from specjax._src.request import Request
from specjax._src.state import FinishReason, State
from specjax._src.types import Array, Params
from specjax.serving.sizes import BEHIND, Sizes


class Report(NamedTuple):
    """What the host learns of one step, in one array [B, sum of widths] (int32; floats by their bits).

    Attributes:
      tokens: [B, R * P], new tokens of each row.
      count: [B, 1], how many of them there are.
      finish: [B, 1], `FinishReason`.
      counters: [B, 5], rounds, drafted, accepted, recovered, bonus, since the row began.
      positions: [B, 3 k], `Stats.drafted_`, `reached_` and `accepted_per_position`.
      rounds: [B, 2 R], `Stats.drafted_per_round` and `accepted_per_round` of this step's rounds.
      logprobs: [B, 2 R P], log-probabilities of `tokens` under the law sampled from and under the plain one; or [B, 0].
    """

    tokens: Any
    count: Any
    finish: Any
    counters: Any
    positions: Any
    rounds: Any
    logprobs: Any


def report_widths(rules: Rules, most: int) -> Report:
    """Columns of each part, where a step has `most` rounds."""
    shape = rules.drafter.shape
    tokens = most * (shape.depth + 1)
    return Report(tokens, 1, 1, 5, 3 * shape.num_speculative_tokens, 2 * most, 2 * tokens * rules.logprobs)


def unpacked(packed: Any, widths: Report) -> Report:
    """The parts of what `advance` reports, on the host: numpy."""
    return Report(*np.split(np.asarray(packed), np.cumsum(widths)[:-1], axis=1))


@functools.partial(jax.jit, static_argnums=(0, 1))
def blank(rules: Rules, sizes: Sizes, params: Params, request: Request) -> State:
    """Free rows, one for each of `request`: ended, without text."""
    slots = sizes.capacity + max(rules.drafter.shape.num_nodes, BEHIND)
    return speculative.empty_state(rules, params, request, sizes.max_new_tokens, sizes.capacity, slots)


@functools.partial(jax.jit, static_argnums=(0,))
def begin(rules: Rules, params: Params, stored: State, request: Request) -> State:
    """A row with the text and settings of `request` (of one row), on a copy of what `stored` has read."""
    state = jax.tree.map(jnp.copy, stored)  # else jax would hand the very arrays on, to be donated by `read`
    state = replace(
        state, length=jnp.zeros_like(stored.length), wanted=request.limits, key=request.key, sampling=request.sampling,
        eos=request.eos, stop=request.stop, max_drafts=request.max_drafts)
    return speculative.begin_turn(rules, params, state, request.prompts, request.lengths)


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=(3,))
def read(rules: Rules, width: int, params: Params, state: State, entries: Array) -> State:
    """One pass over at most `width` tokens behind the first `entries` [1], by target and drafter; the root is left."""
    reached = jnp.minimum(entries + width + 1, state.length)
    read = decode.feed(rules, params, state, entries, reached, width)
    read = decode.catch_up(rules, params, replace(read, length=reached))
    return replace(read, length=state.length)


@functools.partial(jax.jit, static_argnums=(0,), donate_argnums=(2,))
def insert(rules: Rules, params: Params, state: State, row: State, slot: Array) -> State:
    """The running batch with the one row of `row` in place of row `slot` (int32 []), which must have ended."""
    row = decode.settle(row)
    state = jax.tree.map(lambda batch, one: batch.at[slot].set(one[0]), state, row)
    return decode.plan_round(rules, params, state)


@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=(3,))
def advance(
    rules: Rules, most: int, params: Params, state: State, evicted: Array, pause: Array
) -> tuple[State, Array]:
    """At most `most` rounds over the running batch without the rows `evicted` (bool [B]): the state, a packed `Report`.

    With `pause` (bool []) it comes back as soon as a row has ended.
    """
    finish = jnp.where(evicted & state.live, FinishReason.CANCELLED, state.finish)
    before = replace(state, finish=finish, drafts=jnp.where(evicted, 0, state.drafts))
    after = decode.rounds(rules, params, before, most, pause)
    return after, jnp.concatenate(_report(rules, most, before, after), axis=1)


def _report(rules: Rules, most: int, before: State, after: State) -> Report:
    widths, stats = report_widths(rules, most), after.stats
    rounds = [_window(record, before.stats.rounds, most)
              for record in (stats.drafted_per_round, stats.accepted_per_round)]
    counters = (stats.rounds, stats.drafted, stats.accepted, stats.recovered, stats.bonus)
    logprobs = [jax.lax.bitcast_convert_type(_window(record, before.generated, widths.tokens), jnp.int32)
                for record in (after.logprobs, after.raw_logprobs) if record is not None]
    return Report(
        tokens=_window(after.tokens, before.length, widths.tokens),
        count=(after.length - before.length)[:, None],
        finish=after.finish[:, None],
        counters=jnp.stack(counters, axis=1),
        positions=jnp.concatenate(
            [stats.drafted_per_position, stats.reached_per_position, stats.accepted_per_position], axis=1),
        rounds=jnp.concatenate(rounds, axis=1),
        logprobs=jnp.concatenate(logprobs, axis=1) if logprobs else jnp.zeros((after.length.shape[0], 0), jnp.int32))


def _window(buffer: Array, start: Array, width: int) -> Array:
    """`width` columns of each row from `start` [B] on; what would lie beyond the buffer is anything."""
    place = jnp.minimum(start[:, None] + jnp.arange(width), buffer.shape[1] - 1)
    return jnp.take_along_axis(buffer, place, axis=1)
