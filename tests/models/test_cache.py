"""The dense cache: what it holds, and that a decode loop updates it in place."""

import dataclasses

import drafting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drafting import programs
from flax import nnx
from jax import lax

import specjax
from specjax import Attend, Params, Sampling, cache, draft
from specjax._src import generate as generates
from specjax._src.speculative import checked_request
from specjax.models import Decoder, DecoderConfig, from_nnx, some_layers

CAPACITY = 600  # three blocks of attention, the last of which overlaps the second


def filled(batch, heads, slots, width):
    return jnp.arange(batch * heads * slots * width, dtype=jnp.float32).reshape(batch, heads, slots, width)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("tokens", [1, 4])
def test_write_touches_its_slots_only(batch, heads, tokens):
    old, new = filled(batch, heads, 9, 2), -1 - filled(batch, heads, tokens, 2)
    start = jnp.array([2, 0, 9 - tokens], jnp.int32)[:batch]
    got = cache.write({"k": old, "v": old + 1}, {"k": new, "v": new}, start)
    want = np.array(old)
    for row in range(batch):
        want[row, :, int(start[row]) : int(start[row]) + tokens] = new[row]
    np.testing.assert_array_equal(got["k"], want)


def test_write_rounds_to_what_the_cache_stores():
    layer = cache.init(1, 1, 1, 4, 2, jnp.bfloat16)[0]
    new = jnp.full((1, 1, 1, 2), 1.001)
    assert cache.write(layer, {"k": new, "v": new}, jnp.array([1]))["k"][0, 0, 1, 0] == jnp.bfloat16(1.001)


@pytest.mark.parametrize("shared", [True, False])
def test_visible_marks_prefix_and_ancestors(shared):
    lengths = jnp.array([0, 3], jnp.int32)
    valid = jnp.array([[True, True, False], [True, True, True]])
    parents = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1]], bool)
    both = np.stack([parents, parents if shared else np.eye(3, dtype=bool)])
    ancestors = jnp.asarray(both[:1] if shared else both)
    got = np.asarray(cache.visible(Attend(lengths, jnp.zeros((2, 3), jnp.int32), valid, ancestors), 7))
    for row, token, slot in np.ndindex(2, 3, 7):
        inside = slot - int(lengths[row])
        want = inside < 0 or (inside < 3 and bool(valid[row, inside]) and bool(both[row, token, inside]))
        assert got[row, token, slot] == want


def test_visible_of_a_chain_is_its_lower_triangle():
    attend = Attend(jnp.array([0, 2]), jnp.zeros((2, 3), jnp.int32), jnp.array([[True] * 3, [True, True, False]]))
    tree = Attend(attend.lengths, attend.positions, attend.valid, jnp.tril(jnp.ones((1, 3, 3), bool)))
    np.testing.assert_array_equal(cache.visible(attend, 6), cache.visible(tree, 6))


@pytest.mark.parametrize("batch", [1, 2])
def test_commit_moves_a_path_behind_its_base(batch):
    old = filled(batch, 2, 8, 1)
    path, base = jnp.array([[0, 2, 3], [0, 1, 1]])[:batch], jnp.array([2, 4])[:batch]
    (layer,) = cache.commit(({"k": old, "v": old},), path, base, jnp.full((batch,), 3))
    for row in range(batch):
        at = int(base[row])
        np.testing.assert_array_equal(layer["v"][row, :, at : at + 3], old[row][:, at + path[row]])
        np.testing.assert_array_equal(layer["v"][row, :, :at], old[row, :, :at])
    assert cache.commit((layer,), None, base, base)[0] is layer


def loop_program(batch, tokens, tree, way):
    """The compiled text of a decode loop over a donated cache; its path depends on the logits, as a verifier's does."""
    config = DecoderConfig(
        vocab_size=64, hidden_size=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=16, intermediate_size=48,
        max_position=128, sliding_window=40, sliding_layers=(1,),
    )  # fmt: skip
    model, params = from_nnx(Decoder(config, rngs=nnx.Rngs(0)), attention=way)
    ancestors = jnp.tril(jnp.ones((1, tokens, tokens), bool)) if tree else None

    def run(params, state, token):
        def body(carry):
            step, state, token, length = carry
            positions = length[:, None] + jnp.arange(tokens)
            attend = Attend(length, positions, jnp.ones(positions.shape, bool), ancestors)
            out = model.apply(params, token, state, attend)
            token = jnp.argmax(out.logits, axis=-1).astype(jnp.int32)
            path = jnp.cumsum(token, axis=1) % tokens if tree else None
            state = model.commit(out.pending, path, length, jnp.ones((batch,), jnp.int32))
            return step + 1, state, token, length + 1

        start = (jnp.int32(0), state, token, jnp.zeros((batch,), jnp.int32))
        return lax.while_loop(lambda carry: carry[0] < 8, body, start)

    token = jnp.zeros((batch, tokens), jnp.int32)
    lowered = jax.jit(run, donate_argnums=1).lower(params, model.init_cache(batch, CAPACITY), token)
    return lowered.compile().as_text()


@pytest.mark.parametrize(("way", "batch", "tokens", "tree"), [
    ("einsum", 1, 1, False), ("einsum", 1, 6, True), ("einsum", 3, 6, False), ("einsum", 3, 6, True),
    ("blocks", 1, 1, False), ("blocks", 1, 6, True), ("blocks", 3, 6, False), ("blocks", 3, 6, True)])
def test_no_cache_sized_copy_in_the_loop(way, batch, tokens, tree):
    """Neither of the cache of a full layer nor of a ring; a block that is read is a slice, not a copy of all."""
    text = loop_program(batch, tokens, tree, way)
    programs.assert_in_place(text, [(batch, 2, CAPACITY, 16), (batch, 2, 40 + 256, 16)], least=3)


@pytest.mark.parametrize(("name", "batch"), [
    ("eagle", 1), ("eagle", 3), ("eagle2", 1), ("eagle2", 3), ("self", 1), ("self", 3)])
def test_heads_and_layers_draft_in_place(name, batch):
    """A whole generation: no copy of the target's cache in a loop, nor of the head's, which has other slots."""
    config = dataclasses.replace(
        drafting.CONFIG, vocab_size=64, hidden_size=32, num_heads=4, num_kv_heads=2, head_dim=16, intermediate_size=48)
    model, params = drafting.target(config)
    head, weights = drafting.head("eagle", config)
    paths = draft.full_paths(2, 1, 1)
    drafter = {"eagle": draft.eagle(head, paths), "eagle2": draft.eagle2(head, 7, 3, 3, drawn=2),
               "self": draft.self_model(some_layers(config, 2), 3)}[name]
    both, room = Params(params, None if name == "self" else weights), 500
    request = checked_request(
        specjax.speculative(model, drafter).rules, both, [[1, 2, 3]] * batch, None, max_new_tokens=64, capacity=room,
        num_samples=1, sampling=Sampling(temperature=np.full(batch, 1.0)), key=jax.random.key(0))
    rules = specjax.speculative(model, drafter).rules
    text = generates.whole.lower(rules, 64, room, 1, both, request).compile().as_text()
    own = [] if name == "self" else [(batch, 2, room + 256, 16)]
    programs.assert_in_place(text, [(batch, 2, room + 32, 16), *own])
