"""Hugging Face folders to checkpoints of ours and back."""

import fnmatch
import json
import pathlib
import struct
import subprocess
import sys
import types

import hugging
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

from specjax import checkpoints
from specjax.checkpoints import dialects, exporting, hub, importing, layout, names, shards

KINDS = {
    "f32": {"dtype": "f32"}, "f16": {"dtype": "f16"}, "bf16": {"dtype": "bf16"},
    "mixed": {"dtype": "bf16", "norms": "f32"},
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back_with_every_byte(tmp_path, kind):
    made = hugging.tensors(**KINDS[kind])
    source = hugging.write(tmp_path / "hf", made, files=3 if kind == "mixed" else 1)
    seen = []
    config = checkpoints.from_huggingface(source, tmp_path / "ours", report=lambda name, size: seen.append(size))
    assert len(seen) == len(made) and sum(seen) == sum(a.nbytes for a in made.values())
    checkpoints.to_huggingface(tmp_path / "ours", tmp_path / "back", shard_bytes=600 if kind == "mixed" else 10**9)
    assert hugging.same_bytes(tmp_path / "back", made)
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        assert (tmp_path / "back" / name).read_bytes() == (source / name).read_bytes()
    assert config.vocab_size == hugging.WORDS
    if kind == "mixed":
        assert len(list((tmp_path / "back").glob("model-*-of-*.safetensors"))) > 2


def test_what_is_loaded(tmp_path):
    made = hugging.tensors("f32")
    checkpoints.from_huggingface(hugging.write(tmp_path / "hf", made), tmp_path / "ours")
    loaded = checkpoints.load(tmp_path / "ours")
    assert loaded.eos_ids == (5, 6) and loaded.config.qkv_bias and loaded.config.rope_theta == 1e6
    kernel = made["model.layers.1.self_attn.q_proj.weight"]
    attention = loaded.params["layers"]["1"]["attention"]
    np.testing.assert_array_equal(attention["query"][:, 2, 1], kernel[2 * 4 + 1])
    np.testing.assert_array_equal(attention["key_bias"][0], made["model.layers.1.self_attn.k_proj.bias"])
    # Rows behind the tokenizer's ids are stored, and never scored.
    np.testing.assert_array_equal(loaded.params["embedding"], made["model.embed_tokens.weight"][: hugging.WORDS])
    assert loaded.params["head"].shape == (8, hugging.WORDS)


def test_a_cast_is_said(tmp_path):
    made = hugging.tensors("f32")
    source = hugging.write(tmp_path / "hf", made)
    checkpoints.from_huggingface(source, tmp_path / "ours", dtype="bfloat16")
    checkpoints.to_huggingface(tmp_path / "ours", tmp_path / "back")
    assert hugging.same_bytes(tmp_path / "back", {n: a.astype(jnp.bfloat16) for n, a in made.items()})
    assert json.loads((tmp_path / "back" / "config.json").read_text())["dtype"] == "bfloat16"
    with pytest.raises(ValueError, match="dtype 'int8' is not one of float32, bfloat16, float16"):
        checkpoints.from_huggingface(source, tmp_path / "other", dtype="int8")


def test_a_cast_that_makes_weights_infinite_is_refused(tmp_path):
    made = hugging.tensors("f32")
    made["model.norm.weight"][2] = 7e4
    source = hugging.write(tmp_path / "hf", made)
    with pytest.raises(ValueError, match=r"norm.scale has weights beyond what float16 holds \(65504\); keep float32"):
        checkpoints.from_huggingface(source, tmp_path / "ours", dtype="float16")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]
    checkpoints.from_huggingface(source, tmp_path / "ours", dtype="bfloat16")
    made["model.norm.weight"][2] = np.inf  # as it was: that is no overflow
    shards.write_file(source / shards.SINGLE, {n: (a.dtype, a.shape) for n, a in made.items()}, made.values())
    checkpoints.from_huggingface(source, tmp_path / "ours", dtype="float16", overwrite=True)


def test_bits_that_are_no_numbers_come_back(tmp_path):
    made = hugging.tensors()
    odd = np.array([0x7FC1, 0xFFFF, 0x7F81, 0x8000, 0x0001, 0x7F80, 0xFF80, 0x0080], np.uint16)
    made["model.norm.weight"] = odd.view(made["model.norm.weight"].dtype)
    checkpoints.from_huggingface(hugging.write(tmp_path / "hf", made), tmp_path / "ours")
    checkpoints.to_huggingface(tmp_path / "ours", tmp_path / "back")
    assert hugging.same_bytes(tmp_path / "back", made)


