"""Verifiers of trees against the slow reference: the law of a round, and `draw` on the same random numbers."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_draw_reference import _on_an_edge

from specjax import TokenTree, verify
from specjax._src.noise import RECOVER, Noise
from specjax._src.tree import full_paths, paths_shape
from specjax._src.verify.match import greedy
from specjax.testing import reference, tree_reference

ROWS, V = 300, 6
SHAPE = paths_shape([*full_paths(3, 2), (1, 0, 0), (1, 0, 1), (2, 1, 0)])
N = SHAPE.num_nodes
RULES = {
    "match": (verify.match(), "chosen"), "specinfer": (verify.specinfer(), "independent"),
    "without_replacement": (verify.without_replacement(), "without_replacement"),
    "hybrid": (verify.hybrid(), "hybrid"), "traversal": (verify.traversal(), "without_replacement")}


def random_laws(random):
    """Float32 [ROWS, N, V], a third of the tokens impossible."""
    logits = random.normal(scale=1.5, size=(ROWS, N, V))
    logits[random.random(logits.shape) < 0.3] = -np.inf
    logits[..., 0] = np.maximum(logits[..., 0], -2.0)
    return np.exp(np.array(jax.nn.log_softmax(jnp.asarray(logits, jnp.float32)), np.float64))


def random_parents(random):
    """A topology for each row: levels of 3, 4 and 5 nodes, 3 children at most, parents in order within a level."""
    parents = np.full((ROWS, N), -1)
    for row in parents:
        for above, first, last in ((range(1), 1, 4), (range(1, 4), 4, 10), (range(4, 10), 10, N)):
            room = [node for node in above for _ in range(3)]
            row[first:last] = np.sort(random.choice(room, last - first, replace=False))
    return parents


@functools.cache
def case(siblings, dynamic=False):
    """Trees, targets p, draft laws q, noise. Rows have fewer nodes than the topology, some none, one row is dead."""
    random = np.random.default_rng(5)
    p, q = random_laws(random), random_laws(random)
    parents = random_parents(random) if dynamic else np.broadcast_to(np.array(SHAPE.parents), (ROWS, N))
    tokens, drawn = np.zeros((ROWS, N), np.int32), np.zeros((ROWS, N), bool)
    valid = random.random((ROWS, N)) < random.choice([0.3, 0.8, 1.0], (ROWS, 1))
    valid[:, 0] = True
    for row in range(ROWS):
        for node in range(N):
            kids = np.nonzero(parents[row] == node)[0]
            chosen = {"chosen": len(kids), "hybrid": len(kids) - 1}.get(siblings, 0)
            left = q[row, node].copy()
            for place, kid in enumerate(kids):
                if place < chosen:
                    tokens[row, kid] = np.argsort(-q[row, node])[place] if siblings == "hybrid" else random.integers(V)
                elif left.sum() > 0:
                    tokens[row, kid], drawn[row, kid] = random.choice(V, p=left / left.sum()), True
                else:
                    valid[row, kid] = False
                if siblings != "independent":
                    left[tokens[row, kid]] = 0.0
                if siblings == "hybrid" and place < chosen:
                    q[row, node] = left / left.sum() if left.sum() > 0 else left
    for node in range(1, N):
        valid[:, node] &= valid[np.arange(ROWS), parents[:, node]]
    valid[7] = False
    with np.errstate(divide="ignore"):
        laws = None if siblings == "chosen" else jnp.asarray(np.log(q), jnp.float32)
        target = jnp.asarray(np.log(p), jnp.float32)
    shape = SHAPE._replace(parents=None, ranks=None) if dynamic else SHAPE
    tokens = np.where(valid, tokens, 0)
    tree = TokenTree(jnp.asarray(tokens), jnp.asarray(parents, jnp.int32), jnp.asarray(valid), shape, laws,
                     jnp.asarray(drawn) if siblings == "hybrid" else None)
    noise = Noise(jax.vmap(jax.random.key)(jnp.arange(ROWS)), jnp.asarray(random.integers(1, 50, ROWS)), False)
    branches = [tree_reference.grow(tokens[row], parents[row], valid[row], drawn[row], p[row], q[row])
                for row in range(ROWS)]
    return tree, target, noise, branches


def kinds():
    return [pytest.param(name, dynamic, id=f"{name}-{'dynamic' if dynamic else 'static'}")
            for name in RULES for dynamic in (False, True) if not (dynamic and RULES[name][0].static_only)]


def drawn_by(verifier, *arguments):
    verdict = jax.jit(lambda noise, tree, target: verifier.draw(noise, verifier.plan(tree, target)))(*arguments)
    return jax.tree.map(np.asarray, verdict)


@pytest.mark.parametrize(("name", "dynamic"), kinds())
def test_law(name, dynamic):
    verifier, siblings = RULES[name]
    tree, target, _, branches = case(siblings, dynamic)
    ends, following = map(np.asarray, jax.jit(lambda *args: verifier.outcomes(verifier.plan(*args)))(tree, target))
    alive = np.asarray(tree.valid)[:, 0]
    for row in np.nonzero(alive)[0]:
        rule = tree_reference.RULES.get(name)
        want, after = tree_reference.walk_law(rule, branches[row], N) if rule else tree_reference.traversal_law(
            branches[row], N)
        np.testing.assert_allclose(ends[row], want, atol=3e-6)
        reached = want > 1e-3  # a residual that is hardly ever drawn from is mostly rounding
        np.testing.assert_allclose(following[row][reached], after[reached], atol=2e-3)


@pytest.mark.parametrize(("name", "dynamic"), kinds())
def test_draw(name, dynamic):
    verifier, siblings = RULES[name]
    tree, target, noise, branches = case(siblings, dynamic)
    noise = replace(noise, shared=verifier.shared_noise)
    ready = noise.prepared(N, jnp.bool_(True), SHAPE.depth if verifier.walks else 1)
    verdict = drawn_by(verifier, ready, tree, target)
    tests = np.stack([np.asarray(noise.accept(depth), np.float64) for depth in range(SHAPE.depth)], axis=1)
    gumbels = np.stack([np.asarray(noise.gumbel(depth, V)) for depth in range(SHAPE.depth + 1)], axis=1)
    pairs = np.asarray(noise._uniforms(RECOVER, 0), np.float64)
    near, seen = 0, set()
    for row in np.nonzero(np.asarray(tree.valid)[:, 0])[0]:
        path, own, unsure = _slow_draw(name, branches[row], tests[row], pairs[row], gumbels[row])
        got = verdict.path[row, : len(path)].tolist(), int(verdict.num_accepted[row]), int(verdict.next_token[row])
        seen.add(got[1])
        near += unsure
        assert unsure or got == (path, len(path) - 1, own), row
    assert near < 5 and len(seen) >= SHAPE.depth, (near, seen)


def _slow_draw(name, branch, tests, pair, gumbels):
    """Path, next token, and whether rounding may decide otherwise."""
    if name == "match":
        return *tree_reference.draw_own(branch, gumbels), False
    if name == "traversal":
        law = tree_reference.traversal_law(branch, N)
        node, own = reference.draw_counted(law, tests[0], tuple(pair))
        unsure = np.min(np.abs(np.cumsum(law[0]) - tests[0])) < 1e-6 or _on_an_edge(law[1][node], pair)
        return _path(branch, node), own, unsure
    path, own, margin = tree_reference.draw_walk(tree_reference.RULES[name], branch, tests, tuple(pair))
    after = tree_reference.RULES[name](_find(branch, path[-1]))[1]
    return path, own, margin < 1e-6 or _on_an_edge(after, pair)


def _path(branch, node):
    if branch.node == node:
        return [node]
    below = [_path(child, node) for child in branch.children]
    return next(([branch.node, *path] for path in below if path), [])


def _find(branch, node):
    if branch.node == node:
        return branch
    return next((found for child in branch.children if (found := _find(child, node))), None)


@pytest.mark.parametrize("dynamic", [False, True])
def test_greedy_and_one_hot_targets(dynamic):
    """At temperature 0 the greedy walk is what every rule does, in a batch with sampled rows too."""
    tree, target, noise, branches = case("chosen", dynamic)
    choice = np.argmax(np.asarray(target), axis=-1)
    one_hot = jnp.where(jax.nn.one_hot(choice, V) > 0, 0.0, -jnp.inf)
    verdict = jax.tree.map(np.asarray, jax.jit(greedy)(tree, target))
    alive = np.asarray(tree.valid)[:, 0]
    kept = [max(len(_path(branch, node)) - 1 for node in range(N) if _follows(branch, node, choice[row]))
            for row, branch in enumerate(branches)]
    np.testing.assert_array_equal(verdict.num_accepted[alive], np.array(kept)[alive])
    assert set(kept) == set(range(SHAPE.depth + 1))
    last = verdict.path[np.arange(ROWS), verdict.num_accepted]
    np.testing.assert_array_equal(verdict.next_token, choice[np.arange(ROWS), last])
    rules = [verify.match(), verify.without_replacement(), verify.hybrid(), verify.typical(0.09, 0.3)]
    for verifier in rules if dynamic else [*rules, verify.traversal()]:
        drawn = drawn_by(verifier, noise, tree, one_hot)
        lost = alive & (verdict.num_accepted != drawn.num_accepted)
        # Where a token stands twice below one node, a walk goes to the first, the greedy one to where it comes farther.
        assert not np.any(lost & ~_twice(tree)) and lost.mean() < 0.1
        np.testing.assert_array_equal(drawn.next_token[~lost & alive],
                                      verdict.next_token[~lost & alive])


def _follows(branch, node, choice):
    """Whether `node` is there, and every token on the way to it is the choice of its parent."""
    path = _path(branch, node)
    tokens = [_find(branch, one).token for one in path]
    return bool(path) and all(choice[above] == token for above, token in zip(path, tokens[1:], strict=False))


def _twice(tree):
    """Rows in which some token stands twice below one node."""
    tokens, parents, valid = (np.asarray(leaf) for leaf in (tree.tokens, tree.parents, tree.valid))
    place = np.where(valid, parents * V + tokens, -np.arange(N) - V)
    return np.array([len(set(row[1:])) < N - 1 for row in place])


@pytest.mark.parametrize("dynamic", [False, True])
def test_typical_acceptance(dynamic):
    tree, target, noise, branches = case("independent", dynamic)
    verifier = verify.typical(0.2, 0.6)
    verdict = drawn_by(verifier, noise, tree, target)
    pairs = np.asarray(noise._uniforms(RECOVER, 0), np.float64)
    seen = set()
    for row in np.nonzero(np.asarray(tree.valid)[:, 0])[0]:
        node = tree_reference.typical(branches[row], 0.2, 0.6)
        path = _path(branches[row], node)
        assert verdict.path[row, : len(path)].tolist() == path and verdict.num_accepted[row] == len(path) - 1
        p = _find(branches[row], node).p
        assert _on_an_edge(p, pairs[row]) or verdict.next_token[row] == reference.choose(p, tuple(pairs[row]))
        seen.add(len(path))
    assert seen == set(range(1, SHAPE.depth + 2))


def test_typical_acceptance_wants_its_numbers():
    for wrong in [(1.0, 0.3), (-0.1, 0.3), (float("nan"), 0.3), (0.1, -0.3), (0.1, float("nan"))]:
        with pytest.raises(ValueError, match="typical needs 0 <= epsilon < 1 and delta >= 0"):
            verify.typical(*wrong)
    assert verify.typical(0.09, 0.3) is verify.typical(epsilon=0.09, delta=0.3)
    assert not verify.typical(0.09, 0.3).lossless and verify.typical.__doc__.startswith("Lossy")
