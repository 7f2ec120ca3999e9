"""What is wrong with a request, said while it can be said: outside `jax.jit`, naming both sides and the remedy."""

from __future__ import annotations

import operator
from typing import Any

import jax
import numpy as np

from specjax._src import rows
from specjax._src.sampling import Sampling
from specjax._src.types import Array

_FLOAT, _INT = float(np.finfo(np.float32).max), 2**31 - 1
RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, _FLOAT),
    "top_k": (0, _INT),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (float(np.finfo(np.float32).tiny), _FLOAT),
    "presence_penalty": (-_FLOAT, _FLOAT),
    "frequency_penalty": (-_FLOAT, _FLOAT),
    "min_new_tokens": (0, _INT),
}


def seen(value: Any) -> bool:
    """Whether the values can be looked at: not while tracing."""
    return not isinstance(value, jax.core.Tracer)


def whole(name: str, value: Any, low: int) -> int:
    """`value` as a Python int of at least `low`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(
            f"{name} must be a whole number, known before the program is compiled; got {value!r}") from None
    if number < low:
        raise ValueError(f"{name} must be at least {low}, got {number}")
    return number


def arrays(name: str, value: Any, remedy: str) -> None:
    """Refuse as `name` a tree of anything but arrays; it should be the `remedy`."""
    strange = [leaf for leaf in jax.tree.leaves(value) if not hasattr(leaf, "dtype")]
    if strange:
        raise TypeError(f"{name} must be a tree of arrays, this {type(value).__name__} holds a "
                        f"{type(strange[0]).__name__}: pass {remedy}")


def network(factory: str, value: Any, kind: type, remedy: str) -> None:
    """Refuse as `factory`'s network what is no `kind`; it should be the `remedy`."""
    if not isinstance(value, kind):
        raise TypeError(f"{factory} needs a specjax.{kind.__name__}, got a {type(value).__name__}: pass the "
                        f"{remedy} (and its `params` as draft_params)")


def token_ids(name: str, value: Any, vocab_size: int | None, low: int = 0) -> np.ndarray:
    """`value` as an integer array whose ids the target knows; `low = -1` allows padding."""
    array = np.asarray(value)
    if array.size == 0:
        return array.astype(np.int32)
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{name} must hold token ids, got {value!r} ({array.dtype}): turn text into ids with the "
                         "target's tokenizer first")
    high = _INT if vocab_size is None else vocab_size - 1
    if array.min() < low or array.max() > high:
        raise ValueError(f"{name} holds ids {array.min()} .. {array.max()}, but the target knows {low} .. {high}: is "
                         "this the target's tokenizer?")
    return array.astype(np.int32)


def check_lengths(lengths: Array, width: int, room: int) -> None:
    """Refuse prompts that are empty, longer than their array, or longer than the capacity."""
    if not seen(lengths):
        return
    counts = np.asarray(lengths)
    if counts.min() < 1 or counts.max() > width:
        raise ValueError(f"lengths must lie in 1 .. {width} (the width of prompts), got {counts.min()} .. "
                         f"{counts.max()}; an empty prompt needs a BOS or EOS id")
    if counts.max() > room:
        raise ValueError(f"prompt {int(counts.argmax())} has {counts.max()} tokens and the capacity is {room}: "
                         "raise capacity, or shorten the prompt")


def check_sampling(sampling: Any, key: Any, batch: int, vocab_size: int | None) -> None:
    """Refuse settings out of range or of the wrong shape, and randomness without a source."""
    if not isinstance(sampling, Sampling):
        raise TypeError(f"sampling must be a specjax.Sampling, such as Sampling(temperature=0.8), got {sampling!r}")
    for name, (low, high) in RANGES.items():
        value = getattr(sampling, name)
        _check_shape(f"sampling.{name}", value, batch)
        if seen(value) and not np.all((np.asarray(value) >= low) & (np.asarray(value) <= high)):
            raise ValueError(f"sampling.{name} must lie in {low:g} .. {high:g}, got {np.asarray(value)}")
    if sampling.seed is not None:
        _check_shape("sampling.seed", sampling.seed, batch)
        if seen(sampling.seed) and not np.all((np.asarray(sampling.seed) >= 0) & (np.asarray(sampling.seed) < 2**32)):
            raise ValueError(f"sampling.seed must lie in 0 .. 2**32 - 1, got {np.asarray(sampling.seed)}")
    _check_vocab_arrays(sampling, batch, vocab_size)
    if key is not None and not isinstance(key, jax.Array):
        raise ValueError(f"key must be a PRNG key, got {key!r}: pass jax.random.key({key!r})")
    hot = not seen(sampling.temperature) or np.any(np.asarray(sampling.temperature) > 0)
    if hot and key is None and sampling.seed is None:
        raise ValueError(f"temperature is {sampling.temperature} and there is neither key nor seed: pass "
                         "key=jax.random.key(...) or Sampling(seed=...), or temperature=0 for greedy text")


def per_row(name: str, value: Any, batch: int, high: int, high_name: str) -> Array:
    """`value` as int32 [B] in 0 .. high."""
    _check_shape(name, value, batch)
    if seen(value) and not np.all((np.asarray(value) >= 0) & (np.asarray(value) <= high)):
        raise ValueError(f"{name} must lie in 0 .. {high} ({high_name}), got {np.asarray(value)}")
    numpy = rows.library(value)
    return numpy.clip(numpy.broadcast_to(numpy.asarray(value, np.int32), (batch,)), 0, high)


def good_settings(settings: Sampling) -> Array:
    """Rows whose settings are all in range: bool [B]. What can not be refused while tracing ends in an error row."""
    limits = [(getattr(settings, name), low, high) for name, (low, high) in RANGES.items()]
    numpy = rows.library(settings)
    return numpy.all(numpy.stack([(value >= low) & (value <= high) for value, low, high in limits]), axis=0)


def _check_shape(name: str, value: Any, batch: int) -> None:
    if np.shape(value) not in ((), (batch,)):
        raise ValueError(f"{name} has shape {list(np.shape(value))}, but there are {batch} rows: give a scalar or "
                         f"[{batch}]")


def _check_vocab_arrays(sampling: Sampling, batch: int, vocab_size: int | None) -> None:
    for name in ("logit_bias", "allowed"):
        value = getattr(sampling, name)
        shape = np.shape(value)
        if value is not None and vocab_size is not None and shape not in ((vocab_size,), (batch, vocab_size)):
            raise ValueError(f"sampling.{name} has shape {list(shape)}, but the target scores {vocab_size} tokens: "
                             f"give [{vocab_size}] or [{batch}, {vocab_size}]")
    allowed, bias = (value if value is None or hasattr(value, "dtype") else np.asarray(value)
                     for value in (sampling.allowed, sampling.logit_bias))
    if allowed is not None and allowed.dtype != bool:
        raise ValueError(f"sampling.allowed must be a bool mask, got {allowed.dtype}: for a list of ids write "
                         "jnp.zeros(V, bool).at[ids].set(True)")
    if allowed is not None and seen(allowed) and not allowed.any(axis=-1).all():
        raise ValueError("sampling.allowed forbids every token, in some row at least: allow one, or leave it None")
    if bias is not None and seen(bias) and (bias.dtype.kind in "USOc" or not (bias <= _FLOAT).all()):
        raise ValueError("sampling.logit_bias must hold finite float32 numbers, or -inf to forbid a token; it has "
                         f"others, such as NaN or +inf ({bias.dtype})")
