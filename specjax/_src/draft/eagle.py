"""EAGLE: a head that drafts from the target's own features (arXiv:2401.15077, 2406.16858, 2503.01840).

One roll-out serves all three; what differs is the head (`DraftHead`) and the tree. EAGLE-1 drafts a static tree,
EAGLE-2 one that grows where the draft is sure, EAGLE-3 the same with a head that reads three features and was trained
on what it feeds back.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp

from specjax._src import checks, rows
from specjax._src.draft.choices import EAGLE_PATHS
from specjax._src.draft.grow import Start, Stepper
from specjax._src.draft.growth import Growth, dynamic_growth, static_growth
from specjax._src.noise import Noise
from specjax._src.tree import TokenTree
from specjax._src.types import PREFILL, Array, Attend, Cache, Context, Drafter, DraftHead, Feedback, pytree


@pytree
class EagleState:
    """The head's own cache, which holds nothing but the target's features, and its last word.

    Attributes:
      cache: of the head; entry `t` comes from the target's feature at position `t` and the token at `t + 1`.
      length: int32 [B], entries that count: all positions that went through the target.
      hidden: [B, D], the head's guess of the root's feature.
    """

    cache: Cache
    length: Array
    hidden: Array


def eagle(
    head: DraftHead, tree: int | Iterable[Sequence[int]] = EAGLE_PATHS, *, siblings: str = "without_replacement"
) -> Drafter:
    """EAGLE-1 (arXiv:2401.15077): a static tree, or a chain, from a head; its parameters are `draft_params`.

    Args:
      head: reads features of the target, see `specjax.load_head`.
      tree: paths of ranks (default: the tree of 25 nodes that EAGLE-1 publishes), or a number of tokens for a chain.
      siblings: how the children of a node come about (see `specjax.draft`). Drawn without replacement they keep most of
        a tree made for greedy text, as the published ones are; on a full tree "hybrid" keeps more (docs/design.md).

    Raises:
      TypeError: if the network is of another kind.
      ValueError: for paths that make no tree, or an unknown kind; at the first request, if the target lacks the
        features.
    """
    return _checked("eagle", head, static_growth("eagle", tree, siblings))


def eagle2(head: DraftHead, num_nodes: int = 60, depth: int = 6, width: int = 10, *, drawn: int = 0) -> Drafter:
    """EAGLE-2 (arXiv:2406.16858): each row grows its own tree where the head is sure; parameters: `draft_params`.

    Args:
      head: as in `eagle`; the weights of EAGLE-1 serve.
      num_nodes: N, tokens that the target scores in a pass, the root included.
      depth: of the tree; the head makes `depth - 1` passes over `width` tokens.
      width: nodes that are expanded at each depth, and children of each that are looked at.
      drawn: 0 chooses all nodes, for `verify.match()`: where a row samples, by the noise with which the target will
        choose. Else so many of the nodes are drawn from the head's law when a row samples, one below each of the best
        inner nodes, for `verify.hybrid()` (arXiv:2502.18779).

    Raises:
      TypeError: if the network is of another kind.
      ValueError: if the sizes do not go together; at the first request, if the target lacks the features.
    """
    return _checked("eagle2", head, dynamic_growth("eagle2", num_nodes, depth, width, drawn))


def eagle3(head: DraftHead, num_nodes: int = 60, depth: int = 8, width: int = 10, *, drawn: int = 0) -> Drafter:
    """EAGLE-3 (arXiv:2503.01840): the tree of `eagle2` from a head that was trained on its own output, hence deeper.

    Arguments and errors as in `eagle2`. For a chain of an EAGLE-3 head use `eagle(head, num_speculative_tokens)`.
    """
    return _checked("eagle3", head, dynamic_growth("eagle3", num_nodes, depth, width, drawn))


def _checked(name: str, head: Any, growth: Growth) -> Drafter:
    checks.network(name, head, DraftHead, "`head` of specjax.load_head")
    return _eagle(name, head, growth)


@functools.cache
def _eagle(name: str, head: DraftHead, growth: Growth) -> Drafter:
    def init(params: Any, batch: int, capacity: int) -> EagleState:
        cache = head.init_cache(batch, capacity + max(PREFILL, growth.slots))
        hidden = jnp.zeros((batch, head.hidden_size), head.dtype)
        return EagleState(cache, jnp.zeros(batch, jnp.int32), hidden)

    def step(params: Any, cache: Cache, tokens: Array, hidden: Array, attend: Attend) -> tuple[Array, Array, Any]:
        out = head.apply(params, hidden, tokens, cache, attend)
        return out.logits, out.hidden, out.pending

    stepper = Stepper(head.name, step, head.commit)

    def propose(params: Any, noise: Noise, state: EagleState, context: Context) -> tuple[TokenTree, EagleState]:
        logits = head.score(params, state.hidden[:, None])[:, 0]
        tree, cache = growth(stepper, params, noise, Start(logits, state.hidden, state.cache, state.length), context)
        return tree, EagleState(cache, state.length, state.hidden)

    def advance(params: Any, state: EagleState, feedback: Feedback) -> EagleState:
        # What the roll-out wrote came from the head's own guesses: it is written over with the target's features.
        width = feedback.tokens.shape[1]
        num = jnp.sum(feedback.valid, axis=1, dtype=jnp.int32)
        following = jnp.roll(feedback.tokens, -1, axis=1)
        following = jnp.where(jnp.arange(width) == num[:, None] - 1, feedback.next_token[:, None], following)
        following = jnp.where(feedback.valid, following, 0)
        fused = head.fuse(params, {name: feedback.features[name] for name in head.needs})
        attend = Attend(feedback.base, feedback.base[:, None] + jnp.arange(width), feedback.valid)
        out = head.apply(params, fused, following, state.cache, attend)
        cache = head.commit(out.pending, None, feedback.base, num)
        hidden = rows.select(num > 0, rows.take(out.hidden, jnp.maximum(num - 1, 0)), state.hidden)
        return EagleState(cache, jnp.where(num > 0, feedback.base + num, state.length), hidden)

    def available(state: EagleState, context: Context) -> Array:
        del context
        return jnp.where(state.length > 0, growth.shape.depth, 0)  # a prompt of one token has no feature yet

    return Drafter(
        name, growth.shape, head.needs, growth.siblings == "chosen", init, propose, advance, available,
        needs_params=True, siblings=growth.siblings)
