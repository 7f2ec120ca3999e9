"""EAGLE-1 and -2: a head learns the target's next feature, and the law that follows from it (arXiv:2401.15077)."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax

from specjax._src.types import Array, DraftHead
from specjax.training.lesson import Lesson
from specjax.training.losses.common import Scores, agree, mean, soft_cross_entropy
from specjax.training.unroll import unroll


@dataclasses.dataclass(frozen=True)
class EagleLoss:
    """`feature_weight * SmoothL1(f', f) + law_weight * CE(p, q)`.

    `f'` is the head's guess of the target's feature one place on, `q` what the target's own matrix makes of it, `p` the
    target's law there.

    Attributes:
      feature_weight, law_weight: 1.0 and 0.1 as published.
      noise: features are shaken by a uniform number of at most so much in either direction, so that the head bears its
        own errors. As published it is `0.1 * 512 / length` for texts of that length: 0.05 at 1,024 tokens.
    """

    feature_weight: float = 1.0
    law_weight: float = 0.1
    noise: float = 0.1

    def __call__(self, head: DraftHead, params: Any, lesson: Lesson, key: Array) -> Scores:
        """Scores of `head` with `params`; `key` draws the noise."""
        feature = head.fuse(params, lesson.features)
        noise = jax.random.uniform(key, feature.shape, jnp.float32, -self.noise, self.noise)
        (out,) = unroll(head, params, lesson, 1, feature + noise.astype(feature.dtype))
        counts = lesson.scored(2)
        teacher = lesson.ahead(lesson.logits, 1)
        wanted = lesson.ahead(feature, 1).astype(jnp.float32)
        distance = jnp.mean(optax.losses.huber_loss(out.hidden.astype(jnp.float32), wanted), axis=-1)
        parts = {
            "feature": mean(distance, counts),
            "law": mean(soft_cross_entropy(teacher, out.logits), counts),
        }
        loss = self.feature_weight * parts["feature"] + self.law_weight * parts["law"]
        return Scores(loss, mean(agree(teacher, out.logits), counts)[None], parts)
