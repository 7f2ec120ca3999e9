"""The children of the nodes of one level: chosen by rank, or drawn from the draft's law.

Kinds are those of `specjax._src.tree.SIBLINGS`. Whatever the kind, all of a greedy row's children are the likeliest
tokens in their order, so that a tree is as good for greedy text as one that is chosen.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from specjax._src import rows, sampling
from specjax._src.noise import Noise
from specjax._src.types import Array, Context

Ints = Any
"""An int32 array; those of a static topology are numpy's."""


class Family(NamedTuple):
    """What children the W nodes of a level get.

    Attributes:
      nodes: int32 [W, K], index in the tree of each child; any index beyond the tree where there is none.
      ranks: int32 [W, K], place of each child among the likeliest tokens.
      size: int32 [W], number of children.
    """

    nodes: Ints
    ranks: Ints
    size: Ints


def pick(
    kind: str, noise: Noise, logits: Array, family: Family, depth: Array | int, most: int, context: Context
) -> tuple[Array, Array | None]:
    """Tokens for the children of W nodes.

    Args:
      kind: of siblings.
      noise: of the round; a drawn child takes the number of its own node.
      logits: float32 [B, W, V], after `sampling.adjust`.
      family: of the nodes.
      depth: of the nodes: drafted tokens on the way to them.
      most: one more than the largest rank.
      context: of the round.

    Returns:
      int32 [B, W, K], and the log-law float32 [B, W, V] from which the drawn ones were drawn; None if the verifier does
      without.

    Raises:
      ValueError: when traced, if a node has more children than there are tokens.
    """
    settings = context.history.sampling
    likeliest = _ranked(logits, family.ranks, most)
    if kind == "chosen":
        return likeliest, None

    def drawn(logits: Array) -> tuple[Array, Array]:
        law = sampling.log_law(logits, settings, exactly=False)
        if noise.shared:
            tokens = _coupled(noise, logits, law, family.ranks, depth, most)
        else:
            tokens, law = _DRAWN[kind](noise, logits, law, likeliest, family, depth)
        return jnp.where(settings.temperature[:, None, None] > 0.0, tokens, likeliest), law

    def chosen(logits: Array) -> tuple[Array, Array]:
        return likeliest, jnp.zeros_like(logits)  # nobody reads this law

    tokens, law = jax.lax.cond(sampling.any_sampled(settings, context.live), drawn, chosen, logits)
    return tokens, None if noise.shared else law


COUPLING = 0.5
"""How far a draft's logits are trusted where the noise is known: the scale of what they may be off. Measured with EAGLE
heads of the embedded target, 32 nodes: docs/design.md."""


def preferences(noise: Noise, logits: Array, depth: Array | int, context: Context) -> Array:
    """What a dynamic tree grows by: log-probabilities [B, W, V] that each token is the one to come.

    A greedy row's are those of the draft. So are a sampled row's, unless the verifier lets the drafter hear the noise
    with which the target will choose (the match family): then the token to come is nearly known.

    Args:
      noise: of the round.
      logits: float32 [B, W, V], after `sampling.adjust`.
      depth: of the nodes, or of each of them [W].
      context: of the round.
    """
    plain = jax.nn.log_softmax(logits)
    if not noise.shared:
        return plain
    settings = context.history.sampling

    def heard(logits: Array) -> Array:
        law = sampling.log_law(logits, settings, exactly=False)
        # Nodes of one depth hear one noise; W different ones are hashed only for heads, of which each has its depth.
        steps = jnp.atleast_1d(depth)
        gumbel = jax.vmap(lambda depth: noise.gumbel(depth, law.shape[-1]), out_axes=1)(steps)
        # An error in the logits is divided by the temperature, as they are.
        sharpness = (settings.temperature / COUPLING)[:, None, None]
        return rows.select(settings.temperature > 0.0, jax.nn.log_softmax((law + gumbel) * sharpness), plain)

    return jax.lax.cond(sampling.any_sampled(settings, context.live), heard, lambda logits: plain, logits)


