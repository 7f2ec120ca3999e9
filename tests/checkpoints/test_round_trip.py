"""What is saved is what loads."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import Attend, checkpoints


def trees_equal(first, second):
    return jax.tree.all(jax.tree.map(lambda a, b: a.dtype == b.dtype and bool(jnp.array_equal(a, b)), first, second))


def test_everything_comes_back(saved, params, config, tokenizer):
    loaded = checkpoints.load(saved)
    assert trees_equal(loaded.params, params)
    assert (loaded.config, loaded.eos_ids, loaded.metadata) == (config, (6,), {"steps": 3})
    assert loaded.tokenizer.to_str() == tokenizer.to_str()
    attend = Attend(jnp.zeros(1, jnp.int32), jnp.arange(2)[None], jnp.ones((1, 2), bool))
    out = loaded.model.apply(loaded.params, jnp.array([[1, 2]]), loaded.model.init_cache(1, 4), attend)
    assert out.logits.shape == (1, 2, 7)


def test_two_loads_share_one_model(saved):
    assert checkpoints.load(saved).model is checkpoints.load(str(saved)).model


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="accelerators keep bfloat16")
def test_bfloat16_widens_on_cpu_only_and_a_cast_can_be_asked_for(tmp_path, params, config, tokenizer):
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    checkpoints.save(tmp_path / "half", half, config, tokenizer)
    assert trees_equal(checkpoints.load(tmp_path / "half").params, jax.tree.map(lambda x: x.astype(jnp.float32), half))
    kept = checkpoints.load(tmp_path / "half", dtype=jnp.bfloat16)
    assert trees_equal(kept.params, half)
    assert kept.model.init_cache(1, 2)[0]["k"].dtype == jnp.bfloat16


def test_padded_vocabulary_is_cut(tmp_path, params, config, tokenizer):
    padded = dict(params)
    padded["embedding"] = jnp.pad(params["embedding"], ((0, 9), (0, 0)), constant_values=5.0)
    padded["head"] = jnp.pad(params["head"], ((0, 0), (0, 9)), constant_values=5.0)
    checkpoints.save(tmp_path / "padded", padded, config, tokenizer)
    assert trees_equal(checkpoints.load(tmp_path / "padded").params, params)


def test_overwrite_must_be_asked_for(saved, params, config, tokenizer):
    with pytest.raises(ValueError, match="exists; pass overwrite=True"):
        checkpoints.save(saved, params, config, tokenizer)
    doubled = jax.tree.map(lambda x: 2 * x, params)
    checkpoints.save(saved, doubled, config, tokenizer, overwrite=True)
    assert trees_equal(checkpoints.load(saved).params, doubled)
    assert [p.name for p in saved.parent.iterdir()] == ["model"]


KILLED = """
import os, sys
from specjax import checkpoints
from specjax.checkpoints import layout
layout.Manifest.write = lambda *_: os.kill(os.getpid(), 9)
loaded = checkpoints.load(sys.argv[1])
checkpoints.save(sys.argv[2], loaded.params, loaded.config, loaded.tokenizer, overwrite=True)
"""


def test_a_killed_save_leaves_the_old_checkpoint_and_nothing_that_loads(saved, params):
    for destination in (saved, saved.parent / "new"):
        result = subprocess.run([sys.executable, "-c", KILLED, saved, destination], capture_output=True, check=False)
        assert result.returncode == -9
    assert trees_equal(checkpoints.load(saved).params, params)
    left = [p for p in saved.parent.iterdir() if p != saved]
    assert left
    for folder in [*left, saved.parent / "new"]:
        with pytest.raises(ValueError, match="unfinished save|no checkpoint"):
            checkpoints.load(folder)


def test_loading_does_not_depend_on_the_order_of_layers(tmp_path, config, tokenizer):
    """Ten layers and more: string keys sort as '1', '10', '2'."""
    import dataclasses

    from flax import nnx

    from specjax.models import Decoder, from_nnx

    deep = dataclasses.replace(config, num_layers=12)
    _, params = from_nnx(Decoder(deep, rngs=nnx.Rngs(3)))
    checkpoints.save(tmp_path / "deep", params, deep, tokenizer)
    loaded = checkpoints.load(tmp_path / "deep")
    np.testing.assert_array_equal(loaded.params["layers"]["10"]["mlp"]["up"], params["layers"]["10"]["mlp"]["up"])
