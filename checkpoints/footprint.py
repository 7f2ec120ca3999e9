"""How much memory a model takes on each device of a mesh, told from its config alone: nothing is loaded."""

from __future__ import annotations

import math
import os
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AbstractMesh, AxisType

from specjax._src import sharding
from specjax._src.types import PREFILL
from specjax.checkpoints import importing, loading
from specjax.checkpoints.folder import read_folder
from specjax.checkpoints.layout import HEADS, Manifest
from specjax.models import Decoder, DecoderConfig, from_nnx, head_from_nnx
from specjax.models.heads import MODULES
from specjax.models.mixing import BLOCK

SLACK = 64
"""Slots behind the text, for the widest pass."""
LAWS = 4
"""Arrays of [B, N, V] that a round holds at once: logits, the law, the draft's, and one on its way."""
RELAID = 1 / 8
"""Share of the weights that a compiler may keep a second time, in a layout it likes better."""


class Footprint(NamedTuple):
    """Bytes on one device.

    Attributes:
      weights: of the target.
      cache: of the target, for all rows at the whole context.
      draft_weights: of the draft model or head, without what it borrows of the target.
      draft_cache: of the draft.
      temporary: an estimate of what the widest pass needs beside them.
    """

    weights: int
    cache: int
    draft_weights: int
    draft_cache: int
    temporary: int

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self)


class _Described(NamedTuple):
    """A checkpoint as functions and shapes."""

    model: Any
    shapes: Any
    config: Any
    dtype: Any


def footprint(
    target: str | os.PathLike[str], draft: str | os.PathLike[str] | None = None, *, mesh: tuple[int, int] = (1, 1),
    batch: int = 1, context: int = 8192, num_nodes: int = 1, dtype: Any = None,
) -> Footprint:  # fmt: skip
    """Memory of a checkpoint and a draft for it, laid out by `specjax.sharding.RULES`.

    Args:
      target: as for `specjax.load`.
      draft: the checkpoint of a draft model or head.
      mesh: devices along `data` (rows) and along `model`.
      batch: rows.
      context: tokens a row may hold.
      num_nodes: tokens the target scores in one pass of a round, the root included.
      dtype: of weights and caches; None as `specjax.load` would choose on an accelerator: as stored.

    Raises:
      ValueError: if there is no such checkpoint, or it is damaged.
    """
    devices = AbstractMesh(mesh, ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    main = _described(target, dtype)
    weights, cache, layout = _measured(main, devices, batch, context)
    other = None if draft is None else _described(draft, dtype)
    draft_weights, draft_cache, _ = (0, 0, None) if other is None else _measured(
        other, devices, batch, context, main.config.vocab_size)
    return Footprint(weights, cache, draft_weights, draft_cache,
                     _temporary(main, layout, batch, num_nodes) + int(RELAID * (weights + draft_weights)))


def _described(path: str | os.PathLike[str], dtype: Any) -> _Described:
    folder = loading.find(path)
    if loading.is_huggingface(folder):
        found = importing.opened(read_folder(folder))
        config, stored, family = found.config, found.dtype, "decoder"
    else:
        manifest = Manifest.read(folder)
        stored, family = manifest.dtype, manifest.family
        settings = MODULES[family][0] if family in HEADS else DecoderConfig
        config = settings.from_dict(manifest.config)
    kind = jnp.dtype(stored if dtype is None else dtype)
    if family in HEADS:
        module = nnx.eval_shape(lambda: MODULES[family][1](config, rngs=nnx.Rngs(0), dtype=kind))
        return _Described(*head_from_nnx(module), config, kind)
    return _Described(
        *from_nnx(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0), dtype=kind))), config, kind)


def _measured(
    one: _Described, devices: Any, batch: int, context: int, vocab_size: int | None = None
) -> tuple[int, int, sharding.Layout]:
    """Bytes of weights and cache on a device, and the layout."""
    layout = sharding.layout_of(one.model, one.shapes, devices, sharding.RULES, vocab_size)
    names = sharding.names_by_leaf(one.model, one.shapes)
    borrowed = getattr(one.config, "borrows", ())
    weights = sum(
        _bytes(layout, label, leaf) for label, (path, leaf) in zip(
            names, jax.tree_util.tree_leaves_with_path(one.shapes), strict=True) if path[0].key not in borrowed)
    if not hasattr(one.model, "init_cache"):  # Medusa
        return weights, 0, layout
    cache = jax.eval_shape(lambda: one.model.init_cache(batch, context + SLACK))
    return weights, sum(_bytes(layout, one.model.cache_axes, leaf) for leaf in jax.tree.leaves(cache)), layout


def _bytes(layout: sharding.Layout, names: sharding.Names, leaf: Any) -> int:
    shape = layout.kept(names, leaf.shape)
    return math.prod(layout.sharding(names, shape).shard_shape(shape)) * leaf.dtype.itemsize


def _temporary(one: _Described, layout: sharding.Layout, batch: int, num_nodes: int) -> int:
    """The larger of what a chunk of the prompt and what a verify pass needs, in bytes."""
    c, size = one.config, one.dtype.itemsize
    def split(name: str, count: int) -> int:
        return count // layout.devices(name) if count % layout.devices(name) == 0 else count

    rows, heads = split("rows", batch), split("heads", c.num_heads)
    wide = (4 * c.hidden_size + 2 * split("mlp", c.intermediate_size) + 3 * heads * c.head_dim) * size
    scores = 3 * heads * BLOCK * 4
    chunk = rows * PREFILL * (wide + scores)
    vocab = math.ceil(c.vocab_size / layout.devices("vocab"))
    return max(chunk, rows * num_nodes * (wide + scores + LAWS * 4 * vocab))
