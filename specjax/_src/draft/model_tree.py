"""A token tree from an independent draft model (SpecInfer, arXiv:2305.09781, with one small model)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from specjax._src import rows
from specjax._src.draft.grow import Start, Stepper
from specjax._src.draft.growth import Growth, dynamic_growth, static_growth
from specjax._src.draft.model import CATCH_UP, ModelState, catch_up, checked_model
from specjax._src.noise import Noise
from specjax._src.tree import TokenTree
from specjax._src.types import Array, Attend, Cache, Context, Drafter, Feedback, Model


def model_tree(model: Model, tree: Iterable[Sequence[int]], *, siblings: str = "without_replacement") -> Drafter:
    """Draft a static tree with another `Model` of the same vocabulary; its parameters are `draft_params`.

    The model must honour `Attend.ancestors` wider than its tokens (`specjax.testing.check_model` says whether it does).
    After each round it reads the kept tokens again: one pass of at most `depth + 1` tokens, together with the root.

    Args:
      model: the draft.
      tree: paths of ranks, such as `draft.full_paths(3, 2, 1)`.
      siblings: how the children of a node come about (see `specjax.draft`, and `draft.eagle` on the default).

    Raises:
      TypeError: if the network is of another kind.
      ValueError: for paths that make no tree; when traced, if the vocabularies differ.
    """
    return _model_tree(checked_model("model_tree", model), static_growth("model_tree", tree, siblings))


def dynamic_model_tree(model: Model, num_nodes: int, depth: int, width: int, *, drawn: int = 0) -> Drafter:
    """Draft with another `Model` a tree that grows where the draft is sure (as EAGLE-2 does with its head).

    Args:
      model: the draft, as in `model_tree`.
      num_nodes: N, the root included.
      depth: of the tree; `depth - 1` passes of the draft over `width` tokens each.
      width: nodes that are expanded at each depth, and children of each that are looked at.
      drawn: nodes that are drawn when a row samples; 0 for a tree that is chosen whole.

    Raises:
      TypeError: if the network is of another kind.
      ValueError: if the sizes do not go together; when traced, if the vocabularies differ.
    """
    growth = dynamic_growth("dynamic_model_tree", num_nodes, depth, width, drawn)
    return _model_tree(checked_model("dynamic_model_tree", model), growth)


@functools.cache
def _model_tree(model: Model, growth: Growth) -> Drafter:
    fresh = growth.shape.depth + 1  # tokens a round leaves unread at most, the root included

    def init(params: Any, batch: int, capacity: int) -> ModelState:
        del params
        slack = max(fresh + growth.slots, CATCH_UP)
        nothing = jnp.zeros((batch, 0), jnp.int32)  # what is kept is read again, whoever proposed it
        return ModelState(model.init_cache(batch, capacity + slack), jnp.zeros(batch, jnp.int32), nothing)

    def step(params: Any, cache: Cache, tokens: Array, hidden: Array, attend: Attend) -> tuple[Array, Array, Any]:
        out = model.apply(params, tokens, cache, attend)
        return out.logits, hidden, out.pending

    stepper = Stepper("model_tree", step, model.commit)

    def propose(params: Any, noise: Noise, state: ModelState, context: Context) -> tuple[TokenTree, ModelState]:
        state = catch_up(model, params, state, context, fresh - 1)
        tokens = rows.window(context.tokens, state.length, fresh)
        num = jnp.where(context.live, context.length - state.length, 0)
        attend = Attend(state.length, state.length[:, None] + jnp.arange(fresh), jnp.arange(fresh) < num[:, None])
        out = model.apply(params, jnp.where(attend.valid, tokens, 0), state.cache, attend)
        cache = model.commit(out.pending, None, state.length, num)
        read = state.length + num
        logits = rows.take(out.logits, jnp.maximum(num - 1, 0))
        tree, cache = growth(stepper, params, noise, Start(logits, jnp.zeros((*num.shape, 0)), cache, read), context)
        return tree, ModelState(cache, read, state.rolled)

    def advance(params: Any, state: ModelState, feedback: Feedback) -> ModelState:
        del params
        committed = feedback.base + jnp.sum(feedback.valid, axis=1, dtype=jnp.int32)
        return replace(state, length=jnp.minimum(state.length, committed))

    return Drafter(
        "model_tree", growth.shape, frozenset(), growth.siblings == "chosen", init, propose, advance,
        needs_params=True, siblings=growth.siblings, catch_up=functools.partial(catch_up, model))
