"""Medusa: heads that guess several later tokens from one hidden state (arXiv:2401.10774)."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from specjax._src.types import Array
from specjax.models.config import DecoderConfig
from specjax.models.decoder import scored
from specjax.models.head_config import HeadConfig, head_name
from specjax.models.parts import bias, borrowed, param, plus, softcap


@dataclasses.dataclass(frozen=True)
class MedusaConfig(HeadConfig):
    """The shape of Medusa heads.

    Attributes:
      hidden_size: D, of the target.
      vocab_size: V, of the target.
      num_heads: K; head `h` guesses the token `2 + h` places behind the one whose feature is read.
      num_layers: residual blocks of each head.
      block_bias: whether the blocks have biases.
      own_projection: whether each head has its own matrix to the vocabulary; else the target's is used.
      tie_embeddings: whether the target's matrix is its embedding.
      final_softcap: as of the target's logits, where the heads were trained so.
    """

    hidden_size: int
    vocab_size: int
    num_heads: int
    num_layers: int = 1
    block_bias: bool = True
    own_projection: bool = True
    tie_embeddings: bool = True
    final_softcap: float | None = None
    family: ClassVar[str] = "medusa"

    def __post_init__(self) -> None:
        for name in ("hidden_size", "vocab_size", "num_heads", "num_layers"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} of Medusa heads must be positive, got {getattr(self, name)!r}")

    @classmethod
    def for_target(cls, target: DecoderConfig, num_heads: int = 4, **changes: Any) -> MedusaConfig:
        """Heads for this target; other fields by their names."""
        same = ("hidden_size", "vocab_size", "tie_embeddings", "final_softcap")
        return cls(**{**{name: getattr(target, name) for name in same}, "num_heads": num_heads, **changes})

    @property
    def borrows(self) -> tuple[str, ...]:
        """As in `HeadConfig`."""
        return () if self.own_projection else (head_name(self.tie_embeddings),)

    @property
    def feature_size(self) -> int:
        """As in `HeadConfig`."""
        return self.hidden_size

    @property
    def shared(self) -> dict[str, Any]:
        """As in `HeadConfig`."""
        return {} if self.own_projection else {"tie_embeddings": self.tie_embeddings}


class ResidualBlock(nnx.Module):
    """`x + silu(W x + b)`; W and b are zero at first, so that the block gives back what it gets."""

    def __init__(self, config: MedusaConfig, rngs: nnx.Rngs, dtype: jnp.dtype) -> None:
        self.kernel = param(rngs, (config.hidden_size, config.hidden_size), 0.0, ("embed", None), dtype)
        self.bias = bias(config.block_bias, (config.hidden_size,), ("embed",), dtype)

    def __call__(self, x: Array) -> Array:
        """[..., D] to [..., D]."""
        return x + jax.nn.silu(plus(x @ self.kernel[...], self.bias))


class MedusaHead(nnx.Module):
    """One head: residual blocks, and a matrix to the vocabulary if it has its own."""

    def __init__(self, config: MedusaConfig, rngs: nnx.Rngs, dtype: jnp.dtype) -> None:
        shape, names = (config.hidden_size, config.vocab_size), ("embed", "vocab")
        self.blocks = nnx.List([ResidualBlock(config, rngs, dtype) for _ in range(config.num_layers)])
        self.output = param(rngs, shape, config.hidden_size**-0.5, names, dtype) if config.own_projection else None

    def __call__(self, x: Array) -> Array:
        """What is multiplied with the matrix: [..., D] to [..., D]."""
        for block in self.blocks:
            x = block(x)
        return x


class Medusa(nnx.Module):
    """K heads on the target's last hidden state (after the final norm).

    `output` of a head is random here: training starts from the target's matrix, which makes the head the target.
    """

    family = "medusa"
    needs = frozenset({"hidden"})

    def __init__(self, config: MedusaConfig, *, rngs: nnx.Rngs, dtype: jnp.dtype = jnp.float32) -> None:
        c, dtype = config, jnp.dtype(dtype)
        self.config = config
        self.dtype = dtype
        self.heads = nnx.List([MedusaHead(config, rngs, dtype) for _ in range(c.num_heads)])
        if "embedding" in c.borrows:
            self.embedding = borrowed(rngs, (c.vocab_size, c.hidden_size), ("vocab", "embed"), dtype)
        if "head" in c.borrows:
            self.head = borrowed(rngs, (c.hidden_size, c.vocab_size), ("embed", "vocab"), dtype)

    def __call__(self, features: dict[str, Array]) -> Array:
        """Logits [..., K, V] from the feature `hidden` [..., D]; row `h` scores the token at `t + 2 + h`."""
        hidden = features["hidden"].astype(self.dtype)
        return jnp.stack([self.logits(index, hidden) for index in range(self.config.num_heads)], axis=-2)

    def logits(self, index: int, hidden: Array) -> Array:
        """Logits [..., V] of one head from the hidden state [..., D]."""
        c, head = self.config, self.heads[index]
        if head.output is not None:
            return softcap(head(hidden) @ head.output[...], c.final_softcap)
        tied = c.tie_embeddings
        return scored(head(hidden), self.embedding if tied else self.head, tied, c.final_softcap)
