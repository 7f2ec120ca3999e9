"""Random numbers with an address, so that no number serves twice and no row hears its neighbours.

Two families, by verifier:

* *match*: f(row key, absolute position). The drafter uses the same number, so sampled text equals plain decoding
  token for token (Gumbel coupling: Daliri, Musco & Suresh, arXiv:2408.07978).
* *rejection*: f(row key, row length at the start of the round, role, node), independent for draft, acceptance and
  recovery. Every round starts at a new length, so nothing repeats. Keying this family by absolute position is biased:
  block verification looks at later draws and would reuse them after a refusal.
"""

from __future__ import annotations

import math
from dataclasses import field, replace

import jax
import jax.numpy as jnp

from specjax._src import rows
from specjax._src.types import Array, pytree, static

DRAFT, ACCEPT, RECOVER = 0, 1, 2


@pytree
class Noise:
    """The random numbers of one round; reading one consumes nothing, since each has its own address.

    Attributes:
      key: typed PRNG keys [B], one a row.
      length: int32 [B], row length at the start of the round.
      shared: True for the match family.
      table: float32 [B, N + A + 1, 2], numbers of the rejection family hashed beforehand (see `prepared`); or None.
      num_tests: A, of which numbers the table holds.
    """

    key: Array
    length: Array
    shared: bool = static()
    table: Array | None = None
    num_tests: int = field(default=1, metadata={"static": True})

    def prepared(self, num_nodes: int, wanted: Array, num_tests: int = 1) -> Noise:
        """The same numbers hashed now, if `wanted` (bool []), in one go: of N nodes and A tests (see `accept`).

        One by one inside a roll-out they would cost more than all that is done with them.
        """
        if self.shared:
            return self
        nodes = [_address(DRAFT, node) for node in range(num_nodes)]
        tests = [_address(ACCEPT, test) for test in reversed(range(num_tests))]
        addresses = jnp.array([*nodes, *tests, _address(RECOVER, 0)], jnp.uint32)
        hashed = jax.vmap(self._hashed, out_axes=1)
        nothing = jnp.zeros((self.key.shape[0], len(addresses), 2), jnp.float32)
        return replace(self, table=jax.lax.cond(wanted, hashed, lambda _: nothing, addresses), num_tests=num_tests)

    def draw_draft(self, node: Array | int, log_law: Array) -> Array:
        """The drafter's child of `node`, int32 [B], drawn from the normalised `log_law` [B, V]."""
        if self.shared:
            return self.draw_target(node, log_law)
        return categorical(self._uniforms(DRAFT, node), jnp.exp(log_law))

    def draw_children(self, nodes: Array, log_laws: Array, depth: Array | int) -> Array:
        """The drafter's tokens at W `nodes` of a tree, of one level: int32 [B, W].

        On a chain, node 1 gets what `draw_draft(0, ..)` gives. In the match family all nodes of a level hear one noise,
        so that siblings of one law are one token: for more, take the best of `log_law + gumbel(depth)`.

        Args:
          nodes: int32 [W] or [B, W], nodes to be filled, from 1 on.
          log_laws: float32 [B, W, V], normalised, the law of each.
          depth: of their parents.
        """
        batch, width, vocab_size = log_laws.shape
        if self.shared:
            return rows.argmax(log_laws + self.gumbel(depth, vocab_size)[:, None])
        nodes = jnp.broadcast_to(nodes, (batch, width))
        uniforms = jax.vmap(lambda node: self._uniforms(DRAFT, node), in_axes=1, out_axes=1)(nodes - 1)
        laws = jnp.exp(log_laws)
        return categorical(uniforms.reshape(-1, 2), laws.reshape(-1, vocab_size)).reshape(batch, width)

    def draw_target(self, depth: Array | int, log_law: Array) -> Array:
        """The target's own choice after a node at `depth` (match family), int32 [B], by Gumbel noise."""
        return rows.argmax(log_law + self.gumbel(depth, log_law.shape[-1]))

    def gumbel(self, depth: Array | int, vocab_size: int) -> Array:
        """Gumbel noise [B, V], float32, of the position after a node at `depth` (match family)."""
        keys = fold(self.key, self.length + depth)
        return jax.vmap(lambda key: jax.random.gumbel(key, (vocab_size,), jnp.float32))(keys)

    def accept(self, test: Array | int = 0) -> Array:
        """Uniform numbers [B] in [0, 1) that decide what is kept (rejection family).

        A rule that weighs the whole draft makes one test a round, a walk one at each depth.
        """
        if self.num_tests <= 1 and not (isinstance(test, int) and test < self.num_tests):
            return self._hashed(_address(ACCEPT, test))[:, 0]  # the table may lack it
        return self._uniforms(ACCEPT, test)[:, 0]

    def draw_next(self, law: Array) -> Array:
        """The recovered or bonus token (rejection family), int32 [B], drawn from `law` [B, V]."""
        return categorical(self._uniforms(RECOVER, 0), law)

    def _uniforms(self, role: int, node: Array | int) -> Array:
        """Two uniform numbers in [0, 1) for each row, [B, 2]."""
        if self.table is None:
            return self._hashed(_address(role, node))
        last = self.table.shape[1] - 1
        place = node if role == DRAFT else last if role == RECOVER else last - 1 - node
        return rows.take(self.table, jnp.broadcast_to(place, self.length.shape))

    def _hashed(self, address: Array | int) -> Array:
        keys = fold(fold(self.key, self.length), address)
        return jax.vmap(lambda key: jax.random.uniform(key, (2,), jnp.float32))(keys)


