"""Traversal verification of a tree, leaves first (arXiv:2505.12398)."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np

from specjax._src.tree import TokenTree
from specjax._src.types import Array, Verifier
from specjax._src.verify import law
from specjax._src.verify import node as nodes


@functools.cache
def traversal() -> Verifier:
    """Ask the leaves first, so that a weak token may be kept for the sake of strong ones below it.

    With a = 1 at the root, and for the children x of a node in their order, drawn from Q without replacement,

        a_x = min(a P(x) / Q(x), 1);  then, as all below x and x itself are refused,
        S = sum (a P - Q)_+;  P = norm((a P - Q)_+);  a = S / (S + 1 - a);  Q = norm(Q without x)

    and a node whose children are all refused is the last one kept with probability a. On a chain this is `block`.
    """
    return Verifier("traversal", plan, law.draw, shared_noise=False, needs_draft_logits=True, outcomes=law.outcomes,
                    siblings=frozenset({"without_replacement", "one", "chosen", "hybrid"}), static_only=True)


def plan(tree: TokenTree, target: Array) -> law.Plan:
    """The law of a round; `target` float32 [B, N, V], normalised log-probabilities.

    What a subtree decides has no part in a, so that all nodes of a level are weighed at once, child by child.
    """
    parents = _known(tree)
    tokens = jnp.where(tree.valid, tree.tokens, -1)
    joint = jnp.ones(tokens.shape)  # a of each node before its children are asked ..
    stop = joint  # .. and after they are refused
    for level, families in _levels(parents):
        p, a = jnp.exp(target[:, level]), joint[:, level]
        q = None if tree.draft_logits is None else jnp.exp(tree.draft_logits[:, level])
        stop = stop.at[:, level].set(a)
        for children in families:
            size = len(children)  # the nodes with most children come first
            p, a, q = p[:, :size], a[:, :size], None if q is None else q[:, :size]
            token, drawn = tokens[:, children], tree.drawn[:, children]
            proposal, q_token = nodes.proposal(q, token, drawn)
            joint = joint.at[:, children].set(nodes.accept(a * nodes.prob(p, token), q_token))
            p, a = nodes.refused(p, proposal, token, a)
            stop = stop.at[:, level[:size]].set(a)
            q = None if q is None else nodes.without(q, jnp.where(drawn, token, -1))
        below = np.concatenate(families)
        stop = stop.at[:, below].set(joint[:, below])
    order = _post_order(parents)
    fails = jnp.where(tree.valid, 1.0 - stop, 1.0)[:, order]
    reach = jnp.pad(jnp.cumprod(fails, axis=1)[:, :-1], ((0, 0), (1, 0)), constant_values=1.0)
    ends = (jnp.where(tree.valid, stop, 0.0)[:, order] * reach)[:, np.argsort(order)]
    return law.Plan(tree, target, ends, joint)


def _known(tree: TokenTree) -> tuple[int, ...]:
    if tree.shape.parents is None:
        raise ValueError("verifier traversal needs one topology for all rows, known when it is compiled, but the tree "
                         "is dynamic: use verify.hybrid() or verify.without_replacement(), or a static tree")
    return tree.shape.parents


@functools.cache
def _levels(parents: tuple[int, ...]) -> list[tuple[np.ndarray, list[np.ndarray]]]:
    """Level by level: the nodes that have children, those with most first, and their first, second .. children."""
    children = [[node for node, parent in enumerate(parents) if parent == above] for above in range(len(parents))]
    levels, level = [], [0]
    while any(children[node] for node in level):
        inner = sorted((node for node in level if children[node]), key=lambda node: -len(children[node]))
        families = [np.array([children[node][place] for node in inner if len(children[node]) > place])
                    for place in range(len(children[inner[0]]))]
        levels.append((np.array(inner), families))
        level = [child for node in level for child in children[node]]
    return levels


@functools.cache
def _post_order(parents: tuple[int, ...]) -> np.ndarray:
    """Nodes in the order in which they are asked: children before their parent."""
    order: list[int] = []

    def visit(node: int) -> None:
        for child in range(node + 1, len(parents)):
            if parents[child] == node:
                visit(child)
        order.append(node)

    visit(0)
    return np.array(order)
