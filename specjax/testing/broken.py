"""Models that are wrong on purpose, to show that `check_model` notices. Each wraps a right one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax.numpy as jnp

from specjax._src.types import Array, Attend, Model, Output


def ignores_ancestors(model: Model) -> Model:
    """Treats every tree as a causal chain."""
    return _with_attend(model, lambda attend: replace(attend, ancestors=None))


def ignores_valid(model: Model) -> Model:
    """Takes every token for a real one."""
    return _with_attend(model, lambda attend: replace(attend, valid=jnp.ones_like(attend.valid)))


def ignores_positions(model: Model) -> Model:
    """Numbers the tokens of a call one by one, also where they are branches of a tree."""

    def straight(attend: Attend) -> Attend:
        return replace(attend, positions=attend.lengths[:, None] + jnp.arange(attend.positions.shape[1]))

    return _with_attend(model, straight)


def ignores_lengths(model: Model) -> Model:
    """Reads and writes behind the longest row, as a cache with one length for the whole batch does."""

    def longest(attend: Attend) -> Attend:
        return replace(attend, lengths=jnp.full_like(attend.lengths, jnp.max(attend.lengths)))

    return _with_attend(model, longest)


def commits_everything(model: Model) -> Model:
    """Keeps all tokens of a call whatever `num` says: no rollback."""

    def apply(params: Any, tokens: Array, cache: Any, attend: Attend) -> Output:
        out = model.apply(params, tokens, cache, attend)
        return replace(out, pending=(out.pending, tokens))

    def commit(pending: Any, path: Array | None, base: Array, num: Array) -> Any:
        inner, tokens = pending
        return model.commit(inner, path, base, jnp.full_like(num, tokens.shape[1]))

    return Model(model.init_cache, apply, commit)


def commits_in_order(model: Model) -> Model:
    """Keeps the leading tokens of a tree instead of the path that was accepted."""

    def commit(pending: Any, path: Array | None, base: Array, num: Array) -> Any:
        del path
        return model.commit(pending, None, base, num)

    return Model(model.init_cache, model.apply, commit)


def _with_attend(model: Model, change: Any) -> Model:
    def apply(params: Any, tokens: Array, cache: Any, attend: Attend) -> Output:
        return model.apply(params, tokens, cache, change(attend))

    return Model(model.init_cache, apply, model.commit)
