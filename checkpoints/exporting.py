"""A converted checkpoint back to a Hugging Face folder."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from specjax.checkpoints import names, shards, streaming
from specjax.checkpoints.folder import CONFIG, files, read_config, write_files
from specjax.checkpoints.importing import HEAD
from specjax.checkpoints.layout import PARAMS, SOURCE, Manifest
from specjax.checkpoints.staging import check_apart, staged
from specjax.models import DecoderConfig

SHARD_BYTES = 5_000_000_000


def to_huggingface(
    source: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    report: streaming.Report = lambda name, size: None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write a converted checkpoint as a Hugging Face folder that `transformers` loads.

    Tensors that were not cast have the bytes they had, and the files beside them too; how they are spread over shards
    may differ. One tensor at a time is in memory, and `dest` appears when it is complete.

    Args:
      source: a checkpoint folder made by `from_huggingface` or `from_gguf`.
      dest: the folder to make.
      overwrite: replace an existing `dest`.
      report: called after each tensor with its name and bytes.
      shard_bytes: the most a file of several tensors holds.

    Raises:
      ValueError: if `source` is no checkpoint or was not converted, parts of the original were left out in converting
        it, or `dest` exists.
    """
    check_apart(source, dest)
    folder = pathlib.Path(source).absolute()
    manifest = Manifest.read(folder)
    kept = manifest.metadata.get("huggingface")
    if kept is None or not (folder / SOURCE / CONFIG).is_file():
        raise ValueError(f"{folder} was not converted from Hugging Face: there is no {SOURCE}/{CONFIG} to give back")
    values, padded = read_config(folder / SOURCE)
    if values["model_type"] == "gemma3":
        raise ValueError(
            f"{folder} holds the text part of a multimodal model; transformers would make up the parts that see. "
            "Keep the original folder for them"
        )
    ours = DecoderConfig.from_dict(manifest.config)
    if dataclasses.replace(padded, vocab_size=ours.vocab_size) != ours:
        raise ValueError(f"{folder}: {SOURCE}/{CONFIG} and the config in the manifest describe different models")
    wanted = [tensor._replace(name=kept["names"].get(tensor.name, tensor.name)) for tensor in names.tensors(padded)]
    if kept["head_copy"]:
        (embedding,) = (tensor for tensor in wanted if tensor.path == ("embedding",))
        wanted.append(embedding._replace(name=kept["names"].get(HEAD, HEAD)))
    with staged(dest, overwrite=overwrite) as scratch:
        write_files(scratch, files(folder / SOURCE, ["**/*"]))
        if "cast" in kept:
            _say_dtype(scratch / CONFIG, values, kept["cast"])
        _write(scratch, folder / PARAMS, wanted, manifest, report, shard_bytes)


def _write(
    dest: pathlib.Path, params: pathlib.Path, wanted: list[names.Tensor], manifest: Manifest,
    report: streaming.Report, shard_bytes: int,
) -> None:  # fmt: skip
    announced = {}
    for tensor in wanted:
        dtype = jnp.dtype(manifest.dtype_of(tensor.path))
        announced[tensor.name] = (np.dtype(dtype), tensor.theirs)
    parts = _spread(wanted, announced, shard_bytes)
    placed: dict[str, str] = {}
    for number, members in enumerate(parts, 1):
        file = shards.SINGLE if len(parts) == 1 else f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        placed |= {tensor.name: file for tensor in members}
        shapes = {tensor.name: announced[tensor.name] for tensor in members}
        shards.write_file(dest / file, shapes, _read(params, members, report))
    if len(parts) > 1:
        total = sum(shards.num_bytes(*one) for one in announced.values())
        index = {"metadata": {"total_size": total}, "weight_map": placed}
        (dest / shards.INDEX).write_text(json.dumps(index, indent=2) + "\n")


def _spread(
    wanted: list[names.Tensor], announced: dict[str, shards.Shape], shard_bytes: int
) -> list[list[names.Tensor]]:
    parts: list[list[names.Tensor]] = [[]]
    room = shard_bytes
    for tensor in wanted:
        size = shards.num_bytes(*announced[tensor.name])
        if size > room and parts[-1]:
            parts.append([])
            room = shard_bytes
        parts[-1].append(tensor)
        room -= size
    return parts


def _read(params: pathlib.Path, members: list[names.Tensor], report: streaming.Report) -> Iterator[np.ndarray]:
    weights = streaming.read(params, [tensor.path for tensor in members])
    for tensor, weight in zip(members, weights, strict=True):
        yield tensor.form.theirs(weight)
        report(tensor.name, weight.nbytes)


def _say_dtype(path: pathlib.Path, values: dict[str, Any], dtype: str) -> None:
    """`transformers` loads in the dtype that the config names."""
    said = {name: dtype for name in ("dtype", "torch_dtype") if name in values}
    path.write_text(json.dumps(values | said, indent=2) + "\n")
