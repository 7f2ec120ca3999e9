"""Token-wise rejection sampling on a chain (Leviathan et al., arXiv:2211.17192; Chen et al., arXiv:2302.01318)."""

from __future__ import annotations

import functools

import jax.numpy as jnp

from specjax._src.tree import TokenTree
from specjax._src.types import Array, Verifier
from specjax._src.verify import law, node


@functools.cache
def rejection() -> Verifier:
    """Accept each drafted token `d` with probability `min(1, p(d) / q(d))`, up to the first refusal.

    Exact for any draft law q, if the drafted tokens were drawn from it. A one-hot draft has q(d) = 1. `block` keeps at
    least as many tokens for the same price; this rule is here because it is the one the field knows.
    """
    return Verifier("rejection", plan, law.draw, shared_noise=False, needs_draft_logits=True, outcomes=law.outcomes,
                    siblings=frozenset({"one", "chosen"}), chains_only=True)


def plan(tree: TokenTree, target: Array) -> law.Plan:
    """The law of a round; `target` float32 [B, N, V], normalised log-probabilities."""
    p, q = law.token_probs(tree, target)
    accept = jnp.where(tree.valid[:, 1:], node.accept(p, q), 0.0)
    kept = jnp.cumprod(jnp.pad(accept, ((0, 0), (1, 0)), constant_values=1.0), axis=1)  # kept[n]: the first n are
    refused = 1.0 - jnp.pad(accept, ((0, 0), (0, 1)))
    return law.Plan(tree, target, kept * refused, jnp.ones_like(kept))
