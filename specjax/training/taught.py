"""What a target says of its answers, kept on disk: features in bfloat16, and of each law the likeliest tokens.

One pass over the answers, where training would ask the target anew in every epoch. What is lost: features are rounded,
and a law is what its `CANDIDATES` likeliest tokens make of it.
"""

from __future__ import annotations

import functools
import hashlib
import pathlib
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from specjax._src.types import Array, pytree, static
from specjax.benchmarks.progress import Stage
from specjax.checkpoints import LoadedModel
from specjax.training.answers import TRAINING, Chunk
from specjax.training.lesson import Batch, Lesson, Windows, teach

CANDIDATES = 64
NEVER = -1e9  # as a logit: no mass, and no infinity that would make a gradient NaN
ROWS = 16
FILES = ("features", "ids", "log_probs")


@pytree
class Taught:
    """A batch with what is on disk for it.

    Attributes:
      batch: see `Batch`.
      features: bfloat16 [B, T, sum of F], those of `names` side by side.
      ids: int32 [B, T, C], the likeliest next tokens, best first.
      log_probs: float16 [B, T, C].
      names: of the features, with their widths (static).
      vocab_size: V (static).
    """

    batch: Batch
    features: Array
    ids: Array
    log_probs: Array
    names: tuple[tuple[str, int], ...] = static()
    vocab_size: int = static()

    def lesson(self) -> Lesson:
        """As `teach` gives it, but for rounding and for unlikely tokens, which have no mass."""
        ends = np.cumsum([width for _, width in self.names])[:-1]
        parts = jnp.split(self.features, ends, axis=-1) if self.names else []
        rows, length, _ = self.ids.shape
        place = jnp.arange(rows)[:, None, None], jnp.arange(length)[None, :, None], self.ids
        logits = jnp.full((rows, length, self.vocab_size), NEVER).at[place].set(self.log_probs.astype(jnp.float32))
        return Lesson(self.batch, dict(zip([name for name, _ in self.names], parts, strict=True)), logits)


class TaughtWindows:
    """The windows of `Windows` with what the target said of them."""

    def __init__(self, windows: Windows, folder: pathlib.Path, target: LoadedModel, needs: frozenset[str]) -> None:
        self._windows, self._folder = windows, folder
        self._names = _widths(target, needs)
        self._vocab_size = target.config.vocab_size
        self._open: dict[int, tuple[np.ndarray, ...]] = {}

    def take(self, first: int, count: int) -> Taught:
        """Windows `first .. first + count`."""
        made = [self._window(self._windows.rows(number)) for number in range(first, first + count)]
        features, ids, log_probs = (jnp.asarray(np.stack(part)) for part in zip(*made, strict=True))
        return Taught(self._windows.take(first, count), features, ids, log_probs, self._names, self._vocab_size)

    def _window(self, rows: list[tuple[int, int, int]]) -> list[np.ndarray]:
        parts: list[list[np.ndarray]] = [[], [], []]
        for chunk, row, size in rows:
            *arrays, ends = self._chunk(chunk)
            begin = ends[row - 1] if row else 0
            for part, array in zip(parts, arrays, strict=True):
                part.append(array[begin : begin + size])
        whole = [np.concatenate(part) for part in parts]
        widths = ((0, self._windows.length - len(whole[0])), (0, 0))
        features, ids, log_probs = (np.pad(part, widths) for part in whole)
        return [features.view(jnp.bfloat16), ids.astype(np.int32), log_probs]

    def _chunk(self, number: int) -> tuple[np.ndarray, ...]:
        if number not in self._open:
            folder = self._folder / f"{number:05d}"
            arrays = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in FILES)
            self._open[number] = (*arrays, np.load(folder / "ends.npy"))
        return self._open[number]


def write_taught(
    answers: pathlib.Path, chunks: Sequence[Chunk], target: LoadedModel, needs: frozenset[str], stage: Stage
) -> pathlib.Path:
    """Let the target read its answers once, and keep what `needs` names, and its laws, beside them.

    Chunks that are there stay, so a run that is killed goes on. The folder's name tells which features it holds.

    Returns:
      The folder.
    """
    digest = hashlib.sha256(" ".join(sorted(needs)).encode()).hexdigest()[:8]
    folder = answers / f"{TRAINING}-taught-{digest}"
    folder.mkdir(exist_ok=True)
    missing = [number for number in range(len(chunks)) if not (folder / f"{number:05d}").exists()]
    tell = stage("features", len(missing))
    read = _reader(target, needs)
    for number in missing:
        unfinished = folder / f"{number:05d}.incomplete"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        for name, array in zip((*FILES, "ends"), _read(chunks[number], read), strict=True):
            np.save(unfinished / f"{name}.npy", array)
        unfinished.rename(folder / f"{number:05d}")
        tell()
    return folder


def _reader(target: LoadedModel, needs: frozenset[str]) -> Callable[[np.ndarray, np.ndarray], tuple[Array, ...]]:
    @jax.jit
    def read(params: Any, tokens: Array, document: Array) -> tuple[Array, ...]:
        batch = Batch(tokens, document, jnp.zeros(tokens.shape, bool), jnp.zeros(tokens.shape))
        lesson = teach(target.model, params, batch, needs)
        features = [value.astype(jnp.bfloat16) for value in lesson.features.values()]
        log_probs, ids = lax.top_k(
            jax.nn.log_softmax(lesson.logits.astype(jnp.float32)), min(CANDIDATES, lesson.logits.shape[-1]))
        least = float(np.finfo(np.float16).min)
        flat = jnp.concatenate(features, axis=-1) if features else jnp.zeros((*tokens.shape, 0), jnp.bfloat16)
        return flat, ids, jnp.maximum(log_probs, least).astype(jnp.float16)

    return functools.partial(read, target.params)


def _read(chunk: Chunk, read: Callable[..., tuple[Array, ...]]) -> tuple[np.ndarray, ...]:
    """The arrays of a chunk, its rows end to end without padding, and where each row ends."""
    sizes = chunk.start + chunk.length
    parts: list[list[np.ndarray]] = [[], [], []]
    for first in range(0, len(sizes), ROWS):
        tokens, some = chunk.tokens[first : first + ROWS], sizes[first : first + ROWS]
        spare = ROWS - len(some)
        inside = np.arange(tokens.shape[1]) < some[:, None]
        document = np.pad(np.where(inside, 0, -1).astype(np.int32), ((0, spare), (0, 0)), constant_values=-1)
        made = read(np.pad(tokens, ((0, spare), (0, 0))), document)
        for part, array in zip(parts, made, strict=True):
            part.append(np.asarray(array)[: len(some)][inside])
    features, ids, log_probs = (np.concatenate(part) for part in parts)
    return features.view(np.uint16), ids, log_probs, np.cumsum(sizes)


def _widths(target: LoadedModel, needs: frozenset[str]) -> tuple[tuple[str, int], ...]:
    return tuple((name, target.config.hidden_size) for name in sorted(needs))
