"""Randomised weights, and the same weights in our decoder by the converter's own tables."""

import json

import jax.numpy as jnp
import numpy as np
from flax import nnx

from specjax.checkpoints import dialects, names, shards
from specjax.models import Decoder, from_nnx


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


def module_of(config, dtype=jnp.float32, **options):
    return from_nnx(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0), dtype=dtype, **options)))[0]
