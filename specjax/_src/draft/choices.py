"""Which static tree: the published ones, and the best one for acceptance that was measured."""

from __future__ import annotations

import functools
import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np

from specjax._src import checks
from specjax._src.tree import Path


def _paths(text: str) -> tuple[Path, ...]:
    return tuple(tuple(int(rank) for rank in word) for word in text.split())


MEDUSA_PATHS = _paths(
    "0 00 1 01 2 000 10 02 3 03 4 04 20 05 001 5 06 6 07 010 11 7 08 002 30 09 8 9 100 020 12 003 40 21 004 005 0000 "
    "011 006 030 50 13 007 008 009 60 040 14 70 012 200 31 22 80 050 15 101 021 90 060 0001 16 070")
"""The 63 nodes that Medusa publishes for its heads on Vicuna-7B (arXiv:2401.10774); depth 4."""

EAGLE_PATHS = _paths("0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001")
"""The 25 nodes that EAGLE-1 publishes (arXiv:2401.15077); depth 5."""


def best_paths(accuracies: Any, num_nodes: int) -> tuple[Path, ...]:
    """The static tree that keeps most, where the ranks of each depth hit independently of the path.

    The gain of a node is the product of the rates on its path, and a node never gains more than its parent, so the best
    tree of a size is the greedy one (as Medusa builds its own from the accuracies of its heads).

    Args:
      accuracies: float [D, R], how often the token of rank `r` at depth `d + 1` is the target's.
      num_nodes: N, the root included.

    Returns:
      `num_nodes - 1` paths, in the order of their gains.

    Raises:
      ValueError: if rates are no rates, or the tree has no room for so many nodes.
    """
    rates, num_nodes = np.asarray(accuracies, np.float64), checks.whole("num_nodes", num_nodes, 1)
    if rates.ndim != 2 or not rates.size or not np.all((rates >= 0) & (rates <= 1)):
        raise ValueError(f"accuracies must be rates [depth, rank] in 0 .. 1, got shape {rates.shape}")
    queue: list[tuple[float, Path]] = [(-float(rate), (rank,)) for rank, rate in enumerate(rates[0])]
    heapq.heapify(queue)
    chosen: list[Path] = []
    while queue and len(chosen) < num_nodes - 1:
        gain, path = heapq.heappop(queue)
        chosen.append(path)
        for rank, rate in enumerate(rates[len(path)] if len(path) < len(rates) else ()):
            heapq.heappush(queue, (gain * float(rate), (*path, rank)))
    if len(chosen) < num_nodes - 1:
        raise ValueError(f"accuracies of {rates.shape[0]} depths and {rates.shape[1]} ranks leave room for "
                         f"{len(chosen)} nodes below the root, num_nodes={num_nodes} asks for {num_nodes - 1}")
    return tuple(chosen)


def sequoia_paths(accepted: Sequence[float], num_nodes: int, depth: int) -> tuple[Path, ...]:
    """The static tree that keeps most where the `b`-th child of a node is the first to be accepted with a known rate,
    whatever the node (dynamic programme of Sequoia, arXiv:2402.12374).

    Args:
      accepted: `accepted[b]`, the probability that child `b` is accepted and none before it was.
      num_nodes: N, the root included.
      depth: most edges from the root to a leaf.

    Returns:
      `num_nodes - 1` paths.

    Raises:
      ValueError: if the rates are no rates, or the tree has no room for so many nodes.
    """
    num_nodes, depth = checks.whole("num_nodes", num_nodes, 1), checks.whole("depth", depth, 1)
    rates = tuple(float(rate) for rate in accepted)
    if not rates or not all(rate >= 0 for rate in rates) or sum(rates) > 1 + 1e-9:
        raise ValueError(f"accepted must be rates that sum to 1 at most, got {rates}")

    @functools.cache
    def best(nodes: int, levels: int, children: int) -> tuple[float, int]:
        """Expected tokens of a subtree of exactly so many nodes with at most so many levels below its top and at most
        so many children there, and the nodes of the last child's subtree."""
        if nodes == 1:
            return 1.0, 0
        if levels == 0 or children == 0:
            return float("-inf"), 0
        options = [(best(nodes, levels, children - 1)[0], 0)]
        for last in range(1, nodes):
            rest = best(nodes - last, levels, children - 1)[0]
            below = best(last, levels - 1, len(rates))[0]
            if below > 0.0:  # a rate of 0 would turn what does not fit into no number
                options.append((rest + rates[children - 1] * below, last))
        return max(options)

    if best(num_nodes, depth, len(rates))[0] == float("-inf"):
        raise ValueError(f"a tree of depth {depth} with {len(rates)} children per node has no room for {num_nodes} "
                         "nodes: ask for fewer, or for more depth")
    paths: list[Path] = []

    def lay_out(top: Path, nodes: int, levels: int, children: int) -> None:
        while nodes > 1:
            last = best(nodes, levels, children)[1]
            if last:
                paths.append((*top, children - 1))
                lay_out((*top, children - 1), last, levels - 1, len(rates))
            nodes, children = nodes - last, children - 1

    lay_out((), num_nodes, depth, len(rates))
    return tuple(sorted(paths, key=lambda path: (len(path), path)))
