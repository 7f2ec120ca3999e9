"""Engines over the toys of the core, requests drawn at random, and what each would write alone.

Compiling is most of what these tests cost: all engines have three rows of 64 tokens, all solo runs one prompt width.
"""

import collections
import functools

import jax
import numpy as np
from scenarios import GOOD, PAIRS, TARGET, V

import specjax
from specjax import FinishReason, Sampling
from specjax.serving import Engine

SLOTS, CAPACITY, BUDGET, WIDTH = 3, 64, 16, 40
Text = collections.namedtuple("Text", "tokens finish stats logprobs")


def engine(pair="ngram-match", toy=TARGET, **options):
    """An engine of the usual sizes; `pair` as in `scenarios`."""
    drafter, verifier = PAIRS[pair] if isinstance(pair, str) else pair
    sizes = {"slots": SLOTS, "capacity": CAPACITY, "max_new_tokens": BUDGET, "prefill_chunk": 16, "rounds_per_step": 2}
    return Engine(*toy, drafter, _draft_params(drafter), verifier, **(sizes | options))


def solo(request, pair="ngram-match", toy=TARGET, key=None, logprobs=False):
    """The text of a request alone, by `specjax.generate`."""
    drafter, verifier = PAIRS[pair] if isinstance(pair, str) else pair
    prompt, budget = request["prompt"], request.get("max_new_tokens", BUDGET)
    padded = np.zeros((1, WIDTH), np.int32)
    padded[0, : len(prompt)] = prompt
    rest = {name: value for name, value in request.items() if name not in ("prompt", "max_new_tokens")}
    out = specjax.generate(
        *toy, padded, lengths=[len(prompt)], drafter=drafter, draft_params=_draft_params(drafter), verifier=verifier,
        max_new_tokens=BUDGET, limits=budget, capacity=CAPACITY, logprobs=logprobs, key=key, **rest)
    out = jax.tree.map(np.asarray, out)
    length = int(out.lengths[0])
    records = {name: getattr(out.stats, name)[:, :budget] for name in ("drafted_per_round", "accepted_per_round")}
    stats = out.stats.__class__(**(vars(out.stats) | records))
    law = [out.logprobs[0, :length], out.raw_logprobs[0, :length]] if logprobs else None
    return Text(out.tokens[0, :length].tolist(), FinishReason(int(out.finish_reason[0])), stats, law)


def _draft_params(drafter):
    return GOOD[1] if drafter is not None and drafter.needs_params and not drafter.own_target else None


def gather(events, texts=None):
    """The texts that `events` tell, by id; every request ends once, and nothing comes after its end."""
    texts = {} if texts is None else texts
    for event in events:
        before = texts.get(event.id, Text([], None, None, [[], []]))
        assert before.finish is None, f"an event of request {event.id} after its end"
        law = None
        if event.logprobs is not None:
            law = [before.logprobs[0] + event.logprobs, before.logprobs[1] + event.raw_logprobs]
        texts[event.id] = Text(before.tokens + event.tokens, event.finish_reason, event.stats, law)
    return texts


def assert_same(text, other, stats=True):
    """The same tokens for the same reason, after the same rounds."""
    assert (text.tokens, text.finish) == (other.tokens, other.finish)
    if stats:
        jax.tree.map(np.testing.assert_array_equal, text.stats, other.stats)
    if other.logprobs is not None:
        np.testing.assert_allclose(text.logprobs, other.logprobs, atol=1e-5)


def draw_request(generator, most=3, seed=True):
    """A request with settings at random: mostly sampled, now and then greedy, with ends of every kind."""
    pick = generator.integers
    sampling = Sampling(
        temperature=float(generator.choice([0.0, 0.7, 1.0])), top_k=int(generator.choice([0, 0, 4])),
        top_p=float(generator.choice([1.0, 0.9])), repetition_penalty=float(generator.choice([1.0, 1.0, 1.3])),
        min_new_tokens=int(pick(0, 3)), seed=int(pick(2**31)) if seed else None)
    return {
        "prompt": pick(V, size=pick(1, WIDTH + 1)).tolist(), "sampling": sampling, "max_new_tokens": int(pick(1, 17)),
        "eos_ids": [int(pick(V))] if pick(3) == 0 else [], "stop": [pick(V, size=2).tolist()] if pick(3) == 0 else [],
        "num_speculative_tokens": int(pick(most + 1))}


def arrive(engine, requests, generator, cancel_every=0):
    """Submit the requests between steps at random; every so many are cancelled somewhere: texts by number, and those
    cancelled."""
    texts, cancelled, waiting = {}, set(), collections.deque(enumerate(requests))
    while waiting or not engine.idle:
        for _ in range(min(int(generator.integers(3)), len(waiting))):
            number, request = waiting.popleft()
            assert engine.submit(**request) == number
        gather(engine.step(), texts)
        here = [number for number in range(len(requests) - len(waiting))
                if number not in cancelled and (number not in texts or texts[number].finish is None)]
        if cancel_every and here and generator.integers(cancel_every) == 0:
            number = int(generator.choice(here))
            cancelled.add(number)
            engine.cancel(number)
    return texts, cancelled


@functools.cache
def crowd(pair="ngram-match", count=18, seed=0):
    """Requests at random, the same for all who ask; without drafts where nothing drafts."""
    generator = np.random.default_rng(seed)
    return [draw_request(generator, 0 if pair == "plain" else 3) for _ in range(count)]


@functools.cache
def alone(pair, count=18, seed=0):
    """What each of a `crowd` writes alone."""
    return [solo(request, pair) for request in crowd(pair, count, seed)]
