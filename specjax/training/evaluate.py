"""Measure a pair on what it was not trained on: `python -m specjax.training.evaluate [TARGET DRAFT] [--json FILE]`.

Bits per byte on the held-out modules, the share of greedy functions that parse, and the tokens per round of
speculation. Headers come from the held-out modules and stand in no training module.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import specjax
from specjax._src.types import Array, Attend
from specjax.checkpoints import LoadedModel, check_same_tokenizer, load
from specjax.training import corpus
from specjax.training.losses.common import cross_entropy

WINDOW = 256
ROWS = 16


def bits_per_byte(loaded: LoadedModel, texts: list[str]) -> float:
    """Cost of the texts under the model, by windows of 256 tokens that overlap by half.

    Of each window but a text's first only the second half is scored, so that every token but the first 128 of a text
    has at least 128 tokens before it.
    """
    windows, first, count = [], [], []
    for text in texts:
        ids = np.array(loaded.tokenizer.encode(text).ids, np.int32)
        for start in range(0, max(1, len(ids) - 1 - WINDOW // 2), WINDOW // 2):
            part = ids[start : start + WINDOW + 1]
            windows.append(np.pad(part, (0, WINDOW + 1 - len(part))))
            first.append(0 if start == 0 else WINDOW // 2)
            count.append(len(part) - 1)

    @jax.jit
    def score(params: Any, rows: Array, first: Array, count: Array) -> Array:
        steps = jnp.arange(WINDOW)
        valid = steps < count[:, None]
        attend = Attend(jnp.zeros_like(count), jnp.broadcast_to(steps, valid.shape), valid)
        logits = loaded.model.apply(params, rows[:, :-1], None, attend).logits
        return jnp.sum(cross_entropy(logits, rows[:, 1:]) * (valid & (steps >= first[:, None])))

    total = 0.0
    for i in range(0, len(windows), ROWS):
        pad = ROWS - len(windows[i : i + ROWS])
        rows = np.stack(windows[i : i + ROWS] + [windows[0]] * pad)
        starts, counts = (jnp.array(x[i : i + ROWS] + [0] * pad, jnp.int32) for x in (first, count))
        total += float(score(loaded.params, rows, starts, counts))
    return total / math.log(2) / sum(len(text.encode()) for text in texts)


def cut_at_dedent(text: str) -> str:
    """The first line and all that follow it up to the first line that starts in column 0."""
    lines = text.split("\n")
    for i, line in enumerate(lines[1:], start=1):
        if line and not line[0].isspace():
            return "\n".join(lines[:i])
    return text


def speculate(target: LoadedModel, draft: LoadedModel, headers: list[str], temperature: float, new_tokens: int) -> Any:
    """Continue every header with k = 5, in batches of 16: `(texts, tokens, rounds, rounds that kept each position)`."""
    drafter = specjax.draft.from_model(draft.model, 5)
    sampling = specjax.Sampling(temperature=temperature)
    prompts = [target.tokenizer.encode(h).ids for h in headers]
    texts: list[str] = []
    tokens = rounds = 0
    kept = np.zeros(5)
    for i in range(0, len(prompts), ROWS):
        batch = prompts[i : i + ROWS]
        filled = batch + [prompts[0]] * (ROWS - len(batch))
        made = specjax.generate(
            target.model,
            target.params,
            filled,
            drafter=drafter,
            draft_params=draft.params,
            sampling=sampling,
            key=jax.random.key(i),
            max_new_tokens=new_tokens,
            eos_ids=target.eos_ids,
        )
        lengths = np.asarray(made.lengths)
        for row, ids in enumerate(batch):
            written = np.asarray(made.tokens[row, : lengths[row]]).tolist()
            texts.append(target.tokenizer.decode([*ids, *written]))
        tokens += int(lengths[: len(batch)].sum())
        rounds += int(made.stats.rounds[: len(batch)].sum())
        kept += np.asarray(made.stats.accepted_per_position)[: len(batch)].sum(axis=0)
    return texts, tokens, rounds, kept


def evaluate(target: LoadedModel, draft: LoadedModel, headers: int, new_tokens: int) -> dict[str, Any]:
    """All figures as JSON values; see the module's first lines."""
    check_same_tokenizer(target, draft)
    modules = corpus.standard_library()
    held_out = [m.text for m in modules if m.held_out]
    chosen = [f.header for f in corpus.held_out_headers(modules, headers)]
    result: dict[str, Any] = {
        "held_out_modules": len(held_out),
        "held_out_bytes": sum(len(t.encode()) for t in held_out),
        "headers": len(chosen),
        "new_tokens": new_tokens,
    }
    for name, loaded in (("target", target), ("draft", draft)):
        result[f"{name}_parameters"] = sum(leaf.size for leaf in jax.tree.leaves(loaded.params))
        result[f"{name}_bits_per_byte"] = round(bits_per_byte(loaded, held_out), 4)
    for name, temperature in (("greedy", 0.0), ("sampled_0.8", 0.8)):
        texts, tokens, rounds, kept = speculate(target, draft, chosen, temperature, new_tokens)
        cut = [cut_at_dedent(text) for text in texts]
        result[name] = {
            "parse_rate": round(sum(map(corpus.parses, cut)) / len(cut), 4),
            "mean_accepted_length": round(tokens / rounds, 4),
            "kept_per_position": [round(float(k) / rounds, 4) for k in kept],
            "tokens": tokens,
            "examples": cut[:5],
        }
    return result


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("target", nargs="?", default="tiny-python")
    parser.add_argument("draft", nargs="?", default="tiny-python-draft")
    parser.add_argument("--headers", type=int, default=200)
    parser.add_argument("--new-tokens", type=int, default=240)
    parser.add_argument("--json", type=pathlib.Path, help="write here instead of to standard output")
    options = parser.parse_args()
    result = evaluate(load(options.target), load(options.draft), options.headers, options.new_tokens)
    text = json.dumps(result, indent=1)
    if options.json:
        options.json.write_text(text + "\n")
    else:
        print(text)


if __name__ == "__main__":
    main()
