"""A published draft head to a checkpoint of ours, for a target that is one already."""

from __future__ import annotations

import collections
import dataclasses
import os
import pathlib
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from specjax.checkpoints import folder, head_names, head_source, names, streaming, targets
from specjax.checkpoints.head_dialects import Told, head_config
from specjax.checkpoints.head_names import EMBEDDING, HEAD, MASK, OFFSETS, TOKEN_MAP
from specjax.checkpoints.head_source import HeadSource
from specjax.checkpoints.heads import check_draft_ids
from specjax.checkpoints.importing import DTYPES, deferred
from specjax.checkpoints.layout import PARAMS, SOURCE, Manifest, misfits, refuse_misfits
from specjax.checkpoints.source import Stored
from specjax.checkpoints.staging import check_apart, staged
from specjax.models.head_config import HeadConfig

Found = dict[str, tuple[str, Stored]]


class Extras(NamedTuple):
    """What a file holds beside the head's own weights.

    Attributes:
      draft_ids: the target's ids of the draft vocabulary, int32 [Vd], or None.
      copies: plain names of copies of the target's weights, with the dtype they have.
      whole: whether offsets and mask are there although the draft vocabulary is the target's.
    """

    draft_ids: np.ndarray | None
    copies: dict[str, str]
    whole: bool


def from_published_head(
    source: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    tap_convention: str | None = None,
    recycle: str | None = None,
    dtype: str | None = None,
    overwrite: bool = False,
    report: streaming.Report = lambda name, size: None,
) -> HeadConfig:
    """Convert a published Medusa, EAGLE-1/2 or EAGLE-3 head to a checkpoint that `load_head` reads.

    Read are the authors' own files and those of vLLM, SGLang, SpecForge, AngelSlim and speculators (`eagle3`), as
    safetensors, or as pickles where torch is installed.

    Args:
      source: the folder, as the head's repository holds it. Read only.
      dest: the checkpoint folder to make.
      target: the checkpoint of the model it drafts for, or the name of an embedded one.
      tap_convention: of EAGLE-3, `boundary` or `output`, where its config leaves open what a layer's number means.
      recycle: of EAGLE-3, `pre` or `post`, where it leaves open which output is fed back.
      dtype: one of `DTYPES`, to cast all weights; None keeps each as it is, which `to_published_head` gives back byte
        for byte.
      overwrite: replace an existing `dest`.
      report: called after each tensor with its name and bytes.

    Returns:
      The config of the head; its `vocab_size` is that of the target's tokenizer.

    Raises:
      ValueError: if a file is missing or damaged, head and target do not fit (both sides are named), the config leaves
        something open, `dest` exists, or tensors are missing, unexpected or mis-shaped; each is named.
    """
    check_apart(source, dest)
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
    aim, read = targets.open_target(target), head_source.read(pathlib.Path(source))
    found = _plain(read)
    copies = _copies(read, found, aim)
    padded = head_config(read, found.keys() - copies.keys(), aim, Told(tap_convention, recycle))
    config = _for_target(read, padded, aim)
    extras = _extras(read, found, padded, copies, aim)
    wanted = head_names.tensors(padded)
    found = _shared_blocks(read, wanted, found)
    _check(read, wanted, found, extras)
    weights, stored = _weights(wanted, found, extras, config, dtype)
    main = collections.Counter(name for name in stored.values() if name != "int32").most_common(1)[0][0]
    manifest = Manifest(
        read.family, config.to_dict(), main, (), _provenance(read, wanted, found, padded, extras, dtype, aim),
        {path: other for path, other in stored.items() if other != main}, aim.fingerprint())
    with staged(dest, overwrite=overwrite) as scratch:
        streaming.write(scratch / PARAMS, weights, report, None if dtype is None else jnp.dtype(dtype))
        folder.write_files(scratch / SOURCE, read.beside)
        manifest.write(scratch)
    return config


def _plain(source: HeadSource) -> Found:
    found: Found = {}
    problems = []
    for name, entry in source.tensors.items():
        plain = head_names.plain_name(source.family, name)
        if plain is None:
            continue
        if plain in found:
            problems.append(f"both {found[plain][0]} and {name} mean {plain}")
        found[plain] = (name, entry)
    refuse_misfits(source.label, problems)
    return found


def _copies(source: HeadSource, found: Found, target: targets.Target) -> dict[str, str]:
    """Copies of the target's embedding, and of its head (Medusa), with their dtype; they are not kept.

    An EAGLE-3 head may have an embedding of its own; in other heads one that differs means another target.
    """
    name = HEAD if source.family == "medusa" else EMBEDDING
    if name not in found:
        return {}
    entry = found[name][1]
    tied = target.config.tie_embeddings
    theirs = target.weight("embedding" if name == EMBEDDING or tied else "head")
    theirs = theirs.T if name == HEAD and not tied else theirs
    if theirs.shape == entry.shape and np.array_equal(theirs.astype(entry.dtype), entry.view()):
        return {name: entry.dtype.name}
    if source.family == "eagle3":
        return {}
    raise ValueError(
        f"{found[name][0]} {entry.shape} in {source.label} is no copy of that of {target.label} {theirs.shape}: the "
        "head was made for another target")


