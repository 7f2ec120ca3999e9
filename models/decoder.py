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
from specjax._src.sight import sight_of
from specjax._src.types import PREFILL, Array, Attend, Output
from specjax.models.attention import Attention, Reach
from specjax.models.config import DecoderConfig
from specjax.models.mixing import check_way
from specjax.models.parts import ACTIVATIONS, RMSNorm, bias, normed, param, plus, softcap
from specjax.models.rope import rotary_table


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
        self, x: Array, reach: Reach, layer: kv.Layer | None, reads: Array | None = None
    ) -> tuple[Array, kv.Layer]:
        """Arguments and result as `Attention`, with the residual stream for `x`; attention reads it, or `reads`."""
        reads = normed(x if reads is None else reads, self.attention_norm)
        mixed, layer = self.attention(reads, reach, layer)
        x = x + normed(mixed, self.attention_post_norm)
        return x + normed(self.mlp(self.mlp_norm(x)), self.mlp_post_norm), layer


class Decoder(nnx.Module):
    """A decoder-only language model with a key-value cache, in which sliding layers keep no more than they need.

    The module keeps the calling convention of `specjax.models.from_nnx`: `init_cache(batch, capacity)`,
    `module(tokens, cache, attend) -> Output` and `commit`.
    """

    cache_axes = kv.AXES

    def __init__(
        self, config: DecoderConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype = jnp.float32,
        ring_slack: int | None = PREFILL,
    ) -> None:  # fmt: skip
        """Draw random weights.

        Args:
          config: see `DecoderConfig`.
          rngs: for the weights.
          dtype: of the weights, in which the arithmetic and the cache are kept too.
          ring_slack: the cache of a sliding layer is a ring of so many slots more than its window: the most tokens that
            one call may have (with the earlier columns of a wide `Attend.ancestors`), and the furthest that a row may
            fall back. None keeps every entry.
        """
        dtype = jnp.dtype(dtype)  # one spelling, so that equal modules compare equal
        self.config = config
        self.dtype = dtype
        self.ring_slack = ring_slack
        shape, names = (config.vocab_size, config.hidden_size), ("vocab", "embed")
        self.embedding = param(rngs, shape, config.hidden_size**-0.5, names, dtype)
        self.layers = nnx.List([Block(config, rngs, dtype) for _ in range(config.num_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype, unit_offset=config.unit_offset_norm)
        if not config.tie_embeddings:
            self.head = param(rngs, shape[::-1], config.hidden_size**-0.5, names[::-1], dtype)

    @property
    def rings(self) -> dict[int, int]:
        """Slots of the rings by layer."""
        c = self.config
        if self.ring_slack is None or c.sliding_window is None:
            return {}
        return dict.fromkeys(c.sliding_layers, c.sliding_window + self.ring_slack)

    def init_cache(self, batch: int, capacity: int) -> kv.Cache:
        """An empty cache for `capacity` entries: per layer `k` and `v`, each [batch, K, S, d] in the dtype.

        S is `capacity`, in sliding layers no more than the window and the slack.
        """
        c = self.config
        return kv.init(c.num_layers, batch, c.num_kv_heads, capacity, c.head_dim, self.dtype, self.rings)

    def commit(self, pending: kv.Cache, path: Array | None, base: Array, num: Array) -> kv.Cache:
        """As `specjax.cache.commit`, in rings too."""
        return kv.commit(pending, path, base, num, rings=self.rings)

    def __call__(
        self, tokens: Array, cache: kv.Cache | None, attend: Attend, only: tuple[int, ...] | None = None,
        attention: str = "auto",
    ) -> Output:  # fmt: skip
        """Score `tokens`.

        Args:
          tokens: int32 [B, T], each in `[0, vocab_size)`.
          cache: from `init_cache` or a commit; or None to see no more than the T tokens themselves (training).
          attend: where the tokens stand and what they see.
          only: indices of the layers to go through, the others are left out; None for all.
          attention: how the cache is read: "einsum" every slot at once, "blocks" only those in use, or "auto" (see
            `specjax.models.mixing.mix`).

        Returns:
          `Output` with logits [B, T, V]; features [B, T, D]: `hidden` (after the last norm) and `layer_i`, the residual
          stream before layer `i` (behind the last one for `i` = `num_layers`); and for `pending` the cache with the T
          new entries written. A feature that nobody reads costs nothing in a compiled program.

        Raises:
          ValueError: if the call has more tokens than the rings of sliding layers have slack, or for an unknown way.
        """
        c = self.config
        if cache is not None:
            self._check_width(cache, attend)
        reach = reach_of(c, attend, attention, ring=bool(self.rings))
        x = embedded(c, self.embedding, tokens)
        layers, features = [], {}
        for index, block in enumerate(self.layers):
            if only is not None and index not in only:
                layers.append(None if cache is None else cache[index])
                continue
            features[f"layer_{index}"] = x
            x, layer = block(x, reach[index in c.sliding_layers], None if cache is None else cache[index])
            layers.append(layer)
        hidden = self.norm(x)
        features |= {f"layer_{c.num_layers}": x, "hidden": hidden}
        tied = c.tie_embeddings
        logits = scored(hidden, self.embedding if tied else self.head, tied, c.final_softcap)
        return Output(logits, features, pending=tuple(layers))

    def _check_width(self, cache: kv.Cache, attend: Attend) -> None:
        """Refuse a call that would write over what its own tokens see."""
        slack = self.ring_slack
        if slack is None:
            return
        width = (attend.valid if attend.ancestors is None else attend.ancestors).shape[-1]
        for index, size in self.rings.items():
            if kv.slots(cache[index]) == size and width > slack + 1:
                raise ValueError(
                    f"a call of {width} tokens (earlier columns of ancestors included) does not fit the cache of a "
                    f"sliding layer, which has {slack} slots beside its window of {self.config.sliding_window}: feed "
                    f"fewer tokens at a time, or make the Decoder with ring_slack={width} or None")


def embedded(config: DecoderConfig, embedding: nnx.Variable, tokens: Array) -> Array:
    """Rows [B, T, D] of `embedding` [V, D]."""
    x = embedding[...][tokens]
    return x * jnp.asarray(config.hidden_size**0.5, x.dtype) if config.scale_embedding else x


def scored(hidden: Array, head: nnx.Variable, tied: bool, cap: float | None) -> Array:
    """Logits [..., V] of `hidden` [..., D]; `head` is the embedding [V, D] if that is tied, else [D, V]."""
    logits = jnp.einsum("...c,vc->...v", hidden, head[...]) if tied else hidden @ head[...]
    return softcap(logits, cap)


def reach_of(config: DecoderConfig, attend: Attend, way: str = "auto", *, ring: bool = False) -> tuple[Reach, ...]:
    """What full layers see and how they turn, and the same of sliding layers (with a `ring` or not) if there are any.

    Raises:
      ValueError: for an unknown way.
    """
    c = config
    table = rotary_table(attend.positions, c.head_dim, c.rope_theta, c.rope_scaling)
    full = Reach(table, sight_of(attend), way=check_way(way))
    if c.sliding_window is None:
        return (full,)
    own = c.sliding_rope_theta
    near = table if own is None else rotary_table(attend.positions, c.head_dim, own)
    return full, Reach(near, sight_of(attend, c.sliding_window), ring, way)
