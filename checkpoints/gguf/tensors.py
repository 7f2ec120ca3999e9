"""Tensors of a GGUF file under their Hugging Face names, decoded when they are asked for."""

from __future__ import annotations

from typing import Any, NamedTuple

import gguf
import jax.numpy as jnp
import numpy as np

from specjax.checkpoints import names
from specjax.models import DecoderConfig

KEPT = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(jnp.bfloat16)}
"""Types that stay as they are; the others are blocks of small integers with scales, and become float32."""
CHUNK = 1 << 22  # numbers decoded in one go: the decoder needs several times their memory


class Entry(NamedTuple):
    """A tensor of the file.

    Attributes:
      raw: as the `gguf` package gives it: `data` [rows, bytes or numbers of a row], its type and its shape.
      order: where each row is found in the file, or None if they stand in order.
      minus: taken off every number.
    """

    raw: Any
    order: np.ndarray | None = None
    minus: float = 0.0

    @property
    def dtype(self) -> np.dtype:
        """float32 for what is quantised, else what it is."""
        return KEPT.get(self.raw.tensor_type.name, KEPT["F32"])

    @property
    def shape(self) -> tuple[int, ...]:
        """As Hugging Face has it; GGUF counts the axes from the other end."""
        return tuple(int(n) for n in reversed(self.raw.shape))

    @property
    def num_bytes(self) -> int:
        """Bytes in the file."""
        return int(self.raw.n_bytes)

    def view(self) -> np.ndarray:
        """The numbers, in the order and by the convention of Hugging Face."""
        data = self.raw.data if self.order is None else self.raw.data[self.order]
        if self.raw.tensor_type.name in KEPT:
            data = data.view(self.dtype).reshape(self.shape)
            return data - np.asarray(self.minus, self.dtype) if self.minus else data
        out = np.empty(self.shape, np.float32)
        step = max(1, CHUNK // self.shape[-1])
        for at in range(0, len(out), step):
            out[at : at + step] = gguf.dequantize(data[at : at + step], self.raw.tensor_type)
        return out


def entries(found: dict[str, Any], architecture: str, config: DecoderConfig) -> dict[str, Entry]:
    """The tensors that the config asks for by their Hugging Face names, and the others by their own.

    llama.cpp turns neighbouring pairs of coordinates in models of the `llama` architecture, so its files hold the rows
    of queries and keys in another order; and Gemma's norms are stored with the one already added.

    Args:
      found: tensors of the file by their names.
      architecture: as GGUF names it.
      config: with all rows of the embedding.

    Raises:
      ValueError: naming tensors of types that can not be decoded.
    """
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    theirs = gguf.get_tensor_name_map(arch, config.num_layers)
    pairs = {"self_attn.q_proj": config.num_heads, "self_attn.k_proj": config.num_kv_heads}
    left, result = dict(found), {}
    for tensor in names.tensors(config):
        raw = left.pop(theirs.get_name(tensor.name, try_suffixes=(".weight", ".bias")) or "", None)
        if raw is None:
            continue  # whoever compares names will say that it is missing
        module = ".".join(tensor.name.split(".")[3:5])
        turned = architecture == "llama" and module in pairs and raw.data.shape[0] == tensor.theirs[0]
        order = _half_split(pairs[module], config.head_dim) if turned else None
        norm = architecture == "gemma3" and "norm" in tensor.name
        result[tensor.name] = Entry(raw, order, 1.0 if norm else 0.0)
    _refuse_unknown_types(found)
    return result | {name: Entry(raw) for name, raw in left.items()}


def _half_split(heads: int, head_dim: int) -> np.ndarray:
    """Rows of neighbouring pairs `(2j, 2j + 1)` in the order of half-split pairs `(j, j + d/2)`."""
    return np.arange(heads * head_dim).reshape(heads, head_dim // 2, 2).swapaxes(1, 2).reshape(-1)


def _refuse_unknown_types(found: dict[str, Any]) -> None:
    refused = []
    for name, raw in found.items():
        if raw.tensor_type.name not in KEPT:
            try:
                gguf.dequantize(raw.data[:1], raw.tensor_type)
            except NotImplementedError:  # how the package says that it knows no decoder; all such tensors are named
                refused.append(f"{name} is {raw.tensor_type.name}")
    if refused:
        raise ValueError("tensors of types that can not be decoded:\n  " + "\n  ".join(refused))
