"""`draw` against the slow reference on the same random numbers, for thousands of random plans in one call."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import TokenTree, verify
from specjax._src.noise import DRAFT, RECOVER, Noise, _pick, categorical
from specjax._src.tree import chain_shape
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
    tree = TokenTree(jnp.asarray(tokens), jnp.broadcast_to(jnp.arange(K + 1) - 1, tokens.shape), jnp.asarray(valid),
                     chain_shape(K), None if one_hot else jnp.asarray(padded))
    noise = Noise(jax.vmap(jax.random.key)(jnp.arange(ROWS)), jnp.asarray(random.integers(1, 50, ROWS)), False)
    return tree, jnp.asarray(target), count, noise, draft


def slow_laws(slow, one_hot, rows):
    """The reference's `(count, following)` for each of `rows`."""
    tree, target, count, _, draft = case(one_hot)
    p, drafted = np.exp(np.asarray(target, np.float64)), np.asarray(tree.drafted)
    p /= p.sum(-1, keepdims=True)
    q = np.exp(draft.astype(np.float64))
    return [slow(drafted[row, : count[row]], None if one_hot else q[row, : count[row]], p[row, : count[row] + 1])
            for row in rows]


def _on_an_edge(law, pair):
    """Whether a number falls on the border of two tokens or blocks, up to rounding."""
    return any(reference.choose(law, tuple(pair)) != reference.choose(law, tuple(np.clip(pair + step, 0.0, 1.0)))
               for step in (np.array([1e-6, 0]), np.array([-1e-6, 0]), np.array([0, 1e-6]), np.array([0, -1e-6])))


def test_categorical():
    """The two-level inverse: its law by a grid of numbers, no weight of 0 drawn even at the ends of the interval."""
    random = np.random.default_rng(2)
    for size in (1, 2, 5, 9, 10, 37):
        weights = random.random(size).astype(np.float32) * (random.random(size) < 0.6)
        weights[random.integers(size)] = 1.0
        grid = (np.arange(500) + 0.5) / 500
        pairs = np.stack(np.meshgrid(grid, grid, indexing="ij"), -1).reshape(-1, 2).astype(np.float32)
        drawn = np.asarray(jax.jit(categorical)(pairs, jnp.broadcast_to(weights, (len(pairs), size))))
        np.testing.assert_allclose(np.bincount(drawn, minlength=size) / len(pairs), weights / weights.sum(), atol=5e-3)
        ends = np.array([[0, 0], [0, 1 - 2**-24], [1 - 2**-24, 0], [1 - 2**-24] * 2], np.float32)
        assert np.all(weights[np.asarray(categorical(ends, jnp.broadcast_to(weights, (4, size))))] > 0)


def test_categorical_never_draws_a_weight_of_zero():
    """XLA's cumulative sum rises by rounding at some weights of 0; numbers aimed at those places draw no such token."""
    random = np.random.default_rng(0)
    weights = random.random((2000, 390)).astype(np.float32) * (random.random((2000, 390)) < 0.5)
    cumulative = np.asarray(jax.jit(lambda values: jnp.cumsum(values, axis=-1))(weights))
    rises = (np.diff(cumulative, axis=1) > 0) & (weights[:, 1:] == 0)
    rows = np.any(rises, axis=1)
    if not rows.any():
        pytest.skip("this backend adds from left to right")
    place = np.argmax(rises, axis=1)
    aimed = cumulative[np.arange(2000), place] / cumulative[:, -1]
    pick = jax.jit(_pick)
    for step in range(-3, 4):
        uniform = np.clip(np.round((aimed + step * 2**-23) * 2**23) / 2**23, 0, 1 - 2**-23).astype(np.float32)
        drawn = np.asarray(pick(uniform, weights))
        assert np.all(weights[np.arange(2000), drawn] > 0)


