"""The switches of the decoder that Llama 2 does not use. That they are those of the families: `tests/parity`."""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from specjax import Attend, cache
from specjax._src.sight import sight_of
from specjax.models import Decoder, DecoderConfig, decoder, from_nnx
from specjax.models.parts import RMSNorm
from specjax.models.rope import RopeScaling, rotary_table
from specjax.testing import check_model

BASE = DecoderConfig(
    vocab_size=61, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, intermediate_size=48,
    max_position=128,
)  # fmt: skip
EVERYTHING = dataclasses.replace(
    BASE, sliding_window=2, sliding_layers=(0,), sliding_rope_theta=1e3, qkv_bias=True, out_bias=True, mlp_bias=True,
    qk_norm=True, activation="gelu_tanh", attention_scale=0.3, attention_softcap=2.0, final_softcap=3.0,
    unit_offset_norm=True, post_norms=True, scale_embedding=True, rope_scaling=RopeScaling("linear", 2.0),
)  # fmt: skip


def contract(config):
    model, params = from_nnx(Decoder(config, rngs=nnx.Rngs(0)))
    leaves, form = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    noisy = [x + 0.2 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    check_model(model._replace(apply=jax.jit(model.apply)), jax.tree.unflatten(form, noisy))


def test_contract_with_every_switch():
    """Chunks, ragged rows, rollback and trees under a window of 2, with texts of 20."""
    contract(EVERYTHING)


@pytest.mark.slow
def test_the_contract_sees_a_window_that_counts_slots(monkeypatch):
    def by_slots(attend, window=None):
        sight = sight_of(attend, window)
        if window is None or attend.ancestors is None or attend.ancestors.shape[2] > attend.valid.shape[1]:
            return sight
        slots = attend.lengths[:, None] + jnp.arange(attend.valid.shape[1])
        near = attend.positions[:, :, None] - slots[:, None, :] < window
        return dataclasses.replace(sight, block=sight_of(attend).block & near)

    monkeypatch.setattr(decoder, "sight_of", by_slots)
    with pytest.raises(AssertionError, match="a tree by its paths"):
        contract(dataclasses.replace(EVERYTHING, max_position=64))  # traced anew


@pytest.mark.parametrize("tree", [False, True])
def test_a_window_counts_positions_not_slots(tree):
    lengths = jnp.array([0, 5], jnp.int32)
    depth = jnp.array([0, 1, 1, 2, 3]) if tree else jnp.arange(5)
    seen = np.tri(5, dtype=bool)
    if tree:
        seen[2:, 1] = False  # 0 - 1, and 0 - 2 - 3 - 4: the second stands one slot behind its position
    ancestors = jnp.asarray(seen)[None] if tree else None
    attend = Attend(lengths, lengths[:, None] + depth, jnp.ones((2, 5), bool), ancestors)
    got = np.asarray(cache.visible(attend, 11, 2))
    for row, token, slot in np.ndindex(2, 5, 11):
        start = int(lengths[row])
        inside = slot - start
        position = slot if inside < 0 else start + int(depth[min(inside, 4)])
        reaches = inside < 0 or (inside < 5 and seen[token, inside])
        assert got[row, token, slot] == (reaches and start + int(depth[token]) - position < 2)


def rates(scaling, theta=1e4, head_dim=16):
    """Angle at position 1, from sine and cosine; float64 is not needed below 1e-6."""
    cos, sin = rotary_table(jnp.ones((1, 1), jnp.int32), head_dim, theta, scaling)
    return np.arctan2(sin[0, 0], cos[0, 0]), np.hypot(sin[0, 0], cos[0, 0])


def test_rope_scaling_by_the_formulas():
    plain, _ = rates(RopeScaling())
    np.testing.assert_allclose(plain, 1e4 ** (-np.arange(8) / 8), rtol=1e-5)
    np.testing.assert_allclose(rates(RopeScaling("linear", 4.0))[0], plain / 4, rtol=1e-5)
    got, _ = rates(RopeScaling("llama3", 8.0, 64, low_freq_factor=1.0, high_freq_factor=4.0))
    for f, scaled in zip(plain, got, strict=True):
        length = 2 * math.pi / f
        share = (64 / length - 1) / 3
        want = f / 8 if length > 64 else f if length < 16 else (1 - share) * f / 8 + share * f
        assert scaled == pytest.approx(want, rel=1e-5)
    got, size = rates(RopeScaling("yarn", 4.0, 64, beta_fast=8.0, attention_factor=1.25))
    np.testing.assert_allclose(size, 1.25, rtol=1e-6)
    # Pair 0 turns more than 8 times in 64 tokens, pairs from ceil(2.02) = 3 on less than once, 1 and 2 stand between.
    np.testing.assert_allclose(got, plain * np.array([1, 3 / 4, 1 / 2, *[1 / 4] * 5]), rtol=1e-5)
    # Both ends at pair 0, where there is nothing between; and an upper end far behind the last pair, taken as d - 1.
    got, _ = rates(RopeScaling("yarn", 4.0, 6, beta_fast=6.0))
    np.testing.assert_allclose(got, plain * np.array([1, *[1 / 4] * 7]), rtol=1e-5)
    got, _ = rates(RopeScaling("yarn", 4.0, 10**9, beta_fast=1e9), theta=100.0)
    np.testing.assert_allclose(got, 100.0 ** (-np.arange(8) / 8) * (1 - np.arange(8) / 15 * 3 / 4), rtol=1e-5)


def test_rates_are_the_same_on_every_device():
    """Constants of the program, rounded once."""

    def far(positions):
        return rotary_table(positions, 16, 5e5, RopeScaling("llama3", 8.0, 64))

    positions = jnp.array([[0, 2**17 - 1]], jnp.int32)
    assert not re.search(r"\b(pow|exp|log|div)\b", str(jax.make_jaxpr(far)(positions)))
    exact = 5e5 ** (-np.arange(8) / 8)
    turns = 64 * exact / (2 * math.pi)
    kept = np.clip((turns - 1) / 3, 0, 1)
    angles = np.float32(2**17 - 1) * (kept * exact + (1 - kept) * exact / 8).astype(np.float32)
    np.testing.assert_allclose(far(positions)[0][0, 1], np.cos(angles.astype(np.float64)), atol=1e-6)


@pytest.mark.parametrize("unit_offset", [False, True])
def test_where_a_norm_rounds(unit_offset):
    """Before the scale as Llama does, behind `1 + scale` as Gemma does: the other order is seen in bfloat16."""
    half = jnp.bfloat16
    norm = RMSNorm(512, 1e-5, half, unit_offset=unit_offset)
    x, scale = (jax.random.normal(jax.random.key(i), (512,)).astype(half) for i in range(2))
    norm.scale.set_value(scale)
    wide = np.asarray(x, np.float64)
    wide = wide / np.sqrt((wide**2).mean() + 1e-5)
    factor = np.asarray(scale, np.float64)

    def rounded(a):
        return np.asarray(a, np.float32).astype(half).astype(np.float64)

    first, last = rounded(rounded(wide) * factor), rounded(wide * (1 + factor))
    other = rounded(rounded(wide) * rounded(1 + factor)) if unit_offset else rounded(wide * factor)
    got = np.asarray(norm(x), np.float64)
    assert (got == (last if unit_offset else first)).mean() > 0.99 > 0.95 > (got == other).mean()


def test_configs_that_make_no_sense():
    for changes, match in (
        ({"activation": "relu"}, "activation='relu' is not one of silu"),
        ({"sliding_layers": (2,), "sliding_window": 4}, r"names layers outside 0 \.\. 1"),
        ({"sliding_layers": (0,)}, "need a positive sliding_window, got None"),
    ):
        with pytest.raises(ValueError, match=match):
            dataclasses.replace(BASE, **changes)
    for wrong, match in (("su", "'su' is not one of"), ("yarn", "needs original_max_position")):
        with pytest.raises(ValueError, match=match):
            RopeScaling(wrong, 2.0)
    with pytest.raises(ValueError, match="must be at least 1"):
        RopeScaling("linear", 0.5)
    with pytest.raises(ValueError, match="low_freq_factor=4.0 and high_freq_factor=4.0; the first must be the lower"):
        RopeScaling("llama3", 2.0, 64, low_freq_factor=4.0)
    assert DecoderConfig.from_dict(EVERYTHING.to_dict()) == EVERYTHING
    old = {name: value for name, value in BASE.to_dict().items() if name not in ("rope_scaling", "sliding_layers")}
    assert DecoderConfig.from_dict(old) == BASE
