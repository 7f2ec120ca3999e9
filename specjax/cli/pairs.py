"""From names on a command line to models, drafters, verifiers and prompts."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any, NamedTuple

import specjax
from specjax.benchmarks import prompts as prompt_files
from specjax.benchmarks import random_pair
from specjax.benchmarks.subject import Subject
from specjax.checkpoints import LoadedModel, check_same_tokenizer
from specjax.cli.options import DrafterName, VerifierName

DRAFT_OF = {"tiny-python": "tiny-python-draft"}


class Pair(NamedTuple):
    """A target and, if a model drafts for it, that model; each as `specjax.load` returns it."""

    target_name: str
    target: LoadedModel
    draft_name: str = ""
    draft: LoadedModel | None = None


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


def load_pair(target: str, draft: str | None, drafter: DrafterName) -> Pair:
    """Load what is needed.

    Raises:
      ValueError: if there is no draft model to use, or its tokenizer is not the target's.
    """
    if drafter != DrafterName.MODEL:
        if draft is not None:
            raise ValueError(f"--draft {draft} names a model, but --drafter {drafter} uses none: leave one of them out")
        return Pair(target, specjax.load(target))
    draft = DRAFT_OF.get(target) if draft is None else draft
    if draft is None:
        raise ValueError(f"no draft model is known for {target}: name one with --draft, or use --drafter ngram "
                         "(look-up, needs no model) or --drafter none")
    loaded = specjax.load(target), specjax.load(draft)
    check_same_tokenizer(*loaded)
    return Pair(target, loaded[0], draft, loaded[1])


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
    pair: Pair, prompt: str, *, drafter: DrafterName, verifier: VerifierName, num_speculative_tokens: int,
    max_new_tokens: int, seed: int, chat: bool = False, **sampling: Any,
) -> Job:
    """A job for one prompt; the remaining keywords are fields of `specjax.Sampling`."""
    ids = prompt_ids(pair.target, prompt, chat)
    proposer = None
    if pair.draft is not None:
        proposer = specjax.draft.from_model(pair.draft.model, num_speculative_tokens)
    elif drafter == DrafterName.NGRAM:
        proposer = specjax.draft.ngram(num_speculative_tokens)
    rules = {"match": specjax.verify.match, "rejection": specjax.verify.rejection, "block": specjax.verify.block}
    return Job(
        pair.target.model, pair.target.params, ids, proposer, None if pair.draft is None else pair.draft.params,
        None if verifier == VerifierName.AUTO else rules[verifier](), specjax.Sampling(seed=seed, **sampling),
        max_new_tokens, pair.target.eos_ids)


def bench_subject(
    pair: Pair, path: pathlib.Path | None, *, chat: bool = False, per_category: int | None = None,
    limit: int | None = None,
) -> Subject:
    """A pair with the prompts of a file, or with the built-in ones."""
    if pair.draft is None:
        raise ValueError("the benchmark needs a draft model")
    chosen = prompt_files.first(prompt_files.read(path), per_category=per_category, limit=limit)
    ids = [prompt_ids(pair.target, prompt.text, chat) for prompt in chosen]
    return Subject(pair.target_name, pair.target.model, pair.target.params, pair.draft_name, pair.draft.model,
                   pair.draft.params, ids, pair.target.eos_ids, [prompt.category for prompt in chosen])


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
