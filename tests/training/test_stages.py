"""The stages on models of toy size: losses fall, the clock-free run resumes exactly, the draft learns its target."""

import dataclasses
import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from specjax import Attend, Model, Output
from specjax.models import Decoder, DecoderConfig, from_nnx
from specjax.training import corpus
from specjax.training.data import ragged
from specjax.training.distill import divergence, optimizer, packed_attend, schedule
from specjax.training.evaluate import cut_at_dedent
from specjax.training.pretrain import PretrainSettings, pretrain
from specjax.training.refine import Library, RefineSettings, refine
from specjax.training.writing import WritingSettings, invented_headers, write_chunks, writer

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


def rows_written_by(model, params, count=6, new_tokens=7, temperature=0.0, candidates=8):
    prompts, lengths = ragged([[0, 3 + i, 5][: 2 + i % 2] for i in range(count)], 4)
    return writer(model, new_tokens, candidates)(
        params, prompts, lengths, jnp.full(count, temperature), jax.random.key(0))


def test_written_rows_are_what_the_full_pass_says():
    model, params = toy(16, 2)
    for temperature in (0.0, 0.5):
        rows = rows_written_by(model, params, temperature=temperature)
        for row in range(6):
            start, count = int(rows.start[row]), int(rows.length[row])
            text = rows.tokens[row : row + 1, : start + count]
            attend = Attend(jnp.zeros(1, jnp.int32), jnp.arange(text.shape[1])[None], jnp.ones(text.shape, bool))
            logits = model.apply(params, text, None, attend).logits[0, start - 1 : -1]
            law = jax.nn.log_softmax(logits / (temperature or 1.0))
            want, ids = jax.lax.top_k(law, 8)
            np.testing.assert_allclose(rows.log_probs[row, :count], want, atol=1e-2)
            np.testing.assert_array_equal(rows.ids[row, :count], ids)
            if not temperature:
                np.testing.assert_array_equal(ids[:, 0], text[0, start:])


def save_chunk(folder, number, rows):
    folder.mkdir(exist_ok=True)
    np.savez(folder / f"{number:05d}.npz", **{name: np.asarray(value) for name, value in vars(rows).items()})


def test_the_library_holds_every_written_token_once_an_epoch(tmp_path):
    model, params = toy(16, 2)
    rows = rows_written_by(model, params)
    save_chunk(tmp_path, 0, rows)
    library = Library(tmp_path, 1)  # windows of one place: every place of the stream, in its order
    for epoch in range(2):
        lesson = library.take(epoch * library.per_epoch, library.per_epoch)
        tokens = lesson.tokens[:, 0]
        heads = np.flatnonzero(tokens == 0)
        documents = {tuple(part) for part in np.split(tokens, heads[1:])}
        assert documents == {tuple(row[: s + n - 1].tolist())
                             for row, s, n in zip(np.asarray(rows.tokens), rows.start, rows.length, strict=True)}
    whole = Library(tmp_path, library.per_epoch).take(0, 1)
    # At every scored place the likeliest next token, here that of greedy rows, is the one that follows.
    follows = np.append(whole.tokens[0, 1:], 0)
    inside = whole.scored[0] & (follows != 0)
    assert inside.sum() > 10
    np.testing.assert_array_equal(whole.ids[0, inside, 0], follows[inside])


def test_a_row_without_its_head_is_not_scored(tmp_path):
    save_chunk(tmp_path, 0, rows_written_by(*toy(16, 2)))
    library = Library(tmp_path, 5)
    lesson = library.take(0, library.per_epoch)
    for tokens, scored in zip(lesson.tokens, lesson.scored, strict=True):
        heads = np.flatnonzero(tokens == 0)
        assert not scored[: heads[0] if len(heads) else None].any()


def test_the_draft_learns_from_the_targets_own_text(tmp_path):
    target, draft = toy(16, 0), toy(8, 1)
    rows = rows_written_by(*target, count=64, temperature=1.0, candidates=VOCAB)
    save_chunk(tmp_path / "written", 0, rows)
    settings = RefineSettings(minutes=0.0, steps=60, batch=4, length=16)
    params = refine(tmp_path, settings, (draft[0], jax.tree.map(jnp.copy, draft[1])), optimizer(2e-2, 0.0, 1.0))
    tokens = rows.tokens[:, :6]
    attend = packed_attend(tokens)
    want = target[0].apply(target[1], tokens, None, attend).logits
    before, after = (draft[0].apply(p, tokens, None, attend).logits for p in (draft[1], params))
    assert float(divergence(want, after).mean()) < float(divergence(want, before).mean())


def test_an_empty_library_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="write some first"):
        Library(tmp_path, 8)


def test_what_is_no_library_is_refused(tmp_path):
    rows = rows_written_by(*toy(16, 2))
    save_chunk(tmp_path, 0, rows)
    with pytest.raises(ValueError, match="windows need 4000"):
        Library(tmp_path, 4000)
    whole = (tmp_path / "00000.npz").read_bytes()
    for cut in (0, len(whole) // 2):
        (tmp_path / "00001.npz").write_bytes(whole[:cut])
        with pytest.raises(ValueError, match=r"00001\.npz is no whole chunk"):
            Library(tmp_path, 4)
    save_chunk(tmp_path, 1, rows)
    save_chunk(tmp_path, 0, dataclasses.replace(rows, tokens=jnp.maximum(rows.tokens, 1)))
    with pytest.raises(ValueError, match="begin with token 0"):
        Library(tmp_path, 4)


def test_a_vocabulary_that_chunks_can_not_name_is_refused():
    wide = Model(lambda batch, capacity: (), lambda *_: Output(jnp.zeros((1, 2, 2**16 + 1)), {}, ()), lambda *_: ())
    with pytest.raises(ValueError, match="65537 tokens"):
        writer(wide, 3)({}, jnp.zeros((1, 2), jnp.int32), jnp.ones(1, jnp.int32), jnp.zeros(1), jax.random.key(0))


def test_headers_are_invented_and_some_never():
    headers = ["def read(path):", "def close(self):", "def merge(a, b):"]
    made = invented_headers(headers, 200, np.random.default_rng(0))
    assert {"def read(self):", "def merge(path):", "def close(a, b):"} <= set(made)
    assert all(header.endswith("):") for header in made)


def test_writing_resumes_and_leaves_out_what_is_kept_apart(tmp_path):
    class Tokenizer:  # one token a header, remembered
        seen = []

        def encode_batch(self, texts):
            self.seen.extend(texts)
            return [SimpleNamespace(ids=[0, 1 + len(text) % (VOCAB - 1)]) for text in texts]

    headers = ["def read(path):", "def close(self):"]
    settings = WritingSettings(chunks=2, rows=8, prompt_tokens=4, new_tokens=3)
    write_chunks(tmp_path, settings, toy(16, 0), Tokenizer(), headers, frozenset({"def read(self):"}))
    assert "def read(self):" not in Tokenizer.seen and "def close(path):" in Tokenizer.seen
    first, second = (path.read_bytes() for path in sorted(tmp_path.glob("*.npz")))
    (tmp_path / "00001.npz").unlink()
    write_chunks(tmp_path, settings, toy(16, 0), Tokenizer(), headers, frozenset())
    with np.load(tmp_path / "00001.npz") as again:
        assert again["temperature"].tolist() == [0.0, np.float32(0.8)] * 4
        assert again["ids"].shape == (8, 3, VOCAB)
    assert (tmp_path / "00000.npz").read_bytes() == first and second


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
    assert corpus.parses(cut_at_dedent(text))
    assert not corpus.parses("def f(x):")
