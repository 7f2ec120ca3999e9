"""From a flax module to the three functions of `specjax.Model`; the weights always stay an argument.

Both kinds of module follow one calling convention: `init_cache(batch, capacity)` reads no weights and gives an empty
cache; the call `(tokens int32 [B, T], cache, attend)` gives `specjax.Output`; an optional method
`commit(pending, path, base, num)` is used if there is one, otherwise `pending` must be a cache of the layout of
`specjax.cache` (a tuple of layers of `k` and `v`, each [B, K, S, d]).
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
from flax import linen, nnx

from specjax._src import cache as kv
from specjax._src.types import Array, Attend, Cache, Model, Output, Weights
from specjax.models.parts import Borrowed, Fixed

Path = tuple[Any, ...]
Leaves = tuple[tuple[Path, jax.ShapeDtypeStruct], ...]


def from_nnx(module: nnx.Module, **options: Any) -> tuple[Model, Weights]:
    """Split an nnx module into `(model, params)`.

    Equal structures give the same `Model` object, so a program compiled for one set of weights serves another.

    Args:
      module: may be abstract (from `nnx.eval_shape`); then the params are `jax.ShapeDtypeStruct`s.
      options: hashable keywords of the module's call, the same in every call.

    Returns:
      The model, and the weights as nested dicts with string keys and array leaves.

    Raises:
      ValueError: if the module lacks `init_cache`, or holds variables other than `nnx.Param` (dropout keys, batch
        statistics), which this interface cannot carry.
    """
    if not callable(getattr(module, "init_cache", None)):
        raise ValueError(f"{type(module).__name__} has no init_cache(batch, capacity); see specjax.models.from_nnx")
    structure, params = split(module, nnx.Param)
    return _nnx_model(structure, tuple(sorted(options.items()))), params


def from_linen(module: linen.Module, variables: Weights) -> tuple[Model, Weights]:
    """A linen module and its variables as `(model, params)`.

    Equal modules give the same `Model` object. `init_cache` and `commit` must be plain methods that use the module's
    fields only, because they are called outside `apply`.

    Args:
      module: unbound, as it was constructed.
      variables: from `module.init`; `params`, and other collections that inference only reads.

    Returns:
      The model, and the variables without partitioning boxes.

    Raises:
      ValueError: if the module lacks `init_cache`, or the variables lack `params` or have a collection `cache`: linen's
        own cache is mutable state, and would not be written.
    """
    if not callable(getattr(module, "init_cache", None)):
        raise ValueError(f"{type(module).__name__} has no init_cache(batch, capacity); see specjax.models.from_linen")
    if "params" not in variables or "cache" in variables:
        raise ValueError(
            f"from_linen takes variables with a collection 'params' and without 'cache', got {sorted(variables)}; the "
            "cache is an argument and a result of the call"
        )
    return _linen_model(module), linen.meta.unbox(variables)


def axis_names(module: nnx.Module) -> Weights:
    """The logical axis names of each weight (`out_sharding` of its `nnx.Param`), in the shape of `from_nnx`'s params.

    A weight without names gets an empty tuple. Map the names to mesh axes to make a `PartitionSpec`.
    """
    weights = _flat(nnx.state(module, (nnx.Param, Borrowed, Fixed)))
    return _nest({tuple(map(str, p)): tuple(w.get_metadata("out_sharding", None) or ()) for p, w in weights})


class Structure(NamedTuple):
    """An nnx module without its weights, a hashable value: equal modules have equal structures."""

    graphdef: nnx.GraphDef[Any]
    leaves: Leaves

    def module(self, params: Weights | None = None) -> Any:
        """The module with these weights; without any it has shapes only, enough for `init_cache`."""
        found = {path: leaf if params is None else _lookup(params, path) for path, leaf in self.leaves}
        return nnx.merge(self.graphdef, nnx.State(_nest(found)))


def split(module: nnx.Module, *kinds: type[nnx.Variable]) -> tuple[Structure, Weights]:
    """A module's structure, and its variables of these kinds as nested dicts with string keys and array leaves.

    Raises:
      ValueError: naming variables of other kinds.
    """
    parts: Any = nnx.split(module, kinds, ...)
    graphdef, weights, rest = parts
    if rest:
        names = [".".join(map(str, path)) for path, _ in _flat(rest)]
        raise ValueError(f"{type(module).__name__} holds variables that are no nnx.Param: {', '.join(names)}")
    flat = [(path, leaf.get_value()) for path, leaf in _flat(weights)]
    leaves = tuple((path, jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)) for path, leaf in flat)
    return Structure(graphdef, leaves), _nest({tuple(map(str, path)): leaf for path, leaf in flat})


@functools.lru_cache(maxsize=64)
def _nnx_model(structure: Structure, options: tuple[tuple[str, Any], ...]) -> Model:
    skeleton = structure.module()  # `init_cache` has no weights to work with, and needs none

    def apply(params: Weights, tokens: Array, cache: Cache, attend: Attend) -> Output:
        return structure.module(params)(tokens, cache, attend, **dict(options))

    commit = getattr(skeleton, "commit", None)
    cache_axes = kv.AXES if commit is None else ("rows",)  # a module with a layout of its own may say so
    return Model(skeleton.init_cache, apply, commit or kv.commit, functools.partial(axis_names, skeleton),
                 getattr(skeleton, "cache_axes", cache_axes))


@functools.lru_cache(maxsize=64)
def _linen_model(module: Any) -> Model:
    def apply(params: Weights, tokens: Array, cache: Cache, attend: Attend) -> Output:
        return module.apply(params, tokens, cache, attend)

    return Model(module.init_cache, apply, getattr(module, "commit", kv.commit))


def _flat(state: Any) -> list[tuple[Path, Any]]:
    return list(nnx.to_flat_state(state))


def _lookup(params: Weights, path: Path) -> Any:
    for key in path:
        params = params[str(key)]
    return params


def _nest(flat: dict[Path, Any]) -> dict[Any, Any]:
    tree: dict[Any, Any] = {}
    for path, leaf in flat.items():
        node = tree
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = leaf
    return tree


@functools.lru_cache(maxsize=64)
def with_vocabulary(model: Model, vocab_size: int) -> Model:
    """`model` scoring only its first `vocab_size` ids: for models of one tokenizer whose heads are padded differently.

    Rows behind the real vocabulary hold whatever training left there and may win an argmax; they are cut, not masked.
    """

    def apply(params: Weights, tokens: Array, cache: Cache, attend: Attend) -> Output:
        out = model.apply(params, tokens, cache, attend)
        if out.logits.shape[-1] < vocab_size:
            raise ValueError(f"the model scores {out.logits.shape[-1]} tokens, fewer than the {vocab_size} asked for")
        return Output(out.logits[..., :vocab_size], out.features, out.pending)

    return model._replace(apply=apply)
