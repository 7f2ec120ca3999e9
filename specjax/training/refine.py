"""The last stage: the draft learns the law of a frozen target at every token of the text that the target wrote."""

from __future__ import annotations

import dataclasses
import pathlib
import time
import zipfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from specjax._src.types import Array, Model
from specjax.training.distill import apply_updates, cross_entropy, packed_attend, schedule
from specjax.training.runs import RunFolder, progress_of
from specjax.training.writing import SEPARATOR, Written


@dataclasses.dataclass(frozen=True)
class Lesson:
    """Windows of written rows, packed end to end, and what to learn at each place.

    Attributes:
      tokens: int32 [B, T].
      scored: bool [B, T], whether the token after this place was written by the target.
      temperature: float32 [B, T] of the row at this place; 0 is greedy.
      ids, log_probs: uint16 and float16 [B, T, C], the target's likeliest next tokens, best first; see `Written`.
    """

    tokens: Array
    scored: Array
    temperature: Array
    ids: Array
    log_probs: Array


jax.tree_util.register_dataclass(Lesson)


class Library:
    """All chunks of a folder as one endless sequence of windows, a pure function of the window's number.

    Rows are shuffled anew every epoch. Of a row that a window cuts the rest is not scored, for there it lacks its head.
    """

    def __init__(self, folder: pathlib.Path, length: int) -> None:
        chunks = []
        for path in sorted(folder.glob("*.npz")):
            try:
                with np.load(path) as arrays:
                    chunks.append(_flat(Written(**arrays)))
            except (OSError, EOFError, TypeError, ValueError, zipfile.BadZipFile) as error:
                raise ValueError(f"{path} is no whole chunk ({error}): delete it and write it again") from error
        if not chunks:
            raise ValueError(f"{folder} holds no chunks; write some first (specjax.training.writing.write_chunks)")
        self._flat: Any = jax.tree.map(lambda *parts: np.concatenate(parts), *chunks)
        self._starts = np.flatnonzero(self._flat.tokens == SEPARATOR)
        self._ends = np.append(self._starts[1:], len(self._flat.tokens))
        self._length, self._epoch, self._order = length, -1, np.zeros(0, np.int64)
        self.per_epoch = len(self._flat.tokens) // length
        if self.per_epoch < 1 or self._flat.tokens[0] != SEPARATOR:
            raise ValueError(
                f"{folder} holds {len(self._flat.tokens)} tokens, windows need {length}, and rows must "
                f"begin with token {SEPARATOR}: write more chunks, with the tokenizer's own first token"
            )

    def take(self, first: int, count: int) -> Lesson:
        """Windows `first .. first + count`."""
        at = np.stack([self._window(number) for number in range(first, first + count)])
        lesson = jax.tree.map(lambda x: x[at], self._flat)
        whole = np.cumsum(lesson.tokens == SEPARATOR, axis=1) > 0
        return dataclasses.replace(lesson, scored=lesson.scored & whole)

    def _window(self, number: int) -> np.ndarray:
        epoch, index = divmod(number, self.per_epoch)
        if epoch != self._epoch:
            rows = np.random.default_rng(epoch).permutation(len(self._starts))
            lengths = (self._ends - self._starts)[rows]
            # Place j of a row that begins at offset o of the new order is place start + j of the old.
            shift = np.repeat(self._starts[rows] - np.cumsum(lengths) + lengths, lengths)
            self._order, self._epoch = shift + np.arange(len(shift)), epoch
        return self._order[index * self._length : (index + 1) * self._length]


def _flat(rows: Any) -> Lesson:
    """`Written` rows (host arrays) end to end, without padding and each row's last token, which nothing follows."""
    batch, new_tokens = rows.ids.shape[:2]
    steps = np.arange(rows.tokens.shape[1])
    kept = steps < (rows.start + rows.length - 1)[:, None]
    offset = steps - (rows.start - 1)[:, None]
    scored = (offset >= 0) & kept
    place = np.clip(offset, 0, new_tokens - 1)[kept]
    row = np.broadcast_to(np.arange(batch)[:, None], kept.shape)[kept]
    return Lesson(
        rows.tokens[kept], scored[kept], rows.temperature[row], rows.ids[row, place], rows.log_probs[row, place]
    )


