"""EAGLE-3: drafting on features of several depths, with a head and a vocabulary of its own (arXiv:2503.01840)."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax.numpy as jnp
from flax import nnx

from specjax._src import cache as kv
from specjax._src.types import Array, Attend, HeadOutput
from specjax.models.config import DecoderConfig
from specjax.models.decoder import Block, embedded, reach_of, scored
from specjax.models.head_config import HeadConfig, check_layer, draft_layer, head_name
from specjax.models.parts import Fixed, RMSNorm, bias, borrowed, normed, param, plus


@dataclasses.dataclass(frozen=True)
class Eagle3Config(HeadConfig):
    """The shape of an EAGLE-3 head.

    Attributes:
      layer: of the draft layers. Its `vocab_size` and `tie_embeddings` are the target's; all else is the head's own.
      target_hidden_size: width of the target's features; need not be that of the head.
      taps: which features are read, ascending: `k` is the input of the target's layer `k` (`layer_k`); its number of
        layers means what the last one gives, before the final norm. None at all: the last hidden state, unfused.
      draft_vocab_size: Vd, how many tokens the head can propose; None means all V.
      fc_bias: whether the product that fuses the features has a bias.
      fc_norm: whether each feature passes a norm of its own before (EAGLE 3.1).
      norm_before_fc: whether the features, side by side, pass one.
      norm_before_residual: whether the residual stream begins with the normed features, not with the features.
      norm_output: whether the output is fed back behind the final norm, not before it.
      own_embedding: whether the head has its own embedding; else it borrows the target's.
      own_head: whether it has its own matrix to the vocabulary; else it borrows the target's.
    """

    layer: DecoderConfig
    target_hidden_size: int
    taps: tuple[int, ...]
    draft_vocab_size: int | None = None
    fc_bias: bool = False
    fc_norm: bool = False
    norm_before_fc: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    own_embedding: bool = False
    own_head: bool = True
    family: ClassVar[str] = "eagle3"

    def __post_init__(self) -> None:
        check_layer(self.family, self.layer)
        widths = f"target_hidden_size={self.target_hidden_size} and hidden_size={self.layer.hidden_size}"
        same = self.target_hidden_size == self.layer.hidden_size
        if list(self.taps) != sorted({tap for tap in self.taps if tap >= 0}):
            raise ValueError(f"taps {self.taps} must ascend from 0 or more, none twice")
        if not self.taps and (self.fc_bias or self.fc_norm or self.norm_before_fc):
            raise ValueError("without taps nothing is fused: fc_bias, fc_norm and norm_before_fc must be off")
        for name, fits in (("taps", self.taps), ("own_embedding", self.own_embedding), ("own_head", self.own_head)):
            if not fits and not same:
                raise ValueError(f"an eagle3 head without {name} uses what is the target's; {widths} must be equal")
        if self.draft_vocab_size is not None and not 0 < self.draft_vocab_size <= self.vocab_size:
            raise ValueError(f"draft_vocab_size={self.draft_vocab_size} must be in 1 .. {self.vocab_size} or None")
        if self.draft_vocab_size is not None and not self.own_head:
            raise ValueError("the target's own head scores its whole vocabulary; draft_vocab_size must be None")

    @classmethod
    def for_target(
        cls, target: DecoderConfig, taps: tuple[int, ...] | None = None, num_layers: int = 1, **changes: Any
    ) -> Eagle3Config:
        """A head with layers of the target's sizes and the usual taps; other fields by their names."""
        sizes = {"layer": draft_layer(target, num_layers), "target_hidden_size": target.hidden_size}
        return cls(**{**sizes, "taps": default_taps(target.num_layers) if taps is None else tuple(taps), **changes})

    @property
    def vocab_size(self) -> int:
        """V, of the target."""
        return self.layer.vocab_size

    @property
    def borrows(self) -> tuple[str, ...]:
        """As in `HeadConfig`."""
        names = ["embedding"] * (not self.own_embedding)
        return tuple(dict.fromkeys(names + [head_name(self.layer.tie_embeddings)] * (not self.own_head)))

    @property
    def feature_size(self) -> int:
        """As in `HeadConfig`."""
        return self.target_hidden_size

    @property
    def shared(self) -> dict[str, Any]:
        """As in `HeadConfig`."""
        return {} if self.own_head else {"tie_embeddings": self.layer.tie_embeddings}


