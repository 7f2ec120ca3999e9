"""What the tokens of one call may see, told by entries of the text, so that it serves a cache of any size and form.

Entry `i` of a row is the i-th token that was written for it. A cache of S slots keeps it in slot `i % S`: one that is
large enough for the text is never written round, a smaller one is a ring of the latest S entries. Nothing here has an
axis as long as a cache: what a block of slots shows is worked out when the block is read.
"""

from __future__ import annotations

import jax.numpy as jnp

from specjax._src.types import Array, Attend, pytree


@pytree
class Sight:
    """`Attend`, and a window if there is one, in the form that is cheap to ask; C = A + T columns (see `Attend`).

    Attributes:
      lengths: int32 [B], entries before the call; its own T tokens are the entries behind them.
      floor: int32 [B, T], the first entry that each token sees.
      live: int32 [B], valid tokens of the call; 0 where the row has no part in it.
      block: bool [B, T, C], which of the last C entries each token sees; None on a chain, where it sees all from its
        `floor` to itself.
    """

    lengths: Array
    floor: Array
    live: Array
    block: Array | None

    @property
    def end(self) -> Array:
        """Entries behind the call: int32 [B]."""
        return self.lengths + self.floor.shape[1]


def sight_of(attend: Attend, window: int | None = None) -> Sight:
    """What `attend` lets each token see, no further back than `window` positions, its own included.

    A committed entry stands at the position of its number; an entry of this call where `attend.positions` says, which
    in a tree is not its number: siblings share a position. Of a tree that grows over several calls (a wide
    `Attend.ancestors`) the places in earlier calls are not told; but a token sees one entry of each position before its
    own, in their order.
    """
    live = jnp.sum(attend.valid, axis=1, dtype=jnp.int32)
    tokens = attend.positions.shape[1]
    floor = jnp.zeros_like(attend.positions)
    if attend.ancestors is None:
        floor = floor if window is None else jnp.maximum(attend.positions - window + 1, 0)
        return Sight(attend.lengths, floor, live, None)
    earlier = attend.ancestors.shape[2] - tokens  # columns of entries before the call that not every token may see
    block = jnp.broadcast_to(attend.ancestors, (*attend.positions.shape, earlier + tokens))
    known = jnp.arange(earlier + tokens) >= (earlier - attend.lengths)[:, None]  # there is an entry of that number
    block &= (known & jnp.pad(attend.valid, ((0, 0), (earlier, 0)), constant_values=True))[:, None, :]
    if window is None:
        return Sight(attend.lengths, floor, live, block)
    if earlier:
        behind = jnp.cumsum(block[..., ::-1], axis=-1, dtype=jnp.int32)[..., ::-1]  # seen from here on
        floor = (attend.lengths - earlier)[:, None] + behind[..., 0] - window
        block &= behind <= window
    else:
        floor = attend.positions - window + 1
        block &= attend.positions[:, :, None] - attend.positions[:, None, :] < window
    return Sight(attend.lengths, jnp.maximum(floor, 0), live, block)


def held(sight: Sight, slots: Array, capacity: int) -> Array:
    """The entry in each of the `slots` int32 [s] of a cache of `capacity`, once the call is written: int32 [B, s].

    Below 0 where the slot holds nothing yet.
    """
    last = sight.end[:, None] - 1
    return last - (last - slots) % capacity


def sees(sight: Sight, entries: Array) -> Array:
    """Which of `entries` int32 [B, s] each token sees: bool [B, T, s]. Negative ones nobody does."""
    offset = (entries - sight.lengths[:, None])[:, None, :]
    near = entries[:, None, :] >= sight.floor[..., None]
    if sight.block is None:
        own = jnp.arange(sight.floor.shape[1], dtype=jnp.int32)[:, None]
        return near & (offset <= own) & (offset < sight.live[:, None, None])
    columns = sight.block.shape[2]
    earlier = columns - sight.floor.shape[1]
    index = jnp.clip(offset + earlier, 0, columns - 1)
    inside = (offset >= -earlier) & (offset < columns - earlier) & (entries >= 0)[:, None, :]
    return (near & (offset < -earlier)) | (inside & jnp.take_along_axis(sight.block, index, axis=2))
