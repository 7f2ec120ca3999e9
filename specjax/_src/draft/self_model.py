"""Self-speculation: some of the target's own layers draft (Draft & Verify, arXiv:2309.08168; LayerSkip, 2404.16710)."""

from __future__ import annotations

import functools
from typing import Any

from specjax._src.draft.model import checked_model, roll_out
from specjax._src.draft.null import checked_depth, no_state, unmoved
from specjax._src.noise import Noise
from specjax._src.tree import TokenTree, chain_shape
from specjax._src.types import Cache, Context, Drafter, Model


def self_model(part: Model, num_speculative_tokens: int) -> Drafter:
    """Draft a chain with a part of the target: no weights of its own, no cache of its own, nothing to train.

    `part` reads the target's parameters and the target's cache, whose entries of committed tokens it finds ready; it
    writes its own behind them, and the verify pass writes over those. So a drafted token costs the layers of the part
    and the head, and is computed once more, whole, in the verify pass. It pays where the part is often right: a target
    trained for early exits, or layers that change little. `specjax.models.some_layers` makes such a part.

    Args:
      part: takes `Params.target` and the cache of the target, and leaves the layers alone that it does not use. The
        cache must be indexed by position.
      num_speculative_tokens: k.

    Raises:
      TypeError: if the network is of another kind.
      ValueError: if `num_speculative_tokens < 1`; when traced, if the vocabularies differ.
    """
    return _self_model(checked_model("self_model", part), checked_depth("self_model", num_speculative_tokens))


@functools.cache
def _self_model(part: Model, num_speculative_tokens: int) -> Drafter:
    def propose(params: Any, noise: Noise, state: tuple[()], context: Context) -> tuple[TokenTree, tuple[()], Cache]:
        tree, _, cache = roll_out("self_model", part, num_speculative_tokens, params, noise, context.cache, context)
        return tree, state, cache

    return Drafter("self_model", chain_shape(num_speculative_tokens), frozenset(), False, no_state, propose, unmoved,
                   narrow=functools.partial(self_model, part), needs_params=True, own_target=True)
