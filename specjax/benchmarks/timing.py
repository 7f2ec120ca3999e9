"""Clocks: everything waits for its result, short steps run many times inside one program, turns are taken."""

from __future__ import annotations

import math
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax

LEAST_SECONDS = 0.05  # a timed call is at least so long, so that dispatch and the clock do not count
Timed = Callable[[], float]
MAPS, MAX_MAPS = pathlib.Path("/proc/self/maps"), pathlib.Path("/proc/sys/vm/max_map_count")
MAPS_FOR_AN_ARRAY = 32  # a loop of a pair of 28 and 24 layers, with 630 weights, takes 20 000 in all


class Program:
    """A function compiled for its arguments, with what compiling cost and what it needs.

    Attributes:
      compile_seconds: tracing, lowering and compiling.
      temporary_bytes: memory it needs beside its arguments and results, by XLA's own analysis.
      argument_bytes: size of the arguments. Both are 0 on a device that does not say.
    """

    def __init__(self, function: Callable[..., Any], *args: Any, donate: tuple[int, ...] = (),
                 static: tuple[int, ...] = ()) -> None:
        """Compile `function(*args)`; the arguments at `static` are constants, those at `donate` are consumed.

        Raises:
          ValueError: if the process has hardly any memory maps left, of which XLA's CPU programs take thousands: its
            compiler would die without a word of the cause.
        """
        _check_maps(len(jax.tree.leaves(args)))
        began = time.perf_counter()
        self._compiled = jax.jit(function, donate_argnums=donate, static_argnums=static).lower(*args).compile()
        self.compile_seconds = time.perf_counter() - began
        memory = self._compiled.memory_analysis()
        self.temporary_bytes = 0 if memory is None else int(memory.temp_size_in_bytes)
        self.argument_bytes = 0 if memory is None else int(memory.argument_size_in_bytes)

    def __call__(self, *args: Any) -> tuple[Any, float]:
        """The result, ready, and the seconds it took. `args` are those that are not static."""
        began = time.perf_counter()
        result = jax.block_until_ready(self._compiled(*args))
        return result, time.perf_counter() - began


def _check_maps(arrays: int) -> None:
    """Whether a program that reads so many arrays will find room."""
    if not MAPS.exists() or not MAX_MAPS.exists():
        return
    used, allowed = MAPS.read_bytes().count(b"\n"), int(MAX_MAPS.read_text())
    if used + MAPS_FOR_AN_ARRAY * arrays > allowed:
        raise ValueError(f"compiled programs use {used} of the {allowed} memory maps that Linux allows a process, and "
                         "another may not fit: measure fewer k, or allow more (sysctl vm.max_map_count=262144)")


class Repeated:
    """A step repeated inside one program; a call gives the seconds of one step.

    `step(fixed, carry) -> carry` must feed on its own result, or the compiler would take it out of the loop.
    """

    def __init__(self, step: Callable[[Any, Any], Any], fixed: Any, carry: Any) -> None:
        """Compile the loop and choose how often it turns."""

        def loop(fixed: Any, carry: Any, count: Any) -> Any:
            return jax.lax.fori_loop(0, count, lambda _, carry: step(fixed, carry), carry)

        self._fixed = fixed
        self._carry = jax.block_until_ready(jax.tree.map(lambda leaf: leaf.copy(), carry))
        self.program = Program(loop, fixed, self._carry, 1, donate=(1,))
        self.count = 1
        self()
        self.count = min(1000, max(1, math.ceil(LEAST_SECONDS / self())))

    def __call__(self) -> float:
        """Seconds of one step."""
        self._carry, seconds = self.program(self._fixed, self._carry, self.count)
        return seconds / self.count


def in_turns(
    things: Mapping[str, Timed], repeats: int, *, warm: Iterable[str] | None = None,
    into: dict[str, list[float]] | None = None, tell: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Time each thing `repeats` times, in turns (A B A B), after calls that do not count.

    Args:
      things: functions that run once and give their seconds, by name.
      repeats: how often each counts.
      warm: names of the things that are called once before, so that nothing is measured cold; None is all.
      into: where the seconds go as they come, so that others can read what there is already.
      tell: called after every call.

    Returns:
      `into`, or a new dict: the seconds of each thing.
    """
    seconds: dict[str, list[float]] = {} if into is None else into
    for name in things if warm is None else warm:
        things[name]()
        tell()
    for _ in range(repeats):
        for name, thing in things.items():
            taken = thing()  # first, so that an interrupted thing leaves no empty list
            seconds.setdefault(name, []).append(taken)
            tell()
    return seconds
