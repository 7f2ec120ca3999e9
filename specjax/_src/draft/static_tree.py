"""A tree of one topology for all rows and rounds, grown with a network as EAGLE does (arXiv:2401.15077)."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax._src.draft import grow, siblings
from specjax._src.draft.null import root
from specjax._src.draft.siblings import Family, Ints
from specjax._src.noise import Noise
from specjax._src.tree import Shape, TokenTree, static_parents
from specjax._src.types import Array, Cache, Context


class Level(NamedTuple):
    """The inner nodes of one depth, padded to W. All int32.

    Attributes:
      inner: [W], their indices in the tree; any index beyond it where there is none.
      up: [W], place of each one's parent among the inner nodes of the level above.
      place: [W], which child of that parent it is.
      family: their children.
    """

    inner: Ints
    up: Ints
    place: Ints
    family: Family


def grow_static(
    stepper: grow.Stepper, shape: Shape, kind: str, params: Any, noise: Noise, start: grow.Start, context: Context
) -> tuple[TokenTree, Cache]:
    """A tree of the static `shape` whose children come about as `kind` says, and the cache of the network.

    One pass of the network for each depth that has inner nodes, all over the same number of them, by `lax.scan`.
    """
    first, later = _levels(shape)
    batch, width, passes = context.length.shape[0], later.inner.shape[1], later.inner.shape[0]
    logits, sane = grow.root_logits(stepper, start, context)
    children, law = siblings.pick(kind, noise, logits, first.family, 0, shape.num_ranks, context)
    sprout = functools.partial(_sprout, shape.num_nodes)
    tokens = sprout(jnp.zeros((batch, shape.num_nodes), jnp.int32), first, children)
    good = sprout(jnp.zeros((batch, shape.num_nodes), bool), first, sane[..., None])
    frontier = grow.open_frontier(start, context, width, max(passes, 1))
    children = jnp.repeat(children, width, axis=1)

    def descend(carry: tuple, xs: tuple[Array, Level]) -> tuple[tuple, Array | None]:
        frontier, children, tokens, good = carry
        number, level = xs
        up = jnp.broadcast_to(level.up, (batch, width))
        own = jax.vmap(lambda row: row[level.up, level.place])(children)
        valid = (level.inner < shape.num_nodes) & (number < context.drafts)[:, None]
        frontier = grow.enter(frontier, context, number, up, own, valid)
        logits, frontier = grow.run(stepper, params, frontier, start, context, number)
        children, law = siblings.pick(kind, noise, logits, level.family, number + 1, shape.num_ranks, context)
        good = sprout(good, level, frontier.valid[..., None])
        return (frontier, children, sprout(tokens, level, children), good), law

    carry = (frontier, children, tokens, good)
    carry, laws = jax.lax.scan(descend, carry, (jnp.arange(passes), later))
    frontier, _, tokens, good = carry
    good = good.at[:, 0].set(context.live)
    parents = static_parents(shape, batch)
    tree = TokenTree(tokens.at[:, 0].set(root(context)), parents, good, shape)
    valid = good & (tree.depths <= context.drafts[:, None]) & ~tree.below(~good)
    law = None if law is None or laws is None else _by_node(shape, law, laws, first, later)
    sampled = jnp.broadcast_to(jnp.asarray(last_children(shape)), tokens.shape) if kind == "hybrid" else None
    return TokenTree(jnp.where(valid, tree.tokens, 0), parents, valid, shape, law,
                     None if law is None else sampled), frontier.cache


def _sprout(num_nodes: int, values: Array, level: Level, children: Array) -> Array:
    """`values` [B, N] with those of the level's children [B, W, K] at their nodes."""
    batch, nodes = values.shape[0], level.family.nodes
    children = jnp.broadcast_to(children, (batch, *nodes.shape)).reshape(batch, -1)
    return values.at[:, nodes.reshape(-1)].set(children, mode="drop")


def _by_node(shape: Shape, law: Array, laws: Array, first: Level, later: Level) -> Array:
    """Laws of the inner nodes, [B, 1, V] and [passes, B, W, V], as `draft_logits` [B, N, V]."""
    batch, vocab_size = law.shape[0], law.shape[-1]
    every = jnp.concatenate([law, jnp.moveaxis(laws, 0, 1).reshape(batch, -1, vocab_size)], axis=1)
    nodes = jnp.concatenate([first.inner, later.inner.reshape(-1)])
    nothing = jnp.full((batch, shape.num_nodes, vocab_size), -jnp.inf)
    return nothing.at[:, nodes].set(every, mode="drop")


@functools.cache
def last_children(shape: Shape) -> np.ndarray:
    """Which nodes are the last child of their parent: bool [N]."""
    parents = np.asarray(shape.parents)
    return np.array([node > 0 and not np.any(parents[node + 1 :] == parents[node]) for node in range(len(parents))])


@functools.cache
def _levels(shape: Shape) -> tuple[Level, Level]:
    """The root's level, and the levels of the passes stacked: leaves [passes, W] and [passes, W, K] (numpy)."""
    parents, nodes = np.asarray(shape.parents), shape.num_nodes
    children = [np.flatnonzero(parents == node) for node in range(nodes)]
    levels: list[list[int]] = [[0]]
    while True:
        below = [int(child) for node in levels[-1] for child in children[node] if len(children[child])]
        if not below:
            break
        levels.append(below)
    width = max([len(level) for level in levels[1:]], default=1)
    rows = [_level(levels[depth], levels[depth - 1] if depth else [], children, shape, width if depth else 1)
            for depth in range(len(levels))]
    nothing = jax.tree.map(lambda leaf: np.zeros((0, *leaf.shape), np.int32), _level([], [], children, shape, width))
    later = jax.tree.map(lambda *leaves: np.stack(leaves), *rows[1:]) if len(rows) > 1 else nothing
    return rows[0], later


def _level(inner: list[int], above: list[int], children: list[np.ndarray], shape: Shape, width: int) -> Level:
    most = max(shape.branching, 1)
    level = Level(
        np.full(width, shape.num_nodes, np.int32), np.zeros(width, np.int32), np.zeros(width, np.int32),
        Family(np.full((width, most), shape.num_nodes, np.int32), np.zeros((width, most), np.int32),
               np.zeros(width, np.int32)))
    parents, ranks = shape.parents or (), shape.ranks or ()
    for column, node in enumerate(inner):
        level.inner[column] = node
        if above:
            level.up[column] = above.index(parents[node])
            level.place[column] = list(children[parents[node]]).index(node)
        level.family.size[column] = len(children[node])
        for place, child in enumerate(children[node]):
            level.family.nodes[column, place] = child
            level.family.ranks[column, place] = ranks[child]
    return level


def passed_nodes(shape: Shape) -> int:
    """Entries of the network's cache that growing a tree of this shape takes."""
    return int(np.prod(_levels(shape)[1].inner.shape))
