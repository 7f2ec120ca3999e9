"""What is compiled of a pair: prefill, the whole loop, and the parts of a round as programs without loops."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.layout import Format, Layout
from jax.sharding import NamedSharding, PartitionSpec

import specjax
from specjax._src import decode
from specjax._src.generate import opened
from specjax._src.request import make_request
from specjax._src.sharding import cache_shapes
from specjax._src.types import Array, Attend, Cache, Params, Weights
from specjax.benchmarks.compiled.cases import Network, Pair

PROMPT = 512  # tokens of the padded prompt


def prefill(pair: Pair, batch: int, context: int, *, sampled: bool = True) -> Any:
    """The program that reads prompts and gives a state, traced."""
    decoder = specjax.speculative(pair.target.functions, pair.drafter)
    sampling = specjax.Sampling(temperature=float(sampled), seed=0)
    request = make_request(
        np.ones((batch, PROMPT), np.int32), max_new_tokens=context - PROMPT, capacity=context, sampling=sampling,
        most_drafts=pair.drafter.shape.num_speculative_tokens, num_samples=1, key=None, limits=None, eos_ids=(),
        stop=(), num_speculative_tokens=None, vocab_size=None)
    everywhere = NamedSharding(pair.mesh, PartitionSpec())
    request = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=everywhere), request)
    return opened.trace(decoder.rules, context - PROMPT, context, 1, _params(pair), request)


def loop(pair: Pair, state: Any) -> Any:
    """The program that runs rounds until every row has ended, the state donated, traced."""
    decoder = specjax.speculative(pair.target.functions, pair.drafter)
    run = jax.jit(functools.partial(decode.run, decoder.rules), donate_argnums=1)
    return run.trace(_params(pair), state, jax.ShapeDtypeStruct((), jnp.int32))


def one_pass(network: Network, mesh: Any, batch: int, tokens: int, capacity: int, *, tree: bool = False) -> Any:
    """One pass of a decoder over `tokens` a row, its logits and its cache with them, traced; it has no loops."""
    model = network.functions

    def score(params: Weights, ids: Array, cache: Cache, lengths: Array, ancestors: Array | None) -> tuple[Array, Any]:
        attend = Attend(lengths, lengths[:, None] + jnp.arange(tokens), jnp.ones(ids.shape, bool), ancestors)
        out = model.apply(params, ids, cache, attend)
        path = jnp.broadcast_to(jnp.arange(tokens), ids.shape) if tree else None
        return out.logits, model.commit(out.pending, path, lengths, lengths)

    cache = cache_shapes(network.functions, batch, capacity)
    everywhere = NamedSharding(mesh, PartitionSpec())
    shapes = [((batch, tokens), jnp.int32), ((batch,), jnp.int32)]
    ids, lengths = (jax.ShapeDtypeStruct(*shape, sharding=everywhere) for shape in shapes)
    ancestors = jax.ShapeDtypeStruct((batch, tokens, tokens), bool, sharding=everywhere) if tree else None
    return _free_layouts(score, 2, network.params, ids, cache, lengths, ancestors)


def head_pass(network: Network, mesh: Any, batch: int, tokens: int, capacity: int) -> Any:
    """One level of a draft head's tree, traced; it has no loops."""
    head = network.functions

    def score(
        params: Weights, hidden: Array, ids: Array, cache: Cache, lengths: Array, ancestors: Array
    ) -> tuple[Array, Array, Any]:
        attend = Attend(lengths, lengths[:, None] + jnp.zeros(tokens, jnp.int32), jnp.ones(ids.shape, bool), ancestors)
        out = head.apply(params, hidden, ids, cache, attend)
        return out.logits, out.hidden, head.commit(out.pending, None, lengths, lengths)

    everywhere = NamedSharding(mesh, PartitionSpec())
    shapes = [((batch, tokens, head.hidden_size), head.dtype), ((batch, tokens), jnp.int32)]
    hidden, ids = (jax.ShapeDtypeStruct(*shape, sharding=everywhere) for shape in shapes)
    lengths = jax.ShapeDtypeStruct((batch,), jnp.int32, sharding=everywhere)
    ancestors = jax.ShapeDtypeStruct((batch, tokens, tokens), bool, sharding=everywhere)
    cache = cache_shapes(network.functions, batch, capacity)
    return _free_layouts(score, 3, network.params, hidden, ids, cache, lengths, ancestors)


def _free_layouts(function: Any, donated: int, *arguments: Any) -> Any:
    """Traced with layouts of arguments and results left to the compiler, as those are that a loop carries."""

    def free(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: Format(Layout.AUTO, leaf.sharding), tree)

    results = (None,) * (len(jax.eval_shape(function, *arguments)) - 1)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), arguments)
    return jax.jit(function, donate_argnums=donated, in_shardings=free(arguments),
                   out_shardings=(*results, free(arguments[donated]))).trace(*shapes)


def _params(pair: Pair) -> Params:
    return Params(pair.target.params, None if pair.draft is None else pair.draft.params)
