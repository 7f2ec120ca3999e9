"""A checkpoint that does not fit is refused with every reason named."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import pytest
from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers

from specjax import checkpoints


def rewrite(folder, **changes):
    path = folder / "specjax.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_missing_extra_and_mis_shaped_tensors_are_each_named(tmp_path, params, config, tokenizer):
    broken = jax.tree.map(lambda x: x, params)
    del broken["layers"]["1"]["mlp"]["up"], broken["head"]
    broken["layers"]["1"]["attention"]["bias"] = jnp.zeros((2, 4))
    broken["layers"]["0"]["mlp"]["down"] = jnp.zeros((13, 8))
    checkpoints.save(tmp_path / "broken", broken, config, tokenizer)
    with pytest.raises(ValueError) as error:
        checkpoints.load(tmp_path / "broken")
    assert str(error.value).split("\n  ")[1:] == [
        "missing head (8, 7)",
        "missing layers.1.mlp.up (8, 12)",
        "unexpected layers.1.attention.bias (2, 4)",
        "layers.0.mlp.down has shape (13, 8), the config says (12, 8)",
    ]


def test_too_few_embedding_rows_are_no_padding(tmp_path, params, config, tokenizer):
    checkpoints.save(tmp_path / "small", params, dataclasses.replace(config, vocab_size=9), tokenizer)
    with pytest.raises(ValueError, match=r"embedding has shape \(7, 8\), the config says \(9, 8\)"):
        checkpoints.load(tmp_path / "small")


def test_dtypes_are_not_cast_in_silence(saved, tmp_path, params, config, tokenizer):
    rewrite(saved, dtype="float16")
    with pytest.raises(ValueError, match="embedding is float32, the manifest says float16"):
        checkpoints.load(saved)
    mixed = {**params, "head": params["head"].astype(jnp.bfloat16)}
    with pytest.raises(ValueError, match=r"share one dtype, these have \['bfloat16', 'float32'\]"):
        checkpoints.save(tmp_path / "mixed", mixed, config, tokenizer)


def test_unknown_names_list_the_embedded_ones(tmp_path):
    with pytest.raises(ValueError, match="no checkpoint 'tiny-pyton'") as error:
        checkpoints.load("tiny-pyton")
    assert all(name in str(error.value) for name in checkpoints.embedded_names())
    with pytest.raises(ValueError, match=r"no specjax checkpoint: it has no specjax\.json"):
        checkpoints.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 99}, "not of format 'specjax' version 1"),
        ({"family": "mamba"}, "names the family 'mamba'; this version knows decoder"),
    ],
)
def test_manifests_of_other_kinds(saved, change, message):
    rewrite(saved, **change)
    with pytest.raises(ValueError, match=message):
        checkpoints.load(saved)


def test_unknown_config_fields_are_refused(saved, config):
    rewrite(saved, config={**config.to_dict(), "state_size": 4})
    with pytest.raises(ValueError, match=r"unknown fields \['state_size'\]"):
        checkpoints.load(saved)


DAMAGED = {
    "": "is damaged: it is no JSON",
    "[]": "is damaged: it is no JSON object",
    '{"format": "specjax", "version": 1, "mood": 3}':
        r"unknown fields \['mood'\], missing fields \['config', 'dtype', 'eos_ids', 'family'\]",
}  # fmt: skip


@pytest.mark.parametrize("text", DAMAGED)
def test_damaged_manifests_are_named(saved, text):
    (saved / "specjax.json").write_text(text)
    with pytest.raises(ValueError, match=DAMAGED[text]):
        checkpoints.load(saved)


def test_missing_parts_are_named(saved):
    (saved / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="tokenizer.json is missing or damaged .*; convert or save the model again"):
        checkpoints.load(saved)
    shutil.rmtree(saved / "params")
    with pytest.raises(ValueError, match="params is missing or damaged; convert or save the model again"):
        checkpoints.load(saved)
    (saved / "specjax.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="specjax.json is damaged: it is no JSON"):
        checkpoints.load(saved)


def test_folders_that_are_no_checkpoint_say_what_to_do(saved, tmp_path):
    (tmp_path / "none").mkdir()
    with pytest.raises(ValueError, match="no specjax checkpoint: it has no specjax.json .an unfinished save has none."):
        checkpoints.load(tmp_path / "none")
    with pytest.raises(ValueError, match="hf:owner/name must be converted first: specjax convert hf:owner/name DEST"):
        checkpoints.load("hf:owner/name")
    with pytest.raises(ValueError, match="x.gguf must be converted first: specjax convert x.gguf DEST"):
        checkpoints.load("x.gguf")
    saved.rename(saved.with_name(".model.replaced"))
    with pytest.raises(ValueError, match=r"a run was killed while it replaced it, the old one stands in .*replaced"):
        checkpoints.load(saved)


def test_dtypes_that_do_not_hold_the_weights(tmp_path, params, config, tokenizer):
    large = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    large["norm"] = {"scale": large["norm"]["scale"].at[3].set(1e5)}
    checkpoints.save(tmp_path / "large", large, config, tokenizer)
    with pytest.raises(ValueError, match=r"weights of norm.scale are beyond what float16 holds \(65504\); load it"):
        checkpoints.load(tmp_path / "large", dtype=jnp.float16)
    assert checkpoints.load(tmp_path / "large", dtype="float32").params["norm"]["scale"][3] > 9e4
    with pytest.raises(ValueError, match="dtype int8 holds no fractions; choose float32"):
        checkpoints.load(tmp_path / "large", dtype="int8")


def test_padding_and_cutting_are_switched_off(saved, tokenizer):
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=6)
    tokenizer.save(str(saved / "tokenizer.json"))
    assert checkpoints.load(saved).tokenizer.encode("a").ids == [0]


def test_tokenizers_are_compared_where_they_cut(saved, tokenizer):
    target = checkpoints.load(saved)

    def draft(change):
        other = Tokenizer.from_str(tokenizer.to_str())
        change(other)
        return dataclasses.replace(target, tokenizer=other)

    checkpoints.check_same_tokenizer(target, draft(lambda t: t.enable_padding(length=9)))
    checkpoints.check_same_tokenizer(target, draft(lambda t: t.enable_truncation(9)))
    checkpoints.check_same_tokenizer(target, draft(lambda t: setattr(t, "decoder", decoders.ByteLevel())))
    for part, change in {
        "normalizer": lambda t: setattr(t, "normalizer", normalizers.Lowercase()),
        "pre_tokenizer": lambda t: setattr(t, "pre_tokenizer", pre_tokenizers.Whitespace()),
        "added_tokens": lambda t: t.add_special_tokens(["g"]),
    }.items():
        with pytest.raises(ValueError, match=f"cut text differently: {part} of their tokenizers differ; choose"):
            checkpoints.check_same_tokenizer(target, draft(change))


def test_another_tokenizer_is_refused_by_its_first_differing_id(saved, make_tokenizer):
    target = checkpoints.load(saved)
    checkpoints.check_same_tokenizer(target, target)
    swapped = dataclasses.replace(target, tokenizer=make_tokenizer("abdcefg"))
    with pytest.raises(ValueError, match="id 2 is 'c' for the target and 'd' for the draft"):
        checkpoints.check_same_tokenizer(target, swapped)
    shorter = dataclasses.replace(target, tokenizer=make_tokenizer("abcdef"))
    with pytest.raises(ValueError, match="id 6 is 'g' for the target and None for the draft"):
        checkpoints.check_same_tokenizer(target, shorter)
