"""A Hugging Face folder or a GGUF file to a checkpoint of ours."""

from __future__ import annotations

import collections
import dataclasses
import os
import pathlib
from typing import Any, NamedTuple

import jax.numpy as jnp
from tokenizers import Tokenizer

from specjax.checkpoints import folder, names, streaming
from specjax.checkpoints.layout import PARAMS, SOURCE, TOKENIZER, Manifest, misfits, refuse_misfits
from specjax.checkpoints.source import Source, Stored
from specjax.checkpoints.staging import check_apart, staged
from specjax.models import DecoderConfig

DTYPES = ("float32", "bfloat16", "float16")
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def from_huggingface(
    source: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    dtype: str | None = None,
    overwrite: bool = False,
    report: streaming.Report = lambda name, size: None,
) -> DecoderConfig:
    """Convert a folder of safetensors, `config.json` and `tokenizer.json` to a checkpoint that `load` reads.

    One tensor at a time is in memory. `dest` appears when it is complete; what a killed run leaves does not load.

    Args:
      source: the folder, as a model's repository holds it. Read only.
      dest: the checkpoint folder to make.
      dtype: one of `DTYPES`, to cast all weights; None keeps each tensor as it is, which `to_huggingface` gives back
        byte for byte.
      overwrite: replace an existing `dest`.
      report: called after each tensor with its name and bytes.

    Returns:
      The config; its `vocab_size` is that of the tokenizer, and rows of the embedding behind it are never scored.

    Raises:
      ValueError: if a file is missing or damaged, the family or a setting is unknown, `dest` exists, or tensors are
        missing, unexpected or of another shape than the config says; each is named.
    """
    check_apart(source, dest)
    return _convert(folder.read_folder(pathlib.Path(source)), dest, dtype, overwrite, report)


def from_gguf(
    source: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] | None = None,
    dtype: str | None = None,
    overwrite: bool = False,
    report: streaming.Report = lambda name, size: None,
) -> DecoderConfig:
    """Convert a GGUF file to a checkpoint that `load` reads, and that `to_huggingface` can write as a folder.

    F32, F16 and BF16 stay as they are; quantised tensors become float32, which holds their numbers exactly.

    Args:
      source: the file; of a model in several, the first.
      dest: the checkpoint folder to make.
      tokenizer: a `tokenizer.json` to use instead of the vocabulary in the file.
      dtype: as for `from_huggingface`.
      overwrite: replace an existing `dest`.
      report: called after each tensor with its name and bytes.

    Returns:
      The config, as `from_huggingface`.

    Raises:
      ValueError: if the extra `gguf` is not installed, and as `from_huggingface`.
    """
    try:
        from specjax.checkpoints import gguf
    except ImportError:
        raise ValueError(f"{os.fspath(source)} needs the package gguf: pip install 'specjax[gguf]'") from None
    words = None if tokenizer is None else pathlib.Path(tokenizer)
    check_apart(source, dest)
    return _convert(gguf.read(pathlib.Path(source), words), dest, dtype, overwrite, report)


class Opened(NamedTuple):
    """A source whose tensors are those of its config.

    Attributes:
      config: of the decoder; its vocabulary is the tokenizer's.
      weights: nested dicts of `streaming.Deferred`.
      dtype: of most tensors.
      stored: the dtype of each, by its dotted path.
      tokenizer: text to ids.
      eos_ids: ids that end a text.
      metadata: what the way back needs to know.
    """

    config: DecoderConfig
    weights: dict[str, Any]
    dtype: str
    stored: dict[str, str]
    tokenizer: Tokenizer
    eos_ids: tuple[int, ...]
    metadata: dict[str, Any]


def opened(source: Source, dtype: str | None = None) -> Opened:
    """A source after every check, no tensor read yet; `dtype` casts all. Raises ValueError as `from_huggingface`."""
    padded = source.config
    config = dataclasses.replace(padded, vocab_size=_real_ids(source, padded))
    wanted = names.tensors(padded)
    found = match(source, wanted, padded.tie_embeddings)
    weights, stored = deferred(wanted, found, padded.head_dim, dtype)
    main = collections.Counter(stored.values()).most_common(1)[0][0]
    metadata = _provenance(found, padded, dtype) | source.origin
    return Opened(config, weights, main, stored, source.tokenizer, _eos_ids(source, config), metadata)


