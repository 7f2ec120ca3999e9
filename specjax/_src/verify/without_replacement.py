"""Recursive rejection without replacement (RSD, arXiv:2402.14160; Sequoia, arXiv:2402.12374)."""

from __future__ import annotations

import functools

from specjax._src.tree import SIBLINGS
from specjax._src.types import Verifier
from specjax._src.verify import specinfer, walk


@functools.cache
def without_replacement() -> Verifier:
    """Test the children of a node one after the other; the law of each is what q leaves without those before it.

        P, Q = p, q;  for each child x:  accept with min(1, P(x) / Q(x)), else  P = norm((P - Q)_+), Q = norm(Q \\ x)
        next token ~ P

    Exact if the drawn children of a node are drawn from q without replacement, in this order. Where Q has nothing left,
    a further child counts as chosen (Q = 1 for it). Exact too if each is drawn from q on its own: a token that comes
    again has been refused, so that P has none of it, and one that does not is drawn from Q; but there `specinfer` keeps
    more. With chosen siblings behind one drawn child it is `hybrid`.
    """
    rule = functools.partial(specinfer.rule, replacement=False)
    return walk.verifier("without_replacement", rule, set(SIBLINGS))
