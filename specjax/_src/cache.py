"""A dense key-value cache as plain arrays: one `{"k", "v"}` dict per layer, each [B, K, S, d] (K heads, S slots).

Slots are positions in the cache, not in the text: entry `i` of a row stands in slot `i`, dead entries are masked by the
row's length and later overwritten, never erased. Every function is written so that XLA updates a donated or
loop-carried buffer in place (tests/models/test_cache.py reads the compiled programs).
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from specjax._src.types import Array, Attend

Layer = dict[str, Array]
Cache = tuple[Layer, ...]
AXES = ("rows", "kv_heads", "slots", "head_dim")
"""Names of the axes of each array of a layer, by which it is laid out over devices (`specjax.sharding`)."""


def init(num_layers: int, batch: int, heads: int, capacity: int, head_dim: int, dtype: jnp.dtype) -> Cache:
    """An empty cache: per layer zeros [batch, heads, capacity, head_dim] for `k` and for `v`."""
    shape = (batch, heads, capacity, head_dim)
    return tuple({"k": jnp.zeros(shape, dtype), "v": jnp.zeros(shape, dtype)} for _ in range(num_layers))


def capacity(cache: Sequence[Layer]) -> int:
    """Number of slots S of a cache."""
    return cache[0]["k"].shape[2]


def write(layer: Layer, new: Layer, start: Array) -> Layer:
    """Put `new` [B, K, T, d] into slots `start .. start + T` of a layer [B, K, S, d]; `start` int32 [B].

    The caller promises `start + T <= S`; XLA would shift a block that does not fit.
    """
    return {name: _write(layer[name], new[name].astype(layer[name].dtype), start) for name in layer}


def _write(buffer: Array, new: Array, start: Array) -> Array:
    """One window for each row and head. As a scatter of several windows it stays out of XLA's fusions: a plain slice
    update is fused into the attention that reads it, which then needs the old buffer too, and copies it."""
    batch, heads = buffer.shape[:2]
    start = jnp.broadcast_to(start[:, None], (batch, heads))
    if batch * heads == 1:  # a single window would be turned back into a slice update: add one that is dropped
        place = jnp.append(start[0] + jnp.arange(new.shape[2]), buffer.shape[2])
        return buffer.at[0, 0, place].set(jnp.pad(new[0, 0], ((0, 1), (0, 0))), mode="drop", unique_indices=True)
    return jax.vmap(jax.vmap(lambda b, n, s: lax.dynamic_update_slice(b, n, (s, 0))))(buffer, new, start)


def visible(attend: Attend, slots: int) -> Array:
    """Which slots each token of a call may see, bool [B, T, slots], once its own block is written at `lengths ..`."""
    tokens = attend.positions.shape[1]
    offset = jnp.arange(slots, dtype=jnp.int32)[None, :] - attend.lengths[:, None]
    before = (offset < 0)[:, None, :]
    if attend.ancestors is None:
        live = jnp.sum(attend.valid, axis=1, dtype=jnp.int32)
        causal = offset[:, None, :] <= jnp.arange(tokens, dtype=jnp.int32)[None, :, None]
        return causal & (offset < live[:, None])[:, None, :]
    earlier = attend.ancestors.shape[2] - tokens  # slots before the block that not every token may see
    block = jnp.broadcast_to(attend.ancestors, (offset.shape[0], tokens, earlier + tokens))
    block &= jnp.pad(attend.valid, ((0, 0), (earlier, 0)), constant_values=True)[:, None, :]
    index = jnp.clip(offset + earlier, 0, earlier + tokens - 1)[:, None, :]
    inside = ((offset >= -earlier) & (offset < tokens))[:, None, :]
    return (before & (offset < -earlier)[:, None, :]) | (inside & jnp.take_along_axis(block, index, axis=2))


def commit(pending: Cache, path: Array | None, base: Array, num: Array) -> Cache:
    """Keep the path `path[:num]` of the last call's tokens right after the first `base` entries.

    Args:
      pending: the cache as `apply` left it, the call's T tokens at slots `base .. base + T`.
      path: int32 [B, P], indices into the T tokens, or None for a chain, whose tokens already stand in place.
      base: int32 [B], entries before the call.
      num: int32 [B]; entries past `base + num` are dead and may hold anything.

    Returns:
      The cache. On a chain it is `pending` itself.
    """
    del num
    if path is None:
        return pending
    rows = base[:, None] + path

    def keep(buffer: Array) -> Array:
        chosen = jnp.take_along_axis(buffer, rows[:, None, :, None], axis=2)
        return _write(buffer, chosen, base)

    return jax.tree.map(keep, pending)
