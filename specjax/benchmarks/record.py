"""Where and with what a benchmark ran, and how its record is kept."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax

import specjax

PACKAGES = ("jax", "jaxlib", "flax", "numpy")
EVERY = 60.0  # seconds between two partial records


def environment(command: str) -> dict[str, Any]:
    """Versions, device, command and flags."""
    device = jax.devices()[0]
    return {
        "command": command,
        "specjax": specjax.__version__,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in PACKAGES},
        "platform": device.platform,
        "device": device.device_kind,
        "processor": _processor(),
        "cpu_count": os.cpu_count(),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
    }


def write(result: dict[str, Any], path: pathlib.Path) -> None:
    """Write as JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(_rounded(result), indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def check_writable(path: pathlib.Path) -> None:
    """Whether a record can stand at `path`, asked before hours of measuring and not behind them.

    Raises:
      OSError: naming what is in the way.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(f"--json {path} is a folder; name a file")
    part = path.with_name(path.name + ".part")
    part.touch()
    part.unlink()


def script(
    name: str, about: str | None, numbers: dict[str, int], measure: Callable[..., dict[str, Any]]
) -> dict[str, Any]:
    """A module of `specjax.benchmarks` as a program: what `measure(**numbers, command=...)` gives, written to `--json`.

    Args:
      name: of the module.
      about: its docstring.
      numbers: options that are whole numbers, by the name of the argument, with their defaults.
      measure: does the work.
    """
    parser = argparse.ArgumentParser(description=(about or "").split("\n")[0])
    for option, default in numbers.items():
        parser.add_argument("--" + option.replace("_", "-"), type=int, default=default)
    parser.add_argument("--json", type=pathlib.Path, help="write everything measured to this file")
    options = parser.parse_args()
    if options.json:
        check_writable(options.json)
    command = shlex.join(["python", "-m", f"specjax.benchmarks.{name}", *sys.argv[1:]])
    result = measure(**{option: getattr(options, option) for option in numbers}, command=command)
    if options.json:
        write(result, options.json)
    return result


@contextlib.contextmanager
def kept(path: pathlib.Path | None, collect: Callable[[], dict[str, Any]]) -> Iterator[Callable[[], None]]:
    """Keep at `path`, if there is one, what `collect()` gives, marked as partial: now, and at the end if that is early.

    Yields a function that writes it again when a minute has passed.
    """
    written = -math.inf

    def keep(every: float = EVERY) -> None:
        nonlocal written
        if path is not None and time.monotonic() - written >= every:
            write({"partial": True} | collect(), path)
            written = time.monotonic()

    keep()
    try:
        yield keep
    except BaseException:
        keep(0.0)
        raise


def _rounded(value: Any) -> Any:
    """Floats with six digits: more is noise."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {str(key): _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value


def _processor() -> str:
    """The CPU's own name where the system tells it."""
    info = pathlib.Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
