"""The first stage of the embedded pair: losses fall, the clock-free run resumes exactly."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys
from flax import nnx

from specjax.models import Decoder, from_nnx
from specjax.training import corpus, runs
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


def test_cutting_at_the_dedent():
    text = "def f(x):\n    return 1\n\n    # end\nx = 2\n    y"
    assert cut_at_dedent(text) == "def f(x):\n    return 1\n\n    # end"
    assert corpus.parses(cut_at_dedent(text))
    assert not corpus.parses("def f(x):")
