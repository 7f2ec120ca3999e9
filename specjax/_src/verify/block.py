"""Block verification of a chain (Sun et al., arXiv:2403.10444): exact, and no rule for one path keeps more."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from specjax._src.tree import TokenTree
from specjax._src.types import Array, Verifier
from specjax._src.verify import law


@functools.cache
def block() -> Verifier:
    """Judge the drafted block as a whole: a weak token may be kept for the sake of strong ones after it.

    With `P_0 = 1` and `P_i = min(P_{i-1} p(d_i) / q(d_i), 1)`, position `i` is a stopping place with probability

        h_i = S_i / (S_i + 1 - P_i),    S_i = sum_x (P_i p_{i+1}(x) - q_{i+1}(x))_+,

    and the *last* such place wins (not the first refusal). The next token is drawn from
    `norm((P_i p_{i+1} - q_{i+1})_+)`. At the first undrafted depth q is 0, so that S = P and h = P.
    """
    return Verifier("block", plan, law.draw, shared_noise=False, needs_draft_logits=True, outcomes=law.outcomes,
                    siblings=frozenset({"one", "chosen"}), chains_only=True)


def plan(tree: TokenTree, target: Array) -> law.Plan:
    """The law of a round; `target` float32 [B, N, V], normalised log-probabilities."""
    p, q = law.token_probs(tree, target)
    ratio = jnp.where(q > 0.0, p / jnp.where(q > 0.0, q, 1.0), 0.0)

    def weigh(before: Array, ratio: Array) -> tuple[Array, Array]:
        joint = jnp.minimum(before * ratio, 1.0)
        return joint, joint

    first = jnp.ones(ratio.shape[0])
    _, later = jax.lax.scan(weigh, first, ratio.T, unroll=True)
    joint = jnp.concatenate([first[None], later]).T  # P_i: [B, N]
    surplus = _surplus(tree, target, joint)
    whole = joint >= 1.0
    stop = jnp.where(whole, 1.0, surplus / jnp.where(whole, 1.0, surplus + 1.0 - joint))
    stop = jnp.where(tree.valid, stop, 0.0).at[:, 0].set(1.0)
    passed_over = jnp.pad(1.0 - stop[:, 1:], ((0, 0), (0, 1)), constant_values=1.0)
    later_fail = jnp.cumprod(passed_over[:, ::-1], axis=1)[:, ::-1]  # no later stopping place: prod_{j > i} (1 - h_j)
    return law.Plan(tree, target, stop * later_fail, joint)


def _surplus(tree: TokenTree, target: Array, joint: Array) -> Array:
    """S_i, float32 [B, N]."""
    p = jnp.exp(target)
    surplus = None
    if tree.draft_logits is not None:
        drawn = jnp.pad(tree.valid[:, 1:], ((0, 0), (0, 1)))
        q = jnp.where(drawn[..., None], jnp.exp(tree.draft_logits), 0.0)
        surplus = jnp.sum(jnp.maximum(joint[..., None] * p - q, 0.0), axis=-1)
        if tree.sampled is None:
            return surplus
    # One-hot q: everything but the drafted token is surplus, and nothing of that token, whose q is 1.
    drafted, _ = law.token_probs(tree, target)
    chosen = joint * (1.0 - jnp.pad(drafted, ((0, 0), (0, 1))))
    return chosen if surplus is None else jnp.where(law.child_drawn(tree), surplus, chosen)
