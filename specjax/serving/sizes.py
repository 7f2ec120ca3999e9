"""What is fixed when an engine is built, so that no request compiles anything, and requests brought to these sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from specjax._src import checks, speculative
from specjax._src.decode import Rules
from specjax._src.request import Request
from specjax._src.sampling import Sampling
from specjax._src.speculative import EXTEND
from specjax._src.types import PREFILL, Array, Params

BEHIND = EXTEND
"""Slots of a row behind its capacity, at least; the narrowest pass over a prompt is half of that."""


class Sizes(NamedTuple):
    """The static sizes of an engine; hashable, so that engines of one size share their programs.

    Attributes:
      slots: B, rows of the running batch.
      capacity: S, tokens a row may hold.
      max_new_tokens: M, the largest budget of a request.
      prefill_chunk: tokens of the widest pass over a prompt.
      prefill_budget: tokens, padding included, that the passes of one step may have together.
      rounds_per_step: R.
      max_queue: requests that may wait.
      max_prefixes: prefixes that may be stored.
      max_eos: E, EOS ids of a request.
      max_stops: Q, stop sequences of a request.
      max_stop_tokens: W, tokens of one.
      logit_bias: whether requests may have one.
      allowed: whether requests may have a mask.
    """

    slots: int
    capacity: int
    max_new_tokens: int
    prefill_chunk: int
    prefill_budget: int
    rounds_per_step: int
    max_queue: int
    max_prefixes: int
    max_eos: int
    max_stops: int
    max_stop_tokens: int
    logit_bias: bool
    allowed: bool

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths of the passes over a prompt, ascending; each is a compiled program."""
        most = min(self.prefill_chunk, self.capacity + BEHIND)  # a wider one would not fit in a row
        return (*(width for width in (16, 32, 64, 128) if width < most), most)

    def pass_width(self, entries: int, left: int, budget: int) -> int:
        """Of the next pass, behind `entries` tokens, with `left` to be read; 0 if the `budget` allows none."""
        # Near the end of a row narrow passes do, so that rows need no room for a wide one behind their capacity.
        fitting = [width for width in self.widths if width <= budget and entries + width <= self.capacity + BEHIND]
        return next((width for width in fitting if width >= left), fitting[-1] if fitting else 0)


def checked_sizes(sizes: Sizes) -> Sizes:
    """`sizes`, if each is a whole number and they go together.

    Raises:
      ValueError: naming both sides and the remedy.
    """
    least = {"max_queue": 0, "max_prefixes": 0}
    numbers: dict[str, Any] = {name: checks.whole(name, value, least.get(name, 1))
                               for name, value in sizes._asdict().items() if name not in ("logit_bias", "allowed")}
    sizes = sizes._replace(**numbers)
    if sizes.prefill_chunk > PREFILL:
        raise ValueError(f"prefill_chunk is {sizes.prefill_chunk}, but a drafter reads {PREFILL} tokens of a prompt at "
                         f"most in one pass: choose 1 .. {PREFILL}, and a larger prefill_budget for more of them")
    if sizes.prefill_budget < sizes.prefill_chunk:
        raise ValueError(f"prefill_budget is {sizes.prefill_budget} tokens a step, but one pass takes prefill_chunk = "
                         f"{sizes.prefill_chunk}: raise the budget, or lower prefill_chunk")
    return sizes


