"""The pairs that are compiled: published shapes, abstract weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

import specjax
from specjax._src.types import Drafter, DraftHead, Weights
from specjax.models import Decoder, DecoderConfig, Eagle3, Eagle3Config, from_nnx, head_from_nnx
from specjax.models.rope import RopeScaling
from specjax.sharding import RULES, shard

DTYPE = jnp.bfloat16
LLAMA: dict[str, Any] = {
    "vocab_size": 128_256, "num_kv_heads": 8, "max_position": 131_072, "rope_theta": 5e5,
    "rms_norm_eps": 1e-5}  # fmt: skip
LLAMA_1B = DecoderConfig(
    hidden_size=2048, num_layers=16, num_heads=32, head_dim=64, intermediate_size=8192, tie_embeddings=True,
    rope_scaling=RopeScaling("llama3", 32.0, 8192), **LLAMA)  # fmt: skip
LLAMA_8B = DecoderConfig(
    hidden_size=4096, num_layers=32, num_heads=32, head_dim=128, intermediate_size=14_336, tie_embeddings=False,
    rope_scaling=RopeScaling("llama3", 8.0, 8192), **LLAMA)  # fmt: skip
LLAMA_70B = DecoderConfig(
    hidden_size=8192, num_layers=80, num_heads=64, head_dim=128, intermediate_size=28_672, tie_embeddings=False,
    rope_scaling=RopeScaling("llama3", 8.0, 8192), **LLAMA)  # fmt: skip
WIDTH = 8  # nodes that the head expands at each depth
TARGETS = {"llama-8b": LLAMA_8B, "llama-70b": LLAMA_70B}


class Network(NamedTuple):
    """A network laid out over a mesh, with shapes for weights.

    Attributes:
      functions: a `Model` or a `DraftHead`.
      params: `jax.ShapeDtypeStruct`s with shardings.
    """

    functions: Any
    params: Weights


class Pair(NamedTuple):
    """A target and its drafter on a mesh.

    Attributes:
      name: for tables.
      mesh: the chips.
      target: its functions and weights.
      draft: those of the draft, or None.
      drafter: made of it.
    """

    name: str
    mesh: Mesh
    target: Network
    draft: Network | None
    drafter: Drafter


def decoder(config: DecoderConfig, mesh: Mesh, dtype: Any = DTYPE, **options: Any) -> Network:
    """A decoder of this shape; `attention="einsum"` among the options makes a pass without loops."""
    module = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0), dtype=dtype))
    return Network(*shard(*from_nnx(module, **options), mesh, RULES))


def eagle3(target: DecoderConfig, mesh: Mesh, dtype: Any = DTYPE, **options: Any) -> Network:
    """The head as published for Llama 3.1: one layer, three taps, a draft vocabulary of 32,000."""
    config = Eagle3Config.for_target(target, draft_vocab_size=32_000)
    module = nnx.eval_shape(lambda: Eagle3(config, rngs=nnx.Rngs(0), dtype=dtype))
    head, params = head_from_nnx(module, **options)
    assert isinstance(head, DraftHead)  # Medusa heads alone are of another kind
    return Network(*shard(head, params, mesh, RULES, vocab_size=target.vocab_size))


def plain(target: DecoderConfig, mesh: Mesh, attention: str = "auto") -> Pair:
    """The target alone."""
    return Pair("plain", mesh, decoder(target, mesh, attention=attention), None, specjax.draft.null())


def with_model(target: DecoderConfig, mesh: Mesh, attention: str = "auto", k: int = 5) -> Pair:
    """A chain of `k` from Llama-3.2-1B, judged by block verification."""
    draft, main = (decoder(config, mesh, attention=attention) for config in (LLAMA_1B, target))
    return Pair("1b draft", mesh, main, draft, specjax.draft.from_model(draft.functions, k))


def with_eagle3(
    target: DecoderConfig, mesh: Mesh, attention: str = "auto", num_nodes: int = 32, depth: int = 5
) -> Pair:
    """A tree that each row grows with an EAGLE-3 head."""
    head = eagle3(target, mesh, attention=attention)
    drafter = specjax.draft.eagle3(head.functions, num_nodes, depth, WIDTH)
    return Pair("eagle3 tree", mesh, decoder(target, mesh, attention=attention), head, drafter)


PAIRS: dict[str, Callable[..., Pair]] = {
    "plain": plain, "1b draft": with_model, "eagle3 tree": with_eagle3}  # fmt: skip
