"""Each loss beside a slow reference that goes from place to place, and its gradient."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from scipy.special import log_softmax, softmax

from specjax.models import Decoder, from_nnx
from specjax.models.heads import MODULES, head_from_nnx
from specjax.training.agreement import figures, tally
from specjax.training.lesson import packed_attend
from specjax.training.losses.medusa import medusa_logits
from specjax.training.unroll import unroll

KEY = jax.random.key(5)


def scores(learner, params, lesson):
    return jax.device_get(jax.jit(learner.score)(params, lesson, KEY))


def places(lesson, distance):
    """`(window, place)` of all places whose token `distance` further on was written by the target in the same row."""
    batch = jax.device_get(lesson.batch)
    for window, place in np.ndindex(batch.tokens.shape):
        there = place + distance
        if there >= batch.tokens.shape[1] or batch.document[window, place] < 0:
            continue
        if batch.document[window, there] == batch.document[window, place] and batch.answer[window, there]:
            yield window, place


def mean(values):
    values = list(values)
    assert len(values) > 3
    return float(np.mean(values))


def whole_vocabulary(config, learner):
    return head_from_nnx(MODULES[config.kind][1](learner.config, rngs=nnx.Rngs(0)))[0]


@pytest.mark.parametrize("soft", [False, True])
def test_medusa(soft, studied):
    config, learner, params, lesson = studied("medusa", soft=soft)
    heads = whole_vocabulary(config, learner)
    logits = np.asarray(medusa_logits(heads, params, lesson), np.float64)
    law, tokens = softmax(np.asarray(lesson.logits, np.float64), axis=-1), np.asarray(lesson.batch.tokens)
    want, right = 0.0, []
    for k in range(1, 4):
        guessed, here = log_softmax(logits[:, :, k - 1], axis=-1), list(places(lesson, k + 1))
        if soft:
            want += 0.8**k * mean(-(law[w, t + k] * guessed[w, t]).sum() for w, t in here)
        else:
            want += 0.8**k * mean(-guessed[w, t, tokens[w, t + k + 1]] for w, t in here)
        right.append(mean(law[w, t + k].argmax() == guessed[w, t].argmax() for w, t in here))
    made = scores(learner, params, lesson)
    np.testing.assert_allclose(made.loss, want, rtol=1e-5)
    np.testing.assert_allclose(made.accuracy, right, rtol=1e-5)


def test_eagle(studied):
    config, learner, params, lesson = studied("eagle", noise=0.3)
    head = whole_vocabulary(config, learner)
    feature = np.asarray(lesson.features["hidden"], np.float64)
    noise = jax.random.uniform(KEY, feature.shape, jnp.float32, -0.3, 0.3)
    (out,) = jax.jit(lambda feature: list(unroll(head, params, lesson, 1, feature)))(lesson.features["hidden"] + noise)
    guessed, q = np.asarray(out.hidden, np.float64), log_softmax(np.asarray(out.logits, np.float64), axis=-1)
    p, here = softmax(np.asarray(lesson.logits, np.float64), axis=-1), list(places(lesson, 2))

    def smooth(x):
        return np.where(np.abs(x) < 1, 0.5 * x * x, np.abs(x) - 0.5).mean()

    features = mean(smooth(guessed[w, t] - feature[w, t + 1]) for w, t in here)
    laws = mean(-(p[w, t + 1] * q[w, t]).sum() for w, t in here)
    made = scores(learner, params, lesson)
    np.testing.assert_allclose(made.loss, features + 0.1 * laws, rtol=1e-5)
    np.testing.assert_allclose([made.parts["feature"], made.parts["law"]], [features, laws], rtol=1e-5)
    still = studied("eagle", noise=0.0)
    assert abs(scores(still[1], params, lesson).loss - made.loss) > 1e-4


def test_eagle3(studied):
    """The reference scores the whole vocabulary, -inf outside the draft's, and restricts p by hand."""
    config, learner, params, lesson = studied("eagle3")
    head = whole_vocabulary(config, learner)
    inside = np.zeros(lesson.logits.shape[-1], bool)
    inside[np.asarray(params["draft_ids"])] = True
    p = softmax(np.asarray(lesson.logits, np.float64), axis=-1)
    want, right, dropped = 0.0, [], 0
    steps = jax.jit(lambda lesson: [out.logits for out in unroll(head, params, lesson, 3)])(lesson)
    for step, logits in enumerate(steps):
        q = log_softmax(np.asarray(logits, np.float64), axis=-1)
        costs, hits = [], []
        for w, t in places(lesson, step + 2):
            law = p[w, t + step + 1]
            hits.append(law.argmax() == q[w, t].argmax())
            if inside[law.argmax()]:
                kept = np.where(inside, law, 0) / law[inside].sum()
                costs.append(-(kept[inside] * q[w, t][inside]).sum())
            else:
                dropped += 1
        want += 0.8**step * mean(costs)
        right.append(mean(hits))
    assert dropped > 3
    made = scores(learner, params, lesson)
    np.testing.assert_allclose(made.loss, want, rtol=1e-5)
    np.testing.assert_allclose(made.accuracy, right, rtol=1e-5)


