"""Negative controls: mistakes that were made in public, each as a drafter or verifier that runs. All are biased.

A test suite for speculative decoding is worth something only if it fails these. `CONTROLS` names them; each builds the
`(Drafter, Verifier)` of one mistake from a draft model. Never decode with them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from specjax._src import rows
from specjax._src.draft.model import from_model
from specjax._src.draft.model_tree import model_tree
from specjax._src.noise import ACCEPT, DRAFT, RECOVER, Noise, categorical, fold
from specjax._src.tree import TokenTree
from specjax._src.types import Array, Context, Drafter, Model, Verdict, Verifier
from specjax._src.verify import block as blocks
from specjax._src.verify import hybrid, law, match, rejection, specinfer, walk, without_replacement
from specjax._src.verify.node import Node, normalise

Pair = tuple[Drafter, Verifier]
Paths = tuple[tuple[int, ...], ...]


def argmax_draft(model: Model, num_speculative_tokens: int) -> Pair:
    """The draft takes its likeliest token, and the test uses its softmax as q (bug log A1, A7, X4)."""

    def silent(params: Any, noise: Noise, state: Any, context: Context, propose: Any) -> Any:
        return propose(params, _Silent(noise.key, noise.length, noise.shared), state, context)

    return _with_propose(model, num_speculative_tokens, silent), rejection.rejection()


def unwarped_q(model: Model, num_speculative_tokens: int) -> Pair:
    """The draft draws at the request's temperature, and q is reported at temperature 1."""

    def unwarp(params: Any, noise: Noise, state: Any, context: Context, propose: Any) -> Any:
        tree, state = propose(params, noise, state, context)
        temperature = context.history.sampling.temperature[:, None, None]
        plain = jax.nn.log_softmax(jnp.where(temperature > 0, tree.draft_logits * temperature, tree.draft_logits))
        return replace(tree, draft_logits=plain), state

    return _with_propose(model, num_speculative_tokens, unwarp), rejection.rejection()


def resample_from_p(model: Model, num_speculative_tokens: int) -> Pair:
    """After a refusal the next token is drawn from p instead of the residual (bug log 4.2)."""

    def plan(tree: TokenTree, target: Array) -> law.Plan:
        right = rejection.plan(tree, target)
        return replace(right, tree=replace(tree, draft_logits=jnp.full_like(target, -jnp.inf)))

    return from_model(model, num_speculative_tokens), _verifier("resample_from_p", plan)


def reused_draft_noise(model: Model, num_speculative_tokens: int) -> Pair:
    """The numbers that drew the draft draw the recovered token too: one key used twice."""

    def draw(noise: Noise, plan: law.Plan) -> Verdict:
        verdict = law.draw(noise, plan)
        after = law.residual(plan, verdict.num_accepted)
        own = categorical(noise._uniforms(DRAFT, verdict.num_accepted), after)
        return replace(verdict, next_token=own)

    return from_model(model, num_speculative_tokens), _verifier("reused_draft_noise", rejection.plan, draw)


def block_by_position(model: Model, num_speculative_tokens: int) -> Pair:
    """Block verification with numbers keyed by absolute position: it looks at later ones, then meets them again."""

    def draw(noise: Noise, plan: law.Plan) -> Verdict:
        nodes = plan.target.shape[1]
        uniforms = jnp.concatenate([_uniforms(noise, ACCEPT, node, 1) for node in range(nodes)], axis=1)
        # The plan holds prod_{j > n} (1 - h_j) h_n; the paper tests h_n against a number of its own for each n.
        tail = jnp.cumsum(plan.ends[:, ::-1], axis=1)[:, ::-1]
        not_later = jnp.maximum(1.0 - jnp.pad(tail[:, 1:], ((0, 0), (0, 1))), 1e-30)
        stop = plan.ends / not_later
        passed = (uniforms < stop).at[:, 0].set(True)
        kept = (nodes - 1 - jnp.argmax(passed[:, ::-1], axis=1)).astype(jnp.int32)
        after = law.residual(plan, kept)
        return Verdict(kept, categorical(_uniforms(noise, RECOVER, kept, 2), after))

    return from_model(model, num_speculative_tokens), _verifier("block_by_position", blocks.plan, draw)


def stale_q(model: Model, num_speculative_tokens: int) -> Pair:
    """At the first undrafted depth q is left standing, so that the bonus token comes from a residual.

    To be seen, some rows must draft fewer tokens than the tree has room for.
    """

    def plan(tree: TokenTree, target: Array) -> law.Plan:
        right = rejection.plan(tree, target)
        return replace(right, tree=replace(tree, valid=jnp.ones_like(tree.valid)))

    return from_model(model, num_speculative_tokens), _verifier("stale_q", plan)


def batch_minimum(model: Model, num_speculative_tokens: int) -> Pair:
    """All rows advance by the fewest accepted tokens of a pair, and draw from their residual there (bug log X5)."""

    def draw(noise: Noise, plan: law.Plan) -> Verdict:
        kept = law.draw(noise, plan).num_accepted
        kept = jnp.minimum(kept, jnp.roll(kept, 1))  # two rows suffice to be wrong
        after = law.residual(plan, kept)
        return Verdict(kept, noise.draw_next(after))

    return from_model(model, num_speculative_tokens), _verifier("batch_minimum", rejection.plan, draw)


