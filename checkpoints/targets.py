"""What a draft head must know of its target, without the target's weights being loaded."""

from __future__ import annotations

import hashlib
import os
import pathlib
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer

from specjax.checkpoints import loading, streaming
from specjax.checkpoints.layout import HEADS, PARAMS, TOKENIZER, Manifest
from specjax.checkpoints.vocabulary import read_tokenizer
from specjax.models import DecoderConfig


class Target(NamedTuple):
    """A decoder for which a head is, or was, made.

    Attributes:
      label: its folder or name, for messages.
      config: of the decoder.
      tokenizer: text to ids.
      rows: of its embedding as it is stored; from V on they are padding.
      folder: where its weights are, if known.
    """

    label: str
    config: DecoderConfig
    tokenizer: Tokenizer
    rows: int
    folder: pathlib.Path | None = None

    def fingerprint(self) -> dict[str, Any]:
        """Width, vocabulary, depth and a hash of the tokenizer's ids: what a head is stored with and checked by."""
        words = sorted((i, token) for token, i in self.tokenizer.get_vocab(with_added_tokens=True).items())
        text = "\n".join(f"{i} {token!r}" for i, token in words)
        c = self.config
        return {"hidden_size": c.hidden_size, "vocab_size": c.vocab_size, "num_layers": c.num_layers, "rows": self.rows,
                "tokenizer": hashlib.sha256(text.encode()).hexdigest()}  # fmt: skip

    def weight(self, name: str) -> np.ndarray:
        """A weight as it is stored, with all its rows: `embedding` or `head`."""
        if self.folder is None:
            raise ValueError(f"the weights of {self.label} are not on disk")
        (found,) = streaming.read(self.folder / PARAMS, [(name,)])
        return found


def open_target(path_or_name: str | os.PathLike[str]) -> Target:
    """The target in a checkpoint folder, or an embedded one by its name.

    Raises:
      ValueError: if there is none, or it is a draft head.
    """
    folder = loading.find(path_or_name)
    manifest = Manifest.read(folder)
    if manifest.family in HEADS:
        raise ValueError(f"{folder} is a draft head ({manifest.family}); as target, give the model it drafts for")
    tokenizer = read_tokenizer(folder / TOKENIZER, "convert or save the model again")
    rows = streaming.stored(folder / PARAMS)["embedding"].shape[0]
    return Target(os.fspath(path_or_name), DecoderConfig.from_dict(manifest.config), tokenizer, rows, folder)


def of_loaded(target: loading.LoadedModel) -> Target:
    """The same of a model that is loaded; its padding is known if it was converted."""
    kept = target.metadata.get("huggingface")
    rows = target.config.vocab_size if kept is None else kept["rows"]
    return Target("the loaded target", target.config, target.tokenizer, rows)


def check_fingerprint(label: object, stored: dict[str, Any], target: Target) -> None:
    """Refuse a target that is not the one of a head.

    Raises:
      ValueError: naming each thing in which they differ, on both sides.
    """
    found = target.fingerprint()
    problems = [
        f"{name} {stored.get(name)!s:.12} there, {value!s:.12} here"
        for name, value in found.items() if name != "rows" and stored.get(name) != value]
    if problems:
        raise ValueError(
            f"{label} was made for another target than {target.label}: {'; '.join(problems)}. Load the target it was "
            "made for, or train a head for this one")
