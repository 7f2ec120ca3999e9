"""A model as a GGUF file and as a Hugging Face folder is the same model."""

import json

import gguf_files
import gguf_words
import hugging
import jax
import numpy as np
import pytest
from gguf_files import IDS, LLAMA3, ROWS, tensors, values_of
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from specjax import checkpoints
from specjax.checkpoints import gguf, importing, names
from specjax.checkpoints.dialects import decoder_config
from specjax.checkpoints.gguf.config import config_values

GEMMA = {
    "model_type": "gemma3_text", "num_hidden_layers": 7, "sliding_window": 8, "query_pre_attn_scalar": 4,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
FAMILIES = {
    "llama": {"model_type": "llama"},
    "llama-biased": {"model_type": "llama", "attention_bias": True, "num_key_value_heads": 4},
    "llama-short": {"model_type": "llama", "head_dim": None, "tie_word_embeddings": True},
    "llama-linear": {"model_type": "llama", "rope_scaling": {"rope_type": "linear", "factor": 2.5}},
    "llama3": {"model_type": "llama", "rope_theta": 5e5, "rope_scaling": LLAMA3, "head_dim": 16},
    "qwen2": {"rms_norm_eps": 1e-5},
    "qwen2-yarn": {"rope_scaling": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0}, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "rope_scaling": YARN},
    "gemma3": GEMMA,
    "gemma3-local": {**GEMMA, "rope_local_base_freq": 5e3, "rope_scaling": None},
}


def folder(path, made, **changes):
    """The Hugging Face side, with as many words as the GGUF file has real ids."""
    hugging.write(path, made, **values_of(**changes))
    words = {str(i): i for i in range(IDS)}
    Tokenizer(WordLevel(words, unk_token="0")).save(str(path / "tokenizer.json"))
    return path


def leaves(path):
    loaded = checkpoints.load(path)
    named = jax.tree_util.tree_leaves_with_path(loaded.params)
    return {jax.tree_util.keystr(keys): np.asarray(leaf) for keys, leaf in named}


def assert_same(ours, want, norms=()):
    """Bit by bit; for norms of such names, as far as adding one and taking it off again allows."""
    assert ours.keys() == want.keys()
    for name, array in want.items():
        assert ours[name].dtype == array.dtype, name
        if name.endswith(norms) and norms:
            assert np.all(np.abs(ours[name] - array) <= np.spacing(np.abs(array) + 1)), name
        else:
            np.testing.assert_array_equal(ours[name], array, err_msg=name)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_model_either_way(tmp_path, family):
    changes = FAMILIES[family]
    made = tensors(**changes)
    ours = gguf.read(gguf_files.write(tmp_path / "x.gguf", values_of(**changes), made))
    want = decoder_config(values_of(**changes))
    assert decoder_config(ours.values) == want
    importing.match(ours, names.tensors(want), want.tie_embeddings)
    found = {name: entry.view() for name, entry in ours.tensors.items()}
    assert all(found[name].shape == entry.shape for name, entry in ours.tensors.items())
    assert_same(found, made, ("norm.weight",) if "gemma" in family else ())


@pytest.mark.parametrize("family", ["llama-biased", "gemma3"])
def test_all_the_way_and_back(tmp_path, family):
    changes = {**FAMILIES[family], "num_hidden_layers": 2}
    made = tensors(**changes)
    config = checkpoints.from_huggingface(folder(tmp_path / "hf", made, **changes), tmp_path / "want")
    file = gguf_files.write(tmp_path / "x.gguf", values_of(**changes), made)
    before, modes = file.read_bytes(), []
    with pytest.MonkeyPatch.context() as patch:
        opened = np.memmap
        patch.setattr(np, "memmap", lambda path, mode: modes.append(mode) or opened(path, mode=mode))
        assert checkpoints.from_gguf(file, tmp_path / "ours") == config and config.vocab_size == IDS
    assert modes == ["r"] and file.read_bytes() == before
    ours = leaves(tmp_path / "ours")
    assert ours["['embedding']"].shape == (IDS, 8)  # the rows behind the words are stored, and never scored
    assert_same(ours, leaves(tmp_path / "want"), ("['scale']",) if family == "gemma3" else ())
    # The way back is a Hugging Face folder like any other.
    checkpoints.to_huggingface(tmp_path / "ours", tmp_path / "back")
    assert checkpoints.from_huggingface(tmp_path / "back", tmp_path / "again") == config
    assert_same(leaves(tmp_path / "again"), ours)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_what_is_not_quantised_keeps_its_bits(tmp_path, dtype):
    made = tensors(dtype, model_type="llama")
    made |= {name: array.astype(np.float32) for name, array in made.items() if array.ndim == 1}
    file = gguf_files.write(tmp_path / "x.gguf", values_of(model_type="llama"), made)
    seen = []
    checkpoints.from_gguf(file, tmp_path / "ours", report=lambda name, size: seen.append(size))
    assert sum(seen) == sum(array.nbytes for array in made.values()) and len(seen) == len(made)
    checkpoints.to_huggingface(tmp_path / "ours", tmp_path / "back")
    assert hugging.same_bytes(tmp_path / "back", made)
    checkpoints.from_gguf(file, tmp_path / "cast", dtype="float32")
    checkpoints.to_huggingface(tmp_path / "cast", tmp_path / "wide")
    assert hugging.same_bytes(tmp_path / "wide", {name: a.astype(np.float32) for name, a in made.items()})


