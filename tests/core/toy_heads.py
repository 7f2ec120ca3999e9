"""Draft heads for the toy `trigram`, which offers the token itself as its feature: in plain jax.numpy, and suspicious.

What a head is fed it holds against its own cache: if the entry of the token before is not where the mask says, or a
position is not the number of entries before it, its logits are nan, and nothing is drafted.
"""

import jax
import jax.numpy as jnp

from specjax._src import rows
from specjax._src.cache import visible
from specjax._src.types import DraftHead, HeadOutput, MedusaHeads, Model, Output


def trigram_head(vocab_size):
    """A head whose guess is as good as a draft model of the same `logits` [V + 1, V, V]."""

    def init_cache(batch, capacity):
        return jnp.full((batch, capacity), -1, jnp.int32)

    def fuse(params, features):
        return jnp.concatenate([features["token"], jnp.zeros_like(features["token"])], axis=-1)

    def apply(params, hidden, tokens, cache, attend):
        before = jnp.argmax(hidden[..., :vocab_size], axis=-1)
        written = rows.write(cache, tokens, attend.lengths)
        slots = jnp.arange(cache.shape[1])
        own = attend.lengths[:, None] + jnp.arange(tokens.shape[1])
        seen = visible(attend, cache.shape[1]) & (slots < own[..., None])
        parent = jnp.max(jnp.where(seen, slots, -1), axis=-1)
        stored = jnp.take_along_axis(written, jnp.maximum(parent, 0), axis=1)
        right = ((parent < 0) | (stored == before)) & (jnp.sum(seen, axis=-1) == attend.positions)
        logits = jnp.where(right[..., None], params["logits"][before + 1, tokens], jnp.nan)
        return HeadOutput(logits, jnp.concatenate([jax.nn.one_hot(tokens, vocab_size), logits], axis=-1), written)

    def score(params, hidden):
        return hidden[..., vocab_size:]

    return DraftHead("toy head", frozenset({"token"}), 2 * vocab_size, jnp.float32, init_cache, fuse, apply, score,
                     lambda pending, path, base, num: pending)


def medusa_heads(vocab_size, num_heads):
    """Heads that follow the mean over what may have stood before: a bigram, taken two steps, three, and so on."""

    def apply(params, features):
        step = jnp.mean(jax.nn.softmax(params["logits"]), axis=0)
        laws = [features["token"] @ step @ step]
        for _ in range(num_heads - 1):
            laws.append(laws[-1] @ step)
        return jnp.log(jnp.stack(laws, axis=1))

    return MedusaHeads("toy medusa", frozenset({"token"}), num_heads, apply)


def coarse(model):
    """A part of a trigram that drafts for the whole: it knows the logits to the nearest even number."""

    def apply(params, tokens, cache, attend):
        out = model.apply({"logits": 2.0 * jnp.round(params["logits"] / 2.0)}, tokens, cache, attend)
        return Output(out.logits, {}, out.pending)

    return Model(model.init_cache, apply, model.commit)
