"""What is measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from specjax._src.request import bucket
from specjax._src.types import Model, Params


class Subject(NamedTuple):
    """A target, a draft model and prompts.

    Attributes:
      name: of the target, for the report.
      model, params: the target.
      draft_name: for the report.
      draft_model, draft_params: the draft.
      prompts: token ids.
      eos_ids: what ends a text.
      categories: kind of task of each prompt, or nothing.
      writes: False for random weights, whose text and acceptance mean nothing: then only steps are timed.
    """

    name: str
    model: Model
    params: Any
    draft_name: str
    draft_model: Model
    draft_params: Any
    prompts: list[list[int]]
    eos_ids: tuple[int, ...]
    categories: Sequence[str] = ()
    writes: bool = True

    @property
    def both(self) -> Params:
        """Parameters of target and draft."""
        return Params(self.params, self.draft_params)

    @property
    def width(self) -> int:
        """The padded length that all prompts can share."""
        return bucket(max(len(prompt) for prompt in self.prompts))

    def row(self, index: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        """Prompt `index` as `prompts` int32 [1, width] and `lengths` int32 [1]."""
        return padded(self.prompts[index], width)


def padded(prompt: Sequence[int], width: int) -> tuple[np.ndarray, np.ndarray]:
    """A prompt as `prompts` int32 [1, width] and `lengths` int32 [1]."""
    row = np.zeros((1, width), np.int32)
    row[0, : len(prompt)] = prompt
    return row, np.array([len(prompt)], np.int32)


def num_bytes(tree: Any) -> int:
    """Bytes of all arrays of a tree."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree) if hasattr(leaf.dtype, "itemsize"))


def num_parameters(tree: Any) -> int:
    """Numbers in all arrays of a tree."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))
