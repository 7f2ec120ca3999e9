"""A run's folder: Orbax checkpoints of the whole training state, to resume from, and a log of one JSON line a step."""

from __future__ import annotations

import json
import pathlib
import time
from typing import Any

import jax
import orbax.checkpoint as ocp

Counters = dict[str, Any]
LOG, SETTINGS = "log.jsonl", "settings.json"


def progress_of(counters: Counters, minutes: float, steps: int) -> float:
    """How much of a stage is done: of its `steps` if they are not 0, else of its `minutes`."""
    return counters["step"] / steps if steps else counters["seconds"] / 60 / minutes


class RunFolder:
    """Saves every `save_seconds`, keeps the last two, prints a line every `print_seconds` (0: never)."""

    def __init__(self, path: pathlib.Path, save_seconds: float = 240.0, print_seconds: float = 15.0) -> None:
        path.mkdir(parents=True, exist_ok=True)
        options = ocp.CheckpointManagerOptions(max_to_keep=2, create=True)
        self._path = path
        self._manager = ocp.CheckpointManager((path / "state").absolute(), options=options)
        self._log = (path / LOG).open("a", buffering=1)
        self._save_seconds, self._print_seconds = save_seconds, print_seconds
        self._saved = self._printed = time.monotonic()
        self.steps_here = 0

    def claim(self, settings: Counters) -> None:
        """Write down the settings of the run, or compare with those that are written.

        Raises:
          ValueError: naming each one that differs: to resume with it would be another run.
        """
        said, path = json.loads(json.dumps(settings)), self._path / SETTINGS
        if not path.exists():
            unfinished = path.with_suffix(".tmp")
            unfinished.write_text(json.dumps(said, indent=1))
            unfinished.replace(path)
            return
        if differ := sorted(_differences(json.loads(path.read_text()), said)):
            raise ValueError(f"{self._path} holds a run with other settings: {'; '.join(differ)}; choose another "
                             "folder, or remove this one")

    def resume(self, state: Any, counters: Counters) -> tuple[Any, Counters]:
        """The last saved state (any pytree like `state`) and counters, or the given ones if nothing was saved.

        What was logged after that state is taken out of the log, for it will be logged again.
        """
        latest = self._manager.latest_step()
        if latest is None:
            self._forget_after(0)
            return state, counters
        leaves, treedef = jax.tree.flatten(state)
        abstract = _numbered([jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for x in leaves])
        items = ocp.args.Composite(state=ocp.args.StandardRestore(abstract), counters=ocp.args.JsonRestore())
        restored = self._manager.restore(latest, args=items)
        self._forget_after(latest)
        print(f"resumed at step {latest}", flush=True)
        return jax.tree.unflatten(treedef, [restored.state[k] for k in abstract]), restored.counters

    def save(self, state: Any, counters: Counters) -> None:
        """Save now and wait until it is on disk."""
        if self._manager.latest_step() == counters["step"]:
            return
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(_numbered(jax.tree.leaves(state))), counters=ocp.args.JsonSave(counters)
        )
        self._manager.save(counters["step"], args=items)
        self._manager.wait_until_finished()
        self._saved = time.monotonic()

    def maybe_save(self, state: Any, counters: Counters) -> None:
        """Save if the last save is long ago."""
        if time.monotonic() - self._saved > self._save_seconds:
            self.save(state, counters)

    def log(self, entry: Counters) -> None:
        """Append a JSON line; print it now and then."""
        self.steps_here += 1
        line = json.dumps(entry)
        self._log.write(line + "\n")
        if self._print_seconds and time.monotonic() - self._printed > self._print_seconds:
            print(line, flush=True)
            self._printed = time.monotonic()

    def _forget_after(self, step: int) -> None:
        kept = [json.dumps(entry) + "\n" for entry in read_log(self._path) if entry["step"] <= step]
        self._log.truncate(0)  # opened for appending: the next line goes to the end
        self._log.write("".join(kept))


def read_log(path: pathlib.Path) -> list[Counters]:
    """The lines of a run's log; the last one is left out if it was cut off by a kill."""
    entries = []
    for line in (path / LOG).read_text().splitlines():
        try:
            entries.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return entries


def _differences(found: Counters, said: Counters, prefix: str = "") -> list[str]:
    differ = []
    for name in found.keys() | said.keys():
        old, new = found.get(name), said.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            differ += _differences(old, new, f"{prefix}{name}.")
        elif old != new:
            differ.append(f"{prefix}{name} {old!r} (now {new!r})")
    return differ


def _numbered(leaves: list[Any]) -> dict[str, Any]:
    # Optimiser states are nested tuples with empty nodes, which Orbax would rebuild as other containers.
    return {f"{i:04d}": leaf for i, leaf in enumerate(leaves)}
