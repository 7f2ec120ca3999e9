"""Draft heads beside a plain reference: prompts, recycled steps, levels of a tree; and what must break parity."""

import dataclasses
import json

import head_cases as cases
import head_reference as reference
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from specjax import Attend
from specjax.models import (
    Decoder,
    Eagle,
    Eagle3,
    Eagle3Config,
    EagleConfig,
    Medusa,
    MedusaConfig,
    from_nnx,
    head_from_nnx,
)
from specjax.models.eagle3 import default_taps
from specjax.models.heads import borrow, own, trained

GATE = 1e-5
ROLLED = [name for name in cases.CASES if not name.startswith("medusa")]
MEDUSA = [name for name in cases.CASES if name.startswith("medusa")]


@pytest.mark.parametrize("name", ROLLED)
def test_parity(name):
    want = cases.expected(name)
    finite = np.concatenate([logits[np.isfinite(logits)] for logits, _ in want])
    assert 0.2 < np.abs(finite).mean() < 4
    assert cases.distance(name, cases.walked(name), want) < GATE


@pytest.mark.parametrize("name", ["eagle", "eagle3"])
def test_chains_without_ancestors(name):
    assert cases.distance(name, cases.walked(name, causal=True), cases.expected(name)) < GATE


@pytest.mark.parametrize("name", MEDUSA)
def test_medusa_parity(name):
    got, want = medusa(name)
    assert 0.2 < np.abs(want).mean() < 4
    assert np.abs(got - want).max() < GATE


def medusa(name, wrong=None):
    config, heads, params = cases.made(name)
    hidden = np.random.default_rng(6).standard_normal((2, cases.WIDTH)).astype(np.float32)
    got = np.asarray(heads.apply(params, {"hidden": jnp.asarray(hidden)}))
    weights = cases.published(config, params)
    return got, np.stack([reference.medusa(weights, h, cases.settings(config, wrong)) for h in hidden])


@pytest.mark.parametrize("wrong", reference.WRONG["medusa"])
def test_medusa_wired_wrongly_is_seen(wrong):
    got, want = medusa("medusa", wrong)
    assert np.abs(got - want).max() > 100 * GATE


@pytest.mark.parametrize("family, wrong", [(f, w) for f in ("eagle", "eagle3") for w in reference.WRONG[f]])
def test_wired_wrongly_is_seen(family, wrong):
    """Such a head still writes the target's text, only slower: nothing but this test would notice."""
    assert cases.distance(family, cases.walked(family), cases.expected(family, wrong)) > 100 * GATE


@pytest.mark.parametrize("family", ["eagle", "eagle3"])
def test_a_shift_by_one_is_seen(family):
    assert cases.distance(family, cases.walked(family, shift=1), cases.expected(family)) > 100 * GATE


def test_taps_off_by_one_are_seen():
    assert cases.distance("eagle3", cases.walked("eagle3", tap_shift=1), cases.expected("eagle3")) > 100 * GATE


@pytest.mark.parametrize("name", [
    "eagle3-residual", "eagle3-output", "eagle3-norms", "eagle3-fc-norm", "eagle3-deep", "eagle3-head", "eagle-untied"])
def test_each_switch_matters(name):
    """With a switch flipped the same weights, where they still fit, give something else."""
    config, _, params = cases.made(name)
    flips = {
        "eagle3-residual": {"norm_before_residual": False}, "eagle3-output": {"norm_output": False},
        "eagle3-norms": {"norm_before_fc": False}, "eagle3-fc-norm": {"fc_norm": False},
        "eagle3-deep": {"layer": dataclasses.replace(config.layer, qk_norm=False)},
        "eagle3-head": {"layer": dataclasses.replace(config.layer, final_softcap=None)},
        "eagle-untied": {"layer": dataclasses.replace(config.layer, scale_embedding=False)},
    }  # fmt: skip
    changed = dataclasses.replace(config, **flips[name])
    head, _ = head_from_nnx(cases.MODULES[config.family][1](changed, rngs=nnx.Rngs(0)))
    one, other = (_first(h, params) for h in (cases.made(name)[1], head))
    assert np.abs(one - other).max() > 100 * GATE


