"""Slow, obvious versions of what specjax computes: numpy in float64, one row, one token at a time, sorting freely.

Nothing here is shared with the library but the random numbers, which are passed in. Laws are float64 [V].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from specjax._src.sampling import Sampling

Law = np.ndarray


def target_law(
    logits: Any,
    sampling: Sampling,
    prompt: Sequence[int] = (),
    output: Sequence[int] = (),
    eos: Sequence[int] = (),
    mask: Any = None,
) -> Law:
    """The law [V] of the token after `prompt` and `output`, from raw `logits` [V], for one row's scalar settings."""
    scores = np.asarray(logits, np.float64).copy()
    if sampling.logit_bias is not None:
        scores += np.asarray(sampling.logit_bias, np.float64)
    for allowed in (sampling.allowed, mask):
        if allowed is not None:
            scores[~np.asarray(allowed, bool)] = -np.inf
    if len(output) < sampling.min_new_tokens:
        scores[[one for one in eos if one >= 0]] = -np.inf
    for token in set(prompt) | set(output):
        rate = float(sampling.repetition_penalty)
        scores[token] = scores[token] / rate if scores[token] > 0 else scores[token] * rate
    for token in set(output):
        times = list(output).count(token)
        scores[token] -= float(sampling.presence_penalty) + float(sampling.frequency_penalty) * times
    if sampling.temperature == 0:
        return np.eye(len(scores))[int(np.argmax(scores))]
    law = normalise(np.exp((scores - scores.max()) / float(sampling.temperature)))
    law = top_k(law, int(sampling.top_k))
    law = top_p(law, float(sampling.top_p))
    return min_p(law, float(sampling.min_p))


def normalise(weights: Any) -> Law:
    """`weights` over their sum."""
    weights = np.asarray(weights, np.float64)
    return weights / weights.sum()


def top_k(law: Law, k: int) -> Law:
    """The `k` likeliest tokens and ties with the last of them; 0 is off."""
    if k <= 0 or k >= len(law):
        return law
    return normalise(np.where(law >= np.sort(law)[-k], law, 0.0))


def top_p(law: Law, p: float) -> Law:
    """The fewest likeliest tokens of mass at least `p`, with ties of the last one; 1 is off."""
    if p >= 1.0:
        return law
    ordered = np.sort(law)[::-1]
    last = int(np.argmax(np.cumsum(ordered) >= p)) if np.sum(ordered) >= p else len(law) - 1
    return normalise(np.where(law >= ordered[last], law, 0.0))


def min_p(law: Law, p: float) -> Law:
    """Tokens of at least `p` times the largest probability."""
    return normalise(np.where(law >= p * law.max() * (1.0 - 1e-7), law, 0.0))


def rejection_law(drafted: Sequence[int], q: Any, p: Any) -> tuple[np.ndarray, np.ndarray]:
    """Token-wise rejection: the law of a round given the drafted tokens.

    Args:
      drafted: k tokens.
      q: [k, V], the laws they were drawn from; None for chosen tokens (one-hot).
      p: [k + 1, V], the target's laws.

    Returns:
      count: [k + 1], the probability that exactly `n` drafted tokens are kept.
      following: [k + 1, V], the law of the token after them.
    """
    k, vocab_size = len(drafted), np.shape(p)[-1]
    q = _spelled_out(drafted, q, vocab_size)
    count, reach = np.zeros(k + 1), 1.0
    for place, token in enumerate(drafted):
        accept = min(1.0, p[place][token] / q[place][token])
        count[place] = reach * (1.0 - accept)
        reach *= accept
    count[k] = reach
    following = [residual(p[n], q[n] if n < k else np.zeros(vocab_size)) for n in range(k + 1)]
    return count, np.array(following)


