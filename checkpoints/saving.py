"""Writing a checkpoint folder, whole or not at all."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from flax import nnx
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec
from tokenizers import Tokenizer

from specjax._src.sharding import KV_HEADS
from specjax.checkpoints.layout import PARAMS, TOKENIZER, Manifest
from specjax.checkpoints.loading import flat
from specjax.checkpoints.staging import scratch_of, staged
from specjax.models import Decoder, DecoderConfig, axis_names


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
        leaves behind does not load. Of several processes each writes what its devices hold, into a folder they share.
      params: nested dicts with string keys, all leaves of one dtype, as `specjax.models.from_nnx` gives them, or laid
        out by `specjax.sharding.shard`.
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
    with together(path, overwrite=overwrite) as scratch:
        with ocp.StandardCheckpointer() as writer:
            writer.save(scratch / PARAMS, once(params, config))
        if jax.process_index() == 0:
            tokenizer.save(str(scratch / TOKENIZER))
            manifest.write(scratch)


@contextlib.contextmanager
def together(path: str | os.PathLike[str], *, overwrite: bool) -> Iterator[pathlib.Path]:
    """`staged` for all processes of a job: the first one makes the folder and renames it, behind the last one's end."""
    if jax.process_count() == 1:
        with staged(path, overwrite=overwrite) as scratch:
            yield scratch
        return
    with contextlib.ExitStack() as stack:
        problem: Exception | None = None
        if jax.process_index() == 0:
            try:
                stack.enter_context(staged(path, overwrite=overwrite))
            except (ValueError, OSError) as error:
                problem = error
        if multihost_utils.broadcast_one_to_all(np.int32(problem is not None)):
            raise problem or ValueError(f"{os.fspath(path)} is not written: the first process refused, and says why")
        yield scratch_of(path)
        multihost_utils.sync_global_devices("specjax: written")
    multihost_utils.sync_global_devices("specjax: renamed")


def once(params: Any, config: DecoderConfig) -> Any:
    """Weights without what `specjax.sharding.shard` repeated; a padded vocabulary stays, since `load` cuts it."""
    all_names = flat(axis_names(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0)))))

    def taken(path: Any, leaf: Any) -> Any:
        # What the config does not have is refused when it is loaded.
        names = all_names.get(tuple(key.key for key in path), ())
        if KV_HEADS not in names or leaf.shape[names.index(KV_HEADS)] == config.num_kv_heads:
            return leaf
        axis = names.index(KV_HEADS)
        every = slice(None, None, leaf.shape[axis] // config.num_kv_heads)
        everywhere = NamedSharding(leaf.sharding.mesh, PartitionSpec())
        return jax.jit(lambda x: x[(slice(None),) * axis + (every,)], out_shardings=everywhere)(leaf)

    return jax.tree_util.tree_map_with_path(taken, params)