def _first(head, params):
    features, tokens, *_ = cases.walk("eagle3")
    attend = Attend(jnp.zeros(2, jnp.int32), jnp.arange(3)[None].repeat(2, 0), jnp.ones((2, 3), bool))
    features = {name: jnp.asarray(x[:, :3]) for name, x in features.items()}
    run = jax.jit(lambda p, f: head.apply(p, head.fuse(p, f), jnp.asarray(tokens[0][:, :3]), None, attend))
    out = run(params, features)
    return np.concatenate([np.nan_to_num(np.asarray(out.logits), neginf=0), np.asarray(out.hidden)], -1)


@pytest.mark.parametrize("name", ["eagle", "eagle3-deep"])
def test_training_sees_what_decoding_sees(name):
    """Without a cache as with one; and steps of T side by side in one cache, each token with ancestors of its own."""
    _, head, params = cases.made(name)
    head = head._replace(apply=jax.jit(head.apply))
    tokens = jax.random.randint(jax.random.key(0), (2, 4), 0, cases.ROWS)
    hidden = jax.random.normal(jax.random.key(1), (2, 4, cases.WIDTH))
    positions, valid = jnp.arange(4)[None].repeat(2, 0), jnp.ones((2, 4), bool)
    start = Attend(jnp.zeros(2, jnp.int32), positions, valid)
    plain = head.apply(params, hidden, tokens, None, start)
    cached = head.apply(params, hidden, tokens, head.init_cache(2, 12), start)
    np.testing.assert_allclose(plain.logits, cached.logits, atol=GATE)
    # Step two: token t sees the true prefix, of step one its own place, and itself.
    diagonal = jnp.eye(4, dtype=bool)
    seen = jnp.concatenate([jnp.tri(4, dtype=bool), diagonal], axis=1)[None]
    later = Attend(jnp.full(2, 4, jnp.int32), positions + 1, valid, seen)
    both = head.apply(params, cached.hidden, jnp.roll(tokens, -1, 1), cached.pending, later)
    for t in range(4):  # one by one: the prefix alone, then a step that recycles its last output
        until = Attend(start.lengths, positions, jnp.arange(4)[None].repeat(2, 0) <= t)
        first = head.apply(params, hidden, tokens, head.init_cache(2, 12), until)
        then = Attend(jnp.full(2, t + 1, jnp.int32), positions[:, t : t + 1] + 1, valid[:, :1])
        alone = head.apply(params, first.hidden[:, t : t + 1], tokens[:, [(t + 1) % 4]], first.pending, then)
        np.testing.assert_allclose(both.logits[:, t], alone.logits[:, 0], atol=GATE)


def test_gradients_reach_what_is_trained_and_are_finite():
    config, _, params = cases.made("eagle3")
    head, _ = head_from_nnx(Eagle3(config, rngs=nnx.Rngs(0)), draft_vocabulary=True)
    tokens = jnp.zeros((1, 3), jnp.int32)
    attend = Attend(jnp.zeros(1, jnp.int32), jnp.arange(3)[None], jnp.ones((1, 3), bool))

    def loss(part):
        whole = {**params, **part}
        features = {f"layer_{k}": jnp.ones((1, 3, cases.WIDTH)) for k in config.taps}
        out = head.apply(whole, head.fuse(whole, features), tokens, None, attend)
        assert out.logits.shape == (1, 3, config.draft_vocab_size)
        return jnp.sum(jax.nn.log_softmax(out.logits) ** 2)

    for path, gradient in jax.tree_util.tree_leaves_with_path(jax.jit(jax.grad(loss))(trained(params))):
        assert np.isfinite(gradient).all() and np.abs(gradient).max() > 0, jax.tree_util.keystr(path)


