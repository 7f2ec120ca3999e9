"""A Llama-type decoder in flax.nnx: pre-norm RMSNorm, rotary positions, grouped-query attention, gated MLP.

Layers are unrolled. Kernels are stored `[in, out]` with the heads split (`[D, H, d]`, `[H, d, D]`), so that every axis
that a mesh may split is an axis of the array. Logical names are given once per array, and `axis_names` reads them:
`vocab`, `embed`, `heads`, `kv_heads`, `head_dim`, `mlp`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from specjax._src import cache as kv
from specjax._src.types import Array, Attend, Output
from specjax.models.config import DecoderConfig

Names = tuple[str | None, ...]


def _param(rngs: nnx.Rngs, shape: tuple[int, ...], std: float, names: Names, dtype: jnp.dtype) -> nnx.Param:
    # Eager placement would need a mesh while the weights are made; the names alone are metadata for whoever shards.
    value = std * jax.random.normal(rngs.params(), shape, dtype)
    return nnx.Param(value, out_sharding=names, eager_sharding=False)


class RMSNorm(nnx.Module):
    """`x / rms(x) * scale`, computed in float32 and rounded once before the scale, as Llama checkpoints expect."""

    def __init__(self, width: int, eps: float, dtype: jnp.dtype) -> None:
        self.eps = eps
        self.scale = nnx.Param(jnp.ones((width,), dtype), out_sharding=("embed",), eager_sharding=False)

    def __call__(self, x: Array) -> Array:
        """Normalise the last axis of `x`."""
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.eps)
        return wide.astype(x.dtype) * self.scale[...]


def rotary_table(positions: Array, head_dim: int, theta: float) -> tuple[Array, Array]:
    """Cosine and sine float32 [B, T, head_dim / 2] for int32 positions [B, T]."""
    frequencies = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angles = positions[..., None].astype(jnp.float32) * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def rotate(x: Array, table: tuple[Array, Array]) -> Array:
    """Turn the half-split pairs `(j, j + d/2)` of `x` [B, T, heads, d] by the table's angles."""
    cos, sin = (t[:, :, None, :] for t in table)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


class Attention(nnx.Module):
    """Grouped-query attention that writes its keys and values first and then reads what the cache stored."""

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs, dtype: jnp.dtype) -> None:
        c, std = config, config.hidden_size**-0.5
        self.config = config
        self.query = _param(rngs, (c.hidden_size, c.num_heads, c.head_dim), std, ("embed", "heads", "head_dim"), dtype)
        kv_shape, kv_names = (c.hidden_size, c.num_kv_heads, c.head_dim), ("embed", "kv_heads", "head_dim")
        self.key = _param(rngs, kv_shape, std, kv_names, dtype)
        self.value = _param(rngs, kv_shape, std, kv_names, dtype)
        out_std = (c.num_heads * c.head_dim * 2 * c.num_layers) ** -0.5
        out_shape, out_names = (c.num_heads, c.head_dim, c.hidden_size), ("heads", "head_dim", "embed")
        self.out = _param(rngs, out_shape, out_std, out_names, dtype)

    def __call__(
        self, x: Array, table: tuple[Array, Array], visible: Array, layer: kv.Layer | None, start: Array
    ) -> tuple[Array, kv.Layer]:
        """Attend from `x` [B, T, D] over the slots marked in `visible` [B, T, S].

        Args:
          x: [B, T, D], normalised.
          table: rotary cosine and sine.
          visible: bool [B, T, S].
          layer: this layer's cache, or None to attend over the T tokens alone (then S = T).
          start: int32 [B], first slot to write.

        Returns:
          [B, T, D], and the layer's cache with the new entries.
        """
        c = self.config
        query = rotate(jnp.einsum("btc,chd->bthd", x, self.query[...]), table)
        key = rotate(jnp.einsum("btc,ckd->btkd", x, self.key[...]), table).swapaxes(1, 2)
        value = jnp.einsum("btc,ckd->btkd", x, self.value[...]).swapaxes(1, 2)
        layer = {"k": key, "v": value} if layer is None else kv.write(layer, {"k": key, "v": value}, start)
        batch, length = x.shape[:2]
        # The queries of one key head stand together as rows, so that both products are plain batched matrix products.
        grouped = query.reshape(batch, length, c.num_kv_heads, -1, c.head_dim)
        grouped = grouped.transpose(0, 2, 3, 1, 4).reshape(batch, c.num_kv_heads, -1, c.head_dim)
        scores = jnp.einsum(
            "bkqd,bksd->bkqs", grouped, layer["k"].astype(x.dtype), preferred_element_type=jnp.float32
        ).reshape(batch, c.num_kv_heads, -1, length, visible.shape[-1])
        scores = jnp.where(visible[:, None, None], scores * c.head_dim**-0.5, -jnp.inf)
        # A padding query may see nothing; a finite floor keeps its row from turning into NaN.
        top = jnp.maximum(jnp.max(scores, axis=-1, keepdims=True), -1e30)
        weights = jnp.exp(scores - jax.lax.stop_gradient(top))
        weights = weights / jnp.maximum(jnp.sum(weights, axis=-1, keepdims=True), 1e-30)
        weights = weights.astype(x.dtype).reshape(batch, c.num_kv_heads, -1, visible.shape[-1])
        mixed = jnp.einsum("bkqs,bksd->bkqd", weights, layer["v"].astype(x.dtype))
        mixed = mixed.reshape(batch, c.num_kv_heads, -1, length, c.head_dim).transpose(0, 3, 1, 2, 4)
        # As one matrix: the einsum over split heads makes XLA transpose the kernel in every call.
        return mixed.reshape(batch, length, -1) @ self.out[...].reshape(-1, c.hidden_size), layer


