"""Text that a model writes itself, in batches, with the logits it wrote it from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from specjax._src.types import Array, Attend, Model
from specjax.training.data import ragged

SEPARATOR = 0


@dataclasses.dataclass(frozen=True)
class Written:
    """Rows that the target wrote.

    Attributes:
      tokens: int32 [B, P + n], prompt and continuation without a gap, then zeros.
      start: int32 [B], prompt lengths.
      length: int32 [B], continuation lengths, the end-of-text included.
      logits: float16 [B, n, V], the target's logits for each token of the continuation.
      temperature: float32 [B]; 0 is greedy.
    """

    tokens: Array
    start: Array
    length: Array
    logits: Array
    temperature: Array


jax.tree_util.register_dataclass(Written)


def writer(model: Model, new_tokens: int) -> Callable[..., Written]:
    """A compiled plain decoder `(params, prompts [B, P], lengths [B], temperature [B], key) -> Written`."""

    def write(params: Any, prompts: Array, lengths: Array, temperature: Array, key: Array) -> Written:
        batch, width = prompts.shape
        steps = jnp.arange(width)
        attend = Attend(
            lengths=jnp.zeros_like(lengths),
            positions=jnp.broadcast_to(steps, (batch, width)),
            valid=steps < lengths[:, None],
        )
        out = model.apply(params, prompts, model.init_cache(batch, width + new_tokens), attend)
        cache = model.commit(out.pending, None, jnp.zeros_like(lengths), lengths)
        last = jnp.take_along_axis(out.logits, (lengths - 1)[:, None, None], axis=1)[:, 0]

        def step(carry: tuple[Any, ...], number: Array) -> tuple[tuple[Any, ...], tuple[Array, ...]]:
            cache, logits, done = carry
            scaled = logits / jnp.maximum(temperature, 1e-6)[:, None]
            drawn = jax.random.categorical(jax.random.fold_in(key, number), scaled)
            token = jnp.where(temperature > 0, drawn, jnp.argmax(logits, axis=-1)).astype(jnp.int32)
            token = jnp.where(done, SEPARATOR, token)
            place = lengths + number
            one = Attend(lengths=place, positions=place[:, None], valid=jnp.ones((batch, 1), bool))
            out = model.apply(params, token[:, None], cache, one)
            cache = model.commit(out.pending, None, place, jnp.ones_like(place))
            kept = (token, logits.astype(jnp.float16), ~done)
            return (cache, out.logits[:, 0], done | (token == SEPARATOR)), kept

        first = (cache, last, jnp.zeros((batch,), bool))
        _, (tokens, logits, live) = lax.scan(step, first, jnp.arange(new_tokens))
        place = lengths[:, None] + jnp.arange(new_tokens)
        row = jnp.pad(jnp.where(steps < lengths[:, None], prompts, SEPARATOR), ((0, 0), (0, new_tokens)))
        row = row.at[jnp.arange(batch)[:, None], place].set(tokens.T)
        return Written(row, lengths, jnp.sum(live, axis=0, dtype=jnp.int32), logits.swapaxes(0, 1), temperature)

    return jax.jit(write)


def prompts_from(documents: Sequence[np.ndarray], headers: Sequence[int], width: int, rng: np.random.Generator) -> Any:
    """Cut each document after its header, or (every other one) at a random place behind it; int32 [B, width], [B]."""
    rows = []
    for i, (document, header) in enumerate(zip(documents, headers, strict=True)):
        extra = int(rng.integers(0, max(1, len(document) - header))) if i % 2 else 0
        rows.append([SEPARATOR, *document[: min(header + extra, width - 1)]])
    return ragged(rows, width)
