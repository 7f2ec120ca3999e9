"""The contracts every part of specjax stands on: what a model is, and what it is told and asked.

Letters used in all shape notes:

    B rows    T query tokens    N tree nodes (node 0 is the root)    P = depth + 1, the longest path
    V vocabulary    F feature width    S cache capacity    L token buffer

All integers are int32. Bundles of functions are `NamedTuple`s; bundles of arrays are frozen dataclasses registered
as pytrees, every leaf with a leading row axis.

**Invariant.** For each row the last committed token (the *root*) has not been through the target; the cache holds
exactly `length - 1` valid entries. A round drafts below the root, calls the target once, keeps a path, and adds one
token of the target's own (recovered or bonus), which is the next root.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar, dataclass_transform

import jax

Array = jax.Array
Cache = Any
Weights = Any
Pending = Any


T = TypeVar("T")


def static() -> Any:
    """A dataclass field that is part of the tree's structure, not of its data."""
    return field(metadata={"static": True})


@dataclass_transform(frozen_default=True, field_specifiers=(field, static))
def pytree(cls: type[T]) -> type[T]:
    """Make `cls` a frozen dataclass whose fields are pytree children (those marked `static()` are metadata)."""
    return jax.tree_util.register_dataclass(dataclass(frozen=True)(cls))


@pytree
class Attend:
    """Where the tokens of one `Model.apply` stand and what they may see.

    Token `t` of a row sees cache slots `0 .. lengths - 1` and, of the tokens in this call, those `u` with
    `valid[u]` and `ancestors[t, u]` (a token is its own ancestor), or `u <= t` where `ancestors` is None.
    The caller promises `lengths + T <= capacity` for every row.

    A drafter that grows a tree level by level has nodes of earlier levels in the cache that only some of the T tokens
    may see. Then `ancestors` is wider, [B, T, A + T]: its first A columns say which of the last A slots before
    `lengths` each token sees (columns of slots below 0 mean nothing). The target is never called so.

    Attributes:
      lengths: int32 [B], valid cache entries before the call.
      positions: int32 [B, T], position of each token in its sequence (for a chain `lengths + t`).
      valid: bool [B, T]; an invalid token may compute anything but must change nothing that others see: no ring slot,
        no recurrent state, no expert place. On a chain invalid tokens follow the valid ones.
      ancestors: bool [B, T, T] or [1, T, T], or None for a causal chain; [B, T, A + T] as said above.
    """

    lengths: Array
    positions: Array
    valid: Array
    ancestors: Array | None = None


@pytree
class Output:
    """What `Model.apply` returns.

    Attributes:
      logits: [B, T, V], any floating dtype; row `t` scores the token that follows token `t`.
      features: dict of name to [B, T, F]; empty if the model offers none.
      pending: whatever `Model.commit` needs to keep some of the T tokens; for a plain key-value cache, the cache with
        the T new entries already written at slots `lengths ..`.
    """

    logits: Array
    features: dict[str, Array]
    pending: Pending


class Model(NamedTuple):
    """A language model as three pure functions; its parameters are always an argument, never closed over.

    Attributes:
      init_cache: `(batch, capacity) -> cache`, every leaf with a leading row axis. `batch` and `capacity` are Python
        ints; `capacity` counts the slots that will ever be written.
      apply: `(params, tokens int32 [B, T], cache, Attend) -> Output`.
      commit: `(pending, path int32 [B, P] | None, base int32 [B], num int32 [B]) -> cache`. Follows *every* apply.
        Keeps, after the first `base` entries, the `num` tokens `path[:num]` (indices into the T tokens of the call),
        or with `path=None` the leading `num`. `num = 0` leaves the row as it was before the apply.
      axes: `() -> names`, nested as the parameters, for each a tuple with the logical name of each axis (or None); what
        `specjax.sharding` goes by. None if the model does not say.
      cache_axes: logical names of the leading axes of each leaf of the cache.
      layout: where its arrays stand, as `specjax.sharding.shard` laid them out; None on one device.
    """

    init_cache: Callable[[int, int], Cache]
    apply: Callable[[Weights, Array, Cache, Attend], Output]
    commit: Callable[[Pending, Array | None, Array, Array], Cache]
    axes: Callable[[], Any] | None = None
    cache_axes: tuple[str | None, ...] = ("rows",)
    layout: Any = None


@pytree
class HeadOutput:
    """What `DraftHead.apply` returns.

    Attributes:
      logits: [B, T, V], any floating dtype; row `t` scores the token that follows token `t`. -inf outside the head's
        vocabulary, where that is smaller than the target's.
      hidden: [B, T, D], what the head guesses the target's fused feature of token `t` to be, to be fed back.
      pending: as in `Output`.
    """

    logits: Array
    hidden: Array
    pending: Pending


