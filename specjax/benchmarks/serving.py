"""Tokens a second of the engine beside static batches of the same work: `python -m specjax.benchmarks.serving`.

The embedded pair continues headers of functions, greedily. A static batch is one call of `specjax.generate` on as many
requests as the engine has rows, again and again until all are done: each waits for the longest of its batch. The engine
gets all requests at once and fills rows as they become free. Both write the same texts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import specjax
from specjax._src.request import bucket
from specjax.benchmarks import progress, prompts, record
from specjax.benchmarks.timing import in_turns
from specjax.serving import Engine

SLOTS = (1, 2, 4, 8, 16)
ENGINE, STATIC = "engine", "static"


class Work(NamedTuple):
    """What is to be written, and by whom.

    Attributes:
      target, draft: as loaded; None for plain decoding.
      drafter: None for plain decoding.
      prompts: token ids of each request.
      max_new_tokens: budget of each.
      rounds_per_step: of the engine.
    """

    target: Any
    draft: Any
    drafter: specjax.Drafter | None
    prompts: list[list[int]]
    max_new_tokens: int
    rounds_per_step: int

    @property
    def width(self) -> int:
        """The padded length that all prompts share."""
        return bucket(max(len(prompt) for prompt in self.prompts))

    @property
    def capacity(self) -> int:
        """Tokens of a row."""
        return self.width + self.max_new_tokens

    @property
    def draft_params(self) -> Any:
        """Of the drafter."""
        return None if self.drafter is None else self.draft.params


Texts = dict[int, list[int]]


def static_batches(work: Work, slots: int) -> Texts:
    """All texts, by number, in batches of `slots`."""
    texts: Texts = {}
    for first in range(0, len(work.prompts), slots):
        batch = work.prompts[first : first + slots]
        batch = batch + batch[:1] * (slots - len(batch))
        padded = np.zeros((slots, work.width), np.int32)
        for row, prompt in enumerate(batch):
            padded[row, : len(prompt)] = prompt
        out = specjax.generate(
            work.target.model, work.target.params, padded, lengths=np.array([len(prompt) for prompt in batch]),
            drafter=work.drafter, draft_params=work.draft_params, max_new_tokens=work.max_new_tokens,
            eos_ids=work.target.eos_ids)
        tokens, lengths = jax.device_get((out.tokens, out.lengths))
        for row in range(min(slots, len(work.prompts) - first)):
            texts[first + row] = tokens[row, : lengths[row]].tolist()
    return texts


def make_engine(work: Work, slots: int) -> Engine:
    """An engine for the work, warm."""
    engine = Engine(
        work.target.model, work.target.params, work.drafter, work.draft_params, slots=slots, capacity=work.capacity,
        max_new_tokens=work.max_new_tokens, max_queue=len(work.prompts), rounds_per_step=work.rounds_per_step)
    engine.warm_up()
    return engine


def served(work: Work, engine: Engine) -> Texts:
    """All texts, by number, from an idle engine."""
    first: int | None = None
    for prompt in work.prompts:
        number = engine.submit(prompt, eos_ids=work.target.eos_ids)
        first = number if first is None else first
    texts: Texts = {}
    for event in engine.run():
        texts.setdefault(event.id - (first or 0), []).extend(event.tokens)
    return texts


def measure(requests: int, max_new_tokens: int, depth: int, rounds_per_step: int, repeats: int,
            command: str) -> dict[str, Any]:
    """Throughput of both ways for each number of rows, with a draft model of `depth` tokens and without."""
    target, draft = specjax.load("tiny-python"), specjax.load("tiny-python-draft")
    headers = [target.tokenizer.encode(prompt.text).ids for prompt in prompts.read()]
    chosen = [headers[number % len(headers)] for number in range(requests)]
    drafters = {"plain": None, f"from_model({depth})": specjax.draft.from_model(draft.model, depth)}
    rows: list[dict[str, Any]] = []
    with progress.shown() as stage:
        tell = stage("engine and static batches", len(drafters) * len(SLOTS))
        for name, drafter in drafters.items():
            work = Work(target, draft, drafter, chosen, max_new_tokens, rounds_per_step)
            for slots in SLOTS:
                rows.append({"drafter": name, "slots": slots} | compare(work, slots, repeats))
                tell()
    for row in rows:
        alone = next(one for one in rows if one["drafter"] == row["drafter"] and one["slots"] == 1)
        row["over_one_slot"] = row["engine_tokens_per_second"] / alone["engine_tokens_per_second"]
    return {
        "environment": record.environment(command),
        "settings": {"target": "tiny-python", "draft": "tiny-python-draft", "requests": requests,
                     "max_new_tokens": max_new_tokens, "depth": depth, "rounds_per_step": rounds_per_step,
                     "repeats": repeats, "temperature": 0.0},
        "rows": rows}


def compare(work: Work, slots: int, repeats: int) -> dict[str, Any]:
    """Both ways in turns."""
    engine, texts = make_engine(work, slots), {}

    def clock(name: str, write: Callable[[], Texts]) -> Callable[[], float]:
        def timed() -> float:
            began = time.perf_counter()
            texts[name] = write()
            return time.perf_counter() - began

        return timed

    seconds = in_turns({ENGINE: clock(ENGINE, lambda: served(work, engine)),
                        STATIC: clock(STATIC, lambda: static_batches(work, slots))}, repeats)
    tokens = sum(len(text) for text in texts[STATIC].values())
    middle = {name: statistics.median(taken) for name, taken in seconds.items()}
    return {
        "tokens": tokens,
        "equal_texts": sum(texts[ENGINE][number] == text for number, text in texts[STATIC].items()),
        "engine_tokens_per_second": tokens / middle[ENGINE],
        "static_tokens_per_second": tokens / middle[STATIC],
        "engine_over_static": statistics.median(
            b / a for a, b in zip(seconds[ENGINE], seconds[STATIC], strict=True)),
        "seconds": seconds}


def main() -> None:
    """Command line."""
    numbers = {"requests": 64, "max_new_tokens": 96, "depth": 4, "rounds_per_step": 16, "repeats": 3}
    result = record.script("serving", __doc__, numbers, measure)
    table = Table("drafter", "slots", "engine tok/s", "static tok/s", "engine / static", "over one slot")
    for row in result["rows"]:
        table.add_row(
            row["drafter"], str(row["slots"]), f"{row['engine_tokens_per_second']:.0f}",
            f"{row['static_tokens_per_second']:.0f}", f"{row['engine_over_static']:.2f}", f"{row['over_one_slot']:.2f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
