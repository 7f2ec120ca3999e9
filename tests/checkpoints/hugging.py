"""Small Hugging Face folders, written without transformers."""

import json

import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from specjax.checkpoints import dialects, names, shards

WORDS, ROWS = 11, 16  # ids of the tokenizer, and rows of the embedding
CONFIG = {
    "model_type": "qwen2", "vocab_size": ROWS, "hidden_size": 8, "num_attention_heads": 3, "num_key_value_heads": 1,
    "head_dim": 4, "intermediate_size": 12, "num_hidden_layers": 2, "max_position_embeddings": 32, "eos_token_id": 3,
    "dtype": "bfloat16", "rope_theta": 1e6,
}  # fmt: skip
DTYPES = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(jnp.bfloat16)}


def tensors(dtype="bf16", norms=None, **changes):
    """Random tensors by their names; the norms may have a dtype of their own."""
    rng = np.random.default_rng(0)
    made = {}
    for tensor in names.tensors(dialects.decoder_config({**CONFIG, **changes})):
        kind = norms if norms and "norm" in tensor.name else dtype
        made[tensor.name] = rng.standard_normal(tensor.theirs, np.float32).astype(DTYPES[kind])
    return made


def write(folder, made, files=1, **changes):
    """A folder of these tensors, spread over some files."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 6]}')
    words = {str(i): i for i in range(WORDS)}
    Tokenizer(WordLevel(words, unk_token="0")).save(str(folder / "tokenizer.json"))
    placed = {name: f"part-{i % files}.safetensors" if files > 1 else shards.SINGLE for i, name in enumerate(made)}
    for file in sorted(set(placed.values())):
        part = {name: made[name] for name in made if placed[name] == file}
        shards.write_file(folder / file, {n: (a.dtype, a.shape) for n, a in part.items()}, part.values())
    if files > 1:
        (folder / shards.INDEX).write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    return folder


def same_bytes(folder, made):
    found = shards.read_folder(folder)
    assert found.keys() == made.keys()
    return all(
        entry.dtype == made[name].dtype and entry.shape == made[name].shape
        and entry.view().tobytes() == made[name].tobytes() for name, entry in found.items())
