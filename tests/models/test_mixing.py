"""Attention in blocks beside the plain einsum, and what its cost and memory grow with."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.extend.core import jaxprs_in_params

from specjax import Attend, cache
from specjax._src.sight import sight_of
from specjax.models import Decoder, DecoderConfig, from_nnx, mixing
from specjax.models.mixing import Scoring, mix

HEADS, SHARED, WIDTH = 4, 2, 8


def tree(random, tokens, earlier):
    """Ancestors [B, T, earlier + T] and depths [T] of one random tree, whose first nodes stand in `earlier` columns."""
    count = earlier + tokens
    seen, depth = np.eye(count, dtype=bool), np.zeros(count, np.int32)
    for node in range(1, count):
        parent = random.integers(0, node)
        seen[node] |= seen[parent]
        depth[node] = depth[parent] + 1
    return seen[earlier:], depth[earlier:]


def case(kind, tokens, slots, lengths, seed=0):
    """A filled layer, queries, and `Attend`; dead slots hold large numbers."""
    random = np.random.default_rng(seed)
    batch = len(lengths)
    lengths = jnp.asarray(lengths, jnp.int32)
    positions, ancestors = lengths[:, None] + jnp.arange(tokens), None
    valid = np.arange(tokens) < random.integers(1, tokens + 1, (batch, 1))
    if kind != "chain":
        seen, depth = tree(random, tokens, 6 if kind == "levels" else 0)
        ancestors = jnp.broadcast_to(jnp.asarray(seen), (batch, *seen.shape))
        first = lengths - (6 if kind == "levels" else 0)
        positions, valid = first[:, None] + depth, random.random((batch, tokens)) < 0.8
    layer = {name: random.normal(size=(batch, SHARED, slots, WIDTH)) for name in ("k", "v")}
    written = np.arange(slots) < np.asarray(lengths)[:, None, None, None] + tokens
    layer = {name: jnp.asarray(np.where(np.moveaxis(written, -1, 2), part, 1e4), jnp.float32)
             for name, part in layer.items()}
    query = jnp.asarray(3 * random.normal(size=(batch, tokens, HEADS, WIDTH)), jnp.float32)
    return query, layer, Attend(lengths, positions, jnp.asarray(valid), ancestors)


def both(query, layer, sight, scoring):
    # A function of its own for each call: nothing traced before a block size was changed may be found again.
    return [jax.jit(lambda *given, way=way: mix(*given, scoring, way))(query, layer, sight)
            for way in ("einsum", "blocks")]


SIGHTS = ((1, (0, 9, 30), None), (5, (7, 31, 16), None), (5, (100, 41, 64), 6))
"""Tokens of a call, lengths of its rows, window. In 37 slots the last is written round."""


def widest_gap(monkeypatch, kind, sights=SIGHTS, slots=37, **changes):
    """The largest difference of the two ways, in blocks of 8 and from slot 16 on of 16, over valid tokens."""
    monkeypatch.setattr(mixing, "BLOCK", 8)
    monkeypatch.setattr(mixing, "WIDE", 16)
    for name, value in changes.items():
        monkeypatch.setattr(mixing, name, value)
    gap = 0.0
    for tokens, lengths, window in sights[kind == "levels" :]:
        query, layer, attend = case(kind, tokens, slots, lengths)
        one, other = both(query, layer, sight_of(attend, window), Scoring(0.3, 5.0))
        gap = max(gap, float(jnp.max(jnp.where(attend.valid[..., None, None], jnp.abs(one - other), 0))))
        assert bool(jnp.isfinite(other).all())
    return gap


@pytest.mark.parametrize("kind", ["chain", "tree", "levels"])
def test_blocks_equal_the_einsum(kind, monkeypatch):
    """Ragged rows, a last block that begins inside the one before, windows, scores that are capped."""
    assert widest_gap(monkeypatch, kind) < 2e-5


def test_faults_would_be_seen(monkeypatch):
    """Of how blocks are placed; the einsum beside them is as it was."""
    plain = mixing.held
    faults = {
        "forgets that a cache may be written round": lambda sight, slots, size: slots + 0 * sight.end[:, None],
        "counts from where the last block would begin, were there room": lambda sight, slots, size: plain(
            sight, slots + 3, size),
        "is one behind": lambda sight, slots, size: plain(sight, slots, size) - 1}
    for name, fault in faults.items():
        gap = widest_gap(monkeypatch, "chain", SIGHTS[2:], held=lambda sight, slots, size, fault=fault: (
            plain if slots.shape[0] == size else fault)(sight, slots, size))
        assert gap > 0.1, name


def test_a_query_that_sees_nothing_gets_zeros():
    query, layer, attend = case("tree", 3, 16, (4, 0))
    blind = Attend(attend.lengths * 0, attend.positions, attend.valid & False, attend.ancestors)
    for out in both(query, layer, sight_of(blind), Scoring(0.3)):
        np.testing.assert_array_equal(out, np.zeros_like(out))


def test_other_rows_change_nothing(monkeypatch):
    """Not a bit: a row beside one that is ten blocks longer, and blocks of which it sees nothing."""
    monkeypatch.setattr(mixing, "BLOCK", 16)
    monkeypatch.setattr(mixing, "WIDE", 64)
    query, layer, attend = case("chain", 3, 200, (20, 190))
    rows = jax.jit(lambda *given: mix(given[0], given[1], sight_of(given[2]), Scoring(0.3), "blocks"))
    alone = rows(*jax.tree.map(lambda leaf: leaf[:1], (query, layer, attend)))
    np.testing.assert_array_equal(rows(query, layer, attend)[:1], alone)


def test_half_precision_keeps_its_sums_in_float32():
    """Of 4000 values that are all one the mean is one; summed in bfloat16 it would not be."""
    attend = Attend(jnp.array([3999]), jnp.array([[3999]]), jnp.ones((1, 1), bool))
    layer = {name: jnp.ones((1, 1, 4096, 8), jnp.bfloat16) for name in ("k", "v")}
    out = mix(jnp.ones((1, 1, 1, 8), jnp.bfloat16), layer, sight_of(attend), Scoring(1.0), "blocks")
    assert out.dtype == jnp.bfloat16
    np.testing.assert_array_equal(out, np.ones_like(out))


def test_gradients_are_those_of_the_einsum(monkeypatch):
    monkeypatch.setattr(mixing, "BLOCK", 8)
    query, layer, attend = case("tree", 5, 30, (10, 3))

    def total(query, layer, way):
        return jnp.sum(jnp.sin(mix(query, layer, sight_of(attend, 4), Scoring(0.3, 5.0), way)))

    one, other = (jax.jit(jax.grad(total, (0, 1)), static_argnums=2)(query, layer, way) for way in ("einsum", "blocks"))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), one, other)


CONFIG = DecoderConfig(
    vocab_size=64, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, intermediate_size=48,
    max_position=128, sliding_window=40, sliding_layers=(0,))  # fmt: skip


def one_pass(way, tokens, slots, ring_slack=256):
    """A pass without head, and its arguments as shapes."""
    model, params = from_nnx(nnx.eval_shape(lambda: Decoder(CONFIG, rngs=nnx.Rngs(0), ring_slack=ring_slack)),
                             attention=way)
    attend = jax.eval_shape(lambda: Attend(jnp.zeros(2, jnp.int32), jnp.zeros((2, tokens), jnp.int32),
                                           jnp.ones((2, tokens), bool), jnp.ones((1, tokens, tokens), bool)))
    caches = jax.eval_shape(lambda: model.init_cache(2, slots))

    def function(*given):
        out = model.apply(*given)
        return out.features["hidden"], out.pending

    return function, (params, jax.ShapeDtypeStruct((2, tokens), jnp.int32), caches, attend)


def arrays(jaxpr):
    """Shapes of everything that a traced function computes, in its loops too."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.shape for variable in equation.outvars)
        for inner in jaxprs_in_params(equation.params):
            yield from arrays(inner)


