"""Grouped-query attention: the projections around `mix`, and the cache between them."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax.numpy as jnp
from flax import nnx

from specjax._src import cache as kv
from specjax._src.sight import Sight
from specjax._src.types import Array
from specjax.models.config import DecoderConfig
from specjax.models.mixing import Scoring, mix
from specjax.models.parts import RMSNorm, bias, normed, param, plus
from specjax.models.rope import rotate


class Reach(NamedTuple):
    """What the layers of one kind have in common in one call.

    Attributes:
      table: rotary cosine and sine.
      sight: what the tokens see.
      ring: whether the cache may be written round.
      way: see `specjax.models.mixing.mix`.
    """

    table: tuple[Array, Array]
    sight: Sight
    ring: bool = False
    way: str = "auto"


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

    def __call__(self, x: Array, reach: Reach, layer: kv.Layer | None) -> tuple[Array, kv.Layer]:
        """Attend from `x` to what `reach` shows.

        Args:
          x: [B, T, width], normalised.
          reach: see `Reach`.
          layer: this layer's cache, or None to attend over the T tokens alone.

        Returns:
          [B, T, D], and the layer's cache with the new entries.
        """
        c = self.config
        query, key, value = self._project(x, reach.table)
        new, way = {"k": key, "v": value}, reach.way
        if layer is None:  # all there is are these tokens, and nothing could be left out
            layer, way = new, "einsum" if way == "auto" else way
        else:
            layer = kv.write(layer, new, reach.sight.lengths, ring=reach.ring)
        scale = c.head_dim**-0.5 if c.attention_scale is None else c.attention_scale
        mixed = mix(query, layer, reach.sight, Scoring(scale, c.attention_softcap), way)
        # As one matrix: the einsum over split heads makes XLA transpose the kernel in every call.
        flat = mixed.reshape(*x.shape[:2], -1)
        return plus(flat @ self.out[...].reshape(-1, c.hidden_size), self.out_bias), layer

    def _project(self, x: Array, table: tuple[Array, Array]) -> tuple[Array, Array, Array]:
        """Queries [B, T, H, d], and keys and values [B, K, T, d] as the cache holds them."""
        query = normed(plus(jnp.einsum("btc,chd->bthd", x, self.query[...]), self.query_bias), self.query_norm)
        key = normed(plus(jnp.einsum("btc,ckd->btkd", x, self.key[...]), self.key_bias), self.key_norm)
        value = plus(jnp.einsum("btc,ckd->btkd", x, self.value[...]), self.value_bias)
        return rotate(query, table), rotate(key, table).swapaxes(1, 2), value.swapaxes(1, 2)
