"""Token windows from documents: shuffled per epoch, packed end to end, addressed by number so that a run can resume."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

SEPARATOR = 0


class Windows:
    """An endless sequence of windows of `length + 1` tokens over documents, a pure function of `(seed, number)`.

    Each document is preceded by `separator`, which both ends the one before and begins the next. Windows overlap by one
    token: the last input of one is the first of the next, so that every token is a label once per epoch.
    """

    def __init__(self, documents: Sequence[np.ndarray], length: int, seed: int, separator: int = SEPARATOR) -> None:
        mark = np.array([separator], np.int32)
        self._documents = [np.concatenate([mark, np.asarray(d, np.int32)]) for d in documents]
        self._length = length
        self._seed = seed
        self.per_epoch = (sum(map(len, self._documents)) - 1) // length
        if self.per_epoch < 1:
            raise ValueError(f"the documents hold fewer than {length + 1} tokens")
        self._epoch, self._stream = -1, np.zeros(0, np.int32)

    def take(self, first: int, count: int) -> np.ndarray:
        """Windows `first .. first + count` as int32 [count, length + 1]."""
        return np.stack([self._window(i) for i in range(first, first + count)])

    def _window(self, number: int) -> np.ndarray:
        epoch, index = divmod(number, self.per_epoch)
        if epoch != self._epoch:
            order = np.random.default_rng((self._seed, epoch)).permutation(len(self._documents))
            self._stream = np.concatenate([self._documents[i] for i in order])
            self._epoch = epoch
        start = index * self._length
        return self._stream[start : start + self._length + 1]


def ragged(rows: Sequence[Sequence[int]], width: int, fill: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Right-pad (and cut) rows to int32 [B, width], with their lengths int32 [B]."""
    out = np.full((len(rows), width), fill, np.int32)
    lengths = np.zeros(len(rows), np.int32)
    for i, row in enumerate(rows):
        lengths[i] = min(len(row), width)
        out[i, : lengths[i]] = row[: lengths[i]]
    return out, lengths
