"""The state of a generation, what it counted, and what it returns."""

from __future__ import annotations

import enum
from typing import Any

import jax.numpy as jnp

from specjax._src.sampling import History, Sampling
from specjax._src.types import Array, pytree


class FinishReason(enum.IntEnum):
    """Why a row ended. `RUNNING` is seen only in the state of a decoder, never in a finished `Generation`."""

    RUNNING = -1
    LENGTH = 0
    """Its budget of tokens is used up."""
    EOS = 1
    """It emitted an EOS id."""
    STOP = 2
    """It completed a stop sequence, or its constraint is done."""
    CAPACITY = 3
    """The cache is full before the budget is used up."""
    ERROR = 4
    """The target's logits were not finite, or no token was allowed; the tokens before are good."""
    CANCELLED = 5
    """It was taken out of a `specjax.serving.Engine`; the tokens before are good."""


@pytree
class Stats:
    """What happened, counted for each row up to its end and no further.

    `accepted + recovered + bonus == lengths` of the generation. Tokens that a round proposed behind the end of the row
    are not counted as drafted.

    Attributes:
      rounds: int32 [B], passes of the target in which the row took part (prefill not counted).
      drafted: int32 [B], tokens proposed.
      accepted: int32 [B], proposed tokens that were kept.
      recovered: int32 [B], tokens the target drew after it refused a proposed one.
      bonus: int32 [B], tokens the target drew after a block that it kept whole (every token of plain decoding is one).
      drafted_per_position: int32 [B, k], rounds in which position `i` of the block (depth `i + 1` of the tree) was
        proposed.
      reached_per_position: int32 [B, k], rounds in which position `i` was proposed behind tokens that were all kept.
      accepted_per_position: int32 [B, k], rounds in which position `i` of the block was kept.
      drafted_per_round: int32 [B, R], 0 past the row's end.
      accepted_per_round: int32 [B, R], 0 past the row's end.
    """

    rounds: Array
    drafted: Array
    accepted: Array
    recovered: Array
    bonus: Array
    drafted_per_position: Array
    reached_per_position: Array
    accepted_per_position: Array
    drafted_per_round: Array
    accepted_per_round: Array

    @property
    def mean_accepted_length(self) -> Array:
        """Tokens emitted per round, the recovered or bonus token included: float32 [B] (also known as tau, or block
        efficiency); 0 for a row without rounds."""
        return _ratio(self.accepted + self.recovered + self.bonus, self.rounds)

    @property
    def acceptance_rate(self) -> Array:
        """Accepted over drafted tokens: float32 [B]; 0 where nothing was drafted."""
        return _ratio(self.accepted, self.drafted)

    @property
    def acceptance_rate_per_position(self) -> Array:
        """Share of all rounds in which position `i` was kept (unconditional): float32 [B, k]."""
        return _ratio(self.accepted_per_position, self.rounds[:, None])

    @property
    def conditional_acceptance_rate_per_position(self) -> Array:
        """Of the rounds that proposed position `i` and kept all before it, the share that kept `i`: float32 [B, k]."""
        return _ratio(self.accepted_per_position, self.reached_per_position)


@pytree
class Generation:
    """Generated text, with its record.

    Attributes:
      tokens: int32 [B, max_new_tokens]; the EOS, or the token that completes a stop, is the last; 0 past the end.
      lengths: int32 [B], tokens generated.
      finish_reason: int32 [B], see `FinishReason`.
      stats: see `Stats`.
      logprobs: float32 [B, max_new_tokens] or None, log-probability of each token under the law it was sampled from
        (0 for greedy rows, whose law is certain; 0 past the end). Only with `logprobs=True`.
      raw_logprobs: float32 [B, max_new_tokens] or None, the same under the target's untransformed softmax.
    """

    tokens: Array
    lengths: Array
    finish_reason: Array
    stats: Stats
    logprobs: Array | None = None
    raw_logprobs: Array | None = None


