"""Published heads that do not fit, or that leave something open, are refused with every reason."""

import dataclasses
import json
import re

import head_cases as cases
import numpy as np
import published
import pytest

from specjax import checkpoints
from specjax.checkpoints import head_dialects, head_source
from specjax.checkpoints.targets import Target


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return published.target(tmp_path_factory.mktemp("target") / "target")


def refused(tmp_path, path, found, values, **options):
    """The message with which a head is refused."""
    source = published.write(tmp_path / "hf", found, values)
    with pytest.raises(ValueError) as error:
        checkpoints.from_published_head(source, tmp_path / "ours", path, **options)
    assert not (tmp_path / "ours").exists()
    return str(error.value)


def test_missing_unexpected_and_mis_shaped_tensors_are_each_named(tmp_path, path):
    found = published.tensors("eagle")
    found["layers.0.input_layernorm.weight"] = np.ones(12, np.float32)  # the stray norm that cost others acceptance
    found["norm.weight"] = np.ones(12, np.float32)
    del found["layers.0.mlp.gate_proj.weight"]
    found["layers.0.mlp.up_proj.weight"] = np.ones((12, 20), np.float32)
    message = refused(tmp_path, path, found, published.values(cases.CASES["eagle"]))
    assert message.split("\n  ")[1:] == [
        "missing layers.0.mlp.gate_proj.weight (20, 12)", "unexpected layers.0.input_layernorm.weight (12,)",
        "unexpected norm.weight (12,)",
        "layers.0.mlp.up_proj.weight has shape (12, 20), the config says (20, 12)"]


@pytest.mark.parametrize("changes, match", [
    ({"vocab_size": 99}, "made for another target than .*: vocab_size is 99 in the head and 23 in the target"),
    ({"target_hidden_size": 16}, r"taps|target_hidden_size=16|hidden_size is 16 in the head and 12 in the target"),
    ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 5]}},
     "the head reads layer_5, the target has layer_0 .. layer_4"),
    ({"draft_vocab_size": 8}, "d2t has 9 entries, draft_vocab_size is 8"),
    ({"norm_output": True}, "sets norm_output, which for vLLM .* and for SpecForge .*: say --recycle post or"),
    ({"model_type": "mamba"}, "model_type 'mamba' is not among those that convert"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic' is not supported"),
])  # fmt: skip
def test_what_does_not_fit_the_target(tmp_path, path, changes, match):
    values = published.values(cases.CASES["eagle3"], **changes)
    message = refused(tmp_path, path, published.tensors("eagle3"), values, tap_convention="boundary")
    assert re.search(match, message), message


def test_what_a_layer_number_means_has_to_be_said(tmp_path, path):
    found = published.tensors("eagle3")
    values = published.values(cases.CASES["eagle3"], eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 2]})
    message = refused(tmp_path, path, found, values)
    assert "give --tap-convention boundary (vLLM, speculators, NVIDIA) or output" in message
    for convention, taps in (("boundary", (0, 1, 2)), ("output", (1, 2, 3))):
        config = checkpoints.from_published_head(
            tmp_path / "hf", tmp_path / convention, path, tap_convention=convention)
        assert config.taps == taps
    with pytest.raises(ValueError, match="tap_convention 'input' is not one of boundary, output"):
        checkpoints.from_published_head(tmp_path / "hf", tmp_path / "no", path, tap_convention="input")
    (tmp_path / "hf" / "config.json").write_text(json.dumps({**values, "eagle_config": None}))
    with pytest.raises(ValueError, match=r"the usual ones, \[2, 2, 1\], make no sense for a target of 4 layers"):
        checkpoints.from_published_head(tmp_path / "hf", tmp_path / "no", path)


def test_usual_layers_are_told_apart():
    deep = dataclasses.replace(cases.TARGET, num_layers=32)
    target = Target("deep", deep, None, 23)
    for values, taps in (
        ({}, (2, 16, 29)), ({"eagle_aux_hidden_state_layer_ids": [2, 16, 29]}, (2, 16, 29)),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 15, 28]}}, (2, 16, 29)),
        ({"eagle_aux_hidden_state_layer_ids": [20, 26, 32]}, (20, 26, 32)),
        ({"eagle_config": {"use_aux_hidden_state": False}}, ()),
    ):
        source = head_source.HeadSource("here", "eagle3", values, {}, {})
        assert head_dialects._taps(source, values, target, head_dialects.Told()) == taps


@pytest.mark.parametrize("change, match", [
    ("absolute", r"names the ids \[27, 30\] twice, or they are none of the target's 23; d2t holds offsets"),
    ("mask", "t2d marks 8 tokens, and not the 9 that d2t leads to"),
    ("none", "has a draft vocabulary of 9 tokens, but no d2t"),
])  # fmt: skip
def test_draft_vocabularies_that_do_not_add_up(tmp_path, path, change, match):
    found = published.tensors("eagle3")
    if change == "absolute":
        found["d2t"] = found["d2t"] + np.arange(9)
    elif change == "mask":
        found["t2d"] = found["t2d"] & (np.arange(23) != 22)
    else:
        del found["d2t"]
    message = refused(tmp_path, path, found, published.values(cases.CASES["eagle3"]), tap_convention="boundary")
    assert re.search(match, message), message


