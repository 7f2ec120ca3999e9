"""The first stage of the embedded pair: losses fall, the clock-free run resumes exactly."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from flax import nnx

from specjax.checkpoints import check_same_tokenizer, load
from specjax.models import Decoder, DecoderConfig, from_nnx
from specjax.training import corpus, runs, tiny_python
from specjax.training.evaluate import cut_at_dedent
from specjax.training.optimizers import OptimizerSettings, optimizer
from specjax.training.pretrain import PretrainSettings, pretrain


def toy(width, seed):
    return from_nnx(Decoder(toys.toy_config(width, layers=1), rngs=nnx.Rngs(seed)))


@pytest.fixture(scope="module")
def documents():
    rng = np.random.default_rng(0)
    # Every token follows from the one before, but for the first: easily learnt.
    return [(rng.integers(1, toys.VOCAB) + 3 * np.arange(n)) % (toys.VOCAB - 1) + 1 for n in rng.integers(6, 20, 60)]


def run(out, steps, documents):
    built = {"target": toy(16, 0), "draft": toy(8, 1)}
    transform = optimizer(OptimizerSettings("muon", 1e-2, weight_decay=0.1, clip=1.0), None)
    settings = PretrainSettings(minutes=0.0, steps=steps, batch=4, length=16)
    return pretrain(
        out, settings, built, dict.fromkeys(built, transform), {"files": documents, "functions": documents[:30]})


def test_pretraining_learns_and_resumes_exactly(tmp_path, documents, monkeypatch):
    whole = run(tmp_path / "whole", 24, documents)
    lines = (tmp_path / "whole" / "pair" / "log.jsonl").read_text().splitlines()
    first, last = (json.loads(line) for line in (lines[0], lines[-1]))
    assert last["target"] < 0.8 * first["target"]
    assert last["kl"] < first["kl"]
    # A run that is cut off half-way: the schedule still counts to 24.
    original = runs.RunFolder.log

    def stop(self, entry):
        original(self, entry)
        if entry["step"] == 11:
            raise KeyboardInterrupt

    monkeypatch.setattr(runs.RunFolder, "log", stop)
    monkeypatch.setattr(runs.RunFolder, "maybe_save", lambda self, *a: self.save(*a))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "cut", 24, documents)
    monkeypatch.setattr(runs.RunFolder, "log", original)
    resumed = run(tmp_path / "cut", 24, documents)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)), whole, resumed))


def module(number):
    """A toy module of twelve functions that stand in no other."""
    return corpus.Module(f"m{number}.py", "\n\n\n".join(
        f"def read_{number}_{i}(path, size={i}):\n    return path[:size]" for i in range(12)))


def test_the_pair_is_made_and_loads(tmp_path, monkeypatch):
    """The whole command on a corpus of toy modules and with toy models."""
    modules = [module(i) for i in range(700)]
    config = DecoderConfig.from_dict(toys.toy_config(8, layers=1).to_dict() | {"vocab_size": 300})
    monkeypatch.setattr(corpus, "standard_library", lambda: modules)
    monkeypatch.setattr(tiny_python, "VOCAB_SIZE", 300)
    monkeypatch.setattr(tiny_python, "CONFIGS", {"target": config, "draft": config})
    monkeypatch.setattr(sys, "argv", [
        "tiny_python", "--out", str(tmp_path), "--steps", "1", "--batch", "1", "--chunks", "1", "--refine-steps", "1"])
    programs = jax.config.jax_compilation_cache_dir
    try:
        tiny_python.main()
    finally:
        jax.config.update("jax_compilation_cache_dir", programs)
    target, first, draft = (load(tmp_path / name) for name in ("tiny-python", "first-draft", "refine/draft"))
    check_same_tokenizer(target, draft)
    assert target.eos_ids == draft.eos_ids == (0,)
    moved = jax.tree.map(lambda a, b: bool(jnp.any(a != b)), first.params, draft.params)
    assert all(jax.tree.leaves(moved))


def test_cutting_at_the_dedent():
    text = "def f(x):\n    return 1\n\n    # end\nx = 2\n    y"
    assert cut_at_dedent(text) == "def f(x):\n    return 1\n\n    # end"
    assert corpus.parses(cut_at_dedent(text))
    assert not corpus.parses("def f(x):")
