"""What the configs of draft heads share: JSON, the layer that is like the target's, and what is borrowed of it."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, TypeVar

from specjax.models.config import DecoderConfig

Config = TypeVar("Config", bound="HeadConfig")


class HeadConfig:
    """A frozen dataclass that says which head it is and what it needs of its target.

    Attributes:
      family: `medusa`, `eagle` or `eagle3`.
      borrows: names of the target's weights that are used as they are: `embedding`, `head`, or none.
      feature_size: width of the target's features.
      taps: which inputs of the target's layers are read; empty if the last hidden state is.
      shared: switches in which head and target must agree, because they say which weight is borrowed.
    """

    family: ClassVar[str]
    vocab_size: Any
    borrows: Any
    feature_size: Any
    taps: Any = ()
    shared: Any

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        return values | ({"layer": values["layer"].to_dict()} if "layer" in values else {})

    @classmethod
    def from_dict(cls: type[Config], values: dict[str, Any]) -> Config:
        """Inverse of `to_dict`. Raises ValueError naming every unknown or missing field."""
        fields = {f.name: f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
        unknown = sorted(values.keys() - fields.keys())
        missing = sorted(n for n, f in fields.items() if f.default is dataclasses.MISSING and n not in values)
        if unknown or missing:
            raise ValueError(f"{cls.family} config: unknown fields {unknown}, missing fields {missing}")
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        if "layer" in values:
            values["layer"] = DecoderConfig.from_dict(values["layer"])
        return cls(**values)

    def check_target(self, target: DecoderConfig) -> None:
        """Refuse a target that this head was not made for.

        Raises:
          ValueError: naming each thing in which head and target differ.
        """
        wanted = {"hidden_size": self.feature_size, "vocab_size": self.vocab_size, **self.shared}
        problems = [
            f"{name} is {ours} in the head and {getattr(target, name)} in the target"
            for name, ours in wanted.items() if ours != getattr(target, name)]
        deepest = max(self.taps, default=0)
        if deepest > target.num_layers:
            problems.append(f"the head reads layer_{deepest}, the target has layer_0 .. layer_{target.num_layers}")
        if problems:
            raise ValueError(
                f"this {self.family} head was made for another target: {'; '.join(problems)}; load its own target, or "
                "train a head for this one")


def draft_layer(target: DecoderConfig, num_layers: int = 1) -> DecoderConfig:
    """Llama layers of the target's sizes, that use what is borrowed of it as the target does."""
    return DecoderConfig(
        vocab_size=target.vocab_size, hidden_size=target.hidden_size, num_layers=num_layers,
        num_heads=target.num_heads, num_kv_heads=target.num_kv_heads, head_dim=target.head_dim,
        intermediate_size=target.intermediate_size, max_position=target.max_position, rope_theta=target.rope_theta,
        rms_norm_eps=target.rms_norm_eps, tie_embeddings=target.tie_embeddings, final_softcap=target.final_softcap,
        scale_embedding=target.scale_embedding)


def head_name(tied: bool) -> str:
    """Which of the target's weights scores."""
    return "embedding" if tied else "head"


def check_layer(family: str, layer: DecoderConfig) -> None:
    """Raises ValueError for a window: the heads that are known see the whole text, whatever their target does."""
    if layer.sliding_window is not None:
        raise ValueError(f"the {family} config has a sliding window, which draft heads do not have")
