"""The one ending rule: where a row stops, for tokens, log-probabilities, statistics and cache alike.

`tokens` include the EOS, or the token that completes a stop. Stops match generated tokens only, across rounds.
"""

from __future__ import annotations

import jax.numpy as jnp

from specjax._src import rows
from specjax._src.state import FinishReason, State
from specjax._src.types import Array


def cut(state: State, emitted: Array, available: Array, rule_done: Array, broken: Array) -> tuple[Array, Array]:
    """How many of a round's tokens count, and whether they end the row.

    Args:
      state: before the round.
      emitted: int32 [B, P], the path and the target's own token.
      available: int32 [B], how many of them there are; 0 for rows that are not live.
      rule_done: bool [B, P], the constraint is done after this token.
      broken: bool [B], the target could not draw the token that would follow.

    Returns:
      counts: int32 [B], tokens that count, at most `available`.
      finish: int32 [B], `FinishReason` after the round; unchanged for rows that are not live.
    """
    place = jnp.arange(emitted.shape[1])
    here = place < available[:, None]
    generated = state.generated[:, None] + place + 1  # with this token
    patient = generated >= state.sampling.min_new_tokens[:, None]
    is_eos = here & jnp.any(emitted[:, :, None] == state.eos[:, None, :], axis=-1)
    is_stop = here & ((_completes_stop(state, emitted) & patient) | rule_done)
    is_last = here & (generated >= state.limit[:, None])

    ends = is_eos | is_stop | is_last
    ended = jnp.any(ends, axis=1)
    first = jnp.argmax(ends, axis=1)
    counts = jnp.where(ended, first + 1, available).astype(jnp.int32)

    reason = jnp.where(rows.take(is_stop, first), FinishReason.STOP, state.out_of_room)
    reason = jnp.where(rows.take(is_eos, first), FinishReason.EOS, reason)
    unended = jnp.where(broken, FinishReason.ERROR, FinishReason.RUNNING)
    finish = jnp.where(ended, reason, unended)
    return counts, jnp.where(state.live, finish, state.finish).astype(jnp.int32)


def _completes_stop(state: State, emitted: Array) -> Array:
    """Whether a stop sequence ends at each emitted token: bool [B, P]."""
    width = state.stop.shape[2]
    # The text around the round: the last `width - 1` generated tokens, then the emitted ones.
    padded = jnp.pad(state.tokens, ((0, 0), (width - 1, 0)), constant_values=-1)
    before = rows.window(padded, state.length, width - 1)
    place = state.length[:, None] - (width - 1) + jnp.arange(width - 1)
    before = jnp.where(place >= state.start[:, None], before, -2)  # a prompt token is part of no stop
    text = jnp.concatenate([before, emitted], axis=1)
    tails = jnp.stack([text[:, i : i + width] for i in range(emitted.shape[1])], axis=1)  # [B, P, W]
    same = (tails[:, :, None] == state.stop[:, None]) | (state.stop[:, None] == -1)
    real = jnp.any(state.stop >= 0, axis=-1)
    return jnp.any(jnp.all(same, axis=-1) & real[:, None], axis=-1)
