"""EAGLE-3: a head learns the target's laws along its own roll-out, with no loss on features (arXiv:2503.01840)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from specjax._src.types import Array, DraftHead
from specjax.training.lesson import Lesson
from specjax.training.losses.common import Scores, agree, mean, soft_cross_entropy
from specjax.training.unroll import unroll


@dataclasses.dataclass(frozen=True)
class Eagle3Loss:
    """`sum_j decay^j CE(p_j, q_j)` over the steps j = 0 .. of the training-time test.

    `q_j` is the head's law after j steps on its own output, over the draft vocabulary; `p_j` the target's law at that
    place, restricted to that vocabulary and normalised again. A place whose likeliest token is outside of the draft
    vocabulary does not count.

    Attributes:
      steps: of the roll-out, 7 as published.
      decay: 0.8 as published.
    """

    steps: int = 7
    decay: float = 0.8

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")

    def __call__(self, head: DraftHead, params: Any, lesson: Lesson, key: Array) -> Scores:
        """Scores of `head`, which scores its draft vocabulary alone, with `params`; no use is made of `key`."""
        del key
        target, known = restricted(params, lesson.logits)
        loss, right = jnp.float32(0), []
        for step, out in enumerate(unroll(head, params, lesson, self.steps)):
            counts = lesson.scored(step + 2)
            teacher = lesson.ahead(target, step + 1)
            inside = counts & lesson.ahead(known, step + 1)
            loss += self.decay**step * mean(soft_cross_entropy(teacher, out.logits), inside)
            right.append(mean(agree(teacher, out.logits) & inside, counts))
        return Scores(loss, jnp.stack(right), {})


def restricted(params: Any, logits: Array) -> tuple[Array, Array]:
    """The target's logits over the draft vocabulary [B, T, Vd], and whether its likeliest token is in it, bool [B, T].

    A softmax of what is left is the law restricted and normalised again.
    """
    if "draft_ids" not in params:
        return logits, jnp.ones(logits.shape[:-1], bool)
    ids = params["draft_ids"]
    return jnp.take(logits, ids, axis=-1), params["places"][jnp.argmax(logits, axis=-1)] < ids.shape[0]
