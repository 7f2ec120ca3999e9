"""A GGUF file, or the parts of one, in the terms of Hugging Face."""

from __future__ import annotations

import collections
import json
import pathlib
import re
from typing import Any

import gguf
import numpy as np
from tokenizers import Tokenizer

from specjax.checkpoints import dialects
from specjax.checkpoints.gguf import tensors, tokenizer
from specjax.checkpoints.gguf.config import config_values
from specjax.checkpoints.source import Source
from specjax.checkpoints.vocabulary import read_tokenizer

Values = dict[str, Any]

FACTORS, EMBEDDING, HEAD, OUT_BIAS = "rope_freqs.weight", "token_embd.weight", "output.weight", "attn_output.bias"
ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<end_of_turn>")
"""Control tokens that end a text wherever they stand: a file names one of them, instruction-tuned models write others
too, and llama.cpp stops at each."""
TEMPLATE = "tokenizer.chat_template"
PLAIN_NAME = re.compile(r"[\w-]+")


class _Reader(gguf.GGUFReader):
    """Does not go on behind the end of the file, where the original finds as many empty values as a count asks for."""

    def _get(self, offset: int, dtype: Any, count: int = 1, *rest: Any, **more: Any) -> Any:
        if int(offset) + int(count) * np.dtype(dtype).itemsize > len(self.data):
            raise ValueError(f"it ends before what stands at byte {offset}")
        return super()._get(offset, dtype, count, *rest, **more)


def read(path: pathlib.Path, tokenizer_file: pathlib.Path | None = None) -> Source:
    """Everything about the model in a file.

    Args:
      path: the file; of a model in several, the first (`NAME-00001-of-00003.gguf`).
      tokenizer_file: a `tokenizer.json` to use instead of what the file says about text.

    Raises:
      ValueError: if it is no whole GGUF file, or the architecture, a setting, a type of tensor or the tokenizer is
        not known.
    """
    metadata, found = _parts(path)
    if EMBEDDING not in found:
        raise ValueError(f"{path} holds no {EMBEDDING}: it is no language model, or only a part of one")
    layers = len({name.split(".")[1] for name in found if name.startswith("blk.")})
    factors = found.pop(FACTORS, None)
    try:
        rows = int(found[EMBEDDING].shape[-1])
        values = config_values(
            metadata, rows, layers, HEAD not in found, any(name.endswith(OUT_BIAS) for name in found),
            None if factors is None else np.asarray(factors.data))  # fmt: skip
        config = dialects.decoder_config(values)
        entries = tensors.entries(found, metadata["general.architecture"], config)
        if tokenizer_file is None:
            words = tokenizer.build(metadata)
        else:
            words = read_tokenizer(tokenizer_file, "give another (--tokenizer), or none")
        generation = {"eos_token_id": _ends(metadata)}
        beside = _beside(metadata, values, generation, words)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    except (TypeError, AttributeError, LookupError, ArithmeticError) as error:  # a field may hold anything
        raise ValueError(f"{path}: a field is not of the usual form ({type(error).__name__}: {error})") from error
    kinds = collections.Counter(raw.tensor_type.name for raw in found.values())
    origin = {"file": path.name, "name": metadata.get("general.name"), "tensors": dict(kinds)}
    return Source(str(path), values, config, dict(entries), words, generation, beside, {"gguf": origin})


def _parts(path: pathlib.Path) -> tuple[Values, dict[str, Any]]:
    """Fields of the first part, tensors of all."""
    metadata, found = _open(path)
    count = metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return metadata, found
    number = re.search(r"-(\d{5})-of-(\d{5})\.gguf$", path.name)
    if number is None or metadata.get("split.no", 0) != 0:
        first = f"NAME-00001-of-{count:05d}.gguf"
        raise ValueError(f"{path} is a part of a model in {count} files; give the first, {first}")
    for index in range(2, count + 1):
        part = path.with_name(path.name[: number.start()] + f"-{index:05d}-of-{count:05d}.gguf")
        if not part.is_file():
            raise ValueError(f"{path} is the first of {count} files, and {part.name} is not beside it")
        own, more = _open(part)
        if (own.get("split.no"), own.get("split.count")) != (index - 1, count):
            raise ValueError(f"{part} is not part {index} of the {count} that {path} begins")
        found |= more
    total = metadata.get("split.tensors.count", len(found))
    if total != len(found):
        raise ValueError(f"{path} and its parts hold {len(found)} tensors of {total}")
    return metadata, found


def _open(path: pathlib.Path) -> tuple[Values, dict[str, Any]]:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        reader = _Reader(path)
        if reader.endianess != gguf.GGUFEndian.LITTLE:
            raise ValueError("it is big-endian")
        fields = {name: field.contents() for name, field in reader.fields.items()}
        return fields, {raw.name: raw for raw in reader.tensors}
    except (ValueError, LookupError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path} can not be read as a GGUF file: {error}") from None


def _texts(metadata: Values) -> list[str]:
    return metadata.get("tokenizer.ggml.tokens", [])


def _ids(metadata: Values, *kinds: str) -> dict[str, int]:
    """What the file says the ids of these special tokens are, as far as there are such ids."""
    said = {kind: metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in kinds}
    count = len(_texts(metadata)) or 1 << 31
    return {kind: i for kind, i in said.items() if isinstance(i, int) and 0 <= i < count}


def _ends(metadata: Values) -> list[int]:
    """Ids that end a text, the named one first."""
    kinds = metadata.get("tokenizer.ggml.token_type", ())
    marked = [i for i, (text, kind) in enumerate(zip(_texts(metadata), kinds, strict=False))
              if kind == tokenizer.CONTROL and text in ENDS]  # fmt: skip
    return list(dict.fromkeys([*_ids(metadata, "eos", "eot", "eom").values(), *marked]))


def _beside(metadata: Values, values: Values, generation: Values, words: Tokenizer) -> dict[str, bytes]:
    """The small files of a Hugging Face folder, made from the fields."""
    names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
    texts, ids = _texts(metadata), _ids(metadata, *names)
    special = {f"{names[kind]}_token": texts[i] for kind, i in ids.items()} if texts else {}
    files = {"config.json": values, "generation_config.json": generation,
             "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", **special}}  # fmt: skip
    beside = {name: (json.dumps(body, indent=2) + "\n").encode() for name, body in files.items()}
    beside["tokenizer.json"] = words.to_str().encode()
    if TEMPLATE in metadata:
        beside["chat_template.jinja"] = metadata[TEMPLATE].encode()
    for name in metadata.get("tokenizer.chat_templates", ()):
        if not PLAIN_NAME.fullmatch(name) or f"{TEMPLATE}.{name}" not in metadata:
            raise ValueError(f"it names a chat template {name!r}, which is no plain name or is not there")
        beside[f"additional_chat_templates/{name}.jinja"] = metadata[f"{TEMPLATE}.{name}"].encode()
    return beside