def test_draft(studied, target):
    config, learner, params, lesson = studied("draft", greedy_kl_weight=0.25)
    model = from_nnx(Decoder(learner.config, rngs=nnx.Rngs(0)))[0]
    batch = jax.device_get(lesson.batch)
    student = model.apply(params, lesson.batch.tokens, None, packed_attend(lesson.batch.document)).logits
    student, teacher = np.asarray(student, np.float64), np.asarray(lesson.logits, np.float64)
    costs = []
    for w, t in places(lesson, 1):
        heat = batch.temperature[w, t] or 1.0
        p, q = softmax(teacher[w, t] / heat), softmax(student[w, t] / heat)
        kl, tv = (p * np.log(p / q)).sum(), 0.5 * np.abs(p - q).sum()
        hard = -np.log(q[p.argmax()])
        costs.append(0.5 * kl + 2.0 * tv if batch.temperature[w, t] else 0.25 * kl + hard)
    np.testing.assert_allclose(scores(learner, params, lesson).loss, mean(costs), rtol=1e-5)


@pytest.mark.parametrize("kind", ["medusa", "eagle", "eagle3", "draft"])
def test_gradients_are_finite_and_reach_every_weight(kind, studied):
    config, learner, params, lesson = studied(kind)
    moving = {name: params[name] for name in learner.trained}
    grads = jax.jit(jax.grad(lambda moving: learner.score({**params, **moving}, lesson, KEY).loss))(moving)
    for path, leaf in jax.tree_util.tree_leaves_with_path(grads):
        assert bool(jnp.isfinite(leaf).all()) and bool(jnp.any(leaf != 0)), jax.tree_util.keystr(path)


def test_chains_are_tallied_as_a_decoder_would_meet_them(studied):
    """Guesses that are the target's own, but for some: counted by hand."""
    _, _, _, lesson = studied("medusa", soft=False)
    late = jnp.arange(lesson.batch.tokens.shape[1]) >= 3  # as with a prompt of three tokens
    batch = dataclasses.replace(lesson.batch, answer=lesson.batch.answer & late)
    lesson = dataclasses.replace(lesson, batch=batch)
    wanted = np.asarray(jnp.argmax(lesson.logits, -1))
    padded = np.pad(wanted, ((0, 0), (0, 3)))
    guesses = np.stack([padded[:, j + 1 : j + 1 + wanted.shape[1]] for j in range(3)], axis=-1)
    rng = np.random.default_rng(0)
    wrong = rng.random(guesses.shape) < 0.4
    ranked = np.stack([guesses + wrong, np.where(wrong, guesses, guesses + 1)], axis=-1)  # what is wrong comes second
    found = figures(jax.tree.map(jnp.asarray, tally(jnp.asarray(ranked), lesson)))
    accuracy = [mean(not wrong[w, t, j] for w, t in places(lesson, j + 2)) for j in range(3)]
    np.testing.assert_allclose(found["accuracy"], accuracy, atol=1e-4)
    np.testing.assert_allclose(found["ranks"], [[share, 1 - share] for share in accuracy], atol=1e-4)
    temperature = np.asarray(lesson.batch.temperature)
    two, three, four = (set(places(lesson, distance)) for distance in (2, 3, 4))
    answered = two & three & four  # none begins in a prompt
    whole = [(w, t) for w, t in sorted(answered) if temperature[w, t] == 0]
    assert len(answered) < len(four)
    lengths = [next((j for j in range(3) if wrong[w, t, j]), 3) for w, t in whole]
    assert found["accepted_length"] == pytest.approx(1 + np.mean(lengths), abs=1e-3) and len(whole) > 1
