"""A part of a decoder as a model: the layers with which a target can draft for itself."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx

from specjax._src.types import PREFILL, Model
from specjax.models.adapters import from_nnx
from specjax.models.config import DecoderConfig
from specjax.models.decoder import Decoder


def some_layers(
    config: DecoderConfig, layers: int | Sequence[int], dtype: Any = jnp.float32, *, ring_slack: int | None = PREFILL
) -> Model:
    """A part of the decoder as a model of its own, on the same weights and the same cache: see `draft.self_model`.

    Args:
      config: of the whole decoder.
      layers: how many of the first layers (an early exit), or which ones; the last norm and the head follow them.
      dtype: of the weights, as `specjax.load` was asked for.
      ring_slack: as the whole decoder was made with.

    Raises:
      ValueError: if there are no such layers, or they are all of them.
    """
    chosen = tuple(sorted(set(layers))) if isinstance(layers, Sequence) else tuple(range(operator.index(layers)))
    if not chosen or not set(chosen) < set(range(config.num_layers)):
        raise ValueError(f"layers={layers} is no part of a decoder with {config.num_layers} layers: name some of "
                         f"0 .. {config.num_layers - 1}, but not all")
    module = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0), dtype=jnp.dtype(dtype), ring_slack=ring_slack))
    return from_nnx(module, only=chosen)[0]