class DraftHead(NamedTuple):
    """A network that drafts from the target's features (EAGLE), as pure functions; its parameters are `Params.draft`.

    It reads pairs: entry `t` of its cache comes from the feature of the token at position `t` and the *next* token,
    and its output guesses the feature at position `t + 1`, from which follow the logits of position `t + 2`.

    Attributes:
      name: for error messages.
      needs: names of target features that `fuse` reads.
      hidden_size: D.
      dtype: of the hidden states.
      init_cache: `(batch, capacity) -> cache`, as in `Model`.
      fuse: `(params, features dict of name to [B, T, F]) -> [B, T, D]`, the target's features in the head's own width.
      apply: `(params, hidden [B, T, D], tokens int32 [B, T], cache, Attend) -> HeadOutput`; `hidden` is fused features
        or the `hidden` of an earlier call, `tokens` those that follow, `Attend.positions` those of the features.
      score: `(params, hidden [B, T, D]) -> logits [B, T, V]`, those that `apply` returns beside such `hidden`.
      commit: as in `Model`.
      axes, cache_axes, layout: as in `Model`.
    """

    name: str
    needs: frozenset[str]
    hidden_size: int
    dtype: Any
    init_cache: Callable[[int, int], Cache]
    fuse: Callable[[Weights, dict[str, Array]], Array]
    apply: Callable[[Weights, Array, Array, Cache, Attend], HeadOutput]
    score: Callable[[Weights, Array], Array]
    commit: Callable[[Pending, Array | None, Array, Array], Cache]
    axes: Callable[[], Any] | None = None
    cache_axes: tuple[str | None, ...] = ("rows",)
    layout: Any = None


class MedusaHeads(NamedTuple):
    """Heads that each guess one later token from the same feature, as a pure function; parameters: `Params.draft`.

    Attributes:
      name: for error messages.
      needs: names of target features that `apply` reads.
      num_heads: K.
      apply: `(params, features dict of name to [B, F]) -> logits [B, K, V]`; the features are those of the last token
        that went through the target (position `t`), and row `h` scores position `t + 2 + h`.
      axes, layout: as in `Model`.
    """

    name: str
    needs: frozenset[str]
    num_heads: int
    apply: Callable[[Weights, dict[str, Array]], Array]
    axes: Callable[[], Any] | None = None
    layout: Any = None


class Params(NamedTuple):
    """The parameters of a decoder: those of the target and those of its drafter (None where it has none)."""

    target: Any
    draft: Any = None


PREFILL = 256
"""Prompt tokens read in one pass, and so the widest `Feedback`."""


@pytree
class Feedback:
    """What a drafter learns after its target has committed tokens: a chunk of the prompt, or an accepted path.

    Attributes:
      tokens: int32 [B, T], tokens that went through the target, at positions `base ..`.
      features: dict of name to [B, T, F], the target's features of those tokens.
      valid: bool [B, T], the leading tokens that were committed.
      base: int32 [B], tokens committed to the target's cache before them.
      next_token: int32 [B], the token after the last valid one (the new root).
    """

    tokens: Array
    features: dict[str, Array]
    valid: Array
    base: Array
    next_token: Array


class Constraint(NamedTuple):
    """A rule on the text, such as a grammar, as an automaton over tokens.

    `advance`, `mask` and `done` are written for one row and lifted by `vmap`; all must be jit-compatible.

    Attributes:
      init: `(batch) -> state`, every leaf with a leading row axis: the state before the first generated token.
      advance: `(state, token int32 []) -> state`.
      mask: `(state) -> bool [V]`, the tokens allowed next; at least one must be.
      done: `(state) -> bool []`; True ends the row after the token that led here (finish reason "stop").
    """

    init: Callable[[int], Any]
    advance: Callable[[Any, Array], Any]
    mask: Callable[[Any], Array]
    done: Callable[[Any], Array]


@pytree
class Context:
    """What a drafter may know when it proposes.

    Attributes:
      tokens: int32 [B, L], committed tokens; what stands at `length` and beyond is dead.
      length: int32 [B], committed tokens of each row, the root included.
      live: bool [B], rows that still generate.
      drafts: int32 [B], tokens wanted from this round (of a tree: its depth), fixed before the first draw; 0 for rows
        that are not live.
      history: what the sampling transforms need to know of each row (`specjax._src.sampling.History`).
      rule_state: state of the constraint after `length` tokens, or None.
      features: dict of name to [B, F], the target's features at the last token that went through it.
      cache: the target's cache, to read; entries below `length - 1` are live.
      rule: the constraint, or None (static).
      vocab_size: the target's V (static).
    """

    tokens: Array
    length: Array
    live: Array
    drafts: Array
    history: Any
    rule_state: Any
    features: dict[str, Array]
    cache: Cache
    rule: Constraint | None = static()
    vocab_size: int = static()