def _for_target(source: HeadSource, padded: HeadConfig, target: targets.Target) -> HeadConfig:
    """The config with the target's vocabulary, once it is known that the two belong together."""
    known = {target.rows, target.config.vocab_size}
    if padded.vocab_size not in known:
        raise ValueError(
            f"{source.label} was made for another target than {target.label}: vocab_size is {padded.vocab_size} in the "
            f"head and {' or '.join(map(str, sorted(known)))} in the target")
    c: Any = padded
    if hasattr(c, "layer"):
        config = dataclasses.replace(c, layer=dataclasses.replace(c.layer, vocab_size=target.config.vocab_size))
    else:
        config = dataclasses.replace(c, vocab_size=target.config.vocab_size)
    config.check_target(target.config)
    return config


def _extras(
    source: HeadSource, found: Found, padded: HeadConfig, copies: dict[str, str], target: targets.Target
) -> Extras:
    """Draft vocabulary and copies, checked."""
    size, whole = getattr(padded, "draft_vocab_size", None), False
    offsets, mask = (found[name][1].view() if name in found else None for name in (OFFSETS, MASK))
    ids = None
    if offsets is not None:
        ids = (offsets + np.arange(offsets.size)).astype(np.int32)
        check_draft_ids(source.label, ids, padded.vocab_size)
        count = padded.vocab_size if size is None else size
        if ids.size != count:
            raise ValueError(f"{source.label}: d2t has {ids.size} entries, draft_vocab_size is {count}")
        if mask is not None and not np.array_equal(np.flatnonzero(mask), np.sort(ids)):
            raise ValueError(
                f"{source.label}: t2d marks {int(mask.sum())} tokens, and not the {ids.size} that d2t leads to")
    elif size is not None:
        raise ValueError(f"{source.label} has a draft vocabulary of {size} tokens, but no d2t that says which")
    if size is None and ids is not None:
        whole, ids = True, None  # d2t was checked to name every token once; in another order it would be a mistake
        if np.any(offsets):
            raise ValueError(f"{source.label}: d2t reorders a draft vocabulary that is the target's")
    if TOKEN_MAP in found and not np.array_equal(found[TOKEN_MAP][1].view(), np.arange(padded.vocab_size)):
        raise ValueError(f"{source.label} has a token_map that leaves tokens out, which Medusa heads here do not have")
    return Extras(ids, copies, whole)


def _shared_blocks(source: HeadSource, wanted: list[names.Tensor], found: Found) -> Found:
    """Medusa's authors gave a head one block several times; safetensors keep only one of its names."""
    if source.family != "medusa":
        return found
    said, first = dict(found), "0"
    for tensor in wanted:
        if tensor.path[2:3] == ("blocks",) and tensor.name not in found:
            head, _, rest = tensor.name.split(".", 2)
            if (same := found.get(f"{head}.{first}.{rest}")) is not None:
                said[tensor.name] = same
    return said


def _check(source: HeadSource, wanted: list[names.Tensor], found: Found, extras: Extras) -> None:
    shapes = {tensor.name: tensor.theirs for tensor in wanted}
    beside = {*extras.copies, OFFSETS, MASK, TOKEN_MAP}
    refuse_misfits(source.label, misfits(
        {found.get(plain, (plain,))[0]: shape for plain, shape in shapes.items()},
        {name: entry.shape for plain, (name, entry) in found.items() if plain not in beside}))


def _weights(
    wanted: list[names.Tensor], found: Found, extras: Extras, config: HeadConfig, dtype: str | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Our nested dicts, each weight to be read when it is written, and the dtype each is to be stored in."""
    weights, stored = deferred(wanted, found, config.layer.head_dim if hasattr(config, "layer") else 1, dtype)
    if extras.draft_ids is not None:
        ids = extras.draft_ids
        weights["draft_ids"] = streaming.Deferred(ids.shape, ids.dtype, ids.nbytes, lambda: ids)
        stored["draft_ids"] = "int32"
    return weights, stored


def _provenance(
    source: HeadSource, wanted: list[names.Tensor], found: Found, padded: HeadConfig, extras: Extras,
    dtype: str | None, target: targets.Target,
) -> dict[str, Any]:  # fmt: skip
    """What the way back needs to know, and how the head is wired, for readers."""
    kept = {"rows": padded.vocab_size, "names": {plain: name for plain, (name, _) in found.items()},
            "copies": extras.copies, "ids": {
                plain: found[plain][1].dtype.name for plain in (OFFSETS, MASK, TOKEN_MAP) if plain in found}}
    return {"published": kept | ({"cast": dtype} if dtype else {}), "target": target.label,
            "wiring": wiring(padded, extras.copies)}  # fmt: skip


def wiring(config: HeadConfig, copies: dict[str, str] | None = None) -> dict[str, Any]:
    """How a head is wired, in words that do not depend on any library's config."""
    if config.family == "medusa":
        return {"algorithm": "medusa", "hidden_source": "post_norm", "position_offset": 0}
    c: Any = config
    eagle3 = config.family == "eagle3"
    return {
        "algorithm": config.family, "concat_order": "embedding, hidden", "position_offset": 0,
        "hidden_source": "taps, pre_norm" if config.taps else "post_norm", "tap_boundaries": list(config.taps),
        "recycle": ("post_norm" if c.norm_output else "pre_norm") if eagle3 else "output",
        "residual_from": "normed" if eagle3 and c.norm_before_residual else "raw", "fc_bias": c.fc_bias,
        "embed_source": "own" if "embedding" not in config.borrows else "target, copied" if copies else "target",
        "head_source": "own" if eagle3 and c.own_head else "target", "d2t_encoding": "absolute ids"}
