"""Random numbers with an address, so that no number serves twice and no row hears its neighbours.

Two families, by verifier:

* *match*: f(row key, absolute position). The drafter uses the same number, so sampled text equals plain decoding
  token for token (Gumbel coupling: Daliri, Musco & Suresh, arXiv:2408.07978).
* *rejection*: f(row key, row length at the start of the round, role, node), independent for draft, acceptance and
  recovery. Every round starts at a new length, so nothing repeats. Keying this family by absolute position is biased:
  block verification looks at later draws and would reuse them after a refusal.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from specjax._src.types import Array, pytree, static

DRAFT, ACCEPT, RECOVER = 0, 1, 2


@pytree
class Noise:
    """The random numbers of one round; reading one consumes nothing, since each has its own address.

    Attributes:
      key: typed PRNG keys [B], one a row.
      length: int32 [B], row length at the start of the round.
      shared: True for the match family.
    """

    key: Array
    length: Array
    shared: bool = static()

    def draft(self, node: Array | int, vocab_size: int) -> Array:
        """Gumbel noise [B, V] with which the child of `node` is drawn by the drafter."""
        if self.shared:
            return self.target(node, vocab_size)
        return gumbel(self._address(DRAFT, node), vocab_size)

    def target(self, node: Array | int, vocab_size: int) -> Array:
        """Gumbel noise [B, V] of the target's own choice after `node` (match family)."""
        return gumbel(fold(self.key, self.length + node), vocab_size)

    def accept(self) -> Array:
        """Uniform numbers [B] in [0, 1) that decide how many drafted tokens are kept (rejection family)."""
        return jax.vmap(lambda key: jax.random.uniform(key, (), jnp.float32))(self._address(ACCEPT, 0))

    def recover(self, vocab_size: int) -> Array:
        """Gumbel noise [B, V] of the recovered or bonus token (rejection family)."""
        return gumbel(self._address(RECOVER, 0), vocab_size)

    def _address(self, role: int, node: Array | int) -> Array:
        # Role and node share one number (a tree has far fewer than 2**16 nodes): each hash is compiled many times.
        return fold(fold(self.key, self.length), (role << 16) + node)


def fold(key: Array, data: Array | int) -> Array:
    """`jax.random.fold_in` of each key [B] with its own number ([B] or one for all)."""
    return jax.vmap(jax.random.fold_in)(key, jnp.broadcast_to(jnp.asarray(data, jnp.uint32), key.shape))


def gumbel(key: Array, vocab_size: int) -> Array:
    """Standard Gumbel noise [B, V], float32, one independent row for each key [B]."""
    return jax.vmap(lambda one: jax.random.gumbel(one, (vocab_size,), jnp.float32))(key)


def row_keys(key: Array | None, seed: Array | None, batch: int) -> Array:
    """One key for each row: from `seed` [B] where given, else `fold_in(key, row)`; zeros if neither is given."""
    if seed is not None:
        return jax.vmap(jax.random.key)(jnp.broadcast_to(jnp.asarray(seed, jnp.uint32), (batch,)))
    if key is None:
        key = jax.random.key(0)  # only reached when every row is greedy, where no number is drawn
    if not jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    return fold(jnp.broadcast_to(key, (batch,)), jnp.arange(batch))
