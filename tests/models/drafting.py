"""What the tests of drafting with real heads share: a tiny decoder, its heads with every weight random, slow drafts."""

import functools
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from head_cases import random_like

from specjax import Attend, Params, Sampling
from specjax._src import decode
from specjax._src.noise import DRAFT, Noise
from specjax.models import (
    Decoder,
    DecoderConfig,
    Eagle,
    Eagle3,
    Eagle3Config,
    EagleConfig,
    Medusa,
    MedusaConfig,
    from_nnx,
    head_from_nnx,
)
from specjax.models.heads import borrow

sys.path.insert(0, str(Path(__file__).parents[1] / "core"))
import growth_reference as slow
import programs as programs

V, WIDTH, ROWS, BUDGET, DEPTH = 6, 8, 5, 10, 3
CONFIG = DecoderConfig(
    vocab_size=V, hidden_size=WIDTH, num_layers=3, num_heads=2, num_kv_heads=1, head_dim=4, intermediate_size=12,
    max_position=64, rope_theta=100.0)  # fmt: skip
PATHS = [(0,), (1,), (0, 0), (1, 0), (1, 1), (0, 0, 0)]
PROMPTS = [[3], [1, 5], [2, 2, 0, 4], [5, 4, 3, 2, 1, 0, 5, 4, 3], [0, 1, 1, 0, 2, 2, 0, 3, 3, 0, 4, 4, 0, 5, 5, 0]]
MIXED = Sampling(temperature=np.array([1.0, 0.7, 0.0, 1.3, 1.0]), frequency_penalty=np.array([0, 0.3, 0, 0, 0.0]),
                 seed=np.arange(ROWS) + 3)


@functools.cache
def target(config=CONFIG, seed=1):
    model, params = from_nnx(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    params = random_like(params, seed)
    params["embedding"] = 3.0 * params["embedding"]  # a sure model: drafts are right now and then
    return model, params


@functools.cache
def head(family, config=CONFIG, seed=2):
    """A head of this family and its params."""
    module, settings = {
        "eagle": (Eagle, lambda: EagleConfig.for_target(config, num_layers=2)),
        "eagle3": (Eagle3, lambda: Eagle3Config.for_target(config, taps=(0, 1, 3), draft_vocab_size=4)),
        "medusa": (Medusa, lambda: MedusaConfig.for_target(config, DEPTH))}[family]
    functions, params = head_from_nnx(nnx.eval_shape(lambda: module(settings(), rngs=nnx.Rngs(0))))
    params = random_like(params, seed)
    if family == "eagle3":
        params["draft_ids"] = jnp.array([0, 2, 3, 5], jnp.int32)
    return functions, borrow(params, settings(), target(config)[1])


class Begun(NamedTuple):
    """A decoder, its params, and its state after prefill or some rounds."""

    decoder: object
    params: Params
    state: object


def texts_of(state):
    """Prompt and output of each row."""
    return [np.asarray(state.tokens[row, : int(state.length[row])]).tolist() for row in range(state.length.shape[0])]


@functools.cache
def _features(model, length):
    def run(params, tokens):
        place = jnp.arange(length)[None]
        attend = Attend(jnp.zeros(1, jnp.int32), place, jnp.ones((1, length), bool))
        return model.apply(params, tokens, None, attend).features

    return jax.jit(run)


@functools.cache
def _guess(functions, length):
    def run(params, hidden, tokens):
        place = jnp.arange(length)[None]
        out = functions.apply(params, hidden, tokens, None, Attend(jnp.zeros(1, jnp.int32), place,
                                                                   jnp.ones((1, length), bool)))
        return out.logits[0], out.hidden[0]

    return jax.jit(run), jax.jit(functions.fuse)


def slow_scores(functions, head_params, toy, text, room=48):
    """`(text + path) -> logits [V]` of an EAGLE head: the features of the whole text from scratch, then for each token
    of the path one more, which the head guesses from all that stands before it on this path."""
    model, params = toy
    run, fuse = _guess(functions, room)
    count = len(text) - 1  # tokens that have a true feature
    whole = jnp.asarray(np.pad(np.array(text, np.int32), (0, room - len(text))))[None]
    features = _features(model, room)(params, whole)
    fused = np.asarray(fuse(head_params, {name: features[name] for name in functions.needs}))[0]

    @functools.cache
    def after(path):
        """Hidden states that the head has read and given behind `path`, the logits there."""
        before = fused[:count] if not path else np.concatenate([after(path[:-1])[0], after(path[:-1])[1][None]])
        tokens = [*text[1:], *path]
        hidden = np.zeros((room, before.shape[1]), np.float32)
        hidden[: len(before)] = before
        padded = np.pad(np.array(tokens, np.int32), (0, room - len(tokens)))
        logits, given = run(head_params, jnp.asarray(hidden)[None], jnp.asarray(padded)[None])
        last = len(tokens) - 1
        return before, np.asarray(given[last]), np.asarray(logits[last])

    return lambda line: after(tuple(line[len(text) :]))[2]


def slow_rows(begun, functions, toy, settings=MIXED, room=48):
    """`growth_reference.Row` of each live row that drafts; None for the others."""
    state, rules = begun.state, begun.decoder.rules
    noise = Noise(state.key, state.length, rules.verifier.shared_noise)
    for row, text in enumerate(texts_of(state)):
        if not state.live[row] or len(text) < 2:
            yield None
            continue
        one = Sampling(**{name: value if value is None or np.ndim(value) == 0 else value[row]
                          for name, value in vars(settings).items()})
        start = int(state.start[row])
        uniforms = np.asarray(jax.vmap(lambda node, row=row: noise._uniforms(DRAFT, node)[row])(jnp.arange(16)))
        gumbels = np.stack([np.asarray(noise.gumbel(at, V)[row]) for at in range(DEPTH + 1)])
        scores = slow_scores(functions, begun.params.draft, toy, text, room)
        # A token outside the head's vocabulary is one that the text may not have.
        yield slow.Row(
            text[:start], text[start:], one, int(state.drafts[row]), (),
            lambda line, scores=scores: np.maximum(scores(line), -1e9), None,
            lambda node, uniforms=uniforms: tuple(np.asarray(uniforms[node - 1], np.float64)),
            (lambda at, gumbels=gumbels: gumbels[at]) if noise.shared else None)


def proposed(begun, drafter):
    """The tree that a drafter proposes in this state."""
    decoder, params, state = begun

    @jax.jit
    def propose(params, state):
        context = decode._context(decoder.rules, params, state)
        noise = Noise(state.key, state.length, decoder.rules.verifier.shared_noise)
        return drafter.propose(params.draft, noise, state.draft, context)[0]

    return propose(params, state)
