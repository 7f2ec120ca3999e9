"""Medusa (arXiv:2401.10774): heads that each guess one later token, and a static tree of their combinations."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp

from specjax._src import checks, sampling
from specjax._src.draft.choices import MEDUSA_PATHS
from specjax._src.draft.grow import check_vocab
from specjax._src.draft.growth import static_growth
from specjax._src.draft.null import no_state, root, unmoved
from specjax._src.draft.siblings import likeliest_tokens, preferences
from specjax._src.noise import Noise
from specjax._src.tree import Shape, TokenTree, static_parents
from specjax._src.types import Array, Context, Drafter, MedusaHeads


def medusa(heads: MedusaHeads, tree: int | Iterable[Sequence[int]] = MEDUSA_PATHS) -> Drafter:
    """Draft with Medusa heads; their parameters are `draft_params`.

    Node `(i, j, ..)` of the tree is token number `i` of the first head, then number `j` of the second, and so on: no
    head knows what another took. All tokens are chosen, so `verify.match()` is exact at any temperature;
    `verify.typical()` is the lossy rule of the paper.

    Args:
      heads: one for each depth; see `specjax.load_head`.
      tree: paths of ranks (default: the 63 nodes that Medusa publishes, without those deeper than there are heads),
        or a number of tokens for a chain. `best_paths` makes one from measured accuracies.

    Raises:
      TypeError: if the network is of another kind.
      ValueError: for paths that make no tree, or that are deeper than there are heads; at the first request, if the
        target lacks the feature.
    """
    checks.network("medusa", heads, MedusaHeads, "`head` of specjax.load_head")
    if tree is MEDUSA_PATHS:
        tree = [path for path in MEDUSA_PATHS if len(path) <= heads.num_heads]
    shape = static_growth("medusa", tree, "chosen").shape
    if shape.depth > heads.num_heads:
        raise ValueError(f"medusa got a tree of depth {shape.depth}, but {heads.name} has {heads.num_heads} heads: "
                         "take a tree that is no deeper, or more heads")
    return _medusa(heads, shape)


@functools.cache
def _medusa(heads: MedusaHeads, shape: Shape) -> Drafter:
    def propose(params: Any, noise: Noise, state: tuple[()], context: Context) -> tuple[TokenTree, tuple[()]]:
        features = {name: context.features[name] for name in heads.needs}
        logits = heads.apply(params, features)[:, : shape.depth]
        check_vocab(heads.name, logits.shape[-1], context.vocab_size)
        # What stands before a head's token is not known to it: penalties see the committed text alone.
        batch = context.length.shape[0]
        nothing = sampling.chain_prefix(jnp.zeros((batch, 0), jnp.int32), 0, shape.depth)
        logits = sampling.adjust(logits, context.history, nothing)
        return _combine(shape, preferences(noise, logits, jnp.arange(shape.depth), context), context), state

    def available(state: tuple[()], context: Context) -> Array:
        del state
        return jnp.where(context.length > 1, shape.depth, 0)  # a prompt of one token has no feature yet

    return Drafter("medusa", shape, heads.needs, True, no_state, propose, unmoved, available, needs_params=True,
                   siblings="chosen")


def _combine(shape: Shape, liking: Array, context: Context) -> TokenTree:
    """The tree of the likeliest tokens of each depth, from log-probabilities `liking` float32 [B, D, V]."""
    best = likeliest_tokens(liking, shape.num_ranks)
    parents = static_parents(shape, liking.shape[0])
    tree = TokenTree(jnp.zeros_like(parents), parents, jnp.ones_like(parents, bool), shape)
    depth = tree.depths[0]
    tokens = best[:, jnp.maximum(depth - 1, 0), jnp.maximum(jnp.asarray(shape.ranks), 0)]
    tokens = tokens.at[:, 0].set(root(context))
    sane = jnp.isfinite(jnp.max(liking, axis=-1))
    good = jnp.cumprod(sane, axis=1, dtype=jnp.int32)
    limit = jnp.minimum(context.drafts, jnp.sum(good, axis=1))
    valid = (depth <= limit[:, None]) & context.live[:, None]
    return TokenTree(jnp.where(valid, tokens, 0), parents, valid, shape)
