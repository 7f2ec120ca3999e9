"""Training of drafters by command."""

from __future__ import annotations

import dataclasses
import importlib.util
import pathlib

import typer


def run(
    kind: str, config: str, *, out: pathlib.Path, answers: pathlib.Path | None, target: str | None, steps: int | None
) -> None:
    """Train as `config` says, with what the command line says otherwise, and say where the drafter is.

    Raises:
      ValueError: if optax is missing, and as `read_config` and `specjax.training.run.run` do.
    """
    if importlib.util.find_spec("optax") is None:
        raise ValueError("training needs optax: pip install 'specjax[train]'")
    from specjax.training import config as configs
    from specjax.training.run import run

    chosen = configs.read_config(kind, config)
    if target is not None:
        chosen = dataclasses.replace(chosen, target=target)
    if steps is not None:
        chosen = dataclasses.replace(chosen, run=dataclasses.replace(chosen.run, steps=steps))
    typer.echo(f"{run(chosen, out, answers)} is complete")
