"""From what a caller writes to arrays: checked while values can still be seen, padded so that programs are shared."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax._src import checks, rows
from specjax._src import sampling as samplings
from specjax._src.noise import fold, row_keys
from specjax._src.sampling import Sampling
from specjax._src.types import Array, pytree


@pytree
class Request:
    """One batch of prompts and all that is wanted for them, as arrays: nothing in it causes a recompilation.

    What a caller gave on the host is numpy here, so that checking it takes no device.

    Attributes:
      prompts: int32 [B, P], right-padded.
      lengths: int32 [B].
      key: typed PRNG keys [B * num_samples].
      sampling: `Sampling` by row [B].
      limits: int32 [B], budgets.
      eos: int32 [B, E], padded with -1.
      stop: int32 [B, Q, W], right-aligned, padded with -1.
      max_drafts: int32 [B], k of each row.
      good: bool [B]; a row that is not ends at once with `FinishReason.ERROR` (seen only under `jax.jit`, where
        nothing can be raised).
    """

    prompts: Array
    lengths: Array
    key: Array
    sampling: Sampling
    limits: Array
    eos: Array
    stop: Array
    max_drafts: Array
    good: Array


def make_request(
    prompts: Any,
    lengths: Any = None,
    *,
    max_new_tokens: int,
    most_drafts: int,
    sampling: Sampling = Sampling(),
    key: Array | None = None,
    limits: Any = None,
    eos_ids: Any = (),
    stop: Any = (),
    num_speculative_tokens: Any = None,
    capacity: int | None = None,
    num_samples: int = 1,
    vocab_size: int | None = None,
) -> Request:
    """Arrays for one batch; see `specjax.generate` for the arguments, `most_drafts` is the drafter's own k.

    Raises:
      ValueError: naming both sides and the remedy, for whatever is wrong and can be seen outside `jax.jit`.
    """
    prompts, lengths = _prompts(prompts, lengths, vocab_size)
    batch, width = prompts.shape
    max_new_tokens = checks.whole("max_new_tokens", max_new_tokens, 1)
    room = full_capacity(width, max_new_tokens, capacity)
    checks.check_lengths(lengths, width, room)
    checks.check_sampling(sampling, key, batch, vocab_size)
    limits = checks.per_row(
        "limits", max_new_tokens if limits is None else limits, batch, max_new_tokens, "max_new_tokens")
    drafts = most_drafts if num_speculative_tokens is None else num_speculative_tokens
    drafts = checks.per_row("num_speculative_tokens", drafts, batch, most_drafts, "the drafter's own")
    settings = samplings.by_row(sampling, batch)
    sane = checks.good_settings(settings)
    good = sane & (lengths >= 1) & (lengths <= min(room, width)) & known_ids(prompts, lengths, vocab_size)
    tame = samplings.by_row(Sampling(logit_bias=sampling.logit_bias, allowed=sampling.allowed), batch)
    settings = jax.tree.map(lambda asked, safe: rows.select(sane, asked, safe), settings, tame)
    seed = None if sampling.seed is None else rows.library(sampling.seed).asarray(sampling.seed, np.uint32)
    return Request(
        prompts, lengths, _keys(key, seed, batch, checks.whole("num_samples", num_samples, 1)), settings, limits,
        _eos(eos_ids, batch, vocab_size), _stop(stop, batch, vocab_size), drafts, good)


def full_capacity(width: int, max_new_tokens: int, capacity: int | None) -> int:
    """Tokens a row may hold: what was asked for, or room for the padded prompt and the whole budget."""
    return width + max_new_tokens if capacity is None else checks.whole("capacity", capacity, 1)


def bucket(length: int) -> int:
    """The padded length that prompts of `length` tokens share: 16, 32, then multiples of 64."""
    return next((size for size in (16, 32) if length <= size), -(-length // 64) * 64)


def _prompts(prompts: Any, lengths: Any, vocab_size: int | None) -> tuple[Any, Any]:
    if isinstance(prompts, (list, tuple)) and all(isinstance(row, (list, tuple, np.ndarray)) for row in prompts):
        if lengths is not None:
            raise ValueError("prompts given as lists carry their own lengths: leave `lengths` out, or pass an array")
        if not prompts:
            raise ValueError("prompts is empty: give at least one list of token ids")
        lengths = np.array([len(row) for row in prompts], np.int32)
        if lengths.min() == 0:
            raise ValueError(f"prompt {int(lengths.argmin())} is empty: every prompt needs at least one token, "
                             "such as the tokenizer's BOS or EOS id")
        padded = np.zeros((len(prompts), bucket(int(lengths.max()))), np.int32)
        for row, prompt in enumerate(prompts):
            padded[row, : len(prompt)] = checks.token_ids(f"prompt {row}", prompt, vocab_size)
        return padded, lengths
    if not hasattr(prompts, "ndim") or prompts.ndim != 2 or not jnp.issubdtype(prompts.dtype, jnp.integer):
        raise ValueError("prompts must be an integer array [B, P] or a list of token-id lists, got "
                         f"{getattr(prompts, 'dtype', type(prompts).__name__)}{list(getattr(prompts, 'shape', ()))}; "
                         "turn text into ids with a tokenizer first")
    batch, width = prompts.shape
    if batch == 0 or width == 0:
        raise ValueError(f"prompts has shape [{batch}, {width}]: at least one row and one token are needed")
    lengths = np.full((batch,), width, np.int32) if lengths is None else lengths
    lengths = rows.library(lengths).asarray(lengths, np.int32)
    if lengths.shape != (batch,):
        raise ValueError(f"lengths has shape {list(lengths.shape)}, but prompts has {batch} rows: give [{batch}]")
    if checks.seen(prompts) and checks.seen(lengths):
        used = np.arange(width) < np.asarray(lengths)[:, None]
        checks.token_ids("prompts", np.asarray(prompts)[used], vocab_size)
    return rows.library(prompts).asarray(prompts, np.int32), lengths


def known_ids(tokens: Array, lengths: Array, vocab_size: int | None) -> Array:
    """Whether the first `lengths` [B] ids of each row are tokens of the target: bool [B]."""
    known = (tokens >= 0) & (True if vocab_size is None else tokens < vocab_size)
    numpy = rows.library(tokens, lengths)
    return numpy.all(known | (numpy.arange(tokens.shape[1]) >= lengths[:, None]), axis=1)


@functools.partial(jax.jit, static_argnums=(2, 3))  # traced once: one by one these calls take a millisecond
def _keys(key: Array | None, seed: Any, batch: int, num_samples: int) -> Array:
    """Row keys [B * n]. With a seed, sample 0 of a prompt is what it would be alone; others fold in their number."""
    if seed is None:
        return row_keys(key, None, batch * num_samples)
    first = jnp.repeat(row_keys(None, seed, batch), num_samples)
    sample = jnp.tile(jnp.arange(num_samples), batch)
    return jnp.where(sample == 0, first, fold(first, sample))


def _eos(eos_ids: Any, batch: int, vocab_size: int | None) -> Array:
    eos_ids = () if eos_ids is None else eos_ids
    ids = np.atleast_1d(checks.token_ids("eos_ids", eos_ids, vocab_size, -1)) if checks.seen(eos_ids) else eos_ids
    if ids.ndim == 2 and ids.shape[0] != batch:
        raise ValueError(f"eos_ids has {ids.shape[0]} rows, but prompts has {batch}: give ids, or [{batch}, E]")
    pad = -ids.shape[-1] % 4  # so that one id and four share a program
    widths = [(0, 0)] * (ids.ndim - 1) + [(0, pad or 4 * (ids.shape[-1] == 0))]
    numpy = rows.library(ids)
    ids = numpy.asarray(numpy.pad(ids, widths, constant_values=-1), np.int32)
    return numpy.broadcast_to(ids, (batch, ids.shape[-1]))


def _stop(stop: Any, batch: int, vocab_size: int | None) -> Any:
    stop = () if stop is None else stop
    if hasattr(stop, "ndim"):
        if stop.ndim not in (2, 3) or (stop.ndim == 3 and stop.shape[0] != batch):
            raise ValueError(f"stop has shape {list(stop.shape)}: give token-id lists, or an array [Q, W] or "
                             f"[{batch}, Q, W] padded on the left with -1")
        numpy = rows.library(stop)
        return numpy.broadcast_to(numpy.asarray(stop, np.int32), (batch, *stop.shape[-2:]))
    if isinstance(stop, str):
        raise ValueError(f"stop must hold sequences of token ids, got {stop!r}: encode it with the target's tokenizer")
    sequences = [np.atleast_1d(checks.token_ids(f"stop {i}", one, vocab_size)) for i, one in enumerate(stop)]
    if any(not len(one) for one in sequences):
        raise ValueError("a stop sequence is empty: it would end every row at once; leave it out")
    count = 4 * max(1, -(-len(sequences) // 4))
    width = 8 * max(1, -(-max((len(one) for one in sequences), default=1) // 8))
    table = np.full((count, width), -1, np.int32)
    for row, sequence in enumerate(sequences):
        table[row, width - len(sequence):] = sequence
    return np.broadcast_to(table, (batch, count, width))