def test_offsets_of_a_whole_vocabulary_are_no_reduction(tmp_path, path):
    """SpecForge writes offsets of zero and a mask of ones."""
    found = published.tensors("eagle3-hidden")
    found |= {"d2t": np.zeros(23, np.int64), "t2d": np.ones(23, bool)}
    values = published.values(cases.CASES["eagle3-hidden"], draft_vocab_size=23)
    source = published.write(tmp_path / "hf", found, values)
    config = checkpoints.from_published_head(source, tmp_path / "ours", path)
    assert config.draft_vocab_size is None
    checkpoints.to_published_head(tmp_path / "ours", tmp_path / "back")
    assert published.same_bytes(tmp_path / "back", found)


def test_which_head_a_folder_holds(tmp_path, path):
    found = published.tensors("eagle")
    for number, (values, tensors, family) in enumerate((
        (published.values(cases.CASES["eagle3"]), {}, "eagle3"), ({"model_type": "eagle"}, {}, "eagle"),
        ({"model_type": "medusa"}, {}, "medusa"), ({"medusa_num_heads": 4}, {}, "medusa"),
        (published.values(cases.CASES["eagle"]), found, "eagle"),
        (published.values(cases.CASES["eagle"]), published.tensors("eagle3-hidden"), "eagle3"),
        ({"model_type": "llama"}, {"model.norm.weight": np.ones(3, np.float32)}, None),
    )):  # fmt: skip
        assert head_source.family_of(published.write(tmp_path / str(number), tensors, values)) == family
    other = published.write(tmp_path / "dflash", {}, {"speculators_model_type": "dflash"})
    with pytest.raises(ValueError, match="speculators' type 'dflash'; of theirs, eagle3 is read"):
        head_source.family_of(other)
    with pytest.raises(ValueError, match="is no draft head: no tensor is called fc.weight"):
        head_source.read(tmp_path / "6")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has none of model.safetensors, .* pytorch_model.bin"):
        head_source.read(tmp_path / "empty")


def test_speculators_must_say_what_others_read_differently(tmp_path, path):
    values = {"speculators_model_type": "eagle3", "transformer_layer_config": published.values(cases.CASES["eagle3"]),
              "draft_vocab_size": 9, "eagle_aux_hidden_state_layer_ids": [0, 2, 4]}  # fmt: skip
    message = refused(tmp_path, path, published.tensors("eagle3"), values)
    assert "lacks norm_before_residual, for which vLLM takes true and speculators false" in message


def test_two_names_of_one_tensor_and_heads_that_are_not_counted(tmp_path, path):
    found = published.tensors("medusa")
    found["medusa_heads.0.0.linear.weight"] = found["0.0.linear.weight"]
    message = refused(tmp_path, path, found, {"model_type": "medusa"})
    assert "both 0.0.linear.weight and medusa_heads.0.0.linear.weight mean 0.0.linear.weight" in message
    found = {n: x for n, x in published.tensors("medusa").items() if n[0] != "1"}
    source = published.write(tmp_path / "hole", found, {"model_type": "medusa"})
    with pytest.raises(ValueError, match=r"has the Medusa heads \[0, 2\]; they must be numbered 0, 1, .."):
        checkpoints.from_published_head(source, tmp_path / "ours", path)


def test_what_a_layout_has_no_word_for(tmp_path, path):
    target = checkpoints.load(path)
    for name, layout, match in (
        ("eagle3-hidden", "speculators", "no word for a head without taps; use --layout official"),
        ("eagle3-deep", "official", "no word for layers such as those of this head"),
        ("medusa", "official", "none of those of medusa heads: vllm"),
        ("eagle-scaled", "official", "no word for a head that scales embeddings or caps logits as its target does"),
        ("medusa-shared", "vllm", "holds lm_head.weight, a copy of the target's; give --target TARGET"),
    ):
        config, _, params = cases.made("eagle" if name == "eagle-scaled" else name)
        if name == "eagle-scaled":
            config = dataclasses.replace(config, layer=dataclasses.replace(config.layer, scale_embedding=True))
        checkpoints.save_head(tmp_path / name, params, config, target)
        with pytest.raises(ValueError, match=match):
            checkpoints.to_published_head(tmp_path / name, tmp_path / "hf", layout=layout)
        assert not (tmp_path / "hf").exists()
    with pytest.raises(ValueError, match="is no draft head; a model is written by to_huggingface"):
        checkpoints.to_published_head(path, tmp_path / "hf")
    with pytest.raises(ValueError, match="is a draft head .* as target, give the model it drafts for"):
        checkpoints.from_published_head(tmp_path, tmp_path.parent / "x", tmp_path / "medusa")
