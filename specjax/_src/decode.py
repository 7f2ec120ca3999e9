"""The decode loop: draft, score in one pass, verify, commit. Two drivers: `run` here, `stream` on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from specjax._src import constraint as constraints
from specjax._src import ending, rows, sampling, sharding
from specjax._src import state as states
from specjax._src.draft.null import null, root_only
from specjax._src.noise import Noise
from specjax._src.state import FinishReason, Info, State
from specjax._src.tree import TokenTree
from specjax._src.types import Array, Attend, Constraint, Context, Drafter, Feedback, Model, Params, Verdict, Verifier
from specjax._src.verify.match import greedy


class Rules(NamedTuple):
    """What is fixed when a decoder is built; hashable, so that it keys compiled programs."""

    model: Model
    drafter: Drafter
    verifier: Verifier
    constraint: Constraint | None
    logprobs: bool


Step = Callable[[Params, State], tuple[State, Info]]


def ladder(drafter: Drafter) -> list[Drafter]:
    """The drafter at a few widths, widest first, the null drafter last: work follows the longest live draft.

    Each width is a copy of the round in the compiled program, so there are three at most: all, none, and for a long
    block the half.
    """
    k = drafter.shape.num_speculative_tokens
    if k == 0:
        return [drafter]
    halves = [drafter.narrow(k // 2)] if drafter.narrow is not None and k >= 8 else []
    return [drafter, *halves, null()]


def round_step(rules: Rules, drafter: Drafter, params: Params, state: State) -> tuple[State, Info]:
    """One round at the width of `drafter`, one rung of the ladder."""
    base = state.length - 1
    context = _context(rules, params, state)
    noise = Noise(state.key, state.length, rules.verifier.shared_noise)
    noise = noise.prepared(drafter.shape.num_nodes, sampling.any_sampled(state.sampling, state.live),
                           max(1, drafter.shape.depth) if rules.verifier.walks else 1)
    tree, draft, cache = _propose(rules, drafter, params, noise, state, context)

    ancestors = None if tree.shape.is_chain else tree.ancestors
    attend = Attend(base, base[:, None] + tree.depths, tree.valid, ancestors)
    out = rules.model.apply(params.target, tree.tokens, cache, attend)
    chex.assert_shape(out.logits, (*tree.tokens.shape, context.vocab_size))
    masks = constraints.masks_on(rules.constraint, state.rule_state, tree)
    logits = sampling.adjust(out.logits, state.history, sampling.tree_prefix(tree), masks)
    verdict, last, broken, logits = _verify(rules.verifier, noise, tree, logits, state)

    emitted = _emitted(tree, verdict)
    available = jnp.where(state.live, verdict.num_accepted + ~broken, 0)
    rule_states, rule_done = constraints.states_along(rules.constraint, state.rule_state, emitted)
    counts, finish = ending.cut(state, emitted, available, rule_done, broken)
    emitted = jnp.where(jnp.arange(emitted.shape[1]) < counts[:, None], emitted, 0)

    stats = states.count_round(
        state.stats, state.live, tree.drafted_by_depth, verdict.num_accepted, tree.is_inner(last), counts,
        finish != FinishReason.RUNNING)
    state = _record_logprobs(state, emitted, counts, _along(verdict, logits), _along(verdict, out.logits))
    features = {name: _along(verdict, feature) for name, feature in out.features.items()}
    feedback = Feedback(_along(verdict, tree.tokens), features, jnp.arange(emitted.shape[1]) < counts[:, None], base,
                        rows.take(emitted, jnp.maximum(counts - 1, 0)))
    state = replace(
        state,
        tokens=rows.write(state.tokens, emitted, state.length),
        length=state.length + counts,
        finish=finish,
        cache=rules.model.commit(out.pending, verdict.path, base, counts),
        draft=rules.drafter.advance(draft_params(rules, params), draft, feedback),
        features=_last_features(features, counts, state.features),
        rule_state=constraints.after(rule_states, state.rule_state, counts),
        stats=stats,
    )
    info = Info(emitted, counts, tree.num_drafted, jnp.minimum(verdict.num_accepted, counts))
    return spread(rules, plan_round(rules, params, state)), info


def spread(rules: Rules, state: State) -> State:
    """The state with its rows over the devices of the target's mesh, where it has one; caches are where models keep
    them."""
    layout = rules.model.layout
    if layout is None:
        return state
    rest = sharding.keep_rows(layout, replace(state, cache=None, draft=None))
    return replace(rest, cache=state.cache, draft=sharding.keep_rows(layout, state.draft, whole=False))


def _propose(
    rules: Rules, drafter: Drafter, params: Params, noise: Noise, state: State, context: Context
) -> tuple[TokenTree, Any, Any]:
    """The tree, the drafter's state, and the target's cache, in which only a drafter with `own_target` writes."""
    if drafter.shape.num_speculative_tokens == 0:
        return root_only(context), state.draft, state.cache  # a drafter that is off is not touched; it catches up later
    tree, draft, *own = drafter.propose(draft_params(rules, params), noise, state.draft, context)
    if rules.verifier.needs_draft_logits and tree.draft_logits is None and not drafter.one_hot:
        raise ValueError(f"verifier {rules.verifier.name} needs the law each token was drawn from, but drafter "
                         f"{drafter.name} gives no draft_logits: let it return them, declare it one_hot if its "
                         "tokens are chosen, or use verify.match()")
    return tree, draft, own[0] if drafter.own_target else state.cache


def draft_params(rules: Rules, params: Params) -> Any:
    """The drafter's parameters, which are the target's where it drafts for itself."""
    return params.target if rules.drafter.own_target and params.draft is None else params.draft


def plan_round(rules: Rules, params: Params, state: State) -> State:
    """Fix how many tokens each row proposes next, before any of them is drawn."""
    # The last token of a budget is the target's own, so a row never proposes more than it could keep.
    drafts = jnp.minimum(state.max_drafts, state.limit - state.generated - 1)
    if rules.drafter.available is not None:
        drafts = jnp.minimum(drafts, rules.drafter.available(state.draft, _context(rules, params, state)))
    return replace(state, drafts=jnp.where(state.live, jnp.maximum(drafts, 0), 0))


def run(rules: Rules, params: Params, state: State, num_tokens: Array | int) -> State:
    """Rounds until every row has ended or has `num_tokens` more tokens; a row held back by that alone is not ended."""
    budget = state.limit
    left = jnp.minimum(budget - state.generated, num_tokens)  # in this order no sum can overflow
    state = replace(state, limit=state.generated + left)
    state = plan_round(rules, params, settle(state))
    state = rounds(rules, params, state)
    held_back = (state.finish == FinishReason.LENGTH) | (state.finish == FinishReason.CAPACITY)
    held_back &= state.generated < budget
    finish = jnp.where(held_back, FinishReason.RUNNING, state.finish)
    return plan_round(rules, params, replace(state, limit=budget, finish=finish))


def rounds(
    rules: Rules, params: Params, state: State, most: Array | int = 2**31 - 1, pause: Array | bool = False
) -> State:
    """At most `most` rounds, until every row has ended, or, with `pause` (bool []), any row that was live.

    Each is at the narrowest rung that holds the longest draft. The state is as `plan_round` leaves it.
    """
    before = jnp.sum(state.live)
    rungs = ladder(rules.drafter)
    narrower = [rung.shape.num_speculative_tokens for rung in rungs[1:]] + [-1]

    def more(carry: tuple[State, Array]) -> Array:
        live = jnp.sum(carry[0].live)
        return (live > 0) & (carry[1] > 0) & ~(jnp.asarray(pause) & (live < before))

    def descend(carry: tuple[State, Array]) -> tuple[State, Array]:
        for rung, below in zip(rungs, narrower, strict=True):
            width = rung.shape.num_speculative_tokens

            def fits(carry: tuple[State, Array], width: int = width, below: int = below) -> Array:
                longest = jnp.max(carry[0].drafts)
                return more(carry) & (longest > below) & (longest <= width)

            def step(carry: tuple[State, Array], rung: Drafter = rung) -> tuple[State, Array]:
                return round_step(rules, rung, params, carry[0])[0], carry[1] - 1

            carry = jax.lax.while_loop(fits, step, carry)
        return carry

    return jax.lax.while_loop(more, descend, (state, jnp.asarray(most, jnp.int32)))[0]


def feed(rules: Rules, params: Params, state: State, entries: Array, new_length: Array, chunk: int) -> State:
    """Run the tokens between `entries` [B] (already in the cache) and the root through target and drafter, in chunks.

    No logits are asked for, so the compiler drops the head: prefill never materialises [B, T, V].
    """
    goal = jnp.maximum(new_length - 1, 0)

    def behind(carry: tuple) -> Array:
        return jnp.any(carry[0] < goal)

    def read(carry: tuple) -> tuple:
        entries, cache, draft, features = carry
        num = jnp.clip(goal - entries, 0, chunk)
        valid = jnp.arange(chunk) < num[:, None]
        tokens = jnp.where(valid, rows.window(state.tokens, entries, chunk), 0)
        attend = Attend(entries, entries[:, None] + jnp.arange(chunk), valid)
        out = rules.model.apply(params.target, tokens, cache, attend)
        following = rows.take(state.tokens, entries + num)
        draft = rules.drafter.advance(
            draft_params(rules, params), draft, Feedback(tokens, out.features, valid, entries, following))
        cache = rules.model.commit(out.pending, None, entries, num)
        return entries + num, cache, draft, _last_features(out.features, num, features)

    carry = (entries, state.cache, state.draft, state.features)
    _, cache, draft, features = jax.lax.while_loop(behind, read, carry)
    return replace(state, cache=cache, draft=draft, features=features)


def settle(state: State) -> State:
    """End the rows that have no budget left."""
    spent = state.live & (state.generated >= state.limit)
    return replace(state, finish=jnp.where(spent, state.out_of_room, state.finish))


def catch_up(rules: Rules, params: Params, state: State) -> State:
    """Let the drafter read what it lacks of the committed text now, where it would when it next proposes."""
    if rules.drafter.catch_up is None:
        return state
    draft = rules.drafter.catch_up(draft_params(rules, params), state.draft, _context(rules, params, state))
    return replace(state, draft=draft)


def _context(rules: Rules, params: Params, state: State) -> Context:
    return Context(state.tokens, state.length, state.live, state.drafts, state.history, state.rule_state,
                   state.features, state.cache, rules.constraint, vocab_size(rules.model, params, state))


def _verify(
    verifier: Verifier, noise: Noise, tree: TokenTree, logits: Array, state: State
) -> tuple[Verdict, Array, Array, Array]:
    """The verdict, the last node kept [B], whether the token after it could not be drawn [B], and `logits` [B, N, V]
    without what is not finite.

    A round without a sampled row takes the greedy walk, which needs neither softmax nor noise.
    """
    finite = jnp.isfinite(jnp.max(logits, axis=-1)) | ~tree.valid
    logits = jnp.where(finite[..., None], logits, 0.0)
    # What was drafted behind a broken node can not be judged; the row ends there, and harms no other.
    tree = replace(tree, valid=tree.valid & ~tree.below(~finite))

    def sampled(logits: Array) -> Verdict:
        return verifier.draw(noise, verifier.plan(tree, sampling.log_law(logits, state.sampling)))

    verdict = jax.lax.cond(
        sampling.any_sampled(state.sampling, state.live), sampled, functools.partial(greedy, tree), logits)
    last = verdict.num_accepted if verdict.path is None else rows.take(verdict.path, verdict.num_accepted)
    return verdict, last, state.live & ~rows.take(finite, last), logits


def _along(verdict: Verdict, values: Array) -> Array:
    """What belongs to the nodes of the path: [B, N, ..] -> [B, P, ..]."""
    return values if verdict.path is None else rows.gather(values, verdict.path)


def _emitted(tree: TokenTree, verdict: Verdict) -> Array:
    """The kept tokens, then the target's own: int32 [B, P], 0 behind it."""
    kept = _along(verdict, tree.tokens)
    place = jnp.arange(kept.shape[1])
    accepted = jnp.pad(kept[:, 1:], ((0, 0), (0, 1)))
    own = jnp.where(place == verdict.num_accepted[:, None], verdict.next_token[:, None], 0)
    return jnp.where(place < verdict.num_accepted[:, None], accepted, own)


