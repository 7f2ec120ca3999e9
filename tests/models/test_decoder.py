"""The decoder against an independent float64 numpy reference, and its ways of feeding tokens against one another."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from specjax import Attend
from specjax.models import Decoder, DecoderConfig, from_nnx
from specjax.testing import check_model


def chain(lengths, count, valid=None):
    lengths = jnp.asarray(lengths, jnp.int32)
    positions = lengths[:, None] + jnp.arange(count)
    return Attend(lengths, positions, jnp.ones(positions.shape, bool) if valid is None else valid)


def reference(params, config, tokens):
    """One row, no cache, written from the published equations; complex numbers turn the rotary pairs."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)

    def norm(x, scale):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.rms_norm_eps) * scale

    def turn(x):
        half = config.head_dim // 2
        angle = np.arange(len(tokens))[:, None] * config.rope_theta ** (-np.arange(half) / half)
        z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)[:, None]
        return np.concatenate([z.real, z.imag], -1)

    x = p["embedding"][tokens]
    for i in range(config.num_layers):
        w = p["layers"][str(i)]
        h, a = norm(x, w["attention_norm"]["scale"]), w["attention"]
        q = turn(np.tensordot(h, a["query"], 1))
        k, v = turn(np.tensordot(h, a["key"], 1)), np.tensordot(h, a["value"], 1)
        out = np.zeros_like(q)
        for head in range(config.num_heads):
            shared = head // (config.num_heads // config.num_kv_heads)
            scores = q[:, head] @ k[:, shared].T / np.sqrt(config.head_dim)
            scores[np.triu_indices(len(tokens), 1)] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, head] = weights / weights.sum(-1, keepdims=True) @ v[:, shared]
        x = x + np.tensordot(out, a["out"], 2)
        h, m = norm(x, w["mlp_norm"]["scale"]), w["mlp"]
        gate = h @ m["gate"]
        x = x + (gate / (1 + np.exp(-gate)) * (h @ m["up"])) @ m["down"]
    hidden = norm(x, p["norm"]["scale"])
    return hidden @ (p["embedding"].T if config.tie_embeddings else p["head"]), hidden


def test_forward_matches_the_equations(config, model_and_params):
    model, params = model_and_params
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, 17)
    out = model.apply(params, jnp.asarray(tokens, jnp.int32)[None], None, chain([0], 17))
    logits, hidden = reference(params, config, tokens)
    np.testing.assert_allclose(out.logits[0], logits, atol=2e-5)
    np.testing.assert_allclose(out.features["hidden"][0], hidden, atol=2e-5)


def test_contract(model_and_params):
    check_model(*model_and_params)


def test_chunks_equal_the_whole(config, model_and_params):
    model, params = model_and_params
    tokens = jax.random.randint(jax.random.key(1), (3, 24), 0, config.vocab_size)
    whole = model.apply(params, tokens, None, chain([0, 0, 0], 24)).logits
    cache, at, parts = model.init_cache(3, 40), 0, []
    for size in (7, 1, 1, 10, 5):
        out = model.apply(params, tokens[:, at : at + size], cache, chain([at] * 3, size))
        base = jnp.full((3,), at, jnp.int32)
        cache = model.commit(out.pending, None, base, jnp.full((3,), size, jnp.int32))
        parts.append(out.logits)
        at += size
    np.testing.assert_allclose(jnp.concatenate(parts, axis=1), whole, atol=1e-5)


def test_ragged_rows_equal_solo_rows(config, model_and_params):
    model, params = model_and_params
    tokens = jax.random.randint(jax.random.key(2), (3, 9), 0, config.vocab_size)
    lengths = jnp.array([9, 1, 4], jnp.int32)
    valid = jnp.arange(9) < lengths[:, None]
    out = model.apply(params, tokens, model.init_cache(3, 16), chain([0, 0, 0], 9, valid))
    cache = model.commit(out.pending, None, jnp.zeros(3, jnp.int32), lengths)
    following = model.apply(params, tokens[:, :2], cache, chain(lengths, 2)).logits
    for row, count in enumerate(lengths.tolist()):
        solo = jnp.concatenate([tokens[row, :count], tokens[row, :2]])[None]
        want = model.apply(params, solo, None, chain([0], count + 2)).logits[0]
        np.testing.assert_allclose(out.logits[row, :count], want[:count], atol=1e-5)
        np.testing.assert_allclose(following[row], want[count:], atol=1e-5)


