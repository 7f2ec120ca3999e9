"""A Llama-type decoder in flax.nnx: pre-norm RMSNorm, rotary positions, grouped-query attention, gated MLP.

Llama 2 and 3, TinyLlama, SmolLM2, Mistral, Qwen2, Qwen3 and Gemma 1 to 3 (text) are settings of its `DecoderConfig`.
Layers are unrolled. Kernels are stored `[in, out]` with the heads split (`[D, H, d]`, `[H, d, D]`), so that every axis
that a mesh may split is an axis of the array. Logical names are given once per array, and `axis_names` reads them:
`vocab`, `embed`, `heads`, `kv_heads`, `head_dim`, `mlp`.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp
from flax import nnx

from specjax._src import cache as kv
from specjax._src.types import Array, Attend, Output
from specjax.models.attention import Attention, within
from specjax.models.config import DecoderConfig
from specjax.models.parts import ACTIVATIONS, RMSNorm, bias, normed, param, plus, softcap
from specjax.models.rope import rotary_table

Reach = tuple[tuple[tuple[Array, Array], Array], ...]


class MLP(nnx.Module):
    """`down(act(gate(x)) * up(x))`."""

    def __init__(self, config: DecoderConfig, rngs: nnx.Rngs, dtype: jnp.dtype) -> None:
        c, std = config, config.hidden_size**-0.5
        self.activation = c.activation
        self.gate = param(rngs, (c.hidden_size, c.intermediate_size), std, ("embed", "mlp"), dtype)
        self.up = param(rngs, (c.hidden_size, c.intermediate_size), std, ("embed", "mlp"), dtype)
        down_std = (c.intermediate_size * 2 * c.num_layers) ** -0.5
        self.down = param(rngs, (c.intermediate_size, c.hidden_size), down_std, ("mlp", "embed"), dtype)
        self.gate_bias = bias(c.mlp_bias, (c.intermediate_size,), ("mlp",), dtype)
        self.up_bias = bias(c.mlp_bias, (c.intermediate_size,), ("mlp",), dtype)
        self.down_bias = bias(c.mlp_bias, (c.hidden_size,), ("embed",), dtype)

    def __call__(self, x: Array) -> Array:
        """[B, T, D] to [B, T, D]."""
        gate = ACTIVATIONS[self.activation](plus(x @ self.gate[...], self.gate_bias))
        return plus((gate * plus(x @ self.up[...], self.up_bias)) @ self.down[...], self.down_bias)


class Block(nnx.Module):
    """One transformer layer: `x + attention(norm(x))`, then `x + mlp(norm(x))`, the summands normed too if asked."""

    def __init__(
        self, config: DecoderConfig, rngs: nnx.Rngs, dtype: jnp.dtype, *, width: int | None = None,
        attention_norm: bool = True,
    ) -> None:  # fmt: skip
        """For draft heads: `width` of what attention reads, and whether the block norms that itself."""
        c = config
        norm = functools.partial(RMSNorm, c.hidden_size, c.rms_norm_eps, dtype, unit_offset=c.unit_offset_norm)
        self.attention_norm = norm() if attention_norm else None
        self.attention = Attention(config, rngs, dtype, width)
        self.attention_post_norm = norm() if c.post_norms else None
        self.mlp_norm = norm()
        self.mlp = MLP(config, rngs, dtype)
        self.mlp_post_norm = norm() if c.post_norms else None

    def __call__(
        self, x: Array, table: tuple[Array, Array], visible: Array, layer: kv.Layer | None, start: Array,
        reads: Array | None = None,
    ) -> tuple[Array, kv.Layer]:  # fmt: skip
        """Arguments and result as `Attention`, with the residual stream for `x`; attention reads it, or `reads`."""
        reads = normed(x if reads is None else reads, self.attention_norm)
        mixed, layer = self.attention(reads, table, visible, layer, start)
        x = x + normed(mixed, self.attention_post_norm)
        return x + normed(self.mlp(self.mlp_norm(x)), self.mlp_post_norm), layer


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
        self.embedding = param(rngs, shape, config.hidden_size**-0.5, names, dtype)
        self.layers = nnx.List([Block(config, rngs, dtype) for _ in range(config.num_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, unit_offset=config.unit_offset_norm)
        if not config.tie_embeddings:
            self.head = param(rngs, shape[::-1], config.hidden_size**-0.5, names[::-1], dtype)

    def init_cache(self, batch: int, capacity: int) -> kv.Cache:
        """An empty cache of `capacity` slots: per layer `k` and `v`, each [batch, K, capacity, d] in the dtype."""
        c = self.config
        return kv.init(c.num_layers, batch, c.num_kv_heads, capacity, c.head_dim, self.dtype)

    def __call__(
        self, tokens: Array, cache: kv.Cache | None, attend: Attend, only: tuple[int, ...] | None = None
    ) -> Output:
        """Score `tokens`.

        Args:
          tokens: int32 [B, T], each in `[0, vocab_size)`.
          cache: from `init_cache` or a commit; or None to see no more than the T tokens themselves (training).
          attend: where the tokens stand and what they see.
          only: indices of the layers to go through, the others are left out; None for all.

        Returns:
          `Output` with logits [B, T, V]; features [B, T, D]: `hidden` (after the last norm) and `layer_i`, the residual
          stream before layer `i` (behind the last one for `i` = `num_layers`); and for `pending` the cache with the T
          new entries written. A feature that nobody reads costs nothing in a compiled program.
        """
        c = self.config
        reach = reach_of(c, attend, tokens.shape[1] if cache is None else kv.capacity(cache))
        x = embedded(c, self.embedding, tokens)
        layers, features = [], {}
        for index, block in enumerate(self.layers):
            if only is not None and index not in only:
                layers.append(None if cache is None else cache[index])
                continue
            features[f"layer_{index}"] = x
            table, visible = reach[index in c.sliding_layers]
            x, layer = block(x, table, visible, None if cache is None else cache[index], attend.lengths)
            layers.append(layer)
        hidden = self.norm(x)
        features |= {f"layer_{c.num_layers}": x, "hidden": hidden}
        tied = c.tie_embeddings
        logits = scored(hidden, self.embedding if tied else self.head, tied, c.final_softcap)
        return Output(logits, features, pending=tuple(layers))


def embedded(config: DecoderConfig, embedding: nnx.Variable, tokens: Array) -> Array:
    """Rows [B, T, D] of `embedding` [V, D]."""
    x = embedding[...][tokens]
    return x * jnp.asarray(config.hidden_size**0.5, x.dtype) if config.scale_embedding else x


def scored(hidden: Array, head: nnx.Variable, tied: bool, cap: float | None) -> Array:
    """Logits [..., V] of `hidden` [..., D]; `head` is the embedding [V, D] if that is tied, else [D, V]."""
    logits = jnp.einsum("...c,vc->...v", hidden, head[...]) if tied else hidden @ head[...]
    return softcap(logits, cap)


def reach_of(config: DecoderConfig, attend: Attend, slots: int) -> Reach:
    """Rotary table and visible slots of full layers, and of sliding layers where there are any."""
    c = config
    visible = kv.visible(attend, slots)
    table = rotary_table(attend.positions, c.head_dim, c.rope_theta, c.rope_scaling)
    if c.sliding_window is None:
        return ((table, visible),)
    own = c.sliding_rope_theta
    near = table if own is None else rotary_table(attend.positions, c.head_dim, own)
    return (table, visible), (near, within(visible, attend, c.sliding_window))
