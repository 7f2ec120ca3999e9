"""From a flax.nnx draft head to `specjax.DraftHead` or `specjax.MedusaHeads`, and the weights it borrows of its target.

The params of a head are nested dicts, complete by themselves. Under `embedding` and `head` stand the target's own
arrays, not copies; under `draft_ids` and `places` the draft vocabulary of an EAGLE-3 head. All else is trained.
"""

from __future__ import annotations

import functools
from typing import Any

import jax.numpy as jnp
from flax import nnx

from specjax._src import cache as kv
from specjax._src.types import Array, Attend, Cache, DraftHead, HeadOutput, MedusaHeads, Weights
from specjax.models.adapters import Structure, axis_names, split
from specjax.models.eagle import Eagle, EagleConfig
from specjax.models.eagle3 import Eagle3, Eagle3Config, places_of
from specjax.models.head_config import HeadConfig
from specjax.models.medusa import Medusa, MedusaConfig
from specjax.models.mixing import check_way
from specjax.models.parts import Borrowed, Fixed

MODULES: dict[str, tuple[type[Any], type[Any]]] = {
    "medusa": (MedusaConfig, Medusa),
    "eagle": (EagleConfig, Eagle),
    "eagle3": (Eagle3Config, Eagle3),
}
"""Config and module of each family."""

UNTRAINED = ("embedding", "head", "draft_ids", "places")


def head_from_nnx(
    module: nnx.Module, *, draft_vocabulary: bool = False, attention: str = "auto"
) -> tuple[DraftHead | MedusaHeads, Weights]:
    """Split a draft head into its pure functions and its params.

    Equal structures give the same object, so a program compiled for one set of weights serves another.

    Args:
      module: `Medusa`, or one with the calling convention of `Eagle`; may be abstract (from `nnx.eval_shape`), then the
        params are `jax.ShapeDtypeStruct`s.
      draft_vocabulary: for training: an EAGLE-3 head scores its own vocabulary [B, T, Vd], not the target's.
      attention: how a head that has any reads its cache, as for `Decoder`.

    Returns:
      The head, and its params as nested dicts with string keys. What it borrows is random: see `borrow`.

    Raises:
      ValueError: if the module has variables of other kinds, or `draft_vocabulary` is asked of a head without one.
    """
    structure, params = split(module, nnx.Param, Borrowed, Fixed)
    if isinstance(module, Medusa):
        if draft_vocabulary:
            raise ValueError("Medusa heads score the target's vocabulary; they have no draft vocabulary")
        return _medusa_heads(structure), params
    if draft_vocabulary and not isinstance(module, Eagle3):
        raise ValueError(f"{type(module).__name__} scores the target's vocabulary; it has no draft vocabulary")
    return _draft_head(structure, draft_vocabulary, check_way(attention)), params


@functools.lru_cache(maxsize=64)
def _draft_head(structure: Structure, draft_vocabulary: bool, attention: str) -> DraftHead:
    skeleton = structure.module()
    options: dict[str, Any] = {"whole_vocabulary": False} if draft_vocabulary else {}

    def fuse(params: Weights, features: dict[str, Array]) -> Array:
        return structure.module(params).fuse(features)

    def apply(params: Weights, hidden: Array, tokens: Array, cache: Cache, attend: Attend) -> HeadOutput:
        return structure.module(params)(hidden, tokens, cache, attend, attention=attention, **options)

    def score(params: Weights, hidden: Array) -> Array:
        return structure.module(params).score(hidden, **options)

    width = skeleton.config.layer.hidden_size
    return DraftHead(
        skeleton.family, skeleton.needs, width, skeleton.dtype, skeleton.init_cache, fuse, apply, score, kv.commit,
        functools.partial(axis_names, skeleton), kv.AXES)


@functools.lru_cache(maxsize=64)
def _medusa_heads(structure: Structure) -> MedusaHeads:
    skeleton = structure.module()

    def apply(params: Weights, features: dict[str, Array]) -> Array:
        return structure.module(params)(features)

    return MedusaHeads(skeleton.family, skeleton.needs, skeleton.config.num_heads, apply,
                       functools.partial(axis_names, skeleton))


def borrow(params: Weights, config: HeadConfig, target_params: Weights) -> Weights:
    """`params` with the target's own arrays where the head borrows them, and with `places` beside `draft_ids`.

    Args:
      params: of the head, with or without these.
      config: of the head.
      target_params: as `specjax.models.from_nnx` gives those of a `Decoder`.

    Raises:
      ValueError: if the target lacks what is borrowed, or has it in another shape.
    """
    taken = {}
    for name in config.borrows:
        shape = (config.vocab_size, config.feature_size)[:: 1 if name == "embedding" else -1]
        weight = target_params.get(name)
        found = getattr(weight, "shape", None)
        if found != shape and not _padded(weight, shape, shape.index(config.vocab_size)):
            raise ValueError(
                f"the {config.family} head borrows {name} {shape} of its target, whose params have "
                f"{'none' if found is None else found}; give it the target it was made for")
        taken[name] = target_params[name]
    if "draft_ids" in params:
        taken["places"] = places_of(jnp.asarray(params["draft_ids"]), config.vocab_size)
    return {**params, **taken}


def _padded(weight: Any, shape: tuple[int, ...], axis: int) -> bool:
    """Whether a weight is of this shape but for a vocabulary that was rounded up for the devices of a mesh."""
    mesh = getattr(getattr(weight, "sharding", None), "mesh", None)
    if mesh is None or len(weight.shape) != len(shape):
        return False
    more = [had - size for had, size in zip(weight.shape, shape, strict=True)]
    return 0 <= more.pop(axis) < mesh.size and not any(more)


def own(params: Weights) -> Weights:
    """What is stored of a head: all but what is borrowed, and `places`, which follow from `draft_ids`."""
    return {name: part for name, part in params.items() if name not in ("embedding", "head", "places")}


def trained(params: Weights) -> Weights:
    """What is trained of a head; `{**params, **trained}` puts it back."""
    return {name: part for name, part in params.items() if name not in UNTRAINED}
