"""Verification from the root down: at each node that the walk reaches, a rule picks a child or stops.

Only nodes that are visited cost anything. The tests of the children one after the other are put together into one law
over {child 1 .. K, stop}, so that a node takes one uniform number; the next token is drawn once, where the walk stops.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from specjax._src import rows
from specjax._src.noise import Noise
from specjax._src.tree import TokenTree
from specjax._src.types import Array, Verdict, Verifier, pytree
from specjax._src.verify import law
from specjax._src.verify import node as nodes
from specjax._src.verify.node import Node

Rule = Callable[[Node], tuple[Array, Array]]
"""`(Node) -> (chances float32 [B, K], residual float32 [B, V])`: the probability that the walk goes on to each child (0
where there is none), and the law of the next token if it stops, normalised."""


@pytree
class Plan:
    """What the walk needs; each node is weighed when it is reached.

    Attributes:
      tree: the proposal.
      target: float32 [B, N, V], normalised log-probabilities of the target after each node.
    """

    tree: TokenTree
    target: Array


def verifier(name: str, rule: Rule, siblings: set[str]) -> Verifier:
    """The verifier that walks by `rule`."""
    return Verifier(name, Plan, functools.partial(draw, rule), shared_noise=False, needs_draft_logits=True,
                    outcomes=functools.partial(outcomes, rule), siblings=frozenset(siblings),
                    walks=True)


def draw(rule: Rule, noise: Noise, plan: Plan) -> Verdict:
    """Walk down; a number of `noise` for each depth, since a walk meets one node of each."""
    tree = plan.tree

    def visit(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        depth, node, walking, after = carry
        here = nodes.at(tree, plan.target, node)
        chances, residual = rule(here)
        # Strict, and only children of positive probability: a token of target probability 0 never passes.
        reached = (chances > 0.0) & (noise.accept(depth)[:, None] < jnp.cumsum(chances, axis=1))
        after = rows.select(walking, residual, after)
        walking &= jnp.any(reached, axis=1)
        node = jnp.where(walking, rows.take(here.places, jnp.argmax(reached, axis=1)), node)
        return depth + 1, node, walking & tree.is_inner(node), after

    root = jnp.zeros(tree.tokens.shape[0], jnp.int32)
    carry = (jnp.int32(0), root, tree.is_inner(root), jnp.zeros_like(plan.target[:, 0]))
    _, node, _, after = jax.lax.while_loop(lambda carry: jnp.any(carry[2]), visit, carry)
    # A leaf is not asked: what follows it is the target's own.
    after = rows.select(tree.is_inner(node), after, jnp.exp(rows.take(plan.target, node)))
    return law.verdict(tree, node, noise.draw_next(after))


def outcomes(rule: Rule, plan: Plan) -> tuple[Array, Array]:
    """`Verifier.outcomes`: the rule at every node, and the chance to arrive there."""
    tree = plan.tree
    batch, num_nodes = tree.tokens.shape

    def weigh(node: Array) -> tuple[Array, Array, Array]:
        here = nodes.at(tree, plan.target, jnp.full(batch, node))
        chances, residual = rule(here)
        return chances, residual, here.places

    chances, following, places = jax.vmap(weigh, out_axes=1)(jnp.arange(num_nodes, dtype=jnp.int32))

    def descend(node: int, reach: Array) -> Array:
        # Absent children have no chance, so that their place does not matter.
        return reach.at[jnp.arange(batch)[:, None], places[:, node]].add(reach[:, node, None] * chances[:, node])

    reach = jax.lax.fori_loop(0, num_nodes, descend, jnp.zeros((batch, num_nodes)).at[:, 0].set(1.0))
    return reach * jnp.maximum(1.0 - jnp.sum(chances, axis=-1), 0.0), following
