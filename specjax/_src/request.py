"""From what a caller writes to arrays: checked while values can still be seen, padded so that programs are shared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax._src import sampling as samplings
from specjax._src.noise import fold, row_keys
from specjax._src.sampling import Sampling
from specjax._src.types import Array, pytree


@pytree
class Request:
    """One batch of prompts and all that is wanted for them, as arrays: nothing in it causes a recompilation.

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
    prompts, lengths = _prompts(prompts, lengths)
    batch, width = prompts.shape
    if max_new_tokens < 1 or num_samples < 1:
        raise ValueError(f"max_new_tokens and num_samples must be at least 1, got {max_new_tokens} and {num_samples}")
    room = width + max_new_tokens if capacity is None else capacity
    _check_prompts(prompts, lengths, room, vocab_size)
    _check_sampling(sampling, key, batch, vocab_size)
    limits = _per_row("limits", max_new_tokens if limits is None else limits, batch, 0, max_new_tokens,
                      "max_new_tokens")
    drafts = most_drafts if num_speculative_tokens is None else num_speculative_tokens
    drafts = _per_row("num_speculative_tokens", drafts, batch, 0, most_drafts, "the drafter's own")
    settings = samplings.by_row(sampling, batch)
    sane = (settings.temperature >= 0.0) & jnp.isfinite(settings.temperature)
    good = sane & (lengths >= 1) & (lengths <= min(room, width)) & _known_ids(prompts, lengths, vocab_size)
    settings = _tame(settings)
    return Request(
        prompts, lengths, _keys(key, sampling.seed, batch, num_samples), settings, limits,
        _eos(eos_ids, batch), _stop(stop, batch), drafts, good)


