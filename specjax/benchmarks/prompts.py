"""Prompts: a JSONL file of the common form, or the built-in function headers."""

from __future__ import annotations

import collections
import importlib.resources
import json
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

BUILT_IN = "python_headers.jsonl"


class Prompt(NamedTuple):
    """A text to continue, and the kind of task it is (empty where the file names none)."""

    text: str
    category: str


def read(path: pathlib.Path | None = None) -> list[Prompt]:
    """The first turn of each line `{"question_id", "category", "turns": [...]}`; `category` may be absent.

    Args:
      path: None reads the built-in set: headers of functions that the embedded pair was not trained on.

    Raises:
      ValueError: naming the line, if one is not of this form; if there is none.
    """
    file = importlib.resources.files("specjax.benchmarks") / BUILT_IN if path is None else path
    prompts = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            prompts.append(_prompt(json.loads(line)))
        except (json.JSONDecodeError, KeyError, IndexError, TypeError) as error:
            raise ValueError(f"{file.name}, line {number}: expected a JSON object with a non-empty list `turns` of "
                             f"texts and perhaps a text `category`, got {line[:60]!r} ({type(error).__name__})"
                             ) from None
    if not prompts:
        raise ValueError(f"{file.name} holds no prompt")
    return prompts


def first(prompts: Sequence[Prompt], *, per_category: int | None = None, limit: int | None = None) -> list[Prompt]:
    """The first `per_category` prompts of each category, and of these the first `limit`; None takes all."""
    seen: collections.Counter[str] = collections.Counter()
    chosen = []
    for prompt in prompts:
        seen[prompt.category] += 1
        if per_category is None or seen[prompt.category] <= per_category:
            chosen.append(prompt)
    return chosen[:limit]


def _prompt(entry: dict[str, Any]) -> Prompt:
    prompt = Prompt(entry["turns"][0], entry.get("category", ""))
    if isinstance(entry["turns"], str) or not all(isinstance(value, str) for value in prompt):
        raise TypeError
    return prompt
