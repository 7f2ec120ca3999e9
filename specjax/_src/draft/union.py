"""The union of two trees: what either drafter proposes, equal chosen siblings merged."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from specjax._src.draft import both
from specjax._src.draft.both import Pair
from specjax._src.noise import Noise
from specjax._src.tree import Shape, TokenTree
from specjax._src.types import Array, Context, Drafter


def union(first: Drafter, second: Drafter) -> Drafter:
    """Propose both trees in one, such as a look-up in the text beside a learned head.

    A node of the first that stands behind the same tokens as a chosen node of the second is one node; the rest of the
    first hangs below it. A drawn node is never merged, for the tree must not depend on what was drawn.

    Args:
      first: a drafter that chooses its tokens (`draft.ngram`, `siblings="chosen"`).
      second: any other. If both have parameters, `draft_params` is a pair.

    Raises:
      TypeError, ValueError: if the two can not be combined.
    """
    both.check_two("union", first, second)
    return _union(first, second)


@functools.cache
def _union(first: Drafter, second: Drafter) -> Drafter:
    shape = Shape(
        first.shape.num_nodes + second.shape.num_nodes - 1, max(first.shape.depth, second.shape.depth),
        first.shape.branching + second.shape.branching)
    one_hot = second.one_hot

    def propose(params: Any, noise: Noise, states: Pair, context: Context) -> tuple[TokenTree, Pair]:
        own = both.split_params(first, second, params)
        most = both.limits(first, second, states, context)
        # The first tree takes no numbers: it is chosen.
        chosen, state = first.propose(own[0], noise, states[0], both.limited(context, most[0]))
        tree, other = second.propose(own[1], noise, states[1], both.limited(context, most[1]))
        both.check_law(second, tree, noise)
        return merge(chosen, tree, shape, None if one_hot or noise.shared else context.vocab_size), (state, other)

    def available(states: Pair, context: Context) -> Array:
        return jnp.maximum(*both.limits(first, second, states, context))

    return Drafter(
        f"union of {first.name} and {second.name}", shape, first.needs | second.needs, one_hot,
        functools.partial(both.init_both, first, second), propose, functools.partial(both.advance_both, first, second),
        available, needs_params=first.needs_params or second.needs_params,
        siblings="hybrid" if second.kind == "one" else second.kind,
        catch_up=functools.partial(both.catch_up_both, first, second))


def merge(chosen: TokenTree, tree: TokenTree, shape: Shape, vocab_size: int | None) -> TokenTree:
    """`tree`, and behind its nodes those of the `chosen` tree that it lacks; with laws [B, N, V] unless `vocab_size` is
    None."""
    own = tree.shape.num_nodes
    free = tree.valid & ~tree.drawn

    def place(carry: tuple[Array, Array], node: Array) -> tuple[tuple[Array, Array], None]:
        where, parents = carry  # [B, N of chosen]: where each node stands in the union
        at = jnp.take_along_axis(chosen.parents, jnp.broadcast_to(node, (where.shape[0], 1)), axis=1)
        above = jnp.take_along_axis(where, at, axis=1)  # [B, 1]
        token = jax.lax.dynamic_slice_in_dim(chosen.tokens, node, 1, axis=1)
        same = free & (tree.parents == above) & (tree.tokens == token)
        spot = jnp.where(jnp.any(same, axis=1), jnp.argmax(same, axis=1), own + node - 1).astype(jnp.int32)
        where = jax.lax.dynamic_update_slice_in_dim(where, spot[:, None], node, axis=1)
        return (where, jax.lax.dynamic_update_slice_in_dim(parents, above, node, axis=1)), None

    batch, count = chosen.tokens.shape
    start = (jnp.zeros((batch, count), jnp.int32), jnp.zeros((batch, count), jnp.int32))
    (where, parents), _ = jax.lax.scan(place, start, jnp.arange(1, count))
    fresh = chosen.valid & (where >= own)
    more = ((0, 0), (0, count - 1))
    laws = None
    if vocab_size is not None:
        laws = jnp.pad(both.laws(tree, vocab_size), (*more, (0, 0)), constant_values=-jnp.inf)
    return TokenTree(
        jnp.concatenate([tree.tokens, jnp.where(fresh, chosen.tokens, 0)[:, 1:]], axis=1),
        jnp.concatenate([tree.parents, parents[:, 1:]], axis=1),
        jnp.concatenate([tree.valid, fresh[:, 1:]], axis=1),
        shape, laws, None if laws is None else jnp.pad(tree.drawn, more))
