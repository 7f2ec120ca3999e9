"""Train the embedded pair: `python -m specjax.training.tiny_python --out DIR`.

Four stages, each resumable from what is on disk under DIR: the corpus becomes tokens; target and draft train together,
the draft on the target's own distribution; the target, frozen, writes functions; the draft learns on what it wrote.
DIR/tiny-python and DIR/tiny-python-draft are the results, in bfloat16.
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
from specjax.models import Decoder, DecoderConfig, from_nnx
from specjax.training import corpus
from specjax.training.distill import optimizer
from specjax.training.pretrain import PretrainSettings, pretrain
from specjax.training.refine import RefineSettings, refine
from specjax.training.tokenizer import train_tokenizer
from specjax.training.writing import WritingSettings, write_chunks

VOCAB_SIZE = 4096
MAX_FUNCTION_TOKENS = 240
WRITTEN_CHUNKS = 115
NAMES = {"target": "tiny-python", "draft": "tiny-python-draft"}
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


def write(out: pathlib.Path, chunks: int, target: tuple[Model, Any], tokenizer: Tokenizer) -> None:
    """Let the target write functions into `out/written`, under headers invented from the training functions'."""
    modules = corpus.standard_library()
    known = {f.header for f in training_functions(modules)}
    kept_apart = {f.header for m in modules if m.held_out for f in corpus.functions(m)} - known
    headers = sorted(h for h in known if "\n" not in h)
    write_chunks(out / "written", WritingSettings(chunks), target, tokenizer, headers, frozenset(kept_apart))


def export(out: pathlib.Path, params: dict[str, Any], tokenizer: Tokenizer) -> None:
    """Write both models as checkpoints in bfloat16."""
    metadata = {"corpus": f"standard library of Python {platform.python_version()}"}
    for role, name in NAMES.items():
        stored = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params[role])
        save(out / name, stored, CONFIGS[role], tokenizer, metadata, eos_ids=(0,), overwrite=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, required=True, help="run folder; a second start resumes it")
    parser.add_argument("--minutes", type=float, default=64.0, help="length of the first stage")
    parser.add_argument("--steps", type=int, default=0, help="optimiser steps of the first stage, instead of minutes")
    parser.add_argument("--chunks", type=int, default=WRITTEN_CHUNKS, help="files of 256 rows that the target writes")
    parser.add_argument("--refine-minutes", type=float, default=60.0, help="length of the last stage")
    parser.add_argument("--batch", type=int, default=8, help="windows of 256 tokens per step")
    parser.add_argument("--rate", type=float, default=4e-3, help="peak learning rate of the first stage")
    parser.add_argument("--refine-rate", type=float, default=3e-3, help="peak learning rate of the last stage")
    options = parser.parse_args()
    out: pathlib.Path = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(out / "xla"))
    tokenizer = prepare(out)
    built = {role: build(role, seed) for seed, role in enumerate(CONFIGS)}
    transforms = {role: optimizer(options.rate, weight_decay=0.1, clip=1.0) for role in CONFIGS}
    kinds = {name: documents(out, name) for name in ("files", "functions")}
    first = PretrainSettings(minutes=options.minutes, steps=options.steps, batch=options.batch)
    params = pretrain(out, first, built, transforms, kinds)
    # The target as it will be stored: the draft should meet the very model that it drafts for.
    target = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(x.dtype), params["target"])
    write(out, options.chunks, (built["target"][0], target), tokenizer)
    params["draft"] = refine(
        out,
        RefineSettings(minutes=options.refine_minutes),
        (built["draft"][0], params["draft"]),
        optimizer(options.refine_rate, weight_decay=0.1, clip=1.0),
    )
    export(out, params, tokenizer)


if __name__ == "__main__":
    main()
