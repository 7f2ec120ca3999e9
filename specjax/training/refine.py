"""The last stage: a frozen target writes text, and the draft learns the target's distribution at every token of it.

A draft that has only seen human text meets, in use, the target's own: this closes the gap (on-policy distillation in
the manner of DistillSpec, arXiv:2310.08461). Half of the rows are greedy, half are sampled; the target's logits are
kept with the text, so that training on it needs no second pass of the target.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from specjax._src.types import Array, Attend, Model
from specjax.training.distill import apply_updates, cross_entropy, divergence, schedule
from specjax.training.runs import Counters, RunFolder
from specjax.training.writing import Written, prompts_from, writer


@dataclasses.dataclass(frozen=True)
class RefineSettings:
    """Budget and sizes of the last stage.

    Attributes:
      minutes, chunks: length of the stage; `chunks` wins when it is not 0, and makes it independent of the clock.
      rows: rows written at a time; half of them greedy, half sampled at `temperature`.
      prompt_tokens, new_tokens: widths of prompt and continuation.
      batch: rows per optimiser step.
      steps_per_chunk: optimiser steps for each chunk of rows written.
    """

    minutes: float
    chunks: int = 0
    rows: int = 128
    temperature: float = 0.8
    prompt_tokens: int = 80
    new_tokens: int = 128
    batch: int = 16
    steps_per_chunk: int = 24


def draft_loss(params: Any, draft: Model, rows: Written) -> tuple[Array, dict[str, Array]]:
    """Divergence from the target at the row's own temperature, and, weighing more, what acceptance is made of.

    That is the target's choice on greedy rows, and on sampled rows the mass that both laws share.
    """
    batch, width = rows.tokens.shape
    steps = jnp.arange(width)
    attend = Attend(
        lengths=jnp.zeros((batch,), jnp.int32),
        positions=jnp.broadcast_to(steps, (batch, width)),
        valid=steps < (rows.start + rows.length)[:, None],
    )
    logits = draft.apply(params, rows.tokens, None, attend).logits
    count = rows.logits.shape[1]
    at = rows.start[:, None] - 1 + jnp.arange(count)
    student = jnp.take_along_axis(logits, at[..., None], axis=1)
    teacher = rows.logits.astype(jnp.float32)
    greedy = (rows.temperature == 0)[:, None]
    sharp = jnp.where(greedy, 1.0, rows.temperature[:, None])[..., None]
    distance = divergence(teacher / sharp, student / sharp)
    choice = jnp.argmax(teacher, axis=-1)
    shared = jnp.sum(jnp.minimum(jax.nn.softmax(teacher / sharp), jax.nn.softmax(student / sharp)), axis=-1)
    loss = jnp.where(greedy, 0.3 * distance + cross_entropy(student, choice), 0.5 * distance - 2.0 * shared)
    weight = (jnp.arange(count) < rows.length[:, None]).astype(jnp.float32)
    accept = jnp.where(greedy, jnp.argmax(student, axis=-1) == choice, shared)

    def mean(values: Array, mask: Array) -> Array:
        return jnp.sum(values * mask) / jnp.maximum(jnp.sum(mask), 1.0)

    parts = {"accept_greedy": mean(accept, weight * greedy), "accept_sampled": mean(accept, weight * ~greedy)}
    return mean(loss, weight), parts


def draft_step(draft: Model, transform: optax.GradientTransformation) -> Callable[..., Any]:
    """A compiled `(params, state, rows, progress) -> (params, state, losses)`."""

    def step(params: Any, state: Any, rows: Written, progress: Array) -> tuple[Any, Any, dict[str, Array]]:
        (loss, parts), grads = jax.value_and_grad(draft_loss, has_aux=True)(params, draft, rows)
        new, state = apply_updates(
            {"draft": transform}, {"draft": params}, {"draft": state}, {"draft": grads}, schedule(progress, 0.05, 0.7)
        )
        return new["draft"], state["draft"], {"loss": loss, **parts}

    return jax.jit(step, donate_argnums=(0, 1))


@dataclasses.dataclass
class Pool:
    """All rows written so far, on the host, to be drawn from again."""

    chunks: list[Written] = dataclasses.field(default_factory=list)

    def add(self, rows: Written) -> None:
        """Move rows to the host and keep them."""
        self.chunks.append(jax.tree.map(np.asarray, rows))

    def draw(self, count: int, rng: np.random.Generator) -> Written:
        """`count` rows, half from the newest chunk, half from any."""
        old = self.chunks[int(rng.integers(len(self.chunks)))]
        parts = []
        for chunk, number in ((self.chunks[-1], count // 2), (old, count - count // 2)):
            chosen = rng.permutation(chunk.start.shape[0])[:number]
            parts.append(jax.tree.map(lambda x, chosen=chosen: x[chosen], chunk))
        return jax.tree.map(lambda *xs: np.concatenate(xs), *parts)


def refine(
    out: pathlib.Path,
    settings: RefineSettings,
    target: tuple[Model, Any],
    draft: tuple[Model, Any],
    transform: optax.GradientTransformation,
    documents: Sequence[np.ndarray],
    headers: Sequence[int],
) -> Any:
    """Run (or resume) the stage and return the draft's parameters.

    Args:
      out: the run's folder.
      settings: see `RefineSettings`.
      target, draft: models with their parameters.
      transform: the draft's optimiser.
      documents: token arrays of functions.
      headers: length of each document's header, in tokens.
    """
    write, step = writer(target[0], settings.new_tokens), draft_step(draft[0], transform)
    params, state = draft[1], transform.init(draft[1])
    run, pool = RunFolder(out / "refine"), Pool()
    (params, state), counters = run.resume((params, state), {"step": 0, "seconds": 0.0, "chunks": 0})
    temperature = jnp.where(jnp.arange(settings.rows) % 4 < 2, 0.0, settings.temperature)
    while _progress(settings, counters, 0.0) < 1.0:
        began = time.monotonic()
        rng = np.random.default_rng(counters["chunks"])
        picked = rng.permutation(len(documents))[: settings.rows]
        prompts = prompts_from(
            [documents[i] for i in picked], [headers[i] for i in picked], settings.prompt_tokens, rng
        )
        pool.add(write(target[1], *prompts, temperature, jax.random.key(counters["chunks"])))
        counters["chunks"] += 1
        for _ in range(settings.steps_per_chunk):
            progress = _progress(settings, counters, time.monotonic() - began)
            params, state, losses = step(params, state, pool.draw(settings.batch, rng), jnp.float32(progress))
            counters["step"] += 1
            run.log({**counters, "progress": round(progress, 4), **{k: round(float(v), 4) for k, v in losses.items()}})
        counters["seconds"] += time.monotonic() - began
        run.maybe_save((params, state), counters)
    run.save((params, state), counters)
    return params


def _progress(settings: RefineSettings, counters: Counters, extra: float) -> float:
    if settings.chunks:
        return counters["step"] / (settings.chunks * settings.steps_per_chunk)
    return min(1.0, (counters["seconds"] + extra) / 60 / settings.minutes)
