"""Topologies, and what a tree says of itself, against plain Python: static parents, dynamic ones, chains."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import TokenTree, draft
from specjax._src.tree import Shape, chain, chain_shape, full_paths, paths_shape

RAGGED = [(0,), (1,), (0, 0), (1, 0), (1, 1), (0, 0, 0)]


@pytest.mark.parametrize(("paths", "words"), [
    ([], "at least one path"),
    ([(0,), (0,)], "names some node twice"),
    ([(0,), [0]], "names some node twice"),
    ([()], "ranks, 0 and up"),
    ([(0,), (-1,)], "ranks, 0 and up"),
    ([(0,), (1, 0)], r"\(1, 0\) hangs in the air: add its parent \(1,\)"),
    ([0, 1], "paths of whole numbers"),
    ([(0,), (0.5,)], "paths of whole numbers"),
    (["0"], "paths of whole numbers"),
])
def test_paths_that_make_no_tree(paths, words):
    with pytest.raises(ValueError, match=words):
        paths_shape(paths)


def test_topology_of_paths():
    """Level by level, siblings by rank, whatever the order in which the paths are written."""
    want = Shape(7, 3, 2, (-1, 0, 0, 1, 2, 2, 3), (-1, 0, 1, 0, 0, 1, 0))
    assert paths_shape(RAGGED) == paths_shape(RAGGED[::-1]) == paths_shape(iter(map(list, RAGGED))) == want
    assert paths_shape(RAGGED) is paths_shape(RAGGED), "equal paths give one object"
    assert want.num_speculative_tokens == 3 and not want.is_chain
    assert paths_shape([(0,), (0, 0), (0, 0, 0)]) == chain_shape(3) and chain_shape(3).is_chain
    skipping = paths_shape([(2,), (5,), (5, 1)])
    assert (skipping.parents, skipping.ranks) == ((-1, 0, 0, 2), (-1, 2, 5, 1))
    assert chain_shape(0).is_chain and chain_shape(0).depth == 0
    assert not Shape(4, 3).is_chain, "a chain whose parents are data is a tree"


def test_full_paths():
    assert full_paths(2, 1) == [(0,), (1,), (0, 0), (1, 0)] and full_paths() == []
    shape = paths_shape(full_paths(3, 2, 1))
    assert (shape.num_nodes, shape.depth, shape.branching) == (1 + 3 + 6 + 6, 3, 3)
    assert draft.full_paths is full_paths


def trees(parents, depth, branching, seed=0, rows=40):
    """The static tree of one topology (or None) and the dynamic one: of the same parents in all rows, or by row."""
    random = np.random.default_rng(seed)
    parents = np.broadcast_to(np.asarray(parents), (rows, np.shape(parents)[-1])).astype(np.int32)
    valid = random.random(parents.shape) < 0.8
    valid[:, 0] = random.random(rows) < 0.9
    for node in range(1, parents.shape[1]):
        valid[:, node] &= valid[np.arange(rows), parents[:, node]]
    tokens = np.where(valid, random.integers(0, 9, parents.shape), 0).astype(np.int32)
    arrays = [jnp.asarray(values) for values in (tokens, parents, valid)]
    dynamic = TokenTree(*arrays, Shape(parents.shape[1], depth, branching))
    same = np.all(parents == parents[0])
    one = Shape(parents.shape[1], depth, branching, tuple(parents[0].tolist()), None) if same else None
    return TokenTree(*arrays, one) if one else None, dynamic


def random_parents(seed, rows=40, nodes=9):
    """A random topology for each row, parents before children."""
    random = np.random.default_rng(seed)
    parents = np.stack([[-1, *(random.integers(0, node) for node in range(1, nodes))] for _ in range(rows)])
    lines = [[line_of(row, node) for node in range(nodes)] for row in parents]
    depth = max(len(line) - 1 for row in lines for line in row)
    return parents, depth, max(np.bincount(row[1:]).max() for row in parents)


def line_of(parents, node):
    """The nodes from the root to `node`."""
    line = [node]
    while parents[line[0]] >= 0:
        line.insert(0, parents[line[0]])
    return [int(one) for one in line]


CASES = {
    "ragged": (paths_shape(RAGGED).parents, 3, 2),
    "chain": (chain_shape(4).parents, 4, 1),
    "root alone": ((-1,), 0, 0),
    "bush": ((-1, 0, 0, 0, 0), 1, 4),
    "random": random_parents(3),
}


@pytest.mark.parametrize("name", CASES)
def test_against_plain_python(name):
    static, dynamic = trees(*CASES[name])
    for tree in (static, dynamic):
        if tree is None:
            continue
        rows, nodes = tree.tokens.shape
        parents, valid = np.asarray(tree.parents), np.asarray(tree.valid)
        lines = [[line_of(parents[row], node) for node in range(nodes)] for row in range(rows)]
        depths = np.array([[len(line) - 1 for line in row] for row in lines])
        ancestors = np.array([[[above in line for above in range(nodes)] for line in row] for row in lines])
        np.testing.assert_array_equal(np.broadcast_to(tree.depths, depths.shape), depths)
        np.testing.assert_array_equal(np.broadcast_to(tree.ancestors, ancestors.shape), ancestors)
        np.testing.assert_array_equal(tree.num_drafted, valid[:, 1:].sum(1))
        by_depth = [[np.sum(valid[row] & (depths[row] == at)) for at in range(1, tree.shape.depth + 1)]
                    for row in range(rows)]
        np.testing.assert_array_equal(tree.drafted_by_depth, np.reshape(by_depth, (rows, -1)))
        marked = np.random.default_rng(1).random(valid.shape) < 0.3
        below = [[any(marked[row, above] for above in line[:-1]) for line in lines[row]] for row in range(rows)]
        np.testing.assert_array_equal(tree.below(jnp.asarray(marked)), below)
        for node in range(nodes):
            at = jnp.full(rows, node, jnp.int32)
            places, present = map(np.asarray, tree.children(at))
            kids = [[kid for kid in range(nodes) if parents[row, kid] == node and valid[row, kid]]
                    for row in range(rows)]
            assert [places[row][present[row]].tolist() for row in range(rows)] == kids
            assert all(np.all(np.diff(row.astype(int)) <= 0) for row in present), "those that exist come first"
            np.testing.assert_array_equal(tree.is_inner(at), [bool(row) for row in kids])
            padded = [lines[row][node] + [0] * (tree.shape.depth - depths[row, node]) for row in range(rows)]
            np.testing.assert_array_equal(tree.path(at), padded)


def test_a_chain_is_a_tree_with_one_branch():
    """The fast path of a chain says what the general one says."""
    root, drafted = jnp.array([5, 6, 7]), jnp.arange(9).reshape(3, 3)
    tree = chain(root, drafted, jnp.array([3, 1, 2]), jnp.array([True, True, False]))
    general = TokenTree(tree.tokens, tree.parents, tree.valid, Shape(4, 3, 1))
    assert tree.shape.is_chain and not general.shape.is_chain
    marked = jnp.asarray(np.random.default_rng(0).random((3, 4)) < 0.4)
    for ask in (lambda t: t.depths + 0 * t.tokens, lambda t: t.ancestors | jnp.zeros((3, 1, 1), bool),
                lambda t: t.drafted_by_depth, lambda t: t.num_drafted, lambda t: t.below(marked),
                *(lambda t, node=node: t.children(jnp.full(3, node)) for node in range(4)),
                *(lambda t, node=node: t.path(jnp.full(3, node)) for node in range(4))):
        jax.tree.map(np.testing.assert_array_equal, ask(tree), ask(general))
    np.testing.assert_array_equal(tree.tokens, [[5, 0, 1, 2], [6, 3, 0, 0], [0, 0, 0, 0]])
