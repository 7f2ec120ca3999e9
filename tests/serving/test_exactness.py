"""A request's text is that of its solo run, whatever comes beside it: the engine's first promise."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleet import alone, arrive, assert_same, crowd, engine, gather, solo

from specjax import FinishReason, Sampling

FEW = ["plain", "ngram-match", "ngram-block", "model-match", "model-block", "tree-traversal", "eagle-auto"]
MORE = ["grown-hybrid", "eagle2-match", "fallback-auto", "self-auto", "medusa-match", "union-tree-auto"]


@pytest.mark.parametrize("pair", [*FEW, *(pytest.param(name, marks=pytest.mark.slow) for name in MORE)])
def test_random_arrivals(pair):
    """18 requests of every kind over three rows, coming as they like, some cancelled: the others do not hear it."""
    generator = np.random.default_rng(1)
    texts, cancelled = arrive(engine(pair), crowd(pair), generator, cancel_every=4)
    assert 1 <= len(cancelled) <= 12 and len(texts) == 18
    for number, expected in enumerate(alone(pair)):
        if number not in cancelled:
            assert_same(texts[number], expected)
        else:
            written = texts[number].tokens
            assert texts[number].finish == FinishReason.CANCELLED and written == expected.tokens[: len(written)]


@pytest.mark.parametrize("fault", ["key", "k", "start"])
def test_a_fault_would_be_seen(fault):
    """Rows that hear their neighbour's key, k or place of the first token do not pass for solo runs."""
    faulty = engine("model-block")
    requests = [request for request in crowd() if request["sampling"].temperature > 0][:3]
    for request in requests:
        faulty.submit(**request | {"max_new_tokens": 16, "eos_ids": [], "stop": [], "num_speculative_tokens": 3})
    faulty._admit()
    while faulty.num_running < 3:
        faulty._admit()
    moved = {"key": {"key": jnp.roll(faulty._state.key, 1)}, "k": {"max_drafts": jnp.full(3, 1)},
             "start": {"start": jnp.roll(faulty._state.start, 1)}}
    faulty._state = replace(faulty._state, **moved[fault])
    texts = gather(faulty.run())
    expected = [solo(request | {"max_new_tokens": 16, "eos_ids": [], "stop": [], "num_speculative_tokens": 3},
                     "model-block") for request in requests]
    with pytest.raises(AssertionError):
        for number, text in enumerate(expected):
            assert_same(texts[number], text)


def test_without_seed_by_id_and_with_key():
    """A key of the request, or the engine's with the id folded in, as `generate` says of a key."""
    key, own = jax.random.key(3), jax.random.key(8)
    request = {"prompt": [1, 2, 3], "sampling": Sampling(temperature=1.0)}
    keyed = engine("ngram-match", key=key)
    for _ in range(2):
        keyed.submit(**request)
    keyed.submit(**request, key=own)
    texts = gather(keyed.run())
    for number, expected in enumerate([jax.random.fold_in(key, 0), jax.random.fold_in(key, 1), own]):
        assert_same(texts[number], solo(request, key=expected))
    assert len({tuple(text.tokens) for text in texts.values()}) == 3


def test_log_probabilities():
    """Those of `generate`, piece by piece."""
    texts, _ = arrive(engine(logprobs=True), crowd(count=6), np.random.default_rng(2))
    for number, request in enumerate(crowd(count=6)):
        expected = solo(request, logprobs=True)
        assert any(expected.logprobs[1] != 0.0)
        assert_same(texts[number], expected)


def test_an_end_by_capacity():
    """A prompt and budget that exceed the row end where the row ends, as in `generate`."""
    full = engine()
    request = {"prompt": [1, 2] * 20, "sampling": Sampling(temperature=1.0, seed=5)}
    small = engine(capacity=48)
    for one in (full, small):
        one.submit(**request)
    long, short = gather(full.run())[0], gather(small.run())[0]
    assert (long.finish, short.finish) == (FinishReason.LENGTH, FinishReason.CAPACITY)
    assert len(short.tokens) == 8 and short.tokens == long.tokens[:8]
