"""Ragged rows: read and write a window of each row at that row's own place."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax._src.types import Array


def library(*values: Any) -> Any:
    """`jax.numpy` where some leaf of `values` is its own or traced, else `numpy`, which compiles nothing."""
    return jnp if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(values)) else np


def window(buffer: Array, start: Array, width: int) -> Array:
    """`buffer[b, start[b] : start[b] + width]` for every row: [B, L, ...] -> [B, width, ...]."""
    return jax.vmap(lambda row, at: jax.lax.dynamic_slice_in_dim(row, at, width))(buffer, start)


def write(buffer: Array, update: Array, start: Array) -> Array:
    """`buffer` with `update` [B, width, ...] written at `start` [B]; the window must lie inside the buffer.

    One row is written by a plain slice update, which every backend does in place.
    """
    update = update.astype(buffer.dtype)
    if buffer.shape[0] == 1:
        return jax.lax.dynamic_update_slice_in_dim(buffer, update, start[0], axis=1)
    return jax.vmap(lambda row, new, at: jax.lax.dynamic_update_slice_in_dim(row, new, at, 0))(buffer, update, start)


def take(values: Array, index: Array) -> Array:
    """`values[b, index[b]]` for every row: [B, T, ...], [B] -> [B, ...]."""
    return jax.vmap(lambda row, at: jax.lax.dynamic_index_in_dim(row, at, keepdims=False))(values, index)


def gather(values: Array, index: Array) -> Array:
    """`values[b, index[b, i]]` for every row and place: [B, T, ...], [B, W] -> [B, W, ...]."""
    return jax.vmap(lambda row, at: row[at])(values, index)


def select(mask: Array, new: Array, old: Array) -> Array:
    """`new` where `mask` [B] or [B, T], else `old`, for arrays that begin with these axes."""
    numpy = library(mask, new, old)
    return numpy.where(mask.reshape(mask.shape + (1,) * (new.ndim - mask.ndim)), new, old)


def argmax(values: Array) -> Array:
    """The lowest index of the largest value along the last axis, int32, always inside the axis (also for NaN).

    Two plain reductions: XLA's own argmax carries pairs, which its CPU backend does not vectorise (6.1 ms against
    1.5 ms for 9 rows of 152 000).
    """
    size = values.shape[-1]
    is_largest = values == jnp.max(values, axis=-1, keepdims=True)
    index = jnp.min(jnp.where(is_largest, jnp.arange(size, dtype=jnp.int32), size), axis=-1)
    return jnp.minimum(index, size - 1)