def same(got, want, near):
    """Verdicts agree, but for at most a handful that float32 decides the other way within rounding."""
    differ = np.any(np.stack(got, -1) != np.array(want), axis=-1)
    assert not np.any(differ & ~near), np.nonzero(differ & ~near)
    assert near.sum() < 10


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_counted_draw(rule, one_hot):
    verifier, slow = RULES[rule]
    tree, target, _, noise, _ = case(one_hot)
    verdict = jax.jit(lambda *args: verifier.draw(args[0], verifier.plan(args[1], args[2])))(noise, tree, target)
    uniform, pairs = np.asarray(noise.accept(), np.float64), np.asarray(noise._uniforms(RECOVER, 0), np.float64)
    laws_of_rows = slow_laws(slow, one_hot, range(ROWS))
    want, near = [], []
    for row, law in enumerate(laws_of_rows):
        want.append(reference.draw_counted(law, uniform[row], tuple(pairs[row])))
        edge = np.min(np.abs(np.cumsum(law[0]) - uniform[row])) < 1e-6
        near.append(edge or _on_an_edge(law[1][want[-1][0]], pairs[row]))
    same((verdict.num_accepted, verdict.next_token), want, np.array(near))
    assert len(set(want)) > 12, "the cases are too alike to prove anything"


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("one_hot", [False, True])
def test_plan(rule, one_hot):
    """The laws themselves, to rounding, without any draw."""
    verifier, slow = RULES[rule]
    tree, target, count, _, _ = case(one_hot)
    ends, following = map(np.asarray, jax.jit(lambda *args: verifier.outcomes(verifier.plan(*args)))(tree, target))
    some = range(0, ROWS, 5)
    for row, (counted, after) in zip(some, slow_laws(slow, one_hot, some), strict=True):
        k = count[row]
        np.testing.assert_allclose(ends[row], np.pad(counted, (0, K - k)), atol=2e-6)
        reached = counted > 1e-4  # a residual that is hardly ever drawn from is mostly rounding
        np.testing.assert_allclose(following[row, : k + 1][reached], after[reached], atol=2e-3)


def test_match_draw():
    tree, target, count, noise, _ = case(True)
    noise = Noise(noise.key, noise.length, True)
    # Draft what the target will choose, or not: so that walks of every length occur.
    gumbels = np.stack([np.asarray(noise.gumbel(node, V)) for node in range(K + 1)], axis=1)
    own = np.argmax(np.asarray(target) + gumbels, axis=-1)
    agree = np.random.default_rng(0).random((ROWS, K)) < 0.7
    drafted = np.where(agree, own[:, :K], np.asarray(tree.drafted))
    drafted = np.where(np.asarray(tree.valid)[:, 1:], drafted, 0)
    tokens = jnp.concatenate([tree.tokens[:, :1], jnp.asarray(drafted, jnp.int32)], axis=1)
    tree = replace(tree, tokens=tokens)
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
    drafted = np.asarray(tree.drafted)
    kept = np.array([np.cumprod(choice[row, :k] == drafted[row, :k]).sum() for row, k in enumerate(count)], np.int32)
    np.testing.assert_array_equal(verdict.num_accepted, kept)
    np.testing.assert_array_equal(verdict.next_token, choice[np.arange(ROWS), kept])
    for verifier in (verify.match(), verify.rejection(), verify.block()):
        drawn = verifier.draw(noise, verifier.plan(tree, one_hot))
        np.testing.assert_array_equal(drawn.num_accepted, verdict.num_accepted)
        np.testing.assert_array_equal(drawn.next_token, verdict.next_token)


def test_match_accepts_drafts_drawn_with_the_shared_noise():
    """Gumbel coupling: acceptance at least (1 - TV) / (1 + TV), far above the sum of p q of independent draws."""
    random = np.random.default_rng(1)
    p, q = (np.asarray(jax.nn.softmax(jnp.asarray(random.normal(size=V)))) for _ in range(2))
    noise = Noise(jax.random.split(jax.random.key(0), 20000), jnp.full(20000, 9), True)
    same_noise = np.asarray(noise.gumbel(2, V))
    for law in (p, q):
        own = noise.draw_target(2, jnp.broadcast_to(jnp.log(law), (20000, V)))
        np.testing.assert_array_equal(own, noise.draw_draft(2, jnp.broadcast_to(jnp.log(law), (20000, V))))
        np.testing.assert_array_equal(own, np.argmax(np.log(law) + same_noise, -1))
    agree = np.mean(np.argmax(np.log(p) + same_noise, -1) == np.argmax(np.log(q) + same_noise, -1))
    distance = 0.5 * np.abs(p - q).sum()
    assert agree > (1 - distance) / (1 + distance) - 0.01
    assert agree > np.sum(p * q) + 0.1


