"""Follow a `Constraint` along a chain or down a tree of tokens; with no constraint everything here is free."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from specjax._src import rows
from specjax._src.tree import TokenTree
from specjax._src.types import Array, Constraint


def start(constraint: Constraint | None, batch: int) -> Any:
    """The state before the first generated token, or None."""
    return None if constraint is None else constraint.init(batch)


def advance(constraint: Constraint | None, state: Any, token: Array) -> Any:
    """The state after one more token [B] in each row."""
    return None if constraint is None else jax.vmap(constraint.advance)(state, token)


def mask(constraint: Constraint | None, state: Any) -> Array | None:
    """Tokens allowed next: bool [B, V], or None for no constraint."""
    return None if constraint is None else jax.vmap(constraint.mask)(state)


def masks_along(constraint: Constraint | None, state: Any, drafted: Array) -> Array | None:
    """Tokens allowed after each of 0 .. k drafted tokens [B, k]: bool [B, k + 1, V], or None."""
    if constraint is None:
        return None

    allowed = jax.vmap(constraint.mask)

    def follow(state: Any, token: Array) -> tuple[Any, Array]:
        state = advance(constraint, state, token)
        return state, allowed(state)

    _, later = jax.lax.scan(follow, state, drafted.T)
    return jnp.concatenate([allowed(state)[:, None], jnp.moveaxis(later, 0, 1)], axis=1)


def masks_on(constraint: Constraint | None, state: Any, tree: TokenTree) -> Array | None:
    """Tokens allowed after each node of a tree: bool [B, N, V], or None."""
    if constraint is None or tree.shape.is_chain:
        return masks_along(constraint, state, tree.drafted)
    states = jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], tree.shape.num_nodes, axis=1), state)

    def descend(states: Any, depth: Array) -> tuple[Any, None]:
        moved = advance_from(constraint, states, tree.parents, tree.tokens)
        here = jnp.broadcast_to(tree.depths == depth, tree.tokens.shape)
        return jax.tree.map(functools.partial(rows.select, here), moved, states), None

    states, _ = jax.lax.scan(descend, states, jnp.arange(1, tree.shape.depth + 1))
    return masks_of(constraint, states)


def advance_from(constraint: Constraint | None, states: Any, parents: Array, tokens: Array) -> Any:
    """States [B, W, ..] after one token [B, W] each, from those [B, A, ..] that `parents` [B, W] point at."""
    if constraint is None:
        return None
    above = jax.tree.map(lambda leaf: rows.gather(leaf, jnp.maximum(parents, 0)), states)
    return jax.vmap(jax.vmap(constraint.advance))(above, tokens)


def masks_of(constraint: Constraint | None, states: Any) -> Array | None:
    """Tokens allowed next in each of the states [B, W, ..]: bool [B, W, V], or None."""
    return None if constraint is None else jax.vmap(jax.vmap(constraint.mask))(states)


def states_along(constraint: Constraint | None, state: Any, emitted: Array) -> tuple[Any, Array]:
    """States after each of the emitted tokens [B, P] (leaves [P, B, ...]) and whether each is `done`: bool [B, P]."""
    if constraint is None:
        return None, jnp.zeros(emitted.shape, bool)

    def follow(state: Any, token: Array) -> tuple[Any, tuple[Any, Array]]:
        state = advance(constraint, state, token)
        return state, (state, jax.vmap(constraint.done)(state))

    _, (states, done) = jax.lax.scan(follow, state, emitted.T)
    return states, done.T


def after(states: Any, state: Any, num: Array) -> Any:
    """The state after `num` [B] of the tokens that gave `states`; the old `state` for 0."""

    def pick(along: Array, before: Array) -> Array:
        every = jnp.concatenate([before[None], along])
        return rows.take(jnp.moveaxis(every, 0, 1), num)

    return jax.tree.map(pick, states, state)
