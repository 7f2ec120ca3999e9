"""EAGLE: drafting on the target's last hidden state (arXiv:2401.15077); EAGLE-2 (arXiv:2406.16858) has the same net."""

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
from specjax.models.parts import bias, borrowed, param, plus


@dataclasses.dataclass(frozen=True)
class EagleConfig(HeadConfig):
    """The shape of an EAGLE-1/2 head.

    Attributes:
      layer: of the draft layers. Its `vocab_size`, `hidden_size` and `tie_embeddings` are the target's; all else is the
        head's own, also whether it scales the target's embedding and caps the logits of the target's matrix.
      fc_bias: whether the product that joins embedding and feature has a bias.
    """

    layer: DecoderConfig
    fc_bias: bool = True
    family: ClassVar[str] = "eagle"

    def __post_init__(self) -> None:
        check_layer(self.family, self.layer)

    @classmethod
    def for_target(cls, target: DecoderConfig, num_layers: int = 1, **changes: Any) -> EagleConfig:
        """A head with layers of the target's sizes and without bias, as newer ones are; other fields by their names."""
        return cls(**{"layer": draft_layer(target, num_layers), "fc_bias": False, **changes})

    @property
    def vocab_size(self) -> int:
        """V, of the target."""
        return self.layer.vocab_size

    @property
    def borrows(self) -> tuple[str, ...]:
        """As in `HeadConfig`."""
        return tuple(dict.fromkeys(("embedding", head_name(self.layer.tie_embeddings))))

    @property
    def feature_size(self) -> int:
        """As in `HeadConfig`."""
        return self.layer.hidden_size

    @property
    def shared(self) -> dict[str, Any]:
        """As in `HeadConfig`."""
        return {"tie_embeddings": self.layer.tie_embeddings}


class Eagle(nnx.Module):
    """Decoder layers on `fc([embedding of the next token, hidden state])`, scored by the target's own matrix.

    The first layer has no norm before its attention, and none stands behind the last: what comes out guesses the
    target's next hidden state after its final norm. It is fed back as it is.
    """

    family = "eagle"
    needs = frozenset({"hidden"})

    def __init__(self, config: EagleConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype = jnp.float32) -> None:
        c, dtype = config.layer, jnp.dtype(dtype)
        self.config = config
        self.dtype = dtype
        self.fc = param(
            rngs, (2 * c.hidden_size, c.hidden_size), (2 * c.hidden_size) ** -0.5, (None, "embed"), dtype)
        self.fc_bias = bias(config.fc_bias, (c.hidden_size,), ("embed",), dtype)
        self.layers = nnx.List([Block(c, rngs, dtype, attention_norm=index > 0) for index in range(c.num_layers)])
        self.embedding = borrowed(rngs, (c.vocab_size, c.hidden_size), ("vocab", "embed"), dtype)
        if not c.tie_embeddings:
            self.head = borrowed(rngs, (c.hidden_size, c.vocab_size), ("embed", "vocab"), dtype)

    def init_cache(self, batch: int, capacity: int) -> kv.Cache:
        """An empty cache of `capacity` slots, as `Decoder.init_cache`."""
        c = self.config.layer
        return kv.init(c.num_layers, batch, c.num_kv_heads, capacity, c.head_dim, self.dtype)

    def fuse(self, features: dict[str, Array]) -> Array:
        """The feature `hidden` [B, T, D], which needs no fusing."""
        return features["hidden"].astype(self.dtype)

    def __call__(
        self, hidden: Array, tokens: Array, cache: kv.Cache | None, attend: Attend, *, attention: str = "auto"
    ) -> HeadOutput:
        """Guess the features, and score the tokens, one place further on.

        Args:
          hidden: [B, T, D], features of the tokens at `attend.positions`, or what an earlier call guessed.
          tokens: int32 [B, T], the tokens that follow them.
          cache: as for `Decoder`.
          attend: as for `Decoder`; positions are those of the features.
          attention: as for `Decoder`.

        Returns:
          `HeadOutput`; `pending` is the cache with the T new entries written.
        """
        c = self.config.layer
        (reach,) = reach_of(c, attend, attention)
        words = embedded(c, self.embedding, tokens).astype(self.dtype)
        x = plus(jnp.concatenate([words, hidden.astype(self.dtype)], axis=-1) @ self.fc[...], self.fc_bias)
        layers = []
        for index, block in enumerate(self.layers):
            x, layer = block(x, reach, None if cache is None else cache[index])
            layers.append(layer)
        return HeadOutput(self.score(x), x, tuple(layers))

    def score(self, hidden: Array) -> Array:
        """Logits [B, T, V] that belong to guessed features [B, T, D]."""
        c = self.config.layer
        tied = c.tie_embeddings
        return scored(hidden.astype(self.dtype), self.embedding if tied else self.head, tied, c.final_softcap)
