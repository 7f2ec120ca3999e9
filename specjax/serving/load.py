"""Fewer drafted tokens where more rows share a pass of the target."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from specjax._src import checks
from specjax._src.types import Array, Context, Drafter, Verifier


def by_load(drafter: Drafter, verifier: Verifier, table: Sequence[int], slots: int) -> Drafter:
    """`drafter`, proposing at most `table[n - 1]` tokens to each row when n rows are live.

    Raises:
      ValueError: if `table` does not say it for 1 .. `slots` rows, or the verifier's text depends on k.
    """
    if not verifier.shared_noise:
        raise ValueError(f"k_by_load lets k depend on how many rows are live, which leaves the text as it is only with "
                         f"verify.match(); verify.{verifier.name}() draws other numbers for another k: pass "
                         "verifier=specjax.verify.match(), or leave k_by_load out")
    most = drafter.shape.num_speculative_tokens
    numbers = tuple(checks.whole("an entry of k_by_load", value, 0) for value in table)
    if len(numbers) != slots or max(numbers, default=0) > most:
        raise ValueError(f"k_by_load needs one k in 0 .. {most} (the drafter's own) for each of 1 .. {slots} live "
                         f"rows, got {list(numbers)}")
    return _by_load(drafter, numbers)


@functools.cache
def _by_load(drafter: Drafter, table: tuple[int, ...]) -> Drafter:
    def available(state: Any, context: Context) -> Array:
        live = jnp.sum(context.live, dtype=jnp.int32)
        most = jnp.asarray(table, jnp.int32)[jnp.clip(live - 1, 0, len(table) - 1)]
        drafts = jnp.full_like(context.length, most)
        return drafts if drafter.available is None else jnp.minimum(drafts, drafter.available(state, context))

    return drafter._replace(available=available)
