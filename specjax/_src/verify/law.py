"""What a verifier has to say, in one form: which node is the last one kept, and from what law the next token is drawn.

A `Plan` holds no randomness, so the exact law of a round can be enumerated from it; `draw` is shared by all rules that
weigh the drafted tokens as a whole. Rules that walk down from the root have `verify/walk.py`.
"""

from __future__ import annotations

import chex
import jax.numpy as jnp

from specjax._src import rows
from specjax._src.noise import Noise
from specjax._src.tree import TokenTree
from specjax._src.types import Array, Verdict, pytree
from specjax._src.verify import node as nodes
from specjax._src.verify.node import normalise


@pytree
class Plan:
    """The law of a round on a tree of N nodes, given the drafted tokens. On a chain, node `n` is the `n`-th token.

    The token after node `n` with one child is drawn from the residual `norm((scale[n] * p_n - q_n)_+)`, where `p_n`,
    `q_n` are the laws of target and draft after node `n`. Where nothing was drafted `q_n` is 0, so that bonus and
    recovered tokens are one path. With several children the same is done for one after the other (`residual`).

    Attributes:
      tree: the proposal.
      target: float32 [B, N, V], normalised log-probabilities of the target after each node.
      ends: float32 [B, N], the probability that node `n` is the last one kept.
      scale: float32 [B, N].
    """

    tree: TokenTree
    target: Array
    ends: Array
    scale: Array


def residual(plan: Plan, node: Array) -> Array:
    """The law of the token after `node` [B], if that is the last one kept, normalised: float32 [B, V].

    The children `x_1 .. x_K`, drawn from q without replacement, are refused one after the other (`node.ask`), each but
    the first with what q leaves without those before it.
    """
    if plan.tree.shape.is_chain:
        return _chain_residual(plan, node)
    here = nodes.at(plan.tree, plan.target, node)
    left = nodes.owed(here.p, here.q, rows.take(plan.scale, node))
    for child in range(plan.tree.shape.branching):
        _, left = nodes.ask(left, here.tokens[:, child], here.drawn[:, child])
    return nodes.normalise(left.p, here.p)


def _chain_residual(plan: Plan, node: Array) -> Array:
    p = jnp.exp(rows.take(plan.target, node))
    tree = plan.tree
    drafted = rows.take(jnp.pad(tree.valid[:, 1:], ((0, 0), (0, 1))), node)
    q = None if tree.draft_logits is None else jnp.exp(rows.take(tree.draft_logits, node))
    if q is None or tree.sampled is not None:
        token = rows.take(jnp.pad(tree.drafted, ((0, 0), (0, 1))), node)
        hot = token[:, None] == jnp.arange(p.shape[-1])
        q = hot if q is None else jnp.where(rows.take(child_drawn(tree), node)[:, None], q, hot)
    q = jnp.where(drafted[:, None], q, 0.0)
    return normalise(jnp.maximum(rows.take(plan.scale, node)[:, None] * p - q, 0.0), p)


def child_drawn(tree: TokenTree) -> Array:
    """Of a chain: whether the token after each node was drawn, bool [B, N]."""
    return jnp.pad(tree.drawn[:, 1:], ((0, 0), (0, 1)))


def outcomes(plan: Plan) -> tuple[Array, Array]:
    """`Verifier.outcomes`: `ends` [B, N], and `residual` of every node, [B, N, V]."""
    batch, num_nodes = plan.ends.shape
    following = [residual(plan, jnp.full(batch, node, jnp.int32)) for node in range(num_nodes)]
    return plan.ends, jnp.stack(following, axis=1)


def draw(noise: Noise, plan: Plan) -> Verdict:
    """Draw from the plan: one number of `noise` decides which node is the last one kept, two more the token after."""
    chex.assert_equal_shape([plan.ends, plan.scale, plan.tree.tokens])
    cumulative = jnp.cumsum(plan.ends, axis=1)
    possible = plan.ends > 0.0
    # Strict, and only among outcomes of positive probability: a token of target probability 0 never passes, not even
    # when the uniform is exactly 0, nor when rounding leaves the total just below it.
    reached = possible & (noise.accept()[:, None] < cumulative)
    last_possible = possible.shape[1] - 1 - jnp.argmax(possible[:, ::-1], axis=1)
    node = jnp.where(jnp.any(reached, axis=1), jnp.argmax(reached, axis=1), last_possible).astype(jnp.int32)
    return verdict(plan.tree, node, noise.draw_next(residual(plan, node)))


def verdict(tree: TokenTree, node: Array, next_token: Array) -> Verdict:
    """The verdict that `node` [B] is the last one kept and `next_token` [B] comes after it."""
    if tree.shape.is_chain:
        return Verdict(node, next_token)
    depth = jnp.take_along_axis(jnp.broadcast_to(tree.depths, tree.tokens.shape), node[:, None], axis=1)[:, 0]
    return Verdict(depth, next_token, tree.path(node))


def token_probs(tree: TokenTree, target: Array) -> tuple[Array, Array]:
    """p and q of each drafted token of a chain: two float32 [B, k]; q of a chosen one is 1, both are 0 if undrafted."""
    index = tree.drafted[..., None]
    valid = tree.valid[:, 1:]
    p = jnp.exp(jnp.take_along_axis(target[:, :-1], index, axis=-1)[..., 0])
    if tree.draft_logits is None:
        q = jnp.ones_like(p)
    else:
        q = jnp.exp(jnp.take_along_axis(tree.draft_logits[:, :-1], index, axis=-1)[..., 0])
        q = q if tree.sampled is None else jnp.where(tree.drawn[:, 1:], q, 1.0)
    return jnp.where(valid, p, 0.0), jnp.where(valid, q, 0.0)
