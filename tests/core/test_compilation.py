"""What the compiler made of it: no copy of a cache in the loop, little temporary memory, one program for all."""

import math
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
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


def computations(text):
    """The computations of an HLO module by name, as lists of lines."""
    found, name = {}, None
    for line in text.splitlines():
        head = re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line)
        if head:
            name = head.group(1)
            found[name] = []
        elif name:
            found[name].append(line)
    return found


def inside_loops(parts):
    """Names of computations that run inside a while loop, called ones included."""
    def called(lines):
        return {name for line in lines for name in re.findall(
            r"(?:body|condition|calls|to_apply|true_computation|false_computation)=%?([\w.\-]+)", line)} | {
            name for line in lines for group in re.findall(r"branch_computations=\{([^}]*)\}", line)
            for name in re.findall(r"[\w.\-]+", group)}

    todo = {name for lines in parts.values() for line in lines for name in re.findall(r"body=%?([\w.\-]+)", line)}
    seen = set()
    while todo:
        name = todo.pop()
        if name in parts and name not in seen:
            seen.add(name)
            todo |= called(parts[name])
    return seen


@pytest.mark.parametrize("batch", [1, 3])
def test_no_cache_sized_copy_in_a_loop(batch):
    parts = computations(program(batch).as_text())
    names = inside_loops(parts)
    slots = CAPACITY + 32
    cache = rf"f32\[{batch},2,{slots},16\]"
    lines = [line for name in names for line in parts[name]]
    assert len(names) > 10 and sum(bool(re.search(cache, line)) for line in lines) > 20, "the caches are not in sight"
    size = batch * 2 * slots * 16
    copies = [
        line.strip()[:160] for line in lines
        for shape in re.findall(r"= \(?\w+\[([\d,]+)\]\S* (?:copy|copy-start|transpose)\(", line)
        if math.prod(map(int, shape.split(","))) >= size]
    copies += [line.strip()[:160] for line in lines if re.search(rf"= {cache}\S* select\(", line)]
    assert not copies, copies


def test_a_copy_would_be_seen():
    """The reader of programs finds one where there is one: a loop that keeps an old cache beside the new."""

    def keep_both(cache):
        def body(carry):
            step, cache = carry
            new = jax.lax.dynamic_update_slice(cache, jnp.ones((1, 2, 1, 16)), (0, 0, step, 0))
            return step + 1, jnp.where(new.sum() > 3.0, new, cache * 1.5)

        return jax.lax.while_loop(lambda carry: carry[0] < 9, body, (0, cache))

    text = jax.jit(keep_both).lower(jnp.zeros((1, 2, 532, 16))).compile().as_text()
    parts = computations(text)
    lines = [line for name in inside_loops(parts) for line in parts[name]]
    assert any(re.search(r"f32\[1,2,532,16\]\S* (?:copy|select)\(", line) for line in lines)


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
