"""Build a decoder from a model, a drafter and a verifier, and open, continue and read out its state."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax._src import checks, decode, rows
from specjax._src import constraint as constraints
from specjax._src.decode import Rules
from specjax._src.draft.null import null
from specjax._src.request import Request, full_capacity, known_ids, make_request
from specjax._src.state import FinishReason, Generation, State, no_stats
from specjax._src.types import PREFILL, Array, Constraint, Drafter, Model, Params, Verifier
from specjax._src.verify.block import block
from specjax._src.verify.hybrid import hybrid
from specjax._src.verify.match import match
from specjax._src.verify.specinfer import specinfer
from specjax._src.verify.traversal import traversal
from specjax._src.verify.without_replacement import without_replacement

EXTEND = 32  # tokens read in one pass behind a running text; the cache keeps as many slots free


class Decoder(NamedTuple):
    """Speculative decoding as pure functions of parameters and a state; wrap them in `jax.jit` as you like.

    Attributes:
      rules: what the decoder was built from; hashable.
      init: `(params, prompts, lengths=None, *, max_new_tokens, capacity=None, num_samples=1, sampling=..., key=...,
        limits=..., eos_ids=..., stop=..., num_speculative_tokens=...) -> State`: prefill. The arguments are those of
        `specjax.generate`; `max_new_tokens`, `capacity` and `num_samples` are static.
      extend: `(params, state, tokens int32 [B, T], num int32 [B]) -> State`: more prompt (a chat turn). Rows with
        `num > 0` begin a new turn with their whole budget; the others are left as they are. The default capacity holds
        prompt and budget of one turn: for more turns give `init` a `capacity` for all of them together.
      step: `(params, state) -> (State, Info)`: one round.
      run: `(params, state, n) -> State`: rounds until every row has ended or has `n` more tokens.
      result: `(state) -> Generation` of the turn so far.
    """

    rules: Rules
    init: Callable[..., State]
    extend: Callable[[Params, State, Array, Array], State]
    step: decode.Step
    run: Callable[[Params, State, Any], State]
    result: Callable[[State], Generation]


def speculative(
    model: Model,
    drafter: Drafter | None = None,
    verifier: Verifier | None = None,
    *,
    constraint: Constraint | None = None,
    logprobs: bool = False,
) -> Decoder:
    """Compose a decoder. Equal arguments give the same object, so that programs compiled for it are shared.

    Args:
      model: the target.
      drafter: None for plain decoding.
      verifier: None chooses by how the draft's tokens come about, see `auto`.
      constraint: on the text, for all rows.
      logprobs: also record log-probabilities of the emitted tokens.

    Raises:
      TypeError: if an argument is not what its name says.
      ValueError: if the verifier can not judge what the drafter proposes.
    """
    drafter = null() if drafter is None else drafter
    for name, value, kind, remedy in (
        ("model", model, Model, "specjax.Model(init_cache, apply, commit)"),
        ("drafter", drafter, Drafter, "the result of a factory such as specjax.draft.ngram(4)"),
        ("verifier", verifier or match(), Verifier, "the result of a factory such as specjax.verify.block()"),
        ("constraint", constraint, Constraint | None, "specjax.Constraint(init, advance, mask, done)"),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be {remedy}, got {value!r}")
    verifier = auto(drafter) if verifier is None else verifier
    _check_fit(drafter, verifier)
    return _decoder(Rules(model, drafter, verifier, constraint, bool(logprobs)))


def auto(drafter: Drafter) -> Verifier:
    """The verifier that keeps most of what a drafter proposes, and leaves the law as it is.

    Chosen tokens: `verify.match()`; it needs no law of the draft, and the text is that of plain decoding. A drawn
    chain: `verify.block()`; no rule for one chain keeps more. Trees by measurement, in twelve settings
    (`python -m specjax.benchmarks.kept`): `verify.traversal()` keeps 0.2 to 18 % more than `verify.hybrid()` of hybrid
    siblings and 0.8 to 10 % more than `verify.without_replacement()` of those drawn without replacement, but must know
    the topology; where each row grows its own, these two. Independent siblings: `verify.specinfer()`.
    """
    if drafter.one_hot:
        return match()
    if drafter.shape.is_chain:
        return block()
    if drafter.siblings == "independent":
        return specinfer()
    if drafter.shape.parents is not None:
        return traversal()
    return without_replacement() if drafter.siblings == "without_replacement" else hybrid()


def _check_fit(drafter: Drafter, verifier: Verifier) -> None:
    """Refuse a verifier that would judge the drafter's tree wrongly."""
    shape, kind = drafter.shape, drafter.kind
    if shape.depth >= shape.num_nodes:
        raise ValueError(f"drafter {drafter.name} says that its tree of {shape.num_nodes} nodes, the root included, is "
                         f"{shape.depth} deep; it can be {shape.num_nodes - 1} deep at most")
    remedy = f"leave verifier out for verify.{auto(drafter).name}(), or change the drafter"
    if verifier.chains_only and not shape.is_chain:
        raise ValueError(f"verify.{verifier.name}() judges one path, but drafter {drafter.name} proposes a tree: "
                         f"{remedy}")
    if verifier.static_only and shape.parents is None:
        raise ValueError(f"verify.{verifier.name}() must know the topology of the tree when it is compiled, but "
                         f"drafter {drafter.name} grows a tree of its own in each row: {remedy}")
    if kind not in verifier.siblings:
        raise ValueError(f"verify.{verifier.name}() judges siblings that are {', '.join(sorted(verifier.siblings))}, "
                         f"but those of drafter {drafter.name} are {kind}: {remedy}")


