"""Draft heads on disk: what is trained, and which target it is for; what is borrowed of the target is not stored."""

from __future__ import annotations

import collections
import dataclasses
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax import nnx

from specjax._src.sharding import RULES, Rules
from specjax._src.types import DraftHead, MedusaHeads
from specjax.checkpoints import loading, streaming, targets
from specjax.checkpoints.layout import HEADS, PARAMS, Manifest
from specjax.checkpoints.places import Places
from specjax.checkpoints.staging import staged
from specjax.models import axis_names, head_from_nnx
from specjax.models.head_config import HeadConfig
from specjax.models.heads import MODULES, borrow, own


@dataclasses.dataclass(frozen=True)
class LoadedHead:
    """A draft head ready to run.

    Attributes:
      head: the functions that `specjax.draft` takes.
      params: its weights, complete: `Params.draft`. What is borrowed are the target's own arrays.
      config: of the head.
      metadata: what was saved beside the weights.
    """

    head: DraftHead | MedusaHeads
    params: Any
    config: HeadConfig
    metadata: dict[str, Any]


def save_head(
    path: str | os.PathLike[str],
    params: Any,
    config: HeadConfig,
    target: loading.LoadedModel,
    metadata: dict[str, Any] | None = None,
    *,
    overwrite: bool = False,
) -> None:
    """Write a draft head as a folder that appears when it is complete.

    Args:
      path: the folder to make, as for `specjax.checkpoints.save`.
      params: of the head; what it borrows is left out.
      config: of the head.
      target: the model it was trained for. Its sizes and a hash of its tokenizer are stored, and checked at loading.
      metadata: JSON values to keep beside the weights.
      overwrite: replace an existing folder; the old one stays whole until the new one is.

    Raises:
      ValueError: if the head does not fit the target, the folder exists and `overwrite` is not set, or the weights
        differ in dtype.
    """
    config.check_target(target.config)
    kept = own(params)
    dtypes = {path: leaf.dtype.name for path, leaf in loading.flat(kept).items()}
    main = collections.Counter(name for name in dtypes.values() if not name.startswith("int"))
    if len(main) != 1:
        raise ValueError(f"the weights of a head must share one dtype, these have {sorted(main)}")
    ((dtype, _),) = main.items()
    others = {".".join(path): name for path, name in dtypes.items() if name != dtype}
    manifest = Manifest(
        config.family, config.to_dict(), dtype, (), metadata or {}, others, targets.of_loaded(target).fingerprint())
    with staged(path, overwrite=overwrite) as scratch:
        with ocp.StandardCheckpointer() as writer:
            writer.save(scratch / PARAMS, kept)
        manifest.write(scratch)


def load_head(
    path_or_name: str | os.PathLike[str], target: loading.LoadedModel, dtype: Any = None, *, rules: Rules = RULES
) -> LoadedHead:
    """Load a draft head for a target that is loaded.

    Args:
      path_or_name: a folder that `save_head`, training or `specjax convert` made, or the name of an embedded head.
      target: the model that the head drafts for.
      dtype: of weights, arithmetic and cache; None takes that of the target's weights.
      rules: logical axis to mesh axis, where the target is laid out over a mesh: the head joins it there.

    Returns:
      `LoadedHead`; pass `head` to a drafter of `specjax.draft`, and `params` as `draft_params`.

    Raises:
      ValueError: if there is no such head, it was made for another target (each difference is named), a file is
        damaged, or tensors are missing, unknown or of another shape or dtype than the config says; each is named.
      TypeError: if `target` is no loaded model.
    """
    if not isinstance(target, loading.LoadedModel):
        raise TypeError(f"load_head needs the target that the head drafts for, as specjax.load gives it, got a "
                        f"{type(target).__name__}: pass specjax.load(NAME)")
    folder = loading.find(path_or_name)
    manifest = Manifest.read(folder)
    if manifest.family not in HEADS:
        raise ValueError(f"{folder} is a model of its own, no draft head; specjax.load loads it")
    targets.check_fingerprint(folder, manifest.target, targets.of_loaded(target))
    settings, module = MODULES[manifest.family]
    config = settings.from_dict(manifest.config)
    config.check_target(target.config)
    wanted = jnp.dtype(jax.tree.leaves(target.params)[0].dtype if dtype is None else dtype)
    if not jnp.issubdtype(wanted, jnp.floating):
        raise ValueError(f"dtype {wanted.name} holds no fractions; choose float32, bfloat16 or float16")
    abstract = nnx.eval_shape(lambda: module(config, rngs=nnx.Rngs(0), dtype=wanted))
    layout = target.model.layout
    places = Places.of(
        *head_from_nnx(abstract), None if layout is None else layout.mesh, rules, target.config.vocab_size)
    found = streaming.stored(folder / PARAMS)
    loading.compare(folder, own(places.shapes), found, manifest, own(axis_names(abstract)))
    params = streaming.restore(folder / PARAMS, found, own(places.read))
    loading.refuse_overflow(folder, params, wanted, manifest)
    if "draft_ids" in params:
        check_draft_ids(folder, np.asarray(params["draft_ids"]), manifest.target["rows"])
    params = borrow(params, config, target.params)
    return LoadedHead(places.model, places.finish(params), config, manifest.metadata)


def check_draft_ids(label: object, ids: np.ndarray, rows: int) -> None:
    """Refuse a draft vocabulary int [Vd] with an id that comes twice or is none of the target's.

    Raises:
      ValueError: naming such ids.
    """
    values, counts = np.unique(ids, return_counts=True)
    wrong = [int(i) for i in values[(counts > 1) | (values < 0) | (values >= rows)]]
    if wrong:
        raise ValueError(
            f"{label}: the draft vocabulary of {len(ids)} tokens names the ids {wrong[:5]} twice, or they are none of "
            f"the target's {rows}; d2t holds offsets (id - place), not ids")
