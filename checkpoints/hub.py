"""`hf:OWNER/NAME` in place of a folder."""

from __future__ import annotations

import os
import pathlib

PREFIX = "hf:"
FILES = ("*.safetensors", "*.safetensors.index.json", "*.json", "merges.txt", "tokenizer.model", "*.jinja", "LICENSE")


def folder(source: str | os.PathLike[str]) -> pathlib.Path:
    """The folder that `source` names; a repository `hf:OWNER/NAME` of the Hugging Face Hub is fetched into its cache.

    Raises:
      ValueError: if the extra `hub` is not installed, or the repository is neither to be had nor in the cache.
    """
    name = os.fspath(source)
    if not name.startswith(PREFIX):
        return pathlib.Path(name)
    try:
        import huggingface_hub
    except ImportError:
        raise ValueError(f"{name} needs huggingface_hub: pip install 'specjax[hub]'") from None
    try:
        return pathlib.Path(huggingface_hub.snapshot_download(name.removeprefix(PREFIX), allow_patterns=list(FILES)))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{name} can not be fetched, and is not in the cache: {str(error).splitlines()[0]}; check the name and the "
            "connection, or give the folder of a copy"
        ) from error
