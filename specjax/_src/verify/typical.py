"""Typical acceptance (Medusa, arXiv:2401.10774): not lossless."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from specjax._src import rows
from specjax._src.noise import Noise
from specjax._src.tree import SIBLINGS, TokenTree
from specjax._src.types import Array, Verdict, Verifier
from specjax._src.verify import law, walk


def typical(epsilon: float, delta: float) -> Verifier:
    """Lossy: keep what the target finds likely enough, which changes the law of the text; exact only when greedy.

    A drafted token x is accepted if `p(x) > min(epsilon, delta exp(-H(p)))`, H being the entropy of the target's law p
    (after the sampling transforms) at its node. The longest accepted path wins, of equals the likeliest, and the next
    token is drawn from p at its end. Medusa's program uses epsilon = 0.09 and delta = 0.3; there are no defaults here,
    because what is kept is a matter of taste.

    Raises:
      ValueError: if not `0 <= epsilon < 1` or `delta < 0`.
    """
    epsilon, delta = float(epsilon), float(delta)
    if not 0.0 <= epsilon < 1.0 or not delta >= 0.0:
        raise ValueError(f"typical needs 0 <= epsilon < 1 and delta >= 0, got epsilon={epsilon}, delta={delta}")
    return _typical(epsilon, delta)


@functools.cache
def _typical(epsilon: float, delta: float) -> Verifier:
    def draw(noise: Noise, plan: walk.Plan) -> Verdict:
        node = longest(plan.tree, plan.target, epsilon, delta)
        return law.verdict(plan.tree, node, noise.draw_next(jnp.exp(rows.take(plan.target, node))))

    def outcomes(plan: walk.Plan) -> tuple[Array, Array]:
        node = longest(plan.tree, plan.target, epsilon, delta)
        return jax.nn.one_hot(node, plan.tree.shape.num_nodes), jnp.exp(plan.target)

    return Verifier("typical", walk.Plan, draw, shared_noise=False, needs_draft_logits=False, outcomes=outcomes,
                    siblings=frozenset(SIBLINGS), lossless=False)


def longest(tree: TokenTree, target: Array, epsilon: float, delta: float) -> Array:
    """The last node of the path that is kept, int32 [B]; `target` float32 [B, N, V], normalised log-probabilities."""
    p = jnp.exp(target)
    entropy = -jnp.sum(jnp.where(p > 0.0, p * target, 0.0), axis=-1)
    enough = jnp.minimum(epsilon, delta * jnp.exp(-entropy))
    parent = jnp.maximum(tree.parents, 0)
    p_token = jnp.take_along_axis(p.reshape(p.shape[0], -1), parent * p.shape[-1] + tree.tokens, axis=1)
    typical = (tree.valid & (p_token > jnp.take_along_axis(enough, parent, axis=1))).at[:, 0].set(True)
    kept = jnp.all(typical[:, None, :] | ~tree.ancestors, axis=-1)
    log_p = jnp.where(p_token > 0.0, jnp.log(p_token), -jnp.inf).at[:, 0].set(0.0)
    likelihood = jnp.sum(jnp.where(tree.ancestors, log_p[:, None, :], 0.0), axis=-1)
    deepest = kept & (tree.depths == jnp.max(jnp.where(kept, tree.depths, 0), axis=1, keepdims=True))
    return jnp.argmax(jnp.where(deepest, likelihood, -jnp.inf), axis=1).astype(jnp.int32)
