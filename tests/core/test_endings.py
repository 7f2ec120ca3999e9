"""Where a row ends: EOS, stops, budgets, capacity, constraints, broken logits, for tokens and all that is counted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scenarios
from scenarios import BUDGET, PROMPTS, ROWS, TARGET, K, V, generate, script_with, texts

from specjax import FinishReason, Sampling, draft
from specjax._src.noise import DRAFT, RECOVER, Noise
from specjax.testing import reference

SCRIPT = script_with(None)
PAIR = (draft.from_model(SCRIPT[0], K), None)
COUNT = [1 + i % 6 for i in range(BUDGET)]
START = [[0]] * ROWS


def scripted(target=SCRIPT, params=None, **arguments):
    return generate(PAIR, prompts=START, target=target, draft_params=target[1] if params is None else params,
                    **arguments)


def test_several_eos_ids_at_each_place():
    """Bug log B17: the second id of the set ends the row as well as the first, at every place of the block."""
    for at in range(1, 8):
        out = scripted(script_with(at, eos=0), eos_ids=[7, 0])
        assert texts(out) == [COUNT[: at - 1] + [0]] * ROWS


def test_eos_by_row():
    eos = np.stack([np.array([1 + row % 6, -1]) for row in range(ROWS)])
    out = scripted(eos_ids=eos)
    assert texts(out) == [COUNT[: 1 + row % 6] for row in range(ROWS)]


def test_no_eos_runs_to_the_budget():
    """Bug log B3: with no EOS id at all, id -1 and id 0 are not taken for one."""
    for eos in ((), None, [-1]):
        out = scripted(eos_ids=eos)
        assert texts(out) == [COUNT] * ROWS and np.all(out.finish_reason == FinishReason.LENGTH)


def test_eos_in_the_prompt_ends_nothing():
    out = generate("ngram-match", prompts=[[7, 7, 1]] * ROWS, eos_ids=[7])
    assert np.all(out.lengths > 0)


def test_min_new_tokens():
    """No EOS and no stop before so many tokens: the script's own EOS is refused, the next best token is taken."""
    least = np.arange(ROWS)
    out = scripted(script_with(3), eos_ids=[7], stop=[[1]], sampling=Sampling(min_new_tokens=least))
    for row, text in enumerate(texts(out)):
        assert len(text) >= row
        assert 7 not in text[:row]
    assert texts(out)[0] == [1]
    assert texts(out)[2] == COUNT[:2] + [7], "the third token may be EOS once two stand"


def test_stops_do_not_match_the_prompt():
    out = generate(PAIR, prompts=[[0]] * ROWS, target=SCRIPT, draft_params=SCRIPT[1], stop=[[0, 1], [0]])
    assert texts(out) == [COUNT] * ROWS


def test_stops_overlap_and_repeat():
    """The earliest end wins; a longer stop that contains a shorter one changes nothing."""
    out = scripted(stop=[[2, 3, 4], [3, 4], [6], [1, 2, 3, 4, 5]])
    assert texts(out) == [COUNT[:4]] * ROWS
    stop = np.full((ROWS, 4, 8), -1)  # by row, in the shape that lists are padded to
    stop[:, 0, -1] = 1 + np.arange(ROWS) % 6
    out = scripted(stop=stop)
    assert texts(out) == [COUNT[: 1 + row % 6] for row in range(ROWS)]
    out = scripted(stop=np.array([[4], [6]]))
    assert texts(out) == [COUNT[:4]] * ROWS


def test_eos_wins_over_stop_and_budget():
    out = scripted(script_with(3), eos_ids=[7], stop=[[7]], limits=3)
    assert np.all(out.finish_reason == FinishReason.EOS)
    out = scripted(stop=[[3]], limits=3)
    assert np.all(out.finish_reason == FinishReason.STOP)


def test_counts_stop_at_the_end():
    """Bug log B15, J1: script and draft agree, EOS is the second token: 2 emitted, 2 drafted, both accepted."""
    out = scripted(script_with(2), eos_ids=[7])
    assert np.all(out.stats.rounds == 1) and np.all(out.stats.mean_accepted_length == 2.0)
    assert np.all(out.stats.drafted == 2) and np.all(out.stats.accepted == 2)
    assert np.all(out.stats.recovered == 0) and np.all(out.stats.bonus == 0)
    np.testing.assert_array_equal(out.stats.drafted_per_position, [[1, 1, 0]] * ROWS)


def test_eos_of_the_draft_alone_ends_nothing():
    """Bug log B9: the draft says EOS, the target says something else."""
    out = scripted(params=script_with(2)[1], eos_ids=[7])
    assert texts(out) == [COUNT] * ROWS
    assert np.all(out.stats.recovered > 0)


def test_capacity():
    """Bug log B19: prompt 6, capacity 8, budget 16: two tokens and a reason of its own."""
    out = generate("ngram-match", prompts=[[1, 2, 3, 4, 5, 6]] * ROWS, capacity=8)
    assert np.all(out.lengths == 2) and np.all(out.finish_reason == FinishReason.CAPACITY)
    full = generate("ngram-match", prompts=[[1, 2, 3, 4, 5, 6]] * ROWS, capacity=8, limits=2)
    assert np.all(full.lengths == 2) and np.all(full.finish_reason == FinishReason.LENGTH)
    none = generate("ngram-match", prompts=[[1, 2, 3, 4, 5, 6, 7, 0]] * ROWS, capacity=8)
    assert np.all(none.lengths == 0) and np.all(none.finish_reason == FinishReason.CAPACITY)


