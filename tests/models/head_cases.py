"""Draft heads with every parameter random, the same as published tensors, and a walk through all ways to call one."""

import dataclasses
import functools

import head_reference as reference
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from specjax import Attend
from specjax.models import Decoder, DecoderConfig, Eagle3Config, EagleConfig, MedusaConfig, from_nnx, head_from_nnx
from specjax.models.heads import MODULES, borrow

LAYERS, WIDTH, ROWS = 4, 12, 23
TARGET = DecoderConfig(
    vocab_size=ROWS, hidden_size=WIDTH, num_layers=LAYERS, num_heads=3, num_kv_heads=1, head_dim=8,
    intermediate_size=20, max_position=64, rms_norm_eps=1e-2, rope_theta=100.0,
)  # fmt: skip
UNTIED = dataclasses.replace(TARGET, tie_embeddings=False, final_softcap=2.0, scale_embedding=True)


def layered(target=TARGET, num_layers=1, **changes):
    return dataclasses.replace(EagleConfig.for_target(target, num_layers).layer, **changes)


E3 = functools.partial(Eagle3Config.for_target, TARGET, taps=(0, 2, 4), draft_vocab_size=9)
CASES = {
    "medusa": MedusaConfig.for_target(TARGET, 3),
    "medusa-shared": MedusaConfig.for_target(TARGET, 2, num_layers=2, own_projection=False, block_bias=False),
    "medusa-untied": MedusaConfig.for_target(UNTIED, 2, own_projection=False),
    "eagle": EagleConfig.for_target(TARGET, fc_bias=True),
    "eagle-plain": EagleConfig.for_target(TARGET),
    "eagle-untied": EagleConfig.for_target(UNTIED),
    "eagle-deep": EagleConfig(layered(num_layers=2, qkv_bias=True, mlp_bias=True)),
    "eagle3": E3(),
    "eagle3-residual": E3(norm_before_residual=True),
    "eagle3-output": E3(norm_output=True),
    "eagle3-norms": E3(norm_before_fc=True),
    "eagle3-fc-norm": E3(fc_norm=True, fc_bias=True),
    "eagle3-deep": E3(layer=layered(num_layers=2, qkv_bias=True, out_bias=True, qk_norm=True)),
    "eagle3-narrow": E3(layer=layered(hidden_size=8), own_embedding=True),
    "eagle3-hidden": E3(taps=(), draft_vocab_size=None),
    "eagle3-head": Eagle3Config.for_target(UNTIED, taps=(1, 3), own_head=False),
}


def random_like(tree, seed):
    """Every parameter random: norms around one, matrices so that what goes through them keeps its size."""
    rng = np.random.default_rng(seed)

    def draw(path, leaf):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            return leaf
        name = str(path[-1].key)
        noise = rng.standard_normal(leaf.shape).astype(np.float32)
        if name == "scale":
            return jnp.asarray(1 + 0.3 * noise)
        return jnp.asarray(0.5 * noise if leaf.ndim < 2 or name in ("embedding", "own_embedding")
                           else noise * 0.8 / np.sqrt(np.prod(leaf.shape[: 1 if name != "out" else 2])))

    return jax.tree_util.tree_map_with_path(draw, tree)


@functools.cache
def made(name):
    """Config, head and params of a case, and the target's params from which it borrowed."""
    config = CASES[name]
    head, params = head_from_nnx(nnx.eval_shape(lambda: MODULES[config.family][1](config, rngs=nnx.Rngs(0))))
    target = random_like({"embedding": jnp.zeros((ROWS, WIDTH)), "head": jnp.zeros((WIDTH, ROWS))}, 1)
    params = random_like(params, 2)
    if "draft_ids" in params:
        params["draft_ids"] = jnp.array([0, 3, 4, 7, 8, 13, 14, 20, 22], jnp.int32)
    return config, head, borrow(params, config, target)


def target_params(config):
    """All params of a target; the numbers do not matter."""
    return random_like(from_nnx(nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0))))[1], 3)