def checked(rules: Rules, params: Params, sizes: Sizes, prompt: Any, max_new_tokens: Any, **arguments: Any) -> Request:
    """One request as arrays of the engine's sizes: numpy, but for the key; prompts [1, S].

    Args:
      rules, params, sizes: of the engine.
      prompt: token ids.
      max_new_tokens: its budget, or None for all that the engine allows.
      **arguments: `sampling`, `key`, `eos_ids`, `stop`, `num_speculative_tokens` as in `specjax.generate`.

    Raises:
      ValueError, TypeError: naming both sides and the remedy.
    """
    prompt = _one_sequence(prompt)
    budget = sizes.max_new_tokens if max_new_tokens is None else checks.whole("max_new_tokens", max_new_tokens, 0)
    if budget > sizes.max_new_tokens:
        raise ValueError(f"max_new_tokens is {budget}, but the engine was built for {sizes.max_new_tokens}: ask for "
                         f"less, or build it with max_new_tokens={budget}")
    _check_vocab_switches(sizes, arguments.get("sampling"))
    arguments = {name: _on_host(value) if name != "key" else value for name, value in arguments.items()}
    request = speculative.checked_request(
        rules, params, [prompt], None, max_new_tokens=sizes.max_new_tokens, capacity=sizes.capacity, num_samples=1,
        limits=budget, **arguments)
    padded: Any = np.zeros((1, sizes.capacity), np.int32)
    padded[0, : len(prompt)] = prompt
    settings = request.sampling
    if sizes.logit_bias or sizes.allowed:
        settings = _with_vocab_arrays(sizes, settings, speculative.target_vocab(rules, params))
    return replace(request, prompts=padded, eos=_fitted_eos(sizes, request.eos), stop=_fitted_stop(sizes, request.stop),
                   sampling=settings)


def _one_sequence(prompt: Any) -> np.ndarray:
    if isinstance(prompt, str) or np.ndim(prompt) != 1:
        kind = repr(prompt) if isinstance(prompt, str) else f"{np.ndim(prompt)} axes"
        raise ValueError(f"prompt must be one sequence of token ids, got {kind}: encode text with the target's "
                         "tokenizer, and submit each prompt by itself")
    return np.asarray(prompt)


def _on_host(value: Any) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, value)


def _check_vocab_switches(sizes: Sizes, sampling: Any) -> None:
    for name in ("logit_bias", "allowed"):
        if getattr(sampling, name, None) is not None and not getattr(sizes, name):
            raise ValueError(f"the request has a sampling.{name}, but the engine was built without room for one: build "
                             f"it with {name}=True, or leave sampling.{name} out")


def _with_vocab_arrays(sizes: Sizes, sampling: Sampling, vocab_size: int) -> Sampling:
    """Those arrays that the engine has room for and the request lacks, neutral."""
    bias, allowed = sampling.logit_bias, sampling.allowed
    if sizes.logit_bias and bias is None:
        bias = np.zeros((1, vocab_size), np.float32)
    if sizes.allowed and allowed is None:
        allowed = np.ones((1, vocab_size), bool)
    return replace(sampling, logit_bias=bias, allowed=allowed)


def _fitted_eos(sizes: Sizes, eos: Array) -> Any:
    ids = np.unique(np.asarray(eos)[np.asarray(eos) >= 0])
    if len(ids) > sizes.max_eos:
        raise ValueError(f"the request has {len(ids)} eos_ids, but the engine has room for {sizes.max_eos}: build it "
                         f"with max_eos={len(ids)}, or name fewer")
    return np.pad(ids.astype(np.int32), (0, sizes.max_eos - len(ids)), constant_values=-1)[None]


def _fitted_stop(sizes: Sizes, stop: Array) -> Any:
    table = np.asarray(stop)[0]
    table = table[(table >= 0).any(axis=1)]
    longest = int((table >= 0).sum(axis=1).max(initial=0))
    if len(table) > sizes.max_stops or longest > sizes.max_stop_tokens:
        raise ValueError(
            f"the request has {len(table)} stop sequences of up to {longest} tokens, but the engine has room for "
            f"{sizes.max_stops} of {sizes.max_stop_tokens}: build it with max_stops={max(len(table), sizes.max_stops)} "
            f"and max_stop_tokens={max(longest, sizes.max_stop_tokens)}, or name fewer")
    fitted = np.full((1, sizes.max_stops, sizes.max_stop_tokens), -1, np.int32)
    if longest:
        fitted[0, : len(table), -longest:] = table[:, -longest:]
    return fitted
