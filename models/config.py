"""The shape of a decoder, as one hashable value."""

from __future__ import annotations

import dataclasses
from typing import Any

from specjax.models.rope import RopeScaling

ACTIVATIONS = ("silu", "gelu", "gelu_tanh")


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
      rope_scaling: how the rotary frequencies are changed for texts longer than those of the first training.
      sliding_window: W, where some layers see only the last W tokens, themselves included.
      sliding_layers: indices of those layers, ascending; the others see the whole text.
      sliding_rope_theta: base of the rotary frequencies in sliding layers, then unscaled; None treats all layers alike.
      qkv_bias: whether queries, keys and values get a bias (Qwen2).
      out_bias: whether the output of attention gets one.
      mlp_bias: whether the three products of the MLP get one.
      qk_norm: RMSNorm of each head's query and key before they are turned (Qwen3, Gemma 3).
      activation: of the gate; one of `ACTIVATIONS` (`gelu` by the error function, `gelu_tanh` its approximation).
      attention_scale: factor of query times key; None means `head_dim ** -0.5`.
      attention_softcap: c, where scores become `c * tanh(score / c)` (Gemma 2).
      final_softcap: the same for logits.
      unit_offset_norm: RMSNorm multiplies by `1 + scale`, before it rounds (Gemma).
      post_norms: a second norm on what attention and MLP give, before it joins the residual stream (Gemma 2 and 3).
      scale_embedding: embeddings are multiplied by `sqrt(hidden_size)`, rounded to their dtype (Gemma).
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
    rope_scaling: RopeScaling = RopeScaling()
    sliding_window: int | None = None
    sliding_layers: tuple[int, ...] = ()
    sliding_rope_theta: float | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    activation: str = "silu"
    attention_scale: float | None = None
    attention_softcap: float | None = None
    final_softcap: float | None = None
    unit_offset_norm: bool = False
    post_norms: bool = False
    scale_embedding: bool = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and not (isinstance(value, int) and value > 0):
                raise ValueError(f"{field.name} must be a positive int, got {value!r}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads={self.num_kv_heads} does not divide num_heads={self.num_heads}")
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} is odd; rotary positions turn pairs of coordinates")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation={self.activation!r} is not one of {', '.join(ACTIVATIONS)}")
        if not set(self.sliding_layers) <= set(range(self.num_layers)):
            raise ValueError(f"sliding_layers={self.sliding_layers} names layers outside 0 .. {self.num_layers - 1}")
        if self.sliding_layers and not (self.sliding_window and self.sliding_window > 0):
            raise ValueError(f"sliding_layers need a positive sliding_window, got {self.sliding_window!r}")

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return dataclasses.asdict(self) | {"sliding_layers": list(self.sliding_layers)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> DecoderConfig:
        """Inverse of `to_dict`. Fields with defaults may be missing: older checkpoints lack the newer ones.

        Raises:
          ValueError: naming every unknown or missing field.
        """
        fields = {f.name: f for f in dataclasses.fields(cls)}
        unknown = sorted(set(values) - set(fields))
        missing = sorted(n for n, f in fields.items() if f.default is dataclasses.MISSING and n not in values)
        if unknown or missing:
            raise ValueError(f"decoder config: unknown fields {unknown}, missing fields {missing}")
        values = dict(values)
        if isinstance(values.get("rope_scaling"), dict):
            values["rope_scaling"] = RopeScaling(**values["rope_scaling"])
        values["sliding_layers"] = tuple(values.get("sliding_layers", ()))
        return cls(**values)
