"""Sample, then match: the target chooses at each node, and the walk goes on while the drafted token is its choice."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from specjax._src import rows
from specjax._src.noise import Noise
from specjax._src.tree import TokenTree
from specjax._src.types import Array, Verdict, Verifier
from specjax._src.verify import law, rejection


@functools.cache
def match() -> Verifier:
    """Keep drafted tokens as long as they are what the target itself draws, with noise keyed by position.

    Exact for any draft, with no need of its law, and the text is the very text of plain decoding with the same keys.
    A draft model draws with the same noise (Gumbel coupling, arXiv:2408.07978), which keeps most of the acceptance.
    """
    return Verifier("match", plan, draw, shared_noise=True, needs_draft_logits=False)


def plan(tree: TokenTree, target: Array) -> law.Plan:
    """The law of a round for tokens chosen without the target's noise: that of rejection with a one-hot draft."""
    return rejection.plan(TokenTree(tree.tokens, tree.parents, tree.valid), target)


def draw(noise: Noise, plan: law.Plan) -> Verdict:
    """Walk down the chain, drawing only where the walk arrives."""
    tree, target = plan.tree, plan.target
    wanted = jnp.where(tree.valid[:, 1:], tree.drafted, -1)
    wanted = jnp.pad(wanted, ((0, 0), (0, 1)), constant_values=-1)  # -1 is nobody's choice: the walk ends there

    def visit(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        node, walking, num_accepted, next_token = carry
        choice = noise.draw_target(node, jax.lax.dynamic_index_in_dim(target, node, axis=1, keepdims=False))
        next_token = jnp.where(walking, choice, next_token)
        walking &= choice == jax.lax.dynamic_index_in_dim(wanted, node, axis=1, keepdims=False)
        return node + 1, walking, num_accepted + walking.astype(jnp.int32), next_token

    batch = tree.tokens.shape[0]
    zeros = jnp.zeros(batch, jnp.int32)
    walking = tree.valid[:, 0]
    _, _, num_accepted, next_token = jax.lax.while_loop(
        lambda carry: jnp.any(carry[1]), visit, (jnp.int32(0), walking, zeros, zeros))
    return Verdict(num_accepted, next_token)


def greedy(tree: TokenTree, logits: Array) -> Verdict:
    """The same walk at temperature 0, where every choice is known at once: `logits` [B, N, V], no noise."""
    choice = rows.argmax(logits)
    agrees = (choice[:, :-1] == tree.drafted) & tree.valid[:, 1:]
    num_accepted = jnp.sum(jnp.cumprod(agrees.astype(jnp.int32), axis=1), axis=1, dtype=jnp.int32)
    return Verdict(num_accepted, rows.take(choice, num_accepted))
