"""What a caller may do with requests: submit, cancel wherever they are, and be refused without a trace."""

import jax
import numpy as np
import pytest
from fleet import BUDGET, CAPACITY, arrive, assert_same, crowd, engine, gather, solo
from scenarios import GOOD, NGRAM, TARGET, V

import specjax
from specjax import FinishReason, Sampling
from specjax.serving import Engine, QueueFull

LONG = {"prompt": [1, 2, 3], "sampling": Sampling(temperature=1.0, seed=4)}


def test_a_request_is_cancelled_wherever_it_is():
    """Running, being read, waiting; ended and cancelled ones are left, unknown ones refused."""
    busy = engine(prefill_budget=16)
    running, ended = busy.submit(**LONG), busy.submit([5], max_new_tokens=1)
    first = gather(busy.step())
    assert first[ended].finish == FinishReason.LENGTH and 2 <= len(first[running].tokens) < BUDGET
    reading, waiting = busy.submit(prompt=[1] * 40), busy.submit(prompt=[2] * 40)
    gather(busy.step(), first)
    assert busy._reading.ticket.id == reading and busy.num_waiting == 1
    beside = busy.submit(**LONG)
    assert [busy.cancel(one) for one in (ended, running, reading, waiting)] == [False, True, True, True]
    assert [busy.cancel(one) for one in (running, reading, waiting)] == [False] * 3
    assert busy.num_running == 0 and busy.num_waiting == 1 and not busy.idle
    texts = gather(busy.run(), first)
    assert [texts[one].finish for one in (running, reading, waiting)] == [FinishReason.CANCELLED] * 3
    cut, whole = texts[running], solo(LONG)
    assert cut.tokens == whole.tokens[: len(cut.tokens)] and not texts[reading].tokens
    assert cut.stats.accepted + cut.stats.recovered + cut.stats.bonus == len(cut.tokens)
    assert_same(texts[beside], whole)
    assert busy.idle and busy.step() == []


@pytest.mark.parametrize("id", [-1, 7, 1.5, "0"])
def test_an_unknown_id(id):
    with pytest.raises(ValueError, match="request"):
        engine().cancel(id)


def test_a_cancelled_row_writes_no_more_when_nobody_takes_it():
    """The row is dead in the next round already: others would wait for it."""
    busy = engine(rounds_per_step=1)
    gone, stays = busy.submit(**LONG), busy.submit(**LONG)
    busy.step()
    busy.cancel(gone)
    length = int(busy._state.length[0])
    gather(busy.step())
    assert int(busy._state.length[0]) == length and int(busy._state.finish[0]) == FinishReason.CANCELLED
    assert gather(busy.run())[stays].finish == FinishReason.LENGTH


def test_the_queue_has_a_bound():
    busy = engine(max_queue=2)
    for _ in range(2):
        busy.submit(**LONG)
    for refused in (lambda: busy.submit(**LONG), lambda: busy.add_prefix([1, 2])):
        with pytest.raises(QueueFull, match="2 wait.*max_queue=2"):
            refused()
    busy.step()
    assert busy.submit(**LONG) == 2, "a refused request takes no id"
    assert len(gather(busy.run())) == 3


BAD = [
    ({"prompt": []}, ["empty"]),
    ({"prompt": "abc"}, ["prompt", "tokenizer"]),
    ({"prompt": [[1], [2]]}, ["one sequence", "2 axes"]),
    ({"prompt": [1, V]}, ["prompt", str(V), f"0 .. {V - 1}"]),
    ({"prompt": [0.5]}, ["token ids"]),
    ({"prompt": [1] * (CAPACITY + 1)}, [str(CAPACITY + 1), f"capacity is {CAPACITY}", "shorten"]),
    ({"max_new_tokens": BUDGET + 1}, [str(BUDGET + 1), f"built for {BUDGET}", f"max_new_tokens={BUDGET + 1}"]),
    ({"max_new_tokens": -1}, ["max_new_tokens", "-1"]),
    ({"num_speculative_tokens": 4}, ["num_speculative_tokens", "0 .. 3"]),
    ({"sampling": Sampling(temperature=-1.0, seed=0)}, ["temperature"]),
    ({"sampling": Sampling(temperature=float("nan"), seed=0)}, ["temperature"]),
    ({"sampling": Sampling(temperature=[0.5, 0.5], seed=0)}, ["temperature", "1 rows"]),
    ({"sampling": Sampling(temperature=1.0)}, ["neither key nor seed"]),
    ({"sampling": Sampling(logit_bias=np.zeros(V))}, ["logit_bias=True"]),
    ({"sampling": Sampling(allowed=np.ones(V, bool))}, ["allowed=True"]),
    ({"eos_ids": [0, 1, 2, 3, 4]}, ["5 eos_ids", "room for 4", "max_eos=5"]),
    ({"eos_ids": [V]}, ["eos_ids"]),
    ({"stop": [[1]] * 5}, ["5 stop", "max_stops=5"]),
    ({"stop": [[1] * 9]}, ["9 tokens", "max_stop_tokens=9"]),
    ({"stop": "end"}, ["stop", "tokenizer"]),
]


