"""One node of each row, with what was drafted below it: what a rule for trees looks at."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from specjax._src import rows
from specjax._src.tree import TokenTree
from specjax._src.types import Array


class Node(NamedTuple):
    """A node of each row and its K = branching children, in the order in which they are asked.

    Attributes:
      p: float32 [B, V], the target's law of the next token.
      q: float32 [B, V], the law the drawn children come from; None if all were chosen.
      tokens: int32 [B, K], of the children; -1, which is no token, where there is none.
      present: bool [B, K], whether there is such a child.
      drawn: bool [B, K], whether it was drawn from q.
      places: int32 [B, K], where in the tree it stands.
    """

    p: Array
    q: Array | None
    tokens: Array
    present: Array
    drawn: Array
    places: Array

    def proposal(self, child: int, q: Array | None) -> Array:
        """The law of one child, float32 [B, V]: `q` if it was drawn, all on its token if it was chosen, 0 if absent."""
        hot = one_hot(self.tokens[:, child], self.p.shape[-1])
        return hot if q is None else jnp.where(self.drawn[:, child, None], q, hot)


def at(tree: TokenTree, target: Array, node: Array) -> Node:
    """The nodes `node` [B] of a tree; `target` float32 [B, N, V], normalised log-probabilities."""
    places, present = tree.children(node)
    tokens = jnp.where(present, jnp.take_along_axis(tree.tokens, places, axis=1), -1)
    drawn = jnp.take_along_axis(tree.drawn, places, axis=1) & present
    q = None if tree.draft_logits is None else jnp.exp(rows.take(tree.draft_logits, node))
    return Node(jnp.exp(rows.take(target, node)), q, tokens, present, drawn, places)


def one_hot(token: Array, vocab_size: int) -> Array:
    """1 at `token` [B], 0 elsewhere and for a token of -1: float32 [B, V]."""
    return (token[:, None] == jnp.arange(vocab_size)).astype(jnp.float32)


def prob(law: Array, token: Array) -> Array:
    """`law[b, token[b]]` for every row, 0 for a token of -1: float32 [B]."""
    chance = jnp.take_along_axis(law, jnp.maximum(token, 0)[:, None], axis=1)[:, 0]
    return jnp.where(token >= 0, chance, 0.0)


def normalise(weights: Array, fallback: Array) -> Array:
    """`weights` [B, V] over their sum; `fallback` where that is 0 or not finite (p equal to q up to rounding)."""
    mass = jnp.sum(weights, axis=-1, keepdims=True)
    good = (mass > 0.0) & jnp.isfinite(mass)
    return jnp.where(good, weights / jnp.where(good, mass, 1.0), fallback)


def without(law: Array, token: Array) -> Array:
    """`law` [B, V] given that it is not `token` [B], -1 being none; 0 everywhere if nothing is left."""
    left = jnp.where(token[:, None] == jnp.arange(law.shape[-1]), 0.0, law)
    return normalise(left, jnp.zeros_like(law))
