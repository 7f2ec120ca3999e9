"""A published draft head: which folders hold one, of which kind, and where its tensors are."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable
from typing import Any, NamedTuple

from specjax.checkpoints import folder as folders
from specjax.checkpoints import pickles, shards
from specjax.checkpoints.layout import read_json
from specjax.checkpoints.source import Stored

CONFIG = folders.CONFIG
FILES = (shards.SINGLE, shards.INDEX, "medusa_lm_head.safetensors")
PICKLES = ("medusa_lm_head.pt", "pytorch_model.bin")
BESIDE = (CONFIG, "generation_config.json", "LICENSE")
MARKS = {"fc.weight": "eagle", "eagle_linear.weight": "eagle", "midlayer.hidden_norm.weight": "eagle3",
         "layers.0.hidden_norm.weight": "eagle3"}  # fmt: skip
"""Tensors that heads have and decoders have not, with or without `model.` before them."""


class HeadSource(NamedTuple):
    """A published head.

    Attributes:
      label: its folder, for messages.
      family: `medusa`, `eagle` or `eagle3`.
      values: the parsed `config.json`; empty if there is none (Medusa).
      tensors: by the names they have in the file.
      beside: small files that are kept as they are.
    """

    label: str
    family: str
    values: dict[str, Any]
    tensors: dict[str, Stored]
    beside: dict[str, bytes]


def family_of(folder: pathlib.Path) -> str | None:
    """Which kind of head a folder holds; None if it holds none, as far as can be seen without reading a pickle.

    Raises:
      ValueError: for a head of a kind that is not read.
    """
    values = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    kind = values.get("speculators_model_type")
    if kind not in (None, "eagle3"):
        raise ValueError(f"{folder} is a head of speculators' type {kind!r}; of theirs, eagle3 is read")
    said = " ".join(map(str, [values.get("model_type"), *(values.get("architectures") or [])])).lower()
    if "medusa" in said or "medusa_num_heads" in values or any(folder.glob("medusa_lm_head.*")):
        return "medusa"
    if kind or "eagle3" in said or "draft_vocab_size" in values or "eagle_config" in values:
        return "eagle3"
    if "eagle" in said:
        return "eagle"
    file = folder / shards.SINGLE
    return _by_names(shards.tensor_names(file)) if file.is_file() else None


def _by_names(names: Iterable[str]) -> str | None:
    kinds = {MARKS.get(name.removeprefix("model.")) for name in names} - {None}
    return max(kinds, key=str, default=None)  # an EAGLE-3 head has marks of both


def read(folder: pathlib.Path) -> HeadSource:
    """A folder that the user says is a head. Raises ValueError if it is none, or a file is missing or damaged."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    tensors = _tensors(folder)
    family = family_of(folder) or _by_names(tensors)
    if family is None:
        raise ValueError(
            f"{folder} is no draft head: no tensor is called {', '.join(MARKS)}, and nothing in {CONFIG} says Medusa "
            "or EAGLE. A model converts without --target")
    values = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    return HeadSource(str(folder), family, values, tensors, folders.files(folder, BESIDE))


def _tensors(folder: pathlib.Path) -> dict[str, Stored]:
    """From safetensors where there are any: they need no torch."""
    if any((folder / name).is_file() for name in FILES[:2]):
        return dict(shards.read_folder(folder, shards.WITH_IDS))
    if (folder / FILES[2]).is_file():
        return dict(shards.read_file(folder / FILES[2], shards.WITH_IDS))
    for name in PICKLES:
        if (folder / name).is_file():
            return dict(pickles.read_pickle(folder / name))
    raise ValueError(f"{folder} has none of {', '.join((*FILES, *PICKLES))}, which hold the weights of a head")
