"""Train the embedded pair: `python -m specjax.training.tiny_python --out DIR`.

Four stages, each resumable from what is on disk under DIR: the corpus becomes tokens; target and draft train together,
the draft on the target's own distribution; the target, frozen, writes functions; the draft learns on what it wrote. The
last two are those of `specjax train draft`. DIR/tiny-python and DIR/refine/draft are the results, in bfloat16.
"""

from __future__ import annotations

import argparse
import pathlib
import platform
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from tokenizers import Tokenizer

from specjax._src.types import Model
from specjax.checkpoints import save
from specjax.checkpoints.layout import MANIFEST
from specjax.models import Decoder, DecoderConfig, from_nnx
from specjax.training import corpus
from specjax.training.config import make_config
from specjax.training.optimizers import OptimizerSettings, optimizer
from specjax.training.pretrain import PretrainSettings, pretrain
from specjax.training.run import run
from specjax.training.tokenizer import train_tokenizer

VOCAB_SIZE = 4096
MAX_FUNCTION_TOKENS = 240
WRITTEN_CHUNKS = 115
REFINE_STEPS = 8400
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


def build(role: str, seed: int) -> tuple[Model, Any]:
    """A model of the pair (`target` or `draft`) with fresh float32 weights."""
    return from_nnx(Decoder(CONFIGS[role], rngs=nnx.Rngs(params=seed)))


def training_functions(modules: list[corpus.Module]) -> list[corpus.Function]:
    """Distinct functions of the modules that are not held out."""
    return list({f.text: f for m in modules if not m.held_out for f in corpus.functions(m)}.values())


def encode(tokenizer: Tokenizer, texts: list[str]) -> list[np.ndarray]:
    """Ids of each text as int32, without the begin-of-text id."""
    return [np.array(e.ids, np.int32) for e in tokenizer.encode_batch(texts, add_special_tokens=False)]


def prepare(out: pathlib.Path) -> Tokenizer:
    """Write `tokenizer.json` and the training documents' tokens, unless they are there; return the tokenizer."""
    path, tokens = out / "tokenizer.json", out / "tokens.npz"
    if path.exists() and tokens.exists():
        return Tokenizer.from_file(str(path))
    modules = [m for m in corpus.standard_library() if not m.held_out]
    texts = [m.text for m in modules]
    tokenizer = train_tokenizer(texts, VOCAB_SIZE)
    files = encode(tokenizer, texts)
    bodies = encode(tokenizer, [f.text for f in training_functions(modules)])
    bodies = [row for row in bodies if len(row) <= MAX_FUNCTION_TOKENS]
    tokenizer.save(str(path))
    np.savez(
        tokens,
        files=np.concatenate(files),
        files_ends=np.cumsum([len(r) for r in files]),
        functions=np.concatenate(bodies),
        functions_ends=np.cumsum([len(r) for r in bodies]),
    )
    return tokenizer


def documents(out: pathlib.Path, name: str) -> list[np.ndarray]:
    """The token arrays of one kind of document (`files` or `functions`)."""
    with np.load(out / "tokens.npz") as arrays:
        return np.split(arrays[name], arrays[name + "_ends"][:-1])


def export(out: pathlib.Path, name: str, role: str, params: Any, tokenizer: Tokenizer, dtype: Any) -> pathlib.Path:
    """Write a model as the checkpoint `out/name`, unless it is there: a stage that goes on must find the same one."""
    path = out / name
    if not (path / MANIFEST).exists():
        metadata = {"corpus": f"standard library of Python {platform.python_version()}"}
        stored = jax.tree.map(lambda x: x.astype(dtype), params)
        save(path, stored, CONFIGS[role], tokenizer, metadata, eos_ids=(0,))
    return path


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="run folder; a second start resumes it")
    parser.add_argument("--minutes", type=float, default=64.0, help="length of the first stage")
    parser.add_argument("--steps", type=int, default=0, help="optimiser steps of the first stage, instead of minutes")
    parser.add_argument("--chunks", type=int, default=WRITTEN_CHUNKS, help="files of 256 rows that the target writes")
    parser.add_argument("--refine-steps", type=int, default=REFINE_STEPS, help="optimiser steps of the last stage")
    parser.add_argument("--batch", type=int, default=8, help="windows per step")
    parser.add_argument("--rate", type=float, default=4e-3, help="peak learning rate of the first stage")
    parser.add_argument("--refine-rate", type=float, default=3e-3, help="peak learning rate of the last stage")
    options = parser.parse_args()
    out: pathlib.Path = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(out / "xla"))
    tokenizer = prepare(out)
    built = {role: build(role, seed) for seed, role in enumerate(CONFIGS)}
    transform = optimizer(OptimizerSettings("muon", options.rate, weight_decay=0.1, clip=1.0), steps=None)
    kinds = {name: documents(out, name) for name in ("files", "functions")}
    first = PretrainSettings(minutes=options.minutes, steps=options.steps, batch=options.batch)
    params = pretrain(out, first, built, dict.fromkeys(CONFIGS, transform), kinds)
    # The target as it is stored: the draft should meet the very model that it drafts for.
    target = export(out, "tiny-python", "target", params["target"], tokenizer, jnp.bfloat16)
    begun = export(out, "first-draft", "draft", params["draft"], tokenizer, jnp.float32)
    refined = run(make_config("draft", {
        "target": str(target),
        "head": {"start": str(begun)},
        "answers": {"prompts": "headers", "chunks": options.chunks, "temperatures": [0.0, 0.8]},
        "run": {"steps": options.refine_steps, "batch": options.batch, "length": 384, "features": "cached"},
        "optimizer": {"name": "muon", "rate": options.refine_rate, "weight_decay": 0.1, "clip": 1.0, "decay": 0.7},
    }, "tiny_python"), out / "refine")  # fmt: skip
    print(f"{target} and {refined} are complete")


if __name__ == "__main__":
    main()