class Drafter(NamedTuple):
    """A proposer of tokens. Its parameters are `Params.draft`, always passed in.

    Attributes:
      name: for error messages.
      shape: the tree it proposes (`specjax._src.tree.Shape`).
      needs: names of target features it reads; checked against the model when a decoder is built.
      one_hot: True if a proposed token is chosen, not drawn (its law q is one-hot), so that it is verified by match.
      init: `(params, batch, capacity) -> state`, every leaf with a leading row axis.
      propose: `(params, noise, state, context) -> (TokenTree, state)`, or `(TokenTree, state, cache)` if `own_target`.
      advance: `(params, state, Feedback) -> state`, after every commit of the target.
      available: `(state, context) -> int32 [B]`, how many tokens it can propose, known before any is drawn; None if
        always all of them.
      narrow: `(num_speculative_tokens) -> Drafter`, the same drafter on the same state for fewer tokens; None if it
        has one width.
      needs_params: True if it can not work without `Params.draft`.
      siblings: how the children of one node come about, one of `specjax._src.tree.SIBLINGS`; see `kind`.
      own_target: True if the target drafts for itself: where `Params.draft` is None the drafter gets `Params.target`,
        and it may write `Context.cache` at slots `length - 1` and beyond, if `propose` returns the cache.
      catch_up: `(params, state, context) -> state`, of a drafter that may lag: reads what is committed before the root,
        as `propose` does first of all; so that a prompt which is read in parts is read by the draft in parts too.
    """

    name: str
    shape: Any
    needs: frozenset[str]
    one_hot: bool
    init: Callable[[Weights, int, int], Any]
    propose: Callable[[Weights, Any, Any, Context], tuple[Any, ...]]
    advance: Callable[[Weights, Any, Feedback], Any]
    available: Callable[[Any, Context], Array] | None = None
    narrow: Callable[[int], Drafter] | None = None
    needs_params: bool = False
    siblings: str = "one"
    own_target: bool = False
    catch_up: Callable[[Weights, Any, Context], Any] | None = None

    @property
    def kind(self) -> str:
        """Of siblings, as verifiers judge them: `siblings`, but "chosen" where `one_hot` says so."""
        return "chosen" if self.one_hot else self.siblings


@pytree
class Verdict:
    """What a verifier decided for a round.

    Attributes:
      num_accepted: int32 [B], drafted tokens kept.
      next_token: int32 [B], the target's own token after them: recovered if a drafted one was refused, else bonus.
      path: int32 [B, P], nodes from the root to the last one kept, then anything; None on a chain, where node `i` is
        place `i`.
    """

    num_accepted: Array
    next_token: Array
    path: Array | None = None


class Verifier(NamedTuple):
    """A rule that keeps drafted tokens without changing the target's law.

    Attributes:
      name: for error messages.
      plan: `(TokenTree, target_log_probs [B, N, V]) -> Plan`, the law of what may happen given the drafted tokens;
        free of randomness, so that it can be enumerated.
      draw: `(Noise, Plan) -> Verdict`.
      shared_noise: True if the drafter draws with the noise the target uses at the same position (match family);
        False if draft, acceptance and recovery are independent (rejection family).
      needs_draft_logits: True if a drawn draft must come with the law it was drawn from.
      outcomes: `(Plan) -> (ends float32 [B, N], following float32 [B, N, V])`, the plan written out: the probability
        that node `n` is the last one kept, and the law of the token after it. For tests; `draw` does without it.
      siblings: kinds of children it judges rightly, of `specjax._src.tree.SIBLINGS`.
      chains_only: True for a rule that judges one path.
      static_only: True for a rule that must know the topology of a tree when it is compiled.
      lossless: False for a rule that changes the target's law.
      walks: True for a rule that draws a number at every depth it comes to; else one decides the round.
    """

    name: str
    plan: Callable[[Any, Array], Any]
    draw: Callable[[Any, Any], Verdict]
    shared_noise: bool
    needs_draft_logits: bool
    outcomes: Callable[[Any], tuple[Array, Array]]
    siblings: frozenset[str]
    chains_only: bool = False
    static_only: bool = False
    lossless: bool = True
    walks: bool = False
