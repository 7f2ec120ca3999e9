"""Conversion with a progress bar."""

from __future__ import annotations

import pathlib

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from specjax.checkpoints import exporting, hub, importing, layout, shards, streaming


def run(
    source: str, dest: pathlib.Path, *, to_hf: bool, dtype: str | None, tokenizer: pathlib.Path | None, overwrite: bool
) -> None:
    """Convert with a progress bar, and say where the result is.

    Raises:
      ValueError: for options that do not go together, and as `from_huggingface` and `to_huggingface` do.
    """
    if to_hf and dtype is not None:
        raise ValueError("--dtype goes with conversion to a checkpoint only: the way back gives what is stored")
    in_one_file = not to_hf and not source.startswith(hub.PREFIX) and _is_file(pathlib.Path(source))
    if tokenizer is not None and not in_one_file:
        raise ValueError("--tokenizer goes with GGUF files only: a Hugging Face folder has its own tokenizer.json")
    path = pathlib.Path(source) if to_hf else hub.folder(source)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn()
    with Progress(*columns) as progress:
        task = progress.add_task("reading", total=_bytes(path, to_hf, in_one_file))

        def report(name: str, size: int) -> None:
            progress.update(task, description=name, advance=size)

        if to_hf:
            exporting.to_huggingface(path, dest, overwrite=overwrite, report=report)
        elif in_one_file:
            importing.from_gguf(path, dest, tokenizer=tokenizer, dtype=dtype, overwrite=overwrite, report=report)
        else:
            importing.from_huggingface(path, dest, dtype=dtype, overwrite=overwrite, report=report)
        progress.update(task, description="done")
    typer.echo(f"{dest} is complete")


def _is_file(source: pathlib.Path) -> bool:
    """Whether this names a GGUF file, there or not; a folder may end in `.gguf` too."""
    return source.suffix.lower() == ".gguf" and not source.is_dir()


def _bytes(source: pathlib.Path, to_hf: bool, in_one_file: bool) -> int:
    """What there is to read."""
    if in_one_file:
        return source.stat().st_size if source.is_file() else 0
    if not to_hf:
        return sum(entry.num_bytes for entry in shards.read_folder(source).values())
    layout.Manifest.read(source)
    return sum(streaming.num_bytes(streaming.stored(source / layout.PARAMS)))
