"""Conversion with a progress bar."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from typing import NamedTuple

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from specjax.checkpoints import (
    exporting,
    head_exporting,
    head_importing,
    head_source,
    hub,
    importing,
    layout,
    shards,
    streaming,
)


class HeadOptions(NamedTuple):
    """What a user says of a draft head."""

    target: str | None = None
    tap_convention: str | None = None
    recycle: str | None = None
    layout: str | None = None
    verifier: str | None = None

    def refuse_all_but(self, allowed: tuple[str, ...], when: str) -> None:
        """ValueError naming what was given and means nothing here."""
        given = [name for name, value in self._asdict().items() if value and name not in allowed]
        if given:
            raise ValueError(f"{', '.join('--' + name.replace('_', '-') for name in given)} means nothing {when}")


NOTHING_SAID = HeadOptions()


def run(
    source: str, dest: pathlib.Path, *, to_hf: bool, dtype: str | None, tokenizer: pathlib.Path | None, overwrite: bool,
    head: HeadOptions = NOTHING_SAID,
) -> None:  # fmt: skip
    """Convert with a progress bar, and say where the result is.

    Raises:
      ValueError: for options that do not go together, and as `from_huggingface`, `from_published_head` and the ways
        back do.
    """
    if to_hf and dtype is not None:
        raise ValueError("--dtype goes with conversion to a checkpoint only: the way back gives what is stored")
    in_one_file = not to_hf and not source.startswith(hub.PREFIX) and _is_file(pathlib.Path(source))
    if tokenizer is not None and not in_one_file:
        raise ValueError("--tokenizer goes with GGUF files only: a Hugging Face folder has its own tokenizer.json")
    if to_hf:
        _back(pathlib.Path(source), dest, overwrite, head)
    elif in_one_file:
        head.refuse_all_but((), "for a GGUF file")
        path = pathlib.Path(source)
        with _bar(path.stat().st_size if path.is_file() else 0) as report:
            importing.from_gguf(path, dest, tokenizer=tokenizer, dtype=dtype, overwrite=overwrite, report=report)
    else:
        _from_folder(source, dest, dtype, overwrite, head)
    typer.echo(f"{dest} is complete")


def _from_folder(source: str, dest: pathlib.Path, dtype: str | None, overwrite: bool, head: HeadOptions) -> None:
    pickles = () if head.target is None else head_source.PICKLES
    path = hub.folder(source, pickles)
    family = head_source.family_of(path)
    if head.target is not None:
        head.refuse_all_but(("target", "tap_convention", "recycle"), "without --to-hf")
        size = sum(entry.num_bytes for entry in head_source.read(path).tensors.values())
        with _bar(size) as report:
            head_importing.from_published_head(
                path, dest, head.target, tap_convention=head.tap_convention, recycle=head.recycle, dtype=dtype,
                overwrite=overwrite, report=report)
        return
    if family is not None:
        raise ValueError(
            f"{source} is a draft head ({family}): give --target TARGET, the checkpoint of the model it drafts for")
    head.refuse_all_but((), "without --target")
    with _bar(sum(entry.num_bytes for entry in shards.read_folder(path).values())) as report:
        importing.from_huggingface(path, dest, dtype=dtype, overwrite=overwrite, report=report)


def _back(path: pathlib.Path, dest: pathlib.Path, overwrite: bool, head: HeadOptions) -> None:
    family = layout.Manifest.read(path).family
    with _bar(sum(streaming.num_bytes(streaming.stored(path / layout.PARAMS)))) as report:
        if family in layout.HEADS:
            head.refuse_all_but(("target", "layout", "verifier"), "with --to-hf")
            head_exporting.to_published_head(
                path, dest, layout=head.layout, target=head.target, verifier=head.verifier, overwrite=overwrite,
                report=report)
        else:
            head.refuse_all_but((), "for a model that is no draft head")
            exporting.to_huggingface(path, dest, overwrite=overwrite, report=report)


@contextlib.contextmanager
def _bar(total: int) -> Iterator[streaming.Report]:
    """A progress bar over so many bytes, and what tells it of each tensor."""
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn()
    with Progress(*columns) as progress:
        task = progress.add_task("reading", total=total)

        def report(name: str, size: int) -> None:
            progress.update(task, description=name, advance=size)

        yield report
        progress.update(task, description="done")


def _is_file(source: pathlib.Path) -> bool:
    """Whether this names a GGUF file, there or not; a folder may end in `.gguf` too."""
    return source.suffix.lower() == ".gguf" and not source.is_dir()
