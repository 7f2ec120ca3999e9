"""What a drafter learns from: windows of a target's answers, and what the target says at each place of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from specjax._src.types import Array, Attend, Model, pytree
from specjax.training.answers import Chunk

LOOKAHEAD = 64  # rows among which the one is sought that fills a window best


@pytree
class Batch:
    """Windows of answers, rows packed side by side.

    Attributes:
      tokens: int32 [B, T].
      document: int32 [B, T], which row of its window each token belongs to; -1 for padding.
      answer: bool [B, T], whether the target wrote the token.
      temperature: float32 [B, T], of the row; 0 is greedy.
    """

    tokens: Array
    document: Array
    answer: Array
    temperature: Array


@pytree
class Lesson:
    """A batch with what the target makes of it.

    Attributes:
      batch: see `Batch`.
      features: dict of name to [B, T, F], the target's features of each token.
      logits: [B, T, V], the target's; row `t` scores the token that follows token `t`.
    """

    batch: Batch
    features: dict[str, Array]
    logits: Array

    def ahead(self, values: Array, distance: int) -> Array:
        """Of each place of `values` [B, T, ..] what stands `distance` places behind it; zeros past the window."""
        widths = [(0, 0), (0, distance)] + [(0, 0)] * (values.ndim - 2)
        return jnp.pad(values, widths)[:, distance:]

    def scored(self, distance: int) -> Array:
        """Whether the token `distance` places behind is one that the target wrote in the same row: bool [B, T]."""
        batch = self.batch
        same = self.ahead(batch.document + 1, distance) == batch.document + 1
        return self.ahead(batch.answer, distance) & same & (batch.document >= 0)


def within_documents(document: Array) -> Array:
    """Which places each place of packed windows sees: those of its own row up to itself, bool [B, T, T]."""
    steps = jnp.arange(document.shape[1])
    return (document[:, :, None] == document[:, None, :]) & (steps[:, None] >= steps)


def packed_attend(document: Array) -> Attend:
    """Causal attention inside each row of packed windows; `document` int32 [B, T] tells rows apart, -1 is padding."""
    batch, length = document.shape
    return Attend(
        lengths=jnp.zeros((batch,), jnp.int32),
        positions=jnp.broadcast_to(jnp.arange(length, dtype=jnp.int32), (batch, length)),
        valid=document >= 0,
        ancestors=within_documents(document),
    )


def teach(model: Model, params: Any, batch: Batch, needs: frozenset[str]) -> Lesson:
    """One pass of the target over the windows, without a cache; only the features in `needs` are kept.

    Raises:
      ValueError: if the target does not offer one of them.
    """
    out = model.apply(params, batch.tokens, None, packed_attend(batch.document))
    if missing := sorted(needs - out.features.keys()):
        raise ValueError(f"the drafter reads the features {', '.join(missing)}; its target offers "
                         f"{', '.join(sorted(out.features)) or 'none'}")
    return Lesson(batch, {name: out.features[name] for name in sorted(needs)}, out.logits)


class Windows:
    """Packed windows of answers as an endless sequence, a pure function of the seed and a window's number.

    Rows are packed once, nearly without padding; each epoch goes through the windows in an order of its own. A row
    longer than a window is cut at its end.
    """

    def __init__(self, chunks: Sequence[Chunk], length: int, seed: int) -> None:
        """Pack the rows of `chunks` into windows of `length` tokens.

        Raises:
          ValueError: if a prompt fills a window, so that nothing of its answer would be seen.
        """
        rows = [(number, row) for number, chunk in enumerate(chunks) for row in range(len(chunk.start))]
        longest = max(int(chunk.start.max()) for chunk in chunks)
        if longest + 2 > length:
            raise ValueError(f"the longest prompt has {longest} tokens, which leaves nothing of its answer in windows "
                             f"of {length}: raise `length` to {longest + 3} at the least")
        self.length = length
        self._chunks, self._seed = chunks, seed
        self._rows = [rows[i] for i in np.random.default_rng(seed).permutation(len(rows))]
        self._sizes = [min(int(chunks[c].start[row] + chunks[c].length[row]), length) for c, row in self._rows]
        self._places = _packed(self._sizes, length)
        self._epoch, self._order = -1, np.zeros(0, np.int64)

    def __len__(self) -> int:
        return len(self._places)

    @property
    def num_tokens(self) -> int:
        """Tokens of all windows, padding left out."""
        return sum(self._sizes)

    def take(self, first: int, count: int) -> Batch:
        """Windows `first .. first + count`, as host arrays."""
        return self._batch([self.rows(number) for number in range(first, first + count)])

    def in_order(self, first: int, count: int) -> Batch:
        """Windows of the packing itself, each once; empty ones behind the last."""
        return self._batch([self._packing(i) if i < len(self) else [] for i in range(first, first + count)])

    def rows(self, number: int) -> list[tuple[int, int, int]]:
        """What window `number` is made of: for each row its chunk, its place there, and how many tokens are shown."""
        epoch, index = divmod(number, len(self))
        if epoch != self._epoch:
            self._order = np.random.default_rng((self._seed, epoch)).permutation(len(self))
            self._epoch = epoch
        return self._packing(int(self._order[index]))

    def _packing(self, index: int) -> list[tuple[int, int, int]]:
        return [(*self._rows[i], self._sizes[i]) for i in self._places[index]]

    def _batch(self, windows: list[list[tuple[int, int, int]]]) -> Batch:
        parts: Any = [np.stack(part) for part in zip(*map(self._filled, windows), strict=True)]
        return Batch(*parts)

    def _filled(self, rows: list[tuple[int, int, int]]) -> tuple[np.ndarray, ...]:
        tokens, answer = np.zeros(self.length, np.int32), np.zeros(self.length, bool)
        document, temperature = np.full(self.length, -1, np.int32), np.zeros(self.length, np.float32)
        begin = 0
        for number, (index, row, size) in enumerate(rows):
            chunk, here = self._chunks[index], slice(begin, begin + size)
            tokens[here] = chunk.tokens[row, :size]
            document[here], temperature[here] = number, chunk.temperature[row]
            answer[begin + chunk.start[row] : here.stop] = True
            begin = here.stop
        return tokens, document, answer, temperature


def _packed(sizes: Sequence[int], length: int) -> list[list[int]]:
    """Rows of each window: the next one, then again and again the longest of those that come soon and still fit."""
    coming = iter(range(len(sizes)))
    pool: list[int] = []
    windows: list[list[int]] = []
    while True:
        pool += itertools.islice(coming, LOOKAHEAD - len(pool))
        if not pool:
            return windows
        rows = [pool.pop(0)]
        room = length - sizes[rows[0]]
        while fits := [index for index in pool if sizes[index] <= room]:
            rows.append(max(fits, key=lambda index: sizes[index]))
            pool.remove(rows[-1])
            room -= sizes[rows[-1]]
        windows.append(rows)