def without(log_law: Array, removed: Array, substitute: Array) -> Array:
    """The log-law [.., V] given that none of the tokens marked in `removed` [.., V] comes; if those were all it had,
    the law that is certain of `substitute` [..]."""
    rest = jnp.where(removed, -jnp.inf, log_law)
    mass = jnp.sum(jnp.exp(rest), axis=-1, keepdims=True)
    certain = jnp.where(substitute[..., None] == jnp.arange(log_law.shape[-1]), 0.0, -jnp.inf)
    return jnp.where(mass > 0.0, rest - jnp.log(jnp.where(mass > 0.0, mass, 1.0)), certain)


def likeliest_tokens(values: Array, count: int) -> Array:
    """The `count` tokens with the largest `values` [B, W, V], best first: int32 [B, W, count].

    Raises:
      ValueError: when traced, if there are not so many tokens.
    """
    if count > values.shape[-1]:
        raise ValueError(f"a tree whose nodes ask for the {count} likeliest tokens does not fit a target of "
                         f"{values.shape[-1]} tokens: take a tree with fewer children per node")
    return jax.lax.top_k(values, count)[1]


def _ranked(values: Array, ranks: Array, most: int) -> Array:
    """Tokens [B, W, K] by their places [W, K] in the order of `values` [B, W, V]."""
    best = likeliest_tokens(values, most)
    return jnp.take_along_axis(best, jnp.broadcast_to(ranks, (*best.shape[:2], ranks.shape[-1])), axis=-1)


def _coupled(noise: Noise, logits: Array, law: Array, ranks: Array, depth: Array | int, most: int) -> Array:
    """The favourites of the noise that the target will use: its own choice is likely to be among them."""
    gumbel = noise.gumbel(depth, law.shape[-1])[:, None]
    # What the law leaves out comes last, in the order of the logits.
    last = jnp.clip(logits - jnp.max(logits, axis=-1, keepdims=True), -1e4, 0.0) - 1e5
    return _ranked(jnp.where(jnp.isfinite(law), law + gumbel, last), ranks, most)


def _hybrid(
    noise: Noise, logits: Array, law: Array, likeliest: Array, family: Family, depth: Array | int
) -> tuple[Array, Array]:
    """All but the last child chosen, the last drawn from the law without them."""
    last = jnp.maximum(family.size - 1, 0)
    place = jnp.arange(likeliest.shape[-1])
    token = jnp.arange(law.shape[-1])
    removed = jnp.zeros(law.shape, bool)
    for index in range(likeliest.shape[-1] - 1):
        removed |= (likeliest[..., index, None] == token) & (index < last)[:, None]
    at = jnp.broadcast_to(last[:, None], (*likeliest.shape[:2], 1))
    next_best = jnp.take_along_axis(likeliest, at, axis=-1)[..., 0]
    rest = without(law, removed, next_best)
    nodes = jnp.take_along_axis(family.nodes, last[:, None], axis=-1)[:, 0]
    own = noise.draw_children(nodes, rest, depth)
    return jnp.where(place == last[:, None], own[..., None], likeliest), rest


def _without_replacement(
    noise: Noise, logits: Array, law: Array, likeliest: Array, family: Family, depth: Array | int
) -> tuple[Array, Array]:
    """Each child drawn from the law without those before it; when the law has no more, the best of what is left."""
    token = jnp.arange(law.shape[-1])
    removed, children = jnp.zeros(law.shape, bool), []
    for index in range(likeliest.shape[-1]):
        next_best = rows.argmax(jnp.where(removed, -jnp.inf, logits))
        rest = without(law, removed, next_best) if index else law
        children.append(noise.draw_children(family.nodes[:, index], rest, depth))
        removed |= children[-1][..., None] == token
    return jnp.stack(children, axis=-1), law


def _independent(
    noise: Noise, logits: Array, law: Array, likeliest: Array, family: Family, depth: Array | int
) -> tuple[Array, Array]:
    """Each child drawn from the same law, whatever the others are."""
    children = [noise.draw_children(family.nodes[:, index], law, depth) for index in range(likeliest.shape[-1])]
    return jnp.stack(children, axis=-1), law


_DRAWN = {"one": _hybrid, "hybrid": _hybrid, "without_replacement": _without_replacement, "independent": _independent}
