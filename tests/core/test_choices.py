"""Static trees to choose from: the published ones, and the best ones by brute force over all trees."""

import functools
import itertools

import numpy as np
import pytest

from specjax import draft
from specjax._src.tree import paths_shape

RATES = [[0.6, 0.2, 0.1], [0.5, 0.25, 0.05], [0.4, 0.3, 0.0]]


def test_published_trees():
    medusa, eagle = paths_shape(draft.MEDUSA_PATHS), paths_shape(draft.EAGLE_PATHS)
    assert (len(draft.MEDUSA_PATHS), medusa.num_nodes, medusa.depth, max(medusa.ranks)) == (63, 64, 4, 9)
    assert (len(draft.EAGLE_PATHS), eagle.num_nodes, eagle.depth, max(eagle.ranks)) == (25, 26, 5, 3)
    for paths in (draft.MEDUSA_PATHS, draft.EAGLE_PATHS):
        assert all(len(path) == 1 or path[:-1] in paths for path in paths)
        assert all(path[-1] == 0 or (*path[:-1], path[-1] - 1) in paths for path in paths), "a better rank is left out"


@functools.cache
def every_tree(size, depth, ranks):
    """All sets of `size` paths that hold their prefixes."""
    if size == 0:
        return {frozenset()}
    grown = set()
    for tree in every_tree(size - 1, depth, ranks):
        for above in [(), *tree]:
            if len(above) < depth:
                grown |= {tree | {(*above, rank)} for rank in range(ranks) if (*above, rank) not in tree}
    return grown


def gain(tree, rates):
    return sum(np.prod([rates[depth][rank] for depth, rank in enumerate(path)]) for path in tree)


@pytest.mark.parametrize("rates", [RATES, [[0.2, 0.7], [0.9, 0.1]], [[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]])
def test_best_paths(rates):
    """No tree of the size gains more, whether or not a row falls."""
    depth, ranks = np.shape(rates)
    for nodes in range(1, 7):
        if nodes - 1 > sum(ranks**level for level in range(1, depth + 1)):
            break
        paths = draft.best_paths(rates, nodes)
        assert len(paths) == nodes - 1 and (not paths or paths_shape(paths).num_nodes == nodes)
        best = max(gain(tree, rates) for tree in every_tree(nodes - 1, depth, ranks))
        assert gain(paths, rates) == pytest.approx(best, abs=1e-12)
        gains = [gain([path], rates) for path in paths]
        assert gains == sorted(gains, reverse=True)


def kept(tree, accepted):
    """Expected tokens of a round, the target's own included: a node's children are asked in their order."""
    below = {path: [other for other in tree if other[:-1] == path and other] for path in [(), *tree]}

    def count(path):
        return 1.0 + sum(accepted[child[-1]] * count(child) for child in below[path])

    return count(())


@pytest.mark.parametrize("accepted", [[0.5, 0.3, 0.1], [0.9], [0.6, 0.0], [0.34, 0.33, 0.33]])
def test_sequoia_paths(accepted):
    for depth, nodes in itertools.product((1, 2, 3), range(1, 7)):
        trees = list(every_tree(nodes - 1, depth, len(accepted)))
        if not trees:
            with pytest.raises(ValueError, match=f"no room for {nodes} nodes"):
                draft.sequoia_paths(accepted, nodes, depth)
            continue
        paths = draft.sequoia_paths(accepted, nodes, depth)
        assert len(set(paths)) == nodes - 1 and max(map(len, paths), default=0) <= depth
        assert frozenset(paths) in set(trees), "a prefix is missing"
        assert kept(paths, accepted) == pytest.approx(max(kept(tree, accepted) for tree in trees), abs=1e-12)


def test_trees_of_the_usual_size():
    """64 nodes from plausible rates, within the blink of an eye, and better than those published for other models."""
    accepted = [0.62, 0.16, 0.07, 0.04, 0.025, 0.015, 0.01]
    paths = draft.sequoia_paths(accepted, 64, 8)
    assert len(paths) == 63 and paths_shape(paths).depth <= 8
    assert kept(paths, accepted) > kept([path for path in draft.MEDUSA_PATHS if max(path) < 7], accepted)
    rates = np.array([accepted] * 4) * np.array([[1.0], [0.8], [0.7], [0.6]])
    assert gain(draft.best_paths(rates, 64), rates) >= gain([p for p in draft.MEDUSA_PATHS if max(p) < 7], rates)


@pytest.mark.parametrize(("bad", "words"), [
    (lambda: draft.best_paths([0.5, 0.2], 3), r"\[depth, rank\]"),
    (lambda: draft.best_paths(np.zeros((2, 0)), 3), r"shape \(2, 0\)"),
    (lambda: draft.best_paths([[1.5]], 2), "in 0 .. 1"),
    (lambda: draft.best_paths([[np.nan]], 2), "in 0 .. 1"),
    (lambda: draft.best_paths([[0.5], [0.5]], 4), "room for 2 nodes below the root, num_nodes=4 asks for 3"),
    (lambda: draft.sequoia_paths([], 3, 2), "sum to 1 at most"),
    (lambda: draft.sequoia_paths([0.7, 0.7], 3, 2), "sum to 1 at most"),
    (lambda: draft.sequoia_paths([-0.1], 3, 2), "sum to 1 at most"),
    (lambda: draft.sequoia_paths([np.nan], 3, 2), "sum to 1 at most"),
    (lambda: draft.sequoia_paths([0.5, 0.2], 4, 1), "depth 1 with 2 children per node has no room for 4 nodes"),
])
def test_refusals(bad, words):
    with pytest.raises(ValueError, match=words):
        bad()
