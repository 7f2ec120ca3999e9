"""Count compilations, to show that a second request of the same shape uses the programs of the first."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"
_total = 0
_listening = False


@dataclass
class Count:
    """`compiled`: programs that XLA has built since the block was entered."""

    compiled: int = 0


@contextlib.contextmanager
def count_traces() -> Iterator[Count]:
    """Count the programs compiled inside the `with` block, those of the library and all others.

    Yields:
      `Count`, final when the block is left.
    """
    _listen()
    before, count = _total, Count()
    try:
        yield count
    finally:
        count.compiled = _total - before


@contextlib.contextmanager
def assert_no_compilation() -> Iterator[None]:
    """Fail if anything is compiled inside the block."""
    with count_traces() as count:
        yield
    assert count.compiled == 0, f"{count.compiled} programs were compiled where none should be"


def _listen() -> None:
    # jax has no public way to remove a single listener, so one is added for good, on first use.
    global _listening
    if _listening:
        return
    _listening = True

    def hear(event: str, duration_secs: float, **details: str | int) -> None:
        global _total
        _total += event == _EVENT

    jax.monitoring.register_event_duration_secs_listener(hear)