def test_the_text_of_a_multimodal_model_is_no_multimodal_model(tmp_path):
    text = {**hugging.CONFIG, "num_attention_heads": 2, "model_type": "gemma3_text", "tie_word_embeddings": True}
    wanted = names.tensors(dialects.decoder_config(text))
    made = {f"language_model.{t.name}": np.ones(t.theirs, np.float32) for t in wanted}
    source = hugging.write(tmp_path / "hf", made, **{"model_type": "gemma3", "text_config": text})
    checkpoints.from_huggingface(source, tmp_path / "ours")
    with pytest.raises(ValueError, match="holds the text part of a multimodal model; .* Keep the original folder"):
        checkpoints.to_huggingface(tmp_path / "ours", tmp_path / "back")


def test_every_misfit_is_named(tmp_path):
    made = hugging.tensors()
    del made["model.norm.weight"], made["lm_head.weight"]
    made["model.layers.0.mlp.up_proj.weight"] = np.zeros((12, 9), np.float32)
    made["model.layers.0.self_attn.o_proj.bias"] = np.zeros(8, np.float32)
    made["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(2, np.float32)  # of old files: not looked at
    source = hugging.write(tmp_path / "hf", made)
    with pytest.raises(ValueError) as error:
        checkpoints.from_huggingface(source, tmp_path / "ours")
    assert str(error.value).split("\n  ")[1:] == [
        "missing lm_head.weight (16, 8)",
        "missing model.norm.weight (8,)",
        "unexpected model.layers.0.self_attn.o_proj.bias (8,)",
        "model.layers.0.mlp.up_proj.weight has shape (12, 9), the config says (12, 8)",
    ]
    assert not list(tmp_path.glob("*ours*"))


def test_tied_heads_and_prefixes(tmp_path):
    made = hugging.tensors(tie_word_embeddings=True)
    assert "lm_head.weight" not in made
    copied = {f"language_model.{name}": a for name, a in made.items()}
    copied["language_model.lm_head.weight"] = made["model.embed_tokens.weight"]
    source = hugging.write(tmp_path / "hf", copied, tie_word_embeddings=True)
    checkpoints.from_huggingface(source, tmp_path / "ours")
    checkpoints.to_huggingface(tmp_path / "ours", tmp_path / "back")
    assert hugging.same_bytes(tmp_path / "back", copied)
    other = {**made, "lm_head.weight": made["model.embed_tokens.weight"] * 2}
    with pytest.raises(ValueError, match="lm_head.weight differs from model.embed_tokens.weight, although tie"):
        checkpoints.from_huggingface(hugging.write(tmp_path / "bad", other, tie_word_embeddings=True), tmp_path / "x")


NAMES = {
    "layers.0.mlp.up_proj.weight": "model.layers.0.mlp.up_proj.weight",
    "embed_tokens.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "lm_head.weight": "lm_head.weight",
    "model.language_model.norm.weight": "model.norm.weight",
    "language_model.lm_head.weight": "lm_head.weight",
    "vision_tower.encoder.weight": None,
    "model.vision_tower.encoder.weight": None,
    "multi_modal_projector.mm_input_projection_weight": None,
    "model.layers.0.self_attn.rotary_emb.inv_freq": None,
}


def test_names_with_and_without_what_is_around_them():
    assert {name: names.plain_name(name) for name in NAMES} == NAMES


def test_two_tensors_of_one_meaning(tmp_path):
    made = hugging.tensors()
    made["norm.weight"] = made["model.norm.weight"]
    with pytest.raises(ValueError, match="both model.norm.weight and norm.weight mean model.norm.weight"):
        checkpoints.from_huggingface(hugging.write(tmp_path / "hf", made), tmp_path / "ours")


def test_a_manifest_changed_by_hand_is_not_given_back(tmp_path):
    checkpoints.from_huggingface(hugging.write(tmp_path / "hf", hugging.tensors()), tmp_path / "ours")
    path = tmp_path / "ours" / layout.SOURCE / "config.json"
    path.write_text(path.read_text().replace("1000000.0", "10000.0"))
    with pytest.raises(ValueError, match="and the config in the manifest describe different models"):
        checkpoints.to_huggingface(tmp_path / "ours", tmp_path / "back")


def test_files_that_do_not_fit(tmp_path, saved):
    made = hugging.tensors()
    small = hugging.tensors(vocab_size=10)
    with pytest.raises(ValueError, match="ids up to 10, the embedding only 10 rows"):
        checkpoints.from_huggingface(hugging.write(tmp_path / "small", small, vocab_size=10), tmp_path / "ours")
    source = hugging.write(tmp_path / "hf", made)
    with pytest.raises(ValueError, match="exists; pass overwrite=True"):
        checkpoints.from_huggingface(source, saved)
    with pytest.raises(ValueError, match="was not converted from Hugging Face"):
        checkpoints.to_huggingface(saved, tmp_path / "back")
    (source / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="no tokenizer.json; make one with transformers"):
        checkpoints.from_huggingface(source, tmp_path / "ours")
    with pytest.raises(ValueError, match="is no Hugging Face model: it has no config.json"):
        checkpoints.from_huggingface(saved, tmp_path / "ours")


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "model.safetensors"

    def refuse(header, match, body=b"\0" * 8):
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + body)
        with pytest.raises(ValueError, match=match):
            shards.read_file(path)

    def entry(begin, end, shape=(2,), dtype="F32"):
        return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}

    refuse(b"{", "its header is no JSON")
    refuse(b"[" * 100_000, "its header is no JSON")
    refuse([1], "its header is no JSON object")
    refuse(b'{"a": 1, "b": 2, "a": 1}', r"its header is no JSON \(it has a twice\)")
    refuse({"a": {"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]}}, "the header describes a as")
    refuse({"a": entry(0, 4, (True,))}, "the header describes a as")
    refuse({"a": entry(0, 8, (-1, -2))}, "the header describes a as")
    refuse({"a": {"dtype": "F32"}}, "the header describes a as")
    refuse({"a": entry(0, 8, dtype="F8_E4M3")}, "a is F8_E4M3; tensors of F32, F16, BF16 are read")
    refuse({"a": entry(4, 12)}, "a has 8 bytes, but stands at 4 to 12 of 8")
    refuse({"a": entry(0, 8, (3,))}, "a has 12 bytes, but stands at 0 to 8")
    refuse({"a": entry(0, 8), "b": entry(4, 8, (1,))}, "the tensors a and b overlap")
    path.write_bytes(struct.pack("<Q", 10**9))
    with pytest.raises(ValueError, match="gives its header 1000000000 bytes"):
        shards.read_file(path)
    with pytest.raises(ValueError, match="is no safetensors file: it gives its header .* bytes, and has 3"):
        path.write_bytes(b"abc")
        shards.read_file(path)


INDICES = {
    "{": "is damaged: it has no 'weight_map'",
    "[]": "is damaged: it has no 'weight_map'",
    '{"weight_map": ["a"]}': "is damaged: it has no 'weight_map'",
    '{"weight_map": {"a": 3}}': "is damaged: it has no 'weight_map'",
    '{"weight_map": {"a": "../a.safetensors", "b": "part/b.safetensors"}}':
        r"names files of other folders: \.\./a.safetensors, part/b.safetensors; put all files beside the index",
    '{"weight_map": {"a": "a.safetensors", "b": ".."}}': r"names files that are not there: \.\., a.safetensors",
}  # fmt: skip


@pytest.mark.parametrize("index", INDICES)
def test_damaged_indices_are_refused(tmp_path, index):
    (tmp_path / shards.INDEX).write_text(index)
    with pytest.raises(ValueError, match=INDICES[index]):
        shards.read_folder(tmp_path)


def test_one_file_goes_before_an_index(tmp_path):
    """What `transformers` reads where a folder was saved twice."""
    made = hugging.tensors()
    source = hugging.write(tmp_path / "hf", made)
    (source / shards.INDEX).write_text('{"weight_map": {"old": "gone.safetensors"}}')
    assert hugging.same_bytes(source, made)


def test_what_we_write_others_read(tmp_path):
    made = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.ones((), np.float16)}
    shards.write_file(tmp_path / "x", {n: (a.dtype, a.shape) for n, a in made.items()}, made.values())
    found = load_file(tmp_path / "x")
    assert found.keys() == made.keys() and all(np.array_equal(found[n], made[n]) for n in made)


@pytest.mark.parametrize("way", ["there", "back"])
def test_a_failed_conversion_leaves_nothing(tmp_path, monkeypatch, way):
    source = hugging.write(tmp_path / "hf", hugging.tensors())
    if way == "back":
        checkpoints.from_huggingface(source, tmp_path / "ours")
    before = sorted(tmp_path.iterdir())

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(*((layout.Manifest, "write", fail) if way == "there" else (shards, "write_file", fail)))
    with pytest.raises(KeyboardInterrupt):
        if way == "there":
            importing.from_huggingface(source, tmp_path / "new")
        else:
            exporting.to_huggingface(tmp_path / "ours", tmp_path / "new")
    assert sorted(tmp_path.iterdir()) == before


KILLED = """
import os, sys
from specjax.checkpoints import importing, layout
layout.Manifest.write = lambda *_: os.kill(os.getpid(), 9)
importing.from_huggingface(sys.argv[1], sys.argv[2])
"""


@pytest.mark.slow
def test_a_killed_conversion_leaves_nothing_that_loads(tmp_path):
    source = hugging.write(tmp_path / "hf", hugging.tensors())
    done = subprocess.run([sys.executable, "-c", KILLED, source, tmp_path / "new"], capture_output=True, check=False)
    assert done.returncode == -9
    left = [path for path in tmp_path.iterdir() if path != source]
    assert left and tmp_path / "new" not in left
    for path in left:
        with pytest.raises(ValueError, match="unfinished save"):
            checkpoints.load(path)
    checkpoints.from_huggingface(source, tmp_path / "new")  # and the next run is not in its way
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "new"]


def test_the_command(tmp_path, monkeypatch):
    from specjax.cli.app import app

    made = hugging.tensors()
    source = str(hugging.write(tmp_path / "hf", made))
    ours, back = str(tmp_path / "ours"), str(tmp_path / "back")
    result = CliRunner().invoke(app, ["convert", source, "--dtype", "float32", ours])
    assert result.exit_code == 0 and "ours is complete" in result.output.replace("\n", "")
    assert checkpoints.load(ours).params["norm"]["scale"].dtype == jnp.float32
    result = CliRunner().invoke(app, ["convert", source, ours])
    assert result.exit_code == 2 and "exists; pass overwrite=True" in result.output
    assert CliRunner().invoke(app, ["convert", source, ours, "--overwrite"]).exit_code == 0
    module = [sys.executable, "-m", "specjax.checkpoints.convert", "--to-hf", ours, back]
    assert subprocess.run(module, capture_output=True).returncode == 0
    assert hugging.same_bytes(pathlib.Path(back), made)
    assert subprocess.run(module, capture_output=True).returncode == 2


def test_a_repository_by_name(tmp_path, monkeypatch):
    def fetch(name, revision, allow_patterns, ignore_patterns):
        if name != "owner/name":
            raise FileNotFoundError("no such snapshot\nand much more")
        files = ("model.safetensors", "consolidated.safetensors", "onnx/model.safetensors", "x.bin", "tokenizer.json")
        taken = [file for file in files if any(fnmatch.fnmatch(file, pattern) for pattern in allow_patterns)
                 and not any(fnmatch.fnmatch(file, pattern) for pattern in ignore_patterns)]
        assert taken == ["model.safetensors", "tokenizer.json"]
        return str(tmp_path / (revision or "newest"))

    for name in ("v0.3", "newest"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").touch()
    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(snapshot_download=fetch))
    assert hub.folder("hf:owner/name@v0.3") == tmp_path / "v0.3"
    assert hub.folder("hf:owner/name") == tmp_path / "newest" and hub.folder("a/folder") == pathlib.Path("a/folder")
    with pytest.raises(ValueError, match="owner/nam can not be fetched.*: no such snapshot; check the.*hf auth login"):
        hub.folder("hf:owner/nam")
    with pytest.raises(ValueError, match="owner/name@gguf has no safetensors.*`hf download owner/name FILE.gguf"):
        hub.folder("hf:owner/name@gguf")
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match=r"pip install 'specjax\[hub\]'"):
        hub.folder("hf:owner/name")


def test_a_file_is_mapped_once(tmp_path):
    """A map holds a file open: one for each tensor would be more than a process may have."""
    source = hugging.write(tmp_path / "hf", hugging.tensors())
    found = shards.read_folder(source)
    assert len({id(entry.data) for entry in found.values()}) == 1
    assert all(np.shares_memory(entry.view(), entry.data) for entry in found.values())


def test_tensors_at_odd_bytes(tmp_path):
    """Old files pad their header to no multiple of the tensors' items."""
    made = hugging.tensors("f32")
    source = hugging.write(tmp_path / "hf", made)
    body = (source / shards.SINGLE).read_bytes()
    (length,) = struct.unpack("<Q", body[:8])
    odd = struct.pack("<Q", length + 1) + body[8 : 8 + length] + b" " + body[8 + length :]
    (source / shards.SINGLE).write_bytes(odd)
    checkpoints.from_huggingface(source, tmp_path / "ours")
    checkpoints.to_huggingface(tmp_path / "ours", tmp_path / "back")
    assert hugging.same_bytes(tmp_path / "back", made)
