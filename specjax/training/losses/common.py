"""Means over the places that count, and distances between laws."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from specjax._src.types import Array

Metrics = dict[str, Array]


class Scores(NamedTuple):
    """A loss and what is logged beside it.

    Attributes:
      loss: float32 [].
      accuracy: float32 [J], by how far ahead is guessed: how often the likeliest token is the target's.
      parts: float32 [] by name.
    """

    loss: Array
    accuracy: Array
    parts: Metrics


def mean(values: Array, counts: Array) -> Array:
    """The mean of `values` [B, T] over the places where `counts` [B, T]; 0 where there are none. float32 []."""
    # `where`, not a product: what stands at other places may be infinite.
    total = jnp.sum(jnp.where(counts, values.astype(jnp.float32), 0.0))
    return total / jnp.maximum(jnp.sum(counts, dtype=jnp.float32), 1.0)


def log_law(logits: Array) -> Array:
    """Log-probabilities in float32."""
    return jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Natural-log loss of each label: logits [.., V], int32 [..] to float32 [..]."""
    logits = logits.astype(jnp.float32)
    return jax.nn.logsumexp(logits, axis=-1) - jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]


def soft_cross_entropy(teacher: Array, student: Array) -> Array:
    """`-sum_x p(x) log q(x)` of two arrays of logits [.., V], float32 [..]."""
    return -jnp.sum(jnp.exp(log_law(teacher)) * log_law(student), axis=-1)


def divergence(teacher: Array, student: Array) -> Array:
    """Kullback-Leibler divergence KL(teacher || student) of the softmaxed logits [.., V], float32 [..]."""
    p = log_law(teacher)
    return jnp.sum(jnp.exp(p) * (p - log_law(student)), axis=-1)


def shared_mass(teacher: Array, student: Array) -> Array:
    """`sum_x min(p(x), q(x))`, one minus the total variation: the rate at which a drawn draft is accepted."""
    return jnp.sum(jnp.exp(jnp.minimum(log_law(teacher), log_law(student))), axis=-1)


def agree(teacher: Array, student: Array) -> Array:
    """Whether both laws [.., V] have the same likeliest token: bool [..]."""
    return jnp.argmax(teacher, axis=-1) == jnp.argmax(student, axis=-1)
