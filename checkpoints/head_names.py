"""How a published tensor of a draft head becomes a weight of ours, and back: one row for each kind of tensor.

Published files of one family differ in what they call a tensor. Each has a plain name, which for EAGLE is that of the
authors' own files, and for Medusa `HEAD.BLOCK.linear.weight` and `HEAD.output.weight`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import jax
from flax import nnx

from specjax.checkpoints.names import OLD_BUFFERS, ROWS, SAME, TURNED, TWO_NORMS, Form, Path, Tensor
from specjax.models import head_from_nnx
from specjax.models.head_config import HeadConfig
from specjax.models.heads import MODULES, own

EMBEDDING, HEAD, OFFSETS, MASK, TOKEN_MAP = "embed_tokens.weight", "lm_head.weight", "d2t", "t2d", "token_map"
LAYER = {ours: (theirs.removeprefix("model."), form) for ours, theirs, form in ROWS + TWO_NORMS if "{i}" in ours}
EAGLE: dict[str, tuple[str, Form]] = {"fc": ("fc.weight", TURNED), "fc_bias": ("fc.bias", SAME)}
EAGLE3 = EAGLE | {
    "tap_norms.{i}.scale": ("fc_norm.{i}.weight", SAME),
    "fc_input_norm.scale": ("input_norm.weight", SAME),
    "embedding_norm.scale": ("midlayer.input_layernorm.weight", SAME),
    "hidden_norm.scale": ("midlayer.hidden_norm.weight", SAME),
    "norm.scale": ("norm.weight", SAME),
    "own_embedding": (EMBEDDING, SAME),
    "output": (HEAD, TURNED),
}
MEDUSA: dict[str, tuple[str, Form]] = {
    "heads.{i}.blocks.{j}.kernel": ("{i}.{j}.linear.weight", TURNED),
    "heads.{i}.blocks.{j}.bias": ("{i}.{j}.linear.bias", SAME),
    "heads.{i}.output": ("{i}.output.weight", TURNED),
}
TABLES = {"medusa": MEDUSA, "eagle": EAGLE | LAYER, "eagle3": EAGLE3 | LAYER}

# What others call them, as patterns and what stands instead.
RENAMED: dict[str, list[tuple[str, str]]] = {
    "medusa": [
        (r"^medusa_heads?\.", ""),
        (r"^blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)$", r"\1.\2.linear.\3"),  # vLLM
        (r"^lm_heads\.(\d+)\.weight$", r"\1.output.weight"),
        (r"^(\d+)\.medusa_layers\.", r"\1."),  # TensorRT-LLM
        (r"^(\d+)\.lm_head\.weight$", r"\1.output.weight"),
        (r"^(\d+)\.\d+\.weight$", r"\1.output.weight"),  # the authors count it as one more block
    ],
    "eagle": [(r"^model\.", ""), (r"^eagle_linear\.", "fc.")],
    "eagle3": [
        (r"^model\.", ""),
        (r"^layers\.0\.", "midlayer."),  # speculators, NVIDIA
        (r"^layers\.(\d+)\.hidden_norm\.", r"layers.\1.input_layernorm."),  # SGLang, in layers behind the first
        (r"^aux_norm_low\.", "fc_norm.0."), (r"^aux_norm_mid\.", "fc_norm.1."), (r"^aux_norm_high\.", "fc_norm.2."),
    ],
}  # fmt: skip

LAYOUTS: dict[str, dict[str, list[tuple[str, str]]]] = {
    "medusa": {
        "vllm": [
            (r"^(\d+)\.(\d+)\.linear\.", r"blocks.\1.layers.\2."),
            (r"^(\d+)\.output\.weight$", r"lm_heads.\1.weight"),
        ]
    },
    "eagle": {"official": [], "sglang": []},
    "eagle3": {"official": [], "speculators": [(r"^midlayer\.", "layers.0.")]},
}
"""For each family the forms in which heads are written, the usual one first, with what they call a plain name."""


def tensors(config: HeadConfig) -> list[Tensor]:
    """Every tensor that is a head's own, without its draft vocabulary, in their order; `name` is the plain one."""
    module = MODULES[config.family][1]
    _, weights = head_from_nnx(nnx.eval_shape(lambda: module(config, rngs=nnx.Rngs(0))))
    found = []
    for keys, leaf in jax.tree_util.tree_leaves_with_path(own(weights)):
        path = tuple(str(key.key) for key in keys)
        if path == ("draft_ids",):
            continue
        name, form = their_name(config.family, path)
        found.append(Tensor(path, name, form, leaf.shape, jax.eval_shape(form.theirs, leaf).shape))
    return found


def their_name(family: str, path: Path) -> tuple[str, Form]:
    """The plain name of a weight, and the change of layout."""
    numbers = [key for key in path if key.isdigit()]
    places = iter("ij")
    theirs, form = TABLES[family][".".join(f"{{{next(places)}}}" if key.isdigit() else key for key in path)]
    name = theirs.format(**dict(zip("ij", numbers, strict=False)))
    return (re.sub(r"^layers\.0\.", "midlayer.", name) if family == "eagle3" else name), form


def plain_name(family: str, name: str) -> str | None:
    """The plain name of a tensor in a file; None for buffers of old files."""
    return None if OLD_BUFFERS.search(name) else _renamed(name, RENAMED[family])


def written_name(family: str, layout: str) -> Callable[[str], str]:
    """From plain names to those of a layout."""
    return lambda name: _renamed(name, LAYOUTS[family][layout])


def _renamed(name: str, rules: list[tuple[str, str]]) -> str:
    for pattern, instead in rules:
        name = re.sub(pattern, instead, name)
    return name