def block_law(drafted: Sequence[int], q: Any, p: Any) -> tuple[np.ndarray, np.ndarray]:
    """Block verification in the form of arXiv:2403.10444; arguments and result as in `rejection_law`."""
    k, vocab_size = len(drafted), np.shape(p)[-1]
    q = _spelled_out(drafted, q, vocab_size)
    joint = [1.0]
    for place, token in enumerate(drafted):
        joint.append(min(joint[-1] * p[place][token] / q[place][token], 1.0))
    stop = []
    for n in range(k):
        surplus = float(np.sum(np.maximum(joint[n] * p[n] - q[n], 0.0)))
        stop.append(1.0 if joint[n] == 1.0 else surplus / (surplus + 1.0 - joint[n]))
    stop.append(joint[k])
    stop[0] = 1.0
    count = [stop[n] * np.prod([1.0 - later for later in stop[n + 1 :]]) for n in range(k + 1)]
    following = [residual(joint[n] * p[n], q[n] if n < k else np.zeros(vocab_size), p[n]) for n in range(k + 1)]
    return np.array(count), np.array(following)


def residual(p: Any, q: Any, fallback: Any = None) -> Law:
    """`norm((p - q)_+)`, or `fallback` (default p) where nothing is left."""
    left = np.maximum(np.asarray(p, np.float64) - q, 0.0)
    return normalise(left) if left.sum() > 0 else normalise(p if fallback is None else fallback)


def _spelled_out(drafted: Sequence[int], q: Any, vocab_size: int) -> np.ndarray:
    return np.eye(vocab_size)[list(drafted)] if q is None else np.asarray(q, np.float64)


class Numbers(NamedTuple):
    """The random numbers of one row, by address.

    Attributes:
      accept: `(length) -> float`, uniform.
      recover: `(length) -> (u, v)`, two uniforms.
      target: `(position) -> [V]`, Gumbel, of the match family.
      draft: `(length, node) -> (u, v)`, two uniforms.
    """

    accept: Callable[[int], float]
    recover: Callable[[int], tuple[float, float]]
    target: Callable[[int], np.ndarray]
    draft: Callable[[int, int], tuple[float, float]]


def choose(law: Law, numbers: Any) -> int:
    """The token that `numbers` pick from `law` [V]: Gumbel noise [V], or a pair of uniforms for block and place."""
    if not isinstance(numbers, tuple):
        with np.errstate(divide="ignore"):
            return int(np.argmax(np.log(law) + numbers))
    unit = 128 if len(law) >= 4096 else 8  # the number of blocks is a multiple of it, near the square root
    width = math.ceil(len(law) / (unit * max(1, round(math.sqrt(len(law)) / unit))))
    masses = [float(np.sum(law[at : at + width])) for at in range(0, len(law), width)]
    block = _first_beyond(masses, numbers[0])
    return block * width + _first_beyond(law[block * width : (block + 1) * width], numbers[1])


def _first_beyond(weights: Any, uniform: float) -> int:
    """The index at which the running sum first exceeds `uniform` of the whole."""
    mark, running = uniform * float(np.sum(weights)), 0.0
    for index, weight in enumerate(weights):
        running += float(weight)
        if running > mark:
            return index
    return int(np.max(np.nonzero(weights)))


def draw_counted(law: tuple[np.ndarray, np.ndarray], uniform: float, numbers: Any) -> tuple[int, int]:
    """How many drafted tokens are kept and the next token, for the result of `rejection_law` or `block_law`."""
    count, following = law
    reached = (uniform < np.cumsum(count)) & (count > 0)
    kept = int(np.argmax(reached)) if reached.any() else int(np.max(np.nonzero(count)))
    return kept, choose(following[kept], numbers)


def draw_match(drafted: Sequence[int], p: Any, gumbels: Any) -> tuple[int, int]:
    """Sample, then match: `p` and `gumbels` [k + 1, V]."""
    for place, token in enumerate(drafted):
        own = choose(p[place], gumbels[place])
        if own != token:
            return place, own
    return len(drafted), choose(p[len(drafted)], gumbels[len(drafted)])


