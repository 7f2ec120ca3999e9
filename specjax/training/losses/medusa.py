"""Medusa-1: each head learns the token that stands its number of places further on (arXiv:2401.10774, eq. 1)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from specjax._src.types import Array, MedusaHeads
from specjax.training.lesson import Lesson
from specjax.training.losses.common import Scores, agree, cross_entropy, mean, soft_cross_entropy


@dataclasses.dataclass(frozen=True)
class MedusaLoss:
    """`sum_k decay^k CE_k`, head k = 1 .. K guessing the token k + 1 places behind the one whose feature it reads.

    Attributes:
      decay: lambda, 0.8 as published.
      soft: learn the target's law at that place, not the one token that it wrote there.
    """

    decay: float = 0.8
    soft: bool = False

    def __call__(self, heads: MedusaHeads, params: Any, lesson: Lesson, key: Array) -> Scores:
        """Scores of `heads` with `params`; no use is made of `key`."""
        del key
        guessed = medusa_logits(heads, params, lesson)
        loss, right = jnp.float32(0), []
        for k in range(1, heads.num_heads + 1):
            student, counts = guessed[:, :, k - 1], lesson.scored(k + 1)
            teacher = lesson.ahead(lesson.logits, k)
            hard = None if self.soft else lesson.ahead(lesson.batch.tokens, k + 1)
            cost = soft_cross_entropy(teacher, student) if hard is None else cross_entropy(student, hard)
            loss += self.decay**k * mean(cost, counts)
            right.append(mean(agree(teacher, student), counts))
        return Scores(loss, jnp.stack(right), {})


def medusa_logits(heads: MedusaHeads, params: Any, lesson: Lesson) -> Array:
    """What the heads say at each place: [B, T, K, V]."""
    batch, length = lesson.batch.tokens.shape
    flat = {name: value.reshape(batch * length, -1) for name, value in lesson.features.items()}
    logits = heads.apply(params, flat)
    return logits.reshape(batch, length, *logits.shape[1:])
