"""The stages on models of toy size: losses fall, the clock-free run resumes exactly, the draft learns its target."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from specjax import Attend
from specjax.models import Decoder, DecoderConfig, from_nnx
from specjax.training.distill import divergence, optimizer, packed_attend, schedule
from specjax.training.evaluate import cut_at_dedent, parses
from specjax.training.pretrain import PretrainSettings, pretrain
from specjax.training.refine import RefineSettings, refine
from specjax.training.writing import prompts_from, writer

VOCAB = 24


def toy(width, seed):
    config = DecoderConfig(
        vocab_size=VOCAB, hidden_size=width, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8,
        intermediate_size=2 * width, max_position=64,
    )  # fmt: skip
    return from_nnx(Decoder(config, rngs=nnx.Rngs(seed)))


@pytest.fixture(scope="module")
def documents():
    rng = np.random.default_rng(0)
    # Every token follows from the one before, but for the first: easily learnt.
    return [(rng.integers(1, VOCAB) + 3 * np.arange(n)) % (VOCAB - 1) + 1 for n in rng.integers(6, 20, 60)]


def run(out, steps, documents):
    built = {"target": toy(16, 0), "draft": toy(8, 1)}
    transforms = {role: optimizer(1e-2, 0.1, 1.0) for role in built}
    settings = PretrainSettings(minutes=0.0, steps=steps, batch=4, length=16)
    return pretrain(out, settings, built, transforms, {"files": documents, "functions": documents[:30]})


def test_pretraining_learns_and_resumes_exactly(tmp_path, documents, monkeypatch):
    whole = run(tmp_path / "whole", 24, documents)
    lines = (tmp_path / "whole" / "pair" / "log.jsonl").read_text().splitlines()
    first, last = (json.loads(line) for line in (lines[0], lines[-1]))
    assert last["target"] < 0.8 * first["target"]
    assert last["kl"] < first["kl"]
    # A run that is cut off half-way: the schedule still counts to 24.
    from specjax.training import runs

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


def test_the_draft_learns_from_the_targets_own_text(tmp_path, documents):
    target, draft = toy(16, 0), toy(8, 1)
    settings = RefineSettings(
        minutes=0.0, chunks=2, rows=16, prompt_tokens=4, new_tokens=8, batch=8, steps_per_chunk=30
    )
    copied = (draft[0], jax.tree.map(jnp.copy, draft[1]))
    params = refine(tmp_path, settings, target, copied, optimizer(2e-2, 0.0, 1.0), documents, [2] * len(documents))
    tokens = jnp.asarray(np.stack([d[:6] for d in documents[:16]]), jnp.int32)
    attend = packed_attend(tokens)
    want = target[0].apply(target[1], tokens, None, attend).logits
    before, after = (draft[0].apply(p, tokens, None, attend).logits for p in (draft[1], params))
    assert float(divergence(want, after).mean()) < float(divergence(want, before).mean())


def test_written_rows_are_what_the_full_pass_says(documents):
    model, params = toy(16, 2)
    prompts, lengths = prompts_from(documents[:6], [2] * 6, 5, np.random.default_rng(0))
    rows = writer(model, 7)(params, prompts, lengths, jnp.zeros(6), jax.random.key(0))
    for row in range(6):
        start, count = int(rows.start[row]), int(rows.length[row])
        text = rows.tokens[row : row + 1, : start + count]
        attend = Attend(jnp.zeros(1, jnp.int32), jnp.arange(text.shape[1])[None], jnp.ones(text.shape, bool))
        logits = model.apply(params, text, None, attend).logits[0]
        np.testing.assert_array_equal(jnp.argmax(logits[start - 1 : -1], axis=-1), text[0, start:])
        np.testing.assert_allclose(rows.logits[row, :count], logits[start - 1 : -1], atol=1e-2)


def test_packed_documents_do_not_see_each_other():
    model, params = toy(16, 3)
    tokens = jnp.array([[0, 5, 6, 0, 7, 8]])
    packed = model.apply(params, tokens, None, packed_attend(tokens)).logits
    alone = model.apply(params, tokens[:, 3:], None, packed_attend(tokens[:, 3:])).logits
    np.testing.assert_allclose(packed[:, 3:], alone, atol=1e-5)


def test_schedule_rises_holds_and_ends_at_zero():
    values = schedule(jnp.array([0.0, 0.01, 0.02, 0.4, 0.7, 1.0]))
    np.testing.assert_allclose(values, [0.0, 0.5, 1.0, 1.0, 0.5, 0.0], atol=1e-6)


def test_cutting_at_the_dedent():
    text = "def f(x):\n    return 1\n\n    # end\nx = 2\n    y"
    assert cut_at_dedent(text) == "def f(x):\n    return 1\n\n    # end"
    assert parses(cut_at_dedent(text))
    assert not parses("def f(x):")
