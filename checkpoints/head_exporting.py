"""A draft head of ours to a folder that vLLM, SGLang, the authors' own code or speculators load."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from specjax.checkpoints import head_fields, head_names, shards, streaming, targets
from specjax.checkpoints.folder import CONFIG, files, write_files
from specjax.checkpoints.head_names import EMBEDDING, HEAD, MASK, OFFSETS, TOKEN_MAP
from specjax.checkpoints.layout import HEADS, PARAMS, SOURCE, Manifest
from specjax.checkpoints.loading import flat
from specjax.checkpoints.staging import check_apart, staged
from specjax.models.head_config import HeadConfig
from specjax.models.heads import MODULES


class Piece(NamedTuple):
    """A tensor to write: its plain name, what it is, and how to get it."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    make: Callable[[], np.ndarray]


def to_published_head(
    source: str | os.PathLike[str],
    dest: str | os.PathLike[str],
    *,
    layout: str | None = None,
    target: str | os.PathLike[str] | None = None,
    verifier: str | None = None,
    overwrite: bool = False,
    report: streaming.Report = lambda name, size: None,
) -> None:
    """Write a draft head as a folder of one safetensors file and a `config.json`.

    A head that was converted goes back as it came, byte for byte, unless a layout is asked for. Others are written in
    the usual layout of their family: of EAGLE-3 and EAGLE-1 `official` (the authors' names; vLLM loads both, SGLang
    EAGLE-3), of Medusa `vllm`. `sglang` writes an EAGLE-1 head as SGLang wants it, with a bias of `fc` and its own name
    of the architecture; vLLM has no such bias. `speculators` writes EAGLE-3 in the form of vllm-project/speculators.
    Layers are numbered by what goes into them, as vLLM does; SGLang does so too, unless the first is 1.

    Args:
      source: a checkpoint folder that `save_head` or `from_published_head` made.
      dest: the folder to make.
      layout: see above.
      target: the checkpoint of its target; needed where the file holds copies of the target's weights.
      verifier: the name by which others load the target, for the config.
      overwrite: replace an existing `dest`.
      report: called after each tensor with its name and bytes.

    Raises:
      ValueError: if `source` is no draft head, the layout is unknown or has no word for something, the target is needed
        and not given, or `dest` exists.
    """
    check_apart(source, dest)
    folder = pathlib.Path(source).absolute()
    manifest = Manifest.read(folder)
    if manifest.family not in HEADS:
        raise ValueError(f"{folder} is no draft head; a model is written by to_huggingface")
    config = MODULES[manifest.family][0].from_dict(manifest.config)
    kept = manifest.metadata.get("published")
    layouts = head_names.LAYOUTS[manifest.family]
    if layout not in (None, *layouts):
        raise ValueError(f"layout {layout!r} is none of those of {manifest.family} heads: {', '.join(layouts)}")
    aim = None if target is None else targets.open_target(target)
    if aim is not None:
        targets.check_fingerprint(folder, manifest.target, aim)
    pieces = list(_weights(folder, manifest, config))
    with staged(dest, overwrite=overwrite) as scratch:
        if layout is None and kept is not None:
            _give_back(scratch, folder, pieces, kept, aim, report)
        else:
            layout = layout or next(iter(layouts))
            extra, about = _in_layout(folder, pieces, layout, manifest, config, aim, verifier)
            said = head_fields.fields(config, layout, about)
            named = head_names.written_name(manifest.family, layout)
            _write(scratch, [piece._replace(name=named(piece.name)) for piece in pieces + extra], report)
            (scratch / CONFIG).write_text(json.dumps(said, indent=2) + "\n")


def _give_back(
    dest: pathlib.Path, folder: pathlib.Path, pieces: list[Piece], kept: dict[str, Any], target: targets.Target | None,
    report: streaming.Report,
) -> None:  # fmt: skip
    """Write a converted head as it came."""
    pieces = pieces + _beside(folder, kept, target)
    named = {kept["names"][piece.name]: piece for piece in pieces}  # a block of several names was one tensor
    _write(dest, [piece._replace(name=name) for name, piece in named.items()], report)
    write_files(dest, files(folder / SOURCE, ["**/*"]))
    if "cast" in kept and (dest / CONFIG).is_file():
        _say_dtype(dest / CONFIG, kept["cast"])


