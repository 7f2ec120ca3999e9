"""Draft heads in plain numpy, written from the published descriptions: tensors have their published names and shapes.

One row at a time, in float64. `wrong` names one thing to wire wrongly, for tests of the tests.
"""

import numpy as np

WRONG = {
    "medusa": ("no residual", "no bias", "heads swapped"),
    "eagle": ("concat", "no fc bias", "input norm", "final norm", "no mlp norm", "positions"),
    "eagle3": (
        "concat", "no embedding norm", "no hidden norm", "residual", "recycle", "no final norm", "taps swapped",
        "d2t absolute", "fc on recycled", "no mlp norm", "positions"),
}  # fmt: skip
"""What a head can get wrong while every shape still fits."""


def rms(x, scale, eps):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * scale


def silu(x):
    return x / (1 + np.exp(-x))


def linear(w, name, x):
    return x @ w[f"{name}.weight"].T.astype(np.float64) + w.get(f"{name}.bias", 0)


def turned(x, positions, theta):
    half = x.shape[-1] // 2
    angle = positions[:, None, None] * theta ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


def attention(w, at, x, positions, seen, past, c):
    """`past` keys and values [S, K, d]; `seen` [T, S + T]. Returns the output and all keys and values."""
    def heads(name):
        return linear(w, f"{at}.{name}_proj", x).reshape(len(x), -1, c["head_dim"])

    q, k, v = heads("q"), heads("k"), heads("v")
    if f"{at}.q_norm.weight" in w:
        q, k = (rms(a, w[f"{at}.{n}_norm.weight"], c["eps"]) for a, n in ((q, "q"), (k, "k")))
    q, k = turned(q, positions, c["theta"]), turned(k, positions, c["theta"])
    k, v = np.concatenate([past[0], k]), np.concatenate([past[1], v])
    group = q.shape[1] // k.shape[1]
    out = np.zeros(q.shape)
    for head in range(q.shape[1]):
        scores = q[:, head] @ k[:, head // group].T / np.sqrt(c["head_dim"])
        scores = np.where(seen, scores, -np.inf)
        law = np.exp(scores - scores.max(-1, keepdims=True))
        out[:, head] = law / law.sum(-1, keepdims=True) @ v[:, head // group]
    return linear(w, f"{at}.o_proj", out.reshape(len(x), -1)), (k, v)


def mlp(w, at, x):
    return linear(w, f"{at}.down_proj", silu(linear(w, f"{at}.gate_proj", x)) * linear(w, f"{at}.up_proj", x))


def layer(w, at, x, reads, positions, seen, past, c):
    mixed, kept = attention(w, f"{at}.self_attn", reads, positions, seen, past, c)
    x = x + mixed
    inner = x if c["wrong"] == "no mlp norm" else rms(x, w[f"{at}.post_attention_layernorm.weight"], c["eps"])
    return x + mlp(w, f"{at}.mlp", inner), kept


def words(w, tokens, c):
    return w["embed_tokens.weight"][tokens].astype(np.float64) * c.get("embedding_scale", 1.0)


def capped(x, c):
    cap = c.get("softcap")
    return x if cap is None else cap * np.tanh(x / cap)


def medusa(w, hidden, c):
    """Logits [K, V] from one hidden state [D]."""
    found = []
    for h in range(c["num_heads"]):
        x = hidden.astype(np.float64)
        for j in range(c["num_layers"]):
            inner = w[f"{h}.{j}.linear.weight"] @ x
            inner = inner + (0 if c["wrong"] == "no bias" else w.get(f"{h}.{j}.linear.bias", 0))
            x = silu(inner) if c["wrong"] == "no residual" else x + silu(inner)
        found.append(capped(w.get(f"{h}.{c['num_layers']}.weight", w.get("lm_head.weight")) @ x, c))
    return np.stack(found[::-1] if c["wrong"] == "heads swapped" else found)


def fuse(w, features, c):
    """The target's features of one row, a dict of [T, F], as the head's [T, D]."""
    if not c.get("taps"):
        return features["hidden"].astype(np.float64)
    parts = [features[f"layer_{k}"].astype(np.float64) for k in c["taps"]]
    if c["wrong"] == "taps swapped":
        parts = parts[::-1]
    if "fc_norm.0.weight" in w:
        parts = [rms(part, w[f"fc_norm.{i}.weight"], c["eps"]) for i, part in enumerate(parts)]
    x = np.concatenate(parts, -1)
    if "input_norm.weight" in w:
        x = rms(x, w["input_norm.weight"], c["eps"])
    return linear(w, "fc", x)


def eagle(w, hidden, tokens, positions, seen, past, c):
    """Logits [T, V], what is fed back [T, D], and the keys and values of each layer."""
    positions = positions + (np.arange(len(positions)) if c["wrong"] == "positions" else 0)
    parts = [words(w, tokens, c), hidden]
    x = np.concatenate(parts[::-1] if c["wrong"] == "concat" else parts, -1)
    x = x @ w["fc.weight"].T + (0 if c["wrong"] == "no fc bias" else w.get("fc.bias", 0))
    kept = []
    for i in range(c["num_layers"]):
        reads = rms(x, w[f"layers.{i}.input_layernorm.weight"], c["eps"]) if i else x
        if c["wrong"] == "input norm" and i == 0:
            reads = rms(x, 1.0, c["eps"])
        x, pair = layer(w, f"layers.{i}", x, reads, positions, seen, past[i], c)
        kept.append(pair)
    if c["wrong"] == "final norm":
        x = rms(x, 1.0, c["eps"])
    return capped(x @ w["lm_head.weight"].T, c), x, kept


def eagle3(w, hidden, tokens, positions, seen, past, c):
    """As `eagle`; logits over the target's vocabulary, -inf outside the draft's."""
    wrong, eps = c["wrong"], c["eps"]
    positions = positions + (np.arange(len(positions)) if wrong == "positions" else 0)
    words_ = words(w, tokens, c)
    if wrong != "no embedding norm":
        words_ = rms(words_, w["midlayer.input_layernorm.weight"], eps)
    inner = hidden if wrong == "no hidden norm" else rms(hidden, w["midlayer.hidden_norm.weight"], eps)
    x = inner if c["norm_before_residual"] != (wrong == "residual") else hidden
    reads = np.concatenate([inner, words_] if wrong == "concat" else [words_, inner], -1)
    kept = []
    for i in range(c["num_layers"]):
        at = f"layers.{i}" if i else "midlayer"
        if i:
            reads = rms(x, w[f"{at}.input_layernorm.weight"], eps)
        x, pair = layer(w, at, x, reads, positions, seen, past[i], c)
        kept.append(pair)
    out = x if wrong == "no final norm" else rms(x, w["norm.weight"], eps)
    logits = capped(out @ w["lm_head.weight"].T, c)
    if "d2t" in w:
        ids = w["d2t"] if wrong == "d2t absolute" else np.arange(len(w["d2t"])) + w["d2t"]
        logits, narrow = np.full((len(x), c["vocab_size"]), -np.inf), logits
        logits[:, ids] = narrow
    return logits, out if c["norm_output"] != (wrong == "recycle") else x, kept
