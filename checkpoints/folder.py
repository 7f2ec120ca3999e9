"""A Hugging Face folder: which of its files are read, and which are kept as they are."""

from __future__ import annotations

import pathlib
from collections.abc import Iterable
from typing import Any

from tokenizers import Tokenizer

from specjax.checkpoints import dialects, shards
from specjax.checkpoints.layout import read_json
from specjax.checkpoints.source import Source
from specjax.checkpoints.vocabulary import read_tokenizer
from specjax.models import DecoderConfig

CONFIG, GENERATION = "config.json", "generation_config.json"
BESIDE = (
    CONFIG, GENERATION, "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja", "chat_template.json", "LICENSE",
    "additional_chat_templates/*.jinja",
)  # fmt: skip
"""Small files that are kept as they are, for the way back and for chat templates."""


def read_folder(folder: pathlib.Path) -> Source:
    """A Hugging Face folder. Raises ValueError if a file is missing or damaged."""
    values, config = read_config(folder)
    generation = folder / GENERATION
    return Source(
        str(folder), values, config, dict(shards.read_folder(folder)), _tokenizer(folder),
        read_json(generation) if generation.is_file() else {},
        files(folder, BESIDE), {})


def files(folder: pathlib.Path, patterns: Iterable[str]) -> dict[str, bytes]:
    """The small files of a folder that match one of the patterns, by their path in it."""
    found = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(found)}


def write_files(folder: pathlib.Path, contents: dict[str, bytes]) -> None:
    """What `files` gave, as files below `folder`."""
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def read_config(folder: pathlib.Path) -> tuple[dict[str, Any], DecoderConfig]:
    """`config.json` as it is, and as our config with all rows of the embedding."""
    if not (folder / CONFIG).is_file():
        raise ValueError(f"{folder} is no Hugging Face model: it has no {CONFIG}")
    values = read_json(folder / CONFIG)
    return values, dialects.decoder_config(values)


def _tokenizer(folder: pathlib.Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ValueError(
            f"{folder} has no tokenizer.json; make one with transformers: "
            "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    return read_tokenizer(path, "fetch it again")
