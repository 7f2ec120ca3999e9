"""A key-value cache as plain arrays: one `{"k", "v"}` dict per layer, each [B, K, S, d] (K heads, S slots).

Entry `i` of a row stands in slot `i % S`. A layer with a slot for every entry is never written round; one that sees a
window only may be a ring (`specjax.cache.write` says how large it must be). Slots count entries, not positions of the
text; dead entries are masked by the row's length and later overwritten, never erased. Every function is written so that
XLA updates a donated or loop-carried buffer in place (tests/models/test_cache.py reads the compiled programs).

A layer is written by `write` and `commit` and read by `read`, nowhere else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from specjax._src.sight import held, sees, sight_of
from specjax._src.types import Array, Attend

Layer = dict[str, Array]
Cache = tuple[Layer, ...]
AXES = ("rows", "kv_heads", "slots", "head_dim")
"""Names of the axes of each array of a layer, by which it is laid out over devices (`specjax.sharding`)."""


def init(
    num_layers: int, batch: int, heads: int, capacity: int, head_dim: int, dtype: jnp.dtype,
    rings: Mapping[int, int] | None = None,
) -> Cache:  # fmt: skip
    """An empty cache: per layer zeros [batch, heads, S, head_dim] for `k` and for `v`.

    S is `capacity`, or what `rings` says of the layer with that index, if that is less.
    """
    sizes = [min(capacity, (rings or {}).get(index, capacity)) for index in range(num_layers)]
    shapes = [(batch, heads, size, head_dim) for size in sizes]
    return tuple({"k": jnp.zeros(shape, dtype), "v": jnp.zeros(shape, dtype)} for shape in shapes)


def slots(layer: Layer) -> int:
    """Number of slots S of one layer."""
    return layer["k"].shape[2]


def capacity(cache: Sequence[Layer]) -> int:
    """Number of slots of a cache: those of its longest layer."""
    return max(slots(layer) for layer in cache)


def read(layer: Layer, dtype: jnp.dtype, start: Array | int = 0, size: int | None = None) -> tuple[Array, Array]:
    """Keys and values of slots `start .. start + size`, all without a size: each [B, K, size, d] in `dtype`."""
    parts = (layer["k"], layer["v"])
    if size is not None:
        parts = tuple(lax.dynamic_slice_in_dim(part, start, size, axis=2) for part in parts)  # type: ignore[assignment]
    return parts[0].astype(dtype), parts[1].astype(dtype)


def write(layer: Layer, new: Layer, start: Array, *, ring: bool = False) -> Layer:
    """Put `new` [B, K, T, d] where entries `start .. start + T` stand in a layer [B, K, S, d]; `start` int32 [B].

    Without `ring` the caller promises `start + T <= S`; XLA would shift a block that does not fit. With it the layer
    may be written round. What a token sees through a window of W is whole if `W + T - 1 <= S` and no entry was ever
    written further than `S - W` before the row's length fell back: invalid and refused tokens are written too, and lie
    on entries that no later token sees.
    """
    return {name: _write(layer[name], new[name].astype(layer[name].dtype), start, ring) for name in layer}


def _write(buffer: Array, new: Array, start: Array, ring: bool) -> Array:
    """One window for each row and head, in a ring one for each token. As a scatter of several windows it stays out of
    XLA's fusions: a plain slice update is fused into the attention that reads it, which then needs the old buffer too,
    and copies it."""
    batch, heads, size, _ = buffer.shape
    start = jnp.broadcast_to(start[:, None], (batch, heads))
    if not ring and batch * heads > 1:
        return jax.vmap(jax.vmap(lambda b, n, s: lax.dynamic_update_slice(b, n, (s, 0))))(buffer, new, start)
    place = (start[..., None] + jnp.arange(new.shape[2], dtype=jnp.int32)) % size
    if batch * heads == 1:  # a single window would be turned back into a slice update: add one that is dropped
        place = jnp.append(place, size)[None, None]
        new = jnp.pad(new, ((0, 0), (0, 0), (0, 1), (0, 0)))
    return jax.vmap(jax.vmap(lambda b, n, p: b.at[p].set(n, mode="drop", unique_indices=True)))(buffer, new, place)


def visible(attend: Attend, slots: int, window: int | None = None) -> Array:
    """Which slots each token of a call may see, bool [B, T, slots], once its own block is written behind `lengths`.

    With a `window` no further back than so many positions, its own included; then `slots` may be those of a ring.
    """
    sight = sight_of(attend, window)
    return sees(sight, held(sight, jnp.arange(slots, dtype=jnp.int32), slots))


def commit(
    pending: Cache, path: Array | None, base: Array, num: Array, *, rings: Collection[int] = ()
) -> Cache:
    """Keep the path `path[:num]` of the last call's tokens right after the first `base` entries.

    Args:
      pending: the cache as `apply` left it, the call's T tokens behind the first `base` entries.
      path: int32 [B, P], indices into the T tokens, or None for a chain, whose tokens already stand in place.
      base: int32 [B], entries before the call.
      num: int32 [B]; entries past `base + num` are dead and may hold anything.
      rings: indices of layers that may be written round.

    Returns:
      The cache. On a chain it is `pending` itself.
    """
    del num
    if path is None:
        return pending
    entries = base[:, None] + path

    def keep(layer: Layer, ring: bool) -> Layer:
        where = (entries % slots(layer))[:, None, :, None]
        chosen = {name: jnp.take_along_axis(part, where, axis=2) for name, part in layer.items()}
        return write(layer, chosen, base, ring=ring)

    return tuple(keep(layer, index in rings) for index, layer in enumerate(pending))
