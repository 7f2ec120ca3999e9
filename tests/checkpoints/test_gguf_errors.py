"""What is wrong with a GGUF file is said, with its name; nothing half right is made."""

import os
import re
import struct
import sys

import gguf as package
import gguf_files
import hugging
import numpy as np
import pytest
from gguf_files import LLAMA3, ROWS, tensors, values_of
from typer.testing import CliRunner

from specjax import checkpoints
from specjax.checkpoints import gguf
from specjax.checkpoints.dialects import decoder_config
from specjax.checkpoints.gguf.config import config_values
from specjax.cli.app import app


@pytest.fixture(scope="module")
def made():
    return tensors()


@pytest.fixture
def refuse(tmp_path, made):
    """Write a file, and see it refused by name and in these words."""
    def refused(match, given=made, **changes):
        settings = changes.pop("values", {})
        file = gguf_files.write(tmp_path / "x.gguf", values_of(**settings), given, **changes)
        with pytest.raises(ValueError, match=f"(?s)x.gguf.*{match}"):
            gguf.read(file)

    return refused


def test_settings_that_can_not_be_expressed(refuse):
    def field(match, name, value):
        refuse(match, fields={f"qwen2.{name}": value})

    field("a mixture of 8 experts", "expert_count", 8)
    field("num_key_value_heads differ from layer to layer", "attention.head_count_kv", [2, 1])
    field("attention.value_length is 8, heads are 4 wide", "attention.value_length", 8)
    field("rope.dimension_count is 2, heads are 4 wide", "rope.dimension_count", 2)
    field("no number is given for embedding_length", "embedding_length", None)
    field("no number is given for attention.layer_norm_rms_eps", "attention.layer_norm_rms_epsilon", None)
    field("block_count is 100, and there are tensors of 2 layers", "block_count", 100)
    field("no number is given for block_count", "block_count", "two")
    field("rope.scaling.type is 'longrope', only none, linear and yarn", "rope.scaling.type", "longrope")
    field("type is yarn, and there is no rope.scaling.factor", "rope.scaling.type", "yarn")
    refuse("yarn_attn_factor = 1.25", fields={
        "qwen2.rope.scaling.factor": 4.0, "qwen2.rope.scaling.yarn_attn_factor": 1.25})
    refuse("the architecture 'gpt2' is not among", fields={"general.architecture": "gpt2"})
    refuse("big-endian", endianess=package.GGUFEndian.BIG)
    # Heads whose width is not said are as wide as fits.
    refuse("rope.dimension_count is 1, heads are 2 wide", values={"head_dim": None}, given=tensors(head_dim=None),
           fields={"qwen2.rope.dimension_count": 1})


def test_scaling_that_is_not_called_by_name():
    """Without a kind a factor is linear, as it is for llama.cpp; old files call it otherwise."""
    for key in ("rope.scaling.factor", "rope.scale_linear"):
        fields = gguf_files.metadata(values_of()) | {"general.architecture": "qwen2", f"qwen2.{key}": 4.0}
        scaling = decoder_config(config_values(fields, ROWS, 2, False, False, None)).rope_scaling
        assert (scaling.kind, scaling.factor) == ("linear", 4.0)


def test_factors_of_another_family(refuse):
    values = {"model_type": "llama", "rope_theta": 5e5, "head_dim": 16}
    usual = gguf_files.rope_factors(values_of(**values, rope_scaling=LLAMA3))
    for other in (usual * np.float32([1.01] + [1] * 7), usual[:4], usual / 64, np.full(8, np.nan, np.float32)):
        refuse("rope", tensors(**values), values=values, extra={"rope_freqs.weight": other})