def _convert(
    source: Source, dest: str | os.PathLike[str], dtype: str | None, overwrite: bool, report: streaming.Report
) -> DecoderConfig:
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    found = opened(source, dtype)
    others = {path: other for path, other in found.stored.items() if other != found.dtype}
    manifest = Manifest("decoder", found.config.to_dict(), found.dtype, found.eos_ids, found.metadata, others)
    with staged(dest, overwrite=overwrite) as scratch:
        streaming.write(scratch / PARAMS, found.weights, report, None if dtype is None else jnp.dtype(dtype))
        source.tokenizer.save(str(scratch / TOKENIZER))
        folder.write_files(scratch / SOURCE, source.beside)
        manifest.write(scratch)
    return found.config


def match(source: Source, wanted: list[names.Tensor], tied: bool) -> dict[str, tuple[str, Stored]]:
    """For each plain name its name in the source and where it stands, once everything fits what the config says.

    Raises:
      ValueError: naming each missing, unexpected and mis-shaped tensor, two tensors of one meaning, and a head that
        differs from the embedding although the config ties them.
    """
    found: dict[str, tuple[str, Stored]] = {}
    problems = []
    for name, entry in source.tensors.items():
        plain = names.plain_name(name)
        if plain is None:
            continue
        if plain in found:
            problems.append(f"both {found[plain][0]} and {name} mean {plain}")
        found[plain] = (name, entry)
    shapes = {tensor.name: tensor.theirs for tensor in wanted}
    if tied and HEAD in found:
        head, embedding = found[HEAD][1], found.get(EMBEDDING, (None, None))[1]
        if embedding is None or not _equal_bytes(head, embedding):
            problems.append(f"{HEAD} differs from {EMBEDDING}, although tie_word_embeddings is set")
        shapes[HEAD] = shapes[EMBEDDING]
    problems += misfits(
        {found.get(plain, (plain,))[0]: shape for plain, shape in shapes.items()},
        {name: entry.shape for name, entry in found.values()})
    refuse_misfits(source.label, problems)
    return found


def _equal_bytes(one: Stored, other: Stored) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    rows = zip(one.view(), other.view(), strict=True)
    return all(a.tobytes() == b.tobytes() for a, b in rows)


def deferred(
    wanted: list[names.Tensor], found: dict[str, tuple[str, Stored]], head_dim: int, dtype: str | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Our nested dicts, each weight to be read when it is written, and the dtype each is to be stored in."""

    def read(tensor: names.Tensor, entry: Stored) -> streaming.Deferred:
        make = lambda: tensor.form.ours(entry.view(), head_dim)  # noqa: E731
        return streaming.Deferred(tensor.ours, entry.dtype, entry.num_bytes, make)

    weights: dict[str, Any] = {}
    stored = {}
    for tensor in wanted:
        entry = found[tensor.name][1]
        node = weights
        for key in tensor.path[:-1]:
            node = node.setdefault(key, {})
        node[tensor.path[-1]] = read(tensor, entry)
        stored[".".join(tensor.path)] = dtype or entry.dtype.name
    return weights, stored


def _provenance(found: dict[str, tuple[str, Stored]], padded: DecoderConfig, dtype: str | None) -> dict[str, Any]:
    """What the way back needs to know."""
    renamed = {plain: name for plain, (name, _) in found.items() if plain != name}
    kept = {"rows": padded.vocab_size, "names": renamed, "head_copy": padded.tie_embeddings and HEAD in found}
    return {"huggingface": kept | ({"cast": dtype} if dtype else {})}


def _real_ids(source: Source, padded: DecoderConfig) -> int:
    count = 1 + max(source.tokenizer.get_vocab(with_added_tokens=True).values())
    if count > padded.vocab_size:
        raise ValueError(
            f"the tokenizer of {source.label} has ids up to {count - 1}, the embedding only {padded.vocab_size} rows; "
            "the added tokens were never given weights"
        )
    return count


def _eos_ids(source: Source, config: DecoderConfig) -> tuple[int, ...]:
    """From the generation config where it says so, else from the model's: they may disagree, and the first is used."""
    for said in (source.generation, source.values, source.values.get("text_config") or {}):
        eos = said.get("eos_token_id")
        found = eos if isinstance(eos, list) else [] if eos is None else [eos]
        wrong = [i for i in found if type(i) is not int or not 0 <= i < config.vocab_size]
        if wrong:
            raise ValueError(f"{source.label}: eos_token_id {wrong} is none of the tokenizer's {config.vocab_size} ids")
        if found:
            return tuple(found)
    return ()
