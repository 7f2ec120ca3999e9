"""Traversal verification of a tree, leaves first (arXiv:2505.12398)."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np

from specjax._src.tree import SIBLINGS, TokenTree
from specjax._src.types import Array, Verifier
from specjax._src.verify import law
from specjax._src.verify import node as nodes


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
    tokens = jnp.where(tree.valid, tree.tokens, -1)
    turn = jnp.arange(tokens.shape[1]) + jnp.where(tree.drawn, 0, tokens.shape[1])  # drawn siblings are asked first
    joint = jnp.ones(tokens.shape)  # a of each node before its children are asked ..
    stop = joint  # .. and after they are refused
    row = jnp.arange(tokens.shape[0])[:, None]
    for level, families, counts in _levels(_known(tree)):
        p, a = jnp.exp(target[:, level]), joint[:, level]
        q = None if tree.draft_logits is None else jnp.exp(tree.draft_logits[:, level])
        order = jnp.argsort(jnp.where(families < 0, 2 * tokens.shape[1], turn[:, families]), axis=-1)
        children = jnp.take_along_axis(jnp.broadcast_to(families, order.shape), order, axis=-1)
        for place in range(counts[0]):
            size = int(np.sum(counts > place))  # the nodes with most children come first
            child, p, a, q = children[:, :size, place], p[:, :size], a[:, :size], None if q is None else q[:, :size]
            token, drawn = tokens[row, child], tree.drawn[row, child]
            proposal, q_token = nodes.proposal(q, token, drawn)
            joint = joint.at[row, child].set(nodes.accept(a * nodes.prob(p, token), q_token))
            p, a = nodes.refused(p, proposal, token, a)
            stop = stop.at[:, level[:size]].set(a)
            q = None if q is None else nodes.without(q, jnp.where(drawn, token, -1))
        below = families[families >= 0]
        stop = stop.at[:, below].set(joint[:, below])
    stop = jnp.where(tree.valid, stop, 0.0).at[:, 0].set(1.0)
    return law.Plan(tree, target, _ends(tree, stop, turn), joint)


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
def _levels(parents: tuple[int, ...]) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Level by level, for the n nodes that have children, those with most first: the nodes [n], their children [n, K]
    with -1 behind them, and their number [n]."""
    children = [[node for node, parent in enumerate(parents) if parent == above] for above in range(len(parents))]
    levels, level = [], [0]
    while any(children[node] for node in level):
        inner = sorted((node for node in level if children[node]), key=lambda node: -len(children[node]))
        counts = np.array([len(children[node]) for node in inner])
        families = np.array([children[node] + [-1] * (counts[0] - len(children[node])) for node in inner])
        levels.append((np.array(inner), families, counts))
        level = [child for node in level for child in children[node]]
    return levels
