"""The counters and the rates derived from them, on rounds small enough to count by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scenarios
from scenarios import BUDGET, PROMPTS, ROWS, K, generate, texts

import specjax
from specjax import Sampling, draft, testing, verify
from specjax._src import state as states


def counted(stats, drafted, *what, live=True):
    """`count_round` for one row: the tokens proposed at each depth, then number kept, refused, emitted, ended."""
    return states.count_round(stats, jnp.asarray([live]), jnp.asarray([drafted], jnp.int32),
                              *(jnp.asarray([one]) for one in what))


def test_by_hand():
    """Four rounds of one row with k = 3: 3 of 3 kept; 1 of 3; 0 of 0; then EOS as the second of 3 accepted tokens."""
    stats = states.no_stats(1, 3, 8)
    for drafted, kept, emitted, ended in ((3, 3, 4, False), (3, 1, 2, False), (0, 0, 1, False), (3, 3, 2, True)):
        stats = counted(stats, np.arange(3) < drafted, kept, kept < drafted, emitted, ended)
    stats = counted(stats, np.zeros(3), 0, False, 0, True, live=False)  # a round after the end of the row
    assert [int(value[0]) for value in (stats.rounds, stats.drafted, stats.accepted, stats.recovered, stats.bonus)] == [
        4, 8, 6, 1, 2]
    np.testing.assert_array_equal(stats.drafted_per_round[0], [3, 3, 0, 2, 0, 0, 0, 0])
    np.testing.assert_array_equal(stats.accepted_per_round[0], [3, 1, 0, 2, 0, 0, 0, 0])
    np.testing.assert_array_equal(stats.drafted_per_position[0], [3, 3, 2])
    np.testing.assert_array_equal(stats.accepted_per_position[0], [3, 2, 1])
    assert stats.mean_accepted_length[0] == pytest.approx(9 / 4)
    assert stats.acceptance_rate[0] == pytest.approx(6 / 8)
    np.testing.assert_allclose(stats.acceptance_rate_per_position[0], [3 / 4, 2 / 4, 1 / 4])
    np.testing.assert_allclose(stats.conditional_acceptance_rate_per_position[0], [1, 2 / 3, 1], rtol=1e-6)
    np.testing.assert_array_equal(stats.reached_per_position[0], [3, 3, 1])


def test_rates_of_rows_that_did_nothing_are_zero():
    stats = states.no_stats(2, 3, 4)
    for rate in ("mean_accepted_length", "acceptance_rate", "acceptance_rate_per_position",
                 "conditional_acceptance_rate_per_position"):
        assert np.all(np.asarray(getattr(stats, rate)) == 0)


def test_the_end_is_a_refused_token():
    """The row ends with the token that replaced a refused one: that one was proposed, what came after it was not."""
    stats = counted(states.no_stats(1, 3, 4), np.ones(3), 1, True, 2, True)
    assert (int(stats.drafted[0]), int(stats.accepted[0]), int(stats.recovered[0])) == (2, 1, 1)


def test_a_tree_by_hand():
    """Three nodes at depth 1, two at depth 2, one at depth 3: all tokens are drafted, a depth is proposed once."""
    stats = counted(states.no_stats(1, 3, 8), [3, 2, 1], 1, True, 2, False)
    stats = counted(stats, [3, 2, 0], 2, False, 3, False)
    stats = counted(stats, [3, 2, 1], 3, False, 2, True)  # the row ends at depth 2
    assert [int(value[0]) for value in (stats.rounds, stats.drafted, stats.accepted, stats.recovered, stats.bonus)] == [
        3, 16, 5, 1, 1]
    np.testing.assert_array_equal(stats.drafted_per_position[0], [3, 3, 1])
    np.testing.assert_array_equal(stats.reached_per_position[0], [3, 3, 0])
    np.testing.assert_array_equal(stats.accepted_per_position[0], [3, 2, 0])


@pytest.mark.parametrize("pair", scenarios.SPECULATIVE)
def test_totals_of_whole_generations(pair):
    """Endings of every kind and every k; `scenarios.check` holds the sums together."""
    sampling = Sampling(temperature=np.array([0.0, 1.0] * 4), seed=np.arange(ROWS))
    out = generate(pair, sampling=sampling, eos_ids=[6], stop=[[1, 2]], limits=np.arange(ROWS) + 3,
                   num_speculative_tokens=np.arange(ROWS) % (K + 1))
    np.testing.assert_array_equal(out.stats.drafted[::K + 1], 0)
    most = np.arange(ROWS) % (K + 1)
    assert np.all(out.stats.accepted_per_round <= most[:, None])
    if pair not in scenarios.TREES:
        assert np.all(out.stats.drafted_per_round <= most[:, None])
    assert np.all(out.stats.rounds >= out.lengths / (K + 1))


def test_mean_accepted_length_is_what_the_laws_predict():
    """One pair of vectors as models, k = 2: tokens per round = 1 + a + a^2 with a = sum min(p, q), over 20 000 rows."""
    p, q = np.array([0.5, 0.3, 0.15, 0.05]), np.array([0.2, 0.3, 0.3, 0.2])
    target, other = testing.table(p), testing.table(q)
    drafter = draft.from_model(target[0], 2)
    out = specjax.generate(
        *target, np.zeros((20000, 1), np.int32), drafter=drafter, draft_params=other[1],
        verifier=verify.rejection(), sampling=Sampling(temperature=1.0),
        key=jax.random.key(0), max_new_tokens=3)
    scenarios.check(out)
    rate = np.minimum(p, q).sum()
    first = np.asarray(out.stats.accepted_per_round)[:, 0]
    assert first.mean() == pytest.approx(rate + rate**2, abs=4 * first.std() / np.sqrt(len(first)))


def test_plain_decoding_is_all_bonus():
    out = generate("plain")
    assert np.all(out.stats.bonus == BUDGET) and np.all(out.stats.rounds == BUDGET)
    assert np.all(out.stats.drafted == 0) and out.stats.accepted_per_position.shape == (ROWS, 0)
    assert np.all(out.stats.mean_accepted_length == 1.0)
    assert [len(text) for text in texts(out)] == [BUDGET] * len(PROMPTS)
