"""Tiny random models of `transformers`, with every parameter randomised, and the same weights in our decoder."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from specjax.checkpoints import dialects, names, shards
from specjax.models import Decoder, from_nnx

# Widths that no wrong transpose fits, a window that the prompt leaves behind, and a rope limit that it crosses.
SIZES = {
    "vocab_size": 96, "hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 56, "num_hidden_layers": 2, "max_position_embeddings": 64,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
WINDOW, ORIGINAL = 8, 16
PROMPT, STEPS = 40, 6


@pytest.fixture(scope="session")
def torch():
    torch = pytest.importorskip("torch", reason="parity needs the extra 'parity' (torch)")
    torch.set_num_threads(1)
    return torch


@pytest.fixture(scope="session")
def transformers(torch):
    return pytest.importorskip("transformers", reason="parity needs the extra 'parity' (transformers)")


def randomise(torch, model, seed=0):
    """Default weights hide mistakes: norms are 1 or 0, biases 0, logits nearly 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            if p.ndim == 1:
                p.add_(0.2 * noise)
            elif "embed_tokens" in name:
                p.copy_(0.5 * noise)
            else:
                p.copy_(0.6 * p.shape[1] ** -0.5 * noise)


@pytest.fixture(scope="session")
def make(torch, transformers, tmp_path_factory):
    """`make(model_type, **settings)`: the module in evaluation mode, and the folder it was saved to."""

    def made(model_type, **settings):
        config = transformers.AutoConfig.for_model(model_type, **{**SIZES, **settings})
        module = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().float()
        randomise(torch, module)
        folder = tmp_path_factory.mktemp(model_type)
        module.save_pretrained(folder)
        return module, folder

    return made


def ours(folder):
    """Config and weights of a saved folder, by the converter's own tables."""
    config = dialects.decoder_config(json.loads((folder / "config.json").read_text()))
    found = shards.read_folder(folder)
    params = {}
    wanted = names.tensors(config)
    assert {tensor.name for tensor in wanted} == set(found)
    for tensor in wanted:
        node = params
        for key in tensor.path[:-1]:
            node = node.setdefault(key, {})
        value = found[tensor.name].view()
        assert value.shape == tensor.theirs
        node[tensor.path[-1]] = jnp.asarray(np.ascontiguousarray(tensor.form.ours(value, config.head_dim)))
    return config, params


def module_of(config):
    from flax import nnx

    return from_nnx(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))[0]
