"""Folders that appear when they are complete, and what stood there before stays until then."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import shutil
from collections.abc import Iterator

from specjax.checkpoints.layout import MANIFEST

try:
    import fcntl
except ImportError:  # Windows: two runs at a time are not noticed there
    fcntl = None  # type: ignore[assignment]

MARKS = (MANIFEST, "config.json")
"""What a checkpoint, and a Hugging Face folder, is known by."""


@contextlib.contextmanager
def staged(path: str | os.PathLike[str], *, overwrite: bool) -> Iterator[pathlib.Path]:
    """A folder to build in, beside `path`, which takes that name when the block ends well and vanishes otherwise.

    Whatever an earlier run left behind when it was killed is put right first: half a folder goes, and an old one that
    stood aside for its successor comes back.

    Raises:
      ValueError: if `path` exists and `overwrite` is not set; if it is something else than a model's folder; or if
        another run is making it.
      OSError: if something can not be written; then `path` is named.
    """
    scratch, path = scratch_of(path), pathlib.Path(os.path.realpath(path))
    old = aside(path)
    if not old.exists():
        _may_become(path, overwrite)
    scratch.mkdir(parents=True, exist_ok=True)
    with _alone(scratch, path):
        try:
            _settle(path, old)
            _may_become(path, overwrite)
            _empty(scratch)
            yield scratch
            _replace(scratch, path, old)
        except BaseException as error:
            shutil.rmtree(scratch, ignore_errors=True)
            reason = _unwritten(error)
            if reason is None:
                raise
            raise OSError(f"{path} could not be written: {reason}") from error


def scratch_of(path: str | os.PathLike[str]) -> pathlib.Path:
    """Where the folder stands while it is built."""
    path = pathlib.Path(os.path.realpath(path))
    return path.with_name(f".{path.name}.incomplete")


def aside(path: pathlib.Path) -> pathlib.Path:
    """Where the old folder stands while its successor takes its name."""
    return path.with_name(f".{path.name}.replaced")


def check_apart(source: str | os.PathLike[str], dest: str | os.PathLike[str]) -> None:
    """Refuse to make `dest` where `source` stands: replacing the one would destroy the other.

    Raises:
      ValueError: if the two are one folder, or one stands within the other.
    """
    first, second = (pathlib.Path(os.path.realpath(path)) for path in (source, dest))
    if first == second or first in second.parents or second in first.parents:
        raise ValueError(f"{dest} and {source} are one folder or within one another; choose a folder apart from it")


def _may_become(path: pathlib.Path, overwrite: bool) -> None:
    if not path.exists():
        return
    if not overwrite:
        raise ValueError(f"{path} exists; pass overwrite=True (--overwrite) to replace it")
    empty = path.is_dir() and not any(path.iterdir())
    if not empty and not _is_model(path):
        raise ValueError(
            f"{path} is not replaced: it is neither a checkpoint nor a Hugging Face folder (it has no "
            f"{' and no '.join(MARKS)}); choose another name, or remove it yourself"
        )


@contextlib.contextmanager
def _alone(scratch: pathlib.Path, path: pathlib.Path) -> Iterator[None]:
    """Hold the folder `scratch` for this process; the system lets go of it even when the process is killed."""
    if fcntl is None:
        yield
        return
    held = os.open(scratch, os.O_RDONLY)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = os.path.samestat(os.fstat(held), scratch.stat())
        except (BlockingIOError, FileNotFoundError):
            ours = False
        except OSError:  # a file system without locks
            ours = True
        if not ours:  # held by another, or just renamed by it
            raise ValueError(f"another run is making {path}; wait for it, or choose another folder")
        yield
    finally:
        os.close(held)


def _settle(path: pathlib.Path, old: pathlib.Path) -> None:
    """After a run that was killed between the two renames of `_replace`, or behind them."""
    if not path.exists() and _is_model(old):
        old.rename(path)
    elif old.exists():
        _discard(old)


def _is_model(path: pathlib.Path) -> bool:
    return path.is_dir() and any((path / name).is_file() for name in MARKS)


def _discard(folder: pathlib.Path) -> None:
    """Remove a folder; half of it is never taken for a whole one, because what marks it goes first."""
    for name in MARKS:
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder)


def _empty(folder: pathlib.Path) -> None:
    for child in folder.iterdir():
        shutil.rmtree(child) if child.is_dir() and not child.is_symlink() else child.unlink()


def _replace(new: pathlib.Path, path: pathlib.Path, old: pathlib.Path) -> None:
    if not path.exists():
        new.rename(path)
        return
    path.rename(old)
    try:
        new.rename(path)
    except BaseException:
        old.rename(path)
        raise
    _discard(old)


def _unwritten(error: BaseException) -> str | None:
    """What the system says, where the error does not say of which file: Orbax raises ValueError with all its story."""
    if isinstance(error, OSError):
        return error.strerror if error.filename is None else None
    found = re.search(r"([^:]+) \[os_error_code", str(error)) if isinstance(error, ValueError) else None
    return found and found[1].strip()
