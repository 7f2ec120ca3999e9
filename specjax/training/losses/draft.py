"""An independent draft model learns its target's laws (DistillSpec, arXiv:2310.08461)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from specjax._src.types import Array, Model
from specjax.training.lesson import Lesson, packed_attend
from specjax.training.losses.common import Scores, agree, cross_entropy, divergence, mean, shared_mass


@dataclasses.dataclass(frozen=True)
class DraftLoss:
    """`kl_weight * KL(p || q) + tv_weight * TV(p, q)`, at the temperature of each row.

    TV is what a drawn draft is refused for. On greedy rows p is the target's one choice, and TV has hardly a slope
    where q is far from it; there its place is taken by the cross-entropy of that choice, and KL is that at
    temperature 1.

    Attributes:
      kl_weight, tv_weight: of sampled rows.
      greedy_kl_weight, greedy_weight: of greedy rows, the second that of the cross-entropy.
    """

    kl_weight: float = 0.5
    tv_weight: float = 2.0
    greedy_kl_weight: float = 0.3
    greedy_weight: float = 1.0

    def __call__(self, model: Model, params: Any, lesson: Lesson, key: Array) -> Scores:
        """Scores of `model` with `params`; no use is made of `key`."""
        del key
        batch = lesson.batch
        greedy = batch.temperature == 0
        heat = jnp.where(greedy, 1.0, batch.temperature)[..., None]
        student = model.apply(params, batch.tokens, None, packed_attend(batch.document)).logits.astype(jnp.float32)
        teacher = lesson.logits.astype(jnp.float32)
        distance = divergence(teacher / heat, student / heat)
        shared = shared_mass(teacher / heat, student / heat)
        choice = cross_entropy(student, jnp.argmax(teacher, axis=-1))
        loss = jnp.where(greedy, self.greedy_kl_weight * distance + self.greedy_weight * choice,
                         self.kl_weight * distance + self.tv_weight * (1 - shared))
        counts = lesson.scored(1)
        parts = {"kl": mean(distance, counts), "tv": mean(1 - shared, counts & ~greedy)}
        return Scores(mean(loss, counts), mean(agree(teacher, student), counts)[None], parts)
