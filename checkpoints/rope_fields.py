"""The rotary settings of a Hugging Face `config.json`: `rope_theta` and `rope_scaling`, or `rope_parameters`."""

from __future__ import annotations

from typing import Any

from specjax.models.rope import RopeScaling, yarn_attention_factor

Values = dict[str, Any]

NEEDED = {"linear": ("factor",), "llama3": ("factor", "low_freq_factor", "high_freq_factor")}
LAYERS = ("full_attention", "sliding_attention")


def rope_fields(values: Values, *, by_layer: bool) -> Values:
    """The fields of `DecoderConfig` that say how positions turn.

    Args:
      values: the config, with what its family takes for granted.
      by_layer: whether sliding layers have settings of their own (Gemma 3).

    Raises:
      ValueError: for a setting that is incomplete or that the decoder does not have.
    """
    given: Values = values.get("rope_parameters") or {}
    if bool(given) and by_layer != any(name in given for name in LAYERS):
        wanted = f"for each of {', '.join(LAYERS)}" if by_layer else "once for all layers"
        raise ValueError(f"rope_parameters {given!r} are not understood: this family gives them {wanted}")
    if not by_layer:
        theta = given.get("rope_theta") or values.get("rope_theta") or 1e4
        return {"rope_theta": float(theta), "rope_scaling": _scaling(values, given)}
    near: Values = given.get("sliding_attention") or {}
    far: Values = given.get("full_attention") or {}
    if near.get("rope_type", "default") != "default":
        raise ValueError(f"sliding layers with rope_type {near['rope_type']!r} are not supported, only 'default'")
    _whole_heads(near)
    theta = far.get("rope_theta") or values.get("rope_theta") or 1e6
    own = near.get("rope_theta") or values.get("rope_local_base_freq") or 1e4
    return {"rope_theta": float(theta), "sliding_rope_theta": float(own), "rope_scaling": _scaling(values, far)}


def _whole_heads(parameters: Values) -> None:
    if parameters.get("partial_rotary_factor", 1.0) not in (None, 1.0):
        raise ValueError("partial_rotary_factor other than 1 is not supported: every coordinate of a head turns")


def _scaling(values: Values, parameters: Values) -> RopeScaling:
    s = {**(values.get("rope_scaling") or {}), **parameters}
    kind = s.get("rope_type") or s.get("type") or "default"
    _whole_heads(values)
    _whole_heads(s)
    if kind == "default":
        return RopeScaling()
    needed = NEEDED.get(kind, ())
    missing = [name for name in needed if s.get(name) is None]
    if missing:
        raise ValueError(f"rope_type {kind!r} needs {', '.join(needed)}; the config lacks {', '.join(missing)}")
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
