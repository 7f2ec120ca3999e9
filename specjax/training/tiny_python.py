"""Train the embedded pair: `python -m specjax.training.tiny_python --out DIR`.

Three stages, each resumable from what is on disk under DIR: the corpus becomes tokens; target and draft train together,
the draft on the target's own distribution; then the target is frozen and the draft learns on text that the target wrote.
The schedule follows the training clock (`--minutes`), or the number of steps if `--steps` is given.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tokenizers import Tokenizer

from specjax._src.types import Model
from specjax.models import Decoder, DecoderConfig, from_nnx
from specjax.training import corpus
from specjax.training.data import Windows
from specjax.training.distill import optimizer, pair_step
from specjax.training.runs import RunFolder
from specjax.training.tokenizer import train_tokenizer

VOCAB_SIZE = 4096
MAX_FUNCTION_TOKENS = 240
CONFIGS = {
    "target": DecoderConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=320,
        num_layers=5,
        num_heads=6,
        num_kv_heads=2,
        head_dim=64,
        intermediate_size=864,
        max_position=1024,
    ),
    "draft": DecoderConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=32,
        intermediate_size=352,
        max_position=1024,
    ),
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What one run is: sizes, rates, budgets.

    Attributes:
      batch, length: windows per step, tokens per window.
      minutes, steps: length of the first stage; `steps` wins when it is not 0.
      refine_minutes: length of the last stage.
      function_share: part of a batch drawn from single functions, at the start and at the end of the first stage.
      rate, weight_decay, clip: peak learning rate, decoupled decay on kernels, gradient norm limit.
    """

    batch: int = 16
    length: int = 256
    minutes: float = 60.0
    steps: int = 0
    refine_minutes: float = 12.0
    function_share: tuple[float, float] = (0.3, 0.6)
    rate: float = 4e-3
    weight_decay: float = 0.1
    clip: float = 1.0
    seed: int = 0


def build(role: str, seed: int) -> tuple[Model, Any]:
    """A model of the pair (`target` or `draft`) with fresh float32 weights."""
    return from_nnx(Decoder(CONFIGS[role], rngs=nnx.Rngs(params=seed)))


def prepare(out: pathlib.Path) -> Tokenizer:
    """Write `tokenizer.json` and the training documents' tokens, unless they are there; return the tokenizer."""
    path, tokens = out / "tokenizer.json", out / "tokens.npz"
    if path.exists() and tokens.exists():
        return Tokenizer.from_file(str(path))
    modules = [m for m in corpus.standard_library() if not m.held_out]
    texts = [m.text for m in modules]
    tokenizer = train_tokenizer(texts, VOCAB_SIZE)
    bodies = list({f.text: None for m in modules for f in corpus.functions(m)})
    arrays = {}
    for name, documents in (("files", texts), ("functions", bodies)):
        rows = [e.ids for e in tokenizer.encode_batch(documents, add_special_tokens=False)]
        if name == "functions":
            rows = [r for r in rows if len(r) <= MAX_FUNCTION_TOKENS]
        arrays[name] = np.concatenate(rows).astype(np.int32)
        arrays[name + "_ends"] = np.cumsum([len(r) for r in rows])
    tokenizer.save(str(path))
    np.savez(tokens, **arrays)
    return tokenizer


def documents(out: pathlib.Path, name: str) -> list[np.ndarray]:
    """The token arrays of one kind of document (`files` or `functions`)."""
    with np.load(out / "tokens.npz") as arrays:
        return np.split(arrays[name], arrays[name + "_ends"][:-1])


def train(out: pathlib.Path, settings: Settings) -> dict[str, Any]:
    """First stage; returns the parameters of both models."""
    built = {role: build(role, settings.seed + i) for i, role in enumerate(CONFIGS)}
    transforms = {r: optimizer(settings.rate, settings.weight_decay, settings.clip) for r in CONFIGS}
    step = pair_step({r: m for r, (m, _) in built.items()}, transforms)
    params = {r: p for r, (_, p) in built.items()}
    state = {r: transforms[r].init(params[r]) for r in CONFIGS}
    streams = {n: Windows(documents(out, n), settings.length, settings.seed) for n in ("files", "functions")}
    counters = {"step": 0, "seconds": 0.0, "files": 0, "functions": 0}
    run = RunFolder(out / "pair")
    (params, state), counters = run.resume((params, state), counters)
    while True:
        progress = counters["step"] / settings.steps if settings.steps else counters["seconds"] / 60 / settings.minutes
        if progress >= 1.0:
            break
        began = time.monotonic()
        window = _mixed_batch(streams, counters, settings, progress)
        params, state, losses = step(params, state, window, jnp.float32(progress))
        values = {k: round(float(v), 4) for k, v in losses.items()}
        # The first step of a process compiles; that is no training time.
        took = time.monotonic() - began
        counters["seconds"] += took if run.steps_here else 0.0
        counters["step"] += 1
        run.log({**counters, "progress": round(progress, 4), "took": round(took, 3), **values})
        run.maybe_save((params, state), counters)
    run.save((params, state), counters)
    return params


def _mixed_batch(streams: dict[str, Windows], counters: dict[str, Any], settings: Settings, progress: float) -> Any:
    low, high = settings.function_share
    # The share steps up where the rate begins to fall, not gradually: the last stretch is what the model remembers.
    count = round(settings.batch * (low if progress < 0.5 else high))
    rows = []
    for name, number in (("functions", count), ("files", settings.batch - count)):
        if number:
            rows.append(streams[name].take(counters[name], number))
            counters[name] += number
    return jnp.asarray(np.concatenate(rows))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="run folder; a second start resumes it")
    for field in dataclasses.fields(Settings):
        if field.name != "function_share":
            kind = type(field.default)
            parser.add_argument("--" + field.name.replace("_", "-"), type=kind, default=field.default)
    options = vars(parser.parse_args())
    out = options.pop("out")
    settings = Settings(**options)
    out.mkdir(parents=True, exist_ok=True)
    (out / "settings.json").write_text(json.dumps(dataclasses.asdict(settings), indent=1))
    prepare(out)
    jax.config.update("jax_compilation_cache_dir", str(out / "xla"))
    train(out, settings)


if __name__ == "__main__":
    main()
