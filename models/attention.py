"""Grouped-query attention over a dense cache, and how far back a sliding layer sees."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from flax import nnx

from specjax._src import cache as kv
from specjax._src.types import Array, Attend
from specjax.models.config import DecoderConfig
from specjax.models.parts import RMSNorm, bias, normed, param, plus, softcap
from specjax.models.rope import rotate


def within(visible: Array, attend: Attend, window: int) -> Array:
    """`visible` bool [B, T, S] without the slots `window` positions or more before their query.

    A committed entry stands at the position of its slot; an entry of this call where `attend.positions` says, which in
    a tree is not its slot: siblings share a position. Of a tree that grows over several calls (a wide
    `Attend.ancestors`) the places in earlier calls are not told; but a token sees one entry of each position before its
    own, in their order.
    """
    if attend.ancestors is not None and attend.ancestors.shape[2] > attend.positions.shape[1]:
        return visible & (jnp.cumsum(visible[..., ::-1], axis=-1)[..., ::-1] <= window)
    slots = jnp.arange(visible.shape[-1], dtype=jnp.int32)
    inside = jnp.clip(slots - attend.lengths[:, None], 0, attend.positions.shape[1] - 1)
    placed = jnp.take_along_axis(attend.positions, inside, axis=1)
    where = jnp.where(slots < attend.lengths[:, None], slots, placed)
    return visible & (attend.positions[:, :, None] - where[:, None, :] < window)


class Attention(nnx.Module):
    """Grouped-query attention that writes its keys and values first and then reads what the cache stored."""

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs, dtype: jnp.dtype, width: int | None = None) -> None:
        """`width` is that of the input, where it is not the hidden size (EAGLE-3)."""
        c, width = config, width or config.hidden_size
        std = width**-0.5
        self.config = config
        self.query = param(rngs, (width, c.num_heads, c.head_dim), std, ("embed", "heads", "head_dim"), dtype)
        kv_shape, kv_names = (width, c.num_kv_heads, c.head_dim), ("embed", "kv_heads", "head_dim")
        self.key = param(rngs, kv_shape, std, kv_names, dtype)
        self.value = param(rngs, kv_shape, std, kv_names, dtype)
        out_std = (c.num_heads * c.head_dim * 2 * c.num_layers) ** -0.5
        out_shape, out_names = (c.num_heads, c.head_dim, c.hidden_size), ("heads", "head_dim", "embed")
        self.out = param(rngs, out_shape, out_std, out_names, dtype)
        self.query_bias = bias(c.qkv_bias, (c.num_heads, c.head_dim), ("heads", "head_dim"), dtype)
        self.key_bias = bias(c.qkv_bias, (c.num_kv_heads, c.head_dim), ("kv_heads", "head_dim"), dtype)
        self.value_bias = bias(c.qkv_bias, (c.num_kv_heads, c.head_dim), ("kv_heads", "head_dim"), dtype)
        self.out_bias = bias(c.out_bias, (c.hidden_size,), ("embed",), dtype)
        norm = functools.partial(
            RMSNorm, c.head_dim, c.rms_norm_eps, dtype, unit_offset=c.unit_offset_norm, names=("head_dim",))
        self.query_norm = norm() if c.qk_norm else None
        self.key_norm = norm() if c.qk_norm else None

    def __call__(
        self, x: Array, table: tuple[Array, Array], visible: Array, layer: kv.Layer | None, start: Array
    ) -> tuple[Array, kv.Layer]:
        """Attend from `x` over the slots marked in `visible` [B, T, S].

        Args:
          x: [B, T, width], normalised.
          table: rotary cosine and sine.
          visible: bool [B, T, S].
          layer: this layer's cache, or None to attend over the T tokens alone (then S = T).
          start: int32 [B], first slot to write.

        Returns:
          [B, T, D], and the layer's cache with the new entries.
        """
        c = self.config
        query, key, value = self._project(x, table)
        layer = {"k": key, "v": value} if layer is None else kv.write(layer, {"k": key, "v": value}, start)
        batch, length, kv_heads = *x.shape[:2], key.shape[1]  # by the weights: over many devices they may be repeated
        # The queries of one key head stand together as rows, so that both products are plain batched matrix products.
        grouped = query.reshape(batch, length, kv_heads, -1, c.head_dim)
        grouped = grouped.transpose(0, 2, 3, 1, 4).reshape(batch, kv_heads, -1, c.head_dim)
        scores = jnp.einsum(
            "bkqd,bksd->bkqs", grouped, layer["k"].astype(x.dtype), preferred_element_type=jnp.float32
        ).reshape(batch, kv_heads, -1, length, visible.shape[-1])
        scale = c.head_dim**-0.5 if c.attention_scale is None else c.attention_scale
        scores = jnp.where(visible[:, None, None], softcap(scores * scale, c.attention_softcap), -jnp.inf)
        # A padding query may see nothing; a finite floor keeps its row from turning into NaN.
        top = jnp.maximum(jnp.max(scores, axis=-1, keepdims=True), -1e30)
        weights = jnp.exp(scores - jax.lax.stop_gradient(top))
        weights = weights / jnp.maximum(jnp.sum(weights, axis=-1, keepdims=True), 1e-30)
        weights = weights.astype(x.dtype).reshape(batch, kv_heads, -1, visible.shape[-1])
        mixed = jnp.einsum("bkqs,bksd->bkqd", weights, layer["v"].astype(x.dtype))
        mixed = mixed.reshape(batch, kv_heads, -1, length, c.head_dim).transpose(0, 3, 1, 2, 4)
        # As one matrix: the einsum over split heads makes XLA transpose the kernel in every call.
        return plus(mixed.reshape(batch, length, -1) @ self.out[...].reshape(-1, c.hidden_size), self.out_bias), layer

    def _project(self, x: Array, table: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        """Queries [B, T, H, d], and keys and values [B, K, T, d] as the cache holds them."""
        query = normed(plus(jnp.einsum("btc,chd->bthd", x, self.query[...]), self.query_bias), self.query_norm)
        key = normed(plus(jnp.einsum("btc,ckd->btkd", x, self.key[...]), self.key_bias), self.key_norm)
        value = plus(jnp.einsum("btc,ckd->btkd", x, self.value[...]), self.value_bias)
        return rotate(query, table), rotate(key, table).swapaxes(1, 2), value.swapaxes(1, 2)