def test_numbers_hashed_beforehand_are_the_same():
    """`prepared` saves hashes; every address gives the number it gives without, whatever the number of nodes."""
    noise = Noise(jax.random.split(jax.random.key(1), 5), jnp.arange(5) + 3, False)
    law = jax.nn.log_softmax(jax.random.normal(jax.random.key(2), (5, 40)))
    for nodes in (1, 4):
        ready = noise.prepared(nodes, jnp.bool_(True))
        np.testing.assert_array_equal(ready.accept(), noise.accept())
        np.testing.assert_array_equal(ready._uniforms(RECOVER, 0), noise._uniforms(RECOVER, 0))
        np.testing.assert_array_equal(ready.draw_next(jnp.exp(law)), noise.draw_next(jnp.exp(law)))
        for node in range(nodes):
            np.testing.assert_array_equal(ready._uniforms(DRAFT, node), noise._uniforms(DRAFT, node))
            np.testing.assert_array_equal(jax.jit(ready.draw_draft)(node, law), noise.draw_draft(node, law))
    by_row = jnp.array([0, 3, 1, 2, 3])
    np.testing.assert_array_equal(ready._uniforms(DRAFT, by_row), noise._uniforms(DRAFT, by_row))
    walk = noise.prepared(4, jnp.bool_(True), 3)
    for test in range(3):
        for prepared in (walk, ready):  # one that holds fewer numbers than it is asked for hashes them when it is
            np.testing.assert_array_equal(prepared.accept(test), noise.accept(test))
            np.testing.assert_array_equal(jax.jit(prepared.accept)(test), noise.accept(test))
    np.testing.assert_array_equal(walk._uniforms(DRAFT, by_row), noise._uniforms(DRAFT, by_row))
    np.testing.assert_array_equal(walk._uniforms(RECOVER, 0), noise._uniforms(RECOVER, 0))
    everything = np.ravel(walk.table)
    assert len(np.unique(everything)) == everything.size, "no number serves twice"
    shared = Noise(noise.key, noise.length, True)
    assert shared.prepared(4, jnp.bool_(True)) is shared


def test_children_of_a_level():
    """Child `node` of a tree takes the number its parent takes on a chain; in the match family, that of a depth."""
    noise = Noise(jax.random.split(jax.random.key(1), 5), jnp.arange(5) + 3, False)
    laws = jax.nn.log_softmax(jax.random.normal(jax.random.key(2), (5, 3, 40)))
    for prepared in (noise, noise.prepared(8, jnp.bool_(True))):
        drawn = jax.jit(prepared.draw_children)(jnp.array([1, 4, 6]), laws, 2)
        for place, node in enumerate((1, 4, 6)):
            np.testing.assert_array_equal(drawn[:, place], noise.draw_draft(node - 1, laws[:, place]))
        by_row = jnp.array([[1, 4, 6], [2, 3, 5], [1, 2, 3], [7, 6, 5], [4, 4, 1]])
        drawn = prepared.draw_children(by_row, laws, 2)
        for row in range(5):
            for place in range(3):
                want = noise.draw_draft(by_row[row, place] - 1, laws[:, place])
                assert drawn[row, place] == want[row]
    shared = Noise(noise.key, noise.length, True)
    drawn = shared.draw_children(jnp.array([4, 5, 6]), laws, 2)
    for place in range(3):
        np.testing.assert_array_equal(drawn[:, place], shared.draw_target(2, laws[:, place]))
