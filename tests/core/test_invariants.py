"""What a caller may rely on: rows do not hear each other, pieces add up, requests are data."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scenarios
from scenarios import BUDGET, GOOD, NGRAM, PAIRS, PROMPTS, ROWS, TARGET, V, assert_same_text, generate, texts

import specjax
from specjax import Params, Sampling, draft, testing, verify
from specjax._src import generate as generates
from specjax._src.request import bucket

MIXED = Sampling(
    temperature=np.array([0.0, 1.0, 0.7, 1.5, 0.0, 1.0, 1.0, 0.4]),
    top_p=np.array([1.0, 0.9, 1.0, 0.8, 1.0, 1.0, 0.7, 1.0]),
    top_k=np.array([0, 0, 4, 0, 0, 3, 0, 0]),
    frequency_penalty=np.array([0.0, 0.0, 0.0, 0.5, 0.3, 0.0, 0.0, 0.0]),
    seed=np.arange(ROWS) + 40)
"""Greedy and sampled rows in one batch, each with settings of its own."""


def row(sampling, index):
    return Sampling(**{name: None if value is None else np.broadcast_to(value, ROWS)[index : index + 1]
                       for name, value in vars(sampling).items()})


@pytest.mark.parametrize("pair", [
    "plain", "ngram-match", "model-block", "model-match", "tree-traversal", "grown-hybrid"])
def test_a_row_alone_is_the_row_in_a_batch(pair):
    """Bug log D7, E5: eight different rows together, then one of them in all eight places, then in the first place."""
    together = generate(pair, sampling=MIXED)
    for index in (0, 3, 5):
        same = jax.tree.map(lambda leaf: np.repeat(leaf, ROWS, axis=0), row(MIXED, index))
        copies = generate(pair, prompts=[PROMPTS[index]] * ROWS, sampling=same)
        assert texts(copies) == [texts(together)[index]] * ROWS
    turned = np.roll(np.arange(ROWS), 3)
    order = Sampling(**{name: None if value is None else np.broadcast_to(value, ROWS)[turned]
                        for name, value in vars(MIXED).items()})
    moved = generate(pair, prompts=[PROMPTS[i] for i in turned], sampling=order)
    assert texts(moved) == [texts(together)[i] for i in turned]


def test_a_row_alone_in_a_batch_of_one():
    """The same with B = 1, where XLA compiles other code."""
    together = generate("model-block", sampling=MIXED)
    alone = generate("model-block", prompts=[PROMPTS[5]], sampling=row(MIXED, 5))
    assert texts(alone) == [texts(together)[5]]
    np.testing.assert_array_equal(alone.stats.accepted_per_round[0], together.stats.accepted_per_round[5])


@pytest.mark.parametrize("pair", ["ngram-match", "model-match", "tree-match", "grown-match"])
def test_match_verified_text_is_the_text_of_plain_decoding(pair):
    """With the same keys, token for token, sampled rows too, for good and bad drafts."""
    want = generate("plain", sampling=MIXED)
    for params in (GOOD[1], scenarios.BAD[1]):
        out = generate(pair, sampling=MIXED, draft_params=params)
        assert_same_text(out, want)
        assert out.stats.accepted.sum() > 0
    keyed = generate("plain", sampling=replace(MIXED, seed=None), key=jax.random.key(3))
    assert_same_text(generate(pair, sampling=replace(MIXED, seed=None), key=jax.random.key(3)), keyed)
    assert texts(keyed) != texts(want)


@pytest.mark.parametrize("pair", ["ngram-match", "model-block", "tree-hybrid"])
def test_stream_is_generate(pair):
    """Bug log J9: joined chunks are the tokens of `generate`, and so are the counters and the final result."""
    limits = np.array([16, 3, 16, 16, 1, 16, 7, 16])
    arguments = {"sampling": MIXED, "eos_ids": [6], "stop": [[1, 2]], "limits": limits}
    want = generate(pair, **arguments)
    drafter, verifier = PAIRS[pair]
    params = GOOD[1] if drafter.needs_params else None
    rounds = specjax.stream(*TARGET, PROMPTS, drafter=drafter, verifier=verifier, draft_params=params,
                            max_new_tokens=BUDGET, **arguments)
    joined = [[] for _ in range(ROWS)]
    while True:
        try:
            tokens, counts = next(rounds)
        except StopIteration as end:
            final = end.value
            break
        assert tokens.shape == (ROWS, scenarios.K + 1) and counts.shape == (ROWS,)
        tokens, counts = np.asarray(tokens), np.asarray(counts)
        assert counts.max() > 0
        assert np.all(tokens[np.arange(tokens.shape[1]) >= counts[:, None]] == 0)
        for text, new, count in zip(joined, tokens, counts, strict=True):
            text.extend(new[:count].tolist())
    assert joined == texts(want)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(np.asarray, final), want)


def test_stream_does_not_consume_the_callers_arrays():
    """The state is donated round by round; what the caller passed in is still the caller's."""
    sampling = Sampling(temperature=jnp.ones(ROWS), top_k=jnp.zeros(ROWS, jnp.int32),
                        logit_bias=jnp.zeros((ROWS, V)), allowed=jnp.ones((ROWS, V), bool))
    arguments = {
        "sampling": sampling, "key": jax.random.key(0), "limits": jnp.full(ROWS, 5, jnp.int32),
        "lengths": jnp.full(ROWS, 2, jnp.int32), "eos_ids": jnp.full((ROWS, 4), -1, jnp.int32),
        "num_speculative_tokens": jnp.full(ROWS, 3, jnp.int32), "stop": jnp.full((ROWS, 4, 8), -1, jnp.int32)}
    prompts = jnp.ones((ROWS, 16), jnp.int32)
    first = [counts.tolist() for _, counts in specjax.stream(
        *TARGET, prompts, drafter=NGRAM, max_new_tokens=BUDGET, **arguments)]
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(arguments) if isinstance(leaf, jax.Array))
    assert first == [counts.tolist() for _, counts in specjax.stream(
        *TARGET, prompts, drafter=NGRAM, max_new_tokens=BUDGET, **arguments)]