def test_tree_reads_as_its_paths(config, model_and_params):
    """Root 0 with children 1 and 2; 3 and 4 below 1; 5 below 2: each node scores as the end of its own path."""
    model, params = model_and_params
    parents, depth = [-1, 0, 0, 1, 1, 2], [0, 1, 1, 2, 2, 2]
    ancestors = np.eye(6, dtype=bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            ancestors[node] |= ancestors[parent]
    prompt = jax.random.randint(jax.random.key(3), (2, 5), 0, config.vocab_size)
    nodes = jax.random.randint(jax.random.key(4), (2, 6), 0, config.vocab_size)
    out = model.apply(params, prompt, model.init_cache(2, 20), chain([0, 0], 5))
    base = jnp.array([5, 5], jnp.int32)
    cache = model.commit(out.pending, None, jnp.zeros(2, jnp.int32), base)
    attend = Attend(base, base[:, None] + jnp.array(depth), jnp.ones((2, 6), bool), jnp.asarray(ancestors)[None])
    out = model.apply(params, nodes, cache, attend)
    for node in range(6):
        path = np.flatnonzero(ancestors[node])
        text = jnp.concatenate([prompt, nodes[:, path]], axis=1)
        want = model.apply(params, text, None, chain([0, 0], text.shape[1])).logits[:, -1]
        np.testing.assert_allclose(out.logits[:, node], want, atol=1e-5)
    # Different paths of different lengths, then one more token.
    path, count = jnp.array([[0, 2, 5], [0, 1, 0]], jnp.int32), jnp.array([3, 2], jnp.int32)
    cache = model.commit(out.pending, path, base, count)
    after = model.apply(params, prompt[:, :1], cache, chain(base + count, 1)).logits[:, 0]
    for row in range(2):
        kept = nodes[row, path[row, : int(count[row])]]
        text = jnp.concatenate([prompt[row], kept, prompt[row, :1]])[None]
        want = model.apply(params, text, None, chain([0], text.shape[1])).logits[0, -1]
        np.testing.assert_allclose(after[row], want, atol=1e-5)


def test_bfloat16_runs_close_to_float32(config):
    wide, params = from_nnx(Decoder(config, rngs=nnx.Rngs(0)))
    narrow, _ = from_nnx(Decoder(config, rngs=nnx.Rngs(0), dtype=jnp.bfloat16))
    tokens = jax.random.randint(jax.random.key(5), (1, 12), 0, config.vocab_size)
    want = wide.apply(params, tokens, None, chain([0], 12)).logits
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    got = narrow.apply(half, tokens, narrow.init_cache(1, 12), chain([0], 12))
    assert got.pending[0]["k"].dtype == jnp.bfloat16
    np.testing.assert_allclose(got.logits.astype(jnp.float32), want, atol=0.15)


def test_gradients_are_finite_where_a_row_sees_nothing(model_and_params):
    model, params = model_and_params
    valid = jnp.array([[False] * 4])

    def total(params):
        return jnp.sum(model.apply(params, jnp.zeros((1, 4), jnp.int32), None, chain([0], 4, valid)).logits)

    assert all(bool(jnp.isfinite(g).all()) for g in jax.tree.leaves(jax.grad(total)(params)))


def test_config_round_trip_and_errors(config):
    assert DecoderConfig.from_dict(config.to_dict()) == config
    with pytest.raises(ValueError, match="num_kv_heads=4 does not divide num_heads"):
        dataclasses.replace(config, num_kv_heads=4)
    with pytest.raises(ValueError, match="head_dim=7 is odd"):
        dataclasses.replace(config, head_dim=7)
    with pytest.raises(ValueError, match="hidden_size must be a positive int, got 0"):
        dataclasses.replace(config, hidden_size=0)
    values = config.to_dict()
    del values["vocab_size"]
    with pytest.raises(ValueError, match=r"unknown fields \['window'\], missing fields \['vocab_size'\]"):
        DecoderConfig.from_dict({**values, "window": 3})
