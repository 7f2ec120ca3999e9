"""Random weights of a known shape: for what does not depend on what the weights say, such as the cost of sampling."""

from __future__ import annotations

import dataclasses

import numpy as np
from flax import nnx

from specjax.benchmarks.subject import Subject
from specjax.models import Decoder, DecoderConfig, from_nnx

SHAPES = {
    "llama-0.5b": DecoderConfig(
        vocab_size=151936, hidden_size=896, num_layers=24, num_heads=14, num_kv_heads=2, head_dim=64,
        intermediate_size=4864, max_position=32768),
}
PROMPTS, PROMPT_TOKENS = 2, 16


def subject(config: DecoderConfig, layers: int | None = None) -> Subject:
    """A target of this shape (with so many `layers`, if given) and a draft of two narrow ones, float32."""
    target = dataclasses.replace(config, num_layers=layers or config.num_layers)
    draft = dataclasses.replace(
        config, hidden_size=128, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=32, intermediate_size=384)
    model, params = from_nnx(Decoder(target, rngs=nnx.Rngs(params=0)))
    draft_model, draft_params = from_nnx(Decoder(draft, rngs=nnx.Rngs(params=1)))
    ids = np.random.default_rng(0).integers(0, config.vocab_size, (PROMPTS, PROMPT_TOKENS))
    return Subject("random weights", model, params, "random weights", draft_model, draft_params,
                   ids.tolist(), (), writes=False)
