"""One node of each row, with what was drafted below it: what a rule for trees looks at."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from specjax._src import rows
from specjax._src.tree import TokenTree
from specjax._src.types import Array


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


def one_hot(token: Array, vocab_size: int) -> Array:
    """1 at `token` [...], 0 elsewhere and for a token of -1: float32 [..., V]."""
    return (token[..., None] == jnp.arange(vocab_size)).astype(jnp.float32)


def prob(law: Array, token: Array) -> Array:
    """`law[..., token]` of `law` [..., V] and `token` [...], 0 for a token of -1."""
    chance = jnp.take_along_axis(law, jnp.maximum(token, 0)[..., None], axis=-1)[..., 0]
    return jnp.where(token >= 0, chance, 0.0)


def only(law: Array, token: Array, kept: Array) -> Array:
    """`law` [B, n, V], with 0 at `token` [B, n] unless it is `kept` [B, n]: written in place, no pass over V."""
    batch, size = token.shape
    spot = jnp.arange(batch)[:, None], jnp.arange(size), jnp.maximum(token, 0)
    return law.at[spot].multiply(jnp.where(kept, 1.0, 0.0), unique_indices=True)


def normalise(weights: Array, fallback: Array) -> Array:
    """`weights` [..., V] over their sum; `fallback` where that is 0 or not finite (p equal to q up to rounding)."""
    mass = jnp.sum(weights, axis=-1, keepdims=True)
    good = (mass > 0.0) & jnp.isfinite(mass)
    return jnp.where(good, weights / jnp.where(good, mass, 1.0), fallback)


def without(law: Array, token: Array) -> Array:
    """`law` [..., V] given that it is not `token` [...], -1 being none; 0 everywhere if nothing is left."""
    left = jnp.where(token[..., None] == jnp.arange(law.shape[-1]), 0.0, law)
    return normalise(left, jnp.zeros_like(law))


def proposal(q: Array | None, token: Array, drawn: Array) -> tuple[Array | None, Array]:
    """Where a child `token` [...] comes from: its law [..., V], and that law at the token [...].

    `q` for a drawn child, all on its token for a chosen one (None if all are), 0 for an absent one (-1). A child that q
    can not have drawn, because the children before it were all that q had, was chosen too.
    """
    if q is None:
        return None, (token >= 0).astype(jnp.float32)
    at_token = prob(q, token)
    drawn &= at_token > 0.0
    law = jnp.where(drawn[..., None], q, one_hot(token, q.shape[-1]))
    return law, jnp.where(drawn, at_token, (token >= 0).astype(jnp.float32))


def accept(p: Array, q: Array) -> Array:
    """`min(1, p / q)` of two arrays, and 0 where p is 0."""
    return jnp.where(p < q, p / jnp.where(q > 0.0, q, 1.0), jnp.where(p > 0.0, 1.0, 0.0))


def refused(p: Array, law: Array | None, token: Array, scale: Array | None = None) -> tuple[Array, Array]:
    """What the target still owes once a child is refused.

    With `S = sum (a p - q)_+`: `norm((a p - q)_+)` [..., V] and `S / (S + 1 - a)` [...]; `scale` is a (None: 1), `law`
    is q (None: all on `token`). Nothing changes for an absent child.
    """
    if law is None:
        left = jnp.where(token[..., None] == jnp.arange(p.shape[-1]), 0.0, p)
        left = left if scale is None else scale[..., None] * left
    else:
        left = jnp.maximum((p if scale is None else scale[..., None] * p) - law, 0.0)
    after = normalise(left, p)
    if scale is None:
        return after, jnp.ones(token.shape)
    mass = jnp.sum(left, axis=-1)
    whole = scale >= 1.0
    return after, jnp.where(whole, 1.0, mass / jnp.where(whole, 1.0, mass + 1.0 - scale))
