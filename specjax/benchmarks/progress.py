"""How far a long run has come, said between two measurements and never during one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Tell = Callable[..., None]
Stage = Callable[[str, int], Tell]
EVERY = 60.0  # seconds between two lines where nobody watches a terminal


@contextlib.contextmanager
def shown() -> Iterator[Stage]:
    """`stage(name, total)` opens a bar on stderr and gives `tell(note="", completed=None)`.

    That moves the bar on by one, or to `completed`, and shows the note behind the name.

    A terminal is drawn to by these calls alone: a thread that redraws would take time from what is being measured.
    Elsewhere, as in a log, a line comes every minute.
    """
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
               TextColumn("left:"), TimeRemainingColumn())
    with Progress(*columns, console=console, auto_refresh=False, transient=True, speed_estimate_period=3600.0) as bars:
        said = time.monotonic()

        def stage(name: str, total: int) -> Tell:
            task = bars.add_task(name, total=total)
            bars.refresh()

            def tell(note: str = "", completed: int | None = None) -> None:
                nonlocal said
                bars.update(task, completed=completed, advance=1 if completed is None else None,
                            description=f"{name}, {note}" if note else name)
                bars.refresh()
                if not console.is_terminal and time.monotonic() - said >= EVERY:
                    said = time.monotonic()
                    now = next(one for one in bars.tasks if one.id == task)
                    console.print(f"{name}: {now.completed:.0f} of {total}, {_minutes(now.elapsed)} min, "
                                  f"left {_minutes(now.time_remaining)} min{note and ', '}{note}")

            return tell

        yield stage


def _minutes(seconds: float | None) -> str:
    return "?" if seconds is None else f"{seconds / 60:.1f}"
