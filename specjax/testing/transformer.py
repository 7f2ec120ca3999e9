"""A two-layer transformer in plain jax.numpy: the smallest model with everything real ones have that can go wrong."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax._src import cache as caches
from specjax._src.types import Array, Attend, Model, Output
from specjax.testing.toys import Toy

HEADS = 2


def tiny_transformer(
    seed: int = 0, vocab_size: int = 64, scale: float = 4.0, layers: int = 2, head_dim: int = 16
) -> Toy:
    """Rotary positions, a key-value cache in float32, trees by `ancestors`, one feature: `hidden` [B, T, F].

    Args:
      seed: of the random weights.
      vocab_size: V.
      scale: of the logits; larger gives a surer model.
      layers: how many.
      head_dim: width of each of the two heads; F is twice that.
    """
    generator, width = np.random.default_rng(seed), HEADS * head_dim

    def matrix(*shape: int) -> Array:
        return jnp.asarray(generator.normal(size=shape) / np.sqrt(shape[0]), jnp.float32)

    def layer() -> dict[str, Array]:
        return {"qkv": matrix(width, 3 * width), "out": matrix(width, width),
                "up": matrix(width, 4 * width), "down": matrix(4 * width, width)}

    embed = jnp.asarray(generator.normal(size=(vocab_size, width)), jnp.float32)
    params = {"embed": embed, "layers": [layer() for _ in range(layers)], "head": scale * matrix(width, vocab_size)}
    return _model(layers, head_dim), params


@functools.cache
def _model(layers: int, head_dim: int) -> Model:
    def init_cache(batch: int, capacity: int) -> caches.Cache:
        return caches.init(layers, batch, HEADS, capacity, head_dim, jnp.float32)

    return Model(init_cache, _apply, caches.commit)


def _apply(params: Any, tokens: Array, cache: caches.Cache, attend: Attend) -> Output:
    hidden = params["embed"][tokens]
    mask = caches.visible(attend, caches.capacity(cache))[:, None]
    written = []
    for weights, layer in zip(params["layers"], cache, strict=True):
        mixed, layer = _attention(weights, _norm(hidden), layer, mask, attend)
        hidden += mixed
        hidden += jax.nn.gelu(_norm(hidden) @ weights["up"]) @ weights["down"]
        written.append(layer)
    hidden = _norm(hidden)
    return Output(hidden @ params["head"], {"hidden": hidden}, tuple(written))


def _attention(weights: Any, hidden: Array, layer: Any, mask: Array, attend: Attend) -> tuple[Array, Any]:
    batch, count, width = hidden.shape
    parts = (hidden @ weights["qkv"]).reshape(batch, count, 3, HEADS, width // HEADS)
    query, key, value = (parts[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    layer = caches.write(layer, {"k": _rotate(key, attend.positions), "v": value}, attend.lengths)
    scores = jnp.einsum("bhtd,bhsd->bhts", _rotate(query, attend.positions), layer["k"])
    scores /= np.sqrt(width // HEADS)
    weight = jax.nn.softmax(jnp.where(mask, scores, -1e30), axis=-1)
    mixed = jnp.einsum("bhts,bhsd->bhtd", weight, layer["v"])
    return mixed.transpose(0, 2, 1, 3).reshape(batch, count, width) @ weights["out"], layer


def _rotate(values: Array, positions: Array) -> Array:
    """Rotary embedding of [B, heads, T, d] by halves."""
    half = values.shape[-1] // 2
    angle = positions[:, None, :, None] * (100.0 ** (-jnp.arange(half) / half))
    first, second = values[..., :half], values[..., half:]
    turned = [first * jnp.cos(angle) - second * jnp.sin(angle), second * jnp.cos(angle) + first * jnp.sin(angle)]
    return jnp.concatenate(turned, axis=-1)


def _norm(values: Array) -> Array:
    return values * jax.lax.rsqrt(jnp.mean(values**2, axis=-1, keepdims=True) + 1e-6)
