"""Writing a checkpoint folder, whole or not at all."""

from __future__ import annotations

import os
from typing import Any

import jax
import orbax.checkpoint as ocp
from tokenizers import Tokenizer

from specjax.checkpoints.layout import PARAMS, TOKENIZER, Manifest
from specjax.checkpoints.staging import staged
from specjax.models import DecoderConfig


def save(
    path: str | os.PathLike[str],
    params: Any,
    config: DecoderConfig,
    tokenizer: Tokenizer,
    metadata: dict[str, Any] | None = None,
    *,
    eos_ids: tuple[int, ...] = (),
    overwrite: bool = False,
) -> None:
    """Write weights, config and tokenizer as one folder that appears when it is complete.

    Args:
      path: the folder to make. It is built beside itself under another name and renamed at the end; what a killed save
        leaves behind does not load.
      params: nested dicts with string keys, all leaves of one dtype, as `specjax.models.from_nnx` gives them.
      config: of the module that the weights belong to.
      tokenizer: the text side of the model.
      metadata: JSON values to keep beside the weights.
      eos_ids: ids that end a text.
      overwrite: replace an existing folder; the old one stays whole until the new one is.

    Raises:
      ValueError: if the folder exists and `overwrite` is not set, or the leaves differ in dtype.
    """
    dtypes = {leaf.dtype.name for leaf in jax.tree.leaves(params)}
    if len(dtypes) != 1:
        raise ValueError(f"the weights must share one dtype, these have {sorted(dtypes)}")
    manifest = Manifest("decoder", config.to_dict(), dtypes.pop(), tuple(eos_ids), metadata or {})
    with staged(path, overwrite=overwrite) as scratch:
        with ocp.StandardCheckpointer() as writer:
            writer.save(scratch / PARAMS, params)
        tokenizer.save(str(scratch / TOKENIZER))
        manifest.write(scratch)
