"""Where the weights of a model go while they are read: on one device, or straight into the shards of a mesh."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, SingleDeviceSharding

from specjax._src import sharding
from specjax._src.types import Weights


class Places(NamedTuple):
    """What a reader must know.

    Attributes:
      model: the functions, of a model or head that is laid out.
      shapes: of the weights as the module has them.
      read: shapes with shardings, as they are read: the vocabulary padded.
      finish: from arrays of these to what `model` takes: key-value heads repeated.
    """

    model: Any
    shapes: Weights
    read: Weights
    finish: Callable[[Weights], Weights]

    @classmethod
    def of(
        cls, model: Any, shapes: Weights, mesh: Mesh | None, rules: sharding.Rules, vocab_size: int | None = None
    ) -> Places:
        """On the first device if there is no mesh; errors as of `specjax.sharding.shard`."""
        if mesh is None:
            first = SingleDeviceSharding(jax.devices()[0])
            read = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=first), shapes)
            return cls(model, shapes, read, lambda params: params)
        layout = sharding.layout_of(model, shapes, mesh, rules, vocab_size)
        once = dataclasses.replace(layout, copies=1)
        names = sharding.names_by_leaf(model, shapes)
        structure = jax.tree.structure(shapes)

        def placed(layout: sharding.Layout, weights: Weights) -> Weights:
            leaves = zip(names, jax.tree.leaves(weights), strict=True)
            return jax.tree.unflatten(structure, [sharding.place(layout, *leaf) for leaf in leaves])

        read, finish = placed(once, shapes), functools.partial(placed, layout)
        return cls(sharding.sharded(model, layout), shapes, read, finish)
