"""Adapters: nothing closed over, equal modules share a model, wrong modules are refused."""

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from specjax import Attend, Output, cache
from specjax.models import Decoder, axis_names, from_linen, from_nnx
from specjax.testing import check_model


class LinenAttention(linen.Module):
    """The least linen language model: one layer of attention without positions, and a head."""

    vocab: int = 17
    width: int = 8

    def init_cache(self, batch, capacity):
        return cache.init(1, batch, 1, capacity, self.width, jnp.float32)

    @linen.compact
    def __call__(self, tokens, state, attend):
        x = linen.Embed(self.vocab, self.width)(tokens)
        x = x + linen.Embed(64, self.width)(attend.positions)
        q, k, v = (linen.Dense(self.width, name=n)(x) for n in "qkv")
        layer = cache.write(state[0], {"k": k[:, None], "v": v[:, None]}, attend.lengths)
        scores = jnp.einsum("btd,bsd->bts", q, layer["k"][:, 0])
        scores = jnp.where(cache.visible(attend, cache.capacity(state)), scores, -1e9)
        mixed = jnp.einsum("bts,bsd->btd", jax.nn.softmax(scores), layer["v"][:, 0])
        kernel = linen.with_partitioning(linen.initializers.normal(1.0), ("embed", "vocab"))
        return Output(linen.Dense(self.vocab, kernel_init=kernel)(x + mixed), {}, (layer,))


def linen_variables(module, seed):
    attend = Attend(jnp.zeros(1, jnp.int32), jnp.zeros((1, 1), jnp.int32), jnp.ones((1, 1), bool))
    return module.init(jax.random.key(seed), jnp.zeros((1, 1), jnp.int32), module.init_cache(1, 4), attend)


def test_linen_module_keeps_the_contract():
    module = LinenAttention()
    model, params = from_linen(module, linen_variables(module, 0))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(params))
    check_model(model, params)
    assert from_linen(LinenAttention(), linen_variables(module, 1))[0] is model


def test_linen_refusals():
    module = LinenAttention()
    with pytest.raises(ValueError, match="'params' and without 'cache', got"):
        from_linen(module, {**linen_variables(module, 0), "cache": {}})
    with pytest.raises(ValueError, match="Dense has no init_cache"):
        from_linen(linen.Dense(3), {"params": {}})


def test_equal_structures_share_one_model_and_one_program(config):
    first, params = from_nnx(Decoder(config, rngs=nnx.Rngs(0)))
    second, others = from_nnx(Decoder(config, rngs=nnx.Rngs(1)))
    assert first is second
    traces = []

    @jax.jit
    def forward(params, tokens):
        traces.append(None)
        attend = Attend(jnp.zeros(1, jnp.int32), jnp.arange(3)[None], jnp.ones((1, 3), bool))
        return first.apply(params, tokens, None, attend).logits

    tokens = jnp.zeros((1, 3), jnp.int32)
    assert not np.allclose(forward(params, tokens), forward(others, tokens))
    assert len(traces) == 1


def test_no_weight_is_a_constant_of_the_program(model_and_params):
    model, params = model_and_params
    attend = Attend(jnp.zeros(1, jnp.int32), jnp.arange(3)[None], jnp.ones((1, 3), bool))
    jaxpr = jax.make_jaxpr(lambda p, a: model.apply(p, jnp.zeros((1, 3), jnp.int32), None, a).logits)(params, attend)
    assert max((np.size(c) for c in jaxpr.consts), default=0) < 64


def test_params_have_string_keys_and_axis_names(module, config):
    _, params = from_nnx(module)
    names = axis_names(module)
    assert set(params["layers"]) == {"0", "1"}
    assert names["embedding"] == ("vocab", "embed")
    assert names["layers"]["1"]["attention"]["query"] == ("embed", "heads", "head_dim")
    ranks = jax.tree.map(lambda leaf: leaf.ndim, params)
    assert jax.tree.map(len, names, is_leaf=lambda x: isinstance(x, tuple)) == ranks


def test_abstract_module_gives_shapes(config):
    model, shapes = from_nnx(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    real, params = from_nnx(Decoder(config, rngs=nnx.Rngs(0)))
    assert model is real
    assert jax.tree.map(lambda x: (x.shape, x.dtype), shapes) == jax.tree.map(lambda x: (x.shape, x.dtype), params)


def test_nnx_refusals(config):
    class WithState(Decoder):
        def __init__(self, config, *, rngs):
            super().__init__(config, rngs=rngs)
            self.seen = nnx.BatchStat(jnp.zeros(()))

    with pytest.raises(ValueError, match="no nnx.Param: seen"):
        from_nnx(WithState(config, rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match="Linear has no init_cache"):
        from_nnx(nnx.Linear(2, 2, rngs=nnx.Rngs(0)))
