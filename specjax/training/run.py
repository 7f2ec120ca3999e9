"""From a config to a trained drafter on disk: answers, training, the drafter's folder, figures, curves."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp

from specjax.benchmarks import progress
from specjax.checkpoints import LoadedModel, load, save, save_head
from specjax.training import curves
from specjax.training.answers import write_answers
from specjax.training.config import TrainConfig
from specjax.training.trainer import Trained, train

FIGURES = "figures.json"


def run(config: TrainConfig, out: pathlib.Path, answers: pathlib.Path | None = None) -> pathlib.Path:
    """Let the target write its answers, train, and store the drafter in bfloat16; a killed run goes on where it was.

    Args:
      config: see `TrainConfig`.
      out: the run's folder: state to resume from, `log.jsonl`, `figures.json`, `curves.png`.
      answers: folder of the target's answers, which several runs may share; None keeps them in `out`.

    Returns:
      The drafter's folder, `out` / kind, which appears when it is whole.

    Raises:
      ValueError: for settings that do not fit one another, the target, or what is in the folders.
    """
    target = load(config.target)
    answers = out / "answers" if answers is None else answers
    with progress.shown() as stage:
        write_answers(answers, config.answers, target, stage)
        made = train(config, target, answers, out, stage)
    path = out / config.kind
    _store(path, config, target, made)
    (out / FIGURES).write_text(json.dumps(made.figures, indent=1) + "\n")
    print(json.dumps(made.figures))
    print(curves.plot(out))
    return path


def _store(path: pathlib.Path, config: TrainConfig, target: LoadedModel, made: Trained) -> None:
    metadata: dict[str, Any] = {"training": config.to_dict(), "held_out": made.figures}
    params = jax.tree.map(
        lambda x: x.astype(jnp.bfloat16) if jnp.issubdtype(x.dtype, jnp.floating) else x,
        {**made.learner.frozen, **made.params})
    if config.kind == "draft":
        save(path, params, made.learner.config, target.tokenizer, metadata, eos_ids=target.eos_ids, overwrite=True)
    else:
        save_head(path, params, made.learner.config, target, metadata, overwrite=True)
