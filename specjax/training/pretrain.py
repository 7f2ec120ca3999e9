"""The first stage: target and draft train together on the corpus."""

from __future__ import annotations

import dataclasses
import pathlib
import time
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

from specjax._src.types import Array, Model
from specjax.training.data import Windows
from specjax.training.distill import pair_step
from specjax.training.runs import Counters, RunFolder, progress_of


@dataclasses.dataclass(frozen=True)
class PretrainSettings:
    """Budget and sizes of the first stage.

    Attributes:
      minutes, steps: length; `steps` wins when it is not 0 and makes the schedule independent of the clock.
      batch, length: windows per step, tokens per window.
      seed: of the order of documents.
      function_share: part of a batch drawn from single functions before and after half-way. It steps up where the
        learning rate falls: a model remembers best what it saw last.
    """

    minutes: float
    steps: int = 0
    batch: int = 8
    length: int = 256
    seed: int = 0
    function_share: tuple[float, float] = (0.3, 0.6)


def pretrain(
    out: pathlib.Path,
    settings: PretrainSettings,
    built: dict[str, tuple[Model, Any]],
    transforms: dict[str, optax.GradientTransformation],
    documents: dict[str, list[np.ndarray]],
) -> dict[str, Any]:
    """Run (or resume) the stage.

    Args:
      out: the run's folder.
      settings: see `PretrainSettings`.
      built: model and fresh parameters of `target` and `draft`.
      transforms: their optimisers.
      documents: token arrays of `files` and `functions`.

    Returns:
      The parameters of both.
    """
    step = pair_step({role: model for role, (model, _) in built.items()}, transforms)
    params = {role: weights for role, (_, weights) in built.items()}
    state = {role: transforms[role].init(params[role]) for role in params}
    streams = {name: Windows(rows, settings.length, settings.seed) for name, rows in documents.items()}
    run = RunFolder(out / "pair")
    (params, state), counters = run.resume((params, state), {"step": 0, "seconds": 0.0, "files": 0, "functions": 0})
    while (progress := progress_of(counters, settings.minutes, settings.steps)) < 1.0:
        began = time.monotonic()
        window = _mixed_batch(streams, counters, settings, progress)
        params, state, losses = step(params, state, window, jnp.float32(progress))
        values = {name: round(float(value), 4) for name, value in losses.items()}
        took = time.monotonic() - began
        # The first step of a process compiles; that is no training time.
        counters["seconds"] += took if run.steps_here else 0.0
        counters["step"] += 1
        run.log({**counters, "progress": round(progress, 4), "took": round(took, 3), **values})
        run.maybe_save((params, state), counters)
    run.save((params, state), counters)
    return params


def _mixed_batch(streams: dict[str, Windows], counters: Counters, settings: PretrainSettings, progress: float) -> Array:
    functions = round(settings.batch * settings.function_share[progress >= 0.5])
    rows = []
    for name, number in (("functions", functions), ("files", settings.batch - functions)):
        if number:
            rows.append(streams[name].take(counters[name], number))
            counters[name] += number
    return jnp.asarray(np.concatenate(rows))
