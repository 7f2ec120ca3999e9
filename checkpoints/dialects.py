"""Reading a Hugging Face `config.json`, as its authors published it or as transformers 5 writes it.

The two dialects differ in where the rotary settings stand (`rope_theta` and `rope_scaling`, or `rope_parameters`), and
files leave out what their family takes for granted; `DEFAULTS` fills that in. What the decoder can not do is refused.
"""

from __future__ import annotations

from typing import Any

from specjax.models import DecoderConfig
from specjax.models.rope import RopeScaling, yarn_attention_factor

Values = dict[str, Any]

_GEMMA: Values = {
    "head_dim": 256, "tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh", "vocab_size": 256000,
}  # fmt: skip
_QWEN: Values = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
DEFAULTS: dict[str, Values] = {
    "llama": {},
    "mistral": {"sliding_window": 4096},
    "qwen2": _QWEN,
    "qwen3": {**_QWEN, "head_dim": 128},
    "gemma": _GEMMA,
    "gemma2": {
        **_GEMMA, "num_attention_heads": 8, "num_key_value_heads": 4, "query_pre_attn_scalar": 256,
        "sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    },
    "gemma3_text": {
        **_GEMMA, "num_attention_heads": 8, "num_key_value_heads": 4, "query_pre_attn_scalar": 256,
        "sliding_window": 4096, "max_position_embeddings": 131072, "vocab_size": 262208,
    },
}  # fmt: skip
"""What a file of a family may leave out, beside what `COMMON` says for all."""

COMMON: Values = {"rms_norm_eps": 1e-6, "tie_word_embeddings": False, "hidden_act": "silu", "attention_bias": False}
ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}
SIZES = {
    "vocab_size": "vocab_size", "hidden_size": "hidden_size", "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads", "intermediate_size": "intermediate_size",
    "max_position": "max_position_embeddings",
}  # fmt: skip


def decoder_config(values: Values) -> DecoderConfig:
    """The decoder that a Hugging Face config describes; `vocab_size` counts all rows of the embedding.

    Args:
      values: the parsed `config.json`. Of a multimodal Gemma 3 only the text part is read.

    Raises:
      ValueError: for an unknown `model_type`, missing fields (each named), or a setting the decoder does not have.
    """
    if values.get("model_type") == "gemma3":
        values = {"model_type": "gemma3_text", **values.get("text_config", {})}
    family = values.get("model_type")
    if family not in DEFAULTS:
        raise ValueError(f"model_type {family!r} is not among those that convert: {', '.join(DEFAULTS)}")
    values = {**COMMON, **DEFAULTS[family], **values}
    if values.get("num_key_value_heads") is None and family == "llama":
        values["num_key_value_heads"] = values.get("num_attention_heads")
    missing = sorted(name for name in (*SIZES.values(), "num_key_value_heads") if values.get(name) is None)
    if missing:
        raise ValueError(f"the {family} config lacks {', '.join(missing)}")
    if values.get("use_bidirectional_attention"):
        raise ValueError("use_bidirectional_attention is set; a decoder sees only what stands before")
    fields = {ours: values[theirs] for ours, theirs in SIZES.items()}
    return DecoderConfig(
        **fields, num_kv_heads=values["num_key_value_heads"],
        head_dim=values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"],
        rms_norm_eps=values["rms_norm_eps"], tie_embeddings=bool(values["tie_word_embeddings"]),
        **_rope(family, values), **_window(family, values), **_biases(family, values), **_gemma(family, values),
        qk_norm=family in ("qwen3", "gemma3_text"), activation=_activation(family, values),
    )  # fmt: skip


def _biases(family: str, values: Values) -> Values:
    everywhere = family != "mistral" and bool(values["attention_bias"])
    if family == "qwen2":
        return {"qkv_bias": True}
    mlp = family == "llama" and bool(values.get("mlp_bias"))
    return {"qkv_bias": everywhere, "out_bias": everywhere, "mlp_bias": mlp}


