"""A target's own answers, written in batches by `specjax.generate` and kept on disk in chunks.

A drafter that has only seen human text meets, in use, the target's own; so it learns from that (on-policy distillation
in the manner of DistillSpec, arXiv:2310.08461; EAGLE-3 and Medusa do the same). Some rows are greedy, others sampled.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import zipfile
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import specjax
from specjax.benchmarks.progress import Stage
from specjax.checkpoints import LoadedModel, check_same_tokenizer
from specjax.training.data import ragged
from specjax.training.prompts import Prompts, Texts, fitting, source

TRAINING, HELD_OUT, SETTINGS = "training", "held_out", "answers.json"
SAMPLED = 256  # numbers of an array that go into a fingerprint


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Rows that a target wrote.

    Attributes:
      tokens: int32 [B, W], prompt and answer without a gap, then zeros.
      start: int32 [B], prompt lengths.
      length: int32 [B], answer lengths, the end-of-text included.
      temperature: float32 [B]; 0 is greedy.
    """

    tokens: np.ndarray
    start: np.ndarray
    length: np.ndarray
    temperature: np.ndarray


@dataclasses.dataclass(frozen=True)
class AnswerSettings:
    """What a target is asked, and how much it writes.

    Attributes:
      prompts: a source of `specjax.training.prompts`: `headers`, `instructions` or a file.
      chat: put the prompts of a file through the target's chat template.
      chunks: files of rows for training.
      held_out_chunks: files of rows for evaluation.
      rows: rows in a file, written at a time.
      temperatures: row `i` of a file has the `i`-th of these, in turn.
      prompt_tokens: longest prompt; longer ones are left out.
      new_tokens: longest answer.
      draft: a model that drafts while the target writes, by name or folder; "" for plain decoding. The text's law is
        the same either way.
      seed: of prompts and draws.
    """

    prompts: str
    chunks: int
    chat: bool = False
    held_out_chunks: int = 1
    rows: int = 256
    temperatures: tuple[float, ...] = (0.0, 1.0)
    prompt_tokens: int = 32
    new_tokens: int = 160
    draft: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("chunks", "held_out_chunks", "rows", "prompt_tokens", "new_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.temperatures or not all(value >= 0 for value in self.temperatures):
            raise ValueError(f"temperatures must be 0 or more, one at the least, got {list(self.temperatures)}")


def write_answers(folder: pathlib.Path, settings: AnswerSettings, target: LoadedModel, stage: Stage) -> None:
    """Fill `folder` with chunks `training/00000.npz ..` and `held_out/00000.npz ..`; those that are there stay.

    A run that is killed leaves whole chunks, and the next one goes on: with the same settings it writes what the first
    would have written. Of prompts that never end another number of chunks may be asked for than before; any other
    change is refused.

    Args:
      folder: made if it is missing.
      settings: see `AnswerSettings`.
      target: who writes.
      stage: shows how far it has come (`specjax.benchmarks.progress.shown`).

    Raises:
      ValueError: if the folder holds answers to other settings or of another target, or there are too few prompts.
    """
    _claim(folder, settings, target)
    prompts = source(settings.prompts, settings.chat, settings.seed)
    generate = _writer(settings, target)
    for part, texts, chunks in (
        (HELD_OUT, prompts.held_out, settings.held_out_chunks), (TRAINING, prompts.training, settings.chunks)):
        (folder / part).mkdir(exist_ok=True)
        missing = [number for number in range(chunks) if not _path(folder / part, number).exists()]
        if missing:
            tell = stage(f"answers for {part.replace('_', ' ')}", len(missing))
        for number in missing:
            rows = _prompt_ids(settings, target, prompts, texts, number, chunks, part)
            _save(_path(folder / part, number), generate(rows, jax.random.key(_seed(settings.seed, part, number))))
            tell()


def read_answers(folder: pathlib.Path, part: str, chunks: int) -> list[Chunk]:
    """The first `chunks` chunks of a part, `training` or `held_out`.

    Raises:
      ValueError: if there are fewer, or one is damaged.
    """
    paths = [_path(folder / part, number) for number in range(chunks)]
    if missing := [path for path in paths if not path.exists()]:
        raise ValueError(f"{folder / part} holds {chunks - len(missing)} of {chunks} chunks of answers; let the target "
                         "write the others first (specjax train does)")
    return [_read(path) for path in paths]


def fingerprint(params: Any) -> str:
    """A digest of weights that tells one model from another: names, shapes, and some numbers of each array.

    It is the same on every device, and for weights that were stored in bfloat16 and loaded as float32.
    """
    digest = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        sample = leaf.reshape(-1)[:: max(1, leaf.size // SAMPLED)]
        digest.update(f"{jax.tree_util.keystr(path)} {leaf.shape}\n".encode())
        digest.update(np.asarray(sample, np.float32).tobytes())
    return digest.hexdigest()[:16]


def _writer(settings: AnswerSettings, target: LoadedModel) -> Callable[..., Chunk]:
    temperature = np.resize(np.array(settings.temperatures, np.float32), settings.rows)
    drafter, draft_params = None, None
    if settings.draft:
        draft = specjax.load(settings.draft)
        check_same_tokenizer(target, draft)
        drafter, draft_params = specjax.draft.from_model(draft.model, 5), draft.params

    def write(prompts: list[list[int]], key: Any) -> Chunk:
        tokens, start = ragged(prompts, settings.prompt_tokens)
        made = specjax.generate(
            target.model, target.params, jnp.asarray(tokens), lengths=jnp.asarray(start), drafter=drafter,
            draft_params=draft_params, sampling=specjax.Sampling(temperature=temperature), key=key,
            max_new_tokens=settings.new_tokens, eos_ids=target.eos_ids)
        length = np.asarray(made.lengths, np.int32)
        answers = np.asarray(made.tokens)
        rows = [[*prompt, *answer[:n]] for prompt, answer, n in zip(prompts, answers, length, strict=True)]
        return Chunk(ragged(rows, settings.prompt_tokens + settings.new_tokens)[0], start, length, temperature)

    return write


def _prompt_ids(
    settings: AnswerSettings, target: LoadedModel, prompts: Prompts, texts: Texts, number: int, chunks: int, part: str
) -> list[list[int]]:
    def encode(text: str) -> list[int]:
        return target.chat_ids(text) if prompts.chat else target.tokenizer.encode(text).ids

    what = f"chunk {number} of the answers for {part.replace('_', ' ')}"
    return fitting(texts(number, chunks), encode, settings.rows, settings.prompt_tokens, what)


def _seed(seed: int, part: str, number: int) -> int:
    return int(np.random.SeedSequence((seed, part == HELD_OUT, number)).generate_state(1)[0])


def _claim(folder: pathlib.Path, settings: AnswerSettings, target: LoadedModel) -> None:
    """Write down whose answers these are, or compare with what is written."""
    said = dataclasses.asdict(settings) | {"target": fingerprint(target.params)}
    said = json.loads(json.dumps(said))
    path = folder / SETTINGS
    if path.exists():
        found = json.loads(path.read_text())
        # A part without end is the same however much is taken of it; held-out headers are shared among their chunks.
        free = {"instructions": ("chunks", "held_out_chunks"), "headers": ("chunks",)}.get(settings.prompts, ())
        other = [name for name in said if name not in free and found.get(name) != said[name]]
        if other:
            differ = ", ".join(f"{name} {found.get(name)!r} (now {said[name]!r})" for name in other)
            raise ValueError(f"the answers in {folder} were written with other settings: {differ}; choose another "
                             "folder, or remove this one")
        return
    folder.mkdir(parents=True, exist_ok=True)
    _renamed(path, lambda file: file.write(json.dumps(said, indent=1).encode()))


def _path(folder: pathlib.Path, number: int) -> pathlib.Path:
    return folder / f"{number:05d}.npz"


def _save(path: pathlib.Path, chunk: Chunk) -> None:
    _renamed(path, lambda file: np.savez(file, **vars(chunk)))


def _renamed(path: pathlib.Path, write: Callable[[Any], Any]) -> None:
    """Write beside `path` and rename when whole: a file cut off half-way must not be taken for one."""
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("wb") as file:
        write(file)
    os.replace(unfinished, path)


def _read(path: pathlib.Path) -> Chunk:
    try:
        with np.load(path) as arrays:
            return Chunk(**arrays)
    except (OSError, EOFError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is no whole chunk ({error}): delete it, and it is written again") from error
