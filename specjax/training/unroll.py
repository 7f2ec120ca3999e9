"""A head's roll-out at every place of a window at once: EAGLE-3's training-time test (arXiv:2503.01840, 3.2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp

from specjax._src.types import Array, Attend, DraftHead, HeadOutput
from specjax.training.lesson import Lesson, within_documents


def unroll(
    head: DraftHead, params: Any, lesson: Lesson, steps: int, feature: Array | None = None
) -> Iterator[HeadOutput]:
    """What the head says at each place, were a chain to begin there, after 0, 1, .. `steps - 1` steps of its own.

    Step 0 reads the target's features. Step j reads at place t what step j - 1 gave there, and the true token at
    t + j + 1; its logits [B, T, V] score the token at t + j + 2. It sees the true pairs up to t, and of each later step
    its own place: what a chain that begins behind t finds in the head's cache. So the cache holds the steps one behind
    the other.

    Args:
      head: see `DraftHead`.
      params: of the head.
      lesson: windows with the target's features.
      steps: at least 1.
      feature: [B, T, D], in place of the target's own fused ones.
    """
    batch = lesson.batch
    rows, length = batch.tokens.shape
    hidden = head.fuse(params, lesson.features) if feature is None else feature
    cache = head.init_cache(rows, steps * length)
    seen = within_documents(batch.document)
    itself = jnp.broadcast_to(jnp.eye(length, dtype=bool), seen.shape)
    places = jnp.arange(length, dtype=jnp.int32)
    for step in range(steps):
        start = jnp.full((rows,), step * length, jnp.int32)
        attend = Attend(start, jnp.broadcast_to(places + step, (rows, length)), batch.document >= 0, seen)
        out = head.apply(params, hidden, lesson.ahead(batch.tokens, step + 1), cache, attend)
        yield out
        cache = head.commit(out.pending, None, start, jnp.full((rows,), length, jnp.int32))
        hidden = out.hidden
        seen = jnp.concatenate([seen, itself], axis=-1)