def published(config, params):
    """Our params as the published tensors; the target's embedding and head stand beside them."""
    if config.family == "medusa":
        found = {}
        for h, head in params["heads"].items():
            for j, block in head["blocks"].items():
                found[f"{h}.{j}.linear.weight"] = block["kernel"].T
                if "bias" in block:
                    found[f"{h}.{j}.linear.bias"] = block["bias"]
            if "output" in head:
                found[f"{h}.{config.num_layers}.weight"] = head["output"].T
        tied = config.tie_embeddings
    else:
        plain = {"fc": "fc.weight", "fc_bias": "fc.bias", "output": "lm_head.weight",
                 "own_embedding": "embed_tokens.weight"}
        found = {plain[n]: x.T if n in ("fc", "output") else x for n, x in params.items() if n in plain}
        norms = {"norm": "norm", "fc_input_norm": "input_norm", "embedding_norm": "midlayer.input_layernorm",
                 "hidden_norm": "midlayer.hidden_norm"}
        found |= {f"{norms[n]}.weight": x["scale"] for n, x in params.items() if n in norms}
        found |= {f"fc_norm.{i}.weight": x["scale"] for i, x in params.get("tap_norms", {}).items()}
        for i, part in params["layers"].items():
            at = "midlayer" if i == "0" and config.family == "eagle3" else f"layers.{i}"
            found |= {f"{at}.{n}": x for n, x in _layer(part).items()}
        if "draft_ids" in params:
            found["d2t"] = params["draft_ids"] - np.arange(len(params["draft_ids"]))
        tied = config.layer.tie_embeddings
    if "embedding" in params:
        found["embed_tokens.weight"] = params["embedding"]
    if "lm_head.weight" not in found and config.borrows:
        found["lm_head.weight"] = params["embedding"] if tied else params["head"].T
    return {name: np.asarray(x) for name, x in found.items()}


def _layer(part):
    a, m = part["attention"], part["mlp"]
    found = {f"self_attn.{o}_proj.weight": a[n].reshape(a[n].shape[0], -1).T
             for n, o in (("query", "q"), ("key", "k"), ("value", "v"))}
    found["self_attn.o_proj.weight"] = a["out"].reshape(-1, a["out"].shape[-1]).T
    found |= {f"self_attn.{n[0]}_proj.bias": a[f"{n}_bias"].reshape(-1)
              for n in ("query", "key", "value", "out") if f"{n}_bias" in a}
    found |= {f"self_attn.{n[0]}_norm.weight": a[f"{n}_norm"]["scale"] for n in ("query", "key") if f"{n}_norm" in a}
    found |= {f"mlp.{n}_proj.weight": m[n].T for n in ("gate", "up", "down")}
    found |= {f"mlp.{n}_proj.bias": m[f"{n}_bias"] for n in ("gate", "up", "down") if f"{n}_bias" in m}
    found["post_attention_layernorm.weight"] = part["mlp_norm"]["scale"]
    if "attention_norm" in part:
        found["input_layernorm.weight"] = part["attention_norm"]["scale"]
    return {name.replace("self_attn.out", "self_attn.o"): x for name, x in found.items()}


def settings(config, wrong=None):
    """What the reference needs to know beside the tensors."""
    if config.family == "medusa":
        return {"num_heads": config.num_heads, "num_layers": config.num_layers, "softcap": config.final_softcap,
                "wrong": wrong}
    c = config.layer
    shares = config.family == "eagle" or not config.own_head
    return {
        "head_dim": c.head_dim, "eps": c.rms_norm_eps, "theta": c.rope_theta, "num_layers": c.num_layers,
        "vocab_size": c.vocab_size, "softcap": c.final_softcap if shares else None, "taps": config.taps,
        "embedding_scale": c.hidden_size**0.5 if c.scale_embedding else 1.0,
        "norm_before_residual": getattr(config, "norm_before_residual", False),
        "norm_output": getattr(config, "norm_output", False), "wrong": wrong}


# A walk of five calls, each of three tokens in two rows. What each token sees: slots before the last A = 6, of the last
# six slots some, of the call some. `keep` is how many entries of the call stay in the cache.
CALLS = 5
A = 6


@functools.cache
def walk(name):
    """The calls: features for the first, tokens, positions, lengths, ancestors bool [B, 3, A + 3], valid."""
    config = CASES[name]
    rng = np.random.default_rng(5)
    width = config.feature_size
    names = [f"layer_{k}" for k in range(LAYERS + 2)] + ["hidden"]
    features = {n: rng.standard_normal((2, 4, width)).astype(np.float32) for n in names}
    tokens = rng.integers(0, ROWS, (CALLS, 2, 4))
    lengths = np.array([[0, 0], [3, 2], [4, 3], [5, 4], [8, 7]])  # prompts of 3 and 2 tokens; two steps; two levels
    offsets = np.array([[0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 0, 0], [1, 1, 1]])
    starts = np.array([[0, 0], [3, 2], [4, 3], [5, 4], [5, 4]])
    see = np.zeros((CALLS, 3, A + 3), bool)
    see[:3, :, :A] = True  # prompt and steps: all before, and a chain within the call
    see[:3, :, A:] = np.tri(3, dtype=bool)
    see[3, :, :A], see[3, :, A:] = True, np.eye(3, dtype=bool)  # three siblings
    see[4, :, : A - 3], see[4, :, A:] = True, np.eye(3, dtype=bool)  # below them: two of the first, one of the third
    see[4, [0, 1, 2], [A - 3, A - 3, A - 1]] = True
    valid = np.ones((CALLS, 2, 3), bool)
    valid[0, 1, 2] = False
    return features, tokens, starts[:, :, None] + offsets[:, None, :], lengths, see, valid