def dropped_after_seen(model: Model, num_speculative_tokens: int) -> Pair:
    """A drawn token of low q is dropped together with all after it: the stopping rule has looked at it."""

    def drop(params: Any, noise: Noise, state: Any, context: Context, propose: Any) -> Any:
        tree, state = propose(params, noise, state, context)
        q = jnp.exp(jnp.take_along_axis(tree.draft_logits[:, :-1], tree.drafted[..., None], axis=-1)[..., 0])
        sure = jnp.cumprod(q > 0.35, axis=1).astype(bool)
        return replace(tree, valid=tree.valid & jnp.pad(sure, ((0, 0), (1, 0)), constant_values=True)), state

    return _with_propose(model, num_speculative_tokens, drop), rejection.rejection()


CONTROLS: dict[str, Callable[[Model, int], Pair]] = {
    build.__name__: functools.cache(build)
    for build in (argmax_draft, unwarped_q, resample_from_p, reused_draft_noise, block_by_position, stale_q,
                  batch_minimum, dropped_after_seen)
}
"""Name of each mistake to `(draft model, num_speculative_tokens) -> (Drafter, Verifier)`."""


def pruned_by_own_score(model: Model, paths: Paths) -> Pair:
    """A drawn child of a hybrid tree is dropped where the draft finds it unlikely, as a rerank of all nodes does."""

    def prune(params: Any, noise: Noise, state: Any, context: Context, propose: Any) -> Any:
        tree, state = propose(params, noise, state, context)
        law = jnp.take_along_axis(tree.draft_logits, jnp.maximum(tree.parents, 0)[..., None], axis=1)
        score = jnp.take_along_axis(law, tree.tokens[..., None], axis=-1)[..., 0]
        bad = tree.drawn & (score < jnp.log(0.7))
        return replace(tree, valid=tree.valid & ~bad & ~tree.below(bad)), state

    return _changed(model_tree(model, paths, siblings="hybrid"), prune), hybrid.hybrid()


def forgotten_replacement(model: Model, paths: Paths) -> Pair:
    """Children drawn without replacement are all tested against the whole q."""
    rule = walk.verifier("forgotten_replacement", specinfer.rule, {"without_replacement"})
    return model_tree(model, paths, siblings="without_replacement"), rule


def twins_counted_twice(model: Model, paths: Paths) -> Pair:
    """A token that was drafted twice below one node gets its probability twice."""

    def rule(here: Node) -> tuple[Array, Array]:
        chances = jnp.take_along_axis(here.p, jnp.maximum(here.tokens, 0), axis=1) * (here.tokens >= 0)
        return chances, match.choose(here)[1]

    return model_tree(model, paths, siblings="independent"), walk.verifier("twins", rule, {"independent"})


def one_number_for_all_depths(model: Model, paths: Paths) -> Pair:
    """The walk asks every node with the same uniform number."""

    class Stuck(Noise):
        def accept(self, test: Array | int = 0) -> Array:
            return super().accept(0)

    right = without_replacement.without_replacement()

    def draw(noise: Noise, plan: Any) -> Verdict:
        return right.draw(Stuck(noise.key, noise.length, noise.shared), plan)

    return model_tree(model, paths, siblings="without_replacement"), right._replace(name="stuck", draw=draw)


def replacement_drawn_from_p(model: Model, paths: Paths) -> Pair:
    """When all children are refused the next token is drawn from p without them, as if they had been chosen."""

    def rule(here: Node) -> tuple[Array, Array]:
        chances, _ = specinfer.rule(here)
        drafted = jnp.any(here.tokens[..., None] == jnp.arange(here.p.shape[-1]), axis=1)
        return chances, normalise(jnp.where(drafted, 0.0, here.p), here.p)

    return model_tree(model, paths, siblings="independent"), walk.verifier("from_p", rule, {"independent"})


TREE_CONTROLS: dict[str, Callable[[Model, Paths], Pair]] = {
    build.__name__: functools.cache(build)
    for build in (pruned_by_own_score, forgotten_replacement, twins_counted_twice, one_number_for_all_depths,
                  replacement_drawn_from_p)
}
"""The same of trees: `(draft model, paths) -> (Drafter, Verifier)`."""


class _Silent(Noise):
    """No noise: whoever draws with it takes the likeliest token."""

    def draw_draft(self, node: Array | int, log_law: Array) -> Array:
        return rows.argmax(log_law)


def _with_propose(model: Model, num_speculative_tokens: int, change: Callable[..., Any]) -> Drafter:
    """The model drafter with `change` around its `propose`, at one width."""
    return _changed(from_model(model, num_speculative_tokens), change)


def _changed(drafter: Drafter, change: Callable[..., Any]) -> Drafter:
    return drafter._replace(name=f"{drafter.name} with a mistake", narrow=None,
                            propose=lambda *args: change(*args, drafter.propose))


def _verifier(name: str, plan: Callable[..., Any], draw: Callable[..., Any] = law.draw) -> Verifier:
    return Verifier(name, plan, draw, shared_noise=False, needs_draft_logits=True, outcomes=law.outcomes,
                    siblings=frozenset({"one", "chosen"}), chains_only=True)


def _uniforms(noise: Noise, role: int, node: Array | int, count: int) -> Array:
    """Numbers keyed by absolute position, which the rejection family must not use."""
    key = fold(fold(noise.key, role), noise.length + node)
    return jax.vmap(lambda one: jax.random.uniform(one, (count,), jnp.float32))(key)