def test_other_values_do_not_compile():
    """Temperature, truncation, penalties, limits, EOS, stops, seeds, k: all of them are data."""
    generate("model-block", sampling=MIXED, eos_ids=[1], stop=[[1, 2]])
    other = Sampling(
        temperature=np.full(ROWS, 0.9), top_p=np.full(ROWS, 0.5), top_k=np.full(ROWS, 2),
        frequency_penalty=np.zeros(ROWS), seed=np.arange(ROWS))
    prompts = [[2, 3, 4], [1] * 15, [5], [6], [7, 7], [0, 1], [1, 0], [3] * 9]
    with testing.assert_no_compilation():
        generate("model-block", prompts=prompts, sampling=other, eos_ids=[2, 5, 3], stop=[[7], [6, 5, 4, 3]])
        generate("model-block", sampling=replace(other, min_p=0.2, repetition_penalty=1.2), eos_ids=[1])
        specjax.generate(*TARGET, prompts, drafter=draft.from_model(TARGET[0], scenarios.K), verifier=verify.block(),
                         draft_params=scenarios.BAD[1], sampling=other, max_new_tokens=BUDGET)


def test_equal_factories_give_one_object():
    assert draft.ngram(3) is draft.ngram(3) and verify.block() is verify.block()
    assert draft.from_model(TARGET[0], 3) is draft.from_model(model=GOOD[0], num_speculative_tokens=3)
    assert draft.ngram(3) is draft.ngram(3, max_ngram=3) is not draft.ngram(3, 2)
    assert specjax.speculative(TARGET[0], draft.ngram(3)) is specjax.speculative(TARGET[0], draft.ngram(3))


def test_num_samples():
    """Bug log D3: rows i * n .. i * n + n - 1 belong to prompt i; greedy ones agree, sampled ones are as copies are."""
    prompts = PROMPTS[:4]
    greedy = generate("model-block", prompts=prompts, num_samples=2)
    assert texts(greedy)[::2] == texts(greedy)[1::2] == texts(generate("model-block"))[:4]
    hot = Sampling(temperature=np.full(4, 1.0))
    sampled = generate("model-block", prompts=prompts, num_samples=2, sampling=hot, key=jax.random.key(5))
    copies = generate("model-block", prompts=[one for one in prompts for _ in range(2)],
                      sampling=Sampling(temperature=np.full(8, 1.0)), key=jax.random.key(5))
    assert_same_text(sampled, copies)
    assert sum(one != other for one, other in zip(texts(sampled)[::2], texts(sampled)[1::2], strict=True)) >= 3
    seeded = generate("model-block", prompts=prompts, num_samples=2, sampling=replace(hot, seed=np.arange(4)))
    solo = generate("model-block", prompts=[*prompts, *prompts],
                    sampling=Sampling(temperature=np.full(8, 1.0), seed=np.tile(np.arange(4), 2)))
    assert texts(seeded)[::2] == texts(solo)[:4], "sample 0 of a seed is what it is alone"
    assert texts(seeded)[1::2] != texts(solo)[:4]


