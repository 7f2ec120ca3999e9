"""How good a drafter is on held-out answers: how often a guess is the target's, and how long a chain of them lasts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from specjax._src.types import Array, DraftHead, MedusaHeads, Model
from specjax.training.lesson import Lesson, packed_attend
from specjax.training.losses.medusa import medusa_logits
from specjax.training.unroll import unroll

RANKS = 10
"""How many of the likeliest tokens are looked at."""


def medusa_guesses(heads: MedusaHeads, params: Any, lesson: Lesson, depth: int) -> Array:
    """The likeliest tokens of each head at each place, best first: int32 [B, T, K, R]; `depth` must be K."""
    assert depth == heads.num_heads, (depth, heads.num_heads)
    return _best(medusa_logits(heads, params, lesson))


def head_guesses(head: DraftHead, params: Any, lesson: Lesson, depth: int) -> Array:
    """The likeliest tokens of each step of a roll-out, given the true ones before: int32 [B, T, depth, R]."""
    guesses = jnp.stack([_best(out.logits) for out in unroll(head, params, lesson, depth)], axis=2)
    own = params.get("draft_ids")
    return guesses if own is None else own[guesses]


def draft_guesses(model: Model, params: Any, lesson: Lesson, depth: int) -> Array:
    """The likeliest next tokens, given the true ones before, of each of the next places: int32 [B, T, depth, R]."""
    logits = model.apply(params, lesson.batch.tokens, None, packed_attend(lesson.batch.document)).logits
    likeliest = _best(logits)
    return jnp.stack([lesson.ahead(likeliest, step + 1) for step in range(depth)], axis=2)


def _best(logits: Array) -> Array:
    """Ids of the RANKS largest logits, best first: int32 [.., R]."""
    return jax.lax.top_k(logits, min(RANKS, logits.shape[-1]))[1].astype(jnp.int32)


def tally(guesses: Array, lesson: Lesson) -> dict[str, Array]:
    """What is counted over all windows, to be summed: see `figures`.

    Guesses `j` of [B, T, J, R] are of the token at t + 2 + j, given the true ones up to t + 1 + j.
    """
    depth = guesses.shape[2]
    wanted = jnp.argmax(lesson.logits, axis=-1)
    ranks = jnp.stack([lesson.ahead(wanted, j + 1)[..., None] == guesses[:, :, j] for j in range(depth)], axis=2)
    right = ranks[..., 0]
    scored = jnp.stack([lesson.scored(j + 2) for j in range(depth)], axis=-1)
    # On greedy rows the true tokens are the target's choices: there a chain that was right so far has just these
    # before it, and a run of right guesses is what a round accepts.
    whole = jnp.all(scored, axis=-1) & (lesson.batch.temperature == 0)
    run = jnp.cumprod(right.astype(jnp.float32), axis=-1)
    return {
        "ranks": jnp.sum(ranks & scored[..., None], axis=(0, 1), dtype=jnp.float32),
        "scored": jnp.sum(scored, axis=(0, 1), dtype=jnp.float32),
        "kept": jnp.sum(jnp.where(whole[..., None], run, 0.0), axis=(0, 1)),
        "chains": jnp.sum(whole, dtype=jnp.float32),
    }


def figures(totals: dict[str, Any]) -> dict[str, Any]:
    """JSON values of summed tallies.

    Returns:
      `accuracy`, a list by depth: how often the guess is the target's likeliest token, given the true ones before;
      `ranks`, by depth and rank: how often that token is the guess of this rank, from which `draft.best_paths` makes a
      tree;
      `kept`, by depth: how often a greedy chain is kept so far; `accepted_length`: the tokens that a round of such a
      chain gives, the target's own included. The last two are of greedy rows, of chains that begin at every place. A
      generation keeps less: its rounds begin where the guesses before failed, and pass over easy places many at a time.
    """
    host = jax.device_get(totals)
    kept = host["kept"] / max(float(host["chains"]), 1.0)
    ranks = host["ranks"] / np.maximum(host["scored"], 1.0)[:, None]
    return {
        "accuracy": [round(float(value), 4) for value in ranks[:, 0]],
        "ranks": [[round(float(value), 4) for value in row] for row in ranks],
        "kept": [round(float(value), 4) for value in kept],
        "accepted_length": round(1.0 + float(kept.sum()), 4),
        "places": int(host["scored"][0]),
    }