def default_taps(num_layers: int) -> tuple[int, ...]:
    """The published choice 2, n // 2, n - 3 for a target of n layers; spread as far as a smaller one allows."""
    low, high = (2, num_layers - 3) if num_layers >= 7 else (1, num_layers - 1)
    return tuple(sorted({low, num_layers // 2, high}))


def places_of(draft_ids: Array, vocab_size: int) -> Array:
    """Where each of the target's tokens stands in the draft vocabulary: int32 [V], Vd for those that do not.

    Args:
      draft_ids: int32 [Vd], the target's ids of the draft vocabulary, ascending.
      vocab_size: V; larger ids are padding and are left out.
    """
    count = jnp.arange(draft_ids.shape[0], dtype=jnp.int32)
    return jnp.full(vocab_size, draft_ids.shape[0], jnp.int32).at[draft_ids].set(count, mode="drop")


class Eagle3(nnx.Module):
    """Decoder layers of which the first reads `[norm(embedding of the next token), norm(features)]`.

    The features are fused by one product where they come from the target, and fed back as the last layer gave them,
    before the final norm.
    """

    family = "eagle3"

    def __init__(self, config: Eagle3Config, *, rngs: nnx.Rngs, dtype: jnp.dtype = jnp.float32) -> None:
        c, layer, dtype = config, config.layer, jnp.dtype(dtype)
        width, fused = layer.hidden_size, len(c.taps) * c.target_hidden_size
        self.config = config
        self.dtype = dtype

        def norm(width: int) -> RMSNorm:
            return RMSNorm(width, layer.rms_norm_eps, dtype, unit_offset=layer.unit_offset_norm)

        self.tap_norms = nnx.List([norm(c.target_hidden_size) for _ in c.taps]) if c.fc_norm else None
        self.fc_input_norm = norm(fused) if c.norm_before_fc else None
        self.fc = param(rngs, (fused, width), fused**-0.5, (None, "embed"), dtype) if c.taps else None
        self.fc_bias = bias(c.fc_bias, (width,), ("embed",), dtype)
        self.embedding_norm = norm(width)
        self.hidden_norm = norm(width)
        first = Block(layer, rngs, dtype, width=2 * width, attention_norm=False)
        self.layers = nnx.List([first, *(Block(layer, rngs, dtype) for _ in range(layer.num_layers - 1))])
        self.norm = norm(width)
        self._vocabulary(rngs)

    def _vocabulary(self, rngs: nnx.Rngs) -> None:
        c, width, dtype = self.config, self.config.layer.hidden_size, self.dtype
        if c.own_embedding:
            self.own_embedding = param(rngs, (c.vocab_size, width), width**-0.5, ("vocab", "embed"), dtype)
        if "embedding" in c.borrows:
            self.embedding = borrowed(rngs, (c.vocab_size, width), ("vocab", "embed"), dtype)
        if "head" in c.borrows:
            self.head = borrowed(rngs, (width, c.vocab_size), ("embed", "vocab"), dtype)
        if c.own_head:
            size, axis = (c.vocab_size, "vocab") if c.draft_vocab_size is None else (c.draft_vocab_size, "draft_vocab")
            self.output = param(rngs, (width, size), width**-0.5, ("embed", axis), dtype)
        if c.draft_vocab_size is not None:
            ids = jnp.arange(c.draft_vocab_size, dtype=jnp.int32)
            self.draft_ids = Fixed(ids)
            self.places = Fixed(places_of(ids, c.vocab_size))

    @property
    def needs(self) -> frozenset[str]:
        """Names of the features that `fuse` reads."""
        return frozenset(f"layer_{tap}" for tap in self.config.taps) or frozenset({"hidden"})

    def init_cache(self, batch: int, capacity: int) -> kv.Cache:
        """An empty cache of `capacity` slots, as `Decoder.init_cache`."""
        c = self.config.layer
        return kv.init(c.num_layers, batch, c.num_kv_heads, capacity, c.head_dim, self.dtype)

    def fuse(self, features: dict[str, Array]) -> Array:
        """The target's features, each [B, T, F], as one [B, T, D]."""
        if self.fc is None:
            return features["hidden"].astype(self.dtype)
        taps = [features[f"layer_{tap}"].astype(self.dtype) for tap in self.config.taps]
        if self.tap_norms is not None:
            taps = [norm(tap) for norm, tap in zip(self.tap_norms, taps, strict=True)]
        return plus(normed(jnp.concatenate(taps, axis=-1), self.fc_input_norm) @ self.fc[...], self.fc_bias)

    def __call__(
        self, hidden: Array, tokens: Array, cache: kv.Cache | None, attend: Attend, *, whole_vocabulary: bool = True,
        attention: str = "auto",
    ) -> HeadOutput:  # fmt: skip
        """Guess the features, and score the tokens, one place further on.

        Args:
          hidden: [B, T, D], fused features of the tokens at `attend.positions`, or the `hidden` of an earlier call.
          tokens: int32 [B, T], the tokens that follow them.
          cache: as for `Decoder`.
          attend: as for `Decoder`; positions are those of the features.
          whole_vocabulary: score the target's vocabulary, -inf outside the draft's; else the draft's own [B, T, Vd].
          attention: as for `Decoder`.

        Returns:
          `HeadOutput`; `pending` is the cache with the T new entries written.
        """
        c, layer = self.config, self.config.layer
        (reach,) = reach_of(layer, attend, attention)
        embedding = self.own_embedding if c.own_embedding else self.embedding
        words = self.embedding_norm(embedded(layer, embedding, tokens).astype(self.dtype))
        hidden = hidden.astype(self.dtype)
        inner = self.hidden_norm(hidden)
        x, reads = inner if c.norm_before_residual else hidden, jnp.concatenate([words, inner], axis=-1)
        entries = []
        for index, block in enumerate(self.layers):
            old = None if cache is None else cache[index]
            x, entry = block(x, reach, old, reads if index == 0 else None)
            entries.append(entry)
        guess = self.norm(x) if c.norm_output else x
        return HeadOutput(self.score(guess, whole_vocabulary=whole_vocabulary), guess, tuple(entries))

    def score(self, hidden: Array, *, whole_vocabulary: bool = True) -> Array:
        """Logits that belong to guessed features [B, T, D], which are what the head feeds back."""
        c = self.config
        hidden = hidden.astype(self.dtype)
        out = hidden if c.norm_output else self.norm(hidden)
        if not c.own_head:
            tied = c.layer.tie_embeddings
            return scored(out, self.embedding if tied else self.head, tied, c.layer.final_softcap)
        logits = out @ self.output[...]
        if c.draft_vocab_size is None or not whole_vocabulary:
            return logits
        places = self.places[...]  # a gather: as a scatter it would be many times slower
        return jnp.where(places < c.draft_vocab_size, jnp.take(logits, places, axis=-1, mode="clip"), -jnp.inf)
