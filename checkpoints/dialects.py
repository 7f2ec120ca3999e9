"""Reading a Hugging Face `config.json`, as its authors published it or as transformers 5 writes it.

The two dialects differ in where the rotary settings stand (`rope_theta` and `rope_scaling`, or `rope_parameters`), and
files leave out what their family takes for granted; `DEFAULTS` fills that in. What the decoder can not do is refused.
"""

from __future__ import annotations

from typing import Any

from specjax.checkpoints.rope_fields import LAYERS, rope_fields
from specjax.models import DecoderConfig

Values = dict[str, Any]

_GEMMA: Values = {
    "head_dim": 256, "tie_word_embeddings": True, "hidden_act": "gelu_pytorch_tanh",
    "hidden_activation": "gelu_pytorch_tanh", "vocab_size": 256000,
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
        if not isinstance(values.get("text_config"), dict):
            raise ValueError("this gemma3 config has no text_config, which describes the part that converts")
        values = {"model_type": "gemma3_text", **values["text_config"]}
    family = values.get("model_type")
    if not isinstance(family, str) or family not in DEFAULTS:
        raise ValueError(f"model_type {family!r} is not among those that convert: {', '.join(DEFAULTS)}")
    values = {**COMMON, **DEFAULTS[family], **values}
    if values.get("num_key_value_heads") is None and family == "llama":
        values["num_key_value_heads"] = values.get("num_attention_heads")
    _check(family, values)
    fields = {ours: values[theirs] for ours, theirs in SIZES.items()}
    return DecoderConfig(
        **fields, num_kv_heads=values["num_key_value_heads"],
        head_dim=values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"],
        rms_norm_eps=values["rms_norm_eps"], tie_embeddings=bool(values["tie_word_embeddings"]),
        **rope_fields(values, by_layer=family == "gemma3_text"), **_window(family, values),
        **_biases(family, values), **_gemma(family, values),
        qk_norm=family in ("qwen3", "gemma3_text"), activation=_activation(family, values),
    )  # fmt: skip


def _check(family: str, values: Values) -> None:
    """What every family needs, and what none has."""
    numbers = {name: values.get(name) for name in (*SIZES.values(), "num_key_value_heads")}
    missing = sorted(name for name, number in numbers.items() if number is None)
    if missing:
        raise ValueError(f"the {family} config lacks {', '.join(missing)}")
    wrong = sorted(f"{name} {number!r}" for name, number in numbers.items() if type(number) is not int or number < 1)
    if wrong:
        raise ValueError(f"the {family} config has {', '.join(wrong)}; each must be a positive whole number")
    if values.get("use_bidirectional_attention"):
        raise ValueError("use_bidirectional_attention is set; a decoder sees only what stands before")
    if values.get("quantization_config"):
        method = dict(values["quantization_config"]).get("quant_method")
        raise ValueError(
            f"these weights are quantised (quantization_config: {method}); convert the float32, bfloat16 or float16 "
            "weights they were made from"
        )


def _biases(family: str, values: Values) -> Values:
    everywhere = family != "mistral" and bool(values["attention_bias"])
    if family == "qwen2":
        return {"qkv_bias": True}
    mlp = family == "llama" and bool(values.get("mlp_bias"))
    return {"qkv_bias": everywhere, "out_bias": everywhere, "mlp_bias": mlp}


def _activation(family: str, values: Values) -> str:
    name = values["hidden_activation"] if family in ("gemma2", "gemma3_text") else values["hidden_act"]
    if family == "gemma" and name == "gelu":
        return "gelu_tanh"  # old files say so and mean the approximation
    if not isinstance(name, str) or name not in ACTIVATIONS:
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
    scalar = values["query_pre_attn_scalar"]
    if not isinstance(scalar, int | float) or scalar <= 0:
        raise ValueError(f"the {family} config has query_pre_attn_scalar {scalar!r}; it must be a positive number")
    return fields | {
        "post_norms": True,
        "attention_scale": scalar**-0.5,
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
        if len(types) != len(layers) or not set(types) <= set(LAYERS):
            raise ValueError(
                f"layer_types must give one of {', '.join(LAYERS)} for each of {len(layers)} layers, got "
                f"{len(types)}: {', '.join(sorted(map(str, set(types))))}"
            )
        slides = lambda i: types[i] == "sliding_attention"  # noqa: E731
    chosen = tuple(i for i in layers if slides(i))
    return {"sliding_window": window, "sliding_layers": chosen} if chosen else {}
