"""The shape of a decoder, as one hashable value."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """Everything that fixes a Llama-type decoder's arrays and arithmetic, except the weights.

    Attributes:
      vocab_size: rows of the embedding that are real tokens; logits have exactly this width.
      hidden_size: width of the residual stream.
      num_layers: transformer blocks.
      num_heads: query heads.
      num_kv_heads: key-value heads; must divide `num_heads`.
      head_dim: width of one head, even (rotary positions turn pairs); need not be `hidden_size / num_heads`.
      intermediate_size: width of the gated MLP.
      max_position: positions the model was trained for. Not enforced; rotary positions are computed, not tabled.
      rope_theta: base of the rotary frequencies.
      rms_norm_eps: added to the mean square in every RMSNorm.
      tie_embeddings: whether the output head is the transposed embedding.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    max_position: int
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5
    tie_embeddings: bool = True

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and not (isinstance(value, int) and value > 0):
                raise ValueError(f"{field.name} must be a positive int, got {value!r}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads={self.num_kv_heads} does not divide num_heads={self.num_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} is odd; rotary positions turn pairs of coordinates")

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> DecoderConfig:
        """Inverse of `to_dict`. Raises ValueError naming every unknown or missing field."""
        fields = {f.name: f for f in dataclasses.fields(cls)}
        unknown = sorted(set(values) - set(fields))
        missing = sorted(n for n, f in fields.items() if f.default is dataclasses.MISSING and n not in values)
        if unknown or missing:
            raise ValueError(f"decoder config: unknown fields {unknown}, missing fields {missing}")
        return cls(**values)
