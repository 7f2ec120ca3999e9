"""Toys whose state is not indexed by position, so that `commit` has to roll it back: a ring and a recurrent one.

Neither can score a tree (a token has exactly one past here): they refuse `ancestors`, and `check_model` is called with
`trees=False`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax._src import rows
from specjax._src.types import Array, Attend, Model, Output
from specjax.testing.toys import Toy

WINDOW = 8
WIDTH = 16


def ring(seed: int = 0, vocab_size: int = 16) -> Toy:
    """Attends to the last 8 tokens, which it keeps in a ring of 8 slots, int32 [B, 8]: token `i` in slot `i % 8`.

    Rejected tokens would overwrite live ones, so `apply` leaves the ring alone and `pending` carries the new tokens.
    """
    draw = np.random.default_rng(seed).normal
    params = {
        "embed": draw(size=(vocab_size, WIDTH)),
        "mix": draw(size=(WINDOW, WIDTH)),
        "out": draw(size=(WIDTH, vocab_size)),
    }
    return _RING, jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)


def recurrent(seed: int = 0, vocab_size: int = 16) -> Toy:
    """`h' = tanh(A h + embed[token])`; the cache is h, float32 [B, 16], and `pending` holds h after every token."""
    draw = np.random.default_rng(seed).normal
    params = {
        "embed": draw(size=(vocab_size, WIDTH)),
        "step": 0.7 * draw(size=(WIDTH, WIDTH)) / np.sqrt(WIDTH),
        "out": draw(size=(WIDTH, vocab_size)),
    }
    return _RECURRENT, jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), params)


class RingPending(NamedTuple):
    """The ring [B, 8] as it was, and the tokens of the call [B, T], which `commit` may put into it."""

    ring: Array
    tokens: Array


def _ring_cache(batch: int, capacity: int) -> Array:
    del capacity
    return jnp.full((batch, WINDOW), -1, jnp.int32)


def _ring_apply(params: Any, tokens: Array, cache: Array, attend: Attend) -> Output:
    _no_trees(attend)
    slots = (attend.lengths[:, None] + jnp.arange(WINDOW)) % WINDOW  # of the 8 positions before the call, oldest first
    known = attend.lengths[:, None] - WINDOW + jnp.arange(WINDOW) >= 0
    past = jnp.where(known, jnp.take_along_axis(cache, slots, axis=1), -1)
    line = jnp.concatenate([past, jnp.where(attend.valid, tokens, -1)], axis=1)
    total = jnp.zeros((*tokens.shape, WIDTH), jnp.float32)
    for back in range(WINDOW):
        seen = line[:, WINDOW - back : WINDOW - back + tokens.shape[1]]
        total += jnp.where(seen[..., None] >= 0, params["embed"][jnp.maximum(seen, 0)] * params["mix"][back], 0.0)
    return Output(jnp.tanh(total) @ params["out"], {}, RingPending(cache, tokens))


def _ring_commit(pending: RingPending, path: Array | None, base: Array, num: Array) -> Array:
    tokens = pending.tokens if path is None else jnp.take_along_axis(pending.tokens, path, axis=1)
    slot = jnp.arange(WINDOW)
    end = (base + num)[:, None]
    newest = end - 1 - (end - 1 - slot) % WINDOW  # the last position before `end` that belongs into the slot
    index = newest - base[:, None]
    fresh = jnp.take_along_axis(tokens, jnp.clip(index, 0, tokens.shape[1] - 1), axis=1)
    return jnp.where(index >= 0, fresh, pending.ring)


def _recurrent_cache(batch: int, capacity: int) -> Array:
    del capacity
    return jnp.zeros((batch, WIDTH), jnp.float32)


def _recurrent_apply(params: Any, tokens: Array, cache: Array, attend: Attend) -> Output:
    _no_trees(attend)

    def step(hidden: Array, token: Array) -> tuple[Array, Array]:
        hidden = jnp.tanh(hidden @ params["step"] + params["embed"][token])
        return hidden, hidden

    _, states = jax.lax.scan(step, cache, tokens.T)
    states = jnp.moveaxis(states, 0, 1)
    return Output(states @ params["out"], {}, jnp.concatenate([cache[:, None], states], axis=1))


def _recurrent_commit(pending: Array, path: Array | None, base: Array, num: Array) -> Array:
    del base
    if path is None:
        return rows.take(pending, num)
    last = jnp.take_along_axis(path, jnp.maximum(num - 1, 0)[:, None], axis=1)[:, 0]
    return rows.take(pending, jnp.where(num > 0, last + 1, 0))


def _no_trees(attend: Attend) -> None:
    if attend.ancestors is not None:
        raise ValueError("this model keeps one past for each row and can not score a tree: use a chain drafter")


_RING = Model(_ring_cache, _ring_apply, _ring_commit)
_RECURRENT = Model(_recurrent_cache, _recurrent_apply, _recurrent_commit)
