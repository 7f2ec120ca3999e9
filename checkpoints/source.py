"""What is converted, whatever file it came from."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np
from tokenizers import Tokenizer

from specjax.models import DecoderConfig


class Stored(Protocol):
    """A tensor in a file: what it is, and how to get at it."""

    @property
    def dtype(self) -> np.dtype:
        """Of what `view` gives."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of what `view` gives."""

    @property
    def num_bytes(self) -> int:
        """Bytes it takes in the file."""

    def view(self) -> np.ndarray:
        """The tensor, read or decoded now."""


class Source(NamedTuple):
    """A model in the terms of Hugging Face.

    Attributes:
      label: the file or folder, for messages.
      values: the parsed `config.json`.
      config: what it describes, with all rows of the embedding.
      tensors: by their Hugging Face names.
      tokenizer: text to ids and back.
      generation: the parsed `generation_config.json`, empty if there is none.
      beside: small files that are kept as they are, by their path in the folder.
      origin: what a reader of the checkpoint may want to know about where it came from.
    """

    label: str
    values: dict[str, Any]
    config: DecoderConfig
    tensors: dict[str, Stored]
    tokenizer: Tokenizer
    generation: dict[str, Any]
    beside: dict[str, bytes]
    origin: dict[str, Any]
