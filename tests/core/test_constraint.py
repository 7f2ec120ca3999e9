"""Constraints: every emitted token is allowed by the automaton, at drafted, recovered and bonus places alike."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scenarios
from scenarios import BUDGET, PROMPTS, ROWS, TARGET, V, generate, texts

import specjax
from specjax import Constraint, FinishReason, Sampling
from specjax.testing import reference

OPEN, CLOSE = 1, 2


def brackets(closing: bool = True) -> Constraint:
    """Nested brackets no deeper than three: a close needs an open one; done when all are closed again."""
    token = jnp.arange(V)

    def mask(depth):
        return jnp.where(token == OPEN, depth < 3, jnp.where(token == CLOSE, depth > 0, depth > 0))

    return Constraint(
        init=lambda batch: jnp.zeros(batch, jnp.int32),
        advance=lambda depth, one: depth + (one == OPEN) - (one == CLOSE),
        mask=mask,
        done=lambda depth: (depth == 0) & closing)


BRACKETS, ENDLESS = brackets(), brackets(closing=False)
SAMPLING = Sampling(temperature=np.array([0.0, 1.0, 1.5, 2.0, 1.0, 0.0, 3.0, 1.0]), seed=np.arange(ROWS))
ALLOWED_AT_0, ALLOWED_AT_3 = {OPEN}, set(range(V)) - {OPEN}


def walk(text):
    """The depth after each token; fails where the automaton forbids one."""
    depth = 0
    for place, token in enumerate(text):
        allowed = ALLOWED_AT_0 if depth == 0 else ALLOWED_AT_3 if depth == 3 else set(range(V))
        assert token in allowed, (text, place)
        depth += (token == OPEN) - (token == CLOSE)
        yield depth


@pytest.mark.parametrize("pair", ["plain", "ngram-match", "model-block"])
def test_every_token_is_allowed_and_the_row_ends_when_done(pair):
    out = generate(pair, sampling=SAMPLING, constraint=BRACKETS)
    for text, reason in zip(texts(out), out.finish_reason, strict=True):
        depths = list(walk(text))
        assert 0 not in depths[:-1]
        assert reason == (FinishReason.STOP if depths[-1] == 0 else FinishReason.LENGTH)
    assert np.any(out.finish_reason == FinishReason.STOP)


def test_match_text_is_the_text_of_plain_decoding():
    want = generate("plain", sampling=SAMPLING, constraint=BRACKETS)
    scenarios.assert_same_text(generate("ngram-match", sampling=SAMPLING, constraint=BRACKETS), want)


def test_greedy_rows_equal_the_python_reference():
    out = generate("model-block", sampling=Sampling(temperature=SAMPLING.temperature, seed=np.arange(ROWS)),
                   constraint=BRACKETS)
    logits = np.asarray(TARGET[1]["logits"])
    for row in np.nonzero(SAMPLING.temperature == 0)[0]:
        text, depth = [], 0
        while len(text) < BUDGET and (depth > 0 or not text):
            line = [-1, *PROMPTS[row], *text]
            mask = [(depth < 3) if token == OPEN else depth > 0 for token in range(V)]
            law = reference.target_law(logits[line[-2] + 1, line[-1]], Sampling(), mask=mask)
            text.append(int(np.argmax(law)))
            depth += (text[-1] == OPEN) - (text[-1] == CLOSE)
        assert texts(out)[row] == text


def test_the_state_follows_the_text_and_a_new_turn_starts_afresh():
    """After any number of rounds the automaton stands where the emitted tokens lead; `extend` starts it again."""
    decoder = specjax.speculative(TARGET[0], scenarios.MODEL, constraint=ENDLESS)
    params = specjax.Params(TARGET[1], scenarios.BAD[1])
    state = decoder.init(params, PROMPTS, max_new_tokens=BUDGET, sampling=SAMPLING, capacity=64)
    run = jax.jit(decoder.run)
    ends = []
    for _ in range(3):
        state = run(params, state, 4)
        for text in texts(decoder.result(state)):
            *_, depth = walk(text) if text else [0]
            ends.append(depth)
        np.testing.assert_array_equal(state.rule_state, ends[-ROWS:])
    num = jnp.asarray([1] * 7 + [0])
    more = decoder.extend(params, state, jnp.full((ROWS, 2), OPEN, jnp.int32), num)
    np.testing.assert_array_equal(more.rule_state, [0] * 7 + [ends[-1]])


def test_a_dead_end_is_an_error():
    """An automaton that allows nothing and is not done: the row can not go on and says so."""
    stuck = Constraint(
        init=lambda batch: jnp.zeros(batch, jnp.int32), advance=lambda state, token: state + 1,
        mask=lambda state: jnp.broadcast_to(state < 3, (V,)), done=lambda state: jnp.bool_(False))
    out = generate("ngram-match", constraint=stuck, sampling=SAMPLING)
    assert np.all(out.finish_reason == FinishReason.ERROR) and np.all(out.lengths == 3)
