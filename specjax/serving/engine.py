"""The engine: a queue, one prompt being read, and a running batch whose rows are requests of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax._src import checks
from specjax._src.request import Request
from specjax._src.sampling import Sampling
from specjax._src.speculative import speculative
from specjax._src.types import Array, Constraint, Drafter, Model, Params, Verifier
from specjax.serving import load, programs, sizes
from specjax.serving.reading import Reader, Reading
from specjax.serving.sizes import Sizes
from specjax.serving.tickets import Event, QueueFull, Ticket


class Engine:
    """Continuous batching over `slots` rows; one thread may use it.

    A request waits in a queue, first come, first served; when a row is free its prompt is read, in passes of at most
    `prefill_chunk` tokens between the rounds of the running rows, and it takes the row. Its text is that of
    `specjax.generate(model, params, [prompt], drafter=..., capacity=capacity, ...)` with the same settings (in float32;
    sampled text needs a `Sampling.seed` or a key), whatever its neighbours, its row, or the moment it came.

    Nothing compiles after `warm_up()`, whatever is asked. Memory: the running batch, a row being read, a blank one, and
    one for each stored prefix.
    """

    def __init__(
        self,
        model: Model,
        params: Any,
        drafter: Drafter | None = None,
        draft_params: Any = None,
        verifier: Verifier | None = None,
        *,
        slots: int = 8,
        capacity: int = 1024,
        max_new_tokens: int = 256,
        max_queue: int = 256,
        prefill_chunk: int = 128,
        prefill_budget: int | None = None,
        rounds_per_step: int = 8,
        k_by_load: Sequence[int] | None = None,
        constraint: Constraint | None = None,
        logprobs: bool = False,
        key: Array | None = None,
        max_prefixes: int = 4,
        max_eos: int = 4,
        max_stops: int = 4,
        max_stop_tokens: int = 8,
        logit_bias: bool = False,
        allowed: bool = False,
    ) -> None:
        """Make the running batch and the queue. Nothing but that is compiled: see `warm_up`.

        Args:
          model: the target.
          params: its parameters.
          drafter: from `specjax.draft`; None is plain decoding.
          draft_params: of the drafter.
          verifier: from `specjax.verify`; None chooses.
          slots: B, rows that run at once.
          capacity: S, tokens a row may hold, prompt and output; a request that would need more ends with
            `FinishReason.CAPACITY`.
          max_new_tokens: largest budget of a request, and what it gets if it names none.
          max_queue: requests (and prefixes) that may wait; the one being read and those that run do not count.
          prefill_chunk: tokens of the widest pass over a prompt, at most 256.
          prefill_budget: tokens, padding included, that the passes of one step may have together; None is two of the
            widest. What runs waits for so much at most between two of its rounds.
          rounds_per_step: most rounds that the running rows go through in one `step`, in one program: more of them cost
            less on the host, fewer give events and new requests their turn sooner. While requests wait, a step ends
            with the first row that does.
          k_by_load: tokens that each row drafts when 1, 2, .. `slots` rows are live, such as (4, 4, 2, 1). Only with
            `verify.match()`, whose text does not depend on k.
          constraint: on the text of all requests.
          logprobs: events carry log-probabilities.
          key: PRNG key of those requests that sample with neither seed nor key: request `id` gets `fold_in(key, id)`,
            so its text depends on how many requests came before.
          max_prefixes: stored prefixes, see `add_prefix`.
          max_eos, max_stops, max_stop_tokens: room for the EOS ids and the stop sequences of a request.
          logit_bias, allowed: whether requests may have a `Sampling.logit_bias` and a `Sampling.allowed`.

        Raises:
          ValueError, TypeError: for what does not go together, naming both sides and the remedy.
        """
        rules = speculative(model, drafter, verifier, constraint=constraint, logprobs=logprobs).rules
        budget = (2 * checks.whole("prefill_chunk", prefill_chunk, 1)) if prefill_budget is None else prefill_budget
        self._sizes = sizes.checked_sizes(Sizes(
            slots, capacity, max_new_tokens, prefill_chunk, budget, rounds_per_step, max_queue, max_prefixes,
            max_eos, max_stops, max_stop_tokens, bool(logit_bias), bool(allowed)))
        if k_by_load is not None:
            limited = load.by_load(rules.drafter, rules.verifier, k_by_load, self._sizes.slots)
            rules = rules._replace(drafter=limited)
        self._rules, self._params, self._key = rules, Params(params, draft_params), key
        self._widths = programs.report_widths(rules, self._sizes.rounds_per_step)
        blank = self._checked([0], None, key=None)
        rows = jax.tree.map(lambda leaf: jnp.repeat(jnp.asarray(leaf), self._sizes.slots, axis=0), blank)
        self._state = programs.blank(rules, self._sizes, self._params, rows)
        self._reader = Reader(rules, self._params, self._sizes, blank)
        self._waiting: deque[Ticket] = deque()
        self._reading: Reading | None = None
        self._rows: list[Ticket | None] = [None] * self._sizes.slots
        self._evicted = np.zeros(self._sizes.slots, bool)
        self._events: list[Event] = []  # to come out of the next step
        self._next_id, self._next_prefix = 0, 0

    @property
    def num_waiting(self) -> int:
        """Requests and prefixes in the queue."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests in rows of the running batch."""
        return sum(ticket is not None for ticket in self._rows)

    @property
    def idle(self) -> bool:
        """Whether a `step` would do nothing and return no event."""
        return not (self._waiting or self._reading or self._events or self.num_running)

    @property
    def tokens_read(self) -> int:
        """Tokens of prompts and prefixes that went through the target so far; those of a reused prefix count once."""
        return self._reader.tokens_read

    def warm_up(self) -> None:
        """Compile every program that the engine will need. May be called at any time; it changes no text.

        Programs are shared by engines of the same sizes, model, drafter and verifier. Without this call they compile
        when they are first needed.
        """
        typed = jax.random.fold_in(jax.random.key(0) if self._key is None else self._key, 0)
        for sampling, key in ((Sampling(), None), (Sampling(seed=0), None), (Sampling(), typed)):
            request = self._checked([0], 0, sampling=sampling, key=key)
        row = self._reader.warmed(self._ticket(-1, [0], request, is_prefix=False))
        scratch = jax.tree.map(jnp.copy, self._state)
        scratch = programs.insert(self._rules, self._params, scratch, row, np.int32(0))
        nobody = np.ones(self._sizes.slots, bool)
        jax.block_until_ready(programs.advance(
            self._rules, self._sizes.rounds_per_step, self._params, scratch, nobody, np.bool_(False)))

    def submit(
        self,
        prompt: Any,
        *,
        sampling: Sampling = Sampling(),
        key: Array | None = None,
        max_new_tokens: int | None = None,
        eos_ids: Any = (),
        stop: Any = (),
        num_speculative_tokens: int | None = None,
    ) -> int:
        """Queue a request.

        Args:
          prompt: token ids, at least one.
          sampling: greedy by default. With a `seed` the text depends on it alone.
          key: the text is that of `specjax.generate(..., [prompt], key=key)`; a seed comes first. A request that
            samples and has neither draws from the engine's key and its own id.
          max_new_tokens: at most the engine's; None is the engine's.
          eos_ids: ids that end the text.
          stop: sequences of token ids that end the text.
          num_speculative_tokens: k, at most the drafter's; None is the drafter's.

        Returns:
          the id of the request: 0, 1, 2, .. in the order of submission.

        Raises:
          QueueFull: if `max_queue` requests wait.
          ValueError, TypeError: for what is wrong with the request, naming both sides and the remedy. In either case
            the engine is as it was.
        """
        self._check_queue("request")
        if key is None and self._key is not None and getattr(sampling, "seed", 0) is None:
            key = jax.random.fold_in(self._key, self._next_id)
        request = self._checked(
            prompt, max_new_tokens, sampling=sampling, key=key, eos_ids=eos_ids, stop=stop,
            num_speculative_tokens=num_speculative_tokens)
        self._waiting.append(self._ticket(self._next_id, prompt, request, is_prefix=False))
        self._next_id += 1
        return self._next_id - 1

    def add_prefix(self, tokens: Any) -> int:
        """Have a prefix, such as a system prompt, read once and kept, for all prompts that begin with it.

        It waits in the queue like a request, so requests submitted behind it find it ready. A prompt takes the longest
        stored prefix that it begins with; texts and acceptance are those without it.

        Returns:
          an id for `drop_prefix`.

        Raises:
          QueueFull: if `max_queue` requests wait.
          ValueError: if it is no prompt, or `max_prefixes` are stored already. In either case nothing has changed.
        """
        self._check_queue("prefix")
        taken = len(self._reader) + sum(ticket.is_prefix for ticket in self._pending())
        if taken >= self._sizes.max_prefixes:
            raise ValueError(f"the engine keeps {taken} prefixes and has room for {self._sizes.max_prefixes}: "
                             "drop_prefix one, or build it with a larger max_prefixes")
        request = self._checked(tokens, None)
        self._waiting.append(self._ticket(self._next_prefix, tokens, request, is_prefix=True))
        self._next_prefix += 1
        return self._next_prefix - 1

    def drop_prefix(self, prefix: int) -> bool:
        """Forget a prefix, stored or still to be read; requests that began with it go on. Whether there was one."""
        self._check_id("prefix", prefix, self._next_prefix)
        return self._reader.drop(prefix) or self._take_pending(prefix, is_prefix=True) is not None

    def cancel(self, id: int) -> bool:
        """Take a request out, wherever it is: waiting, being read, or running.

        Its last event, with `FinishReason.CANCELLED`, comes out of the next `step`; its row is free at once.

        Returns:
          False, and nothing happens, if it has ended already.

        Raises:
          ValueError: if there never was such a request.
        """
        self._check_id("request", id, self._next_id)
        ticket = self._take_pending(id, is_prefix=False)
        for slot, running in enumerate(self._rows):
            if running is not None and running.id == id:
                ticket, self._rows[slot], self._evicted[slot] = running, None, True
        if ticket is None:
            return False
        self._events.append(ticket.cancelled())
        return True

    def step(self) -> list[Event]:
        """Read a bounded part of what waits, fill free rows, and take the running rows through their rounds.

        Returns:
          what happened since the last step, at most one event for each request (and its cancellation): new tokens, or
          its end. A running row gains a token in every step at least.
        """
        self._admit()
        if self.num_running:
            most = self._sizes.rounds_per_step
            pause = np.bool_(bool(self._waiting) or self._reading is not None)
            self._state, packed = programs.advance(
                self._rules, most, self._params, self._state, self._evicted.copy(), pause)
            self._evicted[:] = False
            self._hear(programs.unpacked(packed, self._widths))
        events, self._events = self._events, []
        return events

    def run(self) -> Iterator[Event]:
        """Steps until the engine is idle, event by event; what is submitted meanwhile is served too."""
        while not self.idle:
            yield from self.step()

    def _admit(self) -> None:
        """Read prompts in order within the budget of a step, and put each into a free row."""
        budget = self._sizes.prefill_budget
        while self._reading is not None or self._may_start():
            if self._reading is None:
                self._reading = self._reader.start(self._waiting.popleft())
            while not self._reading.done:
                width = self._reader.read(self._reading, budget)
                if width == 0:
                    return
                budget -= width
            reading, self._reading = self._reading, None
            if reading.ticket.is_prefix:
                self._reader.store(reading)
                continue
            slot = self._rows.index(None)
            self._state = programs.insert(self._rules, self._params, self._state, reading.row, np.int32(slot))
            self._rows[slot], self._evicted[slot] = reading.ticket, False

    def _may_start(self) -> bool:
        return bool(self._waiting) and (self._waiting[0].is_prefix or None in self._rows)

    def _hear(self, report: programs.Report) -> None:
        for slot, ticket in enumerate(self._rows):
            if ticket is None:
                continue
            event = ticket.heard(report, slot, self._rules.logprobs)
            if event.finish_reason is not None:
                self._rows[slot] = None
            self._events.append(event)

    def _pending(self) -> Iterator[Ticket]:
        """What waits or is being read."""
        yield from self._waiting
        if self._reading is not None:
            yield self._reading.ticket

    def _take_pending(self, id: int, is_prefix: bool) -> Ticket | None:
        for ticket in self._pending():
            if ticket.id == id and ticket.is_prefix == is_prefix:
                if self._reading is not None and self._reading.ticket is ticket:
                    self._reading = None
                else:
                    self._waiting = deque(other for other in self._waiting if other is not ticket)
                return ticket
        return None

    def _check_queue(self, kind: str) -> None:
        if len(self._waiting) >= self._sizes.max_queue:
            raise QueueFull(f"the {kind} does not fit: {len(self._waiting)} wait, and the engine was built with "
                            f"max_queue={self._sizes.max_queue}; call step() and submit it again, or raise max_queue")

    def _check_id(self, kind: str, id: int, issued: int) -> None:
        if not 0 <= checks.whole(f"a {kind} id", id, 0) < issued:
            raise ValueError(f"there is no {kind} {id}: the engine has given the ids 0 .. {issued - 1} so far"
                             if issued else f"there is no {kind} {id}: the engine has given no id yet")

    def _checked(self, prompt: Any, max_new_tokens: Any, **arguments: Any) -> Request:
        return sizes.checked(self._rules, self._params, self._sizes, prompt, max_new_tokens, **arguments)

    def _ticket(self, id: int, prompt: Any, request: Request, is_prefix: bool) -> Ticket:
        counters, positions = (np.zeros(width, np.int32) for width in (self._widths.counters, self._widths.positions))
        return Ticket(id, request, tuple(np.asarray(prompt).tolist()), is_prefix, counters, positions)
