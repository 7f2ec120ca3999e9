"""Text that a target writes itself, in batches, with the law that it wrote each token from; kept on disk in chunks.

A draft that has only seen human text meets, in use, the target's own. This text closes the gap (on-policy distillation
in the manner of DistillSpec, arXiv:2310.08461). Half of the rows are greedy, half are sampled. Prompts are invented
function headers: below headers that it was trained on, a target recites; below new ones it writes as it will in use.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from tokenizers import Tokenizer

from specjax._src.types import Array, Attend, Model
from specjax.training.data import ragged

SEPARATOR = 0
MOST_TOKENS = 2**16
LEAST_LOG_PROB = float(np.finfo(np.float16).min)


@dataclasses.dataclass(frozen=True)
class Written:
    """Rows that the target wrote.

    Attributes:
      tokens: int32 [B, P + n], prompt and continuation without a gap, then zeros.
      start: int32 [B], prompt lengths.
      length: int32 [B], continuation lengths, the end-of-text included.
      temperature: float32 [B]; 0 is greedy.
      ids: uint16 [B, n, C], the likeliest tokens at each place of the continuation, best first.
      log_probs: float16 [B, n, C], their log-probabilities under the row's law (greedy rows: at temperature 1).
    """

    tokens: Array
    start: Array
    length: Array
    temperature: Array
    ids: Array
    log_probs: Array


jax.tree_util.register_dataclass(Written)


def writer(model: Model, new_tokens: int, candidates: int = 64) -> Callable[..., Written]:
    """A compiled plain decoder `(params, prompts [B, P], lengths [B], temperature [B], key) -> Written`.

    Raises:
      ValueError: when traced, if the model scores more tokens than uint16 can name.
    """

    def write(params: Any, prompts: Array, lengths: Array, temperature: Array, key: Array) -> Written:
        batch, width = prompts.shape
        steps = jnp.arange(width)
        sharpness = jnp.where(temperature > 0, temperature, 1.0)[:, None]
        attend = Attend(
            lengths=jnp.zeros_like(lengths),
            positions=jnp.broadcast_to(steps, (batch, width)),
            valid=steps < lengths[:, None],
        )
        out = model.apply(params, prompts, model.init_cache(batch, width + new_tokens), attend)
        if out.logits.shape[-1] > MOST_TOKENS:
            raise ValueError(f"the target scores {out.logits.shape[-1]} tokens, chunks hold ids below {MOST_TOKENS}")
        cache = model.commit(out.pending, None, jnp.zeros_like(lengths), lengths)
        last = jnp.take_along_axis(out.logits, (lengths - 1)[:, None, None], axis=1)[:, 0]

        def step(carry: tuple[Any, ...], number: Array) -> tuple[tuple[Any, ...], tuple[Array, ...]]:
            cache, logits, done = carry
            log_probs, ids = lax.top_k(jax.nn.log_softmax(logits / sharpness), min(candidates, logits.shape[-1]))
            drawn = jax.random.categorical(jax.random.fold_in(key, number), logits / sharpness)
            token = jnp.where(temperature > 0, drawn, ids[:, 0]).astype(jnp.int32)
            token = jnp.where(done, SEPARATOR, token)
            place = lengths + number
            one = Attend(lengths=place, positions=place[:, None], valid=jnp.ones((batch, 1), bool))
            out = model.apply(params, token[:, None], cache, one)
            cache = model.commit(out.pending, None, place, jnp.ones_like(place))
            kept = (token, ids.astype(jnp.uint16), jnp.maximum(log_probs, LEAST_LOG_PROB).astype(jnp.float16), ~done)
            return (cache, out.logits[:, 0], done | (token == SEPARATOR)), kept

        first = (cache, last, jnp.zeros((batch,), bool))
        _, (tokens, ids, log_probs, live) = lax.scan(step, first, jnp.arange(new_tokens))
        place = lengths[:, None] + jnp.arange(new_tokens)
        row = jnp.pad(jnp.where(steps < lengths[:, None], prompts, SEPARATOR), ((0, 0), (0, new_tokens)))
        row = row.at[jnp.arange(batch)[:, None], place].set(tokens.T)
        length = jnp.sum(live, axis=0, dtype=jnp.int32)
        return Written(row, lengths, length, temperature, ids.swapaxes(0, 1), log_probs.swapaxes(0, 1))

    return jax.jit(write)


def invented_headers(headers: Sequence[str], count: int, rng: np.random.Generator) -> list[str]:
    """`count` headers with the name of one and the arguments of another of the given one-line headers."""
    names, arguments = (rng.integers(len(headers), size=count) for _ in range(2))
    split = [header.partition("(") for header in headers]
    return [f"{split[i][0]}({split[j][2]}" for i, j in zip(names, arguments, strict=True)]


@dataclasses.dataclass(frozen=True)
class WritingSettings:
    """How much the target writes.

    Attributes:
      chunks: files of rows.
      rows: rows in a file, written at a time; half of them greedy, half sampled at `temperature`.
      prompt_tokens, new_tokens: widths of prompt and continuation.
    """

    chunks: int
    rows: int = 256
    temperature: float = 0.8
    prompt_tokens: int = 32
    new_tokens: int = 160


def write_chunks(
    folder: pathlib.Path,
    settings: WritingSettings,
    target: tuple[Model, Any],
    tokenizer: Tokenizer,
    headers: Sequence[str],
    unseen: frozenset[str],
) -> None:
    """Fill `folder` with chunks `00000.npz ..`; those that are there stay, so a second start resumes.

    Args:
      folder: made if it is missing.
      settings: see `WritingSettings`.
      target: model and parameters.
      tokenizer: of the pair.
      headers: one-line headers to invent new ones from.
      unseen: headers that must not be invented, for they are kept for evaluation.
    """
    folder.mkdir(parents=True, exist_ok=True)
    write = writer(target[0], settings.new_tokens)
    temperature = jnp.where(jnp.arange(settings.rows) % 2 == 0, 0.0, settings.temperature)
    for number in range(settings.chunks):
        path = folder / f"{number:05d}.npz"
        if path.exists():
            continue
        invented = invented_headers(headers, settings.rows, np.random.default_rng(number))
        ids = tokenizer.encode_batch([headers[0] if h in unseen else h for h in invented])
        prompts = ragged([e.ids for e in ids], settings.prompt_tokens)
        rows = write(target[1], *prompts, temperature, jax.random.key(number))
        arrays: dict[str, Any] = {f.name: np.asarray(getattr(rows, f.name)) for f in dataclasses.fields(Written)}
        # Renamed when whole: a chunk cut off half-way must not be taken for one.
        unfinished = path.with_suffix(".tmp")
        with unfinished.open("wb") as file:
            np.savez(file, **arrays)
        os.replace(unfinished, path)
        print(f"wrote chunk {number + 1} of {settings.chunks}", flush=True)
