"""A checkpoint that does not fit is refused with every reason named."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest

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


def test_another_tokenizer_is_refused_by_its_first_differing_id(saved, make_tokenizer):
    target = checkpoints.load(saved)
    checkpoints.check_same_tokenizer(target, target)
    swapped = dataclasses.replace(target, tokenizer=make_tokenizer("abdcefg"))
    with pytest.raises(ValueError, match="id 2 is 'c' for the target and 'd' for the draft"):
        checkpoints.check_same_tokenizer(target, swapped)
    shorter = dataclasses.replace(target, tokenizer=make_tokenizer("abcdef"))
    with pytest.raises(ValueError, match="id 6 is 'g' for the target and None for the draft"):
        checkpoints.check_same_tokenizer(target, shorter)
