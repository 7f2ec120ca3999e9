"""The `config.json` of a draft head that we write, in the form that vLLM, SGLang or speculators read."""

from __future__ import annotations

from typing import Any, NamedTuple

from specjax.models import DecoderConfig, Eagle3Config, EagleConfig, MedusaConfig
from specjax.models.head_config import HeadConfig
from specjax.models.rope import RopeScaling

Values = dict[str, Any]
ACTIVATIONS = {"silu": "silu", "gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh"}
SPECULATORS = "0.9.0"


class About(NamedTuple):
    """What a config says that is no part of the head's own.

    Attributes:
      rows: of the target's embedding, padding included: what other libraries call its vocabulary.
      draft_rows: rows of the head's own matrix; None if it uses the target's.
      num_layers: of the target.
      dtype: of the weights.
      verifier: the name by which others load the target, if it is known.
    """

    rows: int
    draft_rows: int | None
    num_layers: int
    dtype: str
    verifier: str | None


def fields(config: HeadConfig, layout: str, about: About) -> Values:
    """The config of a head in a layout, one of `head_names.LAYOUTS`.

    Raises:
      ValueError: for what the layout has no word for.
    """
    if isinstance(config, MedusaConfig):
        _refuse_changes(layout, config.final_softcap is not None)
        return _medusa(config, about)
    if isinstance(config, EagleConfig):
        _refuse_changes(layout, config.layer.scale_embedding or config.layer.final_softcap is not None)
        said = _layer(config, layout, about) | {"bias": config.fc_bias or layout == "sglang"}
        return said | {"architectures": ["LlamaForCausalLMEagle" if layout == "sglang" else "LlamaForCausalLM"]}
    assert isinstance(config, Eagle3Config)
    # A norm undoes what is done to its embeddings.
    _refuse_changes(layout, not config.own_head and config.layer.final_softcap is not None)
    own = _flags(config)
    if layout == "speculators":
        return _speculators(config, own, about)
    sizes = {"draft_vocab_size": about.draft_rows, "target_hidden_size": config.target_hidden_size}
    inner: Values = {"use_aux_hidden_state": bool(config.taps)}
    usual = (2, about.num_layers // 2, about.num_layers - 3)
    if config.taps and config.taps != usual:  # those are what everybody takes where nothing is said
        inner["eagle_aux_hidden_state_layer_ids"] = list(config.taps)
    said = _layer(config, layout, about) | own | sizes
    return said | {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": inner}


def _refuse_changes(layout: str, there: bool) -> None:
    if there:
        raise ValueError(
            f"layout {layout!r} has no word for a head that scales embeddings or caps logits as its target does; train "
            "it with scale_embedding=False and final_softcap=None in its layer's config")


def _flags(config: Eagle3Config) -> Values:
    names = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    return {name: True for name in names if getattr(config, name)} | ({"bias": True} if config.fc_bias else {})


def _layer(config: EagleConfig | Eagle3Config, layout: str, about: About) -> Values:
    """A Llama config, with the rotary settings in the old and in the new dialect."""
    c = config.layer
    plain = DecoderConfig(
        c.vocab_size, c.hidden_size, c.num_layers, c.num_heads, c.num_kv_heads, c.head_dim, c.intermediate_size,
        c.max_position, c.rope_theta, c.rms_norm_eps, c.tie_embeddings, c.rope_scaling, qkv_bias=c.qkv_bias,
        out_bias=c.out_bias, mlp_bias=c.mlp_bias, qk_norm=c.qk_norm, activation=c.activation,
        final_softcap=c.final_softcap, scale_embedding=c.scale_embedding)
    uneven = c.qkv_bias != c.out_bias and (c.out_bias or config.family == "eagle3")
    if plain != c or uneven or (c.qk_norm and layout != "speculators"):
        raise ValueError(f"layout {layout!r} has no word for layers such as those of this head: {c}")
    said: Values = {
        "model_type": "qwen3" if c.qk_norm else "llama", "vocab_size": about.rows, "hidden_size": c.hidden_size,
        "num_hidden_layers": c.num_layers, "num_attention_heads": c.num_heads, "num_key_value_heads": c.num_kv_heads,
        "head_dim": c.head_dim, "intermediate_size": c.intermediate_size, "hidden_act": ACTIVATIONS[c.activation],
        "max_position_embeddings": c.max_position, "rms_norm_eps": c.rms_norm_eps, "attention_bias": c.out_bias,
        "mlp_bias": c.mlp_bias, "tie_word_embeddings": False, "torch_dtype": about.dtype, "rope_theta": c.rope_theta,
        "rope_scaling": _scaling(c.rope_scaling)}
    if c.qkv_bias and not c.out_bias:
        said["qkv_bias"] = True
    said["rope_parameters"] = {"rope_theta": c.rope_theta, **(said["rope_scaling"] or {"rope_type": "default"})}
    return said


def _scaling(s: RopeScaling) -> Values | None:
    if s.kind == "none":
        return None
    said: Values = {"rope_type": s.kind, "factor": s.factor}
    if s.kind != "linear":
        said["original_max_position_embeddings"] = s.original_max_position
    if s.kind == "llama3":
        said |= {"low_freq_factor": s.low_freq_factor, "high_freq_factor": s.high_freq_factor}
    if s.kind == "yarn":
        said |= {"beta_fast": s.beta_fast, "beta_slow": s.beta_slow, "truncate": s.truncate,
                 "attention_factor": s.attention_factor}  # fmt: skip
    return said


def _speculators(config: Eagle3Config, own: Values, about: About) -> Values:
    lacks = {"a head without its own matrix": about.draft_rows is None, "a head without taps": not config.taps,
             "a bias of fc": config.fc_bias, "two kinds of norm before fc": config.fc_norm and config.norm_before_fc,
             "features of another width": config.target_hidden_size != config.layer.hidden_size}  # fmt: skip
    if any(lacks.values()):
        what = ", ".join(name for name, there in lacks.items() if there)
        raise ValueError(f"layout 'speculators' has no word for {what}; use --layout official")
    flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    proposal = {"proposal_type": "greedy", "speculative_tokens": 5, "accept_tolerance": 0.0, "verifier_accept_k": 1}
    return {
        "architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", "speculators_version": SPECULATORS,
        "transformer_layer_config": _layer(config, "speculators", about),
        **{name: own.get(name, False) for name in flags},
        "draft_vocab_size": about.draft_rows, "target_hidden_size": config.target_hidden_size,
        "eagle_aux_hidden_state_layer_ids": list(config.taps), "tie_word_embeddings": False, "dtype": about.dtype,
        "speculators_config": {
            "algorithm": "eagle3", "default_proposal_method": "greedy", "proposal_methods": [proposal],
            "verifier": {"name_or_path": about.verifier, "architectures": ["LlamaForCausalLM"]}}}


def _medusa(config: MedusaConfig, about: About) -> Values:
    """vLLM's; `medusa_fc_bias` is off there if nothing is said."""
    said: Values = {
        "architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": config.hidden_size,
        "vocab_size": about.rows, "truncated_vocab_size": about.draft_rows or about.rows,
        "num_heads": config.num_heads, "num_hidden_layers": config.num_layers, "medusa_fc_bias": config.block_bias,
        "original_lm_head": not config.own_projection, "torch_dtype": about.dtype}
    return said | ({} if about.verifier is None else {"base_model_name_or_path": about.verifier})
