"""Models small enough to know by heart. Each function returns `(Model, params)`; the Model object is always the same
one, so that toys of one kind share their compiled programs and differ only in parameters.

`table`, `bigram` and `script` see nothing, one token, or only the position; `trigram` sees two tokens, so that a wrong
cache shows; `ring` and `recurrent` (in `specjax.testing.stateful`) keep a state that length alone can not roll back.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax._src import rows
from specjax._src.cache import visible
from specjax._src.types import Array, Attend, Model, Output

Toy = tuple[Model, Any]


def table(probs: Any) -> Toy:
    """The next token has the law `probs` [V] everywhere. Its cache is empty."""
    return _TABLE, {"logits": _log(probs)}


def bigram(probs: Any) -> Toy:
    """The token after `x` has the law `probs[x]`; `probs` [V, V]. Its cache is empty."""
    return _BIGRAM, {"logits": _log(probs)}


def script(tokens: Any, vocab_size: int, margin: float = 20.0) -> Toy:
    """The likeliest token at absolute position `i` is `tokens[i]`, by a wide margin; the last one goes on for ever."""
    logits = margin * np.eye(vocab_size, dtype=np.float32)[np.asarray(tokens)]
    return _SCRIPT, {"logits": jnp.asarray(logits)}


def trigram(logits: Any) -> Toy:
    """The token after `y x` has the logits `logits[y + 1, x]`, and after a lone first token `x` `logits[0, x]`.

    Args:
      logits: float [V + 1, V, V].

    Returns:
      A model with a position-indexed cache of the tokens, int32 [B, S]; it honours `ancestors` and `valid`, and offers
      one feature, `token` [B, T, V]: 1 at the token itself.
    """
    return _TRIGRAM, {"logits": jnp.asarray(logits, jnp.float32)}


def random_trigram(seed: int, vocab_size: int, scale: float = 1.0) -> Toy:
    """A `trigram` with normal logits of standard deviation `scale`."""
    generator = np.random.default_rng(seed)
    return trigram(scale * generator.normal(size=(vocab_size + 1, vocab_size, vocab_size)))


def blend(toy: Toy, other: Toy, share: float) -> Toy:
    """`toy` with parameters moved by `share` towards those of `other`: a draft that is right now and then."""
    mixed = jax.tree.map(lambda a, b: (1.0 - share) * a + share * b, toy[1], other[1])
    return toy[0], mixed


def _log(probs: Any) -> Array:
    with np.errstate(divide="ignore"):
        return jnp.asarray(np.log(np.asarray(probs, np.float64)), jnp.float32)


def _no_cache(batch: int, capacity: int) -> tuple[()]:
    del batch, capacity
    return ()


def _keep(pending: Any, path: Array | None, base: Array, num: Array) -> Any:
    del path, base, num
    return pending


def _table_apply(params: Any, tokens: Array, cache: Any, attend: Attend) -> Output:
    logits = params["logits"]
    return Output(jnp.broadcast_to(logits, (*attend.positions.shape, logits.shape[-1])), {}, cache)


def _bigram_apply(params: Any, tokens: Array, cache: Any, attend: Attend) -> Output:
    return Output(params["logits"][tokens], {}, cache)


def _script_apply(params: Any, tokens: Array, cache: Any, attend: Attend) -> Output:
    following = jnp.clip(attend.positions + 1, 0, params["logits"].shape[0] - 1)
    return Output(params["logits"][following], {}, cache)


def _token_cache(batch: int, capacity: int) -> Array:
    return jnp.full((batch, capacity), -1, jnp.int32)


def _trigram_apply(params: Any, tokens: Array, cache: Array, attend: Attend) -> Output:
    if attend.ancestors is not None and attend.ancestors.shape[2] > tokens.shape[1]:
        return _trigram_on_levels(params, tokens, cache, attend)
    place = jnp.arange(tokens.shape[1])
    ancestors = place[None, :, None] >= place if attend.ancestors is None else attend.ancestors
    above = ancestors & attend.valid[:, None, :] & (place[:, None] > place)
    parent = jnp.max(jnp.where(above, place, -1), axis=-1)  # the nearest token before this one in the call
    stored = rows.take(cache, jnp.maximum(attend.lengths - 1, 0))
    stored = jnp.where(attend.lengths > 0, stored, -1)[:, None]
    inside = jnp.take_along_axis(tokens, jnp.maximum(parent, 0), axis=1)
    previous = jnp.where(parent >= 0, inside, stored)
    return _trigram_output(params, previous, tokens, rows.write(cache, tokens, attend.lengths))


def _trigram_on_levels(params: Any, tokens: Array, cache: Array, attend: Attend) -> Output:
    """The same where ancestors may stand in the cache: the parent is the last slot that a token sees before its own."""
    written = rows.write(cache, tokens, attend.lengths)
    slots = jnp.arange(cache.shape[1])
    own = attend.lengths[:, None] + jnp.arange(tokens.shape[1])
    before = visible(attend, cache.shape[1]) & (slots < own[..., None])
    parent = jnp.max(jnp.where(before, slots, -1), axis=-1)
    previous = jnp.where(parent < 0, -1, jnp.take_along_axis(written, jnp.maximum(parent, 0), axis=1))
    return _trigram_output(params, previous, tokens, written)


def _trigram_output(params: Any, previous: Array, tokens: Array, written: Array) -> Output:
    features = {"token": jax.nn.one_hot(tokens, params["logits"].shape[-1])}
    return Output(params["logits"][previous + 1, tokens], features, written)


def _trigram_commit(pending: Array, path: Array | None, base: Array, num: Array) -> Array:
    del num
    if path is None:
        return pending
    return rows.write(pending, jnp.take_along_axis(pending, base[:, None] + path, axis=1), base)


def _axes(ndim: int) -> dict[str, tuple[str | None, ...]]:
    """Over many devices the scored tokens may be split."""
    return {"logits": (*(None,) * (ndim - 1), "vocab")}


_TABLE = Model(_no_cache, _table_apply, _keep, functools.partial(_axes, 1))
_BIGRAM = Model(_no_cache, _bigram_apply, _keep, functools.partial(_axes, 2))
_SCRIPT = Model(_no_cache, _script_apply, _keep, functools.partial(_axes, 2))
_TRIGRAM = Model(_token_cache, _trigram_apply, _trigram_commit, functools.partial(_axes, 3))