def test_every_misfit_is_named(tmp_path, made):
    given = {name: array for name, array in made.items() if name != "model.norm.weight"}
    given["model.layers.1.mlp.up_proj.weight"] = np.zeros((12, 9), np.float32)
    file = gguf_files.write(tmp_path / "x.gguf", values_of(), given, extra={"blk.0.ffn_up.bias": np.float32([0, 0])})
    with pytest.raises(ValueError) as error:
        checkpoints.from_gguf(file, tmp_path / "ours")
    assert str(file) in str(error.value) and str(error.value).split("\n  ")[1:] == [
        "missing model.norm.weight (8,)",
        "unexpected blk.0.ffn_up.bias (2,)",
        "model.layers.1.mlp.up_proj.weight has shape (12, 9), the config says (12, 8)",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["x.gguf"]


def test_types_that_are_not_decoded(refuse, made):
    for kind, rows in (("Q8_1", np.zeros((12, 40), np.uint8)), ("I8", np.zeros((12, 8), np.int8))):
        odd = {**made, "model.layers.0.mlp.up_proj.weight": gguf_files.Blocks(kind, rows)}
        refuse(f"can not be decoded:\n  blk.0.ffn_up.weight is {kind}", odd)


def test_every_prefix_is_refused(tmp_path, made):
    whole = gguf_files.write(tmp_path / "whole.gguf", values_of(), made).read_bytes()
    # Each length near the beginning, others by chance, and one that lacks the last number only.
    lengths = [*range(40), *np.random.default_rng(0).integers(40, len(whole), 60), len(whole) - 4]
    path = tmp_path / "cut.gguf"
    for length in lengths:
        path.write_bytes(whole[: int(length)])
        with pytest.raises(ValueError, match="cut.gguf can not be read as a GGUF file"):
            gguf.read(path)
    path.write_bytes(whole)
    gguf.read(path)


def test_counts_beyond_the_file(tmp_path, made):
    """An array that claims more numbers than the file has: refused at its end, not after 2^40 empty ones."""
    whole = gguf_files.write(tmp_path / "whole.gguf", values_of(), made).read_bytes()
    key, path = b"tokenizer.ggml.token_type", tmp_path / "long.gguf"
    count = whole.index(key) + len(key) + 8
    path.write_bytes(whole[:count] + struct.pack("<Q", 2**40) + whole[count + 8 :])
    with pytest.raises(ValueError, match="long.gguf can not be read as a GGUF file: it ends before"):
        gguf.read(path)


def test_damage_is_refused(tmp_path, made):
    """Any one number of the header replaced by a huge one, or a byte of it by another: an error, or a model."""
    whole = gguf_files.write(tmp_path / "whole.gguf", values_of(), made).read_bytes()
    body = whole.index(b"token_embd.weight") + 64
    rng, path = np.random.default_rng(1), tmp_path / "bad.gguf"
    for at in rng.integers(4, body, 60):
        broken = bytearray(whole)
        if at % 2:
            broken[at] ^= 1 << int(rng.integers(8))
        else:
            broken[at : at + 8] = struct.pack("<Q", 2**63)
        path.write_bytes(broken)
        try:
            gguf.read(path)
        except ValueError as error:
            assert "bad.gguf" in str(error)


def test_what_is_no_file_of_this_kind(tmp_path):
    with pytest.raises(ValueError, match="there is no file .*none.gguf"):
        gguf.read(tmp_path / "none.gguf")
    (tmp_path / "text.gguf").write_text("hello, this is no model")
    with pytest.raises(ValueError, match="text.gguf can not be read as a GGUF file"):
        gguf.read(tmp_path / "text.gguf")
    writer = package.GGUFWriter(tmp_path / "bare.gguf", "qwen2")
    writer.add_tensor("v.patch_embd.weight", np.zeros((2, 2), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match="bare.gguf holds no token_embd.weight"):
        gguf.read(tmp_path / "bare.gguf")


def test_templates_stay_in_the_folder(refuse):
    for name in ("../../../out", "/tmp/out", ""):
        refuse("chat template", fields={"tokenizer.chat_templates": [name], f"tokenizer.chat_template.{name}": "x"})
    refuse("chat template 'absent'", fields={"tokenizer.chat_templates": ["absent"]})


def test_without_the_package(tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("specjax.checkpoints.gguf")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("specjax.checkpoints.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ValueError, match=re.escape("x.gguf needs the package gguf: pip install 'specjax[gguf]'")):
        checkpoints.from_gguf(tmp_path / "x.gguf", tmp_path / "ours")


def test_the_command(tmp_path, made):
    def run(*words):
        return CliRunner().invoke(app, ["convert", *map(os.fspath, words)])

    file = gguf_files.write(tmp_path / "x.gguf", values_of(), made)
    done = run(file, tmp_path / "ours")
    assert done.exit_code == 0 and "ours is complete" in done.output.replace("\n", "")
    assert checkpoints.load(tmp_path / "ours").eos_ids[0] == made["model.embed_tokens.weight"].shape[0] - 6
    capital = file.rename(tmp_path / "X.GGUF")
    assert run(capital, tmp_path / "again").exit_code == 0
    file = capital.rename(tmp_path / "x.gguf")
    file.write_bytes(file.read_bytes()[:2000])
    assert run(file, tmp_path / "new").exit_code == 2
    gone = run(tmp_path / "gone.gguf", tmp_path / "new")
    assert gone.exit_code == 2 and "there is no file" in gone.output and "Traceback" not in gone.output
    words = hugging.write(tmp_path / "hf", hugging.tensors()) / "tokenizer.json"
    refused = run(tmp_path / "hf", tmp_path / "new", "--tokenizer", words)
    assert refused.exit_code == 2 and "--tokenizer goes with GGUF files only" in refused.output
    # A name on the Hub is refused before anything is fetched.
    assert "--tokenizer goes with" in run("hf:owner/name", tmp_path / "new", "--tokenizer", words).output
    assert not (tmp_path / "new").exists()


def test_folders_beside_files(tmp_path, made):
    """A folder may end in `.gguf`, there and back; one that holds a GGUF file is told to give the file."""
    def run(*words):
        return CliRunner().invoke(app, ["convert", *map(os.fspath, words)])

    source = hugging.write(tmp_path / "hf.gguf", hugging.tensors())
    assert run(source, tmp_path / "ours.gguf").exit_code == 0
    assert run("--to-hf", tmp_path / "ours.gguf", tmp_path / "back").exit_code == 0
    (tmp_path / "files").mkdir()
    gguf_files.write(tmp_path / "files" / "x.gguf", values_of(), made)
    for name, words in (("files", "of a GGUF model, give the file"), ("nowhere", "there is no folder")):
        refused = run(tmp_path / name, tmp_path / "new")
        assert refused.exit_code == 2 and words in refused.output.replace("\n", " ")


def test_fields_of_any_form(refuse, tmp_path):
    for name in ("tokenizer.chat_template", "tokenizer.ggml.tokens"):
        refuse("a field is not of the usual form", fields={name: 5})
    refuse("rope.scaling and rope_freqs.weight", values={"model_type": "llama"}, given=tensors(model_type="llama"),
           extra={"rope_freqs.weight": np.ones(2, np.float32)}, fields={"llama.rope.scaling.factor": 2.0})
    deep = struct.pack("<IIQQQ", 0x46554747, 3, 0, 1, 1) + b"a" + struct.pack("<I", 9)
    (tmp_path / "deep.gguf").write_bytes(deep + struct.pack("<IQ", 9, 1) * 100_000)
    with pytest.raises(ValueError, match="deep.gguf can not be read as a GGUF file"):
        gguf.read(tmp_path / "deep.gguf")