def _record_logprobs(
    state: State, emitted: Array, counts: Array, logits: Array, raw: Array
) -> State:
    """Log-probabilities of the emitted tokens: under the law sampled from, and under the plain softmax."""
    if state.logprobs is None or state.raw_logprobs is None:
        return state
    kept = jnp.arange(emitted.shape[1]) < counts[:, None]

    def look_up(log_probs: Array) -> Array:
        return jnp.where(kept, jnp.take_along_axis(log_probs, emitted[..., None], axis=-1)[..., 0], 0.0)

    law = look_up(sampling.log_law(logits, state.sampling))
    raw_law = look_up(jax.nn.log_softmax(raw.astype(jnp.float32)))
    return replace(
        state,
        logprobs=rows.write(state.logprobs, law, state.generated),
        raw_logprobs=rows.write(state.raw_logprobs, raw_law, state.generated),
    )


def _last_features(features: dict[str, Array], num: Array, before: dict[str, Array]) -> dict[str, Array]:
    """Features of the last of the `num` [B] tokens kept, for each name the state carries; `before` where none was."""
    last = {name: rows.take(features[name], jnp.maximum(num - 1, 0)) for name in before}
    return {name: rows.select(num > 0, last[name], before[name]) for name in before}


def vocab_size(model: Model, params: Params, state: State) -> int:
    """V of the target."""
    return output_shape(model, params, state.tokens.shape[0], state.cache).logits.shape[-1]


