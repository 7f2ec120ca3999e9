"""The front door: `generate` runs a whole generation as one program, `stream` the same rounds one by one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Generator
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from specjax._src import decode
from specjax._src.decode import Rules
from specjax._src.request import Request, full_capacity
from specjax._src.sampling import Sampling
from specjax._src.speculative import checked_request, open_state, result, speculative
from specjax._src.state import Generation, State
from specjax._src.types import Array, Constraint, Drafter, Model, Params, Verifier


def generate(
    model: Model,
    params: Any,
    prompts: Any,
    *,
    lengths: Any = None,
    drafter: Drafter | None = None,
    draft_params: Any = None,
    verifier: Verifier | None = None,
    sampling: Sampling = Sampling(),
    key: Array | None = None,
    max_new_tokens: int,
    limits: Any = None,
    eos_ids: Any = (),
    stop: Any = (),
    constraint: Constraint | None = None,
    num_speculative_tokens: Any = None,
    capacity: int | None = None,
    logprobs: bool = False,
    num_samples: int = 1,
) -> Generation:
    """Generate text under the target's own law, faster with a drafter than without.

    One compiled program for each (batch, prompt width, max_new_tokens, capacity); everything else about a request is
    data, up to the padding: EOS ids count in fours, stop sequences in fours of eight tokens, and whether there is a
    `logit_bias` or an `allowed` mask at all. May be called inside `jax.jit` if the arguments are arrays; then nothing
    can be raised, and a bad row ends with `FinishReason.ERROR`.

    Args:
      model: the target, `specjax.Model`.
      params: its parameters.
      prompts: int32 [B, P], right-padded, with `lengths`; or a list of token-id lists, padded to a common bucket.
      lengths: int32 [B]; None if every row fills `prompts`.
      drafter: from `specjax.draft`; None is plain decoding.
      draft_params: parameters of the drafter's own model, if it has one.
      verifier: from `specjax.verify`; None chooses (see `specjax.speculative`).
      sampling: `specjax.Sampling`; greedy by default.
      key: PRNG key; row `i` draws from `fold_in(key, i)`. Needed where `temperature > 0`, unless `sampling.seed` is
        given. The key is consumed: use another one for another call.
      max_new_tokens: static int, the most tokens a row may generate.
      limits: int32 [B], budgets per row, at most `max_new_tokens`.
      eos_ids: ids that end a row (kept as its last token): a sequence of ids, or int32 [B, E] padded with -1.
      stop: sequences of token ids that end a row when the generated text ends with one (kept in the text).
      constraint: `specjax.Constraint` on the generated text.
      num_speculative_tokens: int or int32 [B], k of each row, at most the drafter's; 0 decodes the row plainly.
      capacity: static int, tokens a row may hold, prompt included; None makes room for everything.
      logprobs: also return log-probabilities.
      num_samples: static int n, continuations of each prompt from one prefill, in rows `i * n .. i * n + n - 1`.

    Returns:
      `Generation` with B * num_samples rows.

    Raises:
      ValueError, TypeError: for bad arguments, naming both sides and the remedy; nothing has run by then.
    """
    decoder = speculative(model, drafter, verifier, constraint=constraint, logprobs=logprobs)
    pair = Params(params, draft_params)
    request = checked_request(
        decoder.rules, pair, prompts, lengths, max_new_tokens=max_new_tokens, capacity=capacity,
        num_samples=num_samples, sampling=sampling, key=key, limits=limits, eos_ids=eos_ids, stop=stop,
        num_speculative_tokens=num_speculative_tokens)
    capacity = full_capacity(request.prompts.shape[1], max_new_tokens, capacity)
    return whole(decoder.rules, max_new_tokens, capacity, num_samples, pair, request)


_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def _takes_arguments_of(
    other: Callable[_Arguments, Any],
) -> Callable[[Callable[..., _Result]], Callable[_Arguments, _Result]]:
    """Show the arguments of `other` to editors, `help` and type checkers, where a function passes some of them on."""

    def decorate(function: Callable[..., _Result]) -> Callable[_Arguments, _Result]:
        result = inspect.signature(function).return_annotation
        function.__signature__ = inspect.signature(other).replace(return_annotation=result)  # type: ignore[attr-defined]
        return function

    return decorate


@_takes_arguments_of(generate)
def stream(
    model: Model,
    params: Any,
    prompts: Any,
    *,
    lengths: Any = None,
    drafter: Drafter | None = None,
    draft_params: Any = None,
    verifier: Verifier | None = None,
    constraint: Constraint | None = None,
    max_new_tokens: int,
    capacity: int | None = None,
    logprobs: bool = False,
    num_samples: int = 1,
    **request: Any,
) -> Generator[tuple[Array, Array], None, Generation]:
    """Generate round by round: the arguments, the law and the tokens of `generate`, for showing text as it comes.

    Yields:
      `(tokens int32 [B, P], counts int32 [B])` for each round: row `i` gained `tokens[i, :counts[i]]`.

    Returns:
      the whole `Generation`, as the value of the generator (`result = yield from stream(...)`).

    Raises:
      ValueError, TypeError: at the call, before the first round.
    """
    decoder = speculative(model, drafter, verifier, constraint=constraint, logprobs=logprobs)
    pair = Params(params, draft_params)
    checked = checked_request(
        decoder.rules, pair, prompts, lengths, max_new_tokens=max_new_tokens, capacity=capacity,
        num_samples=num_samples, **request)
    capacity = full_capacity(checked.prompts.shape[1], max_new_tokens, capacity)
    return _rounds(decoder.rules, pair, opened(decoder.rules, max_new_tokens, capacity, num_samples, pair, checked))


def _rounds(rules: Rules, params: Params, state: State) -> Generator[tuple[Array, Array], None, Generation]:
    rungs = decode.ladder(rules.drafter)
    width = rungs[0].shape.num_speculative_tokens + 1
    longest = int(_longest(state))
    while longest >= 0:
        rung = [rung for rung in rungs if rung.shape.num_speculative_tokens >= longest][-1]
        state, tokens, counts, longest_next = one_round(rules, rung, width, params, state)
        yield tokens, counts
        longest = int(longest_next)
    return _finished(state)


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3))
def whole(
    rules: Rules, max_new_tokens: int, capacity: int | None, num_samples: int, params: Params, request: Request
) -> Generation:
    """A whole generation, prefill included, in one program."""
    state = open_state(rules, params, request, max_new_tokens, capacity, num_samples)
    return result(decode.run(rules, params, state, max_new_tokens))


opened = jax.jit(
    lambda rules, max_new_tokens, capacity, num_samples, params, request: open_state(
        rules, params, request, max_new_tokens, capacity, num_samples), static_argnums=(0, 1, 2, 3))


@functools.partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=(4,))
def one_round(
    rules: Rules, rung: Drafter, width: int, params: Params, state: State
) -> tuple[State, Array, Array, Array]:
    """One round; the state is donated, so its caches are updated in place.

    Returns:
      the state, the tokens int32 [B, width], how many of them count [B], and what `_longest` says of the state.
    """
    state, info = decode.round_step(rules, rung, params, state)
    tokens = jnp.pad(info.tokens, ((0, 0), (0, width - info.tokens.shape[1])))
    return state, tokens, info.counts, _longest(state)


@jax.jit
def _longest(state: State) -> Array:
    """The most tokens a live row will propose next, -1 if no row lives: all the host has to know between rounds."""
    return jnp.where(jnp.any(state.live), jnp.max(state.drafts), -1)


_finished = jax.jit(result)
