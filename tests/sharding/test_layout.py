"""Where arrays stand on a mesh: by the names of their axes, padded and repeated where the mesh asks for it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P
from meshes import mesh_of

import specjax
from specjax import testing
from specjax.models import Decoder, DecoderConfig, from_nnx
from specjax.sharding import REPLICATED, shard

CONFIG = DecoderConfig(
    vocab_size=61, hidden_size=32, num_layers=1, num_heads=8, num_kv_heads=2, head_dim=8, intermediate_size=48,
    max_position=64, tie_embeddings=False)  # fmt: skip


def pair(config=CONFIG):
    return from_nnx(Decoder(config, rngs=nnx.Rngs(0)))


def laid_out(shape, rules=specjax.sharding.RULES, config=CONFIG):
    return shard(*pair(config), mesh_of(shape), rules)


def specs(params):
    return {".".join(str(key.key) for key in path): leaf.sharding.spec
            for path, leaf in jax.tree_util.tree_leaves_with_path(params)}


def test_axes_follow_their_names():
    _, params = laid_out((2, 4))
    assert specs(params) == {
        "embedding": P("model", None), "head": P(None, "model"), "norm.scale": P(None),
        "layers.0.attention.query": P(None, "model", None), "layers.0.attention.out": P("model", None, None),
        "layers.0.attention.key": P(None, "model", None), "layers.0.attention.value": P(None, "model", None),
        "layers.0.attention_norm.scale": P(None), "layers.0.mlp_norm.scale": P(None),
        "layers.0.mlp.gate": P(None, "model"), "layers.0.mlp.up": P(None, "model"),
        "layers.0.mlp.down": P("model", None)}  # fmt: skip


def test_each_device_holds_its_part_only():
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(pair()[1]))
    _, params = laid_out((1, 8))
    mine = sum(leaf.addressable_shards[3].data.nbytes for leaf in jax.tree.leaves(params))
    kept = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    norms = sum(leaf.nbytes for path, leaf in jax.tree_util.tree_leaves_with_path(params) if "norm" in str(path))
    assert mine == (kept - norms) // 8 + norms < whole / 4


def test_the_vocabulary_is_padded_and_cut_again():
    model, params = laid_out((1, 8))
    assert params["embedding"].shape == (64, 32) and params["head"].shape == (32, 64)
    assert not np.any(np.asarray(params["head"])[:, 61:])
    cache = model.init_cache(2, 8)
    attend = specjax.Attend(jnp.zeros(2, jnp.int32), jnp.zeros((2, 1), jnp.int32), jnp.ones((2, 1), bool))
    out = jax.eval_shape(model.apply, params, jnp.zeros((2, 1), jnp.int32), cache, attend)
    assert out.logits.shape == (2, 1, 61)


@pytest.mark.parametrize(("heads", "kv_heads", "devices", "kept"), [
    (8, 2, 8, 8),  # one for each device, which is the one that its query heads need
    (8, 8, 4, 8),  # enough
    (6, 2, 4, 2),  # query heads can not be split, so nothing of attention is
    (6, 3, 2, 3),
])  # fmt: skip
def test_few_key_value_heads_are_repeated(heads, kv_heads, devices, kept):
    sizes = {"num_heads": heads, "num_kv_heads": kv_heads}
    config = DecoderConfig.from_dict(CONFIG.to_dict() | sizes)
    model, params = laid_out((8 // devices, devices), config=config)
    key = params["layers"]["0"]["attention"]["key"]
    assert key.shape[1] == kept
    assert model.init_cache(8, 4)[0]["k"].shape == (8, kept, 4, 8)
    spread = kept % devices == 0
    assert key.sharding.spec == P(None, "model" if spread else None, None)
    copies, whole = kept // kv_heads, np.asarray(pair(config)[1]["layers"]["0"]["attention"]["key"])
    np.testing.assert_array_equal(np.asarray(key), np.repeat(whole, copies, axis=1))


def test_caches_are_split_by_rows_and_heads():
    model, _ = laid_out((4, 2))
    assert model.init_cache(8, 16)[0]["v"].sharding.spec == P("data", "model", None, None)
    assert model.init_cache(3, 16)[0]["v"].sharding.spec == P(None, "model", None, None)  # three rows on four devices


def test_a_replicated_model_splits_rows_alone():
    model, params = laid_out((4, 2), REPLICATED)
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(params))
    assert model.init_cache(8, 16)[0]["k"].sharding.spec == P("data", None, None, None)


def test_equal_arguments_give_one_model():
    first, second = laid_out((2, 4))[0], laid_out((2, 4))[0]
    assert first is second and first is not laid_out((4, 2))[0]


def test_what_is_placed_is_not_copied():
    model, params = pair()
    mesh = mesh_of((2, 4))
    _, once = shard(model, params, mesh)
    _, twice = shard(model, once, mesh, vocab_size=61)
    assert all(a is b for a, b in zip(jax.tree.leaves(once), jax.tree.leaves(twice), strict=True))


def test_shapes_alone_can_be_laid_out():
    model, params = from_nnx(nnx.eval_shape(lambda: Decoder(CONFIG, rngs=nnx.Rngs(0))))
    _, shapes = shard(model, params, mesh_of((2, 4)))
    made = laid_out((2, 4))[1]
    assert jax.tree.map(lambda leaf: (leaf.shape, leaf.sharding), shapes) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.sharding), made)


def test_other_names_of_mesh_axes():
    _, params = shard(*pair(), mesh_of((2, 4), ("replica", "tensor")), {"rows": "replica", "mlp": "tensor"})
    assert params["layers"]["0"]["mlp"]["up"].sharding.spec == P(None, "tensor")
    assert params["embedding"].sharding.is_fully_replicated


def test_what_can_not_be_laid_out_is_refused():
    model, params = pair()
    with pytest.raises(ValueError, match=r"rules lead to mesh axes \['data', 'expert', 'model'\], but the mesh has"):
        shard(model, params, mesh_of((8,), ("x",)))
    with pytest.raises(ValueError, match=r"AxisType.Auto"):
        shard(model, params, jax.make_mesh((8,), ("model",), axis_types=(jax.sharding.AxisType.Explicit,)))
    with pytest.raises(TypeError, match="needs a specjax.Model or a draft head, got a dict"):
        shard(params, params, mesh_of((8, 1)))
    toy, weights = testing.ring()
    with pytest.raises(TypeError, match="does not say the names of its axes"):
        shard(toy, weights, mesh_of((8, 1)))
    with pytest.raises(ValueError, match=r"vocabularies of \[61, 64\] tokens"):
        shard(model, params | {"embedding": jnp.zeros((64, 32))}, mesh_of((8, 1)))