def draft_loss(params: Any, draft: Model, lesson: Lesson) -> tuple[Array, dict[str, Array]]:
    """Divergence from the target at the row's own temperature, and, weighing more, what acceptance is made of.

    That is the target's choice on greedy rows, and on sampled rows the mass that both laws share. Both sums run over
    the target's likeliest tokens, which is where all but a sliver of the mass is.
    """
    logits = draft.apply(params, lesson.tokens, None, packed_attend(lesson.tokens, SEPARATOR)).logits
    greedy = lesson.temperature == 0
    ids = lesson.ids.astype(jnp.int32)
    teacher = lesson.log_probs.astype(jnp.float32)
    scaled = logits / jnp.where(greedy, 1.0, lesson.temperature)[..., None]
    student = jnp.take_along_axis(scaled, ids, axis=-1) - jax.nn.logsumexp(scaled, axis=-1, keepdims=True)
    distance = jnp.sum(jnp.exp(teacher) * (teacher - student), axis=-1)
    shared = jnp.sum(jnp.exp(jnp.minimum(teacher, student)), axis=-1)
    loss = jnp.where(greedy, 0.3 * distance + cross_entropy(logits, ids[..., 0]), 0.5 * distance - 2.0 * shared)
    accept = jnp.where(greedy, jnp.argmax(logits, axis=-1) == ids[..., 0], shared)

    def mean(values: Array, mask: Array) -> Array:
        return jnp.sum(values * mask) / jnp.maximum(jnp.sum(mask), 1.0)

    scored = lesson.scored
    parts = {"accept_greedy": mean(accept, scored & greedy), "accept_sampled": mean(accept, scored & ~greedy)}
    return mean(loss, scored), parts


def draft_step(draft: Model, transform: optax.GradientTransformation) -> Callable[..., Any]:
    """A compiled `(params, state, lesson, progress) -> (params, state, losses)`; the first two are donated."""

    def step(params: Any, state: Any, lesson: Lesson, progress: Array) -> tuple[Any, Any, dict[str, Array]]:
        (loss, parts), grads = jax.value_and_grad(draft_loss, has_aux=True)(params, draft, lesson)
        new, state = apply_updates(
            {"draft": transform}, {"draft": params}, {"draft": state}, {"draft": grads}, schedule(progress, 0.05, 0.7)
        )
        return new["draft"], state["draft"], {"loss": loss, **parts}

    return jax.jit(step, donate_argnums=(0, 1))


@dataclasses.dataclass(frozen=True)
class RefineSettings:
    """Budget and sizes of the last stage.

    Attributes:
      minutes, steps: length; `steps` wins when it is not 0 and makes the schedule independent of the clock.
      batch, length: windows per optimiser step, tokens per window.
    """

    minutes: float
    steps: int = 0
    batch: int = 8
    length: int = 384


def refine(
    out: pathlib.Path,
    settings: RefineSettings,
    draft: tuple[Model, Any],
    transform: optax.GradientTransformation,
) -> Any:
    """Run (or resume) the stage on the chunks in `out/written` and return the draft's parameters.

    Args:
      out: the run's folder.
      settings: see `RefineSettings`.
      draft: model and parameters, which are consumed.
      transform: the draft's optimiser.
    """
    library = Library(out / "written", settings.length)
    step = draft_step(draft[0], transform)
    params, state = draft[1], transform.init(draft[1])
    run = RunFolder(out / "refine")
    (params, state), counters = run.resume((params, state), {"step": 0, "seconds": 0.0})
    while (progress := progress_of(counters, settings.minutes, settings.steps)) < 1.0:
        began = time.monotonic()
        lesson = library.take(counters["step"] * settings.batch, settings.batch)
        params, state, losses = step(params, state, lesson, jnp.float32(progress))
        values = {name: round(float(value), 4) for name, value in losses.items()}
        # The first step of a process compiles; that is no training time.
        counters["seconds"] += time.monotonic() - began if run.steps_here else 0.0
        counters["step"] += 1
        run.log({**counters, "progress": round(progress, 4), **values})
        run.maybe_save((params, state), counters)
    run.save((params, state), counters)
    return params
