"""Token trees: what a drafter proposes below the root. A chain is the tree with one branch.

Node 0 is the root, and a parent comes before its children. A verifier asks siblings in the order of their nodes, drawn
ones before chosen ones.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from specjax._src.types import Array, pytree, static

SIBLINGS = ("chosen", "one", "independent", "without_replacement", "hybrid")
"""How the children of a node come about: all chosen (q is one-hot); one child at most, drawn from q; several, each
drawn from q; several drawn from q without replacement; chosen ones and behind them one drawn from what q leaves without
them."""

Path = tuple[int, ...]


class Shape(NamedTuple):
    """The static size of a tree.

    Attributes:
      num_nodes: N, the root included.
      depth: edges from the root to the deepest node.
      branching: most children of one node.
      parents: index of each node's parent, -1 for the root, where all rows have one topology; else None.
      ranks: place of each node among what its parent's law likes best, 0 first (-1 for the root); None with `parents`.
    """

    num_nodes: int
    depth: int
    branching: int = 1
    parents: tuple[int, ...] | None = None
    ranks: tuple[int, ...] | None = None

    @property
    def num_speculative_tokens(self) -> int:
        """k: the most drafted tokens that one round can keep, which is the depth."""
        return self.depth

    @property
    def num_ranks(self) -> int:
        """How many of the likeliest tokens a node must know; 1 with `parents` None."""
        return max(self.ranks or (0,)) + 1

    @property
    def is_chain(self) -> bool:
        """Whether node `i + 1` is the only child of node `i`, known when compiled."""
        return self.parents is not None and self.branching <= 1


@functools.cache
def chain_shape(num_speculative_tokens: int) -> Shape:
    """The shape of a chain of so many drafted tokens."""
    nodes = num_speculative_tokens + 1
    return Shape(nodes, num_speculative_tokens, 1, tuple(range(-1, nodes - 1)),
                 (-1, *[0] * num_speculative_tokens))


def paths_shape(paths: Iterable[Sequence[int]]) -> Shape:
    """A static topology from paths of ranks, as Medusa and EAGLE publish theirs.

    Args:
      paths: each names one node: `(0, 2)` is the third best child of the best child of the root. Every prefix of a path
        must be a path. The order does not matter.

    Raises:
      ValueError: if there is no path, one comes twice, a rank is no whole number or negative, or a prefix is missing.
    """
    try:
        return _paths_shape(tuple(tuple(operator.index(rank) for rank in path) for path in paths))
    except TypeError:
        raise ValueError("a tree is given as paths of whole numbers, such as [(0,), (1,), (0, 0)]") from None


@functools.cache
def _paths_shape(paths: tuple[Path, ...]) -> Shape:
    if not paths:
        raise ValueError("a tree needs at least one path, such as [(0,)]; for plain decoding use drafter=None")
    known = set(paths)
    if len(known) < len(paths):
        raise ValueError(f"a tree of {len(paths)} paths names some node twice")
    for path in paths:
        if not path or min(path) < 0:
            raise ValueError(f"path {path} is no path: it must hold ranks, 0 and up")
        if len(path) > 1 and path[:-1] not in known:
            raise ValueError(f"path {path} hangs in the air: add its parent {path[:-1]} to the tree")
    ordered = [(), *sorted(known, key=lambda path: (len(path), path))]
    place = {path: index for index, path in enumerate(ordered)}
    parents = tuple(-1 if not path else place[path[:-1]] for path in ordered)
    branching = max(parents.count(node) for node in range(len(parents)))
    return Shape(len(ordered), max(map(len, paths)), branching, parents,
                 tuple(path[-1] if path else -1 for path in ordered))


def full_paths(*branches: int) -> list[Path]:
    """Paths of the tree whose nodes at depth `d` each have `branches[d]` children: `full_paths(2, 1)` is two chains."""
    level: list[Path] = [()]
    paths: list[Path] = []
    for count in branches:
        level = [(*path, rank) for path in level for rank in range(count)]
        paths += level
    return paths


class _Topology(NamedTuple):
    depths: np.ndarray
    ancestors: np.ndarray


@functools.cache
def _topology(parents: tuple[int, ...]) -> _Topology:
    """Depth of each node [N], and which nodes are its ancestors, itself included [N, N]."""
    ancestors = np.eye(len(parents), dtype=bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            ancestors[node] |= ancestors[parent]
    return _Topology(ancestors.sum(axis=1).astype(np.int32) - 1, ancestors)


@pytree
class TokenTree:
    """Proposed tokens; node 0 is the root, the last committed token.

    Attributes:
      tokens: int32 [B, N]; 0 where not valid.
      parents: int32 [B, N], index of each node's parent, -1 for the root.
      valid: bool [B, N]. The root of a live row is valid; below an invalid node all are invalid. Of drawn siblings the
        valid ones come first: the law of a later one depends on those before it.
      shape: static.
      draft_logits: float32 [B, N, V] or None. Row `i` is the normalised log-law, *after* the sampling transforms,
        from which the drawn children of node `i` were drawn (of hybrid siblings: without the chosen ones). None means
        that every token was chosen, or that the verifier judges without laws (`verify.match`).
      sampled: bool [B, N] or None, which tokens were drawn; None: all of them, or none without `draft_logits`.
    """

    tokens: Array
    parents: Array
    valid: Array
    shape: Shape = static()
    draft_logits: Array | None = None
    sampled: Array | None = None

    @property
    def drafted(self) -> Array:
        """The proposed tokens: int32 [B, N - 1]."""
        return self.tokens[:, 1:]

    @property
    def drawn(self) -> Array:
        """Which tokens were drawn from a law: bool [B, N]."""
        if self.sampled is not None:
            return self.sampled
        return jnp.full(self.valid.shape, self.draft_logits is not None)

    @property
    def depths(self) -> Array:
        """Edges from the root to each node: int32 [1 | B, N]."""
        if self.shape.parents is not None:
            return jnp.asarray(_topology(self.shape.parents).depths)[None]
        return jnp.sum(self.ancestors, axis=-1, dtype=jnp.int32) - 1

    @property
    def ancestors(self) -> Array:
        """Which nodes stand on the way from the root to each node, itself included: bool [1 | B, N, N]."""
        if self.shape.parents is not None:
            return jnp.asarray(_topology(self.shape.parents).ancestors)[None]
        reach = jnp.broadcast_to(jnp.eye(self.shape.num_nodes, dtype=bool), (*self.parents.shape, self.shape.num_nodes))
        above = self.parents
        for _ in range(self.shape.depth):
            reach |= above[..., None] == jnp.arange(self.shape.num_nodes)
            above = jnp.where(above < 0, -1, jnp.take_along_axis(self.parents, jnp.maximum(above, 0), axis=1))
        return reach

    @property
    def drafted_by_depth(self) -> Array:
        """Valid nodes at each depth from 1 on: int32 [B, depth]."""
        if self.shape.is_chain:
            return self.valid[:, 1:].astype(jnp.int32)
        level = self.depths[:, None, :] == jnp.arange(1, self.shape.depth + 1)[:, None]
        return jnp.sum(level & self.valid[:, None, :], axis=-1, dtype=jnp.int32)

    @property
    def num_drafted(self) -> Array:
        """Valid nodes below the root: int32 [B]."""
        return jnp.sum(self.valid[:, 1:], axis=1, dtype=jnp.int32)

    def below(self, marked: Array) -> Array:
        """Which nodes have a marked one [B, N] above them, themselves not counted: bool [B, N]."""
        if self.shape.is_chain:
            return jnp.cumsum(marked, axis=1) - marked > 0
        above = self.ancestors & ~jnp.eye(self.shape.num_nodes, dtype=bool)
        return jnp.any(above & marked[:, None, :], axis=-1)

    def children(self, node: Array) -> tuple[Array, Array]:
        """The valid children of `node` [B] in order: int32 [B, branching], and bool, whether there is such a one."""
        is_child = (self.parents == node[:, None]) & self.valid
        order = jnp.cumsum(is_child, axis=1, dtype=jnp.int32)
        here = is_child[:, None, :] & (order[:, None, :] == jnp.arange(1, self.shape.branching + 1)[:, None])
        return jnp.argmax(here, axis=-1).astype(jnp.int32), jnp.any(here, axis=-1)

    def is_inner(self, node: Array) -> Array:
        """Whether `node` [B] has a valid child: bool [B]."""
        return jnp.any((self.parents == node[:, None]) & self.valid, axis=1)

    def path(self, node: Array) -> Array:
        """The nodes from the root to `node` [B]: int32 [B, depth + 1], 0 behind it."""
        above = jnp.take_along_axis(self.ancestors, node[:, None, None], axis=1)[:, 0]
        here = above[:, None, :] & (self.depths[:, None, :] == jnp.arange(self.shape.depth + 1)[:, None])
        return jnp.argmax(here, axis=-1).astype(jnp.int32)


def static_parents(shape: Shape, batch: int) -> Array:
    """`TokenTree.parents` of a topology that all rows share: int32 [batch, N]."""
    return jnp.broadcast_to(jnp.asarray(shape.parents, jnp.int32), (batch, shape.num_nodes))


def chain(root: Array, drafted: Array, drafts: Array, live: Array, draft_logits: Array | None = None) -> TokenTree:
    """A chain below `root` [B] of the tokens `drafted` [B, k], of which the leading `drafts` [B] are valid.

    `draft_logits` [B, k, V] becomes [B, k + 1, V]: nothing is ever drawn below the last node.
    """
    k = drafted.shape[1]
    valid = (jnp.arange(k + 1) <= drafts[:, None]) & live[:, None]
    tokens = jnp.where(valid, jnp.concatenate([root[:, None], drafted], axis=1), 0)
    if draft_logits is not None:
        draft_logits = jnp.pad(draft_logits, ((0, 0), (0, 1), (0, 0)), constant_values=-jnp.inf)
    shape = chain_shape(k)
    return TokenTree(tokens, static_parents(shape, tokens.shape[0]), valid, shape, draft_logits)