@pytest.mark.parametrize("family", ["medusa", "eagle", "eagle3"])
def test_equal_structures_share_one_head_and_borrow_without_copies(family):
    config = cases.CASES["medusa-shared" if family == "medusa" else family]
    module = cases.MODULES[family][1]
    head, params = head_from_nnx(module(config, rngs=nnx.Rngs(0)))
    again, shapes = head_from_nnx(nnx.eval_shape(lambda: module(config, rngs=nnx.Rngs(1))))
    assert head is again and head.name == family
    assert jax.tree.map(lambda x: (x.shape, x.dtype), params) == jax.tree.map(lambda x: (x.shape, x.dtype), shapes)
    _, target = from_nnx(Decoder(cases.TARGET, rngs=nnx.Rngs(0)))
    whole = borrow(own(params), config, target)
    assert whole["embedding"] is target["embedding"]
    assert jax.tree.structure(whole) == jax.tree.structure(params)
    assert not {"embedding", "places"} & own(whole).keys() and not {"embedding", "draft_ids"} & trained(whole).keys()
    assert type(config).from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_what_the_target_lacks_is_said():
    config = EagleConfig.for_target(cases.UNTIED)
    with pytest.raises(ValueError, match=r"borrows head \(12, 23\) of its target, whose params have none"):
        borrow({}, config, {"embedding": jnp.zeros((23, 12))})
    with pytest.raises(ValueError, match=r"borrows embedding \(23, 12\) of its target, whose params have \(23, 14\)"):
        borrow({}, config, {"embedding": jnp.zeros((23, 14))})


def test_another_target_is_refused_with_both_sides():
    deep = Eagle3Config.for_target(cases.TARGET, taps=(1, 3))
    deep.check_target(cases.TARGET)
    other = dataclasses.replace(cases.TARGET, hidden_size=16, vocab_size=30, num_layers=2)
    with pytest.raises(ValueError, match="hidden_size is 12 in the head and 16 in the target; vocab_size is 23 in the "
                       "head and 30 in the target; the head reads layer_3, the target has layer_0 .. layer_2"):
        deep.check_target(other)
    with pytest.raises(ValueError, match="tie_embeddings is True in the head and False in the target"):
        EagleConfig.for_target(cases.TARGET).check_target(cases.UNTIED)
    MedusaConfig.for_target(cases.TARGET).check_target(cases.UNTIED)  # own projections: nothing is borrowed


def test_configs_that_make_no_sense():
    target = cases.TARGET
    for changes, match in (
        ({"taps": (2, 1)}, "must ascend from 0 or more"), ({"taps": (-1, 2)}, "must ascend"),
        ({"taps": (), "norm_before_fc": True}, "without taps nothing is fused"),
        ({"layer": cases.layered(hidden_size=8)}, "without own_embedding .* target_hidden_size=12 and hidden_size=8"),
        ({"draft_vocab_size": 24}, "draft_vocab_size=24 must be in 1 .. 23"),
        ({"draft_vocab_size": 9, "own_head": False}, "draft_vocab_size must be None"),
        ({"layer": cases.layered(sliding_window=4)}, "eagle3 config has a sliding window"),
    ):
        with pytest.raises(ValueError, match=match):
            Eagle3Config.for_target(target, **changes)
    with pytest.raises(ValueError, match="num_heads of Medusa heads must be positive, got 0"):
        MedusaConfig.for_target(target, 0)
    with pytest.raises(ValueError, match=r"eagle config: unknown fields \['bias'\], missing fields \['layer'\]"):
        EagleConfig.from_dict({"bias": True})
    with pytest.raises(ValueError, match="Eagle scores the target's vocabulary"):
        head_from_nnx(Eagle(EagleConfig.for_target(target), rngs=nnx.Rngs(0)), draft_vocabulary=True)
    with pytest.raises(ValueError, match="Medusa heads score the target's vocabulary"):
        head_from_nnx(Medusa(MedusaConfig.for_target(target), rngs=nnx.Rngs(0)), draft_vocabulary=True)


def test_usual_taps():
    assert [default_taps(n) for n in (32, 7, 4, 2)] == [(2, 16, 29), (2, 3, 4), (1, 2, 3), (1,)]
