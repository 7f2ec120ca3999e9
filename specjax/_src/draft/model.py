"""An independent draft model: a small language model rolled out by `lax.scan` (arXiv:2211.17192, arXiv:2302.01318)."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from specjax._src import checks, rows, sampling, tree
from specjax._src import constraint as constraints
from specjax._src.draft.grow import check_vocab
from specjax._src.draft.null import checked_depth, root
from specjax._src.noise import Noise
from specjax._src.types import Array, Attend, Context, Drafter, Feedback, Model, pytree

CATCH_UP = 32  # tokens a lagging draft reads in one pass


@pytree
class ModelState:
    """The draft's own cache and how much of it is good.

    Attributes:
      cache: of the draft model.
      length: int32 [B], leading cache entries that hold committed tokens; may lag behind the target's.
      rolled: int32 [B, k], what the latest roll-out read behind the root: another drafter's tokens may be kept instead.
    """

    cache: Any
    length: Array
    rolled: Array


def from_model(model: Model, num_speculative_tokens: int) -> Drafter:
    """Draft with another `Model` of the same vocabulary; its parameters are `draft_params`.

    The draft has its own cache, rolled back by length alone, as for any position-indexed cache. A model whose state is
    not indexed by position (ring or recurrent) may serve as a draft too: the law stays exact, but after a refusal it
    remembers refused tokens and will be accepted less.

    Raises:
      TypeError: if `model` is none.
      ValueError: if `num_speculative_tokens < 1`; when traced, if the vocabularies differ.
    """
    num_speculative_tokens = checked_depth("from_model", num_speculative_tokens)
    return _from_model(checked_model("from_model", model), num_speculative_tokens)


def checked_model(factory: str, model: Any) -> Model:
    """`model`, if it is one."""
    checks.network(factory, model, Model, "`model` of specjax.load")
    return model


@functools.cache  # here, so that it does not matter which arguments were named
def _from_model(model: Model, num_speculative_tokens: int) -> Drafter:
    def init(params: Any, batch: int, capacity: int) -> ModelState:
        del params
        slack = max(num_speculative_tokens + 1, CATCH_UP)
        return ModelState(model.init_cache(batch, capacity + slack), jnp.zeros(batch, jnp.int32),
                          jnp.zeros((batch, num_speculative_tokens), jnp.int32))

    def propose(params: Any, noise: Noise, state: ModelState, context: Context) -> tuple[tree.TokenTree, ModelState]:
        state = catch_up(model, params, state, context)
        tree, last, cache = roll_out("from_model", model, num_speculative_tokens, params, noise, state.cache, context)
        more = state.rolled.shape[1] - num_speculative_tokens  # of a wider rung
        state = ModelState(cache, state.length, jnp.pad(tree.drafted, ((0, 0), (0, more))))
        return tree, _finish(model, num_speculative_tokens, params, last, state, context)

    def advance(params: Any, state: ModelState, feedback: Feedback) -> ModelState:
        # The roll-out has read everything it proposed; what was refused is dead by length alone. Tokens it has not
        # read (a prompt, rounds without drafting) are read when it next proposes.
        del params
        committed = feedback.base + jnp.sum(feedback.valid, axis=1, dtype=jnp.int32)
        width = min(state.rolled.shape[1], feedback.tokens.shape[1] - 1)
        own = feedback.tokens[:, 1 : 1 + width] == state.rolled[:, :width]
        read = feedback.base + 1 + jnp.sum(jnp.cumprod(own, axis=1, dtype=jnp.int32), axis=1)
        return replace(state, length=jnp.minimum(state.length, jnp.minimum(committed, read)))

    return Drafter("from_model", tree.chain_shape(num_speculative_tokens), frozenset(), False, init, propose, advance,
                   None, functools.partial(from_model, model), True, catch_up=functools.partial(catch_up, model))


def feed(model: Model, params: Any, cache: Any, tokens: Array, length: Array, valid: Array) -> tuple[Array, Any]:
    """Run `tokens` [B, T] behind `length` entries and keep the valid ones: logits [B, T, V] and the cache."""
    positions = length[:, None] + jnp.arange(tokens.shape[1])
    out = model.apply(params, jnp.where(valid, tokens, 0), cache, Attend(length, positions, valid))
    return out.logits, model.commit(out.pending, None, length, jnp.sum(valid, axis=1, dtype=jnp.int32))


def catch_up(model: Model, params: Any, state: ModelState, context: Context, leave: int = 0) -> ModelState:
    """Read committed tokens the draft has not seen, not including the root, until at most `leave` are left."""
    goal = jnp.where(context.live, context.length - 1, state.length)

    def lags(state: ModelState) -> Array:
        return jnp.any(state.length < goal - leave)

    def read(state: ModelState) -> ModelState:
        tokens = rows.window(context.tokens, state.length, CATCH_UP)
        valid = jnp.arange(CATCH_UP) < (goal - state.length)[:, None]
        _, cache = feed(model, params, state.cache, tokens, state.length, valid)
        return replace(state, cache=cache, length=state.length + jnp.sum(valid, axis=1, dtype=jnp.int32))

    return jax.lax.while_loop(lags, read, state)


def roll_out(
    name: str, model: Model, num_tokens: int, params: Any, noise: Noise, cache: Any, context: Context
) -> tuple[tree.TokenTree, Array, Any]:
    """A chain, its last token [B], which the model has not read, and the cache with all before it."""
    base, batch = context.length - 1, context.length.shape[0]

    def step(carry: tuple, index: Array) -> tuple[tuple, tuple[Array | None, Array]]:
        token, cache, drafted, state_of_rule = carry
        valid = context.live & (index <= context.drafts)
        logits, cache = feed(model, params, cache, token[:, None], base + index, valid[:, None])
        check_vocab(name, logits.shape[-1], context.vocab_size)
        mask = constraints.mask(context.rule, state_of_rule)
        mask = None if mask is None else mask[:, None]
        logits = sampling.adjust(logits, context.history, sampling.chain_prefix(drafted, index, 1), mask)
        token, law = _choose(noise, index, logits[:, 0], context)
        sane = jnp.isfinite(jnp.max(logits[:, 0], axis=-1))
        state_of_rule = constraints.advance(context.rule, state_of_rule, token)
        return (token, cache, drafted.at[:, index].set(token), state_of_rule), (law, sane)

    carry = (root(context), cache, jnp.zeros((batch, num_tokens), jnp.int32), context.rule_state)
    (last, cache, drafted, _), (laws, sane) = jax.lax.scan(step, carry, jnp.arange(num_tokens))
    # A draft with broken logits drafts nothing from there on; this is known before the draw, so it biases nothing.
    drafts = jnp.minimum(context.drafts, jnp.sum(jnp.cumprod(sane, axis=0, dtype=jnp.int32), axis=0))
    laws = None if laws is None else jnp.moveaxis(laws, 0, 1)
    return tree.chain(root(context), drafted, drafts, context.live, laws), last, cache


def _finish(
    model: Model, num_tokens: int, params: Any, last: Array, state: ModelState, context: Context
) -> ModelState:
    """Read the last drafted token too (without its logits, which nobody asks for): if the whole block is accepted, the
    draft lacks nothing."""
    base = context.length - 1
    read = context.live & (num_tokens <= context.drafts)
    _, cache = feed(model, params, state.cache, last[:, None], base + num_tokens, read[:, None])
    length = jnp.where(context.live, base + 1 + jnp.minimum(num_tokens, context.drafts), state.length)
    return replace(state, cache=cache, length=length)


def _choose(noise: Noise, index: Array, logits: Array, context: Context) -> tuple[Array, Array | None]:
    """A token [B] drawn from the draft's law, and the log-law [B, V] itself unless the verifier does without."""
    settings = context.history.sampling

    def likeliest(logits: Array) -> tuple[Array, Array]:
        return rows.argmax(logits), jnp.zeros_like(logits)  # nobody reads this law

    def drawn(logits: Array) -> tuple[Array, Array]:
        law = sampling.log_law(logits[:, None], settings, exactly=False)[:, 0]
        return noise.draw_draft(index, law), law

    token, law = jax.lax.cond(sampling.any_sampled(settings, context.live), drawn, likeliest, logits)
    return token, None if noise.shared else law