@pytree
class State:
    """Everything a round needs; every leaf has a leading row axis, so rows can be gathered, donated and sharded.

    Attributes:
      tokens: int32 [B, L], prompt and output; dead from `length` on.
      length: int32 [B], committed tokens.
      start: int32 [B], where the output of this turn begins.
      limit: int32 [B], the most tokens the row may generate (budget and capacity).
      wanted: int32 [B], the budget alone; a row that ends at a smaller `limit` ends by capacity.
      capacity: int32 [B], the most tokens the row may hold, prompt and output together.
      finish: int32 [B], `FinishReason`.
      drafts: int32 [B], tokens to propose in the next round.
      max_drafts: int32 [B], k of the row.
      key: typed PRNG keys [B].
      sampling: `Sampling` by row.
      eos: int32 [B, E], padded with -1.
      stop: int32 [B, Q, W], stop sequences, right-aligned and padded with -1.
      cache: the target's.
      draft: the drafter's state.
      features: dict of name to [B, F], of the last token that went through the target.
      rule_state: of the constraint, or None.
      stats: of this turn.
      logprobs: float32 [B, M] or None.
      raw_logprobs: float32 [B, M] or None.
    """

    tokens: Array
    length: Array
    start: Array
    limit: Array
    wanted: Array
    capacity: Array
    finish: Array
    drafts: Array
    max_drafts: Array
    key: Array
    sampling: Sampling
    eos: Array
    stop: Array
    cache: Any
    draft: Any
    features: dict[str, Array]
    rule_state: Any
    stats: Stats
    logprobs: Array | None
    raw_logprobs: Array | None

    @property
    def live(self) -> Array:
        """Rows that still generate: bool [B]."""
        return self.finish == FinishReason.RUNNING

    @property
    def generated(self) -> Array:
        """Tokens generated in this turn: int32 [B]."""
        return self.length - self.start

    @property
    def out_of_room(self) -> Array:
        """Why a row ends that has used up its `limit`: int32 [B], `FinishReason`."""
        return jnp.where(self.limit < self.wanted, FinishReason.CAPACITY, FinishReason.LENGTH).astype(jnp.int32)

    @property
    def history(self) -> History:
        """The view of the sampling transforms."""
        return History(self.tokens, self.length, self.start, self.eos, self.sampling)


@pytree
class Info:
    """What one round did.

    Attributes:
      tokens: int32 [B, P], tokens emitted; 0 past `counts`.
      counts: int32 [B]; 0 for rows that had ended.
      num_drafted: int32 [B].
      num_accepted: int32 [B].
    """

    tokens: Array
    counts: Array
    num_drafted: Array
    num_accepted: Array


def no_stats(batch: int, num_speculative_tokens: int, max_rounds: int) -> Stats:
    """Counters at zero."""
    row = jnp.zeros(batch, jnp.int32)
    position = jnp.zeros((batch, num_speculative_tokens), jnp.int32)
    record = jnp.zeros((batch, max_rounds), jnp.int32)
    return Stats(row, row, row, row, row, position, position, position, record, record)


def count_round(
    stats: Stats, live: Array, drafted: Array, num_accepted: Array, refused: Array, emitted: Array, ended: Array
) -> Stats:
    """Counters after a round.

    Args:
      stats: before it.
      live: bool [B], rows that took part.
      drafted: int32 [B, k], tokens proposed at each depth.
      num_accepted: int32 [B], tokens the verifier kept, before the row's end cut them.
      refused: bool [B], something was proposed behind the kept tokens.
      emitted: int32 [B], tokens that count.
      ended: bool [B], the row ended in this round: what was proposed behind its end does not count.
    """
    accepted = jnp.minimum(num_accepted, emitted)
    own = emitted - accepted  # 1 where the target's own token counts, else 0
    position = jnp.arange(stats.accepted_per_position.shape[1])
    drafted = jnp.pad(drafted, ((0, 0), (0, len(position) - drafted.shape[1])))  # a narrower rung
    drafted = jnp.where(ended[:, None] & (position >= emitted[:, None]), 0, drafted)
    counted = jnp.sum(drafted, axis=1, dtype=jnp.int32)
    proposed, kept = drafted > 0, position < accepted[:, None]
    reached = proposed & (kept | ((position == accepted[:, None]) & refused[:, None]))
    # A record as long as the budget has room for every round, since a round emits at least one token.
    here = (jnp.arange(stats.drafted_per_round.shape[1]) == stats.rounds[:, None]) & live[:, None]
    return Stats(
        rounds=stats.rounds + live,
        drafted=stats.drafted + counted,
        accepted=stats.accepted + accepted,
        recovered=stats.recovered + own * refused,
        bonus=stats.bonus + own * ~refused,
        drafted_per_position=stats.drafted_per_position + proposed,
        reached_per_position=stats.reached_per_position + reached,
        accepted_per_position=stats.accepted_per_position + kept,
        drafted_per_round=stats.drafted_per_round + here * counted[:, None],
        accepted_per_round=stats.accepted_per_round + here * accepted[:, None],
    )


def _ratio(part: Array, whole: Array) -> Array:
    return jnp.where(whole > 0, part / jnp.maximum(whole, 1), 0.0)
