"""One row for each configuration under test: `transformers`' model type and settings, and the switches it proves.

A mutation changes one field of our config and keeps the weights; it must break parity.
"""

from specjax.models.rope import RopeScaling

# Widths that no wrong transpose fits, a window that the prompt leaves behind, and a rope limit that it crosses.
SIZES = {
    "vocab_size": 96, "hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 56, "num_hidden_layers": 2, "max_position_embeddings": 64,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
WINDOW, ORIGINAL = 8, 16
PROMPT, STEPS = 40, 6


def rope(kind, theta=1e4, **fields):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **fields}}


LLAMA3 = rope("llama3", 5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=ORIGINAL)
# With these the blend goes over several of the eight pairs; the usual ones would put its two ends into one.
BLEND = {"factor": 4.0, "original_max_position_embeddings": ORIGINAL, "beta_fast": 2.0, "beta_slow": 0.25}
YARN = rope("yarn", 100.0, **BLEND)
YARN_HALF = rope("yarn", 100.0, truncate=False, attention_factor=1.3, **BLEND)
GEMMA3_ROPE = {"rope_parameters": {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}

FAMILIES = {
    "llama2": ("llama", {**rope("default"), "rms_norm_eps": 1e-2}),
    "llama3.1": ("llama", LLAMA3),
    "llama-biased-tied": ("llama", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "llama-linear": ("llama", rope("linear", factor=4.0)),
    "smollm2": ("llama", {"tie_word_embeddings": True, "num_attention_heads": 3, "num_key_value_heads": 1,
                          **rope("default", 1e5)}),
    "mistral": ("mistral", {"sliding_window": WINDOW}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True, **rope("default", 1e6)}),
    "qwen2-windowed": ("qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "qwen2.5-yarn": ("qwen2", YARN),
    "qwen3": ("qwen3", {"attention_bias": True, "rms_norm_eps": 1e-2}),
    "qwen3-yarn": ("qwen3", {"tie_word_embeddings": True, **YARN_HALF}),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", {"sliding_window": WINDOW, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 2.0,
                          "final_logit_softcapping": 3.0}),
    "gemma3": ("gemma3_text", {"num_hidden_layers": 7, "sliding_window": WINDOW, "query_pre_attn_scalar": 24,
                               "rms_norm_eps": 1e-2, **GEMMA3_ROPE}),
}

MUTATIONS = {
    "llama2": {"rms_norm_eps": 1e-5, "rope_theta": 5e5, "activation": "gelu_tanh", "attention_scale": 0.3,
               "unit_offset_norm": True, "scale_embedding": True, "tie_embeddings": True},
    "llama3.1": {
        "rope_scaling": RopeScaling(), "rope_theta": 1e4,
        "rope_scaling:factor": 4.0, "rope_scaling:original_max_position": 32,
        "rope_scaling:low_freq_factor": 2.0, "rope_scaling:high_freq_factor": 8.0},
    "llama-biased-tied": {"qkv_bias": False, "out_bias": False, "mlp_bias": False},
    "llama-linear": {"rope_scaling": RopeScaling(), "rope_scaling:factor": 2.0},
    "mistral": {"sliding_layers": (), "sliding_window": WINDOW + 1, "sliding_layers:": (0,)},
    "qwen2": {"qkv_bias": False},
    "qwen2-windowed": {"sliding_layers": (0, 1), "sliding_layers:": (0,), "sliding_window": WINDOW - 1},
    "qwen2.5-yarn": {
        "rope_scaling": RopeScaling("linear", 4.0), "rope_scaling:attention_factor": 1.0,
        "rope_scaling:beta_fast": 1.0, "rope_scaling:beta_slow": 0.5, "rope_scaling:truncate": False,
        "rope_scaling:original_max_position": 64},
    "qwen3": {"qk_norm": False, "rms_norm_eps": 1e-6, "out_bias": False},
    "qwen3-yarn": {"rope_scaling:truncate": True, "rope_scaling:attention_factor": 1.0},
    "gemma2": {"attention_softcap": None, "final_softcap": None, "attention_scale": None, "post_norms": False,
               "sliding_layers": (1,)},
    "gemma3": {
        "qk_norm": False, "activation": "gelu", "attention_scale": None, "unit_offset_norm": False,
        "post_norms": False, "scale_embedding": False, "sliding_rope_theta": None, "rope_scaling": RopeScaling(),
        "sliding_layers": (0, 1, 2, 3, 4, 5, 6), "sliding_window": WINDOW + 1, "rms_norm_eps": 1e-6},
}
"""Family to mutations: a field's wrong value, or `field:part` for a part of it (`field:` a second wrong value)."""
