"""Published draft heads, written as their authors would, for the target of `head_cases`."""

import json

import head_cases as cases
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from specjax import checkpoints
from specjax.checkpoints import shards

PADDED = 26  # rows of the target's embedding, of which 23 are scored
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": cases.ROWS, "hidden_size": cases.WIDTH,
    "num_hidden_layers": 1, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 20,
    "hidden_act": "silu", "max_position_embeddings": 64, "rms_norm_eps": 1e-2, "rope_theta": 100.0,
}  # fmt: skip


def target(path, config=cases.TARGET, rows=cases.ROWS, words=None):
    """The target's checkpoint; what heads borrow is that of `head_cases.made`."""
    params = cases.random_like({"embedding": jnp.zeros((cases.ROWS, cases.WIDTH)),
                                "head": jnp.zeros((cases.WIDTH, cases.ROWS))}, 1)
    whole = cases.target_params(config)
    taken = {name: params[name] for name in (("embedding",) if config.tie_embeddings else ("embedding", "head"))}
    whole |= {name: jnp.pad(x, [(0, rows - n if n == cases.ROWS else 0) for n in x.shape]) for name, x in taken.items()}
    words = {word: i for i, word in enumerate(words or map(str, range(cases.ROWS)))}
    checkpoints.save(path, whole, config, Tokenizer(WordLevel(words, unk_token="0")))
    return path


def values(config, **changes):
    """A `config.json`, by the authors' words."""
    if config.family == "medusa":
        return {"medusa_num_heads": 2, "medusa_num_layers": config.num_layers, "base_model_name_or_path": "x"} | changes
    c = config.layer
    said = {**LLAMA, "num_hidden_layers": c.num_layers, "hidden_size": c.hidden_size}
    said |= {"attention_bias": c.out_bias, "mlp_bias": c.mlp_bias, "model_type": "qwen3" if c.qk_norm else "llama"}
    if config.family == "eagle":
        return said | {"bias": config.fc_bias} | ({"qkv_bias": True} if c.qkv_bias else {}) | changes
    said |= {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": config.draft_vocab_size,
             "target_hidden_size": config.target_hidden_size}  # fmt: skip
    said["eagle_config"] = {"use_aux_hidden_state": bool(config.taps)}
    if config.taps:
        said["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = list(config.taps)
    flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    return said | {name: True for name in flags if getattr(config, name)} | changes


def tensors(name, dtype=np.float32):
    """The published tensors of a case: what is borrowed is left out, the mask is put in."""
    config, _, params = cases.made(name)
    found = cases.published(config, params)
    own = getattr(config, "own_embedding", False)
    for one in ("embed_tokens.weight", "lm_head.weight"):
        if (one == "embed_tokens.weight" and not own) or (one == "lm_head.weight" and "output" not in params):
            found.pop(one, None)
    found = {n: np.ascontiguousarray(x).astype(dtype) if x.dtype == np.float32 else x for n, x in found.items()}
    if "d2t" in found:
        mask = np.zeros(cases.ROWS, bool)
        mask[np.asarray(params["draft_ids"])] = True
        found |= {"d2t": found["d2t"].astype(np.int64), "t2d": mask}
    return found


def write(folder, found, said, file=shards.SINGLE):
    """A folder of these tensors and this config."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(said))
    shards.write_file(folder / file, {n: (a.dtype, a.shape) for n, a in found.items()}, found.values())
    return folder


def same_bytes(folder, found, file=shards.SINGLE):
    there = shards.read_file(folder / file, shards.WITH_IDS)
    assert there.keys() == found.keys()
    return all(entry.dtype == found[name].dtype and entry.shape == found[name].shape
               and entry.view().tobytes() == found[name].tobytes() for name, entry in there.items())