def _weights(folder: pathlib.Path, manifest: Manifest, config: HeadConfig) -> Iterator[Piece]:
    """The head's own weights under their plain names."""
    for path, leaf in flat(streaming.stored(folder / PARAMS)).items():
        if path == ("draft_ids",):
            continue
        name, form = head_names.their_name(config.family, path)
        shape = jax.eval_shape(form.theirs, leaf).shape

        def make(path: tuple[str, ...] = path, form: Any = form) -> np.ndarray:
            (found,) = streaming.read(folder / PARAMS, [path])
            return form.theirs(found)

        yield Piece(name, np.dtype(jnp.dtype(manifest.dtype_of(path))), shape, make)


def _array(name: str, values: np.ndarray) -> Piece:
    return Piece(name, values.dtype, values.shape, lambda: values)


def _ids(folder: pathlib.Path, count: int) -> np.ndarray:
    """The draft vocabulary, or the leading tokens where it is not reduced: int32 [Vd]."""
    if "draft_ids" not in streaming.stored(folder / PARAMS):
        return np.arange(count, dtype=np.int32)
    (found,) = streaming.read(folder / PARAMS, [("draft_ids",)])
    return np.asarray(found)


def _vocabulary(ids: np.ndarray, rows: int) -> list[Piece]:
    """Offsets and mask of a draft vocabulary."""
    mask = np.zeros(rows, bool)
    mask[ids] = True
    return [_array(OFFSETS, ids.astype(np.int64) - np.arange(ids.size)), _array(MASK, mask)]


def _beside(folder: pathlib.Path, kept: dict[str, Any], target: targets.Target | None) -> list[Piece]:
    """What the source of a converted head held beside the head's own weights."""
    found = []
    vocabulary = {piece.name: piece for piece in _vocabulary(_ids(folder, kept["rows"]), kept["rows"])}
    vocabulary[TOKEN_MAP] = _array(TOKEN_MAP, np.arange(kept["rows"]))
    for name, dtype in kept["ids"].items():
        found.append(_array(name, vocabulary[name].make().astype(dtype)))
    for name, dtype in kept["copies"].items():
        found.append(_copy(name, np.dtype(jnp.dtype(dtype)), folder, target))
    return found


def _copy(name: str, dtype: np.dtype, folder: pathlib.Path, target: targets.Target | None) -> Piece:
    """A copy of the target's embedding, or of its head."""
    if target is None:
        raise ValueError(
            f"{folder}: the published form holds {name}, a copy of the target's; give --target TARGET, from which it "
            "is written")
    embedding = name == EMBEDDING or target.config.tie_embeddings
    weight = target.weight("embedding" if embedding else "head")
    return _array(name, np.ascontiguousarray(weight if embedding else weight.T).astype(dtype))


def _in_layout(
    folder: pathlib.Path, pieces: list[Piece], layout: str, manifest: Manifest, config: Any,
    target: targets.Target | None, verifier: str | None,
) -> tuple[list[Piece], head_fields.About]:  # fmt: skip
    """What a layout holds beside the head's own weights, and what its config says of them."""
    rows, dtype = manifest.target["rows"], np.dtype(jnp.dtype(manifest.dtype))
    own = {piece.name: piece.shape[0] for piece in pieces if piece.name in (HEAD, "0.output.weight")}
    draft_rows = next(iter(own.values()), None)
    extra = []
    if config.family == "eagle3" and draft_rows is not None and (draft_rows < rows or config.draft_vocab_size):
        extra += _vocabulary(_ids(folder, draft_rows), rows)
    if config.family == "medusa" and draft_rows is None:
        extra.append(_copy(HEAD, dtype, folder, target))
    if config.family == "medusa" and draft_rows is not None and draft_rows < rows:
        extra.append(_array(TOKEN_MAP, np.arange(draft_rows)))
    if layout == "sglang" and not config.fc_bias:  # it is there in SGLang, and would be random
        extra.append(_array("fc.bias", np.zeros(config.layer.hidden_size, dtype)))
    return extra, head_fields.About(rows, draft_rows, manifest.target["num_layers"], dtype.name, verifier)


def _write(dest: pathlib.Path, pieces: list[Piece], report: streaming.Report) -> None:
    def made() -> Iterator[np.ndarray]:
        for piece in pieces:
            yield piece.make()
            report(piece.name, shards.num_bytes(piece.dtype, piece.shape))

    shapes = {piece.name: (piece.dtype, piece.shape) for piece in pieces}
    shards.write_file(dest / shards.SINGLE, shapes, made())


def _say_dtype(path: pathlib.Path, dtype: str) -> None:
    """Loaders go by the dtype that the config names."""
    values = json.loads(path.read_text())
    said = {name: dtype for name in ("dtype", "torch_dtype") if name in values}
    path.write_text(json.dumps(values | said, indent=2) + "\n")
