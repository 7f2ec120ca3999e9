"""The hybrid node rule: the best children chosen, one more drawn from the rest (Hu et al., arXiv:2502.18779)."""

from __future__ import annotations

import functools

import jax.numpy as jnp

from specjax._src import rows
from specjax._src.types import Array, Verifier
from specjax._src.verify import match, walk
from specjax._src.verify import node as nodes


@functools.cache
def hybrid() -> Verifier:
    """Test the drawn child as plain rejection does; if it is refused, sample and match the chosen ones.

    For chosen children S and one child x drawn from Q, the draft's law without S:

        accept x with a = min(1, p(x) / Q(x));  else y ~ norm((p - Q)_+):  go on to the child y if it is in S, else stop

    A node goes on with probability `p(S) + sum_x min(p(x), Q(x))`, the most that such candidates allow. Without a drawn
    child this is `match`, without chosen ones `rejection`.
    """
    return walk.verifier("hybrid", rule, {"hybrid", "one", "chosen"})


def rule(here: nodes.Node) -> tuple[Array, Array]:
    """The law of a node: a `walk.Rule`."""
    if here.q is None:
        return match.choose(here)
    # A drawn child that Q can not have drawn is one more chosen child: S was all that the draft had.
    possible = jnp.take_along_axis(here.q, jnp.maximum(here.tokens, 0), axis=1) > 0.0
    is_drawn = here.drawn & possible
    token = jnp.where(jnp.any(is_drawn, axis=1), rows.take(here.tokens, jnp.argmax(is_drawn, axis=1)), -1)
    accept, left = nodes.ask(nodes.owed(here.p, here.q, jnp.ones(token.shape)), token, token >= 0)
    rest = nodes.normalise(left.p, here.p)
    chances, after = match.choose(here._replace(p=rest, tokens=jnp.where(is_drawn, -1, here.tokens)))
    first = is_drawn & (jnp.cumsum(is_drawn, axis=1) == 1)
    return jnp.where(first, accept[:, None], (1.0 - accept)[:, None] * chances), after
