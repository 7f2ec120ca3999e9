"""`draw` against the slow reference on the same random numbers, for thousands of random plans in one call."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import TokenTree, verify
from specjax._src.noise import Noise
from specjax._src.verify import law as laws
from specjax._src.verify.match import greedy
from specjax.testing import reference

ROWS, K, V = 3000, 3, 5
RULES = {"rejection": (verify.rejection(), reference.rejection_law), "block": (verify.block(), reference.block_law)}


def random_law(random, *shape):
    """Log-laws float32 [..., V], a third of the tokens impossible."""
    logits = random.normal(scale=2.0, size=(*shape, V))
    logits[random.random(logits.shape) < 0.3] = -np.inf
    logits[..., 0] = np.maximum(logits[..., 0], -3.0)  # at least one is possible
    return np.array(jax.nn.log_softmax(jnp.asarray(logits, jnp.float32)))


@functools.cache
def case(one_hot: bool):
    """Targets, drafts, drafted tokens, k of the row, and noise."""
    random = np.random.default_rng(3)
    target, draft = random_law(random, ROWS, K + 1), random_law(random, ROWS, K)
    if one_hot:
        drafted = random.integers(0, V, (ROWS, K))
    else:
        drafted = np.argmax(draft + random.gumbel(size=draft.shape), axis=-1)
    count = random.integers(0, K + 1, ROWS)
    valid = np.arange(K + 1) <= count[:, None]
    tokens = np.where(valid, np.pad(drafted, ((0, 0), (1, 0))), 0).astype(np.int32)
    padded = np.pad(draft, ((0, 0), (0, 1), (0, 0)), constant_values=-np.inf)
    tree = TokenTree(jnp.asarray(tokens), jnp.arange(K + 1) - 1, jnp.asarray(valid),
                     None if one_hot else jnp.asarray(padded))
    noise = Noise(jax.vmap(jax.random.key)(jnp.arange(ROWS)), jnp.asarray(random.integers(1, 50, ROWS)), False)
    return tree, jnp.asarray(target), count, noise, draft


def same(got, want, near):
    """Verdicts agree, but for at most a handful that float32 decides the other way within rounding."""
    differ = np.any(np.stack(got, -1) != np.array(want), axis=-1)
    assert not np.any(differ & ~near), np.nonzero(differ & ~near)
    assert near.sum() < 10


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_counted_draw(rule, one_hot):
    verifier, slow = RULES[rule]
    tree, target, count, noise, draft = case(one_hot)
    verdict = jax.jit(lambda *args: verifier.draw(args[0], verifier.plan(args[1], args[2])))(noise, tree, target)
    uniform, gumbel = np.asarray(noise.accept(), np.float64), np.asarray(noise.recover(V))
    want, near = [], []
    for row in range(ROWS):
        k = count[row]
        q = None if one_hot else np.exp(draft[row, :k].astype(np.float64))
        p = np.exp(np.asarray(target[row, : k + 1], np.float64))
        law = slow(np.asarray(tree.drafted)[row, :k], q, p / p.sum(-1, keepdims=True))
        want.append(reference.draw_counted(law, uniform[row], gumbel[row]))
        near.append(np.min(np.abs(np.cumsum(law[0]) - uniform[row])) < 1e-6)
    same((verdict.num_accepted, verdict.next_token), want, np.array(near))
    assert len(set(want)) > 12, "the cases are too alike to prove anything"


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("one_hot", [False, True])
def test_plan(rule, one_hot):
    """The laws themselves, to rounding, without any draw."""
    verifier, slow = RULES[rule]
    tree, target, count, _, draft = case(one_hot)
    plan = jax.jit(verifier.plan)(tree, target)
    following = np.asarray(laws.residuals(plan))
    for row in range(0, ROWS, 10):
        k = count[row]
        q = None if one_hot else np.exp(draft[row, :k].astype(np.float64))
        p = np.exp(np.asarray(target[row, : k + 1], np.float64))
        counted, after = slow(np.asarray(tree.drafted)[row, :k], q, p / p.sum(-1, keepdims=True))
        np.testing.assert_allclose(plan.num_accepted[row], np.pad(counted, (0, K - k)), atol=2e-6)
        reached = counted > 1e-4
        np.testing.assert_allclose(following[row, : k + 1][reached], after[reached], atol=2e-3)


def test_match_draw():
    tree, target, count, noise, _ = case(True)
    noise = Noise(noise.key, noise.length, True)
    # Draft what the target will choose, or not: so that walks of every length occur.
    gumbels = np.stack([np.asarray(noise.target(node, V)) for node in range(K + 1)], axis=1)
    own = np.argmax(np.asarray(target) + gumbels, axis=-1)
    agree = np.random.default_rng(0).random((ROWS, K)) < 0.7
    drafted = np.where(agree, own[:, :K], np.asarray(tree.drafted))
    drafted = np.where(np.asarray(tree.valid)[:, 1:], drafted, 0)
    tokens = jnp.concatenate([tree.tokens[:, :1], jnp.asarray(drafted, jnp.int32)], axis=1)
    tree = TokenTree(tokens, tree.parents, tree.valid)
    verifier = verify.match()
    verdict = jax.jit(lambda *args: verifier.draw(args[0], verifier.plan(args[1], args[2])))(noise, tree, target)
    p = np.exp(np.asarray(target, np.float64))
    want = [reference.draw_match(drafted[row, : count[row]], p[row], gumbels[row]) for row in range(ROWS)]
    same((verdict.num_accepted, verdict.next_token), want, np.zeros(ROWS, bool))
    assert {kept for kept, _ in want} == set(range(K + 1))


def test_greedy_walk():
    """At temperature 0 all three rules are the walk along the argmax, the lowest id of equals."""
    tree, target, count, noise, _ = case(True)
    logits = jnp.round(target)  # full of ties
    verdict = jax.jit(greedy)(tree, logits)
    choice = np.argmax(np.asarray(logits), axis=-1)
    one_hot = jnp.where(jax.nn.one_hot(choice, V) > 0, 0.0, -jnp.inf)
    for row in range(ROWS):
        agree = np.cumprod(choice[row, : count[row]] == np.asarray(tree.drafted)[row, : count[row]])
        assert verdict.num_accepted[row] == agree.sum()
        assert verdict.next_token[row] == choice[row, agree.sum()]
    for verifier in (verify.match(), verify.rejection(), verify.block()):
        drawn = verifier.draw(noise, verifier.plan(tree, one_hot))
        np.testing.assert_array_equal(drawn.num_accepted, verdict.num_accepted)
        np.testing.assert_array_equal(drawn.next_token, verdict.next_token)


def test_match_accepts_drafts_drawn_with_the_shared_noise():
    """Gumbel coupling: acceptance at least (1 - TV) / (1 + TV), far above the sum of p q of independent draws."""
    random = np.random.default_rng(1)
    p, q = (np.asarray(jax.nn.softmax(jnp.asarray(random.normal(size=V)))) for _ in range(2))
    noise = Noise(jax.random.split(jax.random.key(0), 20000), jnp.full(20000, 9), True)
    same_noise = np.asarray(noise.draft(2, V))
    np.testing.assert_array_equal(same_noise, noise.target(2, V))
    agree = np.mean(np.argmax(np.log(p) + same_noise, -1) == np.argmax(np.log(q) + same_noise, -1))
    distance = 0.5 * np.abs(p - q).sum()
    assert agree > (1 - distance) / (1 + distance) - 0.01
    assert agree > np.sum(p * q) + 0.1
