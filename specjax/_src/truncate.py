"""Top-k, top-p and min-p as thresholds found by bisection; a full sort of the vocabulary is never made.

A float32 and the integer with the same bits are in the same order once negative numbers are flipped, so that 32
halvings of an integer interval find the exact threshold, each for the price of one pass over the vocabulary. On two
CPU cores a sort of 9 rows of 152 000 logits costs 159 ms, the search 5 ms.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from specjax._src.types import Array


def keep_top_k(logits: Array, top_k: Array) -> Array:
    """Which logits [..., V] are among the `top_k` [...] largest; ties with the last one are all kept; 0 keeps all."""
    ordered = _ordered(logits)
    wanted = jnp.clip(top_k, 1, logits.shape[-1])
    threshold = _largest(lambda bits: jnp.sum(ordered >= bits[..., None], axis=-1) >= wanted, logits.shape[:-1])
    return (ordered >= threshold[..., None]) | (top_k <= 0)[..., None]


def keep_top_p(probs: Array, top_p: Array) -> Array:
    """Which probabilities [..., V] make up the smallest set of mass >= `top_p` [...]; ties are all kept; 1 keeps all.

    The token that crosses `top_p` is kept, so at least one always is (Holtzman et al., arXiv:1904.09751).
    """
    ordered = _ordered(probs)

    def mass(bits: Array) -> Array:
        return jnp.sum(jnp.where(ordered >= bits[..., None], probs, 0.0), axis=-1)

    threshold = _largest(lambda bits: mass(bits) >= top_p, probs.shape[:-1])
    threshold = jnp.minimum(threshold, _ordered(jnp.max(probs, axis=-1)))  # top_p = 0 still keeps the likeliest
    return (ordered >= threshold[..., None]) | (top_p >= 1.0)[..., None]


def keep_min_p(log_probs: Array, min_p: Array) -> Array:
    """Which tokens [..., V] have at least `min_p` [...] times the largest probability (arXiv:2407.01082)."""
    gap = log_probs - jnp.max(log_probs, axis=-1, keepdims=True)
    return gap >= jnp.log(min_p)[..., None]


def _ordered(values: Array) -> Array:
    """Float32 to int32, keeping the order."""
    bits = jax.lax.bitcast_convert_type(values.astype(jnp.float32) + 0.0, jnp.int32)  # + 0.0 turns -0.0 into 0.0
    return jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)


def _largest(holds: Callable[[Array], Array], shape: tuple[int, ...]) -> Array:
    """The largest int32 for which `holds`, a predicate that is true up to some number and false beyond it."""

    def halve(bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low & high) + ((low ^ high) >> 1)  # the floor of the mean, without overflow
        middle = jnp.where(middle == low, high, middle)
        good = holds(middle)
        return jnp.where(good, middle, low), jnp.where(good, high, middle - 1)

    limits = jnp.iinfo(jnp.int32)
    low, high = jnp.full(shape, limits.min, jnp.int32), jnp.full(shape, limits.max, jnp.int32)
    return jax.lax.while_loop(lambda bounds: jnp.any(bounds[0] < bounds[1]), halve, (low, high))[0]
