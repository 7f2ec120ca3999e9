"""The battery for drafters of trees, heads and combinations: a row of `scenarios.DRAFTERS` is all that a new one needs.

Most of what is asked here is data of one request shape, so that each pair compiles one program for all of it.
"""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scenarios
from scenarios import (
    BAD,
    BUDGET,
    DRAFTERS,
    DRAWN,
    GOOD,
    MATCHED,
    PROMPTS,
    ROWS,
    TARGET,
    K,
    V,
    assert_same_text,
    generate,
    texts,
)
from test_constraint import BRACKETS
from test_invariants import MIXED, row

import specjax
from specjax import Params, Sampling, testing

pytestmark = pytest.mark.slow

LIMITS = np.array([16, 1, 2, 3, 4, 5, 0, 16])
BY_ROW = np.array([3, 0, 1, 2, 3, 0, 3, 2])
"""k of each row."""


def same_greedy(name):
    """Greedy text is that of plain decoding, for a good draft and a bad one; something is kept, something refused."""
    for params in (GOOD[1], BAD[1]):
        out = generate(name, draft_params=params)
        assert_same_text(out, generate())
        assert out.stats.accepted.sum() > 0 and out.stats.recovered.sum() > 0
    return generate(name)


def rows_alone(name):
    """A row is what it is in a batch of its copies: text and counters."""
    together = generate(name, sampling=MIXED, num_speculative_tokens=BY_ROW)
    for index in (0, 3):
        same = jax.tree.map(lambda leaf: np.repeat(leaf, ROWS, axis=0), row(MIXED, index))
        copies = generate(name, prompts=[PROMPTS[index]] * ROWS, sampling=same, num_speculative_tokens=BY_ROW[index])
        assert texts(copies) == [texts(together)[index]] * ROWS
        for field in ("drafted_per_round", "accepted_per_round", "accepted_per_position", "recovered", "bonus"):
            values = np.asarray(getattr(copies.stats, field))
            np.testing.assert_array_equal(values, [getattr(together.stats, field)[index]] * ROWS)
    assert np.all(together.stats.drafted[BY_ROW == 0] == 0)
    assert np.all(np.max(together.stats.drafted_per_position > 0, axis=0) > 0)
    deep = np.arange(K) >= BY_ROW[:, None]
    assert np.all(together.stats.drafted_per_position[deep] == 0), "deeper than k of the row"


def ends(name):
    """EOS inside a path, at the place of each token of the vocabulary; budgets from 0 on; nothing behind the end."""
    for eos in range(0, V, 3):
        out = generate(name, eos_ids=[eos])
        cut = [text[: text.index(eos) + 1] if eos in text else text for text in texts(generate())]
        assert texts(out) == cut
    out = generate(name, limits=LIMITS, num_speculative_tokens=BY_ROW)
    assert texts(out) == [text[:limit] for text, limit in zip(texts(generate()), LIMITS, strict=True)]
    assert np.all(out.stats.drafted[LIMITS <= 1] == 0)


@pytest.mark.parametrize("name", MATCHED)
def test_match(name):
    """Sampled text too is that of plain decoding, whatever ends it, and nothing of a request compiles again."""
    same_greedy(name)
    arguments = {"sampling": MIXED, "eos_ids": [6], "stop": [[1, 2], [4, 0, 4]], "limits": np.maximum(LIMITS, 9)}
    plain = generate(**arguments), generate(sampling=MIXED), generate()
    with testing.assert_no_compilation():
        for k in (BY_ROW, K):
            out = generate(name, num_speculative_tokens=k, **arguments)
            assert_same_text(out, plain[0])
        assert_same_text(generate(name, sampling=MIXED, draft_params=BAD[1]), plain[1])
        ends(name)
    rows_alone(name)
    out = generate(name, sampling=replace(MIXED, temperature=np.full(ROWS, 1.0)))
    assert out.stats.accepted.sum() > 0


@pytest.mark.parametrize("name", DRAWN)
def test_drawn(name):
    """Under the verifier that is chosen: greedy text, rows by themselves, endings, and no compilation."""
    same_greedy(name)
    generate(name, sampling=MIXED, num_speculative_tokens=BY_ROW)
    generate()
    with testing.assert_no_compilation():
        ends(name)
        out = generate(name, sampling=MIXED, eos_ids=[6], stop=[[1, 2]], draft_params=BAD[1])
        other = generate(name, sampling=replace(MIXED, seed=np.arange(ROWS)), draft_params=BAD[1])
    assert texts(out) != texts(other)
    rows_alone(name)


