"""A tree that grows where the draft is sure: expansion and rerank of EAGLE-2 (arXiv:2406.16858), each row its own.

The score of a node is the sum of the draft's log-probabilities on its path, before temperature and truncation (in the
match family, where the noise is known, given the noise). A level's best W nodes are passed through the network, the W
likeliest children of each become candidates, and of all candidates the best are kept: a connected tree, since no child
scores above its parent.

At temperature > 0 the scores say nothing of a *drawn* token, and pruning one by its own score would bias the text. So a
hybrid tree is built of chosen nodes first; then those inner nodes that score best get one more child each, drawn from
the draft's law without their chosen ones, and kept whatever it is.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax._src import rows, sampling
from specjax._src.draft import grow
from specjax._src.draft.null import root
from specjax._src.draft.siblings import preferences, without
from specjax._src.noise import Noise
from specjax._src.tree import Shape, TokenTree
from specjax._src.types import Array, Cache, Context, pytree


class Plan(NamedTuple):
    """The static size of the growth.

    Attributes:
      shape: of the tree, of parents that are not static.
      width: W, nodes passed through the network at each depth, and children of each that are looked at.
      drawn: nodes that are drawn; the others below the root are chosen. 0 for a tree that is chosen whole.
    """

    shape: Shape
    width: int
    drawn: int

    @property
    def num_inner(self) -> int:
        """I, nodes behind which the network says something: the root, and W at each depth but the last."""
        return 1 + (self.shape.depth - 1) * self.width

    @property
    def looked_at(self) -> int:
        """C, candidates: the W likeliest children of each of them."""
        return self.num_inner * self.width


def plan(num_nodes: int, depth: int, width: int, drawn: int) -> Plan:
    """The sizes of a tree of `num_nodes` with the root, `drawn` of them drawn."""
    return Plan(Shape(num_nodes, depth, width + 1), width, drawn)


@pytree
class Candidates:
    """All nodes that were looked at, level by level; C = `Plan.looked_at` of them.

    Attributes:
      tokens: int32 [B, C].
      parents: int32 [B, C], the candidate above, -1 for a child of the root.
      scores: float32 [B, C]; -inf for one that may not be taken.
      inner: int32 [B, I], candidates that were passed through the network; -1 first, for the root.
      sane: bool [B, I], whether what the network said behind each of them can be used.
      logits: float32 [B, I, V], adjusted.
    """

    tokens: Array
    parents: Array
    scores: Array
    inner: Array
    sane: Array
    logits: Array


def grow_dynamic(
    stepper: grow.Stepper, plan: Plan, params: Any, noise: Noise, start: grow.Start, context: Context
) -> tuple[TokenTree, Cache]:
    """A tree of the sizes in `plan`, and the cache of the network.

    Raises:
      ValueError: when traced, if `width` is more than there are tokens or candidates are fewer than nodes.
    """
    candidates, cache = _expand(stepper, plan, params, noise, start, context)
    count = plan.shape.num_nodes - 1
    whole = functools.partial(_rerank, plan, count)
    if plan.drawn == 0 or noise.shared:  # what is chosen for a noise that is known needs no draw
        tree, _ = whole(candidates, context)
        return tree, cache
    settings = context.history.sampling

    def chosen(candidates: Candidates) -> TokenTree:
        tree, _ = whole(candidates, context)
        nothing = jnp.zeros((*tree.tokens.shape, candidates.logits.shape[-1]), jnp.float32)
        return TokenTree(tree.tokens, tree.parents, tree.valid, tree.shape, nothing, jnp.zeros_like(tree.valid))

    def hybrid(candidates: Candidates) -> TokenTree:
        tree, index = _rerank(plan, count - plan.drawn, candidates, context)
        tree = _add_drawn(plan, noise, tree, index, candidates, context)
        # A greedy row beside sampled ones gets the tree that it would get alone.
        return jax.tree.map(functools.partial(rows.select, settings.temperature > 0.0), tree, chosen(candidates))

    return jax.lax.cond(sampling.any_sampled(settings, context.live), hybrid, chosen, candidates), cache


def _expand(
    stepper: grow.Stepper, plan: Plan, params: Any, noise: Noise, start: grow.Start, context: Context
) -> tuple[Candidates, Cache]:
    width, passes = plan.width, plan.shape.depth - 1
    batch = context.length.shape[0]
    logits, sane = grow.root_logits(stepper, start, context)
    if width > logits.shape[-1] or plan.looked_at < plan.shape.num_nodes - 1:
        raise ValueError(f"a dynamic tree of width {width} and depth {plan.shape.depth} looks at {width} of "
                         f"{logits.shape[-1]} tokens and at {plan.looked_at} nodes in all, but "
                         f"{plan.shape.num_nodes - 1} are asked for: change width, depth or num_nodes")
    scores, tokens = jax.lax.top_k(preferences(noise, logits, 0, context)[:, 0], width)
    scores = jnp.where(sane & (context.drafts > 0)[:, None], scores, -jnp.inf)
    first = (tokens, jnp.full((batch, width), -1, jnp.int32), scores)
    frontier = grow.open_frontier(start, context, width, max(passes, 1))

    def descend(carry: tuple, number: Array) -> tuple[tuple, tuple[Array, ...]]:
        frontier, up, tokens, scores, ids = carry
        frontier = grow.enter(frontier, context, number, up, tokens, scores > -jnp.inf)
        logits, frontier = grow.run(stepper, params, frontier, start, context, number)
        law, children = jax.lax.top_k(preferences(noise, logits, number + 1, context), width)
        below = jnp.where(frontier.valid & (number + 1 < context.drafts)[:, None], scores, -jnp.inf)[..., None] + law
        parents = jnp.broadcast_to(ids[..., None], below.shape)
        flat = tuple(values.reshape(batch, -1) for values in (children, parents, below))
        best, at = jax.lax.top_k(flat[2], width)
        own = jnp.take_along_axis(flat[0], at, axis=1)
        # Candidate number of the first child of this level: those of the levels above stand before it.
        carry = (frontier, at // width, own, best, width + number * width**2 + at)
        return carry, (*flat, ids, frontier.valid, logits)

    up = jnp.zeros((batch, width), jnp.int32)
    ids = jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), (batch, width))
    carry, (*levels, inner, usable, behind) = jax.lax.scan(
        descend, (frontier, up, tokens, scores, ids), jnp.arange(passes, dtype=jnp.int32))

    def line_up(head: Array, tail: Array) -> Array:
        """[B, h, ..] and [passes, B, w, ..], one behind the other."""
        tail = jnp.moveaxis(tail, 0, 1)
        return jnp.concatenate([head, tail.reshape(batch, -1, *tail.shape[3:])], axis=1)

    tokens, parents, scores = (line_up(head, tail) for head, tail in zip(first, levels, strict=True))
    every = line_up(jnp.full((batch, 1), -1, jnp.int32), inner)
    usable = line_up(sane, usable)
    return Candidates(tokens, parents, scores, every, usable, line_up(logits, behind)), carry[0].cache


def _rerank(plan: Plan, count: int, candidates: Candidates, context: Context) -> tuple[TokenTree, Array]:
    """The tree of the best `count` candidates, with room behind them up to the full size, and the node of each
    candidate: int32 [B, C], -1 where it is none."""
    batch, total = candidates.tokens.shape
    nodes = plan.shape.num_nodes
    _, best = jax.lax.top_k(candidates.scores, count)
    best = jnp.sort(best, axis=1)  # parents come before children, as they do among the candidates
    kept = jnp.take_along_axis(candidates.scores, best, axis=1) > -jnp.inf
    row = jnp.arange(batch)[:, None]
    number = jnp.where(kept, jnp.arange(1, count + 1, dtype=jnp.int32), -1)
    index = jnp.full((batch, total), -1, jnp.int32).at[row, best].set(number)
    above = jnp.take_along_axis(candidates.parents, best, axis=1)
    parents = jnp.where(above < 0, 0, jnp.take_along_axis(index, jnp.maximum(above, 0), axis=1))
    tokens = jnp.where(kept, jnp.take_along_axis(candidates.tokens, best, axis=1), 0)
    first = root(context)[:, None]
    room = ((0, 0), (0, nodes - 1 - count))
    return TokenTree(
        jnp.concatenate([jnp.where(context.live[:, None], first, 0), jnp.pad(tokens, room)], axis=1),
        jnp.concatenate([jnp.full_like(first, -1), jnp.pad(jnp.where(kept, parents, 0), room)], axis=1),
        jnp.concatenate([context.live[:, None], jnp.pad(kept, room)], axis=1),
        plan.shape), index


def _add_drawn(
    plan: Plan, noise: Noise, tree: TokenTree, index: Array, candidates: Candidates, context: Context
) -> TokenTree:
    """`tree` with one drawn child below each of the best inner nodes, in the room behind the chosen ones."""
    batch, vocab_size = tree.tokens.shape[0], candidates.logits.shape[-1]
    inner = jnp.maximum(candidates.inner, 0)
    node = jnp.where(candidates.inner < 0, 0, jnp.take_along_axis(index, inner, axis=1))
    score = jnp.where(candidates.inner < 0, 0.0, jnp.take_along_axis(candidates.scores, inner, axis=1))
    depth = jnp.take_along_axis(tree.depths, jnp.maximum(node, 0), axis=1)
    able = candidates.sane & (node >= 0) & (depth < context.drafts[:, None])
    best, at = jax.lax.top_k(jnp.where(able, score, -jnp.inf), plan.drawn)  # known before any of them is drawn
    above, fertile = jnp.take_along_axis(node, at, axis=1), best > -jnp.inf
    logits = rows.gather(candidates.logits, at)

    taken = (tree.parents[:, None, :] == above[..., None]) & tree.valid[:, None, :]  # [B, E, N]
    removed = jax.vmap(lambda tokens, taken: jnp.zeros((plan.drawn, vocab_size), bool).at[:, tokens].max(taken))(
        tree.tokens, taken)
    next_best = rows.argmax(jnp.where(removed, -jnp.inf, logits))
    law = without(sampling.log_law(logits, context.history.sampling, exactly=False), removed, next_best)
    count = plan.shape.num_nodes - plan.drawn
    nodes = jnp.arange(count, plan.shape.num_nodes)
    own = noise.draw_children(nodes, law, 0)
    at_row = jnp.arange(batch)[:, None]
    laws = jnp.full((*tree.tokens.shape, vocab_size), -jnp.inf)
    laws = laws.at[at_row, jnp.where(fertile, above, plan.shape.num_nodes)].set(law, mode="drop")
    return TokenTree(
        tree.tokens.at[:, count:].set(jnp.where(fertile, own, 0)),
        tree.parents.at[:, count:].set(jnp.where(fertile, above, 0)),
        tree.valid.at[:, count:].set(fertile),
        plan.shape, laws, jnp.broadcast_to(jnp.arange(plan.shape.num_nodes) >= count, tree.valid.shape))
