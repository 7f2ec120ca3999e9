"""The settings of a training run, read from one TOML file; every key is known, or it is refused by name."""

from __future__ import annotations

import dataclasses
import importlib.resources
import pathlib
import tomllib
import types
import typing
from typing import Any, TypeVar

from specjax.training.answers import AnswerSettings
from specjax.training.losses.draft import DraftLoss
from specjax.training.losses.eagle import EagleLoss
from specjax.training.losses.eagle3 import Eagle3Loss
from specjax.training.losses.medusa import MedusaLoss
from specjax.training.optimizers import OptimizerSettings

LOSSES: dict[str, type[Any]] = {"medusa": MedusaLoss, "eagle": EagleLoss, "eagle3": Eagle3Loss, "draft": DraftLoss}
"""The loss of each kind of drafter."""

PRECISIONS = ("float32", "bfloat16")
FEATURES = ("computed", "cached")
S = TypeVar("S")


@dataclasses.dataclass(frozen=True)
class RunSettings:
    """How long a run is, and what a step of it sees.

    Attributes:
      steps: optimiser steps.
      batch: windows a step.
      length: tokens a window.
      compute: dtype of the drafter's arithmetic; its weights are kept, and moved, in float32.
      features: `computed` by the target in each step, or `cached` on disk beside the answers by one pass before.
      devices: over which the windows of a step are spread; 0 takes as many as share them equally.
      depth: how many guesses of a chain are measured on held-out answers; Medusa's is its number of heads.
      evaluate_every: steps between two measurements; 0 measures at the end only.
      save_seconds: between two states to resume from.
      seed: of fresh weights, of the order of windows, and of noise.
    """

    steps: int
    batch: int = 8
    length: int = 256
    compute: str = "float32"
    features: str = "computed"
    devices: int = 0
    depth: int = 5
    evaluate_every: int = 0
    save_seconds: float = 240.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "length", "depth"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name, known in (("compute", PRECISIONS), ("features", FEATURES)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """All that a run is told.

    Attributes:
      kind: `medusa`, `eagle`, `eagle3` or `draft`.
      target: name or folder of the model that is drafted for.
      answers: what the target is asked and how much it writes.
      run: length and sizes.
      optimizer: how parameters move.
      loss: of the kind.
      head: fields of the head's config (`specjax.models.MedusaConfig.for_target` and its like); for `draft`, those of
        `specjax.models.DecoderConfig`, or `start`, the checkpoint to go on from.
    """

    kind: str
    target: str
    answers: AnswerSettings
    run: RunSettings
    optimizer: OptimizerSettings
    loss: Any
    head: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """As nested dicts of JSON values."""
        return dataclasses.asdict(self)


def read_config(kind: str, name: str) -> TrainConfig:
    """Read a TOML file, or the recipe of that name that comes with specjax.

    Its tables are `answers`, `run`, `optimizer`, `loss` and `head`; `target` stands above them.

    Args:
      kind: which drafter is to be trained.
      name: path of a file, or one of `recipes()`.

    Raises:
      ValueError: if there is no such file, it is no TOML, a key is unknown or missing, or a value is of the wrong type.
    """
    path = pathlib.Path(name)
    file = importlib.resources.files("specjax.training") / "recipes" / f"{name}.toml" if name in recipes() else path
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"no config {name}: it is neither a file that can be read ({error.strerror}) nor one of the "
                         f"recipes ({', '.join(recipes())})") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{name} is no TOML: {error}") from None
    return make_config(kind, table, name)


def make_config(kind: str, table: dict[str, Any], where: str) -> TrainConfig:
    """A config from nested dicts; `where` names their source in errors. Raises as `read_config`."""
    if kind not in LOSSES:
        raise ValueError(f"there is no drafter {kind!r} to train; choose {', '.join(LOSSES)}")
    parts = {"answers": AnswerSettings, "run": RunSettings, "optimizer": OptimizerSettings, "loss": LOSSES[kind]}
    known = {"target", "head", *parts}
    if unknown := sorted(table.keys() - known):
        raise ValueError(f"{where}: unknown {', '.join(unknown)}; a config has {', '.join(sorted(known))}")
    if not isinstance(table.get("target"), str):
        raise ValueError(f"{where}: `target` must name a model or a checkpoint folder")
    made: dict[str, Any] = {
        name: _filled(cls, table.get(name, {}), f"{where}, [{name}]") for name, cls in parts.items()}
    head = table.get("head", {})
    if not isinstance(head, dict):
        raise ValueError(f"{where}: [head] must be a table of the head's fields")
    return TrainConfig(kind=kind, target=table["target"], head=head, **made)


def recipes() -> list[str]:
    """Names of the configs that come with specjax."""
    folder = importlib.resources.files("specjax.training") / "recipes"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def _filled(cls: type[S], table: Any, where: str) -> S:
    """A dataclass from a table whose keys and types are checked."""
    if not isinstance(table, dict):
        raise ValueError(f"{where} must be a table")
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls)
    if unknown := sorted(table.keys() - fields.keys()):
        raise ValueError(f"{where}: unknown {', '.join(unknown)}; it knows {', '.join(fields)}")
    missing = [name for name, field in fields.items() if field.default is dataclasses.MISSING and name not in table]
    if missing:
        raise ValueError(f"{where}: {', '.join(missing)} must be given")
    try:
        return cls(**{name: _typed(value, hints[name], f"{where} {name}") for name, value in table.items()})
    except ValueError as error:
        raise ValueError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None


def _typed(value: Any, kind: Any, where: str) -> Any:
    """`value` as the type of a field: bool, int, float, str, or a tuple of floats."""
    if isinstance(kind, types.GenericAlias) and isinstance(value, list):
        return tuple(_typed(one, typing.get_args(kind)[0], where) for one in value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(kind, type) or type(value) is not kind:
        name = "a list of numbers" if isinstance(kind, types.GenericAlias) else kind.__name__
        raise ValueError(f"{where} must be {name}, got {value!r}")
    return value