def test_a_head_is_as_good_as_the_model_it_is_made_of():
    """The toy head guesses what the draft model of the same logits says: the same drafts from the second round on, for
    every row with a feature; its cache refuses (by nan) what stands in the wrong place."""
    prompts = [prompt for prompt in PROMPTS if len(prompt) > 1][:4] * 2
    for name, other in (("eagle-chain-match", "model-match"), ("eagle-match", "tree-match")):
        for params in (GOOD[1], TARGET[1]):
            one, two = (generate(pair, prompts=prompts, sampling=MIXED, draft_params=params) for pair in (name, other))
            jax.tree.map(np.testing.assert_array_equal, one, two)
    whole = generate("eagle-match", prompts=prompts, draft_params=TARGET[1])
    np.testing.assert_array_equal(whole.stats.rounds, BUDGET // (K + 1))
    lone = generate("eagle-match", prompts=[[3]] * ROWS, draft_params=TARGET[1])
    assert np.all(lone.stats.drafted_per_round[:, 0] == 0), "a prompt of one token has no feature"
    np.testing.assert_array_equal(lone.stats.rounds, 1 + -(-(BUDGET - 1) // (K + 1)))


@pytest.mark.parametrize("name", ["eagle-auto", "dynamic-match", "union-tree-auto", "self-auto"])
def test_stream_is_generate(name):
    drafter, verifier = scenarios.PAIRS[name]
    params = None if drafter.own_target else GOOD[1]
    arguments = {"sampling": MIXED, "eos_ids": [6], "limits": np.maximum(LIMITS, 7)}
    rounds = specjax.stream(*TARGET, PROMPTS, drafter=drafter, verifier=verifier, draft_params=params,
                            max_new_tokens=BUDGET, **arguments)
    joined = [[] for _ in range(ROWS)]
    for tokens, counts in rounds:
        assert tokens.shape == (ROWS, K + 1)
        for text, new, count in zip(joined, np.asarray(tokens), np.asarray(counts), strict=True):
            text.extend(new[:count].tolist())
    assert joined == texts(generate(name, **arguments))


@pytest.mark.parametrize("name", ["tree-auto", "eagle2-match", "self-match"])
def test_capacity_exactly_filled(name):
    room = 20
    prompts = [[(3 * i + j) % V for j in range(16 - i)] for i in range(ROWS)]
    limits = room - 16 + np.arange(ROWS)
    want = generate(prompts=prompts, limits=limits)
    out = generate(name, prompts=prompts, limits=limits, capacity=room)
    assert_same_text(out, want)
    assert np.all(out.finish_reason == specjax.FinishReason.LENGTH)
    assert out.stats.accepted.sum() > 0


@pytest.mark.parametrize("name", ["tree-match", "eagle2-match", "medusa-match", "union-match", "self-match"])
def test_constraints(name):
    """Each node under the mask of its own path; text and ends are those of plain decoding."""
    want = generate(sampling=MIXED, constraint=BRACKETS)
    out = generate(name, sampling=MIXED, constraint=BRACKETS)
    assert_same_text(out, want)
    assert out.stats.accepted.sum() > 0 and np.any(out.finish_reason == specjax.FinishReason.STOP)


@pytest.mark.parametrize("name", ["tree-match", "eagle2-match"])
def test_logprobs(name):
    want = generate(sampling=MIXED, logprobs=True, eos_ids=[6])
    out = generate(name, sampling=MIXED, logprobs=True, eos_ids=[6])
    assert_same_text(out, want)
    np.testing.assert_allclose(out.logprobs, want.logprobs, atol=2e-6)
    np.testing.assert_allclose(out.raw_logprobs, want.raw_logprobs, atol=2e-6)


def test_num_samples():
    """Copies of a prefill hold copies of the head's cache."""
    sampling = Sampling(temperature=np.full(4, 1.0))
    out = generate("eagle-match", prompts=PROMPTS[:4], num_samples=2, sampling=sampling, key=jax.random.key(5))
    copies = generate("eagle-match", prompts=[one for one in PROMPTS[:4] for _ in range(2)],
                      sampling=Sampling(temperature=np.full(8, 1.0)), key=jax.random.key(5))
    jax.tree.map(np.testing.assert_array_equal, out, copies)


@functools.cache
def two_turns(name):
    """What is written in a second turn, behind other tokens of the user, in most rows."""
    drafter = None if name == "plain" else DRAFTERS[name]
    decoder = specjax.speculative(TARGET[0], drafter, specjax.verify.match())
    params = Params(TARGET[1], TARGET[1] if drafter and not drafter.own_target else None)
    more = jnp.asarray(np.arange(16).reshape(ROWS, 2) % V, jnp.int32)
    run = jax.jit(decoder.run)
    state = run(params, decoder.init(params, PROMPTS, max_new_tokens=6, capacity=48, sampling=MIXED), 6)
    state = jax.jit(decoder.extend)(params, state, more, jnp.asarray([2, 1, 0, 2, 1, 2, 0, 1]))
    return decoder.result(run(params, state, 6))


@pytest.mark.parametrize("name", ["eagle", "self", "union-tree"])
def test_a_second_turn(name):
    """After `extend` a row goes on as plain decoding does; rows that get nothing stay as they are."""
    out = two_turns(name)
    assert_same_text(out, two_turns("plain"))
    assert np.asarray(out.stats.accepted).sum() > 0


@pytest.mark.parametrize("name", ["tree", "dynamic", "eagle", "medusa"])
def test_a_broken_draft_harms_nobody(name):
    """nan in the draft's weights: nothing is drafted behind them, and the text is the target's."""
    logits = np.array(GOOD[1]["logits"])
    logits[2, :] = np.nan
    for sampling in (Sampling(), MIXED):
        out = generate(f"{name}-match", draft_params={"logits": jnp.asarray(logits)}, sampling=sampling)
        assert_same_text(out, generate(sampling=sampling))
