"""Traversal verification of a tree, leaves first (arXiv:2505.12398)."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax._src.tree import SIBLINGS, TokenTree
from specjax._src.types import Array, Verifier
from specjax._src.verify import law
from specjax._src.verify import node as nodes


class Level(NamedTuple):
    """The n nodes of a level that have children, those with most first.

    Attributes:
      nodes: int [n].
      families: int [n, K], their children, -1 behind them.
      counts: int [n], how many they are.
    """

    nodes: np.ndarray
    families: np.ndarray
    counts: np.ndarray


@functools.cache
def traversal() -> Verifier:
    """Ask the leaves first, so that a weak token may be kept for the sake of strong ones below it.

    With a = 1 at the root, and for the children x of a node in their order, drawn from Q without replacement,

        a_x = min(a P(x) / Q(x), 1);  then, as all below x and x itself are refused,
        S = sum (a P - Q)_+;  P = norm((a P - Q)_+);  a = S / (S + 1 - a);  Q = norm(Q without x)

    and a node whose children are all refused is the last one kept with probability a. On a chain this is `block`. Of
    siblings chosen and drawn the drawn ones are asked first, as `hybrid` does. Exact for every kind of siblings, as
    `without_replacement` is.
    """
    return Verifier("traversal", plan, law.draw, shared_noise=False, needs_draft_logits=True, outcomes=law.outcomes,
                    siblings=frozenset(SIBLINGS), static_only=True)


def plan(tree: TokenTree, target: Array) -> law.Plan:
    """The law of a round; `target` float32 [B, N, V], normalised log-probabilities.

    What a subtree decides has no part in a, so that all nodes of a level are weighed at once, child by child.
    """
    turn = jnp.arange(tree.tokens.shape[1]) + jnp.where(tree.drawn, 0, tree.tokens.shape[1])  # drawn ones come first
    joint = jnp.zeros(tree.tokens.shape).at[:, 0].set(1.0)  # a of each node before its children are asked ..
    stop = joint  # .. and after they are refused
    for level in _levels(_known(tree)):
        # A level that no row can reach costs nothing, and laws are made when it is their turn, not of all levels first.
        weigh = functools.partial(_weigh, tree, target, turn, level)
        joint, stop = jax.lax.cond(
            jnp.any(joint[:, level.nodes] > 0.0), weigh, lambda *given: given, joint, stop)
    return law.Plan(tree, target, _ends(tree, stop, turn), joint)


def _weigh(
    tree: TokenTree, target: Array, turn: Array, level: Level, joint: Array, stop: Array
) -> tuple[Array, Array]:
    """`joint` with the children of a level, `stop` with its nodes and as if their children had none."""
    row = jnp.arange(tree.tokens.shape[0])[:, None]
    order = jnp.argsort(jnp.where(level.families < 0, 2 * turn.shape[-1], turn[:, level.families]), axis=-1)
    children = jnp.take_along_axis(jnp.broadcast_to(level.families, order.shape), order, axis=-1)
    q = None if tree.draft_logits is None else jnp.exp(tree.draft_logits[:, level.nodes])
    left = nodes.owed(jnp.exp(target[:, level.nodes]), q, joint[:, level.nodes])
    for place in range(children.shape[-1]):
        size = int(np.sum(level.counts > place))  # the nodes with most children come first
        child, left = children[:, :size, place], left.first(size)
        token = jnp.where(tree.valid[row, child], tree.tokens[row, child], -1)
        chance, left = nodes.ask(left, token, tree.drawn[row, child])
        joint = joint.at[row, child].set(chance)
        stop = stop.at[:, level.nodes[:size]].set(left.a)
    below = level.families[level.families >= 0]
    return joint, stop.at[:, below].set(joint[:, below])


def _ends(tree: TokenTree, stop: Array, turn: Array) -> Array:
    """The probability that each node is the last one kept [B, N], if it is with probability `stop` once it is asked.

    All below it are asked before it, and all below the siblings whose `turn` comes earlier, its own and its ancestors'.
    """
    fails, above = 1.0 - stop, tree.ancestors  # above[.., u, v]: v is an ancestor of u, or u itself
    strictly = above & ~jnp.eye(stop.shape[1], dtype=bool)
    below = jnp.prod(jnp.where(strictly, fails[:, :, None], 1.0), axis=1)
    earlier = (tree.parents[:, :, None] == tree.parents[:, None, :]) & (turn[:, :, None] < turn[:, None, :])
    elders = jnp.prod(jnp.where(earlier, (below * fails)[:, :, None], 1.0), axis=1)
    return jnp.prod(jnp.where(above, elders[:, None, :], 1.0), axis=2) * below * stop


def _known(tree: TokenTree) -> tuple[int, ...]:
    if tree.shape.parents is None:
        raise ValueError("verifier traversal needs one topology for all rows, known when it is compiled, but the tree "
                         "is dynamic: use verify.hybrid() or verify.without_replacement(), or a static tree")
    return tree.shape.parents


@functools.cache
def _levels(parents: tuple[int, ...]) -> list[Level]:
    children = [[node for node, parent in enumerate(parents) if parent == above] for above in range(len(parents))]
    levels, level = [], [0]
    while any(children[node] for node in level):
        inner = sorted((node for node in level if children[node]), key=lambda node: -len(children[node]))
        counts = np.array([len(children[node]) for node in inner])
        families = np.array([children[node] + [-1] * (counts[0] - len(children[node])) for node in inner])
        levels.append(Level(np.array(inner), families, counts))
        level = [child for node in level for child in children[node]]
    return levels
