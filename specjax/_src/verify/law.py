"""What a verifier has to say, in one form: how many drafted tokens are kept, and from what law the next one is drawn.

A `Plan` holds no randomness, so the exact law of a round can be enumerated from it; `draw` is shared by the whole
rejection family.
"""

from __future__ import annotations

import chex
import jax.numpy as jnp

from specjax._src import rows
from specjax._src.noise import Noise
from specjax._src.tree import TokenTree
from specjax._src.types import Array, Verdict, pytree


@pytree
class Plan:
    """The law of a round on a chain of k = N - 1 drafted tokens, given those tokens.

    The token after `n` kept ones is drawn from the residual `norm((scale[n] * p_n - q_n)_+)`, where `p_n`, `q_n` are
    the laws of target and draft after node `n`. Where nothing was drafted `q_n` is 0, so that bonus and recovered
    tokens are one path.

    Attributes:
      tree: the proposal.
      target: float32 [B, N, V], normalised log-probabilities of the target after each node.
      num_accepted: float32 [B, N], the probability that exactly `n` drafted tokens are kept.
      scale: float32 [B, N].
    """

    tree: TokenTree
    target: Array
    num_accepted: Array
    scale: Array


def residual(plan: Plan, num_accepted: Array) -> Array:
    """The law of the next token after `num_accepted` [B] kept ones, normalised: float32 [B, V]."""
    p = jnp.exp(rows.take(plan.target, num_accepted))
    tree = plan.tree
    drawn = rows.take(jnp.pad(tree.valid[:, 1:], ((0, 0), (0, 1))), num_accepted)
    if tree.draft_logits is None:
        token = rows.take(jnp.pad(tree.drafted, ((0, 0), (0, 1))), num_accepted)
        q = token[:, None] == jnp.arange(p.shape[-1])
    else:
        q = jnp.exp(rows.take(tree.draft_logits, num_accepted))
    q = jnp.where(drawn[:, None], q, 0.0)
    return _normalise(jnp.maximum(rows.take(plan.scale, num_accepted)[:, None] * p - q, 0.0), p)


def residuals(plan: Plan) -> Array:
    """`residual` after each possible number of kept tokens, float32 [B, N, V]: for those who write the law out."""
    batch, nodes = plan.num_accepted.shape
    return jnp.stack([residual(plan, jnp.full(batch, n, jnp.int32)) for n in range(nodes)], axis=1)


def draw(noise: Noise, plan: Plan) -> Verdict:
    """Draw from the plan: one number of `noise` decides how many tokens are kept, two more the token after them."""
    chex.assert_equal_shape([plan.num_accepted, plan.scale, plan.tree.tokens])
    cumulative = jnp.cumsum(plan.num_accepted, axis=1)
    possible = plan.num_accepted > 0.0
    # Strict, and only among outcomes of positive probability: a token of target probability 0 never passes, not even
    # when the uniform is exactly 0, nor when rounding leaves the total just below it.
    reached = possible & (noise.accept()[:, None] < cumulative)
    last_possible = possible.shape[1] - 1 - jnp.argmax(possible[:, ::-1], axis=1)
    num_accepted = jnp.where(jnp.any(reached, axis=1), jnp.argmax(reached, axis=1), last_possible).astype(jnp.int32)
    return Verdict(num_accepted, noise.draw_next(residual(plan, num_accepted)))


def token_probs(tree: TokenTree, target: Array) -> tuple[Array, Array]:
    """p and q of each drafted token: two float32 [B, k]; q is 1 for a one-hot tree, both are 0 where not drafted."""
    index = tree.drafted[..., None]
    valid = tree.valid[:, 1:]
    p = jnp.exp(jnp.take_along_axis(target[:, :-1], index, axis=-1)[..., 0])
    if tree.draft_logits is None:
        q = jnp.ones_like(p)
    else:
        q = jnp.exp(jnp.take_along_axis(tree.draft_logits[:, :-1], index, axis=-1)[..., 0])
    return jnp.where(valid, p, 0.0), jnp.where(valid, q, 0.0)


def _normalise(weights: Array, fallback: Array) -> Array:
    """`weights` over their sum; `fallback` where that is 0 or not finite (p equal to q up to rounding)."""
    mass = jnp.sum(weights, axis=-1, keepdims=True)
    good = (mass > 0.0) & jnp.isfinite(mass)
    return jnp.where(good, weights / jnp.where(good, mass, 1.0), fallback)
