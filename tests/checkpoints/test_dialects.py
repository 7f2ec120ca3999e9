"""Both dialects of `config.json` give the same decoder, and what it can not do is refused."""

import pytest

from specjax.checkpoints.dialects import DEFAULTS, decoder_config
from specjax.models.rope import RopeScaling, yarn_attention_factor

SIZES = {
    "vocab_size": 96, "hidden_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 56,
    "num_hidden_layers": 7, "max_position_embeddings": 64,
}  # fmt: skip
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
YARN = {"factor": 4.0, "original_max_position_embeddings": 16}

PAIRS = {
    "llama 3": (
        {"model_type": "llama", "rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"model_type": "llama", "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}}),
    "llama 2": (
        {"model_type": "llama", "rope_theta": 1e4, "rope_scaling": None},
        {"model_type": "llama", "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    "qwen2 yarn": (
        {"model_type": "qwen2", "rope_theta": 1e6, "rope_scaling": {"type": "yarn", **YARN}, "sliding_window": 8,
         "use_sliding_window": False},
        {"model_type": "qwen2", "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, **YARN},
         "sliding_window": None, "layer_types": ["full_attention"] * 7}),
    "gemma 3": (
        {"model_type": "gemma3", "text_config": {
            **SIZES, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window": 8, "sliding_window_pattern": 6,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0}}},
        {"model_type": "gemma3_text", "sliding_window": 8,
         "layer_types": ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"],
         "rope_parameters": {"full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                             "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}),
}  # fmt: skip


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_published_and_written_dialects_agree(pair):
    published, written = (decoder_config({**SIZES, **values}) for values in pair)
    assert published == written
    assert type(published).from_dict(published.to_dict()) == published


def test_what_files_leave_out():
    def read(family, **values):
        return decoder_config({**SIZES, "model_type": family, **values})

    assert read("llama").head_dim == 12 and read("qwen3").head_dim == 128 and read("gemma").head_dim == 256
    assert read("llama", num_key_value_heads=None).num_kv_heads == 4
    assert not read("llama").tie_embeddings and read("gemma").tie_embeddings
    assert read("mistral").sliding_window == 4096 and read("mistral", sliding_window=None).sliding_window is None
    assert read("mistral").sliding_layers == tuple(range(7))
    windowed = read("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=5)
    assert (windowed.sliding_layers, windowed.qkv_bias, windowed.out_bias) == ((5, 6), True, False)
    assert read("gemma2").sliding_layers == (0, 2, 4, 6) and read("gemma2").final_softcap == 30.0
    assert read("gemma", hidden_act="gelu").activation == "gelu_tanh"
    assert read("llama", hidden_act="gelu").activation == "gelu"
    assert read("gemma").activation == "gelu_tanh" and read("gemma", hidden_act="silu").activation == "silu"


def test_what_published_files_mean():
    """Settings of published models as their files state them, the rest left out; compared with transformers 5.24."""
    def read(family, **values):
        return decoder_config({**SIZES, "model_type": family, **values})

    assert {read(family).rms_norm_eps for family in DEFAULTS} == {1e-6}
    assert {read(family).rope_theta for family in DEFAULTS if family != "gemma3_text"} == {1e4}
    near = read("gemma3_text")
    assert (near.rope_theta, near.sliding_rope_theta, near.sliding_window) == (1e6, 1e4, 4096)
    assert near.attention_scale == read("gemma2").attention_scale == 256**-0.5
    assert (near.final_softcap, near.attention_softcap, read("gemma2").attention_softcap) == (None, None, 50.0)
    assert read("gemma3_text", query_pre_attn_scalar=168).attention_scale == 168**-0.5  # the largest: not head_dim
    windowed = read("qwen3", use_sliding_window=True, sliding_window=8, max_window_layers=5)
    assert windowed.sliding_layers == (5, 6) and not read("qwen3", sliding_window=8).sliding_layers
    assert not read("mistral", attention_bias=True).qkv_bias and not read("qwen3", mlp_bias=True).mlp_bias
    assert read("llama", attention_bias=True).out_bias and read("llama", mlp_bias=True).mlp_bias
    yarn = read("qwen2", rope_scaling={"type": "yarn", "original_max_position_embeddings": 16})
    assert yarn.rope_scaling.factor == 64 / 16


def test_yarn_attention_factors():
    def read(**more):
        scaling = {"type": "yarn", **YARN, **more}
        return decoder_config({**SIZES, "model_type": "qwen3", "rope_scaling": scaling}).rope_scaling

    assert read() == RopeScaling("yarn", 4.0, 16, attention_factor=yarn_attention_factor(4.0))
    assert read(attention_factor=1.5).attention_factor == 1.5
    both = yarn_attention_factor(4.0, 0.7) / yarn_attention_factor(4.0, 0.5)
    assert read(mscale=0.7, mscale_all_dim=0.5).attention_factor == both


REFUSED = {
    "family": ({"model_type": "mamba"}, "model_type 'mamba' is not among those that convert: llama, mistral"),
    "fields": ({"model_type": "qwen2", "hidden_size": None, "num_key_value_heads": None},
               "the qwen2 config lacks hidden_size, num_key_value_heads"),
    "dynamic": ({"model_type": "llama", "rope_scaling": {"type": "dynamic", "factor": 2.0}},
                "rope_type 'dynamic' is not supported"),
    "partial": ({"model_type": "llama", "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    "activation": ({"model_type": "llama", "hidden_act": "relu2"}, "activation 'relu2' is not among silu"),
    "bidirectional": ({"model_type": "gemma3_text", "use_bidirectional_attention": True}, "sees only what stands"),
    "near partial": ({"model_type": "gemma3_text", "rope_parameters": {
        "sliding_attention": {"partial_rotary_factor": 0.5}}}, "partial_rotary_factor"),
    "rope for all": ({"model_type": "gemma3_text", "rope_parameters": {"rope_theta": 5.0}},
                     "this family gives them for each of full_attention, sliding_attention"),
    "rope by layer": ({"model_type": "qwen3", "rope_parameters": {"full_attention": {"rope_theta": 5.0}}},
                      "this family gives them once for all layers"),
    "factor": ({"model_type": "llama", "rope_scaling": {"type": "llama3", "factor": 2.0}},
               "'llama3' needs .*; the config lacks low_freq_factor, high_freq_factor"),
    "types": ({"model_type": "qwen3", "use_sliding_window": True, "layer_types": ["chunked_attention"] * 7},
              "one of full_attention, sliding_attention for each of 7 layers, got 7: chunked_attention"),
    "few types": ({"model_type": "gemma2", "layer_types": ["full_attention"]}, "for each of 7 layers, got 1"),
    "many types": ({"model_type": "gemma2", "layer_types": ["full_attention"] * 8}, "for each of 7 layers, got 8"),
    "quantised": ({"model_type": "llama", "quantization_config": {"quant_method": "awq"}},
                  "are quantised .quantization_config: awq.; convert the float32"),
    "text": ({"model_type": "gemma3", "text_config": None}, "gemma3 config has no text_config"),
    "no name": ({"model_type": ["llama"]}, "is not among those that convert"),
    "activations": ({"model_type": "llama", "hidden_act": ["silu"]}, "is not among silu"),
    "scalar": ({"model_type": "gemma2", "query_pre_attn_scalar": None}, "query_pre_attn_scalar None; it must be"),
    "sizes": ({"model_type": "llama", "num_attention_heads": 0, "hidden_size": "48"},
              "has hidden_size '48', num_attention_heads 0; each must be a positive whole number"),
    "near rope": ({"model_type": "gemma3_text", "rope_parameters": {"sliding_attention": {"rope_type": "yarn"}}},
                  "sliding layers with rope_type 'yarn'"),
}  # fmt: skip


@pytest.mark.parametrize(("values", "message"), REFUSED.values(), ids=REFUSED)
def test_refusals(values, message):
    with pytest.raises(ValueError, match=message):
        decoder_config({**SIZES, **values})
