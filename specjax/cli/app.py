"""Commands and their options; what they need is imported when they run, so that `--help` and `--version` are quick."""

from __future__ import annotations

import functools
import pathlib
import shlex
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer

import specjax
from specjax.cli.options import (
    Draft,
    DrafterName,
    DrafterOption,
    MaxNewTokens,
    NumNodes,
    PeerName,
    Seed,
    SiblingsOption,
    Target,
    Temperature,
    TopP,
    TrainKind,
    VerifierName,
    VerifierOption,
)

app = typer.Typer(
    name="specjax",
    help="Exact speculative decoding in JAX.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """Entry point of the `specjax` command."""
    app(prog_name="specjax")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"specjax {specjax.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Exact speculative decoding in JAX."""
    del version  # its callback has acted


def user_errors(command: Callable[..., None]) -> Callable[..., None]:
    """Show what a user can mend as one message with exit code 2; everything else keeps its traceback."""

    @functools.wraps(command)
    def guarded(*args: Any, **kwargs: Any) -> None:
        try:
            command(*args, **kwargs)
        except (ValueError, OSError) as error:
            if isinstance(error, ValueError) and not _said_by_us(error):
                raise
            typer.secho(f"specjax: error: {error}", err=True, fg=typer.colors.RED)
            raise typer.Exit(2) from None

    return guarded


def _said_by_us(error: BaseException) -> bool:
    """Whether the message was written here for users, not in the depths of another library."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "specjax"


@app.command()
@user_errors
def generate(
    prompt: Annotated[str, typer.Argument(help="The text to continue; with --chat, the message to answer.")],
    target: Target = "tiny-python",
    draft: Draft = None,
    drafter: DrafterOption = DrafterName.MODEL,
    verifier: VerifierOption = VerifierName.AUTO,
    num_speculative_tokens: Annotated[
        int | None,
        typer.Option("--num-speculative-tokens", "-k", min=1, help="Tokens proposed in a round; of a tree, the most it "
                     "may be deep. Default: the drafter's usual number, 5 of a chain."),
    ] = None,
    num_nodes: NumNodes = None,
    siblings: SiblingsOption = None,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest tokens; 0 keeps all.")] = 0,
    min_p: Annotated[float, typer.Option(help="Keep tokens of this share of the largest probability.")] = 0.0,
    seed: Seed = 0,
    chat: Annotated[
        bool, typer.Option("--chat", help="Answer PROMPT as a user's message, by the target's chat template.")
    ] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Also decode plainly, and print the ratio.")] = False,
) -> None:
    """Write a continuation of PROMPT, or an answer to it, then say how the rounds went."""
    from specjax.cli import pairs, programs, proposers, writing

    programs.keep_programs()
    wanted = proposers.Wanted(drafter, num_speculative_tokens, num_nodes, siblings or "")
    pair = pairs.load_pair(target, draft, wanted)
    job = pairs.make_job(
        pair, prompt, wanted, verifier=verifier, max_new_tokens=max_new_tokens, temperature=temperature, top_p=top_p,
        top_k=top_k, min_p=min_p, seed=seed, chat=chat)
    writing.write(pair.target.tokenizer, prompt + "\n" * chat, job, compare=compare)


@app.command()
@user_errors
def bench(
    prompts: Annotated[
        pathlib.Path | None,
        typer.Option(help='JSONL with lines {"question_id", "category", "turns": [...]}. Default: function headers.'),
    ] = None,
    target: Target = "tiny-python",
    draft: Draft = None,
    random: Annotated[
        str | None, typer.Option(help="Measure random weights of this shape instead (llama-0.5b), V = 151936.")
    ] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="With --random: so many layers only.")] = None,
    num_speculative_tokens: Annotated[
        str | None, typer.Option("--num-speculative-tokens", "-k", help="One or more k, such as 3,5,7. Default: 5.")
    ] = None,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    max_new_tokens: MaxNewTokens = 128,
    loop_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of the loops timed without prompt. Default: --max-new-tokens.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Times each thing is measured; medians are reported.")] = 11,
    text_repeats: Annotated[
        int | None, typer.Option(min=1, help="Times each text is written. Default: --repeats.")
    ] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Prompts pass through the target's chat template.")] = False,
    per_category: Annotated[
        int | None, typer.Option(min=1, help="Use only the first prompts of each category.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first prompts.")] = None,
    peer: Annotated[
        PeerName | None, typer.Option(help="Also time this library on the same weights, prompts and k.")
    ] = None,
    drafters: Annotated[
        str | None,
        typer.Option(help="Compare these drafters instead, such as medusa,eagle2,eagle3; NAME:SIBLINGS asks for a kind "
                     "of siblings (eagle:chosen), NAME:SIBLINGS:VERIFIER for a rule too, NAME=FOLDER for other weights "
                     "than those made for the target."),
    ] = None,
    temperatures: Annotated[str, typer.Option(help="With --drafters: one or more, such as 0,1.")] = "0,1",
    num_nodes: NumNodes = None,
    json: Annotated[pathlib.Path | None, typer.Option(help="Write everything measured to this file.")] = None,
) -> None:
    """Measure plain and speculative decoding in one process, interleaved, and compare with what theory predicts."""
    from specjax.benchmarks import run
    from specjax.benchmarks.drafters import bench_drafters
    from specjax.benchmarks.settings import Settings
    from specjax.cli import pairs
    from specjax.cli.proposers import Wanted

    command = "specjax " + shlex.join(sys.argv[1:])
    settings = Settings(
        depths=pairs.parse_depths(num_speculative_tokens or "5"), temperature=temperature, top_p=top_p, seed=seed,
        max_new_tokens=max_new_tokens, loop_tokens=loop_tokens, repeats=repeats, text_repeats=text_repeats,
        peer="" if peer is None else peer.value)
    if drafters is not None:
        alone = {"--draft": draft, "--random": random, "--layers": layers, "--peer": peer, "--temperature": temperature,
                 "--loop-tokens": loop_tokens, "-k with several numbers": len(settings.depths) > 1}
        if given := [name for name, value in alone.items() if value]:
            raise ValueError(f"{', '.join(given)} means nothing beside --drafters: leave it out (weights are named by "
                             "NAME=FOLDER, temperatures by --temperatures)")
        k = None if num_speculative_tokens is None else settings.depths[0]
        measured, entries = pairs.bench_drafters(
            target, drafters, {"num_speculative_tokens": k, "num_nodes": num_nodes}, prompts, chat=chat,
            per_category=per_category, limit=limit)
        bench_drafters(measured, entries, pairs.parse_temperatures(temperatures), settings, command=command, out=json)
        return
    if num_nodes is not None:
        raise ValueError("--num-nodes goes with --drafters only: the other benchmark is of chains")
    if random is not None:
        texts = {"--prompts": prompts, "--chat": chat, "--per-category": per_category, "--limit": limit,
                 "--text-repeats": text_repeats, "--target": target != "tiny-python", "--draft": draft,
                 "--temperature": temperature, "--top-p": top_p != 1.0, "--seed": seed}
        if given := [name for name, value in texts.items() if value]:
            raise ValueError(f"{', '.join(given)} is about checkpoints or texts, and --random has neither: leave one "
                             "of them out")
        subject = pairs.random_subject(random, layers)
    else:
        if layers is not None:
            raise ValueError("--layers goes with --random only: a checkpoint has the layers it has")
        pair = pairs.load_pair(target, draft, Wanted(DrafterName.MODEL))
        subject = pairs.bench_subject(pair, prompts, chat=chat, per_category=per_category, limit=limit)
    run.bench(subject, settings, command=command, out=json)


@app.command()
@user_errors
def convert(
    source: Annotated[
        str,
        typer.Argument(
            help="A Hugging Face folder, hf:OWNER/NAME[@REVISION] or a GGUF file; with --to-hf, a checkpoint."),
    ],
    dest: Annotated[pathlib.Path, typer.Argument(help="The folder to make.")],
    to_hf: Annotated[bool, typer.Option("--to-hf", help="The way back: write a Hugging Face folder.")] = False,
    dtype: Annotated[str | None, typer.Option(help="Cast all weights: float32, bfloat16 or float16.")] = None,
    tokenizer: Annotated[pathlib.Path | None, typer.Option(help="For a GGUF file: a tokenizer.json to use.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace DEST if it exists.")] = False,
    target: Annotated[
        str | None, typer.Option(help="For a draft head: the checkpoint of the model it drafts for, or its name.")
    ] = None,
    tap_convention: Annotated[
        str | None, typer.Option(help="For an EAGLE-3 head: its layers are numbered by boundary or by output.")
    ] = None,
    recycle: Annotated[
        str | None, typer.Option(help="For an EAGLE-3 head: fed back is the output pre or post the final norm.")
    ] = None,
    layout: Annotated[
        str | None, typer.Option(help="With --to-hf, for a draft head: official, sglang, speculators or vllm.")
    ] = None,
    verifier: Annotated[
        str | None, typer.Option(help="With --to-hf, for a draft head: the name by which others load its target.")
    ] = None,
) -> None:
    """Convert a Hugging Face folder, a GGUF file or a published draft head to a checkpoint, or back to a folder."""
    from specjax.cli import converting
    from specjax.cli.converting import HeadOptions

    head = HeadOptions(target, tap_convention, recycle, layout, verifier)
    converting.run(source, dest, to_hf=to_hf, dtype=dtype, tokenizer=tokenizer, overwrite=overwrite, head=head)


@app.command()
@user_errors
def info(
    target: Annotated[str, typer.Argument(help="A name, a checkpoint folder, or a Hugging Face folder.")],
    draft: Annotated[str | None, typer.Option(help="The draft model or head beside it.")] = None,
    mesh: Annotated[str, typer.Option(help="Devices, DATAxMODEL: rows are split over the first, weights and caches "
                                      "over the second.")] = "1x1",
    batch: Annotated[int, typer.Option(min=1, help="Rows.")] = 1,
    context: Annotated[int, typer.Option(min=1, help="Tokens that a row may hold, prompt included.")] = 8192,
    num_nodes: Annotated[int, typer.Option(min=1, help="Tokens that the target scores in one pass of a round.")] = 8,
    dtype: Annotated[str | None, typer.Option(help="Of weights and caches. Default: as stored.")] = None,
    chip: Annotated[str | None, typer.Option(help="What a device is: v5e, v6e, v5p, h200.")] = None,
    memory: Annotated[float | None, typer.Option(help="GiB of a device.")] = None,
) -> None:
    """Say how much memory a model takes on each device, before anything is loaded; refuse what can not fit."""
    from specjax.cli import info as memory_of

    memory_of.run(target, draft, mesh=mesh, batch=batch, context=context, num_nodes=num_nodes, dtype=dtype, chip=chip,
                  memory=memory)


@app.command()
@user_errors
def train(
    kind: Annotated[TrainKind, typer.Argument(help="Which drafter.")],
    config: Annotated[str, typer.Argument(help="A TOML file, or the name of a recipe such as tiny-python-eagle3.")],
    out: Annotated[pathlib.Path, typer.Option(help="The run's folder; a second start resumes.")],
    answers: Annotated[
        pathlib.Path | None, typer.Option(help="Folder of the target's answers, for several runs. Default: in --out.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Another target than the config's: a name or a folder.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Other optimiser steps than the config's.")] = None,
) -> None:
    """Train a drafter on its target's own answers, which the target writes first."""
    from specjax.cli import programs, training

    programs.keep_programs()
    training.run(kind, config, out=out, answers=answers, target=target, steps=steps)
