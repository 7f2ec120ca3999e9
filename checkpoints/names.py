"""How a Hugging Face tensor becomes a weight of the decoder, and back: one row for each kind of tensor.

A torch kernel is stored `[out, in]`, ours `[in, out]` with the heads split. Both ways are views and copies, never
arithmetic, so that a round trip returns every byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from flax import nnx

from specjax.models import Decoder, DecoderConfig, from_nnx

Path = tuple[str, ...]


class Form(NamedTuple):
    """A change of layout: `ours(tensor, head_dim)` and its inverse `theirs(weight)`."""

    ours: Callable[[Any, int], Any]
    theirs: Callable[[Any], Any]


SAME = Form(lambda a, d: a, lambda a: a)
TURNED = Form(lambda a, d: a.T, lambda a: a.T)  # [out, in] <-> [in, out]
HEADS_OUT = Form(  # [H d, D] <-> [D, H, d]
    lambda a, d: a.reshape(-1, d, a.shape[1]).transpose(2, 0, 1),
    lambda a: a.transpose(1, 2, 0).reshape(-1, a.shape[0]),
)
HEADS_IN = Form(  # [D, H d] <-> [H, d, D]
    lambda a, d: a.reshape(a.shape[0], -1, d).transpose(1, 2, 0),
    lambda a: a.transpose(2, 0, 1).reshape(a.shape[2], -1),
)
HEADS = Form(lambda a, d: a.reshape(-1, d), lambda a: a.reshape(-1))  # [H d] <-> [H, d]

# Ours, theirs, form. `{i}` is the number of a layer.
ROWS: tuple[tuple[str, str, Form], ...] = (
    ("embedding", "model.embed_tokens.weight", SAME),
    ("norm.scale", "model.norm.weight", SAME),
    ("head", "lm_head.weight", TURNED),
    ("layers.{i}.attention_norm.scale", "model.layers.{i}.input_layernorm.weight", SAME),
    ("layers.{i}.attention.query", "model.layers.{i}.self_attn.q_proj.weight", HEADS_OUT),
    ("layers.{i}.attention.key", "model.layers.{i}.self_attn.k_proj.weight", HEADS_OUT),
    ("layers.{i}.attention.value", "model.layers.{i}.self_attn.v_proj.weight", HEADS_OUT),
    ("layers.{i}.attention.out", "model.layers.{i}.self_attn.o_proj.weight", HEADS_IN),
    ("layers.{i}.attention.query_bias", "model.layers.{i}.self_attn.q_proj.bias", HEADS),
    ("layers.{i}.attention.key_bias", "model.layers.{i}.self_attn.k_proj.bias", HEADS),
    ("layers.{i}.attention.value_bias", "model.layers.{i}.self_attn.v_proj.bias", HEADS),
    ("layers.{i}.attention.out_bias", "model.layers.{i}.self_attn.o_proj.bias", SAME),
    ("layers.{i}.attention.query_norm.scale", "model.layers.{i}.self_attn.q_norm.weight", SAME),
    ("layers.{i}.attention.key_norm.scale", "model.layers.{i}.self_attn.k_norm.weight", SAME),
    ("layers.{i}.mlp.gate", "model.layers.{i}.mlp.gate_proj.weight", TURNED),
    ("layers.{i}.mlp.up", "model.layers.{i}.mlp.up_proj.weight", TURNED),
    ("layers.{i}.mlp.down", "model.layers.{i}.mlp.down_proj.weight", TURNED),
    ("layers.{i}.mlp.gate_bias", "model.layers.{i}.mlp.gate_proj.bias", SAME),
    ("layers.{i}.mlp.up_bias", "model.layers.{i}.mlp.up_proj.bias", SAME),
    ("layers.{i}.mlp.down_bias", "model.layers.{i}.mlp.down_proj.bias", SAME),
)
# The name `post_attention_layernorm` means the norm before the MLP, unless there are norms behind both sublayers.
TWO_NORMS = (("layers.{i}.mlp_norm.scale", "model.layers.{i}.post_attention_layernorm.weight", SAME),)
FOUR_NORMS = (
    ("layers.{i}.attention_post_norm.scale", "model.layers.{i}.post_attention_layernorm.weight", SAME),
    ("layers.{i}.mlp_norm.scale", "model.layers.{i}.pre_feedforward_layernorm.weight", SAME),
    ("layers.{i}.mlp_post_norm.scale", "model.layers.{i}.post_feedforward_layernorm.weight", SAME),
)

OLD_BUFFERS = re.compile(r"\.(rotary_emb\.inv_freq|attn\.bias|attn\.masked_bias|attention\.(masked_)?bias)$")
OTHER_PARTS = re.compile(r"^(model\.)?(vision_tower|multi_modal_projector)\.")
PREFIXES = (("language_model.model.", "model."), ("model.language_model.", "model."), ("language_model.", ""))


class Tensor(NamedTuple):
    """One tensor of a model, on both sides.

    Attributes:
      path: of the weight in our nested dicts.
      name: in a Hugging Face file.
      form: the change of layout.
      ours: shape of the weight.
      theirs: shape of the Hugging Face tensor.
    """

    path: Path
    name: str
    form: Form
    ours: tuple[int, ...]
    theirs: tuple[int, ...]


def tensors(config: DecoderConfig) -> list[Tensor]:
    """Every tensor of a decoder, in the order of its names."""
    rows = {ours: (theirs, form) for ours, theirs, form in ROWS + (FOUR_NORMS if config.post_norms else TWO_NORMS)}
    _, weights = from_nnx(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))
    found = []
    for keys, leaf in jax.tree_util.tree_leaves_with_path(weights):
        path = tuple(str(key.key) for key in keys)
        index = path[1] if path[0] == "layers" else ""
        theirs, form = rows[".".join(("layers", "{i}", *path[2:]) if index else path)]
        shape = jax.eval_shape(form.theirs, leaf).shape
        found.append(Tensor(path, theirs.format(i=index), form, leaf.shape, shape))
    return found


def plain_name(name: str) -> str | None:
    """A tensor's name without what multimodal and base-model files put around it; None if it is no part of the text
    model: buffers of old files, and the parts that see."""
    if OLD_BUFFERS.search(name) or OTHER_PARTS.search(name):
        return None
    for prefix, instead in PREFIXES:
        if name.startswith(prefix):
            return instead + name.removeprefix(prefix)
    bare = name.startswith(("layers.", "embed_tokens.", "norm."))
    return f"model.{name}" if bare else name
