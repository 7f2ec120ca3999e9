"""`python -m specjax.checkpoints.convert SOURCE DEST`, the same as `specjax convert`."""

from __future__ import annotations

import pathlib
import sys
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from specjax.checkpoints import exporting, hub, importing, layout, shards, staging, streaming


def run(source: str, dest: pathlib.Path, *, to_hf: bool, dtype: str | None, overwrite: bool) -> None:
    """Convert with a progress bar, and say where the result is.

    Raises:
      ValueError: for options that do not go together, and as `from_huggingface` and `to_huggingface` do.
    """
    if to_hf and dtype is not None:
        raise ValueError("--dtype goes with conversion from Hugging Face only: the way back gives what is stored")
    folder = pathlib.Path(source) if to_hf else hub.folder(source)
    staging.check_apart(folder, dest)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn()
    with Progress(*columns) as progress:
        task = progress.add_task("reading", total=_bytes(folder, to_hf))

        def report(name: str, size: int) -> None:
            progress.update(task, description=name, advance=size)

        if to_hf:
            exporting.to_huggingface(folder, dest, overwrite=overwrite, report=report)
        else:
            importing.from_huggingface(folder, dest, dtype=dtype, overwrite=overwrite, report=report)
        progress.update(task, description="done")
    typer.echo(f"{dest} is complete")


def _bytes(source: pathlib.Path, to_hf: bool) -> int:
    """What there is to read."""
    if not to_hf:
        return sum(entry.num_bytes for entry in shards.read_folder(source).values())
    layout.Manifest.read(source)
    return streaming.num_bytes(source / layout.PARAMS)


def command(
    source: Annotated[str, typer.Argument(help="A Hugging Face folder or hf:OWNER/NAME; with --to-hf, a checkpoint.")],
    dest: Annotated[pathlib.Path, typer.Argument(help="The folder to make.")],
    to_hf: Annotated[bool, typer.Option("--to-hf", help="The way back: write a Hugging Face folder.")] = False,
    dtype: Annotated[str | None, typer.Option(help="Cast all weights: float32, bfloat16 or float16.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace DEST if it exists.")] = False,
) -> None:
    """Convert a Hugging Face folder of safetensors to a checkpoint, or back."""
    try:
        run(source, dest, to_hf=to_hf, dtype=dtype, overwrite=overwrite)
    except (ValueError, OSError) as error:
        typer.secho(f"specjax: error: {error}", err=True, fg=typer.colors.RED)
        sys.exit(2)


if __name__ == "__main__":
    typer.run(command)