@pytest.mark.parametrize(("change", "words"), BAD)
def test_a_bad_request_is_refused_and_leaves_no_trace(change, words):
    busy = engine()
    busy.submit(**LONG)
    with pytest.raises(ValueError) as caught:
        busy.submit(**(LONG | change))
    assert all(word in str(caught.value) for word in words), caught.value
    assert (busy.num_waiting, busy._next_id, busy._events) == (1, 1, [])
    assert busy.submit(**LONG) == 1


@pytest.mark.parametrize(("change", "words"), [
    ({"slots": 0}, ["slots"]), ({"capacity": 2.5}, ["capacity"]), ({"max_queue": -1}, ["max_queue"]),
    ({"prefill_chunk": 257}, ["prefill_chunk", "256"]),
    ({"prefill_budget": 8, "prefill_chunk": 16}, ["prefill_budget", "prefill_chunk"]),
    ({"drafter": NGRAM, "draft_params": GOOD[1]}, ["draft_params"]),
    ({"drafter": NGRAM, "verifier": specjax.verify.block(), "k_by_load": [1, 1]}, ["k_by_load", "block", "match"]),
    ({"drafter": NGRAM, "k_by_load": [1]}, ["k_by_load", "1 .. 2"]),
    ({"drafter": NGRAM, "k_by_load": [1, 4]}, ["0 .. 3"]),
])
def test_an_engine_that_does_not_fit_together(change, words):
    with pytest.raises(ValueError) as caught:
        Engine(*TARGET, **({"slots": 2, "capacity": 32, "max_new_tokens": 8} | change))
    assert all(word in str(caught.value) for word in words), caught.value


def test_arrays_for_the_vocabulary():
    """An engine with room for a bias and a mask serves requests with and without them."""
    roomy = engine("plain", logit_bias=True, allowed=True)
    bias, mask = np.linspace(-2, 2, V).astype(np.float32), np.arange(V) % 2 == 0
    settings = [Sampling(temperature=1.0, seed=3, **arrays)
                for arrays in ({}, {"logit_bias": bias}, {"allowed": jax.numpy.asarray(mask)})]
    for sampling in settings:
        roomy.submit([1, 2], sampling=sampling)
    texts = gather(roomy.run())
    for number, sampling in enumerate(settings):
        assert_same(texts[number], solo({"prompt": [1, 2], "sampling": sampling}, "plain"))
    assert set(texts[2].tokens) <= {0, 2, 4, 6} and len({tuple(text.tokens) for text in texts.values()}) == 3


def test_k_by_load():
    """Text by match does not hear k; drafts are fewer where rows are many, and as many as ever in a row alone."""
    table = (3, 2, 1)
    for pair in ("ngram-match", "model-match"):
        loaded = engine(pair, k_by_load=table, prefill_budget=64)
        texts, _ = arrive(loaded, crowd(), np.random.default_rng(5))
        for number, request in enumerate(crowd()):
            assert_same(texts[number], solo(request, pair), stats=False)
    full = [loaded.submit([1, 2, 3], max_new_tokens=16) for _ in range(3)]
    texts = gather(loaded.run())
    assert all(texts[one].stats.drafted_per_round[0, 0] == 1 for one in full)
    single = loaded.submit([1, 2, 3])
    assert gather(loaded.run())[single].stats.drafted_per_round[0, 0] == 3


def test_a_constraint_holds_for_every_request():
    """Only even tokens, and done after five of them."""
    rule = specjax.Constraint(
        lambda batch: jax.numpy.zeros(batch, int), lambda state, token: state + 1,
        lambda state: jax.numpy.arange(V) % 2 == 0, lambda state: state >= 5)
    ruled = engine(constraint=rule)
    for seed in range(5):
        ruled.submit([1], sampling=Sampling(temperature=1.0, seed=seed))
    texts = gather(ruled.run())
    assert all(len(text.tokens) == 5 and text.finish == FinishReason.STOP for text in texts.values())
    assert all(token % 2 == 0 for text in texts.values() for token in text.tokens)