def look_up(tokens: Sequence[int], count: int, max_ngram: int = 3, min_ngram: int = 1) -> list[int]:
    """Prompt look-up: what followed the latest of the longest matches of the end of `tokens`, as often as it takes."""
    tokens = list(tokens)
    for size in range(min(max_ngram, len(tokens) - 1), min_ngram - 1, -1):
        for end in range(len(tokens) - 1, size - 1, -1):
            if tokens[end - size : end] == tokens[-size:]:
                period = tokens[end:]
                return [period[i % len(period)] for i in range(count)]
    return []


class Written(NamedTuple):
    """What one row wrote: `tokens`, `reason`, and the counters of `specjax.Stats` for that row."""

    tokens: list[int]
    reason: str
    rounds: int
    drafted: list[int]
    accepted: list[int]
    recovered: int
    bonus: int


def plain(law: Callable[[list[int]], Law], prompt_length: int, numbers: Numbers, max_new_tokens: int) -> list[int]:
    """Plain decoding: token by token, with the noise of each absolute position; `law(output) -> [V]`."""
    output: list[int] = []
    for _ in range(max_new_tokens):
        output.append(choose(law(output), numbers.target(prompt_length + len(output))))
    return output


def speculative(
    law: Callable[[list[int]], Law],
    draft: Callable[[list[int], int, Callable[[int], Any]], tuple[list[int], Any]],
    verifier: str,
    prompt_length: int,
    numbers: Numbers,
    *,
    k: int,
    max_new_tokens: int,
    eos: Sequence[int] = (),
    stop: Sequence[Sequence[int]] = (),
) -> Written:
    """The whole loop for one row.

    Args:
      law: `(output) -> [V]`, the target's law after the prompt and `output`.
      draft: `(output, count, numbers of node) -> (at most count tokens, their laws [count, V] or None)`.
      verifier: "match", "rejection" or "block".
      prompt_length: tokens before the output.
      numbers: the row's random numbers.
      k: most tokens drafted in a round.
      max_new_tokens: the budget.
      eos: ids that end the row.
      stop: sequences that end it.
    """
    output: list[int] = []
    drafted_record, accepted_record, recovered, bonus, reason = [], [], 0, 0, ""
    while not reason:
        length = prompt_length + len(output)
        node_noise = (lambda node, at=length: numbers.target(at + node)) if verifier == "match" else (
            lambda node, at=length: numbers.draft(at, node))
        drafted, q = draft(output, min(k, max_new_tokens - len(output) - 1), node_noise)
        p = np.array([law(output + drafted[:n]) for n in range(len(drafted) + 1)])
        if verifier == "match":
            kept, own = draw_match(drafted, p, [numbers.target(length + n) for n in range(len(drafted) + 1)])
        else:
            rule = {"rejection": rejection_law, "block": block_law}[verifier]
            kept, own = draw_counted(rule(drafted, q, p), numbers.accept(length), numbers.recover(length))
        counted, proposed = 0, len(drafted)
        for token in [*drafted[:kept], own]:
            output.append(token)
            counted += 1
            reason = _reason(output, max_new_tokens, eos, stop)
            if reason:
                proposed = min(proposed, counted)
                break
        drafted_record.append(proposed)
        accepted_record.append(min(kept, counted))
        if counted > kept:
            recovered, bonus = recovered + (kept < len(drafted)), bonus + (kept == len(drafted))
    return Written(output, reason, len(drafted_record), drafted_record, accepted_record, recovered, bonus)


def _reason(output: list[int], budget: int, eos: Sequence[int], stop: Sequence[Sequence[int]]) -> str:
    if output[-1] in eos:
        return "EOS"
    if any(output[-len(one) :] == list(one) for one in stop):
        return "STOP"
    return "LENGTH" if len(output) == budget else ""