@functools.cache
def program(head):
    """One program for every call of the walk, and one to fuse."""
    return jax.jit(head.apply), jax.jit(head.fuse)


def walked(name, shift=0, tap_shift=0, causal=False):
    """Logits and hidden states of each call by the module: lists of [B, 3, V] and [B, 3, D].

    `shift` reads the next-but-one token, `tap_shift` the features of a deeper layer. With `causal` the calls that are
    chains come without `ancestors`.
    """
    config, head, params = made(name)
    apply, fuse = program(head)
    features, tokens, positions, lengths, see, valid = walk(name)
    taken = {f"layer_{k}": features[f"layer_{k + tap_shift}"][:, :3] for k in config.taps} or {
        "hidden": features["hidden"][:, :3]}
    hidden = fuse(params, taken)
    cache, found = head.init_cache(2, 11), []
    for i in range(CALLS):
        seen = None if causal and i < 3 else jnp.asarray(see[i])[None].repeat(2, 0)
        attend = Attend(
            jnp.asarray(lengths[i], jnp.int32), jnp.asarray(positions[i], jnp.int32), jnp.asarray(valid[i]), seen)
        out = apply(params, hidden, jnp.asarray(tokens[i][:, shift : shift + 3], jnp.int32), cache, attend)
        found.append((np.asarray(out.logits), np.asarray(out.hidden)))
        cache = out.pending
        hidden = _fed_back(i, out.hidden)
    return found


def _fed_back(i, hidden):
    """What the next call reads: the last prompt token's output, then each node its parent's (here: the first three)."""
    if i == 0:
        return jnp.stack([hidden[0, 2], hidden[1, 1]])[:, None].repeat(3, 1)
    return hidden[:, [0, 0, 0]] if i < 3 else hidden[:, [0, 0, 2]]


def expected(name, wrong=None):
    """The same walk by the reference."""
    config, _, params = made(name)
    weights, c = published(config, params), settings(config, wrong)
    step = getattr(reference, config.family)
    features, tokens, positions, lengths, see, valid = walk(name)
    rows = []
    for row in range(2):
        hidden = reference.fuse(weights, {n: x[row, :3] for n, x in features.items()}, c)
        empty = np.zeros((0, config.layer.num_kv_heads, config.layer.head_dim))
        past, found = [(empty, empty)] * c["num_layers"], []
        for i in range(CALLS):
            start = lengths[i][row]
            past = [(k[:start], v[:start]) for k, v in past]
            slots = np.ones((3, start), bool)
            near = min(A, start)
            slots[:, start - near :] = see[i][:, A - near : A]
            seen = np.concatenate([slots, see[i][:, A:] & valid[i][row]], 1)
            if c["wrong"] == "fc on recycled" and i:
                hidden = reference.linear(weights, "fc", np.concatenate([hidden] * len(c["taps"]), -1))
            seen |= np.eye(3, start + 3, start, dtype=bool) & ~valid[i][row][:, None]  # a padding token sees itself
            logits, hidden, past = step(weights, hidden, tokens[i][row, :3], positions[i][row], seen, past, c)
            found.append((logits, hidden))
            hidden = np.asarray(_fed_back(i, jnp.asarray(np.stack([hidden, hidden])))[row if i == 0 else 0], np.float64)
        rows.append(found)
    return [tuple(np.stack([rows[0][i][k], rows[1][i][k]]) for k in range(2)) for i in range(CALLS)]


def distance(name, got, want):
    """The largest difference at a valid token; inf where one is -inf and the other not."""
    valid = walk(name)[-1]
    worst = 0.0
    for i in range(CALLS):
        for a, b in zip(got[i], want[i], strict=True):
            a, b = a[valid[i]], b[valid[i]]
            if not np.array_equal(np.isneginf(a), np.isneginf(b)):
                return np.inf
            finite = ~np.isneginf(a)
            worst = max(worst, np.abs(a[finite] - b[finite]).max())
    return worst
