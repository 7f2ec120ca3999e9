"""Token trees: what a drafter proposes below the root. A chain is the tree with one branch."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from specjax._src.types import Array, pytree


class Shape(NamedTuple):
    """The static size of a tree: N nodes with the root, of at most `depth` edges from it.

    Every tree of this version is a chain: node `i + 1` is the only child of node `i`.
    """

    num_nodes: int
    depth: int

    @property
    def num_speculative_tokens(self) -> int:
        """Nodes below the root."""
        return self.num_nodes - 1


def chain_shape(num_speculative_tokens: int) -> Shape:
    """The shape of a chain of so many drafted tokens."""
    return Shape(num_speculative_tokens + 1, num_speculative_tokens)


@pytree
class TokenTree:
    """Proposed tokens in topological order; node 0 is the root, the last committed token.

    Attributes:
      tokens: int32 [B, N]; 0 where not valid.
      parents: int32 [N], index of each node's parent, -1 for the root. The same for all rows: a static topology.
      valid: bool [B, N]. The root of a live row is valid; below an invalid node all are invalid.
      draft_logits: float32 [B, N, V] or None. Row `i` is the normalised log-law, *after* the sampling transforms,
        from which the child of node `i` was drawn. None means one-hot: each token was chosen, not drawn.
    """

    tokens: Array
    parents: Array
    valid: Array
    draft_logits: Array | None = None

    @property
    def drafted(self) -> Array:
        """The proposed tokens: int32 [B, N - 1]."""
        return self.tokens[:, 1:]

    @property
    def num_drafted(self) -> Array:
        """Valid nodes below the root: int32 [B]."""
        return jnp.sum(self.valid[:, 1:], axis=1, dtype=jnp.int32)


def chain(root: Array, drafted: Array, drafts: Array, live: Array, draft_logits: Array | None = None) -> TokenTree:
    """A chain below `root` [B] of the tokens `drafted` [B, k], of which the leading `drafts` [B] are valid.

    `draft_logits` [B, k, V] becomes [B, k + 1, V]: nothing is ever drawn below the last node.
    """
    k = drafted.shape[1]
    valid = (jnp.arange(k + 1) <= drafts[:, None]) & live[:, None]
    tokens = jnp.where(valid, jnp.concatenate([root[:, None], drafted], axis=1), 0)
    if draft_logits is not None:
        draft_logits = jnp.pad(draft_logits, ((0, 0), (0, 1), (0, 0)), constant_values=-jnp.inf)
    return TokenTree(tokens, jnp.arange(k + 1) - 1, valid, draft_logits)
