"""A tiny target of random weights and answers in its format, without a tokenizer."""

import jax
import numpy as np
from flax import nnx

from specjax.checkpoints import LoadedModel
from specjax.models import Decoder, DecoderConfig, from_nnx
from specjax.training.answers import HELD_OUT, TRAINING, Chunk

VOCAB = 24


def toy_config(width=16, layers=3, **changes):
    return DecoderConfig(
        vocab_size=VOCAB, hidden_size=width, num_layers=layers, num_heads=2, num_kv_heads=1, head_dim=8,
        intermediate_size=2 * width, max_position=256, **changes)


def toy_target(**changes):
    config = toy_config(**changes)
    model, params = from_nnx(Decoder(config, rngs=nnx.Rngs(7)))
    return LoadedModel(model, params, None, config, (0,), {})


def toy_chunk(rows=12, seed=0, width=14):
    """Rows of random length; every token follows from the one before, but for the first: easily learnt."""
    rng = np.random.default_rng(seed)
    start, length = rng.integers(1, 4, rows), rng.integers(1, width - 3, rows)
    tokens = np.zeros((rows, width), np.int32)
    for row in range(rows):
        count = start[row] + length[row]
        tokens[row, :count] = (rng.integers(1, VOCAB) + 3 * np.arange(count)) % (VOCAB - 1) + 1
    temperature = np.resize(np.array([0.0, 0.7], np.float32), rows)
    return Chunk(tokens, start.astype(np.int32), length.astype(np.int32), temperature)


def write(folder, chunks, held_out):
    for part, found in ((TRAINING, chunks), (HELD_OUT, held_out)):
        (folder / part).mkdir(parents=True)
        for number, chunk in enumerate(found):
            np.savez(folder / part / f"{number:05d}.npz", **vars(chunk))


def tables(kind, **run):
    head = {"medusa": {"num_heads": 3}, "eagle": {}, "eagle3": {"taps": [0, 1, 3], "draft_vocab_size": 18},
            "draft": toy_config(width=8, layers=1).to_dict()}[kind]
    loss = {"eagle3": {"steps": 3}}.get(kind, {})
    run = {"steps": 6, "batch": 4, "length": 24, "depth": 3, "devices": 1} | run
    return {"target": "toy", "answers": {"prompts": "headers", "chunks": 1}, "run": run, "head": head, "loss": loss,
            "optimizer": {"rate": 1e-2}}


def shaken(tree, scale=0.3):
    """Every array of a tree made random: a bias of zeros hides what is done with it."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(jax.random.key(3), len(leaves))
    return structure.unflatten([
        leaf + scale * jax.random.normal(key, leaf.shape) for leaf, key in zip(leaves, keys, strict=True)])
