"""Tensors of a `.pt` or `.bin` file, read by torch with `weights_only`: nothing in it is ever run."""

from __future__ import annotations

import pathlib
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np


class Pickled(NamedTuple):
    """A tensor of torch, by what `specjax.checkpoints.source.Stored` asks for."""

    tensor: Any
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor."""
        return int(np.prod(self.shape)) * self.dtype.itemsize

    def view(self) -> np.ndarray:
        """The tensor as a numpy array, a view where torch allows it."""
        if self.dtype != jnp.bfloat16:
            return self.tensor.contiguous().numpy()
        import torch

        return self.tensor.contiguous().view(torch.int16).numpy().view(self.dtype)  # numpy knows no bfloat16


def read_pickle(file: pathlib.Path) -> dict[str, Pickled]:
    """Every tensor of a file by its name.

    Raises:
      ValueError: if torch is not installed, or the file is no dictionary of names and tensors.
    """
    try:
        import torch
    except ImportError:
        raise ValueError(
            f"{file} is a pickle, which only torch reads safely: pip install torch (or 'specjax[parity]'), or give a "
            "folder of safetensors"
        ) from None
    kinds = {
        torch.float32: np.dtype(np.float32), torch.float16: np.dtype(np.float16),
        torch.bfloat16: np.dtype(jnp.bfloat16), torch.int64: np.dtype(np.int64), torch.bool: np.dtype(bool),
    }  # fmt: skip
    try:
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # pickles fail in many ways
        reason, *_ = str(error).splitlines() or [type(error).__name__]
        raise ValueError(f"{file} is damaged, or holds more than tensors: {reason}") from None
    if not isinstance(state, dict) or not all(isinstance(one, torch.Tensor) for one in state.values()):
        raise ValueError(f"{file} is no dictionary of tensors; a state dict is what is read")
    wrong = [f"{name} is {tensor.dtype}" for name, tensor in state.items() if tensor.dtype not in kinds]
    if wrong:
        raise ValueError(f"{file}: {', '.join(wrong)}, which is not read")
    return {name: Pickled(tensor, kinds[tensor.dtype], tuple(tensor.shape)) for name, tensor in state.items()}
