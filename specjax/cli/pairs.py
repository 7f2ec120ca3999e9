"""From names on a command line to models, drafters, verifiers and prompts."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any, NamedTuple

import specjax
from specjax.benchmarks import prompts as prompt_files
from specjax.benchmarks import random_pair
from specjax.benchmarks.drafters import Entry, Target
from specjax.benchmarks.subject import Subject
from specjax.checkpoints import LoadedHead, LoadedModel
from specjax.cli import proposers
from specjax.cli.options import DrafterName, VerifierName
from specjax.cli.proposers import Wanted


class Pair(NamedTuple):
    """A target and the draft model or head that drafts for it, if one does; as they are loaded."""

    target_name: str
    target: LoadedModel
    draft_name: str = ""
    draft: LoadedModel | LoadedHead | None = None


@dataclasses.dataclass(frozen=True)
class Job:
    """One prompt, and how it is to be continued.

    Attributes:
      model, params: the target.
      prompt: token ids.
      drafter: None for plain decoding.
      draft_params: of the drafter's model, if it has one.
      verifier: None chooses.
      sampling: how tokens are drawn.
      max_new_tokens: the budget.
      eos_ids: what ends the text.
    """

    model: specjax.Model
    params: Any
    prompt: list[int]
    drafter: specjax.Drafter | None
    draft_params: Any
    verifier: specjax.Verifier | None
    sampling: specjax.Sampling
    max_new_tokens: int
    eos_ids: tuple[int, ...]

    @property
    def request(self) -> dict[str, Any]:
        """What is asked for, without models and prompt."""
        return {"sampling": self.sampling, "max_new_tokens": self.max_new_tokens, "eos_ids": self.eos_ids}

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of `specjax.generate` and `specjax.stream`."""
        return {
            "model": self.model, "params": self.params, "prompts": [self.prompt], "drafter": self.drafter,
            "draft_params": self.draft_params, "verifier": self.verifier, **self.request,
        }

    @property
    def plain(self) -> Job:
        """The same without a drafter."""
        return dataclasses.replace(self, drafter=None, draft_params=None, verifier=None)


def load_pair(target: str, draft: str | None, wanted: Wanted) -> Pair:
    """Load what is needed.

    Raises:
      ValueError: if there is no draft to use, or it does not go with the target.
    """
    loaded = specjax.load(target)
    return Pair(target, loaded, draft or "", proposers.load_for(wanted, target, loaded, draft))


def prompt_ids(model: LoadedModel, text: str, chat: bool) -> list[int]:
    """The tokens of a text to be continued or, with `chat`, of a message to be answered.

    Raises:
      ValueError: if there are none, or the model has no chat template.
    """
    ids = model.chat_ids(text) if chat else model.tokenizer.encode(text).ids
    if not ids:
        raise ValueError("the prompt is empty and this tokenizer adds no token of its own: give some text")
    return ids


def make_job(
    pair: Pair, prompt: str, wanted: Wanted, *, verifier: VerifierName, max_new_tokens: int, seed: int,
    chat: bool = False, **sampling: Any,
) -> Job:
    """A job for one prompt; the remaining keywords are fields of `specjax.Sampling`."""
    ids = prompt_ids(pair.target, prompt, chat)
    drafter, params = proposers.make_drafter(wanted, pair.target, pair.draft)
    return Job(pair.target.model, pair.target.params, ids, drafter, params, proposers.make_verifier(verifier),
               specjax.Sampling(seed=seed, **sampling), max_new_tokens, pair.target.eos_ids)


def bench_subject(
    pair: Pair, path: pathlib.Path | None, *, chat: bool = False, per_category: int | None = None,
    limit: int | None = None,
) -> Subject:
    """A pair with the prompts of a file, or with the built-in ones."""
    if not isinstance(pair.draft, LoadedModel):
        raise ValueError("the benchmark needs a draft model")
    chosen, ids = _prompts(pair.target, path, chat, per_category, limit)
    name = pair.draft_name or proposers.DRAFT_OF[pair.target_name]
    return Subject(pair.target_name, pair.target.model, pair.target.params, name, pair.draft.model,
                   pair.draft.params, ids, pair.target.eos_ids, [prompt.category for prompt in chosen])


def bench_drafters(
    target: str, text: str, wanted: dict[str, Any], path: pathlib.Path | None, *, chat: bool, per_category: int | None,
    limit: int | None,
) -> tuple[Target, list[Entry]]:
    """A target with prompts, and the drafters named in `text` with weights.

    In `"ngram,eagle:chosen,eagle:hybrid:traversal,eagle3=FOLDER"` a second word is the kind of siblings, a third the
    rule that judges them.

    Raises:
      ValueError: for a name that is none, or a drafter whose weights are missing.
    """
    loaded = specjax.load(target)
    entries: list[Entry] = []
    for word in text.split(","):
        word, _, draft = word.strip().partition("=")
        name, siblings, rule, *more = [*word.split(":"), "", ""]
        if any(more) or rule not in {"", *VerifierName}:
            raise ValueError(f"--drafters takes NAME:SIBLINGS:VERIFIER at most, got {word!r}; verifiers are "
                             f"{', '.join(VerifierName)}")
        if name not in set(DrafterName) - {DrafterName.NONE}:
            raise ValueError(f"--drafters takes names of drafters with commas between them, {name!r} is none: they are "
                             f"{', '.join(one for one in DrafterName if one != DrafterName.NONE)}")
        asked = Wanted(DrafterName(name), siblings=siblings, **proposers.fitting(DrafterName(name), siblings, wanted))
        weights = proposers.load_for(asked, target, loaded, draft or None)
        drafter, params = proposers.make_drafter(asked, loaded, weights)
        if word in [entry.name for entry in entries]:
            raise ValueError(f"--drafters names {word} twice: leave one of them out")
        verifier = proposers.make_verifier(VerifierName(rule or VerifierName.AUTO))
        entries.append(Entry(word, drafter, params, verifier))
    _, ids = _prompts(loaded, path, chat, per_category, limit)
    return Target(target, loaded.model, loaded.params, ids, loaded.eos_ids), entries


def _prompts(
    model: LoadedModel, path: pathlib.Path | None, chat: bool, per_category: int | None, limit: int | None
) -> tuple[list[prompt_files.Prompt], list[list[int]]]:
    """The prompts of a file, or the built-in ones, and their tokens."""
    chosen = prompt_files.first(prompt_files.read(path), per_category=per_category, limit=limit)
    return chosen, [prompt_ids(model, prompt.text, chat) for prompt in chosen]


def random_subject(shape: str, layers: int | None) -> Subject:
    """Random weights of a known shape."""
    if shape not in random_pair.SHAPES:
        raise ValueError(f"--random knows {', '.join(random_pair.SHAPES)}, got {shape}")
    return random_pair.subject(random_pair.SHAPES[shape], layers)


def parse_depths(text: str) -> list[int]:
    """`"3,5"` to `[3, 5]`."""
    try:
        depths = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"-k takes whole numbers with commas between them, such as 3,5, got {text!r}") from None
    if min(depths) < 1:
        raise ValueError(f"-k must be at least 1, got {text!r}; plain decoding is measured anyway")
    return sorted(set(depths))


def parse_temperatures(text: str) -> list[float]:
    """`"0,1"` to `[0.0, 1.0]`."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"--temperatures takes numbers with commas between them, such as 0,1, got {text!r}") from None
