"""Orbax one tensor, or one layer, at a time: what is needed beside the weights does not grow with the checkpoint."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

Path = tuple[str, ...]
BLOCK = 1 << 20
Report = Callable[[str, int], None]
"""Called with the name of a finished tensor and its bytes."""

CHUNK_BYTES = 1 << 26
"""Of the pieces a weight is stored in: reading unpacks several at a time, and takes only those it wants."""


@dataclasses.dataclass(frozen=True)
class Deferred:
    """An array that is made when it is written; a leaf of a tree.

    Attributes:
      shape, dtype: of what `make` gives.
      source_bytes: how much is read to make it.
      make: gives the array.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    source_bytes: int
    make: Callable[[], np.ndarray]

    @property
    def size(self) -> int:
        """How many numbers; Orbax asks for it."""
        return math.prod(self.shape)


class OneByOne(ocp.type_handlers.NumpyHandler):
    """Makes and writes each array before it looks at the next."""

    def __init__(self, report: Report, dtype: np.dtype | None = None) -> None:
        super().__init__(deepcopy_host_arrays=False)
        self._report = report
        self._dtype = dtype

    async def serialize(self, values: Sequence[Any], infos: Sequence[Any], args: Sequence[Any] | None = None) -> list:
        """Write `values`, cast to the dtype if there is one."""
        for i, value in enumerate(values):
            await self._write(value, infos[i], None if args is None else [args[i]])
            self._report(infos[i].name, value.source_bytes)
        return []

    async def _write(self, value: Deferred, info: Any, args: Sequence[Any] | None) -> None:
        # Laid out first and cast last: a cast of a transposed view would keep its strides, and be copied again.
        piece = np.require(value.make(), requirements=["C", "ALIGNED"])
        if self._dtype is not None and jnp.issubdtype(value.dtype, jnp.floating):  # token ids stay what they are
            piece = _narrowed(info.name, piece, self._dtype)
        for future in await super().serialize([piece], [info], args):
            future.result()


def _narrowed(name: str, piece: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`piece` in `dtype`, or ValueError where a finite weight is too large for it."""
    with np.errstate(over="ignore"):
        cast = piece.astype(dtype, copy=False)
    if cast is piece:
        return piece
    before, after = piece.reshape(-1), cast.reshape(-1)
    for start in range(0, piece.size, BLOCK):  # in parts, or the marks would need as much memory as the tensor
        part = slice(start, start + BLOCK)
        if (np.isinf(after[part]) & ~np.isinf(before[part])).any():
            raise ValueError(
                f"{name} has weights beyond what {dtype} holds ({jnp.finfo(dtype).max:g}); keep {piece.dtype}, or cast "
                "to bfloat16 or float32"
            )
    return cast


def write(folder: pathlib.Path, weights: Any, report: Report, dtype: np.dtype | None = None) -> None:
    """Save nested dicts of `Deferred` as `StandardCheckpointer` would save arrays, holding about one in memory.

    Raises:
      ValueError: if a weight is too large for `dtype`.
    """
    handlers = (Deferred, OneByOne(report, dtype)), (jax.Array, ocp.type_handlers.ArrayHandler())
    registry = ocp.type_handlers.create_type_handler_registry(*handlers)  # Orbax warns where jax.Array has no handler
    handler = ocp.PyTreeCheckpointHandler(type_handler_registry=registry)
    pieces = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=CHUNK_BYTES), weights)
    with ocp.Checkpointer(handler) as writer:
        writer.save(folder, args=ocp.args.PyTreeSave(weights, save_args=pieces))


def stored(folder: pathlib.Path) -> Any:
    """Shape and dtype of each weight in an Orbax folder, in the tree of their names.

    Raises:
      ValueError: if there is no checkpoint, or only a damaged one.
    """
    with ocp.StandardCheckpointer() as reader:
        try:
            tree = reader.metadata(folder.absolute()).item_metadata.tree
        except (AttributeError, OSError):  # what Orbax gives where there is no checkpoint
            raise ValueError(f"{folder} is missing or damaged; convert or save the model again") from None
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def num_bytes(tree: Any) -> list[int]:
    """Bytes of each weight of a tree of shapes."""
    return [math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)]


def read(folder: pathlib.Path, paths: Sequence[Path]) -> Iterator[np.ndarray]:
    """The weights at `paths` as numpy arrays, each read when it is asked for."""
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
        for path in paths:
            item: Any = ocp.RestoreArgs(restore_type=np.ndarray)
            for key in reversed(path):
                item = {key: item}
            tree = reader.restore(
                folder, args=ocp.args.PyTreeRestore(item=item, restore_args=item, partial_restore=True))
            for key in path:
                tree = tree[key]
            yield tree


def restore(folder: pathlib.Path, found: Any, expected: Any) -> Any:
    """The weights of an Orbax folder where `expected` puts them, in its dtypes, cast while they are read.

    One layer is read after another: of what Orbax holds beside the weights while it reads, only a layer's share is
    there at a time. `found` is what `stored` gives; what a weight has beyond its shape in `expected` is left out: rows
    past the real vocabulary are padding for alignment, and no token may come from them.
    """
    # GB on their way at a time: the largest, in whole pieces, and some more.
    limit = 1 + math.ceil(1.25 * max(num_bytes(found)) / 1e9)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(restore_concurrent_gb=limit)) as reader:

        def read(part: Any) -> Any:
            wanted = jax.tree.map(
                lambda leaf: ocp.ArrayRestoreArgs(
                    sharding=leaf.sharding, global_shape=leaf.shape, dtype=leaf.dtype, strict=False), part)
            args = ocp.args.PyTreeRestore(item=part, restore_args=wanted, partial_restore=True)
            return jax.block_until_ready(reader.restore(folder, args=args))

        first = read({name: part for name, part in expected.items() if name != "layers"})
        layers = {i: read({"layers": {i: layer}})["layers"][i] for i, layer in expected.get("layers", {}).items()}
    return first | ({"layers": layers} if layers else {})


def placed(weights: Any, expected: Any) -> Any:
    """The `Deferred` weights where `expected` puts them, in its dtypes: of each, a device is given its own part.

    What a weight has beyond its expected shape is left out; what it lacks is 0 (rows past the vocabulary).

    Raises:
      ValueError: if a weight is too large for its dtype.
    """

    def put(path: Any, leaf: jax.ShapeDtypeStruct, weight: Deferred) -> jax.Array:
        view = weight.make()[tuple(slice(size) for size in leaf.shape)]
        name = ".".join(key.key for key in path)

        def part(index: Any) -> np.ndarray:
            piece = np.ascontiguousarray(view[index])
            piece = _narrowed(name, piece, leaf.dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else piece
            wanted = [len(range(*one.indices(size))) for one, size in zip(index, leaf.shape, strict=True)]
            return np.pad(piece, [(0, size - had) for size, had in zip(wanted, piece.shape, strict=True)])

        return jax.make_array_from_callback(leaf.shape, leaf.sharding, part, dtype=leaf.dtype)

    return jax.tree_util.tree_map_with_path(put, expected, weights)
