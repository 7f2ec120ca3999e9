"""The training-time test at all places at once is, place by place, a roll-out with the head's own cache."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from specjax import Attend
from specjax.models.heads import MODULES, head_from_nnx
from specjax.training import unroll as module
from specjax.training.unroll import unroll

STEPS = 4


def head_of(config, learner):
    return head_from_nnx(MODULES[config.kind][1](learner.config, rngs=nnx.Rngs(0)))[0]


def stepper(head):
    """`(params, hidden [D], token, cache, place) -> (logits, hidden, cache)`, one token at a time: one program."""

    def step(params, hidden, token, cache, place):
        attend = Attend(place[None], place[None, None], jnp.ones((1, 1), bool))
        out = head.apply(params, hidden[None, None], token[None, None], cache, attend)
        cache = head.commit(out.pending, None, place[None], jnp.ones(1, jnp.int32))
        return out.logits[0, 0], out.hidden[0, 0], cache

    return jax.jit(step)


def rolled_out(step, params, fused, tokens, cache, steps):
    """For each place of a row: what `steps` steps of a chain that begins behind it give, the true pairs before it."""
    for place in range(len(tokens) - 1):
        logits, hidden, cache = step(params, fused[place], tokens[place + 1], cache, jnp.int32(place))
        made, own = [(logits, hidden)], cache
        for ahead in range(place + 1, min(place + steps, len(tokens) - 1)):
            logits, hidden, own = step(params, hidden, tokens[ahead + 1], own, jnp.int32(ahead))
            made.append((logits, hidden))
        yield made


def compare(kind, studied):
    config, learner, params, lesson = studied(kind)
    head = head_of(config, learner)
    made = jax.jit(lambda p, x: [(out.logits, out.hidden) for out in unroll(head, p, x, STEPS)])(params, lesson)
    together, fused = jax.device_get((made, head.fuse(params, lesson.features)))
    document = np.asarray(lesson.batch.document)
    step, compared, worst = stepper(head), 0, 0.0
    for window, number in ((0, 0), (0, 1), (1, 0)):
        (places,) = np.nonzero(document[window] == number)
        tokens, cache = np.asarray(lesson.batch.tokens)[window, places], head.init_cache(1, 24)
        rows = rolled_out(step, params, fused[window, places], tokens, cache, STEPS)
        for place, alone in zip(places, rows, strict=False):
            for pair in zip(together, jax.device_get(alone), strict=False):
                for ours, wanted in zip(*pair, strict=True):
                    ours, known = ours[window, place], np.isfinite(wanted)
                    np.testing.assert_array_equal(np.isfinite(ours), known)
                    worst = max(worst, np.abs(ours[known] - wanted[known]).max() / np.abs(wanted[known]).max())
            compared += len(alone) == STEPS
    assert compared > 5
    return worst


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_all_places_at_once_are_each_a_roll_out(kind, studied):
    assert compare(kind, studied) < 1e-4


@pytest.mark.parametrize("fault", ["positions", "sees later steps of others", "sees across rows"])
def test_a_fault_would_be_seen(fault, studied, monkeypatch):
    def attend(lengths, positions, valid, ancestors):
        step = ancestors.shape[-1] // ancestors.shape[1] - 1
        if fault == "positions":
            positions = positions - step
        elif fault == "sees across rows":
            causal = jnp.tril(jnp.ones(ancestors.shape[1:2] * 2, bool))
            ancestors = ancestors.at[..., : len(causal)].set(causal)
        elif step:
            ancestors = ancestors.at[..., -ancestors.shape[1] :].set(ancestors[..., : ancestors.shape[1]])
        return Attend(lengths, positions, valid, ancestors)

    monkeypatch.setattr(module, "Attend", attend)
    assert compare("eagle3", studied) > 1e-3


def test_the_true_tokens_are_read(studied):
    """Step j reads the token at t + j + 1, so another one there changes its output and none before."""
    config, learner, params, lesson = studied("eagle3")
    head = head_of(config, learner)
    rolled = jax.jit(lambda lesson: [out.hidden for out in unroll(head, params, lesson, 3)])
    plain = rolled(lesson)
    tokens = lesson.batch.tokens.at[:, 6].set((lesson.batch.tokens[:, 6] + 1) % 5)
    batch = type(lesson.batch)(tokens, lesson.batch.document, lesson.batch.answer, lesson.batch.temperature)
    other = rolled(type(lesson)(batch, lesson.features, lesson.logits))
    for step in range(3):
        moved = jnp.any(plain[step] != other[step], axis=(0, 2))
        assert int(jnp.argmax(moved)) == 6 - 1 - step
