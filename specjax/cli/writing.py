"""Write text as it comes, then say what happened."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable

import jax
import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

import specjax
from specjax._src import decode
from specjax.cli.pairs import Job

REPEATS = 5  # of each way of decoding, under --compare


class TextStream:
    """Text from token ids, given piece by piece and in whole characters only."""

    def __init__(self, tokenizer: Tokenizer, prompt: list[int]) -> None:
        """Begin behind `prompt`, whose text is not repeated."""
        self._tokenizer = tokenizer
        self._stream = DecodeStream(prompt, skip_special_tokens=True)

    def push(self, tokens: Iterable[int]) -> str:
        """The text that `tokens` complete; the bytes of an unfinished character are held back."""
        return "".join(self._stream.step(self._tokenizer, int(token)) or "" for token in tokens)


def write(tokenizer: Tokenizer, prompt: str, job: Job, *, compare: bool) -> None:
    """Stream a continuation of `prompt` to the terminal, then print the record; with `compare`, time plain decoding."""
    if compare and job.drafter is None:
        raise ValueError("--compare sets plain decoding against a drafter, but --drafter none uses none")
    console = Console(highlight=False)
    status = Console(stderr=True, highlight=False)
    with status.status("compiling"):
        compile_seconds = warm_up(job)
    result, seconds = stream_text(tokenizer, prompt, job)
    console.print(record(job, result, seconds, compile_seconds))
    if compare:
        with status.status("timing plain and speculative decoding in turns"):
            lines = comparison(job)
        console.print(lines)


def warm_up(job: Job) -> float:
    """Compile what streaming this job needs; the seconds it took."""
    began = time.perf_counter()
    # One token again and again, as long as the prompt, so that look-up finds something to propose.
    arguments = job.arguments | {"prompts": [job.prompt[:1] * len(job.prompt)]}
    for rung in decode.ladder(job.drafter or specjax.draft.null()):
        depth = rung.shape.num_speculative_tokens
        rounds = specjax.stream(**arguments, num_speculative_tokens=depth, limits=min(job.max_new_tokens, depth + 2))
        next(rounds)
    for _ in rounds:
        pass  # to the end, for the program that reads out the result
    return time.perf_counter() - began


def stream_text(tokenizer: Tokenizer, prompt: str, job: Job) -> tuple[specjax.Generation, float]:
    """Print the text while it is written; what came out, and the seconds from the request to the last token."""
    typer.secho(prompt, bold=True, nl=False)  # as it is: rich would read `:name:` as a picture
    text = TextStream(tokenizer, job.prompt)
    began = time.perf_counter()
    rounds = specjax.stream(**job.arguments)
    while True:
        try:
            tokens, counts = next(rounds)
        except StopIteration as stop:
            result = stop.value
            break
        typer.echo(text.push(np.asarray(tokens)[0, : int(counts[0])]), nl=False)
    seconds = time.perf_counter() - began
    typer.echo("\n")
    return result, seconds


def record(job: Job, result: specjax.Generation, seconds: float, compile_seconds: float) -> Table:
    """What the rounds did, as a table of two columns."""
    stats, tokens = result.stats, int(result.lengths[0])
    reason = specjax.FinishReason(int(result.finish_reason[0])).name.lower()
    table = Table.grid(padding=(0, 2))
    table.add_row("tokens", f"{tokens} (ended by {reason})")
    table.add_row("rounds", str(int(stats.rounds[0])))
    if job.drafter is not None:
        table.add_row("drafted", str(int(stats.drafted[0])))
        table.add_row("accepted", str(int(stats.accepted[0])))
        table.add_row("mean accepted length", f"{float(stats.mean_accepted_length[0]):.2f} tokens a round, with the "
                                              "target's own")
    table.add_row("tokens per second", f"{tokens / seconds:.1f} (streamed, prompt included, compilation not)")
    table.add_row("compilation", f"{compile_seconds:.1f} s")
    return table


def comparison(job: Job) -> Table:
    """Plain against speculative decoding, each as one program, timed in turns; medians."""
    ways: dict[str, Job] = {"plain": job.plain, "speculative": job}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    results = {name: timed(way)[0] for name, way in ways.items()}  # warm-up: compiles
    for _ in range(REPEATS):
        for name, way in ways.items():
            results[name], took = timed(way)
            seconds[name].append(took)
    rates = {name: int(results[name].lengths[0]) / statistics.median(seconds[name]) for name in ways}
    table = Table.grid(padding=(0, 2))
    for name, rate in rates.items():
        table.add_row(name, f"{rate:.1f} tokens per second (whole program, median of {REPEATS})")
    table.add_row("ratio", f"{rates['speculative'] / rates['plain']:.2f}")
    table.add_row("text", verdict(job, results["plain"], results["speculative"]))
    return table


def timed(job: Job) -> tuple[specjax.Generation, float]:
    """One whole generation and its seconds."""
    began = time.perf_counter()
    result = jax.block_until_ready(specjax.generate(**job.arguments))
    return result, time.perf_counter() - began


def verdict(job: Job, plain: specjax.Generation, speculative: specjax.Generation) -> str:
    """Whether the two texts are equal, and whether they have to be."""
    first, second = (np.asarray(one.tokens)[0, : int(one.lengths[0])] for one in (plain, speculative))
    same = first.shape == second.shape and bool(np.all(first == second))
    if float(job.sampling.temperature) == 0.0:
        where = "" if same else f"; first difference at token {_first_difference(first, second)}"
        return ("equal to plain decoding, token for token" if same else "NOT equal to plain decoding") + where
    if same:
        return "equal to plain decoding, token for token"
    return "another draw from the same law (only --verifier match promises the same text)"


def _first_difference(first: np.ndarray, second: np.ndarray) -> int:
    shared = min(len(first), len(second))
    differs = np.flatnonzero(first[:shared] != second[:shared])
    return int(differs[0]) if differs.size else shared
