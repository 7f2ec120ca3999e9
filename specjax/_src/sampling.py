"""The sampling law: one fixed order of transforms for plain, verified and bonus positions, and for the draft.

    logits -> bias and masks -> penalties -> temperature -> top-k -> top-p -> min-p -> normalised log-probabilities

Every setting is an array with one entry a row, so another request never recompiles; a transform that no row uses is
skipped at run time by `lax.cond`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax._src import rows, truncate
from specjax._src.tree import TokenTree
from specjax._src.types import Array, pytree


@pytree
class Sampling:
    """How tokens are drawn. Each field is a scalar, or an array with one entry a row [B], which may differ by row.

    The order is fixed: bias and masks, penalties, temperature, top-k, top-p, min-p. A field left at its default
    changes nothing. With `temperature = 0` the likeliest token is taken (the lowest id of equals) after bias, masks
    and penalties.

    Attributes:
      temperature: float >= 0; 0 is greedy. Rows may mix.
      top_k: int; keep the k likeliest (ties with the last are kept); 0 keeps all.
      top_p: float in [0, 1]; keep the smallest set of at least this mass, the token that crosses it included.
      min_p: float in [0, 1]; keep tokens of at least this share of the largest probability.
      repetition_penalty: float > 0; logits of tokens seen in prompt or output are divided by it if positive, else
        multiplied (arXiv:1909.05858). 1 is off.
      presence_penalty: float; subtracted from the logit of each token already in the output.
      frequency_penalty: float; subtracted once for each time the token is in the output.
      logit_bias: float [V] or [B, V], added to the logits; or None.
      allowed: bool [V] or [B, V], the tokens that may appear; or None.
      min_new_tokens: int; EOS ids can not appear, and stops do not end a row, before so many generated tokens.
      seed: int [B] or None; with it a row's text depends on neither `key` nor the other rows.
    """

    temperature: Any = 0.0
    top_k: Any = 0
    top_p: Any = 1.0
    min_p: Any = 0.0
    repetition_penalty: Any = 1.0
    presence_penalty: Any = 0.0
    frequency_penalty: Any = 0.0
    logit_bias: Any = None
    allowed: Any = None
    min_new_tokens: Any = 0
    seed: Any = None


@pytree
class History:
    """What the transforms need to know of each row.

    Attributes:
      tokens: int32 [B, L], committed tokens.
      length: int32 [B], how many of them count.
      start: int32 [B], where the output begins: what stands before is prompt.
      eos: int32 [B, E], ids that end a row, padded with -1.
      sampling: `Sampling` with every field an array [B] (or [B, V]).
    """

    tokens: Array
    length: Array
    start: Array
    eos: Array
    sampling: Sampling


class Prefix(NamedTuple):
    """The drafted tokens that stand between the committed text and each of T places.

    Attributes:
      tokens: int32 [B, D], drafted tokens in any order.
      before: bool [1 | B, T, D], which of them precede each place.
      depth: int32 [1 | B, T], how many do.
    """

    tokens: Array
    before: Array
    depth: Array


def chain_prefix(drafted: Array, offset: Array | int, places: int) -> Prefix:
    """`places` consecutive places on a chain of `drafted` [B, D]; `offset` of them precede the first place."""
    depth = offset + jnp.arange(places, dtype=jnp.int32)
    return Prefix(drafted, (jnp.arange(drafted.shape[1]) < depth[:, None])[None], depth[None])


def tree_prefix(tree: TokenTree) -> Prefix:
    """The places behind each node of a tree."""
    if tree.shape.is_chain:
        return chain_prefix(tree.drafted, 0, tree.shape.num_nodes)
    return Prefix(tree.drafted, tree.ancestors[:, :, 1:], tree.depths)


def by_row(sampling: Sampling, batch: int) -> Sampling:
    """`sampling` with every scalar spread to [B] and every [V] to [B, V]; `seed` is dropped (it lives in the keys).

    What is on the host stays there.
    """

    def spread(value: Any, dtype: Any) -> Array:
        numpy = rows.library(value)
        return numpy.broadcast_to(numpy.asarray(value, dtype), (batch,))

    def spread_vocab(value: Any, dtype: Any) -> Array | None:
        if value is None:
            return None
        numpy = rows.library(value)
        value = numpy.asarray(value, dtype)
        return numpy.broadcast_to(value, (batch, value.shape[-1]))

    return Sampling(
        temperature=spread(sampling.temperature, jnp.float32),
        top_k=spread(sampling.top_k, jnp.int32),
        top_p=spread(sampling.top_p, jnp.float32),
        min_p=spread(sampling.min_p, jnp.float32),
        repetition_penalty=spread(sampling.repetition_penalty, jnp.float32),
        presence_penalty=spread(sampling.presence_penalty, jnp.float32),
        frequency_penalty=spread(sampling.frequency_penalty, jnp.float32),
        logit_bias=spread_vocab(sampling.logit_bias, jnp.float32),
        allowed=spread_vocab(sampling.allowed, jnp.bool_),
        min_new_tokens=spread(sampling.min_new_tokens, jnp.int32),
    )


def adjust(logits: Array, history: History, prefix: Prefix, mask: Array | None = None) -> Array:
    """Bias, masks and penalties: what acts on the logits of greedy and sampled rows alike.

    Args:
      logits: [B, T, V]; row `t` stands after the committed tokens and those of `prefix` that precede place `t`.
      history: of the rows.
      prefix: the drafted tokens before each place.
      mask: bool [B, T, V] of a constraint, or None.

    Returns:
      float32 [B, T, V]; -inf where a token is forbidden.
    """
    sampling = history.sampling
    logits = logits.astype(jnp.float32)
    if sampling.logit_bias is not None:
        logits = logits + sampling.logit_bias[:, None]
    allowed = None if sampling.allowed is None else sampling.allowed[:, None]
    if mask is not None:
        allowed = mask if allowed is None else mask & allowed
    if allowed is not None:
        logits = jnp.where(allowed, logits, -jnp.inf)
    logits = _withhold_eos(logits, history, prefix)
    return _penalise(logits, history, prefix)


def log_law(logits: Array, sampling: Sampling, exactly: bool = True) -> Array:
    """Normalised log-probabilities of the law that is sampled from: temperature, top-k, top-p, min-p.

    Args:
      logits: float32 [B, T, V], after `adjust`.
      sampling: by row.
      exactly: if not, top-p may keep a few tokens that are a little less likely than its last one. A draft may do so,
        since a verifier is exact for any draft law, and it halves the price.

    Returns:
      float32 [B, T, V]; -inf outside the support; for a greedy row 0 at the likeliest token and -inf elsewhere.
    """
    temperature = sampling.temperature[:, None, None]
    greedy = temperature <= 0.0
    # Subtracting the maximum first keeps the tiniest temperature finite: 0 / T is 0, everything else sinks.
    log_probs = jax.nn.log_softmax((logits - jnp.max(logits, -1, keepdims=True)) / jnp.where(greedy, 1.0, temperature))

    def spread(value: Array) -> Array:
        return jnp.broadcast_to(value[:, None], logits.shape[:2])

    def when(used: Array, keep: Any, log_probs: Array) -> Array:
        def truncated(log_probs: Array) -> Array:
            kept, probs = keep(log_probs), jnp.exp(log_probs)
            mass = jnp.sum(jnp.where(kept, probs, 0.0), axis=-1, keepdims=True)
            cut = jnp.where(kept, log_probs - jnp.log(mass), -jnp.inf)
            return jnp.where(used[:, None, None], cut, log_probs)  # not a bit of another row changes

        return jax.lax.cond(jnp.any(used & ~greedy[:, 0, 0]), truncated, lambda same: same, log_probs)

    log_probs = when(
        sampling.top_k > 0, lambda x: truncate.keep_top_k(x, spread(sampling.top_k)), log_probs)
    log_probs = when(
        sampling.top_p < 1.0, lambda x: truncate.keep_top_p(jnp.exp(x), spread(sampling.top_p), exactly), log_probs)
    log_probs = when(
        sampling.min_p > 0.0, lambda x: truncate.keep_min_p(x, spread(sampling.min_p)), log_probs)
    likeliest = rows.argmax(logits)[..., None] == jnp.arange(logits.shape[-1])
    return jnp.where(greedy, jnp.where(likeliest, 0.0, -jnp.inf), log_probs)


def any_sampled(sampling: Sampling, live: Array) -> Array:
    """Whether some live row [B] is not greedy: bool []."""
    return jnp.any(live & (sampling.temperature > 0.0))


def _withhold_eos(logits: Array, history: History, prefix: Prefix) -> Array:
    generated = (history.length - history.start)[:, None] + prefix.depth
    early = generated < history.sampling.min_new_tokens[:, None]

    def withhold(logits: Array) -> Array:
        is_eos = jnp.any(history.eos[:, :, None] == jnp.arange(logits.shape[-1]), axis=1)
        return jnp.where(early[..., None] & is_eos[:, None], -jnp.inf, logits)

    return jax.lax.cond(jnp.any(early), withhold, lambda same: same, logits)


def _penalise(logits: Array, history: History, prefix: Prefix) -> Array:
    sampling = history.sampling
    additive_off = (sampling.presence_penalty == 0.0) & (sampling.frequency_penalty == 0.0)
    off = (sampling.repetition_penalty == 1.0) & additive_off

    def penalise(logits: Array) -> Array:
        prompt, output = _counts(history, logits.shape[-1])
        output = output[:, None] + _drafted_counts(prefix, logits.shape)
        seen = (prompt[:, None] > 0) | (output > 0)
        factor = jnp.where(seen, sampling.repetition_penalty[:, None, None], 1.0)
        logits = jnp.where(logits > 0, logits / factor, logits * factor)
        logits -= sampling.presence_penalty[:, None, None] * (output > 0)
        return logits - sampling.frequency_penalty[:, None, None] * output

    return jax.lax.cond(jnp.all(off), lambda same: same, penalise, logits)


def _counts(history: History, vocab_size: int) -> tuple[Array, Array]:
    """How often each token stands in the prompt and in the output: two int32 [B, V]."""
    place = jnp.arange(history.tokens.shape[1])
    in_prompt = place < history.start[:, None]
    in_output = (place < history.length[:, None]) & ~in_prompt

    def count(tokens: Array, counted: Array) -> Array:
        return jnp.zeros(vocab_size, jnp.int32).at[tokens].add(counted.astype(jnp.int32), mode="drop")

    return jax.vmap(count)(history.tokens, in_prompt), jax.vmap(count)(history.tokens, in_output)


def _drafted_counts(prefix: Prefix, shape: tuple[int, ...]) -> Array:
    """How often each token stands among the drafted ones before each place: int32 [B, T, V]."""
    before = jnp.broadcast_to(prefix.before, (*shape[:2], prefix.tokens.shape[1])).astype(jnp.int32)

    def count(tokens: Array, before: Array) -> Array:
        return jnp.zeros(shape[1:], jnp.int32).at[:, tokens].add(before, mode="drop")

    return jax.vmap(count)(prefix.tokens, before)
