"""Greedy text does not depend on the drafter: it is that of plain decoding, token for token, in float32."""

import numpy as np
import pytest
import scenarios
from scenarios import BAD, BUDGET, GOOD, PROMPTS, TARGET, K, V, assert_same_text, generate, plain_greedy, texts

import specjax
from specjax import draft, testing

RING, RECURRENT, TRANSFORMER = testing.ring(0, V), testing.recurrent(0, V), testing.tiny_transformer(0, V)
MODELS = {"trigram": TARGET, "ring": RING, "recurrent": RECURRENT, "transformer": TRANSFORMER}


@pytest.mark.parametrize("name", ["trigram", "transformer"])
def test_plain_decoding_equals_decoding_without_a_cache(name):
    assert texts(generate(target=MODELS[name])) == plain_greedy(MODELS[name], PROMPTS)


@pytest.mark.parametrize("params", ["good", "bad"])
@pytest.mark.parametrize("pair", scenarios.SPECULATIVE)
def test_every_pair(pair, params):
    out = generate(pair, draft_params={"good": GOOD, "bad": BAD}[params][1])
    assert_same_text(out, generate())
    assert out.stats.accepted.sum() > 0
    assert out.stats.recovered.sum() > 0, "nothing was refused: the case is too easy"


@pytest.mark.parametrize("k", [1, 2, 8])
def test_every_static_k(k):
    """The widths at which the ladder of rounds changes: one, two, an odd half, and more than a block needs."""
    out = generate((draft.ngram(k), None))
    assert_same_text(out, generate())
    assert out.stats.drafted_per_round.max() == k


@pytest.mark.parametrize("static", [1, 8])
def test_every_k_by_row(static):
    """Rows with k from 0 to 8 side by side; each drafts its own number, and no text changes."""
    want = generate()
    for shift in (0, 1):
        k = np.minimum((np.arange(8) + shift), static)
        out = generate((draft.from_model(TARGET[0], static), None), num_speculative_tokens=k)
        assert_same_text(out, want)
        np.testing.assert_array_equal(out.stats.drafted_per_round.max(axis=1), k)
        assert np.all(out.stats.rounds[k == 0] == out.lengths[k == 0])


@pytest.mark.parametrize("name", ["ring", "recurrent", "transformer"])
def test_stateful_and_real_targets(name):
    """Rollback of caches that length alone can not roll back, with drafts right and wrong."""
    want = plain_greedy(MODELS[name], PROMPTS)
    assert texts(generate("ngram-match", target=MODELS[name])) == want
    model, good = MODELS[name]
    bad = {"ring": testing.ring, "recurrent": testing.recurrent, "transformer": testing.tiny_transformer}[name](9, V)[1]
    drafter = draft.from_model(model, K)
    for params in (testing.blend((model, good), (model, bad), 0.2)[1], bad):
        out = generate((drafter, None), target=MODELS[name], draft_params=params)
        assert texts(out) == want
        assert 0 < out.stats.accepted.sum() < out.stats.drafted.sum()


def test_ring_with_short_and_long_prompts_padded_together():
    """Window 8, prompts of 3 and 40 in one batch: each as if it were alone."""
    prompts = [[1, 2, 3], [int(x) for x in np.random.default_rng(0).integers(0, V, 40)]]
    together = generate("ngram-match", prompts=prompts, target=RING)
    assert texts(together) == [plain_greedy(RING, [prompt])[0] for prompt in prompts]


@pytest.mark.parametrize("name", ["trigram", "transformer"])
def test_a_perfect_draft_is_always_accepted(name):
    """Bug log A19, F5: no hole in the draft's cache after a fully accepted block, whatever k."""
    model, params = MODELS[name]
    out = generate((draft.from_model(model, K), None), target=MODELS[name], draft_params=params)
    np.testing.assert_array_equal(out.stats.accepted, out.stats.drafted)
    np.testing.assert_array_equal(out.stats.rounds, -(-BUDGET // (K + 1)))


@pytest.mark.parametrize("pair", ["ngram-match", "model-block"])
def test_eos_at_every_position_of_a_block(pair):
    """Bug log B11: EOS at the places 1..12 of the text, for rows that draft 0..3 tokens; nothing after, counts too."""
    prompts = [[0]] * 8
    k = np.array([0, 1, 2, 3, 3, 2, 3, 1])
    for at in range(1, 13):
        target = scenarios.script_with(at)
        # The n-gram drafter proposes nothing good here; the model draft is the script itself, so blocks are long.
        drafter = (draft.from_model(target[0], K), None) if pair == "model-block" else pair
        out = generate(drafter, prompts=prompts, target=target, draft_params=target[1], eos_ids=[7],
                       num_speculative_tokens=k)
        want = [1 + i % 6 for i in range(at - 1)] + [7]
        assert texts(out) == [want] * 8
        assert np.all(out.finish_reason == specjax.FinishReason.EOS)
        assert np.all(out.stats.drafted_per_round.sum(1) <= at)


def test_stops_across_rounds():
    """A stop sequence of three tokens that ends at each place, whatever blocks it is spread over."""
    target = scenarios.script_with(None)
    pair = (draft.from_model(target[0], K), None)
    k = np.array([0, 1, 2, 3, 3, 2, 3, 1])
    for first in range(1, 7):
        stop = [[1 + (first - 1 + i) % 6 for i in range(3)], [5, 5]]
        out = generate(pair, prompts=[[0]] * 8, target=target, draft_params=target[1], stop=stop,
                       num_speculative_tokens=k)
        want = [1 + i % 6 for i in range(first + 2)]
        assert texts(out) == [want] * 8, first
        assert np.all(out.finish_reason == specjax.FinishReason.STOP)


@pytest.mark.parametrize("pair", ["ngram-match", "model-block"])
def test_budgets_smaller_than_k(pair):
    limits = np.array([0, 1, 2, 3, 4, 5, 6, 16])
    want = generate()
    out = generate(pair, limits=limits)
    np.testing.assert_array_equal(out.lengths, limits)
    assert texts(out) == [text[:limit] for text, limit in zip(texts(want), limits, strict=True)]
    assert np.all(out.finish_reason == specjax.FinishReason.LENGTH)
    assert np.all(out.stats.drafted <= np.maximum(limits - 1, 0) * out.stats.rounds)
    assert out.stats.drafted[0] == out.stats.drafted[1] == 0


@pytest.mark.parametrize("name", ["trigram", "ring"])
def test_prompts_longer_than_a_chunk_of_prefill(name):
    """Prefill reads 256 tokens at a time: rows that end before, at and behind the border, beside a short one."""
    random = np.random.default_rng(4)
    prompts = [random.integers(0, V, length).tolist() for length in (300, 5, 256, 257)]
    model, params = MODELS[name]
    out = generate((draft.from_model(model, K), None), prompts=prompts, target=MODELS[name], draft_params=params)
    assert texts(out) == plain_greedy(MODELS[name], prompts)
    if name == "trigram":  # a ring is no good draft: it remembers what was refused, and reads prompts in its own way
        np.testing.assert_array_equal(out.stats.accepted, out.stats.drafted)


def test_short_rows_beside_long_ones():
    """Prompts of one token have no past; they start like all others."""
    prompts = [[3]] * 7 + [[1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 3]]
    for pair in ("ngram-match", "model-block"):
        assert_same_text(generate(pair, prompts=prompts), generate(prompts=prompts))
