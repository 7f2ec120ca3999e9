"""Grow a tree level by level with a network that sees each node behind its own ancestors only.

What the growth of static and of dynamic trees has in common: one pass over the W inner nodes of a level (the frontier),
whose entries in the network's cache stand behind the committed ones, level behind level.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax._src import constraint as constraints
from specjax._src import rows, sampling
from specjax._src.sampling import Prefix
from specjax._src.types import Array, Attend, Cache, Context, pytree


@pytree
class Start:
    """Where the growth begins.

    Attributes:
      logits: [B, V], of the token after the root.
      hidden: [B, D], what the network feeds back of the root; D may be 0.
      cache: of the network.
      entries: int32 [B], entries of the cache that count: what the network needs of committed tokens. The entry of a
        node at depth `d` gets the position `entries - 1 + d`.
    """

    logits: Array
    hidden: Array
    cache: Cache
    entries: Array


class Stepper(NamedTuple):
    """A network that drafts, one level at a time.

    Attributes:
      name: for error messages.
      step: `(params, cache, tokens int32 [B, W], hidden [B, W, D], Attend) -> (logits [B, W, V], hidden [B, W, D],
        pending)`; `hidden` in is that of the parents.
      commit: as in `Model`.
    """

    name: str
    step: Callable[[Any, Cache, Array, Array, Attend], tuple[Array, Array, Any]]
    commit: Callable[[Any, Array | None, Array, Array], Cache]


@pytree
class Frontier:
    """Nodes about to be passed through the network, and what was passed before.

    Attributes:
      tokens: int32 [B, W].
      hidden: [B, W, D], of their parents.
      seen: bool [B, W, S], which of the S = levels * W places passed so far are their ancestors.
      passed: int32 [B, S], tokens at those places.
      rules: states of the constraint after each node, leaves [B, W, ..]; or None.
      valid: bool [B, W].
      cache: of the network.
    """

    tokens: Array
    hidden: Array
    seen: Array
    passed: Array
    rules: Any
    valid: Array
    cache: Cache


def open_frontier(start: Start, context: Context, width: int, levels: int) -> Frontier:
    """The frontier before the first level: W copies of the root, behind nothing."""
    batch = context.length.shape[0]
    places = levels * width
    return Frontier(
        jnp.zeros((batch, width), jnp.int32),
        jnp.repeat(start.hidden[:, None], width, axis=1),
        jnp.zeros((batch, width, places), bool),
        jnp.zeros((batch, places), jnp.int32),
        jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], width, axis=1), context.rule_state),
        jnp.repeat(context.live[:, None], width, axis=1),
        start.cache)


def root_logits(stepper: Stepper, start: Start, context: Context) -> tuple[Array, Array]:
    """Adjusted logits of the root's children, float32 [B, 1, V], and whether the row can be drafted for, bool [B, 1].

    Raises:
      ValueError: when traced, if the network scores another vocabulary than the target.
    """
    check_vocab(stepper.name, start.logits.shape[-1], context.vocab_size)
    batch = context.length.shape[0]
    mask = constraints.mask(context.rule, context.rule_state)
    nothing = sampling.chain_prefix(jnp.zeros((batch, 0), jnp.int32), 0, 1)
    mask = None if mask is None else mask[:, None]
    return _usable(sampling.adjust(start.logits[:, None], context.history, nothing, mask), context.live[:, None])


def enter(frontier: Frontier, context: Context, level: Array, up: Array, tokens: Array, valid: Array) -> Frontier:
    """The next frontier: children `tokens` [B, W] of the old one's nodes `up` [B, W], as pass number `level` will see
    them. Everything of the parents is taken over; the children's own place is added."""
    width, places = tokens.shape[1], frontier.seen.shape[-1]
    own = level * width + jnp.arange(width)
    seen = rows.gather(frontier.seen, up) | (own[:, None] == jnp.arange(places))
    passed = jax.lax.dynamic_update_slice_in_dim(frontier.passed, tokens, level * width, axis=1)
    return Frontier(
        tokens, rows.gather(frontier.hidden, up), seen, passed,
        constraints.advance_from(context.rule, frontier.rules, up, tokens),
        valid & rows.gather(frontier.valid, up), frontier.cache)


def run(
    stepper: Stepper, params: Any, frontier: Frontier, start: Start, context: Context, level: Array
) -> tuple[Array, Frontier]:
    """One pass: adjusted logits behind each node of the frontier, float32 [B, W, V], and the frontier with the nodes'
    own hidden states in place of their parents'. `level` 0 is the pass at depth 1."""
    width = frontier.tokens.shape[1]
    attend = Attend(
        start.entries + level * width,
        jnp.broadcast_to((start.entries + level)[:, None], frontier.tokens.shape),
        frontier.valid,
        _columns(frontier.seen, level, width))
    logits, hidden, pending = stepper.step(params, frontier.cache, frontier.tokens, frontier.hidden, attend)
    cache = stepper.commit(pending, None, attend.lengths, jnp.full_like(attend.lengths, width))
    prefix = Prefix(frontier.passed, frontier.seen, jnp.full((1, width), level + 1))
    logits = sampling.adjust(logits, context.history, prefix, constraints.masks_of(context.rule, frontier.rules))
    logits, valid = _usable(logits, frontier.valid)
    return logits, Frontier(
        frontier.tokens, hidden, frontier.seen, frontier.passed, frontier.rules, valid, cache)


def _usable(logits: Array, valid: Array) -> tuple[Array, Array]:
    """`logits` [B, W, V] with 0 at nodes where they can not be used, and `valid` [B, W] without those nodes."""
    valid = valid & jnp.isfinite(jnp.max(logits, axis=-1))
    return jnp.where(valid[..., None], logits, 0.0), valid


def _columns(seen: Array, level: Array, width: int) -> Array:
    """`seen` [B, W, S] in the columns of `Attend.ancestors`: the last S - W slots before `lengths`, then the call's.

    Slot `entries + s` is place `s`; what stands before it is committed and seen by all.
    """
    batch, _, places = seen.shape
    committed = jnp.ones((batch, width, places - width), bool)
    return jax.lax.dynamic_slice_in_dim(jnp.concatenate([committed, seen], axis=-1), level * width, places, axis=2)


def check_vocab(name: str, draft: int, target: int) -> None:
    """Refuse a draft that scores another number of tokens than the target."""
    if draft != target:
        raise ValueError(
            f"the draft model ({name}) scores {draft} tokens and the target {target}: speculation needs one "
            "vocabulary. If both have the same tokenizer and only the padding differs, slice the logits of both to the "
            "real vocabulary (specjax.models.with_vocabulary); if the tokenizers differ, choose a draft with the "
            "target's tokenizer.")