def output_shape(model: Model, params: Params, batch: int, cache: Any) -> Any:
    """Shapes of what the model returns for one token a row; nothing is computed.

    Raises:
      ValueError: if the model does not return logits [B, T, V].
    """
    leaves, structure = jax.tree.flatten((params.target, cache))
    return _output_shape(model, batch, structure, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves))


@functools.lru_cache(maxsize=256)  # a trace of a large model takes a second, and every round and request asks
def _output_shape(model: Model, batch: int, structure: Any, leaves: tuple) -> Any:
    target, cache = structure.unflatten([jax.ShapeDtypeStruct(*leaf) for leaf in leaves])
    row = jax.ShapeDtypeStruct((batch,), jnp.int32)
    token = jax.ShapeDtypeStruct((batch, 1), jnp.int32)
    attend = jax.eval_shape(Attend, row, token, jax.ShapeDtypeStruct((batch, 1), jnp.bool_))
    out = jax.eval_shape(model.apply, target, token, cache, attend)
    shape = getattr(getattr(out, "logits", None), "shape", None)
    if shape is None or len(shape) != 3 or shape[:2] != (batch, 1):
        raise ValueError(f"Model.apply must return specjax.Output with logits [B, T, V]; for tokens [{batch}, 1] it "
                         f"returned {type(out).__name__} with logits {shape}")
    return out
