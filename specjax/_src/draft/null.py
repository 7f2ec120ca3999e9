"""The drafter that proposes nothing: plain decoding, by the same code as everything else."""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp

from specjax._src import checks, tree
from specjax._src.types import Array, Context, Drafter


@functools.cache
def null() -> Drafter:
    """A drafter of zero tokens."""

    def propose(params: Any, noise: Any, state: tuple[()], context: Context) -> tuple[tree.TokenTree, tuple[()]]:
        del params, noise
        return root_only(context), state

    return Drafter("null", tree.chain_shape(0), frozenset(), True, no_state, propose, unmoved)


def no_state(params: Any, batch: int, capacity: int) -> tuple[()]:
    """`Drafter.init` of one that remembers nothing."""
    del params, batch, capacity
    return ()


def unmoved(params: Any, state: Any, feedback: Any) -> Any:
    """`Drafter.advance` of one that learns nothing from what is committed."""
    del params, feedback
    return state


def root_only(context: Context) -> tree.TokenTree:
    """The tree that holds only the root."""
    batch = context.length.shape[0]
    nothing = jnp.zeros((batch, 0), jnp.int32)
    return tree.chain(root(context), nothing, jnp.zeros(batch, jnp.int32), context.live)


def root(context: Context) -> Array:
    """The last committed token of each row: int32 [B]."""
    return jnp.take_along_axis(context.tokens, context.length[:, None] - 1, axis=1)[:, 0]


def checked_depth(factory: str, num_speculative_tokens: Any) -> int:
    """`num_speculative_tokens` as an int >= 1; a cache keyed by what callers write would take 2.0 for 2."""
    name = f"{factory}'s num_speculative_tokens (for plain decoding use draft.null() or drafter=None)"
    return checks.whole(name, num_speculative_tokens, 1)