class MLP(nnx.Module):
    """`down(silu(gate(x)) * up(x))`."""

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs, dtype: jnp.dtype) -> None:
        c, std = config, config.hidden_size**-0.5
        self.gate = _param(rngs, (c.hidden_size, c.intermediate_size), std, ("embed", "mlp"), dtype)
        self.up = _param(rngs, (c.hidden_size, c.intermediate_size), std, ("embed", "mlp"), dtype)
        down_std = (c.intermediate_size * 2 * c.num_layers) ** -0.5
        self.down = _param(rngs, (c.intermediate_size, c.hidden_size), down_std, ("mlp", "embed"), dtype)

    def __call__(self, x: Array) -> Array:
        """[B, T, D] to [B, T, D]."""
        return (jax.nn.silu(x @ self.gate[...]) * (x @ self.up[...])) @ self.down[...]


class Block(nnx.Module):
    """One pre-norm transformer layer."""

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs, dtype: jnp.dtype) -> None:
        self.attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.attention = Attention(config, rngs, dtype)
        self.mlp_norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.mlp = MLP(config, rngs, dtype)

    def __call__(
        self, x: Array, table: tuple[Array, Array], visible: Array, layer: kv.Layer | None, start: Array
    ) -> tuple[Array, kv.Layer]:
        """Arguments and result as `Attention`, with the residual stream for `x`."""
        mixed, layer = self.attention(self.attention_norm(x), table, visible, layer, start)
        x = x + mixed
        return x + self.mlp(self.mlp_norm(x)), layer


class Decoder(nnx.Module):
    """A decoder-only language model with a dense key-value cache.

    The module keeps the calling convention of `specjax.models.from_nnx`: `init_cache(batch, capacity)` and
    `module(tokens, cache, attend) -> Output`.
    """

    def __init__(self, config: DecoderConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype = jnp.float32) -> None:
        """Draw random weights of `dtype`, in which the arithmetic and the cache are kept too."""
        dtype = jnp.dtype(dtype)  # one spelling, so that equal modules compare equal
        self.config = config
        self.dtype = dtype
        shape, names = (config.vocab_size, config.hidden_size), ("vocab", "embed")
        self.embedding = _param(rngs, shape, config.hidden_size**-0.5, names, dtype)
        self.layers = nnx.List([Block(config, rngs, dtype) for _ in range(config.num_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        if not config.tie_embeddings:
            self.head = _param(rngs, shape[::-1], config.hidden_size**-0.5, names[::-1], dtype)

    def init_cache(self, batch: int, capacity: int) -> kv.Cache:
        """An empty cache of `capacity` slots: per layer `k` and `v`, each [batch, K, capacity, d] in the dtype."""
        c = self.config
        return kv.init(c.num_layers, batch, c.num_kv_heads, capacity, c.head_dim, self.dtype)

    def __call__(self, tokens: Array, cache: kv.Cache | None, attend: Attend) -> Output:
        """Score `tokens`.

        Args:
          tokens: int32 [B, T], each in `[0, vocab_size)`.
          cache: from `init_cache` or a commit; or None to see no more than the T tokens themselves (training).
          attend: where the tokens stand and what they see.

        Returns:
          `Output` with logits [B, T, V], the feature `hidden` [B, T, D] (after the last norm), and for `pending` the
          cache with the T new entries written.
        """
        capacity = tokens.shape[1] if cache is None else kv.capacity(cache)
        visible = kv.visible(attend, capacity)
        table = rotary_table(attend.positions, self.config.head_dim, self.config.rope_theta)
        x = self.embedding[...][tokens]
        layers = []
        for index, block in enumerate(self.layers):
            x, layer = block(x, table, visible, None if cache is None else cache[index], attend.lengths)
            layers.append(layer)
        hidden = self.norm(x)
        if self.config.tie_embeddings:
            logits = jnp.einsum("btc,vc->btv", hidden, self.embedding[...])
        else:
            logits = hidden @ self.head[...]
        return Output(logits=logits, features={"hidden": hidden}, pending=tuple(layers))
