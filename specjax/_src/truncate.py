"""Top-k, top-p and min-p as thresholds found by bisection; a full sort of the vocabulary is never made.

A float32 and the integer with the same bits are in the same order once negative numbers are flipped, so that halving
an interval of integers leads to the exact threshold, each time for the price of one pass over the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from specjax._src.types import Array

COARSE_HALVINGS = 8
FINE_HALVINGS = 4


def keep_top_k(logits: Array, top_k: Array) -> Array:
    """Which logits [..., V] are among the `top_k` [...] largest; ties with the last one are all kept; 0 keeps all."""
    every = top_k <= 0
    wanted = jnp.clip(top_k, 1, logits.shape[-1])
    largest = jnp.max(logits, axis=-1)
    smallest = jnp.where(every, largest, jnp.min(logits, axis=-1))

    def holds(threshold: Array) -> Array:
        return jnp.sum(logits >= threshold[..., None], axis=-1) >= wanted

    return (logits >= _largest(holds, smallest, largest, logits)[..., None]) | every[..., None]


def keep_top_p(probs: Array, top_p: Array, exactly: bool = True) -> Array:
    """Which probabilities [..., V] make up the smallest set of mass >= `top_p` [...]; ties are all kept; 1 keeps all.

    The token that crosses `top_p` is kept, so at least one always is (Holtzman et al., arXiv:1904.09751). If not
    `exactly`, tokens up to a tenth less likely than the last of the set may be kept too, for half the price.
    """
    every = top_p >= 1.0
    largest = jnp.max(probs, axis=-1)
    # Tokens below (1 - top_p) / V weigh less than 1 - top_p together, so the threshold is not there; half of that,
    # lest rounding matter.
    smallest = jnp.where(every, largest, jnp.minimum((1.0 - top_p) / (2 * probs.shape[-1]), largest))

    def holds(threshold: Array) -> Array:
        return jnp.sum(jnp.where(probs >= threshold[..., None], probs, 0.0), axis=-1) >= top_p

    return (probs >= _largest(holds, smallest, largest, probs if exactly else None)[..., None]) | every[..., None]


def keep_min_p(log_probs: Array, min_p: Array) -> Array:
    """Which tokens [..., V] have at least `min_p` [...] times the largest probability (arXiv:2407.01082)."""
    gap = log_probs - jnp.max(log_probs, axis=-1, keepdims=True)
    return gap >= jnp.log(min_p)[..., None]


def _largest(holds: Callable[[Array], Array], low: Array, high: Array, values: Array | None) -> Array:
    """The largest of `values` [..., V] in `low .. high` [...] for which `holds`, which is true up to some number.

    A few halvings leave an interval in which there is mostly one value or none; only then is it worth looking which.
    Without `values`, the low end of that interval.
    """

    def halve(_: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low & high) + ((low ^ high) >> 1)  # the floor of the mean, without overflow
        middle = jnp.where(middle == low, high, middle)
        good = holds(_float(middle))
        return jnp.where(good, middle, low), jnp.where(good, high, jnp.maximum(middle - 1, low))

    bounds = jax.lax.fori_loop(0, COARSE_HALVINGS, halve, (_ordered(low), _ordered(high)))
    if values is None:
        return _float(bounds[0])

    def shrink(bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = _float(bounds[0])[..., None], _float(bounds[1])[..., None]
        first = jnp.min(jnp.where(values >= low, values, high), axis=-1)
        last = jnp.max(jnp.where(values <= high, values, low), axis=-1)
        # Never wider than before: to hardware that takes denormal numbers for 0, a value may seem to lie outside.
        return jnp.clip(_ordered(first), *bounds), jnp.clip(_ordered(last), *bounds)

    return _float(jax.lax.while_loop(
        lambda bounds: jnp.any(bounds[0] < bounds[1]),
        lambda bounds: shrink(jax.lax.fori_loop(0, FINE_HALVINGS, halve, bounds)),
        shrink(bounds),
    )[0])


def _ordered(values: Array) -> Array:
    """Float32 to int32, keeping the order."""
    bits = jax.lax.bitcast_convert_type(values.astype(jnp.float32) + 0.0, jnp.int32)  # + 0.0 turns -0.0 into 0.0
    return jnp.where(bits < 0, bits ^ jnp.int32(0x7FFFFFFF), bits)


def _float(ordered: Array) -> Array:
    """The inverse of `_ordered`."""
    bits = jnp.where(ordered < 0, ordered ^ jnp.int32(0x7FFFFFFF), ordered)
    return jax.lax.bitcast_convert_type(bits, jnp.float32)
