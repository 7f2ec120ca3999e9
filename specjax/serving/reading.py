"""Prompts are read apart from the running batch, one after another and in bounded passes; prefixes are read once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from specjax._src.decode import Rules
from specjax._src.request import Request
from specjax._src.state import State
from specjax._src.types import Params
from specjax.serving import programs
from specjax.serving.sizes import Sizes
from specjax.serving.tickets import Ticket


@dataclass
class Reading:
    """A prompt on its way into the cache.

    Attributes:
      ticket: whose it is.
      row: `State` of one row.
      entries: tokens in its cache; done at `goal`, for the last token is the root of the first round.
      goal: tokens of the prompt, less one.
    """

    ticket: Ticket
    row: State
    entries: int
    goal: int

    @property
    def done(self) -> bool:
        """Whether the row can go on without the prompt."""
        return self.entries >= self.goal


class Reader:
    """Reads prompts, and keeps the rows of prefixes that were read: target cache, draft state and pending features.

    Attributes:
      tokens_read: tokens of prompts and prefixes that went through the target so far.
    """

    def __init__(self, rules: Rules, params: Params, sizes: Sizes, blank: Request) -> None:
        """`blank` is a request of one row, of which nothing but shapes matters."""
        self._rules, self._params, self._sizes = rules, params, sizes
        self._blank = programs.blank(rules, sizes, params, blank)
        self._prefixes: dict[int, Reading] = {}
        self.tokens_read = 0

    def start(self, ticket: Ticket) -> Reading:
        """Begin behind the longest stored prefix that the prompt begins with."""
        matches = [prefix for prefix in self._prefixes.values()
                   if prefix.ticket.prompt == ticket.prompt[: len(prefix.ticket.prompt)]]
        best = max(matches, key=lambda prefix: prefix.entries, default=None)
        stored, entries = (self._blank, 0) if best is None else (best.row, best.entries)
        row = programs.begin(self._rules, self._params, stored, ticket.request)
        return Reading(ticket, row, entries, len(ticket.prompt) - 1)

    def read(self, reading: Reading, budget: int) -> int:
        """One pass, of at most `budget` tokens: the tokens it took with its padding, 0 if the budget allows none."""
        width = self._sizes.pass_width(reading.entries, reading.goal - reading.entries, budget)
        if width == 0:
            return 0
        reading.row = self._pass(width, reading.row, reading.entries)
        took = min(width, reading.goal - reading.entries)
        reading.entries += took
        self.tokens_read += took
        return width

    def store(self, reading: Reading) -> None:
        """Keep a prefix that was read."""
        self._prefixes[reading.ticket.id] = reading

    def drop(self, prefix: int) -> bool:
        """Forget a prefix: whether it was stored."""
        return self._prefixes.pop(prefix, None) is not None

    def __len__(self) -> int:
        """Stored prefixes."""
        return len(self._prefixes)

    def warmed(self, ticket: Ticket) -> State:
        """A row that went through every program of a reader."""
        row = self.start(ticket).row
        for width in self._sizes.widths:
            row = self._pass(width, row, 0)
        return row

    def _pass(self, width: int, row: State, entries: int) -> State:
        return programs.read(self._rules, width, self._params, row, np.array([entries], np.int32))
