"""Sliding layers that keep a ring of entries: what is written round, moved, rolled back and refused."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drafting import CONFIG, DEPTH, MIXED, PATHS
from flax import nnx
from head_cases import random_like

import specjax
from specjax import Attend, Params, Sampling, cache, draft, testing, verify
from specjax._src import speculative as engine
from specjax.models import Decoder, from_nnx, some_layers

WINDOW, SLACK, BUDGET = 3, 32, 96
SLIDING = dataclasses.replace(
    CONFIG, num_kv_heads=2, head_dim=4, sliding_window=WINDOW, sliding_layers=(0, 2), sliding_rope_theta=30.0)
PROMPTS = [[3], [1, 5], [2, 0, 4, 4] * 12, [5, 4, 3, 2, 1, 0] * 15, [0, 1, 1, 0, 2, 2] * 6]
"""The third and the fourth are longer than a ring."""


def decoder(slack, seed=1, config=SLIDING):
    """The model with rings of so much slack (or none) and its weights, which are the same for any slack."""
    model, params = from_nnx(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0), ring_slack=slack)))
    params = random_like(params, seed)
    return model, {**params, "head": 4.0 * params["head"]}


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("tokens", [1, 4, 7])
def test_write_goes_round(batch, heads, tokens):
    size = 7
    old = jnp.arange(batch * heads * size * 2, dtype=jnp.float32).reshape(batch, heads, size, 2)
    new = -1 - jnp.arange(batch * heads * tokens * 2, dtype=jnp.float32).reshape(batch, heads, tokens, 2)
    start = np.array([5, 0, 20])[:batch]
    got = jax.jit(lambda *given: cache.write(*given, ring=True))({"k": old}, {"k": new}, jnp.asarray(start))["k"]
    want = np.array(old)
    for row, token in np.ndindex(batch, tokens):
        want[row, :, (start[row] + token) % size] = new[row, :, token]
    np.testing.assert_array_equal(got, want)


def test_a_ring_shows_what_is_in_the_window():
    """Which slots a token sees, beside a ring that is filled by hand."""
    lengths, window, size = np.array([0, 5, 23]), 4, 9
    attend = Attend(jnp.asarray(lengths), jnp.asarray(lengths[:, None] + np.arange(3)), jnp.ones((3, 3), bool))
    got = np.asarray(cache.visible(attend, size, window))
    for row, token in np.ndindex(3, 3):
        slot_of = {entry % size: entry for entry in range(lengths[row] + 3)}  # the latest entry of each slot
        at = lengths[row] + token
        want = [at - window < slot_of.get(slot, -99) <= at for slot in range(size)]
        np.testing.assert_array_equal(got[row, token], want)


def test_contract_of_a_ring_that_is_written_round():
    """Texts of 60 in rings of 13: chunks, ragged rows, rollback, trees at once and level by level, moved paths."""
    model, params = decoder(10)
    assert [layer["k"].shape[2] for layer in model.init_cache(1, 75)] == [13, 75, 13]
    testing.check_model(model, params, length=60, widest=11)


FAULTS = {
    "too little slack": (5, {}),
    "writes that do not go round": (10, {"write": lambda layer, new, start, ring=False: PLAIN["write"](
        layer, new, start)}),
    "paths that do not go round": (10, {"commit": lambda pending, path, base, num, rings=(): PLAIN["commit"](
        pending, path, base, num)}),
}
PLAIN = {"write": cache.write, "commit": cache.commit}


@pytest.mark.parametrize("name", FAULTS)
def test_the_contract_sees_a_fault(name, monkeypatch):
    slack, changes = FAULTS[name]
    monkeypatch.setattr(Decoder, "_check_width", lambda *_: None)
    for function, fault in changes.items():
        monkeypatch.setattr(f"specjax._src.cache.{function}", fault)
    with pytest.raises(AssertionError, match="logits differ"):
        model, params = decoder(slack, config=dataclasses.replace(SLIDING, max_position=65 + len(name)))  # traced anew
        testing.check_model(model, params, length=60, widest=11)


def test_rings_say_what_whole_caches_say():
    """A prompt in one pass beside the same in chunks through rings, behind them a row that fell back and one that had
    nothing valid for a while."""
    whole, params = decoder(None)
    model, _ = decoder(8)
    tokens = np.random.default_rng(0).integers(0, CONFIG.vocab_size, (2, 60)).astype(np.int32)
    chain = Attend(jnp.zeros(2, jnp.int32), jnp.broadcast_to(jnp.arange(60), (2, 60)), jnp.ones((2, 60), bool))
    want = np.asarray(whole.apply(params, tokens, None, chain).logits)
    apply, lengths, layers = jax.jit(model.apply), np.zeros(2, int), model.init_cache(2, 80)
    random = np.random.default_rng(1)
    while lengths.min() < 60:
        num = np.minimum(random.integers(0, 9, 2), 60 - lengths)
        if random.random() < 0.3:
            num[random.integers(2)] = 0
        piece = random.integers(0, CONFIG.vocab_size, (2, 9)).astype(np.int32)  # all that is not kept is refused
        for row in range(2):
            piece[row, : num[row]] = tokens[row, lengths[row] : lengths[row] + num[row]]
        at = jnp.asarray(lengths, jnp.int32)
        out = apply(params, piece, layers, Attend(at, at[:, None] + jnp.arange(9), jnp.ones((2, 9), bool)))
        layers = model.commit(out.pending, None, at, jnp.asarray(num, jnp.int32))
        for row in range(2):
            here = slice(lengths[row], lengths[row] + num[row])
            np.testing.assert_allclose(out.logits[row, : num[row]], want[row, here], atol=2e-5)
        lengths += num


def test_a_call_that_is_too_wide_is_refused():
    model, params = decoder(8)
    row = jnp.zeros(1, jnp.int32)

    def call(tokens, earlier, slots):
        place = jnp.arange(tokens)[None]
        seen = jnp.ones((1, tokens, tokens + earlier), bool)
        attend = Attend(row, place, place >= 0, seen)
        jax.eval_shape(model.apply, params, place, model.init_cache(1, slots), attend)

    call(9, 0, 50), call(4, 5, 50), call(10, 0, 10)
    for tokens, earlier in ((10, 0), (4, 6)):
        with pytest.raises(ValueError, match="a call of 10 tokens .* which has 8 slots beside its window of 3: feed"):
            call(tokens, earlier, 50)


def texts(toy, drafter=None, weights=None, sampling=Sampling(), verifier=None, **arguments):
    out = specjax.generate(
        *toy, PROMPTS, drafter=drafter, draft_params=weights, verifier=verifier, sampling=sampling,
        max_new_tokens=BUDGET, **arguments)
    return [row[:length].tolist() for row, length in zip(np.asarray(out.tokens), out.lengths, strict=True)], out


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    """Prompts come in chunks of 32, as a ring of 35 allows; what is traced has models of its own here."""
    monkeypatch.setattr(engine, "PREFILL", SLACK)


DRAFTERS = {
    "ngram": (draft.ngram(3), False),
    "model": (draft.from_model(decoder(SLACK)[0], DEPTH), True),
    "tree": (draft.model_tree(decoder(SLACK)[0], PATHS, siblings="chosen"), True),
    "dynamic": (draft.dynamic_model_tree(decoder(SLACK)[0], 8, DEPTH, 3), True),
    "self": (draft.self_model(some_layers(SLIDING, 2, ring_slack=SLACK), DEPTH), False),
}


def test_plain_text_of_rings():
    """Prompts of 1 .. 90 tokens and 96 new ones, drawn and (in one row) greedy, through rings and with all kept."""
    want, _ = texts(decoder(None), sampling=MIXED)
    assert texts(decoder(SLACK), sampling=MIXED)[0] == want
    assert sum(len(set(text)) > 2 for text in want) > 3, "texts that repeat one token show nothing"


@pytest.mark.parametrize("name", DRAFTERS)
def test_drafted_text_of_rings(name):
    """Text of rings in target and draft is that of a target without, drafts right and wrong."""
    drafter, own = DRAFTERS[name]
    toy = decoder(SLACK)
    weights = jax.tree.map(lambda a, b: 0.8 * a + 0.2 * b, toy[1], decoder(SLACK, 9)[1]) if own else None
    text, out = texts(toy, drafter, weights, MIXED, verify.match())
    assert text == texts(decoder(None), sampling=MIXED)[0]
    assert 0 < out.stats.accepted.sum() < out.stats.drafted.sum()


def test_another_turn_behind_a_ring():
    """Two rows read more prompt while the others, which get nothing, keep what they have; then all go on."""
    drafter, more = DRAFTERS["ngram"][0], np.tile(np.array([[1, 4, 2, 0, 3]], np.int32), (len(PROMPTS), 8))
    num, found = np.array([0, 40, 0, 33, 0]), []
    for slack in (SLACK, None):
        model, params = decoder(slack)
        engine_of = specjax.speculative(model, drafter)
        both = Params(params)
        state = engine_of.init(both, PROMPTS, max_new_tokens=BUDGET, capacity=300, sampling=MIXED)
        run = jax.jit(engine_of.run)
        state = jax.jit(engine_of.extend)(both, run(both, state, 30), more, num)
        state = run(both, state, 40)
        found.append([np.asarray(state.tokens[row, : int(state.length[row])]).tolist() for row in range(len(PROMPTS))])
    assert found[0] == found[1]
    assert min(map(len, found[0])) > 2 * (WINDOW + SLACK)
