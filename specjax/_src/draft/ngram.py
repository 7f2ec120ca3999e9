"""Prompt look-up: copy what followed the last tokens when they stood in the text before (no weights, no training).

As in transformers' prompt look-up decoding and vLLM's n-gram drafter; here on the device, for ragged rows.
"""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp

from specjax._src import checks, rows, tree
from specjax._src.draft.null import checked_depth, root, unmoved
from specjax._src.types import Array, Context, Drafter


def ngram(num_speculative_tokens: int, max_ngram: int = 3, min_ngram: int = 1) -> Drafter:
    """Propose the continuation of the latest longest match of the last `min_ngram .. max_ngram` tokens.

    A match that overlaps the end of the text is continued periodically, so a loop is drafted in full. With no match
    the row drafts nothing that round. The proposal is one-hot and costs no model.

    Raises:
      ValueError: if `num_speculative_tokens < 1` or not `1 <= min_ngram <= max_ngram`.
    """
    num_speculative_tokens = checked_depth("ngram", num_speculative_tokens)
    max_ngram, min_ngram = checks.whole("max_ngram", max_ngram, 1), checks.whole("min_ngram", min_ngram, 1)
    if min_ngram > max_ngram:
        raise ValueError(f"ngram needs 1 <= min_ngram <= max_ngram, got min_ngram={min_ngram}, max_ngram={max_ngram}")
    return _ngram(num_speculative_tokens, max_ngram, min_ngram)


@functools.cache  # behind the defaults, so that `ngram(3)` and `ngram(3, max_ngram=3)` are one object
def _ngram(num_speculative_tokens: int, max_ngram: int, min_ngram: int) -> Drafter:
    def init(params: Any, batch: int, capacity: int) -> Array:
        del params, capacity
        return jnp.zeros(batch, jnp.int32)

    def propose(params: Any, noise: Any, state: Array, context: Context) -> tuple[tree.TokenTree, Array]:
        del params, noise
        end, _ = find(context.tokens, context.length, max_ngram, min_ngram)
        period = context.length - 1 - end
        steps = jnp.arange(num_speculative_tokens) % jnp.maximum(period, 1)[:, None]
        drafted = jnp.take_along_axis(context.tokens, end[:, None] + 1 + steps, axis=1)
        return tree.chain(root(context), drafted, context.drafts, context.live), state

    def available(state: Array, context: Context) -> Array:
        del state
        _, matched = find(context.tokens, context.length, max_ngram, min_ngram)
        return jnp.where(matched >= min_ngram, num_speculative_tokens, 0)

    def narrow(width: int) -> Drafter:
        return ngram(width, max_ngram, min_ngram)

    return Drafter("ngram", tree.chain_shape(num_speculative_tokens), frozenset(), True, init, propose, unmoved,
                   available, narrow)


def find(tokens: Array, length: Array, max_ngram: int, min_ngram: int) -> tuple[Array, Array]:
    """The earlier place that best matches the end of each row.

    Args:
      tokens: int32 [B, L].
      length: int32 [B].
      max_ngram: longest match of interest.
      min_ngram: shortest.

    Returns:
      end: int32 [B], index of the last token of the match (the latest of the longest ones).
      matched: int32 [B], its length, 0 for none.
    """
    width = tokens.shape[1]
    place = jnp.arange(width)
    padded = jnp.pad(tokens, ((0, 0), (max_ngram - 1, 0)), constant_values=-1)  # -1 equals no token
    last = rows.window(padded, length - 1, max_ngram)  # the last tokens of each row, oldest first
    agrees = place < (length - 1)[:, None]
    matched = jnp.zeros(tokens.shape, jnp.int32)
    for back in range(max_ngram):
        shifted = padded[:, max_ngram - 1 - back : max_ngram - 1 - back + width]
        suffix = last[:, max_ngram - 1 - back, None]
        agrees &= (shifted == suffix) & (suffix >= 0)
        matched += agrees
    score = jnp.where(matched >= min_ngram, matched * width + place, 0)
    end = jnp.argmax(score, axis=1)
    return end, score[jnp.arange(tokens.shape[0]), end] // width
