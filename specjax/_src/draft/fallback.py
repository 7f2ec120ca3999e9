"""One drafter where it can, else another: look-up where the text repeats itself, elsewhere a learned head."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from specjax._src import rows
from specjax._src.draft import both
from specjax._src.draft.both import Pair
from specjax._src.noise import Noise
from specjax._src.tree import Shape, TokenTree, chain_shape, static_parents
from specjax._src.types import Array, Context, Drafter


def fallback(first: Drafter, second: Drafter) -> Drafter:
    """Rows for which `first` has a proposal take it, the others that of `second`; known before anything is drawn.

    A round in which every live row has a proposal of the first costs nothing of the second.

    Args:
      first: a drafter that chooses its tokens and says when it has none (`draft.ngram`).
      second: any other. If both have parameters, `draft_params` is a pair.

    Raises:
      TypeError, ValueError: if the two can not be combined, or if the first always has a proposal.
    """
    both.check_two("fallback", first, second)
    if first.available is None:
        raise ValueError(f"fallback never reaches its second drafter, since {first.name} always has a proposal: put "
                         "one first that says when it has none, such as draft.ngram(4)")
    return _fallback(first, second)


@functools.cache
def _fallback(first: Drafter, second: Drafter) -> Drafter:
    shape = _joint(first.shape, second.shape)

    def propose(params: Any, noise: Noise, states: Pair, context: Context) -> tuple[TokenTree, Pair]:
        own = both.split_params(first, second, params)
        most = both.limits(first, second, states, context)
        has = most[0] > 0
        spelled = None if second.one_hot or noise.shared else context.vocab_size
        chosen, state = first.propose(own[0], noise, states[0], both.limited(context, most[0]))
        chosen = _refit(chosen, shape, spelled)

        def other(carry: tuple[Array, TokenTree, Any]) -> tuple[Array, TokenTree, Any]:
            # Where the first has a proposal the second drafts nothing: it would take its own tokens for committed ones.
            tree, state = second.propose(own[1], noise, carry[2], both.limited(context, jnp.where(has, 0, most[1])))
            both.check_law(second, tree, noise)
            return jnp.bool_(True), _refit(tree, shape, spelled), state

        # A loop of one turn or none: what goes through a conditional is copied, and here goes a cache.
        nothing = jnp.all(has | ~context.live), chosen, states[1]
        _, tree, other_state = jax.lax.while_loop(lambda carry: ~carry[0], other, nothing)
        return jax.tree.map(functools.partial(rows.select, has), chosen, tree), (state, other_state)

    def available(states: Pair, context: Context) -> Array:
        most = both.limits(first, second, states, context)
        return jnp.where(most[0] > 0, *most)

    return Drafter(
        f"{first.name}, else {second.name}", shape, first.needs | second.needs, second.one_hot,
        functools.partial(both.init_both, first, second), propose, functools.partial(both.advance_both, first, second),
        available, needs_params=first.needs_params or second.needs_params,
        siblings=second.kind, catch_up=functools.partial(both.catch_up_both, first, second))


def _joint(first: Shape, second: Shape) -> Shape:
    """The smallest shape that both fit in."""
    if first.is_chain and second.is_chain:
        return chain_shape(max(first.depth, second.depth))
    return Shape(max(first.num_nodes, second.num_nodes), max(first.depth, second.depth),
                 max(first.branching, second.branching))


def _refit(tree: TokenTree, shape: Shape, vocab_size: int | None) -> TokenTree:
    """The same tree with room for `shape`; with laws [B, N, V] unless `vocab_size` is None."""
    more = ((0, 0), (0, shape.num_nodes - tree.shape.num_nodes))
    parents = static_parents(shape, tree.tokens.shape[0]) if shape.is_chain else jnp.pad(tree.parents, more)
    laws = None
    if vocab_size is not None:
        laws = both.laws(tree, vocab_size)
        if shape.is_chain and tree.draft_logits is None:  # the rules for chains know a chosen token by its one-hot law
            child = jnp.pad(tree.drafted, ((0, 0), (0, 1)))
            laws = jnp.where(child[..., None] == jnp.arange(vocab_size), 0.0, laws)
        laws = jnp.pad(laws, (*more, (0, 0)), constant_values=-jnp.inf)
    sampled = None if laws is None or shape.is_chain else jnp.pad(tree.drawn, more)
    return TokenTree(jnp.pad(tree.tokens, more), parents, jnp.pad(tree.valid, more), shape, laws, sampled)
