"""Conversion holds about one tensor, loading the weights and one more, however large the checkpoint."""

import json

import gguf_files
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
def test_peak_of_a_quantised_file(tmp_path):
    """By what the numbers take once decoded; of the two large tensors, the rows of one are put in order on top."""
    values = {**gguf_files.SIZES, "model_type": "llama", "hidden_size": 2048, "num_attention_heads": 256,
              "num_key_value_heads": 1, "head_dim": 128, "intermediate_size": 64, "num_hidden_layers": 1}  # fmt: skip
    made = {}
    for tensor in names.tensors(dialects.decoder_config(values)):
        *rows, columns = tensor.theirs
        blocks = np.full((*rows, columns // 32 * 18), 5, np.uint8)
        made[tensor.name] = gguf_files.Blocks("Q4_0", blocks) if rows else np.ones(columns, np.float32)
    file = gguf_files.write(tmp_path / "x.gguf", values, made)
    largest = 256 * 128 * 2048 * 4 / 2**20
    assert peak(lambda: checkpoints.from_gguf(file, tmp_path / "ours")) < 2 * largest + ROOM
