"""Attention over a cache: a plain einsum over every slot, or block by block over those that are in use.

The einsum is the reference, and has no loop, so that a cost analysis sees all of it. Block by block
(arXiv:1805.02867, 2205.14135) the cost grows with the text and not with the capacity, and neither scores nor masks of a
whole cache stand in memory.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax._src import cache as kv
from specjax._src.sight import Sight, held, sees
from specjax._src.types import Array
from specjax.models.parts import softcap

WAYS = ("auto", "einsum", "blocks")
BLOCK, WIDE = 256, 1024
"""Slots that are read at a time. From slot `WIDE` on, a call of few tokens reads so many: a turn of the loop costs more
than what it reads in small ones, and no more than half of what is read is in vain."""
FEW = 32
"""Tokens of a call that may read wide blocks; the scores of more would be much memory."""
NOTHING = -1e30
"""Stands for the largest score of a query that sees nothing; finite, so that its row does not turn into NaN."""


class Scoring(NamedTuple):
    """How query and key make a score: `cap * tanh(scale * q k / cap)`, or `scale * q k` without a cap."""

    scale: float
    cap: float | None = None


def check_way(way: str) -> str:
    """`way`, if there is such a one. Raises ValueError."""
    if way not in WAYS:
        raise ValueError(f"attention={way!r} is not one of {', '.join(WAYS)}")
    return way


def mix(query: Array, layer: kv.Layer, sight: Sight, scoring: Scoring, way: str = "auto") -> Array:
    """What each query gathers of the values it sees: softmax of its scores, in float32, times the values.

    Args:
      query: [B, T, H, d], any floating dtype. H is a multiple of the K heads of the cache; heads that share a key head
        stand side by side.
      layer: keys and values [B, K, S, d] as the cache holds them, those of this call written already.
      sight: what each token sees. One that sees nothing gets zeros.
      scoring: see `Scoring`.
      way: "einsum", "blocks", or "auto": blocks where the cache has more than two of them. Both give the same up to
        rounding, and of a row the same whatever rows stand beside it.

    Returns:
      [B, T, H, d] in the dtype of `query`.

    Raises:
      ValueError: for an unknown way.
    """
    batch, length, heads, width = query.shape
    shared = layer["k"].shape[1]
    # The queries of one key head stand together as rows, so that both products are plain batched matrix products.
    rows = query.reshape(batch, length, shared, heads // shared, width).transpose(0, 2, 3, 1, 4)
    rows = rows.reshape(batch, shared, -1, width)
    in_blocks = check_way(way) == "blocks" or (way == "auto" and kv.slots(layer) > 2 * BLOCK)
    mixed = (_by_blocks if in_blocks else _whole)(scoring, rows, layer, sight)
    mixed = mixed.reshape(batch, shared, -1, length, width).transpose(0, 3, 1, 2, 4)
    return mixed.reshape(query.shape)


def _whole(scoring: Scoring, query: Array, layer: kv.Layer, sight: Sight) -> Array:
    """The reference: [B, K, G T, d] of `query` [B, K, G T, d], over every slot at once."""
    key, value = kv.read(layer, query.dtype)
    slots = jnp.arange(key.shape[2], dtype=jnp.int32)
    scores = _scores(scoring, query, key, sees(sight, held(sight, slots, key.shape[2])))
    top = jnp.maximum(jnp.max(scores, axis=-1, keepdims=True), NOTHING)
    weights = jnp.exp(scores - jax.lax.stop_gradient(top))
    weights = weights / jnp.maximum(jnp.sum(weights, axis=-1, keepdims=True), -1 / NOTHING)
    return jnp.einsum("bkqs,bksd->bkqd", weights.astype(query.dtype), value)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _by_blocks(scoring: Scoring, query: Array, layer: kv.Layer, sight: Sight) -> Array:
    """The same over the blocks that hold entries, with a running largest score, sum of weights and weighted sum.

    A block of which a query sees nothing changes none of its three, not by a bit; and where a block begins does not
    depend on the text. How many there are is told by the longest row that takes part in the call.
    """
    capacity = kv.slots(layer)
    used = jnp.minimum(jnp.max(jnp.where(sight.live > 0, sight.end, 0)), capacity)

    def add(size: int, index: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        top, total, mixed = carry
        start = jnp.minimum(index * size, capacity - size)  # the last block may begin before the one before it ends
        key, value = kv.read(layer, query.dtype, start, size)
        slots = start + jnp.arange(size, dtype=jnp.int32)
        seen = sees(sight, held(sight, slots, capacity)) & (slots >= index * size)
        scores = _scores(scoring, query, key, seen)
        higher = jnp.maximum(top, jnp.max(scores, axis=-1, keepdims=True))
        weights, kept = jnp.exp(scores - higher), jnp.exp(top - higher)
        share = jnp.einsum(
            "bkqs,bksd->bkqd", weights.astype(query.dtype), value, preferred_element_type=jnp.float32)
        return higher, total * kept + jnp.sum(weights, axis=-1, keepdims=True), mixed * kept + share

    rows = (*query.shape[:-1], 1)
    carry = jnp.full(rows, NOTHING, jnp.float32), jnp.zeros(rows, jnp.float32), jnp.zeros(query.shape, jnp.float32)
    wide = capacity > WIDE and sight.floor.shape[1] <= FEW
    small = min(BLOCK, capacity)
    first = jnp.minimum(used, WIDE) if wide else used
    carry = jax.lax.fori_loop(0, -(-first // small), functools.partial(add, small), carry)
    if wide:
        carry = jax.lax.fori_loop(1, -(-used // WIDE), functools.partial(add, WIDE), carry)
    _, total, mixed = carry
    return (mixed / jnp.maximum(total, -1 / NOTHING)).astype(query.dtype)


def _forward(scoring: Scoring, query: Array, layer: kv.Layer, sight: Sight) -> tuple[Array, tuple]:
    return _by_blocks(scoring, query, layer, sight), (query, layer, sight)


def _backward(scoring: Scoring, kept: tuple, change: Array) -> tuple:
    """By way of the reference: a loop whose length is not known when it is compiled has no way back of its own."""
    query, layer, sight = kept
    _, back = jax.vjp(lambda query, layer: _whole(scoring, query, layer, sight), query, layer)
    return (*back(change), None)


_by_blocks.defvjp(_forward, _backward)


def _scores(scoring: Scoring, query: Array, key: Array, seen: Array) -> Array:
    """float32 [B, K, G T, s] of `query` [B, K, G T, d] and `key` [B, K, s, d]; -inf but where `seen` [B, T, s]."""
    scores = jnp.einsum("bkqd,bksd->bkqs", query, key, preferred_element_type=jnp.float32)
    shape = scores.shape
    scores = scores.reshape(*shape[:2], -1, *seen.shape[1:])
    scores = jnp.where(seen[:, None, None], softcap(scores * scoring.scale, scoring.cap), -jnp.inf)
    return scores.reshape(shape)
