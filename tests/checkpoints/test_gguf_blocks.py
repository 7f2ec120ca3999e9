"""Quantised tensors against decoders that follow the definition of each format, one number at a time."""

import gguf_files
import hugging
import numpy as np
import pytest

from specjax import checkpoints
from specjax.checkpoints import folder, gguf
from specjax.checkpoints.gguf import tensors

WIDE = {
    **gguf_files.SIZES, "model_type": "llama", "hidden_size": 256, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "intermediate_size": 256, "num_hidden_layers": 1,
}  # fmt: skip


def half(block, at):
    return float(np.frombuffer(bytes(block[at : at + 2]), "<f2")[0])


def signed(byte):
    return byte - 256 if byte > 127 else byte


def low(byte):
    return byte & 15


def high(byte):
    return byte >> 4


def q8_0(b):
    return [half(b, 0) * signed(b[2 + i]) for i in range(32)]


def q4_0(b):
    return [half(b, 0) * (take(b[2 + i]) - 8) for take in (low, high) for i in range(16)]


def q4_1(b):
    return [half(b, 0) * take(b[4 + i]) + half(b, 2) for take in (low, high) for i in range(16)]


def q5_0(b):
    fifths = int.from_bytes(bytes(b[2:6]), "little")
    nibbles = [take(b[6 + i]) for take in (low, high) for i in range(16)]
    return [half(b, 0) * (nibble + 16 * (fifths >> i & 1) - 16) for i, nibble in enumerate(nibbles)]


def q4_k(b):
    """Eight runs of 32; their scales and offsets have six bits, of the last four the upper two stand elsewhere."""
    s, q, out = b[4:16], b[16:], []
    for run in range(8):
        if run < 4:
            scale, offset = s[run] & 63, s[run + 4] & 63
        else:
            scale, offset = low(s[run + 4]) + (s[run - 4] >> 6) * 16, high(s[run + 4]) + (s[run] >> 6) * 16
        take = high if run % 2 else low
        out += [half(b, 0) * scale * take(q[run // 2 * 32 + i]) - half(b, 2) * offset for i in range(32)]
    return out


def q6_k(b):
    """Two halves of four runs of 32; the upper two bits of a number stand in one byte for all four runs."""
    out = []
    for part in range(2):
        lows, highs, scales = b[part * 64 :], b[128 + part * 32 :], b[192 + part * 8 :]
        for run in range(4):
            for i in range(32):
                number = (high if run > 1 else low)(lows[run % 2 * 32 + i]) + (highs[i] >> 2 * run & 3) * 16 - 32
                out.append(half(b, 208) * signed(scales[run * 2 + i // 16]) * number)
    return out


# Decoder, numbers and bytes of a block, and where its scales of two bytes stand.
KINDS = {
    "Q8_0": (q8_0, 32, 34, (0,)), "Q4_0": (q4_0, 32, 18, (0,)), "Q4_1": (q4_1, 32, 20, (0, 2)),
    "Q5_0": (q5_0, 32, 22, (0,)), "Q4_K": (q4_k, 256, 144, (0, 2)), "Q6_K": (q6_k, 256, 210, (208,)),
}  # fmt: skip


def random_rows(kind, rows, columns, seed):
    """Any bytes, but for the scales: these are numbers."""
    _, numbers, size, scales = KINDS[kind]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows * columns // numbers, size), np.uint8)
    for at in scales:
        blocks[:, at : at + 2] = rng.normal(0, 0.1, (len(blocks), 1)).astype("<f2").view(np.uint8)
    return blocks.reshape(rows, -1)


def slowly(kind, rows):
    decode, _, size, _ = KINDS[kind]
    return np.array([[x for at in range(0, len(row), size) for x in decode(row[at : at + size])]
                     for row in rows.tolist()]).astype(np.float32)  # fmt: skip


def stored(kind, made):
    """The kernels of layers as blocks, and as what these mean."""
    blocks = {name: gguf_files.Blocks(kind, random_rows(kind, *array.shape, seed)) for seed, (name, array)
              in enumerate(made.items()) if "proj" in name and "up" not in name and "gate" not in name}  # fmt: skip
    return blocks, {name: slowly(kind, block.rows) for name, block in blocks.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1 << 22, 700])
def test_each_number(tmp_path, monkeypatch, kind, chunk):
    """Queries and keys are among them, with their rows in the other order."""
    monkeypatch.setattr(tensors, "CHUNK", chunk)
    made = hugging.tensors("f32", **WIDE)
    # An output kernel has 32 columns; the blocks of 256 do not fit it.
    given = {name: array for name, array in made.items() if KINDS[kind][1] <= array.shape[-1]}
    blocks, want = stored(kind, given)
    assert len(blocks) >= 4
    source = gguf.read(gguf_files.write(tmp_path / "x.gguf", WIDE, {**made, **blocks}))
    assert source.origin["gguf"]["tensors"][kind] == len(blocks)
    for name, array in {**made, **want}.items():
        entry = source.tensors[name]
        assert entry.shape == array.shape and entry.dtype == np.float32
        np.testing.assert_array_equal(entry.view(), array, err_msg=name)


def test_they_are_written_as_float32(tmp_path):
    made = hugging.tensors("f32", **WIDE)
    blocks, want = stored("Q4_1", made)
    checkpoints.from_gguf(gguf_files.write(tmp_path / "x.gguf", WIDE, {**made, **blocks}), tmp_path / "ours")
    checkpoints.to_huggingface(tmp_path / "ours", tmp_path / "back")
    assert hugging.same_bytes(tmp_path / "back", {**made, **want})
    back = folder.read_folder(tmp_path / "back")
    assert back.values["torch_dtype"] == "float32"
