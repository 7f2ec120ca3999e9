"""Draft heads saved and loaded: all of what is theirs, none of what is borrowed, and for their own target only."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import specjax
from specjax import checkpoints
from specjax.models import Decoder, Eagle3Config, EagleConfig, MedusaConfig, from_nnx, head_from_nnx
from specjax.models.heads import MODULES, borrow, own


@pytest.fixture
def target(saved):
    return checkpoints.load(saved)


def settings(family, config):
    return {
        "medusa": lambda: MedusaConfig.for_target(config, 2),
        "eagle": lambda: EagleConfig.for_target(config, fc_bias=True),
        "eagle3": lambda: Eagle3Config.for_target(config, draft_vocab_size=4),
    }[family]()


def made(family, target, dtype=jnp.float32):
    config = settings(family, target.config)
    _, params = head_from_nnx(MODULES[family][1](config, rngs=nnx.Rngs(3), dtype=dtype))
    if "draft_ids" in params:
        params["draft_ids"] = jnp.array([0, 2, 3, 6], jnp.int32)
    return config, borrow(params, config, target.params)


@pytest.mark.parametrize("family", ["medusa", "eagle", "eagle3"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_saved_and_loaded(tmp_path, target, family, dtype):
    config, params = made(family, target, dtype)
    checkpoints.save_head(tmp_path / "head", params, config, target, {"steps": 5})
    loaded = specjax.load_head(tmp_path / "head", target)
    assert loaded.config == config and loaded.metadata == {"steps": 5} and loaded.head.name == family
    assert jax.tree.structure(loaded.params) == jax.tree.structure(params)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b.astype(a.dtype)), loaded.params, params)
    kept = own(loaded.params)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(kept)} <= {"float32", "int32"}  # the target's dtype
    for name in config.borrows:
        assert loaded.params[name] is target.params[name] and name not in kept
    stored = json.loads((tmp_path / "head" / "specjax.json").read_text())
    assert stored["family"] == family and stored["target"]["hidden_size"] == 8
    assert not (tmp_path / "head" / "tokenizer.json").exists()
    with pytest.raises(ValueError, match="exists; pass overwrite=True"):
        checkpoints.save_head(tmp_path / "head", params, config, target)


def test_another_target_is_refused(tmp_path, target, tokenizer, make_tokenizer):
    config, params = made("eagle3", target)
    checkpoints.save_head(tmp_path / "head", params, config, target)
    deeper = dataclasses.replace(target.config, num_layers=3, hidden_size=12)
    checkpoints.save(tmp_path / "deeper", from_nnx(Decoder(deeper, rngs=nnx.Rngs(0)))[1], deeper, tokenizer)
    with pytest.raises(ValueError, match="hidden_size 8 there, 12 here; num_layers 2 there, 3 here"):
        specjax.load_head(tmp_path / "head", checkpoints.load(tmp_path / "deeper"))
    checkpoints.save(tmp_path / "other", target.params, target.config, make_tokenizer("abcdefh"))
    with pytest.raises(ValueError, match="made for another target than the loaded target: tokenizer .* there, .* here"):
        specjax.load_head(tmp_path / "head", checkpoints.load(tmp_path / "other"))
    with pytest.raises(ValueError, match="num_layers|hidden_size is 8 in the head and 12 in the target"):
        checkpoints.save_head(tmp_path / "wrong", params, config, checkpoints.load(tmp_path / "deeper"))


def test_a_head_is_no_model_and_a_model_no_head(tmp_path, saved, target):
    config, params = made("eagle", target)
    checkpoints.save_head(tmp_path / "head", params, config, target)
    with pytest.raises(ValueError, match=r"is a draft head \(eagle\), no model of its own: .* specjax.load_head\("):
        specjax.load(tmp_path / "head")
    with pytest.raises(ValueError, match="is a model of its own, no draft head; specjax.load loads it"):
        specjax.load_head(saved, target)
    with pytest.raises(ValueError, match="no checkpoint 'tiny-python-medusa3'"):
        specjax.load_head("tiny-python-medusa3", target)


def test_damaged_heads(tmp_path, target):
    config, params = made("eagle3", target)
    broken = {**params, "fc": jnp.zeros((7, 8)), "extra": jnp.zeros(2)}
    del broken["norm"]
    checkpoints.save_head(tmp_path / "broken", broken, config, target)
    with pytest.raises(ValueError) as error:
        specjax.load_head(tmp_path / "broken", target)
    assert str(error.value).split("\n  ")[1:] == [
        "missing norm.scale (8,)", "unexpected extra (2,)", "fc has shape (7, 8), the config says (8, 8)"]
    for ids, match in (([0, 2, 2, 6], r"names the ids \[2\] twice"), ([0, 1, 2, 7], r"names the ids \[7\]")):
        path = tmp_path / f"ids{ids[-1]}"
        checkpoints.save_head(path, {**params, "draft_ids": jnp.array(ids, jnp.int32)}, config, target)
        with pytest.raises(ValueError, match=match):
            specjax.load_head(path, target)
    mixed = {**params, "output": params["output"].astype(jnp.float16)}
    with pytest.raises(ValueError, match=r"share one dtype, these have \['float16', 'float32'\]"):
        checkpoints.save_head(tmp_path / "mixed", mixed, config, target)
    with pytest.raises(ValueError, match="dtype int32 holds no fractions"):
        specjax.load_head(tmp_path / "ids6", target, jnp.int32)
