"""Two small decoders that differ in every switch."""

import pathlib
import sys

import jax
import pytest
from flax import nnx

from specjax.models import Decoder, DecoderConfig, from_nnx

sys.path.insert(0, str(pathlib.Path(__file__).parent))  # for `head_cases.py`, which some tests share

SMALL = {"hidden_size": 32, "num_layers": 2, "head_dim": 8, "intermediate_size": 48, "max_position": 128}


@pytest.fixture(params=["tied-grouped", "untied-single"])
def config(request):
    if request.param == "tied-grouped":
        return DecoderConfig(vocab_size=61, num_heads=6, num_kv_heads=2, **SMALL)
    return DecoderConfig(
        vocab_size=61, num_heads=3, num_kv_heads=1, tie_embeddings=False, rope_theta=5e5, rms_norm_eps=1e-6, **SMALL
    )


@pytest.fixture
def module(config):
    return Decoder(config, rngs=nnx.Rngs(0))


@pytest.fixture
def model_and_params(module):
    model, params = from_nnx(module)
    return model._replace(apply=jax.jit(model.apply)), params  # op by op, compiling takes most of the time
