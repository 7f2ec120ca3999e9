"""The training-time test at all places at once is, place by place, a roll-out with the head's own cache."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import Attend
from specjax.models.heads import MODULES, head_from_nnx
from flax import nnx

from specjax.training import unroll as module
from specjax.training.unroll import unroll

STEPS = 4


def head_of(config, learner):
    return head_from_nnx(MODULES[config.kind][1](learner.config, rngs=nnx.Rngs(0)))[0]


def rolled_out(head, params, fused, tokens, place, steps):
    """`[logits, hidden]` of each step of one chain behind `place`, as a decoder asks for them."""
    cache = head.init_cache(1, place + 1 + steps)
    count, made = place + 1, []
    attend = Attend(jnp.zeros(1, jnp.int32), jnp.arange(count)[None], jnp.ones((1, count), bool))
    out = head.apply(params, fused[None, :count], tokens[None, 1 : count + 1], cache, attend)
    for step in range(steps):
        made.append((out.logits[0, -1], out.hidden[0, -1]))
        here = jnp.array([place + 1 + step], jnp.int32)
        if place + 2 + step >= len(tokens):
            break
        cache = head.commit(out.pending, None, here - out.hidden.shape[1], jnp.ones(1, jnp.int32))
        one = Attend(here, here[:, None], jnp.ones((1, 1), bool))
        out = head.apply(params, out.hidden[:, -1:], tokens[None, place + 2 + step : place + 3 + step], cache, one)
    return made


def compare(kind, studied):
    config, learner, params, lesson = studied(kind)
    head = head_of(config, learner)
    together = list(unroll(head, params, lesson, STEPS))
    fused = head.fuse(params, lesson.features)
    document = np.asarray(lesson.batch.document)
    compared, worst = 0, 0.0
    for window in range(len(document)):
        for number in range(document[window].max() + 1):
            (places,) = np.nonzero(document[window] == number)
            first, tokens = places[0], lesson.batch.tokens[window, places]
            for place in range(0, len(places) - 1, 2):
                alone = rolled_out(head, params, fused[window, places], tokens, place, STEPS)
                for step, (logits, hidden) in enumerate(alone):
                    out = together[step]
                    worst = max(worst, float(jnp.abs(out.hidden[window, first + place] - hidden).max()))
                    finite = jnp.isfinite(logits)
                    ours = out.logits[window, first + place]
                    np.testing.assert_array_equal(jnp.isfinite(ours), finite)
                    worst = max(worst, float(jnp.abs(jnp.where(finite, ours - logits, 0)).max()))
                    compared += step == STEPS - 1
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
    plain = list(unroll(head, params, lesson, 3))
    tokens = lesson.batch.tokens.at[:, 6].set((lesson.batch.tokens[:, 6] + 1) % 5)
    batch = type(lesson.batch)(tokens, lesson.batch.document, lesson.batch.answer, lesson.batch.temperature)
    other = list(unroll(head, params, type(lesson)(batch, lesson.features, lesson.logits), 3))
    for step in range(3):
        moved = jnp.any(plain[step].hidden != other[step].hidden, axis=(0, 2))
        assert int(jnp.argmax(moved)) == 6 - 1 - step
