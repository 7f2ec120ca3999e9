"""A GGUF file's metadata as a Hugging Face config, in the names that `dialects` reads.

GGUF names the same numbers otherwise (`qwen2.embedding_length`), leaves out what llama.cpp knows by heart, and spells
the Llama 3 frequencies as a tensor of factors.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from specjax.checkpoints.rope_fields import rope_fields
from specjax.models.rope import frequencies

Values = dict[str, Any]

FAMILIES = {
    "llama": ("llama", "LlamaForCausalLM"),  # Mistral too: it has no name of its own there, nor a window
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
}
NAMES = {
    "hidden_size": "embedding_length", "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "intermediate_size": "feed_forward_length", "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon", "rope_theta": "rope.freq_base",
    "head_dim": "attention.key_length", "sliding_window": "attention.sliding_window",
    "rope_local_base_freq": "rope.freq_base_swa", "final_logit_softcapping": "final_logit_softcapping",
}  # fmt: skip
NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings",
          "rms_norm_eps")  # fmt: skip
LLAMA3: Values = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                  "original_max_position_embeddings": 8192}  # fmt: skip
"""What all Llama 3 models with long texts share; the factor is read off the tensor."""
SCALING = {
    "factor": "factor", "original_context_length": "original_max_position_embeddings", "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}  # fmt: skip
GEMMA3_PATTERN, GEMMA3_27B_LAYERS = 6, 62


def config_values(
    metadata: Values, rows: int, layers: int, tied: bool, biased: bool, factors: np.ndarray | None
) -> Values:
    """The config that a GGUF file describes.

    Args:
      metadata: the file's fields by name, as Python values.
      rows: of the embedding.
      layers: that there are tensors of.
      tied: whether there is no tensor for the output head.
      biased: whether the output of attention has a bias.
      factors: `rope_freqs.weight`, if there is one: what each rotary frequency is divided by.

    Raises:
      ValueError: for an architecture, or a setting of one, that the decoder does not have.
    """
    family = metadata.get("general.architecture")
    if family not in list(FAMILIES):  # of a damaged file it need be no string
        raise ValueError(f"the architecture {family!r} is not among those that convert: {', '.join(FAMILIES)}")
    own = {name.removeprefix(f"{family}."): _short(value) for name, value in metadata.items()}
    model_type, architecture = FAMILIES[family]
    values: Values = {"model_type": model_type, "architectures": [architecture], "vocab_size": rows}
    values |= {ours: own[theirs] for ours, theirs in NAMES.items() if own.get(theirs)}  # a window or cap of 0 is none
    values |= {"tie_word_embeddings": tied, "attention_bias": biased, "torch_dtype": "float32"}
    _refuse_others(own, values)
    if values["num_hidden_layers"] != layers:
        raise ValueError(f"block_count is {values['num_hidden_layers']}, and there are tensors of {layers} layers")
    values.setdefault("head_dim", values["hidden_size"] // values["num_attention_heads"])
    values.setdefault("num_key_value_heads", values["num_attention_heads"])
    if family == "gemma3":
        values |= _gemma3(own, values)
    else:
        values.pop("sliding_window", None)  # llama.cpp gives these architectures none
    scaling = _scaling(own)
    if factors is not None:
        if scaling:
            raise ValueError("rope.scaling and rope_freqs.weight both change the frequencies; only one of them may")
        scaling = _llama3(values, factors)
    return values | ({"rope_scaling": scaling} if scaling else {})


def _short(value: Any) -> Any:
    """float32 as the number its author wrote: 1e-06, not 9.999999974752427e-07."""
    return float(str(np.float32(value))) if isinstance(value, float) else value


def _refuse_others(own: Values, values: Values) -> None:
    lists = sorted(name for name, value in values.items() if isinstance(value, list) and name != "architectures")
    if lists:
        raise ValueError(f"{', '.join(lists)} differ from layer to layer; the decoder has equal layers only")
    lacking = [theirs for ours, theirs in NAMES.items() if not _is_number(values.get(ours), needed=ours in NEEDED)]
    if lacking:
        raise ValueError(f"no number is given for {', '.join(lacking)}")
    if own.get("expert_count"):
        raise ValueError(f"a mixture of {own['expert_count']} experts; only dense models convert")
    width = own.get("attention.key_length", values["hidden_size"] // values["num_attention_heads"])
    for name in ("attention.value_length", "rope.dimension_count"):
        if own.get(name, width) != width:
            raise ValueError(f"{name} is {own[name]}, heads are {width} wide; the decoder needs them equal")


def _is_number(value: Any, needed: bool) -> bool:
    return isinstance(value, int | float) and value > 0 if value is not None else not needed


def _gemma3(own: Values, values: Values) -> Values:
    layers, pattern = values["num_hidden_layers"], own.get("attention.sliding_window_pattern", GEMMA3_PATTERN)
    if isinstance(pattern, list) and len(pattern) != layers:
        raise ValueError(f"attention.sliding_window_pattern has {len(pattern)} entries for {layers} layers")
    slides = pattern if isinstance(pattern, list) else [(i + 1) % pattern != 0 for i in range(layers)]
    if "sliding_window" not in values:
        slides = [False] * layers
    big = layers == GEMMA3_27B_LAYERS  # the one size that scales its scores by another width
    return {
        "layer_types": ["sliding_attention" if sliding else "full_attention" for sliding in slides],
        "query_pre_attn_scalar": values["hidden_size"] // values["num_attention_heads"] if big else values["head_dim"],
        "rope_local_base_freq": values.get("rope_local_base_freq", 10000.0),
        "hidden_activation": "gelu_pytorch_tanh",
    }


def _scaling(own: Values) -> Values | None:
    given = {name.removeprefix("rope.scaling."): own[name] for name in own if name.startswith("rope.scaling.")}
    if "rope.scale_linear" in own:  # the name of old files
        given.setdefault("factor", own["rope.scale_linear"])
    kind = given.get("type", "linear" if given.get("factor", 0) else "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise ValueError(f"rope.scaling.type is {kind!r}, only none, linear and yarn are supported")
    if not given.get("factor"):
        raise ValueError(f"rope.scaling.type is {kind}, and there is no rope.scaling.factor")
    # Versions of llama.cpp disagree on what these multiply; at 1 they change nothing in any of them.
    others = sorted(given.keys() - SCALING.keys() - {"type", "finetuned"})
    changed = [f"{name} = {given[name]}" for name in others if given[name] != 1]
    if changed:
        raise ValueError(f"rope.scaling has {', '.join(changed)}, which can not be expressed")
    return {"rope_type": kind} | {theirs: given[ours] for ours, theirs in SCALING.items() if ours in given}


def _llama3(values: Values, factors: np.ndarray) -> Values:
    """The settings behind the factors, found by their largest and checked against all of them."""
    head_dim, theta = values["head_dim"], values.get("rope_theta", 10000.0)
    refusal = "rope_freqs.weight holds other factors than Llama 3 models have; they can not be expressed"
    if factors.shape != (head_dim // 2,):
        raise ValueError(refusal)
    scaling = {**LLAMA3, "factor": float(np.max(factors))}
    settings = rope_fields({"rope_scaling": scaling}, by_layer=False)["rope_scaling"]
    expected = frequencies(head_dim, theta) / frequencies(head_dim, theta, settings)
    if not np.allclose(factors, expected, rtol=1e-4):
        raise ValueError(refusal)
    return scaling
