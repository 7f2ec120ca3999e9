"""What drafters that are made of two others have in common: states, parameters and availability of both."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from specjax._src.noise import Noise
from specjax._src.tree import TokenTree
from specjax._src.types import Array, Context, Drafter, Feedback

Pair = tuple[Any, Any]


def check_two(factory: str, first: Drafter, second: Drafter) -> None:
    """Refuse what is no drafter, drafts for itself, or draws where it must choose."""
    for place, drafter in (("first", first), ("second", second)):
        if not isinstance(drafter, Drafter):
            raise TypeError(f"the {place} argument of {factory} must be a drafter, got {drafter!r}: try draft.ngram(4)")
        if drafter.own_target:
            raise ValueError(f"{factory} can not combine {drafter.name}, which writes the target's cache: use it alone")
    if not first.one_hot:
        raise ValueError(f"the first drafter of {factory} must choose its tokens, but {first.name} draws them: put a "
                         "look-up such as draft.ngram(4) first, or give it siblings='chosen'")


def split_params(first: Drafter, second: Drafter, params: Any) -> Pair:
    """Parameters of each: a pair if both have some, else those of the one that has.

    Raises:
      ValueError: if both have some and `params` is no pair.
    """
    if first.needs_params and second.needs_params:
        if not isinstance(params, (tuple, list)) or len(params) != 2:
            raise ValueError(f"{first.name} and {second.name} both have parameters, so draft_params must be a pair "
                             f"(those of {first.name}, those of {second.name}), got a {type(params).__name__}")
        return params[0], params[1]
    return (params, None) if first.needs_params else (None, params)


def limits(first: Drafter, second: Drafter, states: Pair, context: Context) -> tuple[Array, Array]:
    """How many tokens each can propose, two int32 [B], whatever is wanted of them."""
    def of(drafter: Drafter, state: Any) -> Array:
        if drafter.available is not None:
            return jnp.minimum(drafter.available(state, context), drafter.shape.depth)
        return jnp.full_like(context.length, drafter.shape.depth)

    return of(first, states[0]), of(second, states[1])


def limited(context: Context, most: Array) -> Context:
    """The context of a drafter that can propose `most` [B] tokens."""
    return replace(context, drafts=jnp.minimum(context.drafts, most))


def advance_both(first: Drafter, second: Drafter, params: Any, states: Pair, feedback: Feedback) -> Pair:
    """Both learn what was committed."""
    own = split_params(first, second, params)
    return first.advance(own[0], states[0], feedback), second.advance(own[1], states[1], feedback)


def catch_up_both(first: Drafter, second: Drafter, params: Any, states: Pair, context: Context) -> Pair:
    """Both read what they lack of the committed text."""
    own = split_params(first, second, params)
    read = [state if drafter.catch_up is None else drafter.catch_up(params, state, context)
            for drafter, params, state in zip((first, second), own, states, strict=True)]
    return read[0], read[1]


def init_both(first: Drafter, second: Drafter, params: Any, batch: int, capacity: int) -> Pair:
    """Both states."""
    own = split_params(first, second, params)
    return first.init(own[0], batch, capacity), second.init(own[1], batch, capacity)


def check_law(drafter: Drafter, tree: TokenTree, noise: Noise) -> None:
    """Refuse drawn tokens without their law where the verifier needs it: they would pass for chosen ones."""
    if not (noise.shared or drafter.one_hot) and tree.draft_logits is None:
        raise ValueError(f"drafter {drafter.name} draws its tokens and gives no draft_logits: let it return them, "
                         "declare it one_hot if its tokens are chosen, or use verify.match()")


def laws(tree: TokenTree, vocab_size: int) -> Array:
    """`draft_logits` of a tree, [B, N, V]; where it has none, those of chosen tokens: no law at all."""
    if tree.draft_logits is not None:
        return tree.draft_logits
    return jnp.full((*tree.tokens.shape, vocab_size), -jnp.inf)