@functools.cache
def _decoder(rules: Rules) -> Decoder:
    return Decoder(
        rules,
        functools.partial(_init, rules),
        functools.partial(_extend, rules),
        functools.partial(decode.round_step, rules, rules.drafter),
        functools.partial(decode.run, rules),
        result,
    )


def open_state(
    rules: Rules, params: Params, request: Request, max_new_tokens: int, capacity: int | None, num_samples: int
) -> State:
    """The state after prefill of a checked request; `num_samples` rows for each prompt."""
    batch, width = request.prompts.shape
    capacity = full_capacity(width, max_new_tokens, capacity)
    chunk = min(PREFILL, width)
    # Room for the widest pass behind the last token, and for whole chunks of the padded prompt.
    slots = max(capacity + max(rules.drafter.shape.num_nodes, EXTEND), -(-width // chunk) * chunk)
    state = empty_state(rules, params, request, max_new_tokens, capacity, slots)
    num = jnp.where(request.good, request.lengths, 0)
    state = _append(rules, params, state, request.prompts, num, chunk)
    state = replace(state, key=request.key[::num_samples])
    if num_samples > 1:
        state = jax.tree.map(lambda leaf: jnp.repeat(leaf, num_samples, axis=0), state)
        state = replace(state, key=request.key)
    return state


def _init(
    rules: Rules,
    params: Params,
    prompts: Any,
    lengths: Any = None,
    *,
    max_new_tokens: int,
    capacity: int | None = None,
    num_samples: int = 1,
    **request: Any,
) -> State:
    checked = checked_request(rules, params, prompts, lengths, max_new_tokens=max_new_tokens, capacity=capacity,
                              num_samples=num_samples, **request)
    checked = jax.tree.map(jnp.asarray, checked)  # a state is the device's from the beginning
    return open_state(rules, params, checked, max_new_tokens, capacity, num_samples)


def checked_request(rules: Rules, params: Params, prompts: Any, lengths: Any, **arguments: Any) -> Request:
    """The arguments of `generate` as arrays, after every check that can be made before the program runs."""
    check_pair(rules, params)
    cache = _small_cache(rules.model)
    out = decode.output_shape(rules.model, params, 1, cache)
    missing = rules.drafter.needs - set(out.features)
    if missing:
        raise ValueError(f"drafter {rules.drafter.name} reads the target features {sorted(missing)}, but the model "
                         f"offers {sorted(out.features)}: use a drafter that needs none, or a model that returns them")
    vocab_size = out.logits.shape[-1]
    rule = rules.constraint
    if rule is not None:
        mask = jax.eval_shape(lambda: jax.vmap(rule.mask)(rule.init(1)))
        if mask.shape != (1, vocab_size):
            raise ValueError(f"the constraint's mask has shape {list(mask.shape[1:])}, but the target scores "
                             f"{vocab_size} tokens: return bool [{vocab_size}] for one row")
    most_drafts = rules.drafter.shape.num_speculative_tokens
    return make_request(prompts, lengths, most_drafts=most_drafts, vocab_size=vocab_size, **arguments)


def target_vocab(rules: Rules, params: Params) -> int:
    """V of the target."""
    return decode.output_shape(rules.model, params, 1, _small_cache(rules.model)).logits.shape[-1]


@functools.lru_cache(maxsize=64)
def _small_cache(model: Model) -> Any:
    return jax.eval_shape(lambda: model.init_cache(1, 2))


def check_pair(rules: Rules, params: Params) -> None:
    """Refuse parameters that do not go with the drafter."""
    drafter = rules.drafter
    checks.arrays("params", params.target, "`params` of specjax.load")
    checks.arrays("draft_params", params.draft, "`params` of specjax.load or specjax.load_head")
    if drafter.needs_params and params.draft is None and not drafter.own_target:
        raise ValueError(f"drafter {drafter.name} has a model of its own, but draft_params is None: pass its "
                         "parameters as draft_params")
    if not drafter.needs_params and params.draft is not None:
        raise ValueError(f"draft_params were given, but drafter {drafter.name} has no model to use them: pass "
                         "drafter=specjax.draft.from_model(draft_model, k), or leave draft_params out")


def empty_state(
    rules: Rules, params: Params, request: Request, max_new_tokens: int, capacity: int, slots: int
) -> State:
    """Rows without text, ended, with the settings of a request; caches and buffers of `slots` tokens."""
    batch = request.prompts.shape[0]
    nodes, k = rules.drafter.shape.num_nodes, rules.drafter.shape.num_speculative_tokens
    cache = rules.model.init_cache(batch, slots)
    out = decode.output_shape(rules.model, params, batch, cache)
    features = {name: jnp.zeros((batch, out.features[name].shape[-1]), out.features[name].dtype)
                for name in rules.drafter.needs}
    zeros = jnp.zeros(batch, jnp.int32)
    record = jnp.zeros((batch, max_new_tokens + nodes), jnp.float32) if rules.logprobs else None
    return decode.spread(rules, State(
        tokens=jnp.zeros((batch, slots), jnp.int32), length=zeros, start=zeros, limit=zeros, wanted=request.limits,
        capacity=jnp.full(batch, capacity, jnp.int32), finish=zeros + FinishReason.ERROR,
        drafts=zeros, max_drafts=request.max_drafts, key=request.key[:batch], sampling=request.sampling,
        eos=request.eos, stop=request.stop, cache=cache,
        draft=rules.drafter.init(decode.draft_params(rules, params), batch, capacity),
        features=features, rule_state=constraints.start(rules.constraint, batch),
        stats=no_stats(batch, k, max_new_tokens), logprobs=record, raw_logprobs=record))


def _extend(rules: Rules, params: Params, state: State, tokens: Any, num: Any) -> State:
    batch = state.length.shape[0]
    if np.ndim(tokens) != 2 or np.shape(tokens)[0] != batch or not jnp.issubdtype(jnp.result_type(tokens), jnp.integer):
        raise ValueError(f"extend needs integer tokens [{batch}, T], one row for each of the state, got "
                         f"{jnp.result_type(tokens)}{list(np.shape(tokens))}; rows that get nothing have num = 0")
    num = checks.per_row("num", num, batch, np.shape(tokens)[1], "the width of tokens")
    return _append(rules, params, state, jnp.asarray(tokens, jnp.int32), num, EXTEND)


def _append(rules: Rules, params: Params, state: State, tokens: Array, num: Array, chunk: int) -> State:
    """Commit `num` [B] of `tokens` [B, T] behind each row, begin a turn there, and read the text up to there."""
    entries = jnp.maximum(state.length - 1, 0)
    state = begin_turn(rules, params, state, tokens, num)
    state = decode.feed(rules, params, state, entries, state.length, chunk)
    return decode.spread(rules, decode.plan_round(rules, params, decode.settle(state)))


def begin_turn(rules: Rules, params: Params, state: State, tokens: Array, num: Array) -> State:
    """Commit `num` [B] of `tokens` [B, T] behind each row and begin a turn there; nothing is read yet.

    A row without room, or with an id the target does not know, keeps its text and ends its new turn in error.
    """
    batch, width = tokens.shape
    nowhere = state.tokens.shape[1]
    begins = num > 0
    good = state.length + num <= state.capacity
    good &= known_ids(tokens, num, decode.vocab_size(rules.model, params, state))
    finish = jnp.where(begins, jnp.where(good, FinishReason.RUNNING, FinishReason.ERROR), state.finish)
    num = jnp.where(good, num, 0)
    length = state.length + num
    place = jnp.where(jnp.arange(width) < num[:, None], state.length[:, None] + jnp.arange(width), nowhere)
    buffer = state.tokens.at[jnp.arange(batch)[:, None], place].set(tokens, mode="drop")
    fresh = no_stats(batch, state.stats.accepted_per_position.shape[1], state.stats.drafted_per_round.shape[1])
    reset = functools.partial(jax.tree.map, functools.partial(rows.select, begins))
    return replace(
        state, tokens=buffer, length=length, start=jnp.where(begins, length, state.start), finish=finish,
        limit=jnp.where(begins, jnp.minimum(state.wanted, state.capacity - length), state.limit),
        rule_state=reset(constraints.start(rules.constraint, batch), state.rule_state),
        stats=reset(fresh, state.stats))


def result(state: State) -> Generation:
    """What the rows have generated in this turn so far."""
    max_new_tokens = state.stats.drafted_per_round.shape[1]
    lengths = state.generated
    kept = jnp.arange(max_new_tokens) < lengths[:, None]
    padded = jnp.pad(state.tokens, ((0, 0), (0, max_new_tokens)))
    tokens = jnp.where(kept, rows.window(padded, state.start, max_new_tokens), 0)

    def record(values: Array | None) -> Array | None:
        return None if values is None else jnp.where(kept, values[:, :max_new_tokens], 0.0)

    return Generation(tokens, lengths, state.finish, state.stats, record(state.logprobs), record(state.raw_logprobs))