def _address(role: int, node: Array | int) -> Array | int:
    # Role and node share one number (a tree has far fewer than 2**16 nodes): each hash is compiled many times.
    return (role << 16) + node


def categorical(uniforms: Array, weights: Array) -> Array:
    """Draw an index for each row in proportion to `weights` float32 [B, V] >= 0, from two `uniforms` [B, 2] in [0, 1).

    The inverse of the cumulative sum in two levels: the first number picks one of about sqrt(V) blocks, the second a
    token in it. It takes two random numbers where Gumbel noise takes V, one pass over the weights, and is finer than
    one float32 number could be, since a rare token is resolved within its block. A weight of 0 is never drawn. The
    number of blocks is round, so that a vocabulary that is split over devices is cut where blocks end.

    Returns:
      int32 [B].
    """
    batch, size = weights.shape
    unit = 128 if size >= 4096 else 8
    count = unit * max(1, round(math.sqrt(size) / unit))
    width = -(-size // count)
    blocks = jnp.pad(weights, ((0, 0), (0, count * width - size))).reshape(batch, count, width)
    block = _pick(uniforms[:, 0], jnp.sum(blocks, axis=-1))
    return jnp.minimum(block * width + _pick(uniforms[:, 1], rows.take(blocks, block)), size - 1)


def _pick(uniform: Array, weights: Array) -> Array:
    cumulative = jnp.cumsum(weights, axis=-1)
    place, possible = jnp.arange(weights.shape[-1], dtype=jnp.int32), weights > 0.0
    # XLA sums along a tree, so that rounding can let the sum rise at a weight of 0: such entries are no candidates.
    beyond = possible & (cumulative > uniform[:, None] * cumulative[:, -1:])
    first = jnp.min(jnp.where(beyond, place, weights.shape[-1]), axis=-1)
    return jnp.minimum(first, jnp.max(jnp.where(possible, place, 0), axis=-1))


def fold(key: Array, data: Array | int) -> Array:
    """`jax.random.fold_in` of each key [B] with its own number ([B] or one for all)."""
    return jax.vmap(jax.random.fold_in)(key, jnp.broadcast_to(jnp.asarray(data, jnp.uint32), key.shape))


def row_keys(key: Array | None, seed: Array | None, batch: int) -> Array:
    """One key for each row: from `seed` [B] where given, else `fold_in(key, row)`; zeros if neither is given."""
    if seed is not None:
        return jax.vmap(jax.random.key)(jnp.broadcast_to(jnp.asarray(seed, jnp.uint32), (batch,)))
    if key is None:
        key = jax.random.key(0)  # only reached when every row is greedy, where no number is drawn
    if not jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.wrap_key_data(key)
    return fold(jnp.broadcast_to(key, (batch,)), jnp.arange(batch))
