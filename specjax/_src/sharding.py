"""Laying a model out over a mesh of devices: names of axes, a table of rules, and the functions of a model wrapped.

Every array names its axes once, where it is made: weights in `specjax.models`, the cache in `specjax._src.cache`. A
table maps these names to axes of the mesh; from both follows a `PartitionSpec`. XLA's partitioner does the rest: what
is written here are the places where it is told what must stay split, namely weights, caches, rows and the vocabulary
of the logits.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from specjax._src.types import Array, Attend, Cache, DraftHead, HeadOutput, MedusaHeads, Model, Output, Weights

Names = tuple[str | None, ...]
Rules = Mapping[str, str]
Network = TypeVar("Network", Model, DraftHead, MedusaHeads)

RULES: Rules = {
    "rows": "data",
    "vocab": "model",
    "draft_vocab": "model",
    "heads": "model",
    "kv_heads": "model",
    "mlp": "model",
    "experts": "expert",
}
"""Tensor parallelism as of Megatron (arXiv:1909.08053), two sums over the devices in a layer: heads and the inner width
of the MLP are split, what stands before and behind them is whole. Axes that are not named here are on every device."""

REPLICATED: Rules = {"rows": "data"}
"""Weights whole on every device, rows split: for a draft so small that its sums would cost more than its reads."""

VOCAB, HEADS, KV_HEADS, ROWS = "vocab", "heads", "kv_heads", "rows"


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the arrays of one model stand; a hashable value.

    Attributes:
      mesh: the devices.
      rules: pairs of logical name and mesh axis.
      vocab_size: V without padding, or None if no weight has that axis.
      copies: how often each key-value head is there: where a mesh axis has more devices than there are such heads,
        every device keeps the one that its query heads need.
    """

    mesh: Mesh
    rules: tuple[tuple[str, str], ...]
    vocab_size: int | None = None
    copies: int = 1

    def axis(self, name: str | None) -> str | None:
        """The mesh axis of a logical name, or None."""
        axis = dict(self.rules).get(name or "")
        return axis if axis in self.mesh.axis_names else None

    def devices(self, name: str) -> int:
        """Over how many devices the rules split a logical axis."""
        axis = self.axis(name)
        return 1 if axis is None else self.mesh.shape[axis]

    def spec(self, names: Names, shape: tuple[int, ...]) -> PartitionSpec:
        """Over which mesh axis each axis of an array is split: none that does not divide it, each mesh axis once."""
        spec: list[str | None] = []
        for name, size in zip(names, shape, strict=False):
            axis = self.axis(name)
            fits = axis is not None and axis not in spec and size % self.mesh.shape[axis] == 0
            spec.append(axis if fits else None)
        return PartitionSpec(*spec)

    def kept(self, names: Names, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape in which an array is kept: its vocabulary padded, its key-value heads repeated."""
        count, names = self.devices(VOCAB), names + (None,) * (len(shape) - len(names))
        return tuple(-(-size // count) * count if name == VOCAB else size * (self.copies if name == KV_HEADS else 1)
                     for name, size in zip(names, shape, strict=True))

    def sharding(self, names: Names, shape: tuple[int, ...]) -> NamedSharding:
        """How an array of this (kept) shape is laid out."""
        return NamedSharding(self.mesh, self.spec(names, shape))


def shard(
    model: Network, params: Weights, mesh: Mesh, rules: Rules = RULES, *, vocab_size: int | None = None
) -> tuple[Network, Weights]:
    """Lay weights out over a mesh, and make the model keep caches, rows and logits so.

    An axis that the mesh axis of its rule does not divide stays whole, with two exceptions. The vocabulary is padded;
    the padding is cut from the logits again and is no token. Key-value heads that are fewer than the devices are
    repeated, if the query heads can be split.

    Args:
      model: a `Model`, or a draft head; it must say the names of its axes (`specjax.models.from_nnx` does).
      params: its weights, arrays or `jax.ShapeDtypeStruct`s. What is laid out so already is not copied.
      mesh: with axes of type Auto:
        `jax.make_mesh(shape, names, axis_types=(jax.sharding.AxisType.Auto,) * len(shape))`.
      rules: logical name to mesh axis; `REPLICATED` for a small draft.
      vocab_size: V, if `params` (those that a head borrows, say) are padded already.

    Returns:
      The model, the same object for equal arguments, and the weights.

    Raises:
      TypeError: if `model` is none, or says no names of axes.
      ValueError: if the mesh is of another kind, or no rule leads to any of its axes.
    """
    layout = layout_of(model, params, mesh, rules, vocab_size)
    leaves = zip(names_by_leaf(model, params), jax.tree.leaves(params), strict=True)
    placed = [place(layout, *leaf) for leaf in leaves]
    return sharded(model, layout), jax.tree.unflatten(jax.tree.structure(params), placed)


def layout_of(model: Any, params: Weights, mesh: Mesh, rules: Rules, vocab_size: int | None = None) -> Layout:
    """The layout that `shard` gives; arguments and errors as there, only shapes of `params` are looked at."""
    if not isinstance(model, (Model, DraftHead, MedusaHeads)):
        raise TypeError(f"shard needs a specjax.Model or a draft head, got a {type(model).__name__}")
    if any(kind != jax.sharding.AxisType.Auto for kind in mesh.axis_types):
        raise ValueError(f"the mesh has axes of types {mesh.axis_types}, but the partitioner must be free to choose: "
                         "jax.make_mesh(shape, names, axis_types=(jax.sharding.AxisType.Auto,) * len(shape))")
    if not set(rules.values()) & set(mesh.axis_names):
        raise ValueError(f"the rules lead to mesh axes {sorted(set(rules.values()))}, but the mesh has "
                         f"{list(mesh.axis_names)}: name its axes so, or pass rules for them")
    sizes: dict[str | None, set[int]] = {}
    for names, leaf in zip(names_by_leaf(model, params), jax.tree.leaves(params), strict=True):
        for name, size in zip(names, leaf.shape, strict=True):
            sizes.setdefault(name, set()).add(size)
    layout = Layout(mesh, tuple(sorted(rules.items())))
    found = sizes.get(VOCAB, set())
    if vocab_size is None and len(found) > 1:
        raise ValueError(f"the weights have vocabularies of {sorted(found)} tokens: pass vocab_size, if some of them "
                         "are padded")
    vocab_size = next(iter(found), None) if vocab_size is None else vocab_size
    return dataclasses.replace(layout, vocab_size=vocab_size, copies=_copies(layout, sizes))


def _copies(layout: Layout, sizes: Mapping[str | None, set[int]]) -> int:
    """How often key-value heads are repeated so that each device has one."""
    count, there = layout.devices(KV_HEADS), sizes.get(KV_HEADS, set())
    few = len(there) == 1 and all(size < count and count % size == 0 for size in there)
    split = layout.axis(HEADS) == layout.axis(KV_HEADS) and all(size % count == 0 for size in sizes.get(HEADS, ()))
    return count // min(there) if few and split else 1


def names_by_leaf(model: Any, params: Weights) -> list[Names]:
    """The names of the axes of each weight, in the order of the leaves of `params`.

    Raises:
      TypeError: if the model says none.
    """
    if model.axes is None:
        raise TypeError("the model does not say the names of its axes: make it by specjax.models.from_nnx, or give "
                        "Model(..., axes=function) that returns them")
    names = model.axes()

    def named(path: Any, leaf: Any) -> tuple[Names]:
        found = names
        for key in path:
            found = found[key.key]
        return (found or (None,) * leaf.ndim,)

    return [found for (found,) in jax.tree.leaves(
        jax.tree_util.tree_map_with_path(named, params), is_leaf=lambda leaf: isinstance(leaf, tuple))]


def place(layout: Layout, names: Names, leaf: Any) -> Any:
    """A weight as it is kept; of a `jax.ShapeDtypeStruct`, what it would be."""
    shape = layout.kept(names, leaf.shape)
    sharding = layout.sharding(names, shape)
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=sharding)
    if shape == leaf.shape and getattr(leaf, "sharding", None) == sharding:
        return leaf
    grown = _grown(layout, names, leaf)
    # Of several processes each has the whole of an array that no mesh holds yet, and puts its own part.
    alone = jax.process_count() > 1 and getattr(grown, "is_fully_addressable", True)
    return jax.device_put(np.asarray(grown) if alone else grown, sharding)


def _grown(layout: Layout, names: Names, leaf: Array) -> Array:
    """An array with its key-value heads repeated and its vocabulary padded."""
    shape = layout.kept(names, leaf.shape)
    for axis, name in enumerate(names):
        if name == KV_HEADS and layout.copies > 1:
            leaf = jnp.repeat(leaf, layout.copies, axis=axis)
    return jnp.pad(leaf, [(0, size - had) for size, had in zip(shape, leaf.shape, strict=True)])


@functools.lru_cache(maxsize=64)
def sharded(model: Network, layout: Layout) -> Network:
    """`model`, for weights that are laid out so, with its caches, rows and logits laid out too."""
    logits, rows = functools.partial(keep_logits, layout), functools.partial(keep_rows, layout)
    if isinstance(model, MedusaHeads):
        return model._replace(apply=lambda params, features: logits(model.apply(params, features)), layout=layout)
    names = model.cache_axes

    def init_cache(batch: int, capacity: int) -> Cache:
        grown = functools.partial(_grown, layout, names)
        return keep_cache(layout, names, jax.tree.map(grown, model.init_cache(batch, capacity)))

    def commit(pending: Any, path: Array | None, base: Array, num: Array) -> Cache:
        return keep_cache(layout, names, model.commit(pending, path, base, num))

    if isinstance(model, DraftHead):

        def apply_head(params: Weights, hidden: Array, tokens: Array, cache: Cache, attend: Attend) -> HeadOutput:
            out = model.apply(params, rows(hidden), rows(tokens), cache, rows(attend))
            return HeadOutput(logits(out.logits), rows(out.hidden), out.pending)

        return model._replace(
            init_cache=init_cache, commit=commit, layout=layout, apply=apply_head,
            score=lambda params, hidden: logits(model.score(params, hidden)),
            fuse=lambda params, features: rows(model.fuse(params, features)))

    def apply(params: Weights, tokens: Array, cache: Cache, attend: Attend) -> Output:
        out = model.apply(params, rows(tokens), cache, rows(attend))
        return Output(logits(out.logits), rows(out.features), out.pending)

    return model._replace(init_cache=init_cache, commit=commit, layout=layout, apply=apply)


def keep_rows(layout: Layout, tree: Any, *, whole: bool = True) -> Any:
    """Arrays with a leading row axis, laid out; their other axes stay whole, or, if not `whole`, as they are."""
    rest = None if whole else PartitionSpec.UNCONSTRAINED

    def keep(leaf: Array) -> Array:
        return _constrain(layout, leaf, PartitionSpec(*layout.spec((ROWS,), leaf.shape), *(rest,) * (leaf.ndim - 1)))

    return jax.tree.map(keep, tree)


def keep_cache(layout: Layout, names: Names, cache: Cache) -> Cache:
    """A cache laid out by the names of its axes, the same for each leaf."""
    return jax.tree.map(lambda leaf: _constrain(layout, leaf, layout.spec(names, leaf.shape)), cache)


def keep_logits(layout: Layout, logits: Array) -> Array:
    """[B, .., V], cut to the real vocabulary, which may be split unevenly."""
    (rows,), split = layout.spec((ROWS,), logits.shape), layout.axis(VOCAB)
    spec = PartitionSpec(rows, *(None,) * (logits.ndim - 2), None if split == rows else split)
    return _constrain(layout, logits[..., : layout.vocab_size], spec)


def cache_shapes(model: Any, batch: int, capacity: int) -> Cache:
    """What `init_cache` of a model or head would make, as shapes with their shardings, where it is laid out."""
    shapes, layout = jax.eval_shape(lambda: model.init_cache(batch, capacity)), model.layout

    def laid_out(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=layout.sharding(model.cache_axes, leaf.shape))

    return shapes if layout is None else jax.tree.map(laid_out, shapes)


def _constrain(layout: Layout, leaf: Array, spec: PartitionSpec) -> Array:
    return jax.lax.with_sharding_constraint(leaf, NamedSharding(layout.mesh, spec))
