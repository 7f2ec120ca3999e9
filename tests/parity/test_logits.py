"""Our decoder against `transformers`, past the window and past the rope's original length."""

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hf_families import FAMILIES, MUTATIONS, PROMPT, STEPS
from hf_pairs import module_of, ours

from specjax import Attend
from specjax.models import DecoderConfig

TOLERANCE = 2e-5


def feed(config, params, tokens, sizes, dtype=jnp.float32, **options):
    """Logits of `tokens` [T], given in pieces of the given sizes through one cache.

    Op by op: the configurations share their shapes, so each operation is compiled once for all of them.
    """
    model = module_of(config, dtype, **options)
    cache, at, parts = model.init_cache(1, len(tokens)), 0, []
    for size in sizes:
        here = jnp.full((1,), at, jnp.int32)
        attend = Attend(here, at + jnp.arange(size)[None], jnp.ones((1, size), bool))
        out = model.apply(params, jnp.asarray(tokens[None, at : at + size], jnp.int32), cache, attend)
        cache = model.commit(out.pending, None, here, jnp.full((1,), size, jnp.int32))
        parts.append(np.asarray(out.logits[0], np.float32))
        at += size
    return np.concatenate(parts)


def theirs(torch, module, tokens, sizes):
    """The same by `transformers`."""
    # Renamed in transformers 5.24; the old name goes in 5.40.
    name = "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"
    cache, parts, at = None, [], 0
    with torch.no_grad():
        for size in sizes:
            out = module(torch.as_tensor(tokens[None, at : at + size]), use_cache=True, **{name: cache})
            cache = out[name]
            parts.append(out.logits[0].float().numpy())
            at += size
    return np.concatenate(parts)


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(0).integers(3, 96, PROMPT + STEPS)


@pytest.fixture(scope="module", params=FAMILIES)
def case(request, torch, make, tokens):
    model_type, settings = FAMILIES[request.param]
    module, folder = make(model_type, **settings)
    return request.param, module, *ours(folder), theirs(torch, module, tokens, [len(tokens)])


def test_full_and_cached_logits(case, torch, tokens):
    _, module, config, params, want = case
    assert 0.3 < np.abs(want).mean() < 6  # of a size at which an error shows
    np.testing.assert_allclose(feed(config, params, tokens, [len(tokens)]), want, rtol=0, atol=TOLERANCE)
    steps = [PROMPT, *[1] * STEPS]
    np.testing.assert_allclose(
        feed(config, params, tokens, steps), theirs(torch, module, tokens, steps), rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(feed(config, params, tokens, [PROMPT, STEPS]), want, rtol=0, atol=TOLERANCE)
    if config.sliding_layers:  # 46 tokens through rings of 13 slots
        got = feed(config, params, tokens, [5] * 9 + [1], ring_slack=5)
        np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE)


def relative(error, size):
    return float(np.sqrt(np.mean(error**2) / np.mean(size**2)))


@pytest.mark.parametrize(("family", "apart"), [("llama2", 1.5), ("gemma", 0.8)])
def test_half_precision(family, apart, torch, transformers, make, tokens):
    """In bfloat16 we are no further from float32 than `transformers`; for Gemma, whose embedding is multiplied by a
    rounded number, we are nearer to its bfloat16 than that is to float32."""
    model_type, settings = FAMILIES[family]
    module, folder = make(model_type, **settings)
    want = theirs(torch, module, tokens, [len(tokens)])
    module = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation="eager").eval()
    half = theirs(torch, module, tokens, [len(tokens)])
    config, params = ours(folder)
    got = feed(config, jax.tree.map(lambda x: x.astype(jnp.bfloat16), params), tokens, [len(tokens)], jnp.bfloat16)
    assert relative(got - want, want) < 1.25 * relative(half - want, want) < 0.02
    assert relative(got - half, want) < apart * relative(half - want, want)
    assert (got.argmax(-1) == want.argmax(-1)).mean() > 0.9


def mutate(config, field, value):
    name, _, part = field.partition(":")
    if part:
        value = dataclasses.replace(getattr(config, name), **{part: value})
    changed = dataclasses.replace(config, **{name: value})
    assert changed != config
    return changed


def test_every_switch_matters(case, tokens):
    """Each switch that this family uses, set wrongly, is seen at the tolerance of the test above."""
    family, _, config, params, want = case
    unseen = []
    for field, value in MUTATIONS.get(family, {}).items():
        got = feed(mutate(config, field, value), params, tokens, [len(tokens)])
        if np.abs(got - want).max() <= TOLERANCE:
            unseen.append(field)
    assert not unseen


def test_every_field_of_the_config_is_on_the_list():
    """A new switch needs a family that uses it and a mutation that shows it."""
    arrays = {"vocab_size", "hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_dim", "intermediate_size"}
    unread = {"max_position"}
    fields = {f.name for f in dataclasses.fields(DecoderConfig)} - arrays - unread
    assert fields == {name.partition(":")[0] for rows in MUTATIONS.values() for name in rows}
