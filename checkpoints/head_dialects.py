"""Reading the `config.json` of a published draft head, together with the names of its tensors.

Files of one family disagree on what a field means, and some say nothing at all; what can not be told apart has to be
said by the user, because a head that is wired wrongly still drafts, only worse.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

from specjax.checkpoints import dialects
from specjax.checkpoints.head_names import EMBEDDING, HEAD, TOKEN_MAP
from specjax.checkpoints.head_source import HeadSource
from specjax.checkpoints.targets import Target
from specjax.models import DecoderConfig, Eagle3Config, EagleConfig, MedusaConfig
from specjax.models.head_config import HeadConfig

Values = dict[str, Any]
CONVENTIONS = ("boundary", "output")
RECYCLED = ("pre", "post")


@dataclasses.dataclass(frozen=True)
class Told:
    """What a user says about a head where its files do not.

    Attributes:
      tap_convention: what a number in `eagle_aux_hidden_state_layer_ids` means: `boundary` `k` is the input of layer
        `k` (vLLM, speculators, NVIDIA), `output` `k` what layer `k` gives (SpecForge).
      recycle: whether the output is fed back before (`pre`) or behind (`post`) the final norm.
    """

    tap_convention: str | None = None
    recycle: str | None = None

    def __post_init__(self) -> None:
        for name, known in (("tap_convention", CONVENTIONS), ("recycle", RECYCLED)):
            if getattr(self, name) not in (None, *known):
                raise ValueError(f"{name} {getattr(self, name)!r} is not one of {', '.join(known)}")


def head_config(source: HeadSource, names: Iterable[str], target: Target, told: Told) -> HeadConfig:
    """The head that a folder describes; `vocab_size` counts all rows.

    Args:
      source: the folder.
      names: plain names of its tensors.
      target: for which it is to be used.
      told: what the user says.

    Raises:
      ValueError: for a setting that heads do not have, or that can not be told from the files.
    """
    names = set(names)
    if source.family == "medusa":
        return _medusa(source, names, target)
    values = source.values.get("transformer_layer_config", source.values)
    values = {**values, **(values["model"] if isinstance(values.get("model"), dict) else {})}
    layer = _layer(values, target)
    if source.family == "eagle":
        return EagleConfig(layer, fc_bias="fc.bias" in names)  # not every config says
    return _eagle3(source, {**values, **source.values}, names, layer, target, told)


def _layer(values: Values, target: Target) -> DecoderConfig:
    """The draft layers. What is borrowed is taken bare, as the authors' code and the engines do, also of a Gemma."""
    said = {"model_type": "llama", "max_position_embeddings": target.config.max_position, **values}
    # The authors' layers see the whole text, whatever the config of the target they copied says of windows.
    said |= {"sliding_window": None, "use_sliding_window": False, "layer_types": None}
    layer = dialects.decoder_config(said)
    if "qkv_bias" in values:
        layer = dataclasses.replace(layer, qkv_bias=bool(values["qkv_bias"]))
    return dataclasses.replace(
        layer, tie_embeddings=target.config.tie_embeddings, final_softcap=None, scale_embedding=False)


def _medusa(source: HeadSource, names: set[str], target: Target) -> MedusaConfig:
    """From the tensors: published configs give another number of heads than there are."""
    heads = {int(name.split(".")[0]) for name in names if name[0].isdigit()}
    blocks = {int(found[1]) for name in names if (found := re.match(r"\d+\.(\d+)\.linear\.", name))}
    if not heads or heads != set(range(len(heads))):
        raise ValueError(f"{source.label} has the Medusa heads {sorted(heads)}; they must be numbered 0, 1, ..")
    said = source.values.get("medusa_num_layers", source.values.get("num_hidden_layers"))
    c = target.config
    kept = {"hidden_size": source.values.get("hidden_size", c.hidden_size),
            "vocab_size": source.values.get("vocab_size", target.rows)}
    if TOKEN_MAP in names:
        kept["vocab_size"] = source.values.get("truncated_vocab_size", c.vocab_size)
    return MedusaConfig(
        **kept, num_heads=len(heads), num_layers=max(len(blocks), said or 0),
        block_bias=any(name.endswith(".linear.bias") for name in names),
        own_projection=any(name.endswith(".output.weight") for name in names), tie_embeddings=c.tie_embeddings)


def _eagle3(
    source: HeadSource, values: Values, names: set[str], layer: DecoderConfig, target: Target, told: Told
) -> Eagle3Config:
    size = values.get("draft_vocab_size")
    if size is None and HEAD in names:
        size = layer.vocab_size
    return Eagle3Config(
        layer, target_hidden_size=values.get("target_hidden_size") or layer.hidden_size,
        taps=_taps(source, values, target, told),
        draft_vocab_size=None if size in (None, layer.vocab_size) else size,
        fc_bias="fc.bias" in names, fc_norm=bool(values.get("fc_norm")),
        norm_before_fc=bool(values.get("norm_before_fc")), norm_before_residual=_residual(source),
        norm_output=_recycled(source, told), own_embedding=EMBEDDING in names, own_head=HEAD in names)


def _residual(source: HeadSource) -> bool:
    said = source.values.get("norm_before_residual")
    if said is None and "speculators_model_type" in source.values:
        raise ValueError(
            f"the config of {source.label} lacks norm_before_residual, for which vLLM takes true and speculators "
            "false: write into it which one the head was trained with")
    return bool(said)


def _recycled(source: HeadSource, told: Told) -> bool:
    """`norm_output` of speculators and vLLM feeds back the normed output; SpecForge means the norm before the head."""
    said = bool(source.values.get("norm_output"))
    if told.recycle is not None:
        return told.recycle == "post"
    if said and "speculators_model_type" not in source.values:
        raise ValueError(
            f"the config of {source.label} sets norm_output, which for vLLM means that the normed output is fed back, "
            "and for SpecForge that there is a norm before the head: say --recycle post or --recycle pre")
    return said


def _taps(source: HeadSource, values: Values, target: Target, told: Told) -> tuple[int, ...]:
    """The inputs of which layers are read."""
    inner = values.get("eagle_config") or {}
    if inner.get("use_aux_hidden_state") is False or values.get("use_aux_hidden_state") is False:
        return ()
    count = target.config.num_layers
    usual = (2, count // 2, count - 3)
    said = inner.get("eagle_aux_hidden_state_layer_ids") or values.get("eagle_aux_hidden_state_layer_ids")
    if said is None:
        if not usual[0] < usual[1] < usual[2]:
            raise ValueError(
                f"the config of {source.label} has no eagle_aux_hidden_state_layer_ids, and the usual ones, "
                f"{list(usual)}, make no sense for a target of {count} layers: write into it which the head reads")
        return usual
    ids = tuple(said)
    convention = told.tap_convention or ("boundary" if "speculators_model_type" in source.values else None)
    fits = {"boundary": ids == usual or max(ids) == count, "output": tuple(i + 1 for i in ids) == usual}
    if convention is None and any(fits.values()):
        convention = next(name for name, fit in fits.items() if fit)
    if convention is None:
        raise ValueError(
            f"{source.label} reads the layers {list(ids)}; its config does not say whether it means what goes into "
            "them or what comes out: give --tap-convention boundary (vLLM, speculators, NVIDIA) or output (SpecForge)")
    return ids if convention == "boundary" else tuple(i + 1 for i in ids)