def _activation(family: str, values: Values) -> str:
    name = values["hidden_activation"] if family in ("gemma2", "gemma3_text") else values["hidden_act"]
    if family == "gemma":
        return "gelu_tanh"  # old files say "gelu" and mean its approximation
    if name not in ACTIVATIONS:
        raise ValueError(f"activation {name!r} is not among {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[name]


def _gemma(family: str, values: Values) -> Values:
    if not family.startswith("gemma"):
        return {}
    fields: Values = {"unit_offset_norm": True, "scale_embedding": True}
    if family == "gemma":
        return fields
    if family == "gemma3_text" and values.get("attn_logit_softcapping") is not None:
        raise ValueError("this gemma3 config sets attn_logit_softcapping, which Gemma 3 does not have")
    return fields | {
        "post_norms": True,
        "attention_scale": values["query_pre_attn_scalar"] ** -0.5,
        "attention_softcap": values.get("attn_logit_softcapping"),
        "final_softcap": values.get("final_logit_softcapping"),
    }


def _window(family: str, values: Values) -> Values:
    window, layers = values.get("sliding_window"), range(values["num_hidden_layers"])
    if family in ("llama", "gemma") or window is None:
        return {}
    if family in ("qwen2", "qwen3") and not values["use_sliding_window"]:
        return {}
    pattern = values.get("sliding_window_pattern") or 6
    slides = {
        "mistral": lambda i: True,
        "qwen2": lambda i: i >= values["max_window_layers"],
        "qwen3": lambda i: i >= values["max_window_layers"],
        "gemma2": lambda i: i % 2 == 0,
        "gemma3_text": lambda i: (i + 1) % pattern != 0,
    }[family]
    types = values.get("layer_types")
    if types is not None:
        slides = lambda i: types[i] == "sliding_attention"  # noqa: E731
    chosen = tuple(i for i in layers if slides(i))
    return {"sliding_window": window, "sliding_layers": chosen} if chosen else {}


def _rope(family: str, values: Values) -> Values:
    given: Values = values.get("rope_parameters") or {}
    if family == "gemma3_text":
        near: Values = given.get("sliding_attention") or {}
        far: Values = given.get("full_attention") or {}
        if near.get("rope_type", "default") != "default":
            raise ValueError(f"sliding layers with rope_type {near['rope_type']!r} are not supported, only 'default'")
        theta = far.get("rope_theta") or values.get("rope_theta") or 1e6
        own = near.get("rope_theta") or values.get("rope_local_base_freq") or 1e4
        return {"rope_theta": float(theta), "sliding_rope_theta": float(own), "rope_scaling": _scaling(values, far)}
    theta = given.get("rope_theta") or values.get("rope_theta") or 1e4
    return {"rope_theta": float(theta), "rope_scaling": _scaling(values, given)}


def _scaling(values: Values, parameters: Values) -> RopeScaling:
    s = {**(values.get("rope_scaling") or {}), **parameters}
    kind = s.get("rope_type") or s.get("type") or "default"
    if s.get("partial_rotary_factor", values.get("partial_rotary_factor") or 1.0) != 1.0:
        raise ValueError("partial_rotary_factor other than 1 is not supported: every coordinate of a head turns")
    if kind == "default":
        return RopeScaling()
    if kind == "linear":
        return RopeScaling("linear", float(s["factor"]))
    original = s.get("original_max_position_embeddings") or values.get("original_max_position_embeddings")
    original = original or values["max_position_embeddings"]
    if kind == "llama3":
        return RopeScaling(
            "llama3", float(s["factor"]), original, low_freq_factor=float(s["low_freq_factor"]),
            high_freq_factor=float(s["high_freq_factor"]))
    if kind == "yarn":
        return _yarn(s, original, values["max_position_embeddings"])
    raise ValueError(
        f"rope_type {kind!r} is not supported, only default, linear, llama3 and yarn: where the rates change with the "
        "length of the text, a cached key would have to be turned anew")


def _yarn(s: Values, original: int, longest: int) -> RopeScaling:
    factor = float(s.get("factor") or longest / original)
    sharper = s.get("attention_factor")
    if sharper is None:
        sharper = yarn_attention_factor(factor)
        if s.get("mscale") and s.get("mscale_all_dim"):
            over = yarn_attention_factor(factor, s["mscale_all_dim"])
            sharper = yarn_attention_factor(factor, s["mscale"]) / over
    return RopeScaling(
        "yarn", factor, original, beta_fast=float(s.get("beta_fast") or 32), beta_slow=float(s.get("beta_slow") or 1),
        truncate=bool(s.get("truncate", True)), attention_factor=float(sharper))
