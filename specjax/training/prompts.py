"""What a target is asked, so that it answers: invented function headers, instructions by template, or a file of texts.

A source is a pure function of a chunk's number, so that a run which is killed writes the same chunks when it resumes.
Prompts of held-out chunks are kept apart from those of training, by the module they come from or by a hash.
"""

from __future__ import annotations

import hashlib
import json
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from specjax.training import corpus, instructions

HELD_OUT_ONE_IN = 20
TRIES = 20  # texts drawn for each one wanted, at most, before a source counts as too small or its texts as too long

Texts = Callable[[int, int], Iterator[str]]


class Prompts(NamedTuple):
    """A source of prompts.

    Attributes:
      training: `(number of a chunk, number of chunks) -> texts`; no end, or the chunk's share of all there are.
      held_out: the same for chunks that are kept for evaluation; shares no text with `training`.
      chat: whether a text is a user's message, to be put through the target's chat template.
    """

    training: Texts
    held_out: Texts
    chat: bool


def source(name: str, chat: bool, seed: int) -> Prompts:
    """The source of a name: `headers`, `instructions`, or the path of a file with a prompt a line.

    A line of a `.jsonl` file is `{"prompt": text}` or `{"turns": [text, ..]}`, of which the first turn counts. A file's
    lines are taken once each, in an order drawn from `seed`; the other sources never end.

    Args:
      name: which one.
      chat: put texts through the target's chat template; `headers` are never messages, `instructions` always.
      seed: of the draws.

    Raises:
      ValueError: if `name` is neither a source nor a file, `chat` does not go with it, or a line is no prompt.
    """
    if name == "headers":
        if chat:
            raise ValueError("prompts 'headers' are code to go on with, not messages: set chat to false")
        return header_prompts(seed)
    if name == "instructions":
        return Prompts(
            lambda number, chunks: _split(instructions.drawn((seed, 0, number)), held_out=False),
            lambda number, chunks: _split(instructions.drawn((seed, 1, number)), held_out=True), True)
    path = pathlib.Path(name)
    if not path.is_file():
        raise ValueError(f"prompts {name!r}: there is no such file, and no source of that name (headers, instructions)")
    return file_prompts(path, chat, seed)


def file_prompts(path: pathlib.Path, chat: bool, seed: int) -> Prompts:
    """The distinct texts of a file, shuffled; one in twenty is held out."""
    texts = list(dict.fromkeys(_lines(path)))
    order = np.random.default_rng(seed).permutation(len(texts))
    parts = {held: [texts[i] for i in order if is_held_out(texts[i]) == held] for held in (False, True)}
    return Prompts(
        lambda number, chunks: _share(parts[False], number, chunks),
        lambda number, chunks: _share(parts[True], number, chunks), chat)


def header_prompts(seed: int) -> Prompts:
    """Headers invented from those of the standard library's functions; held out are real ones of held-out modules.

    Below headers that it was trained on, a target recites; below new ones it writes as it will in use.
    """
    modules = corpus.standard_library()
    known = {f.header for m in modules if not m.held_out for f in corpus.functions(m)}
    kept_apart = {f.header for m in modules if m.held_out for f in corpus.functions(m)} - known
    headers = sorted(h for h in known if "\n" not in h)
    fresh = [f.header for f in corpus.held_out_headers(modules, len(kept_apart))]

    def training(number: int, chunks: int) -> Iterator[str]:
        rng = np.random.default_rng((seed, number))
        while True:
            yield from (h for h in invented_headers(headers, 256, rng) if h not in kept_apart)

    return Prompts(training, lambda number, chunks: _share(fresh, number, chunks), False)


def invented_headers(headers: Sequence[str], count: int, rng: np.random.Generator) -> list[str]:
    """`count` headers with the name of one and the arguments of another of the given one-line headers."""
    names, arguments = (rng.integers(len(headers), size=count) for _ in range(2))
    split = [header.partition("(") for header in headers]
    return [f"{split[i][0]}({split[j][2]}" for i, j in zip(names, arguments, strict=True)]


def is_held_out(text: str) -> bool:
    """Whether a text is kept from training; depends on the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % HELD_OUT_ONE_IN == 0


def fitting(
    texts: Iterator[str], encode: Callable[[str], list[int]], rows: int, width: int, what: str
) -> list[list[int]]:
    """The token ids of the first `rows` texts that have at most `width` tokens.

    Raises:
      ValueError: if there are not so many; `what` says in which chunk.
    """
    found: list[list[int]] = []
    seen = 0
    for text in texts:
        ids = encode(text)
        seen += 1
        if 0 < len(ids) <= width:
            found.append(ids)
        if len(found) == rows:
            return found
        if seen == TRIES * rows:
            break
    raise ValueError(
        f"{what} needs {rows} prompts of at most {width} tokens, but only {len(found)} of the {seen} at hand are: ask "
        "for fewer chunks or rows, give more prompts, or raise prompt_tokens"
    )


def _share(texts: Sequence[str], number: int, chunks: int) -> Iterator[str]:
    return iter(texts[number::chunks])


def _split(texts: Iterator[str], held_out: bool) -> Iterator[str]:
    return (text for text in texts if is_held_out(text) == held_out)


def _lines(path: pathlib.Path) -> Iterator[str]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        if path.suffix != ".jsonl":
            yield line
            continue
        try:
            entry = json.loads(line)
            text = entry["prompt"] if "prompt" in entry else entry["turns"][0]
            if not isinstance(text, str) or not text:
                raise TypeError
        except (json.JSONDecodeError, KeyError, IndexError, TypeError):
            raise ValueError(f"{path}, line {number}: expected {{\"prompt\": text}} or {{\"turns\": [text, ..]}}, got "
                             f"{line[:60]!r}") from None
        yield text