def bucket(length: int) -> int:
    """The padded length that prompts of `length` tokens share: 16, 32, then multiples of 64."""
    return next((size for size in (16, 32) if length <= size), -(-length // 64) * 64)


def _seen(value: Any) -> bool:
    """Whether the values can be looked at: not while tracing."""
    return not isinstance(value, jax.core.Tracer)


def _prompts(prompts: Any, lengths: Any) -> tuple[Array, Array]:
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
            padded[row, : len(prompt)] = prompt
        return jnp.asarray(padded), jnp.asarray(lengths)
    if not hasattr(prompts, "ndim") or prompts.ndim != 2 or not jnp.issubdtype(prompts.dtype, jnp.integer):
        raise ValueError("prompts must be an integer array [B, P] or a list of token-id lists, got "
                         f"{getattr(prompts, 'dtype', type(prompts).__name__)}{list(getattr(prompts, 'shape', ()))}; "
                         "turn text into ids with a tokenizer first")
    batch, width = prompts.shape
    if batch == 0 or width == 0:
        raise ValueError(f"prompts has shape [{batch}, {width}]: at least one row and one token are needed")
    lengths = jnp.full((batch,), width, jnp.int32) if lengths is None else jnp.asarray(lengths, jnp.int32)
    if lengths.shape != (batch,):
        raise ValueError(f"lengths has shape {list(lengths.shape)}, but prompts has {batch} rows: give "
                         f"[{batch}]")
    return jnp.asarray(prompts, jnp.int32), lengths


def _known_ids(prompts: Array, lengths: Array, vocab_size: int | None) -> Array:
    """Whether all ids of a prompt are tokens of the target: bool [B]."""
    known = (prompts >= 0) & (True if vocab_size is None else prompts < vocab_size)
    return jnp.all(known | (jnp.arange(prompts.shape[1]) >= lengths[:, None]), axis=1)


def _check_prompts(prompts: Array, lengths: Array, room: int, vocab_size: int | None) -> None:
    if not (_seen(prompts) and _seen(lengths)):
        return
    ids, counts = np.asarray(prompts), np.asarray(lengths)
    if counts.min() < 1 or counts.max() > ids.shape[1]:
        raise ValueError(f"lengths must lie in 1 .. {ids.shape[1]} (the width of prompts), got "
                         f"{counts.min()} .. {counts.max()}; an empty prompt needs a BOS or EOS id")
    if counts.max() > room:
        raise ValueError(f"prompt {int(counts.argmax())} has {counts.max()} tokens and the capacity is {room}: "
                         "raise capacity, or shorten the prompt")
    used = ids[np.arange(ids.shape[1]) < counts[:, None]]
    if used.min() < 0 or (vocab_size is not None and used.max() >= vocab_size):
        raise ValueError(f"prompt ids lie in {used.min()} .. {used.max()}, but the target knows 0 .. "
                         f"{'V - 1' if vocab_size is None else vocab_size - 1}: is this the target's tokenizer?")


def _check_sampling(sampling: Sampling, key: Array | None, batch: int, vocab_size: int | None) -> None:
    ranges = {
        "temperature": (0.0, np.finfo(np.float32).max), "top_k": (0, np.inf), "top_p": (0.0, 1.0), "min_p": (0.0, 1.0),
        "repetition_penalty": (np.finfo(np.float32).tiny, np.inf), "presence_penalty": (-np.inf, np.inf),
        "frequency_penalty": (-np.inf, np.inf), "min_new_tokens": (0, np.inf),
    }
    for name, (low, high) in ranges.items():
        value = getattr(sampling, name)
        if np.ndim(value) > 0 and np.shape(value) != (batch,):
            raise ValueError(f"sampling.{name} has shape {list(np.shape(value))}, but there are {batch} rows: give a "
                             f"scalar or [{batch}]")
        if _seen(value) and not np.all((np.asarray(value) >= low) & (np.asarray(value) <= high)):
            raise ValueError(f"sampling.{name} must lie in {low:g} .. {high:g}, got {np.asarray(value)}")
    if np.shape(sampling.seed) not in ((), (batch,)):
        raise ValueError(f"sampling.seed has shape {list(np.shape(sampling.seed))}, but there are {batch} rows: give a "
                         f"scalar or [{batch}]")
    for name in ("logit_bias", "allowed"):
        value = getattr(sampling, name)
        shape = np.shape(value)
        if value is not None and vocab_size is not None and shape not in ((vocab_size,), (batch, vocab_size)):
            raise ValueError(f"sampling.{name} has shape {list(shape)}, but the target scores {vocab_size} tokens: "
                             f"give [{vocab_size}] or [{batch}, {vocab_size}]")
    hot = not _seen(sampling.temperature) or np.any(np.asarray(sampling.temperature) > 0)
    if hot and key is None and sampling.seed is None:
        raise ValueError(f"temperature is {sampling.temperature} and there is neither key nor seed: pass "
                         "key=jax.random.key(...) or Sampling(seed=...), or temperature=0 for greedy text")


def _tame(settings: Sampling) -> Sampling:
    """Settings no row can be harmed by: what is not a number becomes greedy (such rows are not `good`)."""
    sane = (settings.temperature >= 0.0) & jnp.isfinite(settings.temperature)
    temperature = jnp.where(sane, settings.temperature, 0.0)
    return Sampling(**{**vars(settings), "temperature": temperature})


def _per_row(name: str, value: Any, batch: int, low: int, high: int, high_name: str) -> Array:
    if np.ndim(value) > 0 and np.shape(value) != (batch,):
        raise ValueError(f"{name} has shape {list(np.shape(value))}, but there are {batch} rows: give a scalar or "
                         f"[{batch}]")
    if _seen(value) and not np.all((np.asarray(value) >= low) & (np.asarray(value) <= high)):
        raise ValueError(f"{name} must lie in {low} .. {high} ({high_name}), got {np.asarray(value)}")
    return jnp.clip(jnp.broadcast_to(jnp.asarray(value, jnp.int32), (batch,)), low, high)


def _keys(key: Array | None, seed: Any, batch: int, num_samples: int) -> Array:
    """Row keys [B * n]. With a seed, sample 0 of a prompt is what it would be alone; others fold in their number."""
    if seed is None:
        return row_keys(key, None, batch * num_samples)
    first = jnp.repeat(row_keys(None, seed, batch), num_samples)
    sample = jnp.tile(jnp.arange(num_samples), batch)
    return jnp.where(sample == 0, first, fold(first, sample))


def _eos(eos_ids: Any, batch: int) -> Array:
    eos_ids = () if eos_ids is None else eos_ids
    ids = np.atleast_1d(np.asarray(eos_ids, np.int32)) if _seen(eos_ids) else eos_ids
    if ids.ndim == 2 and ids.shape[0] != batch:
        raise ValueError(f"eos_ids has {ids.shape[0]} rows, but prompts has {batch}: give ids, or [{batch}, E]")
    pad = -ids.shape[-1] % 4  # so that one id and four share a program
    widths = [(0, 0)] * (ids.ndim - 1) + [(0, pad or 4 * (ids.shape[-1] == 0))]
    numpy = np if _seen(ids) else jnp  # on the host, where another number of ids compiles nothing
    ids = jnp.asarray(numpy.pad(ids, widths, constant_values=-1), jnp.int32)
    return jnp.broadcast_to(ids, (batch, ids.shape[-1]))


def _stop(stop: Any, batch: int) -> Array:
    if hasattr(stop, "ndim"):
        if stop.ndim not in (2, 3) or (stop.ndim == 3 and stop.shape[0] != batch):
            raise ValueError(f"stop has shape {list(stop.shape)}: give token-id lists, or an array [Q, W] or "
                             f"[{batch}, Q, W] padded on the left with -1")
        return jnp.broadcast_to(jnp.asarray(stop, jnp.int32), (batch, *stop.shape[-2:]))
    sequences: Sequence[Sequence[int]] = [list(one) if np.ndim(one) else [int(one)] for one in stop]
    if any(not one for one in sequences):
        raise ValueError("a stop sequence is empty: it would end every row at once; leave it out")
    count = 4 * max(1, -(-len(sequences) // 4))
    width = 8 * max(1, -(-max((len(one) for one in sequences), default=1) // 8))
    table = np.full((count, width), -1, np.int32)
    for row, sequence in enumerate(sequences):
        table[row, width - len(sequence):] = sequence
    return jnp.broadcast_to(jnp.asarray(table), (batch, count, width))