@pytest.mark.parametrize(("way", "slots", "whole"), [
    ("auto", 512, True), ("auto", 513, False), ("einsum", 4099, True), ("blocks", 4099, False)])
def test_nothing_but_the_cache_is_as_long_as_the_cache(way, slots, whole):
    """No mask, no scores, no rotary table; with the einsum there are."""
    function, given = one_pass(way, 9, slots, ring_slack=None)
    shapes = list(arrays(jax.make_jaxpr(function)(*given).jaxpr))
    long = {shape for shape in shapes if slots in shape}
    assert (2, 2, slots, 8) in long
    assert (long != {(2, 2, slots, 8)}) == whole
    assert ((2, 2, 18, mixing.BLOCK) in shapes) != whole, "the scores of a block, two queries on each key head"
    assert ((2, 2, 18, mixing.WIDE) in shapes) == (not whole and slots > mixing.WIDE)


@pytest.mark.parametrize("way", ["einsum", "blocks"])
def test_memory_of_a_prefill_chunk(way):
    """Scratch memory of 256 tokens: the same beside a cache of 1024 slots and of 8192; with the einsum it grows."""
    scratch = []
    for slots in (1024, 8192):
        function, given = one_pass(way, 256, slots)
        compiled = jax.jit(function, donate_argnums=2).lower(*given).compile()
        scratch.append(compiled.memory_analysis().temp_size_in_bytes)
    assert (scratch[1] <= 1.05 * scratch[0]) == (way == "blocks"), scratch


def test_sliding_layers_keep_a_ring():
    """Bytes of a cache with the windows of Gemma 3 1B: 22 of its 26 layers keep 512 + 256 entries, 4 keep all."""
    gemma = DecoderConfig(
        vocab_size=262144, hidden_size=1152, num_layers=26, num_heads=4, num_kv_heads=1, head_dim=256,
        intermediate_size=6912, max_position=32768, sliding_window=512,
        sliding_layers=tuple(index for index in range(26) if (index + 1) % 6))  # fmt: skip
    for capacity, slack, slots in (
            (8192, 256, 4 * 8192 + 22 * 768), (8192, 64, 4 * 8192 + 22 * 576), (8192, None, 26 * 8192),
            (700, 256, 26 * 700)):
        module = nnx.eval_shape(
            lambda slack=slack: Decoder(gemma, rngs=nnx.Rngs(0), dtype=jnp.bfloat16, ring_slack=slack))
        layers = jax.eval_shape(lambda module=module, capacity=capacity: module.init_cache(1, capacity))
        size = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(layers))
        assert size == slots * 2 * 256 * 2
        assert cache.capacity(layers) == capacity


def test_unknown_ways_are_refused():
    function, given = one_pass("fast", 3, 16)
    with pytest.raises(ValueError, match="attention='fast' is not one of auto, einsum, blocks"):
        jax.eval_shape(function, *given)