def broken_script(at, value):
    """The script whose logits after generated token `at` are `value`."""
    logits = np.array(SCRIPT[1]["logits"])
    logits[at + 1] = value
    return SCRIPT[0], {"logits": jnp.asarray(logits)}


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_broken_logits(value, sampled):
    """Bug log A11, A13: the row ends with an error where the target breaks, at every place of a block."""
    for at in range(8):
        target = broken_script(at, value)
        sampling = Sampling(temperature=1.0 if sampled else 0.0, seed=3)
        out = scripted(target, params=SCRIPT[1], sampling=sampling)
        assert texts(out) == [COUNT[:at]] * ROWS
        assert np.all(out.finish_reason == FinishReason.ERROR)


def test_a_broken_row_harms_no_other():
    """Trigram rows: those that meet the poisoned context end, the others write what they would have written."""
    logits = np.array(TARGET[1]["logits"])
    logits[5 + 1, 1] = np.nan
    sampling = Sampling(temperature=np.full(ROWS, 1.0), seed=np.arange(ROWS))
    for pair in ("ngram-match", "model-match"):
        want = generate(pair, sampling=sampling)
        out = generate(pair, sampling=sampling, target=(TARGET[0], {"logits": jnp.asarray(logits)}))
        hit = out.finish_reason == FinishReason.ERROR
        assert 0 < hit.sum() < ROWS
        for row in range(ROWS):
            text = texts(want)[row]
            line = PROMPTS[row] + text
            places = [i for i in range(1, len(line)) if (line[i - 1], line[i]) == (5, 1) and i >= len(PROMPTS[row]) - 1]
            cut = places[0] - len(PROMPTS[row]) + 1 if places and places[0] < len(line) - 1 else len(text)
            assert texts(out)[row] == text[:cut]
            assert hit[row] == (cut < len(text))


def test_a_broken_draft_harms_nobody():
    """NaN from the draft: nothing is drafted from there on, and the text is the target's."""
    for at, value in ((0, np.nan), (2, np.inf), (5, -np.inf)):
        for temperature in (0.0, 1.0):
            out = scripted(params=broken_script(at, value)[1], sampling=Sampling(temperature=temperature, seed=0))
            assert texts(out) == [COUNT] * ROWS
            assert np.all(out.stats.rounds > -(-BUDGET // (K + 1)))


def test_no_token_allowed_is_an_error():
    """What `allowed` leaves, the bias forbids; a mask that forbids all is refused at the call."""
    half = np.arange(V) < V // 2
    bias = np.where(half, -np.inf, 0.0).astype(np.float32)
    out = generate("model-block", sampling=Sampling(allowed=half, logit_bias=bias))
    assert np.all(out.finish_reason == FinishReason.ERROR) and np.all(out.lengths == 0)


@pytest.mark.parametrize("verifier", ["match", "rejection", "block"])
def test_whole_rows_equal_the_python_reference(verifier):
    """Text, reason and every counter of the whole loop equal those of a slow loop on the same random numbers."""
    sampling = Sampling(temperature=np.full(ROWS, 1.0), seed=np.arange(ROWS) + 49)
    for drafter in ("ngram", "model"):
        out = generate(f"{drafter}-{verifier}", sampling=sampling, eos_ids=[6], stop=[[1, 2], [4, 0, 4]])
        reasons = set()
        for row, prompt in enumerate(PROMPTS):
            want = _slow(prompt, int(sampling.seed[row]), drafter, verifier)
            rounds = want.rounds
            assert texts(out)[row] == want.tokens
            assert FinishReason(int(out.finish_reason[row])).name == want.reason
            assert out.stats.rounds[row] == rounds
            assert out.stats.drafted_per_round[row, :rounds].tolist() == want.drafted
            assert out.stats.accepted_per_round[row, :rounds].tolist() == want.accepted
            assert (out.stats.recovered[row], out.stats.bonus[row]) == (want.recovered, want.bonus)
            reasons.add(want.reason)
        assert len(reasons) > 1


def _slow(prompt, seed, drafter, verifier):
    key = jax.vmap(jax.random.key)(jnp.array([seed], jnp.uint32))

    def noise(length):
        return Noise(key, jnp.array([length], jnp.int32), False)

    def law_of(params):
        def law(output):
            line = [-1, *prompt, *output]
            return reference.target_law(np.asarray(params["logits"])[line[-2] + 1, line[-1]], Sampling(temperature=1.0))
        return law

    def look_up(output, count, node_noise):
        del node_noise
        return reference.look_up(prompt + output, count), None

    def roll_out(output, count, node_noise):
        drafted, laws = [], []
        for node in range(count):
            laws.append(law_of(scenarios.GOOD[1])(output + drafted))
            drafted.append(reference.choose(laws[-1], node_noise(node)))
        return drafted, np.array(laws).reshape(count, V)

    def pair(uniforms):
        return tuple(np.asarray(uniforms, np.float64)[0])

    numbers = reference.Numbers(
        accept=lambda length: float(noise(length).accept()[0]),
        recover=lambda length: pair(noise(length)._uniforms(RECOVER, 0)),
        target=lambda position: np.asarray(noise(position).gumbel(0, V))[0],
        draft=lambda length, node: pair(noise(length)._uniforms(DRAFT, node)))
    return reference.speculative(
        law_of(TARGET[1]), look_up if drafter == "ngram" else roll_out, verifier, len(prompt), numbers, k=K,
        max_new_tokens=BUDGET, eos=[6], stop=[[1, 2], [4, 0, 4]])
