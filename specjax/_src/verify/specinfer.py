"""Recursive rejection for children that were drawn independently (SpecInfer, arXiv:2305.09781)."""

from __future__ import annotations

import functools

import jax.numpy as jnp

from specjax._src.types import Array, Verifier
from specjax._src.verify import node as nodes
from specjax._src.verify import walk


@functools.cache
def specinfer() -> Verifier:
    """Test the children of a node one after the other, each against what the target still owes after the last refusal.

        P = p;  for each child x:  accept with min(1, P(x) / q(x)), else  P = norm((P - q)_+);  next token ~ P

    Exact if every drawn child of a node comes from q on its own, so that the same token may come twice. A chosen child
    has q = 1. Children that are drawn without replacement are worth more, and need another rule
    (`without_replacement`).
    """
    return walk.verifier("specinfer", rule, {"independent", "one", "chosen", "hybrid"})


def rule(here: nodes.Node, replacement: bool = True) -> tuple[Array, Array]:
    """The law of a node: a `walk.Rule`. Without `replacement` q loses each drawn child before the next is tested."""
    reach, chances = jnp.ones(here.p.shape[0]), []
    left = nodes.owed(here.p, here.q, reach)
    for child in range(here.tokens.shape[1]):
        accept, left = nodes.ask(left, here.tokens[:, child], here.drawn[:, child], replacement)
        chances.append(reach * accept)
        reach = reach * (1.0 - accept)
    return jnp.stack(chances, axis=1), nodes.normalise(left.p, here.p)
