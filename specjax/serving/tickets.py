"""What the host keeps of a request while it is in the engine, and what it tells about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from specjax._src.request import Request
from specjax._src.state import FinishReason, Stats
from specjax.serving.programs import Report


class QueueFull(RuntimeError):
    """As many requests wait as the engine was built for; nothing has changed, and a later `submit` may succeed."""


@dataclass(frozen=True)
class Event:
    """What happened to one request in one step. The last event of a request, and no other, has a `finish_reason`.

    Attributes:
      id: of the request.
      tokens: new tokens, in order; the EOS, or the token that completes a stop, is the last one.
      finish_reason: `specjax.FinishReason`, or None while it goes on.
      stats: `specjax.Stats` of one row as numpy arrays, records by round as wide as the request's `max_new_tokens`;
        only in the last event.
      logprobs: log-probability of each of `tokens` under the law it was sampled from; None unless the engine was built
        with `logprobs=True`.
      raw_logprobs: the same under the target's untransformed softmax.
    """

    id: int
    tokens: list[int]
    finish_reason: FinishReason | None = None
    stats: Stats | None = None
    logprobs: list[float] | None = None
    raw_logprobs: list[float] | None = None


@dataclass
class Ticket:
    """A request, or a prefix to be stored, on its way through the engine.

    Attributes:
      id: of the request, or of the prefix.
      request: its arrays, in the engine's sizes.
      prompt: its token ids.
      is_prefix: whether it is to be stored and not to be continued.
      counters, positions: of the last `Report`.
      drafted, accepted: of each round so far.
    """

    id: int
    request: Request
    prompt: tuple[int, ...]
    is_prefix: bool
    counters: np.ndarray
    positions: np.ndarray
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)

    def heard(self, report: Report, slot: int, logprobs: bool) -> Event:
        """The event of a step whose `report` speaks of this request at row `slot`."""
        count, rounds = int(report.count[slot, 0]), int(report.counters[slot, 0]) - int(self.counters[0])
        self.counters, self.positions = report.counters[slot], report.positions[slot]
        drafted, accepted = np.split(report.rounds[slot], 2)
        self.drafted += drafted[:rounds].tolist()
        self.accepted += accepted[:rounds].tolist()
        finish = FinishReason(int(report.finish[slot, 0]))
        ended = finish != FinishReason.RUNNING
        law: list[list[float]] | list[None] = [None, None]
        if logprobs:
            law = [part[:count].tolist() for part in np.split(report.logprobs[slot].view(np.float32), 2)]
        return Event(self.id, report.tokens[slot, :count].tolist(), finish if ended else None,
                     self.stats() if ended else None, *law)

    def cancelled(self) -> Event:
        """The last event of a request that is taken out."""
        return Event(self.id, [], FinishReason.CANCELLED, self.stats())

    def stats(self) -> Stats:
        """Counted so far, as `specjax.generate` would for this request alone."""
        budget = int(self.request.limits[0])
        records = [np.array(record + [0] * (budget - len(record)), np.int32)
                   for record in (self.drafted, self.accepted)]
        parts: list[Any] = [*self.counters, *np.split(self.positions, 3), *records]
        return Stats(*(part[None].copy() for part in parts))
