"""Checkpoints read straight into the shards of a mesh are what they are on one device, laid out afterwards."""

import hugging
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from meshes import SHAPES, mesh_of

import specjax
from specjax.checkpoints import from_huggingface, load, load_head, loading
from specjax.sharding import REPLICATED, shard

FEW = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 2, "intermediate_size": 24}
"""Fewer key-value heads than devices, and a vocabulary (11 of 16 rows) that they do not divide."""


@pytest.fixture(scope="module", params=["safetensors", "orbax"])
def folder(request, tmp_path_factory):
    scratch = tmp_path_factory.mktemp("model")
    made = hugging.write(scratch / "hf", hugging.tensors(**FEW), **FEW)
    if request.param == "safetensors":
        return made
    from_huggingface(made, scratch / "converted")
    return scratch / "converted"


def real(params):
    """The weights without what stands behind the vocabulary."""
    cut = {"embedding": np.s_[:11], "head": np.s_[:, :11]}
    return {name: np.asarray(leaf)[cut.get(name, ...)]
            for path, leaf in loading.flat(params).items() for name in [".".join(path)]}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rules", [specjax.sharding.RULES, REPLICATED], ids=["split", "replicated"])
def test_shards_are_those_of_the_whole(folder, shape, rules):
    mesh = mesh_of(shape)
    found, alone = load(folder, mesh=mesh, rules=rules), load(folder)
    model, params = shard(alone.model, alone.params, mesh, rules)
    assert found.model is model and found.eos_ids == alone.eos_ids == (5, 6)
    assert jax.tree.map(lambda a, b: (a.shape, a.dtype, a.sharding) == (b.shape, b.dtype, b.sharding),
                        found.params, params) == jax.tree.map(lambda _: True, params)
    for (name, mine), other in zip(real(found.params).items(), real(params).values(), strict=True):
        np.testing.assert_array_equal(mine, other, err_msg=name)


def test_text_from_shards(folder):
    alone, spread = load(folder), load(folder, mesh=mesh_of((2, 4)))
    prompts = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10]]
    texts = [specjax.generate(found.model, found.params, prompts, max_new_tokens=8).tokens for found in (alone, spread)]
    np.testing.assert_array_equal(*map(np.asarray, texts))


def test_safetensors_load_as_their_conversion_does(tmp_path):
    made = hugging.write(tmp_path / "hf", hugging.tensors(norms="f32"), files=2)
    from_huggingface(made, tmp_path / "converted")
    direct, converted = load(made), load(tmp_path / "converted")
    assert direct.model is converted.model and direct.config == converted.config
    assert direct.tokenizer.to_str() == converted.tokenizer.to_str()
    assert direct.metadata == converted.metadata
    jax.tree.map(np.testing.assert_array_equal, direct.params, converted.params)
    assert {leaf.dtype for leaf in jax.tree.leaves(load(made, jnp.bfloat16).params)} == {jnp.dtype(jnp.bfloat16)}


def test_a_narrow_dtype_is_refused_where_a_weight_would_be_infinite(tmp_path):
    made = hugging.tensors(dtype="f32")
    made["model.norm.weight"][0] = 1e30
    folder = hugging.write(tmp_path / "hf", made)
    with pytest.raises(ValueError, match="norm.scale has weights beyond what float16 holds"):
        load(folder, jnp.float16, mesh=mesh_of((1, 8)))


def test_a_head_joins_its_target_on_the_mesh():
    mesh = mesh_of((2, 4))
    target = load("tiny-python", mesh=mesh)
    head = load_head("tiny-python-eagle3", target)
    assert head.head.layout.mesh == mesh and head.params["embedding"] is target.params["embedding"]
    alone = load("tiny-python")
    other = load_head("tiny-python-eagle3", alone)
    prompts = [target.tokenizer.encode(text).ids for text in ("def read(path):", "class Node:")]
    texts = [specjax.generate(
        found.model, found.params, prompts, max_new_tokens=12, draft_params=made.params,
        drafter=specjax.draft.eagle3(made.head, 8, 3, 3)) for found, made in ((alone, other), (target, head))]
    np.testing.assert_array_equal(*(np.asarray(out.tokens) for out in texts))
    np.testing.assert_array_equal(*(np.asarray(out.stats.accepted) for out in texts))
    assert np.asarray(texts[0].stats.accepted).sum() > 0
