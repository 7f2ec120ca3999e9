"""One node of each row, with what was drafted below it: what a rule for trees looks at."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from specjax._src import rows
from specjax._src.tree import TokenTree
from specjax._src.types import Array

TINY = float(jnp.finfo(jnp.float32).tiny)
"""What is less than this some devices take for 0, and others do not."""


class Node(NamedTuple):
    """A node of each row and its K = branching children, in the order in which they are asked: drawn ones first.

    The order of the drawn ones must be that of the draws. Chosen ones could come anywhere, and keep most behind them.

    Attributes:
      p: float32 [B, V], the target's law of the next token.
      q: float32 [B, V], the law the drawn children come from; None if all were chosen.
      tokens: int32 [B, K], of the children; -1, which is no token, where there is none.
      drawn: bool [B, K], whether the child was drawn from q.
      places: int32 [B, K], where in the tree it stands.
    """

    p: Array
    q: Array | None
    tokens: Array
    drawn: Array
    places: Array


def at(tree: TokenTree, target: Array, node: Array) -> Node:
    """The nodes `node` [B] of a tree; `target` float32 [B, N, V], normalised log-probabilities."""
    places, present = tree.children(node)
    drawn = jnp.take_along_axis(tree.drawn, places, axis=1) & present
    if tree.sampled is not None:
        order = jnp.argsort(~drawn, axis=1, stable=True)
        places, present, drawn = (jnp.take_along_axis(one, order, axis=1) for one in (places, present, drawn))
    tokens = jnp.where(present, jnp.take_along_axis(tree.tokens, places, axis=1), -1)
    q = None if tree.draft_logits is None else jnp.exp(rows.take(tree.draft_logits, node))
    return Node(jnp.exp(rows.take(target, node)), q, tokens, drawn, places)


class Owed(NamedTuple):
    """What is left of both laws after some children of a node were refused.

    Laws are kept as weights with a scale beside them, so that a refusal writes p once and q not at all.

    Attributes:
      p: float32 [..., V]; `p * p_scale` is the target's law times a.
      q: float32 [..., V], 0 at drawn children that were refused; `q * q_scale` is the draft's law. None if all children
        are chosen.
      a: float32 [...], how likely it is that the node counts at all; 1 where a walk has come to it.
      p_scale: float32 [...].
      q_scale: float32 [...], 0 where the draft's law has nothing left.
    """

    p: Array
    q: Array | None
    a: Array
    p_scale: Array
    q_scale: Array

    def first(self, size: int) -> Owed:
        """Of the first `size` nodes of [B, n]."""
        q = None if self.q is None else self.q[:, :size]
        return Owed(self.p[:, :size], q, self.a[:, :size], self.p_scale[:, :size], self.q_scale[:, :size])


def owed(p: Array, q: Array | None, a: Array) -> Owed:
    """Before any child is asked: laws [..., V] of target and draft, and a [...]."""
    return Owed(p, q, a, a, jnp.ones_like(a))


def ask(left: Owed, token: Array, drawn: Array, replacement: bool = False) -> tuple[Array, Owed]:
    """A child's chance to be kept, and what is left if it is refused.

        min(1, a P(x) / Q(x));  S = sum (a P - Q)_+;  P = (a P - Q)_+ / S;  a = S / (S + 1 - a);  Q = norm(Q without x)

    with Q all on x if x was chosen. A child that Q can not have drawn, because the children before it were all that q
    had, was chosen too; for a drawn one that rule is as exact, and only keeps less. An absent child changes nothing.

    Args:
      left: after the children before it.
      token: int32 [...], -1 for an absent one.
      drawn: bool [...], whether it was drawn from Q.
      replacement: whether the next child may be the same again: Q stays.
    """
    at_token = jnp.zeros_like(left.a) if left.q is None else left.q_scale * prob(left.q, token)
    drawn &= at_token > 0.0
    chosen = (token >= 0) & ~drawn
    chance = accept(left.p_scale * prob(left.p, token), jnp.where(chosen, 1.0, at_token))

    p = _struck(left.p, token, chosen)
    rest = left.p_scale[..., None] * p
    if left.q is not None:
        taken = jnp.where(drawn, left.q_scale, 0.0)[..., None] * left.q
        rest = jnp.maximum(rest, taken) - taken
    mass, whole = jnp.sum(rest, axis=-1), left.a >= 1.0
    some = mass > TINY
    a = jnp.where(whole, 1.0, mass / jnp.where(whole, 1.0, mass + 1.0 - left.a))
    scale = jnp.where(some, a / jnp.where(some, mass, 1.0), a * left.p_scale)
    left = left._replace(p=jnp.where(some[..., None], rest, p), a=a, p_scale=scale)
    if left.q is None or replacement:
        return chance, left
    q = _struck(left.q, token, drawn)
    mass = jnp.sum(q, axis=-1)
    return chance, left._replace(q=q, q_scale=jnp.where(mass > TINY, 1.0 / jnp.maximum(mass, TINY), 0.0))


def _struck(law: Array, token: Array, out: Array) -> Array:
    """`law` [..., V] with 0 at `token` [...] where it is `out` [...]: written in place, no pass over V."""
    spot = *jnp.indices(token.shape, sparse=True), jnp.maximum(token, 0)
    return law.at[spot].multiply(jnp.where(out, 0.0, 1.0), unique_indices=True)


def prob(law: Array, token: Array) -> Array:
    """`law[..., token]` of `law` [..., V] and `token` [...], 0 for a token of -1."""
    chance = jnp.take_along_axis(law, jnp.maximum(token, 0)[..., None], axis=-1)[..., 0]
    return jnp.where(token >= 0, chance, 0.0)


def normalise(weights: Array, fallback: Array) -> Array:
    """`weights` [..., V] over their sum; `fallback` where that is 0 or not finite (p equal to q up to rounding)."""
    mass = jnp.sum(weights, axis=-1, keepdims=True)
    good = (mass > 0.0) & jnp.isfinite(mass)
    return jnp.where(good, weights / jnp.where(good, mass, 1.0), fallback)


def accept(p: Array, q: Array) -> Array:
    """`min(1, p / q)` of two arrays, and 0 where p is 0."""
    return jnp.where(p < q, p / jnp.where(q > 0.0, q, 1.0), jnp.where(p > 0.0, 1.0, 0.0))