@pytest.mark.parametrize("pair", ["ngram-match", "model-block", "tree-traversal", "grown-hybrid"])
def test_capacity_exactly_filled(pair):
    """Prompt and budget that fill the capacity to the last slot, for every length of prompt; and one slot too few."""
    room = 20
    prompts = [[(3 * i + j) % V for j in range(16 - i)] for i in range(ROWS)]
    limits = room - 16 + np.arange(ROWS)
    want = generate(pair, prompts=prompts, limits=limits, sampling=MIXED)
    tight = generate(pair, prompts=prompts, limits=limits, sampling=MIXED, capacity=room)
    assert_same_text(tight, want)
    assert np.all(tight.finish_reason == specjax.FinishReason.LENGTH)
    cut = generate(pair, prompts=prompts, sampling=MIXED, capacity=room)
    np.testing.assert_array_equal(cut.lengths, limits)
    assert np.all(cut.finish_reason == specjax.FinishReason.CAPACITY)
    assert texts(cut) == texts(want)


def test_prompts_as_arrays_and_lists():
    width = bucket(16)
    array = np.zeros((ROWS, width), np.int32)
    for index, prompt in enumerate(PROMPTS):
        array[index, : len(prompt)] = prompt
    lengths = np.array([len(prompt) for prompt in PROMPTS])
    want = generate("ngram-match")
    assert_same_text(generate("ngram-match", prompts=array, lengths=lengths), want)
    array[np.arange(width) >= lengths[:, None]] = 10**6  # what stands in the padding is nobody's business
    assert_same_text(generate("ngram-match", prompts=jnp.asarray(array), lengths=jnp.asarray(lengths)), want)


def test_inside_jit_with_bad_rows():
    """Nothing can be raised under jit: a bad row ends at once with an error, and its neighbours do not notice."""
    array = np.zeros((ROWS, 16), np.int32)
    for index, prompt in enumerate(PROMPTS):
        array[index, : len(prompt)] = prompt
    lengths = np.array([len(prompt) for prompt in PROMPTS])
    temperature = np.array([0.0, 1.0, 0.7, 1.5, 0.0, 1.0, 1.0, 0.4])

    @jax.jit
    def run(prompts, lengths, temperature, seed):
        return specjax.generate(*TARGET, prompts, lengths=lengths, drafter=NGRAM, max_new_tokens=BUDGET,
                                sampling=Sampling(temperature=temperature, seed=seed))

    seed = np.arange(ROWS)
    good = run(array, lengths, temperature, seed)
    scenarios.check(good)
    assert_same_text(good, generate("ngram-match", sampling=Sampling(temperature=temperature, seed=seed)))
    bad_lengths, bad_temperature, bad_prompts = lengths.copy(), temperature.copy(), array.copy()
    bad_lengths[[0, 2]] = 0, 17
    bad_temperature[[3, 5, 6]] = -1.0, np.nan, np.inf
    bad_prompts[7, 0] = V
    bad = run(bad_prompts, bad_lengths, bad_temperature, seed)
    scenarios.check(bad)
    broken = [0, 2, 3, 5, 6, 7]
    assert np.all(np.asarray(bad.finish_reason)[broken] == specjax.FinishReason.ERROR)
    assert np.all(np.asarray(bad.lengths)[broken] == 0)
    assert_same_text(bad, good, [1, 4])


def test_features_reach_the_drafter():
    """`Drafter.needs`: the state carries the target's features at the last token that went through it."""
    model, params = testing.tiny_transformer(0, V)
    seen = []

    def propose(_, noise, state, context):
        jax.debug.callback(lambda *values: seen.append(values), context.features["hidden"], context.tokens,
                           context.length, context.live)
        return NGRAM.propose(None, noise, state, context)

    probe = NGRAM._replace(name="probe", needs=frozenset({"hidden"}), propose=propose, narrow=None)
    out = specjax.generate(model, params, PROMPTS[1:3], drafter=probe, max_new_tokens=6)
    jax.block_until_ready(out.tokens)
    jax.effects_barrier()
    assert len(seen) >= 2
    apply = jax.jit(model.apply)
    for hidden, tokens, length, live in seen:
        width = tokens.shape[1]
        place = np.broadcast_to(np.arange(width), (2, width))
        attend = specjax.Attend(jnp.zeros(2, jnp.int32), jnp.asarray(place), jnp.asarray(place < length[:, None]))
        full = apply(params, jnp.asarray(tokens), model.init_cache(2, width), attend).features["hidden"]
        for index in np.nonzero(live)[0]:
            np.testing.assert_allclose(hidden[index], full[index, length[index] - 2], atol=1e-4)


def test_generate_takes_params_as_arguments():
    """Other parameters of the same shapes use the compiled program, and are not closed over."""
    one = generate("ngram-match")
    with testing.assert_no_compilation():
        other = generate("ngram-match", target=scenarios.BAD)
    assert texts(one) != texts(other)
    assert generates.whole._cache_size() > 0


def test_params_tuple_of_the_composed_decoder():
    decoder = specjax.speculative(TARGET[0], NGRAM)
    state = decoder.init(Params(TARGET[1]), PROMPTS, max_new_tokens=BUDGET)
    assert all(leaf.shape[0] == ROWS for leaf in jax.tree.leaves(state)), "every leaf has a leading row axis"
