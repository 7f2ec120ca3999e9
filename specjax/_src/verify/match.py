"""Sample, then match: the target chooses at each node, and the walk goes on while a drafted token is its choice."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from specjax._src import rows
from specjax._src.noise import Noise
from specjax._src.tree import SIBLINGS, TokenTree
from specjax._src.types import Array, Verdict, Verifier
from specjax._src.verify import law, walk
from specjax._src.verify import node as nodes

Walk = tuple[Array, Array, Array, Array]


@functools.cache
def match() -> Verifier:
    """Keep drafted tokens as long as they are what the target itself draws, with noise keyed by position.

    Exact for any draft, with no need of its law, and the text is the very text of plain decoding with the same keys.
    A draft model draws with the same noise (Gumbel coupling, arXiv:2408.07978), which keeps most of the acceptance.
    """
    return Verifier("match", walk.Plan, draw, shared_noise=True, needs_draft_logits=False,
                    outcomes=functools.partial(walk.outcomes, choose), siblings=frozenset(SIBLINGS))


def choose(here: nodes.Node) -> tuple[Array, Array]:
    """The law of a node for tokens chosen without the target's noise: a `walk.Rule`."""
    first = jnp.stack([jnp.all(here.tokens[:, :child] != here.tokens[:, child, None], axis=1)
                       for child in range(here.tokens.shape[1])], axis=1)  # the walk goes to the first of equals
    chances = jnp.take_along_axis(here.p, jnp.maximum(here.tokens, 0), axis=1) * ((here.tokens >= 0) & first)
    drafted = jnp.any(here.tokens[..., None] == jnp.arange(here.p.shape[-1]), axis=1)
    return chances, nodes.normalise(jnp.where(drafted, 0.0, here.p), here.p)


def draw(noise: Noise, plan: walk.Plan) -> Verdict:
    """Walk down, drawing only where the walk arrives."""
    tree, target = plan.tree, plan.target
    if tree.shape.is_chain:
        return _draw_chain(noise, tree, target)

    def visit(carry: Walk) -> Walk:
        depth, walking, node, next_token = carry
        choice = noise.draw_target(depth, rows.take(target, node))
        next_token = jnp.where(walking, choice, next_token)
        children, present = tree.children(node)
        agrees = present & (jnp.take_along_axis(tree.tokens, children, axis=1) == choice[:, None])
        walking &= jnp.any(agrees, axis=1)
        node = jnp.where(walking, rows.take(children, jnp.argmax(agrees, axis=1)), node)
        return depth + 1, walking, node, next_token

    _, _, node, next_token = jax.lax.while_loop(lambda carry: jnp.any(carry[1]), visit, _start(tree))
    return law.verdict(tree, node, next_token)


def _draw_chain(noise: Noise, tree: TokenTree, target: Array) -> Verdict:
    """The same where the next node is the only child."""
    drafted, valid = tree.drafted, tree.valid[:, 1:]
    # -1 is nobody's choice: the walk ends there.
    wanted = jnp.pad(jnp.where(valid, drafted, -1), ((0, 0), (0, 1)), constant_values=-1)

    def visit(carry: Walk) -> Walk:
        node, walking, num_accepted, next_token = carry
        choice = noise.draw_target(node, jax.lax.dynamic_index_in_dim(target, node, axis=1, keepdims=False))
        next_token = jnp.where(walking, choice, next_token)
        walking &= choice == jax.lax.dynamic_index_in_dim(wanted, node, axis=1, keepdims=False)
        return node + 1, walking, num_accepted + walking.astype(jnp.int32), next_token

    _, _, num_accepted, next_token = jax.lax.while_loop(lambda carry: jnp.any(carry[1]), visit, _start(tree))
    return Verdict(num_accepted, next_token)


def _start(tree: TokenTree) -> Walk:
    """Depth, whether each row still walks, its node (or number kept), its next token."""
    zeros = jnp.zeros(tree.tokens.shape[0], jnp.int32)
    return jnp.int32(0), tree.valid[:, 0], zeros, zeros


def greedy(tree: TokenTree, logits: Array) -> Verdict:
    """The same walk at temperature 0, where every choice is known at once: `logits` [B, N, V], no noise."""
    choice = rows.argmax(logits)
    if tree.shape.is_chain:
        agrees = (choice[:, :-1] == tree.drafted) & tree.valid[:, 1:]
        num_accepted = jnp.sum(jnp.cumprod(agrees.astype(jnp.int32), axis=1), axis=1, dtype=jnp.int32)
        return Verdict(num_accepted, rows.take(choice, num_accepted))
    wanted = jnp.take_along_axis(choice, jnp.maximum(tree.parents, 0), axis=1)
    agrees = ((tree.tokens == wanted) & tree.valid).at[:, 0].set(True)
    kept = jnp.all(agrees[:, None, :] | ~tree.ancestors, axis=-1)
    node = jnp.argmax(jnp.where(kept, tree.depths, -1), axis=1).astype(jnp.int32)
    return law.verdict(tree, node, rows.take(choice, node))
