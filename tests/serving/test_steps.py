"""What a step costs: no compilation, one transfer, a bounded part of a prompt; and nothing is left behind."""

import contextlib
import gc
import pathlib
import resource

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fleet import arrive, crowd, draw_request, engine, gather, solo
from scenarios import V

import specjax
from specjax import FinishReason, Sampling, testing
from specjax.serving import QueueFull

ArrayImpl = type(jnp.zeros(1))


@contextlib.contextmanager
def transfers():
    """Counts arrays that are copied to the host inside the block (by a private property of jax)."""
    count, own = [], ArrayImpl._value

    def counted(self):
        count.append(self.shape)
        return own.fget(self)

    patch = pytest.MonkeyPatch()
    patch.setattr(ArrayImpl, "_value", property(counted))
    patch.setattr(np, "asarray", lambda value, *rest, real=np.asarray, **more: real(
        value._value if isinstance(value, ArrayImpl) else value, *rest, **more))
    try:
        yield count
    finally:
        patch.undo()


@pytest.mark.parametrize("pair", ["model-block", "plain"])
def test_nothing_compiles_after_warming_up(pair):
    """Whatever is asked, cancelled, or stored."""
    jax.clear_caches()
    with testing.count_traces() as count:
        warm = engine(pair, key=jax.random.key(1), prefill_chunk=32)
        warm.warm_up()
    assert count.compiled >= 4
    generator = np.random.default_rng(3)
    requests = [draw_request(generator, 0 if pair == "plain" else 3) for _ in range(12)]
    requests.append({"prompt": [1], "sampling": Sampling(temperature=1.0)})
    requests.append({"prompt": [2] * 64, "eos_ids": [1, 2, 3], "stop": [[1, 2], [3]], "sampling": Sampling(top_k=2)})
    with testing.assert_no_compilation():
        warm.add_prefix([1, 2, 3])
        texts, cancelled = arrive(warm, requests, generator, cancel_every=4)
    assert cancelled and len(texts) == 14


def test_warming_up_changes_nothing():
    """In the middle of everything, too."""
    busy = engine(key=jax.random.key(2))
    request = {"prompt": [1, 2], "sampling": Sampling(temperature=1.0)}
    busy.submit(**request)
    texts = gather(busy.step())
    busy.warm_up()
    assert busy.num_running == 1
    busy.submit(**request)
    gather(busy.run(), texts)
    for number in range(2):
        assert texts[number].tokens == solo(request, key=jax.random.fold_in(jax.random.key(2), number)).tokens


def test_one_transfer_a_step():
    busy = engine(logprobs=True)
    for seed in range(5):
        busy.submit([1, 2, 3] * 10, sampling=Sampling(temperature=1.0, seed=seed))
    with transfers() as control:
        np.asarray(jnp.arange(3) + 1)
    assert len(control) == 1
    while not busy.idle:
        with transfers() as count:
            busy.step()
        assert len(count) <= 1, count


def test_a_long_prompt_does_not_stall_the_running_rows():
    """200 tokens are read 32 a step at most, while both running rows gain tokens in every step."""
    busy = engine("plain", capacity=256, max_new_tokens=64, prefill_chunk=16, prefill_budget=32)
    running = [busy.submit([1, 2, 3], max_new_tokens=64) for _ in range(2)]
    busy.step()
    long = busy.submit(np.arange(200) % V, max_new_tokens=3)
    before, steps = busy.tokens_read, 0
    while busy.num_running < 3:
        events = {event.id: event for event in busy.step()}
        assert all(events[one].tokens for one in running)
        assert 0 < busy.tokens_read - before <= 32
        before, steps = busy.tokens_read, steps + 1
    assert steps == 7 and busy.tokens_read == 2 * 2 + 199
    assert gather([event for event in events.values() if event.id == long] + list(busy.run()))[long].finish == 0


def test_a_short_burst_is_read_within_the_budget():
    """Prompts of 9 tokens cost passes of 16: two of them fit in a step of 32."""
    busy = engine("plain", prefill_chunk=16, prefill_budget=32)
    for _ in range(3):
        busy.submit([1] * 9)
    busy.step()
    assert (busy.num_running, busy.tokens_read) == (2, 16)


def test_rows_shorter_than_a_pass():
    """A chunk wider than a row is cut to what fits, and a prompt may fill the row but for one token."""
    small = engine("plain", capacity=20, prefill_chunk=128)
    small.warm_up()
    small.submit([1, 2] * 10, max_new_tokens=4)
    small.submit([1, 2] * 9 + [1], max_new_tokens=4)
    texts = gather(small.run())
    full, last = texts[0], texts[1]
    assert (full.tokens, full.finish, last.finish) == ([], FinishReason.CAPACITY, FinishReason.CAPACITY)
    assert last.tokens == solo({"prompt": [1, 2] * 9 + [1], "max_new_tokens": 1}, "plain").tokens


@pytest.mark.slow
def test_five_hundred_requests():
    """Each ends once, its tokens in order, as alone; the memory stays what it was."""
    texts_of = {number: solo(request) for number, request in enumerate(crowd())}
    generator, soak = np.random.default_rng(9), engine(max_queue=20)
    arrive(soak, [crowd()[0]] * 3, generator)
    gc.collect()
    arrays, memory = len(jax.live_arrays()), _resident()
    first, order, texts, refused = soak._next_id, [], {}, 0
    while len(order) < 500 or not soak.idle:
        for _ in range(min(int(generator.integers(4)), 500 - len(order))):
            which = int(generator.integers(18))
            try:
                assert soak.submit(**crowd()[which]) == first + len(order)
            except QueueFull:
                refused += 1
            else:
                order.append(which)
        gather(soak.step(), texts)
    assert refused and sorted(texts) == list(range(first, first + 500))
    for number, which in enumerate(order):
        text = texts[first + number]
        assert (text.tokens, text.finish) == (texts_of[which].tokens, texts_of[which].finish)
        assert text.finish not in (None, FinishReason.ERROR)
    gc.collect()
    assert len(jax.live_arrays()) <= arrays
    assert _resident() - memory < 32e6


def _resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.slow
def test_the_embedded_pair():
    """Functions by the embedded pair: greedy by match and sampled by block, four rows, as by `generate`."""
    target, draft = specjax.load("tiny-python"), specjax.load("tiny-python-draft")
    headers = ["def fork():", "def read_lines(path):", "def send(self, val):", "def add(a, b):", "def is_even(n):"]
    prompts = [target.tokenizer.encode(header).ids for header in headers]
    drafter = specjax.draft.from_model(draft.model, 4)
    pair = specjax.serving.Engine(
        target.model, target.params, drafter, draft.params, slots=4, capacity=96, max_new_tokens=48)
    for number, prompt in enumerate(prompts):
        pair.submit(prompt, sampling=Sampling(temperature=0.8 * (number % 2), seed=number), eos_ids=target.eos_ids)
    texts = gather(pair.run())
    for number, prompt in enumerate(prompts):
        out = specjax.generate(
            target.model, target.params, [prompt], drafter=drafter, draft_params=draft.params, max_new_tokens=48,
            capacity=96, sampling=Sampling(temperature=0.8 * (number % 2), seed=number), eos_ids=target.eos_ids)
        assert texts[number].tokens == out.tokens[0, : int(out.lengths[0])].tolist()
        assert int(texts[number].stats.accepted[0]) == int(out.stats.accepted[0]) > 0
