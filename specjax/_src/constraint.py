"""Follow a `Constraint` along a chain of tokens; with no constraint everything here is free."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from specjax._src import rows
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