def test_gemma_layers_of_either_kind(tmp_path):
    """Most files say nothing about the pattern; some say a period, some a list."""
    def config(**fields):
        said = gguf_files.metadata(values_of(**GEMMA)) | {"general.architecture": "gemma3"}
        said |= {f"gemma3.attention.{name}": value for name, value in fields.items()}
        return decoder_config(config_values(said, ROWS, 7, True, False, None))

    silent = config()
    assert silent.sliding_layers == (0, 1, 2, 3, 4, 6) and silent.sliding_window == 8
    assert silent.sliding_rope_theta == 1e4 and silent.rope_theta == 1e6
    assert config(sliding_window_pattern=3).sliding_layers == (0, 1, 3, 4, 6)
    assert config(sliding_window_pattern=[True, False, False, False, False, False, True]).sliding_layers == (0, 6)
    for nothing in (0, None):
        assert config(sliding_window=nothing).sliding_layers == ()
    with pytest.raises(ValueError, match="sliding_window_pattern has 2 entries for 7 layers"):
        config(sliding_window_pattern=[True, False])


def test_the_one_gemma_with_another_scale():
    """Of 62 layers: by the width of the model over its heads; too many of them to convert here."""
    def scale(layers):
        fields = gguf_files.metadata(values_of(**{**GEMMA, "num_hidden_layers": layers}))
        fields |= {"general.architecture": "gemma3"}
        return decoder_config(config_values(fields, ROWS, layers, True, False, None)).attention_scale

    assert scale(61) == 4**-0.5 and scale(62) == 2**-0.5


def test_a_model_in_several_files(tmp_path):
    made = tensors()
    first = gguf_files.write(tmp_path / "y.gguf", values_of(), made, per_file=10)
    parts = sorted(tmp_path.glob("y-*.gguf"))
    assert len(parts) == 3 and first == parts[0]
    assert_same({name: entry.view() for name, entry in gguf.read(first).tensors.items()}, made)
    with pytest.raises(ValueError, match="y-00002-of-00003.gguf is a part .* give the first, NAME-00001-of-00003.gguf"):
        gguf.read(parts[1])
    second = parts[1].read_bytes()
    for other in (parts[0], parts[2], gguf_files.write(tmp_path / "z.gguf", values_of(), made)):
        parts[1].write_bytes(other.read_bytes())
        with pytest.raises(ValueError, match="y-00002-of-00003.gguf is not part 2 of the 3"):
            gguf.read(first)
    few = gguf_files.write(tmp_path / "few.gguf", values_of(), dict(list(made.items())[:21]), per_file=10)
    parts[1].write_bytes(second)
    parts[2].write_bytes(few.with_name("few-00003-of-00003.gguf").read_bytes())
    with pytest.raises(ValueError, match="hold 21 tensors of 27"):
        gguf.read(first)
    parts[2].unlink()
    with pytest.raises(ValueError, match="first of 3 files, and y-00003-of-00003.gguf is not beside it"):
        gguf.read(first)


def test_what_stands_beside(tmp_path):
    templates = {"tokenizer.chat_templates": ["tool_use"], "tokenizer.chat_template.tool_use": "tools"}
    file = gguf_files.write(tmp_path / "x.gguf", values_of(), tensors(), fields=templates)
    checkpoints.from_gguf(file, tmp_path / "ours")
    checkpoints.to_huggingface(tmp_path / "ours", tmp_path / "back")
    back = tmp_path / "back"
    assert (back / "chat_template.jinja").read_text() == gguf_words.TEMPLATE
    assert (back / "additional_chat_templates" / "tool_use.jinja").read_text() == "tools"
    special = json.loads((back / "tokenizer_config.json").read_text())
    assert (special["eos_token"], special["pad_token"]) == ("<|im_end|>", "<|endoftext|>")
    config = json.loads((back / "config.json").read_text())
    assert config["architectures"] == ["Qwen2ForCausalLM"] and config["rms_norm_eps"] == 1e-6
    said = json.loads((tmp_path / "ours" / "specjax.json").read_text())["metadata"]["gguf"]
    assert said == {"file": "x.gguf", "name": "Tiny", "tensors": {"F32": 27}}


def test_a_head_of_its_own(tmp_path):
    """A tied model may hold its head once more; it is then a model with a head, of the same numbers."""
    made = tensors(tie_word_embeddings=True)
    made["lm_head.weight"] = made["model.embed_tokens.weight"]
    source = gguf.read(gguf_files.write(tmp_path / "x.gguf", values_of(), made))
    assert not source.values["tie_word_embeddings"]
    assert_same({name: entry.view() for name, entry in source.tensors.items()}, made)
