"""The checkpoints that are part of the package, found by name."""

from __future__ import annotations

import pathlib

_ROOT = pathlib.Path(__file__).resolve().parent / "embedded"


def embedded_names() -> tuple[str, ...]:
    """Names that `load` knows without a path, sorted."""
    return tuple(sorted(p.name for p in _ROOT.iterdir() if p.is_dir())) if _ROOT.is_dir() else ()


def embedded_path(name: str) -> pathlib.Path:
    """Folder of an embedded checkpoint; the name must be one of `embedded_names()`."""
    return _ROOT / name
