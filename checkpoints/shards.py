"""safetensors files, read as views of the mapped file and written one tensor at a time.

A file is eight bytes with the length of a JSON header, the header `{name: {dtype, shape, data_offsets}}`, and the
bytes of the tensors, row by row. A folder has one `model.safetensors`, or several with an index that says which tensor
stands where. Files come from strangers: what a header says is checked before anything is read.
"""

from __future__ import annotations

import collections
import json
import math
import pathlib
import struct
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
DTYPES = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(jnp.bfloat16)}
WITH_IDS = DTYPES | {"I64": np.dtype(np.int64), "I32": np.dtype(np.int32), "BOOL": np.dtype(bool)}
"""For draft heads, which hold token ids too."""

CODES = {dtype: code for code, dtype in WITH_IDS.items()}
MAX_HEADER = 100_000_000

Shape = tuple[np.dtype, tuple[int, ...]]


class Entry(NamedTuple):
    """Where a tensor stands: the bytes of its file, one map for all tensors of it; its dtype, shape and first byte."""

    data: np.ndarray
    dtype: np.dtype
    shape: tuple[int, ...]
    start: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensor."""
        return num_bytes(self.dtype, self.shape)

    def view(self) -> np.ndarray:
        """The tensor, read-only, as a view of the file: bytes are read when they are used."""
        return self.data[self.start : self.start + self.num_bytes].view(self.dtype).reshape(self.shape)


def num_bytes(dtype: np.dtype, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor."""
    return math.prod(shape) * dtype.itemsize


def read_folder(folder: pathlib.Path, kinds: Mapping[str, np.dtype] = DTYPES) -> dict[str, Entry]:
    """Every tensor of a folder by its name. Where there are both, `model.safetensors` is read, as transformers does.

    Raises:
      ValueError: if the folder is not there or has no safetensors, the index is damaged, a file it names is missing or
        in another folder, a tensor stands in another file than the index says or in none, or a header is damaged.
    """
    placed: dict[str, str] = {}
    if (folder / SINGLE).is_file():
        files = [SINGLE]
    elif (folder / INDEX).is_file():
        placed = _weight_map(folder / INDEX)
        files = sorted(set(placed.values()))
    elif not folder.is_dir():
        raise ValueError(f"there is no folder {folder}")
    else:
        raise ValueError(
            f"{folder} has neither {SINGLE} nor {INDEX}; only safetensors are read, no pickles (of a GGUF model, give "
            "the file)"
        )
    outside = [name for name in files if pathlib.PurePath(name).name != name]
    if outside:
        raise ValueError(
            f"{folder / INDEX} names files of other folders: {', '.join(outside)}; put all files beside the index")
    absent = [name for name in files if not (folder / name).is_file()]
    if absent:
        raise ValueError(f"{folder / INDEX} names files that are not there: {', '.join(absent)}")
    found = {(name, file): entry for file in files for name, entry in read_file(folder / file, kinds).items()}
    wrong = sorted(name for name, file in found if placed and placed.get(name) != file)
    wrong += sorted(name for name, file in placed.items() if (name, file) not in found)
    if wrong:
        raise ValueError(f"{folder / INDEX} and its files disagree about {', '.join(wrong)}")
    return {name: entry for (name, _), entry in found.items()}


def read_file(file: pathlib.Path, kinds: Mapping[str, np.dtype] = DTYPES) -> dict[str, Entry]:
    """Every tensor of one file. Raises ValueError where the header does not describe the file."""
    header, start = _header(file)
    data = np.asarray(np.memmap(file, mode="r"))
    entries = {name: _entry(file, data, name, described, start, kinds) for name, described in header.items()}
    ends = sorted((entry.start, entry.start + entry.num_bytes, name) for name, entry in entries.items())
    for (_, end, name), (start, _, other) in zip(ends, ends[1:], strict=False):
        if start < end:
            raise ValueError(f"{file}: the tensors {name} and {other} overlap")
    return entries


def tensor_names(file: pathlib.Path) -> set[str]:
    """What the tensors of one file are called. Raises ValueError where it is no safetensors file."""
    return set(_header(file)[0])


def _header(file: pathlib.Path) -> tuple[dict[str, Any], int]:
    """What a file says of its tensors, and where their bytes begin."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = struct.unpack("<Q", stream.read(8).ljust(8, b"\xff"))[0]
        if length > min(size - 8, MAX_HEADER):
            raise ValueError(f"{file} is no safetensors file: it gives its header {length} bytes, and has {size}")
        try:
            header = json.loads(stream.read(length), object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{file} is no safetensors file: its header is no JSON ({error})") from None
    if not isinstance(header, dict):
        raise ValueError(f"{file} is no safetensors file: its header is no JSON object")
    header.pop("__metadata__", None)
    return header, 8 + length


def _weight_map(index: pathlib.Path) -> dict[str, str]:
    try:
        placed = json.loads(index.read_text("utf-8"))["weight_map"]
        whole = all(isinstance(file, str) for file in placed.values())
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise ValueError(f"{index} is damaged: it has no 'weight_map' of tensor names to file names")
    return placed


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object in which no name stands twice: of two tensors of one name, readers would take different ones."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = sorted(name for name, count in collections.Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"it has {', '.join(twice)} twice")
    return found


def _entry(
    file: pathlib.Path, data: np.ndarray, name: str, described: Any, base: int, kinds: Mapping[str, np.dtype]
) -> Entry:
    try:
        code, shape, (begin, end) = described["dtype"], tuple(described["shape"]), described["data_offsets"]
        whole = isinstance(code, str) and all(type(n) is int and n >= 0 for n in (*shape, begin, end))
    except (KeyError, TypeError, ValueError):
        whole = False
    if not whole:
        raise ValueError(f"{file}: the header describes {name} as {described!r}")
    if code not in kinds:
        raise ValueError(f"{file}: {name} is {code}; tensors of {', '.join(kinds)} are read")
    entry = Entry(data, kinds[code], shape, base + begin)
    room = data.size - base
    if not begin <= end <= room or end - begin != entry.num_bytes:
        raise ValueError(f"{file}: {name} has {entry.num_bytes} bytes, but stands at {begin} to {end} of {room}")
    return entry


def write_file(file: pathlib.Path, shapes: dict[str, Shape], data: Iterable[np.ndarray]) -> None:
    """Write tensors of the given dtypes and shapes; `data` gives them in the same order, one at a time."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape) in shapes.items():
        end = at + num_bytes(dtype, shape)
        header[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)  # tensors begin at a multiple of eight bytes
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for (name, (dtype, shape)), tensor in zip(shapes.items(), data, strict=True):
            if (tensor.dtype, tensor.shape) != (dtype, shape):
                raise ValueError(f"{name} is {tensor.dtype} {tensor.shape}, announced as {dtype} {shape}")
            stream.write(np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)
