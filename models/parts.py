"""What the layers of a decoder are made of: named weights, biases that may be absent, norms, activations."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from specjax._src.types import Array

Names = tuple[str | None, ...]

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "silu": jax.nn.silu,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True),
}


class Borrowed(nnx.Variable):
    """A weight of the target that a draft head uses: it is neither trained nor stored with the head."""


class Fixed(nnx.Variable):
    """Numbers that belong to a head and are not trained, such as token ids."""


def param(rngs: nnx.Rngs, shape: tuple[int, ...], std: float, names: Names, dtype: jnp.dtype) -> nnx.Param:
    """A weight drawn from a normal law, with the logical names of its axes."""
    return _named(std * jax.random.normal(rngs.params(), shape, dtype), names)


def borrowed(rngs: nnx.Rngs, shape: tuple[int, ...], names: Names, dtype: jnp.dtype) -> Borrowed:
    """The place of a target's weight; what stands there until it comes is random."""
    return _named(shape[-1] ** -0.5 * jax.random.normal(rngs.params(), shape, dtype), names, Borrowed)


def bias(wanted: bool, shape: tuple[int, ...], names: Names, dtype: jnp.dtype) -> nnx.Param | None:
    """A bias of zeros, or None."""
    return _named(jnp.zeros(shape, dtype), names) if wanted else None


def plus(x: Array, bias: nnx.Param | None) -> Array:
    """`x + bias`, where there is one."""
    return x if bias is None else x + bias[...]


def softcap(x: Array, cap: float | None) -> Array:
    """`cap * tanh(x / cap)`: nearly `x` while small, never beyond the cap; None leaves `x` alone."""
    return x if cap is None else cap * jnp.tanh(x / cap)


class RMSNorm(nnx.Module):
    """`x / rms(x) * scale`, computed in float32.

    It is rounded once before the scale, as Llama checkpoints expect. With a unit offset the factor is `1 + scale`, and
    rounding comes after it, as Gemma checkpoints expect.
    """

    def __init__(
        self, width: int, eps: float, dtype: jnp.dtype, *, unit_offset: bool = False, names: Names = ("embed",)
    ) -> None:
        self.eps = eps
        self.unit_offset = unit_offset
        self.scale = _named(jnp.zeros((width,), dtype) if unit_offset else jnp.ones((width,), dtype), names)

    def __call__(self, x: Array) -> Array:
        """Normalise the last axis of `x`."""
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(jnp.square(wide), axis=-1, keepdims=True) + self.eps)
        if self.unit_offset:
            return (wide * (1 + self.scale[...].astype(jnp.float32))).astype(x.dtype)
        return wide.astype(x.dtype) * self.scale[...]


def normed(x: Array, norm: RMSNorm | None) -> Array:
    """`norm(x)`, where there is one."""
    return x if norm is None else norm(x)


def _named(value: Array, names: Names, kind: type[Any] = nnx.Param) -> Any:
    # Eager placement would need a mesh while the weights are made; the names alone are metadata for whoever shards.
    return kind(value, out_sharding=names, eager_sharding=False)
