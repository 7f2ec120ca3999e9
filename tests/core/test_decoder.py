"""The composed decoder: `init`, `extend`, `step` and `run` in any order give what one call gives."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scenarios
from scenarios import BUDGET, GOOD, PAIRS, PROMPTS, ROWS, TARGET, V, assert_same_text, generate, texts

import specjax
from specjax import Params, Sampling

HOT = Sampling(temperature=np.array([0.0, 1.0, 0.7, 1.5, 0.0, 1.0, 1.0, 0.4]), seed=np.arange(ROWS))
ROOM = 64


@functools.cache
def decoder_of(pair):
    """The decoder with its functions compiled, and its parameters."""
    drafter, verifier = PAIRS[pair]
    decoder = specjax.speculative(TARGET[0], drafter, verifier)
    params = Params(TARGET[1], GOOD[1] if drafter is not None and drafter.needs_params else None)
    compiled = {name: jax.jit(getattr(decoder, name)) for name in ("extend", "step", "run")}
    return decoder._replace(**compiled), params


@functools.cache
def opened(pair):
    decoder, params = decoder_of(pair)
    return decoder.init(params, PROMPTS, max_new_tokens=BUDGET, sampling=HOT, capacity=ROOM)


@pytest.mark.parametrize("pair", ["ngram-match", "model-block"])
def test_run_in_pieces(pair):
    """`run(n)` stops every row at n more tokens and no earlier; going on loses nothing."""
    decoder, params = decoder_of(pair)
    whole = decoder.result(decoder.run(params, opened(pair), BUDGET))
    scenarios.check(whole)
    assert_same_text(whole, generate(pair, sampling=HOT))
    state = opened(pair)
    for n, total in ((0, 0), (1, 1), (4, 5), (2, 7), (100, BUDGET)):
        state = decoder.run(params, state, n)
        scenarios.check(decoder.result(state)) if total == BUDGET else None
        np.testing.assert_array_equal(state.generated, total)
        assert np.all(np.asarray(state.live) == (total < BUDGET))
    # A shorter last block changes which numbers the rejection family reads: it promises the law, not the text.
    rows = slice(None) if "match" in pair else np.array([0, 4])
    assert_same_text(decoder.result(state), whole, rows)


def test_steps_are_a_run():
    decoder, params = decoder_of("model-block")
    state, rounds = opened("model-block"), 0
    while bool(jnp.any(state.live)):
        before = state
        state, info = decoder.step(params, state)
        np.testing.assert_array_equal(state.length - before.length, info.counts)
        assert np.all(np.asarray(info.num_accepted) <= np.asarray(info.num_drafted))
        kept = (state.length, state.finish, state.start, state.stats), (before.length, before.finish, before.start,
                                                                        before.stats)
        for new, old in zip(*map(jax.tree.leaves, kept), strict=True):
            np.testing.assert_array_equal(new[~np.asarray(before.live)], old[~np.asarray(before.live)])
        rounds += 1
    out = decoder.result(state)
    scenarios.check(out)
    assert_same_text(out, generate("model-block", sampling=HOT))
    assert rounds == np.max(out.stats.rounds)


@pytest.mark.parametrize("pair", ["ngram-match", "model-block"])
def test_extend_in_chunks_is_the_whole_prefill(pair):
    """Same text and same acceptance, for a prompt that came in ragged pieces: a stored prefix is as good as new."""
    decoder, params = decoder_of(pair)
    want = generate(pair, sampling=HOT)
    first = [prompt[: max(1, len(prompt) // 3)] for prompt in PROMPTS]
    state = decoder.init(params, first, max_new_tokens=BUDGET, sampling=HOT, capacity=ROOM)
    have = np.array([len(one) for one in first])
    goal = np.array([len(one) for one in PROMPTS])
    while np.any(have < goal):
        num = np.minimum(5, goal - have)
        piece = np.zeros((ROWS, 5), np.int32)
        for index, prompt in enumerate(PROMPTS):
            piece[index, : num[index]] = prompt[have[index] : have[index] + num[index]]
        state = decoder.extend(params, state, jnp.asarray(piece), jnp.asarray(num))
        have += num
    out = decoder.result(decoder.run(params, state, BUDGET))
    scenarios.check(out)
    assert_same_text(out, want)
    np.testing.assert_array_equal(out.stats.accepted_per_round, want.stats.accepted_per_round)
    np.testing.assert_array_equal(out.stats.drafted_per_round, want.stats.drafted_per_round)


@pytest.mark.parametrize("pair", ["ngram-match", "model-block"])
def test_a_second_turn(pair):
    """Bug log E13: go on from a returned state after partial blocks; the same as one long prompt, row by row."""
    decoder, params = decoder_of(pair)
    state = decoder.run(params, opened(pair), 6)
    first = np.asarray(state.tokens), np.asarray(state.length)
    num = np.array([2, 0, 1, 3, 2, 1, 3, 0])
    more = jnp.asarray((np.arange(ROWS)[:, None] + np.arange(3)) % V, jnp.int32)
    state = decoder.extend(params, state, more, jnp.asarray(num))
    np.testing.assert_array_equal(state.length, first[1] + num)
    np.testing.assert_array_equal(state.generated, np.where(num > 0, 0, 6))
    state = decoder.run(params, state, BUDGET)
    out = decoder.result(state)
    scenarios.check(out)
    prompts = [[*tokens[:length], *np.asarray(more)[i, : num[i]]]
               for i, (tokens, length) in enumerate(zip(*first, strict=True))]
    fresh = generate(pair, prompts=[[int(token) for token in prompt] for prompt in prompts], sampling=HOT)
    new = np.nonzero(num)[0]
    assert_same_text(out, fresh, new)
    np.testing.assert_array_equal(out.lengths, BUDGET)
    if pair == "model-block":
        np.testing.assert_array_equal(out.stats.accepted_per_round[new], fresh.stats.accepted_per_round[new])


def test_drafting_switched_on_late():
    """A draft that was off for a while reads what it has missed: from then on a perfect one is kept whole."""
    decoder, params = decoder_of("model-block")
    params = Params(params.target, params.target)
    state = decoder.init(params, PROMPTS, max_new_tokens=BUDGET, capacity=ROOM, num_speculative_tokens=0)
    state = decoder.run(params, state, 7)
    assert np.all(np.asarray(state.stats.drafted) == 0) and np.all(np.asarray(state.draft.length) == 0)
    state = decoder.run(params, replace(state, max_drafts=jnp.full(ROWS, scenarios.K, jnp.int32)), BUDGET)
    out = decoder.result(state)
    scenarios.check(out)
    assert_same_text(out, generate())
    np.testing.assert_array_equal(out.stats.accepted, out.stats.drafted)
    np.testing.assert_array_equal(out.stats.rounds, 7 + -(-(BUDGET - 7) // (scenarios.K + 1)))


def test_extend_without_room_is_an_error_of_that_row():
    decoder, params = decoder_of("ngram-match")
    state = decoder.run(params, opened("ngram-match"), BUDGET)
    num = np.array([8, 8, 8, 8, 8, 8, 8, 0])
    tokens = jnp.ones((ROWS, 8), jnp.int32)
    errors = []
    for _ in range(4):
        state = decoder.run(params, decoder.extend(params, state, tokens, jnp.asarray(num)), BUDGET)
        errors.append(np.asarray(state.finish == specjax.FinishReason.ERROR))
        assert np.all(np.asarray(state.length) <= ROOM)
    assert errors[-1][:7].all() and not errors[0].any() and not errors[-1][7]


def test_a_finished_row_takes_part_in_nothing():
    """Rows that ended early give the same text whatever the others still do."""
    decoder, params = decoder_of("model-block")
    limits = np.array([1, 2, 3, 16, 16, 16, 16, 16])
    state = decoder.init(params, PROMPTS, max_new_tokens=BUDGET, sampling=HOT, limits=limits, capacity=ROOM)
    out = decoder.result(decoder.run(params, state, BUDGET))
    scenarios.check(out)
    assert_same_text(out, generate("model-block", sampling=HOT), np.arange(3, ROWS))
    np.testing.assert_array_equal(out.lengths, limits)
    assert [len(text) for text in texts(out)[:3]] == [1, 2, 3]
