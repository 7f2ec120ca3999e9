"""The tokenizers of checkpoints: read as a model wants them, and compared between a target and its draft."""

from __future__ import annotations

import json
import pathlib
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

if TYPE_CHECKING:
    from specjax.checkpoints.loading import LoadedModel

CUTTING = ("normalizer", "pre_tokenizer", "model", "added_tokens")
"""The parts of a tokenizer that decide where text is cut; others pad, frame with special tokens, or go back to text."""


def read_tokenizer(path: pathlib.Path, remedy: str) -> Tokenizer:
    """Without the padding and cutting that some repositories leave switched on: a prompt is taken as it is.

    Raises:
      ValueError: naming the file and the `remedy`, if it is missing or damaged.
    """
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # `tokenizers` raises nothing narrower
        raise ValueError(f"{path} is missing or damaged ({error}); {remedy}") from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def check_same_tokenizer(target: LoadedModel, draft: LoadedModel) -> None:
    """Refuse a draft that reads ids otherwise than its target.

    Raises:
      ValueError: naming the first id that the two tokenizers give to different texts, or, where all ids agree, saying
        that they cut text differently.
    """
    first, second = (
        {i: token for token, i in m.tokenizer.get_vocab(with_added_tokens=True).items()} for m in (target, draft)
    )
    for i in sorted(first.keys() | second.keys()):
        if first.get(i) != second.get(i):
            raise ValueError(
                f"target and draft have different tokenizers: id {i} is {first.get(i)!r} for the target and "
                f"{second.get(i)!r} for the draft; choose a draft trained with the target's tokenizer"
            )
    one, two = (json.loads(m.tokenizer.to_str()) for m in (target, draft))
    other = [part for part in CUTTING if one.get(part) != two.get(part)]
    if other:
        raise ValueError(
            f"target and draft share a vocabulary but cut text differently: {', '.join(other)} of their tokenizers "
            "differ; choose a draft trained with the target's tokenizer"
        )
