"""What the compiler made of it: no copy of a cache in the loop, little temporary memory, one program for all."""

import math
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import programs
import pytest
import scenarios
from scenarios import NGRAM, PROMPTS, ROWS, TARGET, V

import specjax
from specjax import Params, Sampling, draft, testing
from specjax._src import generate as generates
from specjax._src.speculative import checked_request

K, CAPACITY = 3, 500
MODEL, PARAMS = testing.tiny_transformer(0, 64)
PAIR, DRAFTER = Params(PARAMS, testing.tiny_transformer(1, 64)[1]), draft.from_model(MODEL, K)


def program(batch, model=MODEL, params=PAIR, drafter=DRAFTER):
    """The compiled program of a whole generation, the caches included, with a sampled request."""
    decoder = specjax.speculative(model, drafter)
    request = checked_request(
        decoder.rules, params, [[1, 2, 3]] * batch, None, max_new_tokens=64, capacity=CAPACITY, num_samples=1,
        sampling=Sampling(temperature=np.full(batch, 1.0), top_p=np.full(batch, 0.9)), key=jax.random.key(0))
    return generates.whole.lower(decoder.rules, 64, CAPACITY, 1, params, request).compile()


@pytest.mark.parametrize(("name", "batch"), [
    ("chain", 1), ("chain", 3), ("tree", 1), ("tree", 3), ("dynamic", 1), ("dynamic", 3), ("fallback", 1),
    ("union", 1)])
def test_no_cache_sized_copy_in_a_loop(name, batch):
    """Neither of the target's cache nor of the draft's, which has as many slots here."""
    drafter = {"chain": DRAFTER, "tree": draft.model_tree(MODEL, draft.full_paths(2, 1, 1)),
               "dynamic": draft.dynamic_model_tree(MODEL, 7, K, 3, drawn=2),
               "fallback": draft.fallback(draft.ngram(2), draft.from_model(MODEL, 2)),
               "union": draft.union(draft.ngram(2), draft.from_model(MODEL, 2))}[name]
    programs.assert_in_place(program(batch, drafter=drafter).as_text(), [(batch, 2, CAPACITY + 32, 16)])


def test_a_copy_would_be_seen():
    """The reader of programs finds one where there is one: a loop that keeps an old cache beside the new."""

    def keep_both(cache):
        def body(carry):
            step, cache = carry
            new = jax.lax.dynamic_update_slice(cache, jnp.ones((1, 2, 1, 16)), (0, 0, step, 0))
            return step + 1, jnp.where(new.sum() > 3.0, new, cache * 1.5)

        return jax.lax.while_loop(lambda carry: carry[0] < 9, body, (0, cache))

    text = jax.jit(keep_both).lower(jnp.zeros((1, 2, 532, 16))).compile().as_text()
    lines = programs.lines_in_loops(text)
    assert any(re.search(r"f32\[1,2,532,16\]\S* (?:copy|select)\(", line) for line in lines)
    with pytest.raises(AssertionError, match="f32"):
        programs.assert_in_place(text, [(1, 2, 532, 16)], least=1)


def test_temporary_memory():
    """At most a fifth of arguments and caches; a whole generation makes its caches itself, so they are temporary.

    A model of four layers: in the two-layer toy the attention scores of a chunk are as large as the cache.
    """
    model, weights = testing.tiny_transformer(0, 64, layers=4, head_dim=64)
    compiled = program(3, model, Params(weights), NGRAM)
    memory = compiled.memory_analysis()
    shapes = jax.eval_shape(lambda: model.init_cache(3, CAPACITY + 32))
    caches = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    extra = memory.temp_size_in_bytes - caches
    assert extra <= 0.2 * (memory.argument_size_in_bytes + caches), (extra, memory.argument_size_in_bytes, caches)


def test_one_round_updates_the_donated_state_in_place():
    """`stream`: the caches of the state are aliased to those of the next state, not copied."""
    decoder = specjax.speculative(MODEL, NGRAM)
    state = decoder.init(Params(PARAMS), [[1, 2, 3]], max_new_tokens=64, capacity=CAPACITY)
    rung = decoder.rules.drafter
    lowered = generates.one_round.lower(decoder.rules, rung, rung.shape.num_nodes, Params(PARAMS), state)
    memory = lowered.compile().memory_analysis()
    caches = sum(leaf.nbytes for leaf in jax.tree.leaves(state.cache))
    assert memory.alias_size_in_bytes >= caches
    assert memory.temp_size_in_bytes <= 0.2 * (memory.argument_size_in_bytes + caches)


def test_prefill_makes_no_logits():
    """[B, T, V] never stands in memory: no array of the prefill program has T and V in it."""
    vocab, width = 77, 48
    model, params = testing.tiny_transformer(0, vocab)
    decoder = specjax.speculative(model)
    request = checked_request(decoder.rules, Params(params), np.ones((2, width), np.int32), None, max_new_tokens=4,
                              capacity=None, num_samples=1)
    text = generates.opened.lower(decoder.rules, 4, None, 1, Params(params), request).compile().as_text()
    assert re.search(rf"\[2,{width},32\]", text), "the hidden states should be there"
    assert not re.search(rf"\[2,{width},{vocab}\]|\[{2 * width},{vocab}\]", text)


def test_one_trace_for_all_requests_under_jit():
    """A caller's own jitted function is traced once for requests of one shape (chex counts)."""

    @jax.jit
    @chex.assert_max_traces(n=1)
    def run(prompts, lengths, temperature, seed, limits, k):
        return specjax.generate(
            *TARGET, prompts, lengths=lengths, drafter=NGRAM, max_new_tokens=scenarios.BUDGET, limits=limits,
            sampling=Sampling(temperature=temperature, seed=seed), num_speculative_tokens=k).tokens

    prompts = jnp.asarray(np.arange(ROWS * 16).reshape(ROWS, 16) % V, jnp.int32)
    for shift in range(3):
        lengths, seed = jnp.arange(ROWS) + 1 + shift, jnp.arange(ROWS) * shift
        tokens = run(prompts, lengths, jnp.linspace(0.0, 1.0 + shift, ROWS), seed, jnp.full(ROWS, 5 + shift),
                     jnp.arange(ROWS) % (shift + 1))
        chex.assert_shape(tokens, (ROWS, scenarios.BUDGET))


def test_near_prompt_lengths_share_a_program():
    """Lists are padded to a bucket: 1 .. 16 tokens are one program, 17 another."""
    jax.clear_caches()  # else another test may have compiled for 17 tokens before
    scenarios.generate("ngram-match", prompts=PROMPTS)
    with testing.assert_no_compilation():
        for length in (1, 7, 16):
            scenarios.generate("ngram-match", prompts=[[1] * length] * ROWS)
    with pytest.raises(AssertionError, match="were compiled"), testing.assert_no_compilation():
        scenarios.generate("ngram-match", prompts=[[1] * 17] * ROWS)


def test_counting_compilations():
    fresh = jax.jit(lambda value: value * 3.25 + 1)
    with testing.count_traces() as count:
        fresh(jnp.ones(7))
    assert count.compiled >= 1
    with testing.assert_no_compilation():
        fresh(jnp.zeros(7))
