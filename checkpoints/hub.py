"""`hf:OWNER/NAME`, or `hf:OWNER/NAME@REVISION`, in place of a folder."""

from __future__ import annotations

import os
import pathlib

PREFIX = "hf:"
TWICE = ("consolidated*", "*/*.safetensors*")  # the same weights in another form, which some repositories hold beside
FILES = ("*.safetensors", "*.safetensors.index.json", "*.json", "merges.txt", "tokenizer.model", "*.jinja", "LICENSE")


def folder(source: str | os.PathLike[str], pickles: tuple[str, ...] = ()) -> pathlib.Path:
    """The folder that `source` names; a repository `hf:OWNER/NAME` of the Hugging Face Hub is fetched into its cache.

    `hf:OWNER/NAME@REVISION` fetches a branch, a tag or a commit. Files named in `pickles` are fetched too, for heads.

    Raises:
      ValueError: if the extra `hub` is not installed, or the repository is neither to be had nor in the cache,
        or it holds no safetensors.
    """
    name = os.fspath(source)
    if not name.startswith(PREFIX):
        return pathlib.Path(name)
    try:
        import huggingface_hub
    except ImportError:
        raise ValueError(f"{name} needs huggingface_hub: pip install 'specjax[hub]'") from None
    repository, _, revision = name.removeprefix(PREFIX).partition("@")
    try:
        found = pathlib.Path(huggingface_hub.snapshot_download(
            repository, revision=revision or None, allow_patterns=[*FILES, *pickles], ignore_patterns=list(TWICE)))
    except (OSError, ValueError) as error:
        reason, *_ = str(error).splitlines() or [type(error).__name__]
        raise ValueError(
            f"{name} can not be fetched, and is not in the cache: {reason}; check the name and the "
            "connection (and `hf auth login`, where a licence must be accepted first), or give the folder of a copy"
        ) from error
    if not any(path for pattern in ("*.safetensors", *pickles) for path in found.glob(pattern)):
        raise ValueError(
            f"{name} has no safetensors, which alone are fetched; a GGUF file is fetched by `hf download {repository} "
            "FILE.gguf --local-dir .` and converted by its name"
        )
    return found
