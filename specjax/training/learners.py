"""What is trained: the parameters, the loss and the guesses of each kind of drafter."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from specjax._src.types import Array
from specjax.checkpoints import LoadedModel, check_same_tokenizer, load
from specjax.models import Decoder, DecoderConfig, from_nnx, head_from_nnx
from specjax.models.heads import MODULES, borrow, trained
from specjax.training.agreement import draft_guesses, head_guesses, medusa_guesses
from specjax.training.answers import Chunk
from specjax.training.config import TrainConfig
from specjax.training.lesson import Lesson
from specjax.training.losses.common import Scores

Tree = dict[str, Any]


class Learner(NamedTuple):
    """A drafter in training. Its whole parameters are `{**frozen, **trained}`.

    Attributes:
      config: of the drafter, `DecoderConfig` or a head's.
      needs: names of the target's features that it reads.
      trained: float32, what moves.
      frozen: what the target lends, and the draft vocabulary.
      score: `(params, lesson, key) -> Scores`.
      guess: `(params, lesson) -> int32 [B, T, J, R]`, the likeliest tokens of a chain (`specjax.training.agreement`).
    """

    config: Any
    needs: frozenset[str]
    trained: Tree
    frozen: Tree
    score: Callable[[Tree, Lesson, Array], Scores]
    guess: Callable[[Tree, Lesson], Array]


def make_learner(config: TrainConfig, target: LoadedModel, answers: Sequence[Chunk]) -> Learner:
    """A drafter for `target`, fresh or as its config says.

    Args:
      config: of the run.
      target: who is drafted for.
      answers: of which the draft vocabulary of an EAGLE-3 head takes the most frequent ids.

    Raises:
      ValueError: if fields of `[head]` are unknown or do not fit one another or the target.
    """
    learner = _draft(config, target) if config.kind == "draft" else _head(config, target, answers)
    return learner if config.run.compute == "float32" else _in_bfloat16(learner)


def frequent_ids(answers: Sequence[Chunk], count: int, vocab_size: int) -> np.ndarray:
    """The `count` ids that stand most often in the answers, ascending: int32 [count]."""
    seen = np.zeros(vocab_size, np.int64)
    for chunk in answers:
        place = np.arange(chunk.tokens.shape[1]) - chunk.start[:, None]
        inside = (place >= 0) & (place < chunk.length[:, None])
        seen += np.bincount(chunk.tokens[inside], minlength=vocab_size)
    return np.sort(np.argsort(-seen, kind="stable")[:count]).astype(np.int32)


def _head(config: TrainConfig, target: LoadedModel, answers: Sequence[Chunk]) -> Learner:
    cls, module = MODULES[config.kind]
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in config.head.items()}
    try:
        shape = cls.for_target(target.config, **fields)
    except TypeError as error:
        known = ", ".join(field.name for field in dataclasses.fields(cls))
        raise ValueError(f"[head] of {config.kind}: {error}; its fields are {known}") from None
    own = config.kind == "eagle3" and shape.draft_vocab_size is not None
    _, params = head_from_nnx(module(shape, rngs=nnx.Rngs(config.run.seed)))
    dtype = jnp.dtype(config.run.compute)
    skeleton = nnx.eval_shape(lambda: module(shape, rngs=nnx.Rngs(0), dtype=dtype))
    # The entries of a roll-out fill its cache, so that blocks would leave nothing out, and they have no way back.
    head, _ = head_from_nnx(skeleton, draft_vocabulary=own, attention="einsum")
    if own:
        params = {**params, "draft_ids": jnp.asarray(frequent_ids(answers, shape.draft_vocab_size, shape.vocab_size))}
    params = borrow(_begun(config.kind, params, target), shape, target.params)
    moving = trained(params)
    guesses: Callable[..., Array] = medusa_guesses if config.kind == "medusa" else head_guesses
    depth = shape.num_heads if config.kind == "medusa" else config.run.depth
    return Learner(
        shape, head.needs, jax.tree.map(lambda x: jnp.array(x, jnp.float32), moving),
        {name: part for name, part in params.items() if name not in moving},
        lambda params, lesson, key: config.loss(head, params, lesson, key),
        lambda params, lesson: guesses(head, params, lesson, depth))


def _begun(kind: str, params: Tree, target: LoadedModel) -> Tree:
    """Fresh parameters with the target's matrix to the vocabulary, and its norm, where the head has its own."""
    matrix = target.params["embedding"].T if target.config.tie_embeddings else target.params["head"]
    matrix = matrix.astype(jnp.float32)
    if kind == "medusa" and "output" in params["heads"]["0"]:
        return {**params, "heads": {name: {**head, "output": matrix} for name, head in params["heads"].items()}}
    same = kind == "eagle3" and "output" in params and params["output"].shape[0] == matrix.shape[0]
    if not same:
        return params
    ids = params.get("draft_ids")
    # A target's norm may multiply by one plus its scale, a fresh head's never does.
    scale = target.params["norm"]["scale"].astype(jnp.float32) + target.config.unit_offset_norm
    return {**params, "output": matrix if ids is None else matrix[:, ids], "norm": {"scale": scale}}


def _draft(config: TrainConfig, target: LoadedModel) -> Learner:
    fields = dict(config.head)
    if start := fields.pop("start", None):
        if fields:
            raise ValueError(f"[head] of draft: with `start` the shape is that of {start}; leave out "
                             f"{', '.join(sorted(fields))}")
        first = load(start)
        check_same_tokenizer(target, first)
        shape, params = first.config, first.params
    else:
        shape = DecoderConfig.from_dict({"vocab_size": target.config.vocab_size, **fields})
        params = from_nnx(Decoder(shape, rngs=nnx.Rngs(config.run.seed)))[1]
    if shape.vocab_size != target.config.vocab_size:
        raise ValueError(f"the draft scores {shape.vocab_size} tokens, its target {target.config.vocab_size}; they "
                         "must be equal")
    dtype = jnp.dtype(config.run.compute)
    model, _ = from_nnx(nnx.eval_shape(lambda: Decoder(shape, rngs=nnx.Rngs(0), dtype=dtype)))
    return Learner(
        shape, frozenset(), jax.tree.map(lambda x: jnp.array(x, jnp.float32), params), {},
        lambda params, lesson, key: config.loss(model, params, lesson, key),
        lambda params, lesson: draft_guesses(model, params, lesson, config.run.depth))


def _in_bfloat16(learner: Learner) -> Learner:
    """The same with weights that are rounded before they are used; what moves stays float32."""

    def rounded(params: Tree) -> Tree:
        return jax.tree.map(lambda x: x.astype(jnp.bfloat16) if jnp.issubdtype(x.dtype, jnp.floating) else x, params)

    return learner._replace(
        score=lambda params, lesson, key: learner.score(rounded(params), lesson, key),
        guess=lambda params, lesson: learner.guess(rounded(params), lesson))
