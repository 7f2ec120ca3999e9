"""Prompts: a JSONL file of the common form, or the built-in function headers."""

from __future__ import annotations

import importlib.resources
import json
import pathlib

BUILT_IN = "python_headers.jsonl"


def read(path: pathlib.Path | None = None) -> list[str]:
    """The first turn of each line `{"question_id", "category", "turns": [...]}`.

    Args:
      path: None reads the built-in set: headers of functions that the embedded pair was not trained on.

    Raises:
      ValueError: naming the line, if one is not of this form; if there is none.
    """
    file = importlib.resources.files("specjax.benchmarks") / BUILT_IN if path is None else path
    texts = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            texts.append(_first_turn(json.loads(line)))
        except (json.JSONDecodeError, KeyError, IndexError, TypeError) as error:
            raise ValueError(f"{file.name}, line {number}: expected a JSON object with a non-empty list `turns` of "
                             f"texts, got {line[:60]!r} ({type(error).__name__})") from None
    if not texts:
        raise ValueError(f"{file.name} holds no prompt")
    return texts


def _first_turn(entry: dict[str, list[str]]) -> str:
    text = entry["turns"][0]
    if not isinstance(text, str):
        raise TypeError
    return text
