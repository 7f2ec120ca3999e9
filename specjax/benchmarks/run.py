"""The benchmark: build, time in turns, put together, report."""

from __future__ import annotations

import dataclasses
import pathlib
import statistics
from typing import Any

from rich.console import Console

from specjax.benchmarks import categories, peer_transformers, progress, record, report, results
from specjax.benchmarks.bandwidth import Bandwidth
from specjax.benchmarks.peer_transformers import Peer
from specjax.benchmarks.settings import Settings
from specjax.benchmarks.subject import Subject
from specjax.benchmarks.texts import Writes, finished, turns
from specjax.benchmarks.timing import Repeated, Timed, in_turns
from specjax.benchmarks.ways import Way, make_parts, make_way


@dataclasses.dataclass(frozen=True)
class Measured:
    """Everything that is timed, and the seconds so far; `record` says what they mean.

    Attributes:
      subject, settings, command: what was asked for.
      ways, parts, bandwidth: what was compiled for it.
      peer: the other library, if one takes part.
      seconds: every single time, by name; it grows while things are timed.
    """

    subject: Subject
    settings: Settings
    command: str
    ways: list[Way]
    parts: dict[str, Repeated]
    bandwidth: Bandwidth
    peer: Peer | None
    seconds: dict[str, list[float]] = dataclasses.field(default_factory=dict)

    @property
    def steps(self) -> dict[str, Timed]:
        """What is timed besides texts."""
        things: dict[str, Timed] = {**self.parts, **self.bandwidth.things}
        for way in self.ways:
            things |= way.loops
        return things

    @property
    def ours(self) -> list[Writes]:
        """Who writes texts here, plain first; nobody where texts mean nothing."""
        return [way.writer for way in self.ways if way.writer is not None]

    @property
    def theirs(self) -> list[Writes]:
        """Who writes them in the other library."""
        return [] if self.peer is None else list(self.peer.writers)

    def record(self) -> dict[str, Any]:
        """The result of what has been timed so far: the steps, and the prompts that everybody has written."""
        medians = {name: statistics.median(values) for name, values in self.seconds.items()}
        done = finished([*self.ours, *self.theirs], len(self.subject.prompts), medians) if self.ours else []
        rows = categories.table(self.subject.categories, self.ours, self.theirs, done, medians) if done else []
        shape = {"prompts": len(self.subject.prompts), "padded_prompt": self.subject.width}
        environment = record.environment(self.command)
        return {
            "environment": environment if self.peer is None else environment | {"peer": self.peer.environment},
            "settings": dataclasses.asdict(self.settings.resolved()) | shape,
            **results.summary(self.subject, self.ways, self.parts, medians, self.bandwidth.rates(medians), rows),
            "categories": rows,
            "seconds": self.seconds,
        }


def bench(subject: Subject, settings: Settings, *, command: str, out: pathlib.Path | None = None) -> dict[str, Any]:
    """Measure, print a table, and write everything to `out` if given; returns what is written.

    While texts are written, which takes long with large models, `out` holds what there is so far and says that it is
    partial.

    Raises:
      ValueError: if the peer that is asked for can not take part; nothing has been measured by then.
      OSError: if nothing can be written to `out`; the same holds.
    """
    if out is not None:
        record.check_writable(out)
    with progress.shown() as stage:
        peer = peer_transformers.opened(subject, settings, stage("peer", 2)) if settings.peer else None
        measured = _compiled(subject, settings, command, peer, stage("compiling", 2 + len(settings.depths)))
        things = measured.steps
        in_turns(things, settings.repeats, into=measured.seconds,
                 tell=stage("steps and rounds in turns", len(things) * (1 + settings.repeats)))
        if measured.ours:
            _time_texts(measured, stage, out)
    result = measured.record()
    if out is not None:
        record.write(result, out)
    report.show(result, Console(highlight=False))
    return result


def _compiled(
    subject: Subject, settings: Settings, command: str, peer: Peer | None, tell: progress.Tell
) -> Measured:
    ways = []
    for k in (0, *settings.depths):
        ways.append(make_way(subject, settings, k))
        tell()
    measured = Measured(subject, settings, command, ways, make_parts(subject, settings, ways), Bandwidth(), peer)
    tell()
    return measured


def _time_texts(measured: Measured, stage: progress.Stage, out: pathlib.Path | None) -> None:
    writers, repeats = [*measured.ours, *measured.theirs], measured.settings.repeats_of_texts
    things = turns(writers, len(measured.subject.prompts))
    warm = [f"{writer.name}/0" for writer in writers]  # all is compiled: one text of each way wakes what sleeps
    advance = stage("texts in turns", len(warm) + repeats * len(things))
    with record.kept(out, measured.record) as keep:
        def tell() -> None:
            advance()
            keep()

        in_turns(things, repeats, warm=warm, into=measured.seconds, tell=tell)
