"""Conversion holds about one tensor, loading the weights and one more, however large the checkpoint."""

import json

import gguf_files
import gguf_words
import hugging
import jax.numpy as jnp
import numpy as np
import pytest
from memory import STATUS, bytes_read, peak

from specjax import checkpoints
from specjax.checkpoints import dialects, names, shards

LARGE = {
    "vocab_size": 20_000, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 12, "head_dim": 64,
    "num_attention_heads": 16, "num_key_value_heads": 8, "tie_word_embeddings": True,
}  # fmt: skip
ROOM = 128  # MiB, for buffers of Orbax and the allocator


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = hugging.write(tmp_path_factory.mktemp("large") / "hf", hugging.tensors())
    (folder / "config.json").write_text(json.dumps({**hugging.CONFIG, **LARGE}))
    wanted = names.tensors(dialects.decoder_config({**hugging.CONFIG, **LARGE}))
    block = np.random.default_rng(0).standard_normal(1 << 18, np.float32).astype(jnp.bfloat16)
    shapes = {tensor.name: (block.dtype, tensor.theirs) for tensor in wanted}
    shards.write_file(folder / shards.SINGLE, shapes, (np.resize(block, tensor.theirs) for tensor in wanted))
    return folder


@pytest.mark.slow
@pytest.mark.skipif(not STATUS.exists(), reason="memory is read from /proc")
def test_peaks(source, tmp_path):
    sizes = [entry.num_bytes / 2**20 for entry in shards.read_folder(source).values()]
    assert sum(sizes) > 9 * max(sizes)
    there, back = tmp_path / "ours", tmp_path / "back"
    assert peak(lambda: checkpoints.from_huggingface(source, there)) < 2 * max(sizes) + ROOM
    assert peak(lambda: checkpoints.to_huggingface(there, back)) < 2 * max(sizes) + ROOM
    before = bytes_read()
    assert peak(lambda: checkpoints.load(there, dtype=jnp.bfloat16)) < sum(sizes) + max(sizes) + ROOM
    stored = sum(path.stat().st_size for path in there.rglob("*") if path.is_file())
    assert 0.9 * stored < bytes_read() - before < 1.1 * stored  # every byte once, and little of Orbax's own


@pytest.mark.slow
@pytest.mark.skipif(not STATUS.exists(), reason="memory is read from /proc")
@pytest.mark.parametrize(("kind", "size"), [("Q4_0", 18), ("Q8_0", 34)])
def test_peak_of_a_quantised_file(tmp_path, kind, size):
    """By what the numbers take once decoded; queries and keys are put in order on top."""
    values = {
        **hugging.CONFIG, "model_type": "llama", "vocab_size": gguf_words.count(gguf_words.BYTES)[0],
        "hidden_size": 2048, "num_attention_heads": 64, "num_key_value_heads": 64, "head_dim": 128,
        "intermediate_size": 64, "num_hidden_layers": 2,
    }  # fmt: skip
    rng, made = np.random.default_rng(0), {}
    for tensor in names.tensors(dialects.decoder_config(values)):
        *rows, columns = tensor.theirs
        if rows:
            blocks = np.zeros((*rows, columns // 32, size), np.uint8)
            blocks[..., 2:] = rng.integers(0, 256, (1, 1, size - 2))
            made[tensor.name] = gguf_files.Blocks(kind, blocks.reshape(*rows, -1))
        else:
            made[tensor.name] = np.ones(columns, np.float32)
    file = gguf_files.write(tmp_path / "x.gguf", values, made)
    del made, blocks
    largest = 64 * 128 * 2048 * 4 / 2**20
    assert peak(lambda: checkpoints.from_gguf(file, tmp_path / "ours")) < 2 * largest + ROOM
