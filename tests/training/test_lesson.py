"""Windows of answers: every row once, nothing seen across rows, and what counts; what is kept on disk of the target."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from specjax.training.lesson import Windows, packed_attend, teach
from specjax.training.taught import NEVER, TaughtWindows, write_taught


def rows_of(batch):
    """Token, answer and temperature of each row in windows."""
    for window in range(len(batch.tokens)):
        for number in range(batch.document[window].max() + 1):
            here = batch.document[window] == number
            assert np.all(np.diff(np.flatnonzero(here)) == 1)
            yield (tuple(batch.tokens[window, here].tolist()), int(batch.answer[window, here].sum()),
                   float(batch.temperature[window, here][0]))


def test_an_epoch_holds_every_row_once_and_little_padding():
    chunks = [toys.toy_chunk(64, seed, width=20) for seed in (1, 2)]
    windows = Windows(chunks, 32, 0)
    whole = sorted((tuple(c.tokens[i, : c.start[i] + c.length[i]].tolist()), int(c.length[i]), float(c.temperature[i]))
                   for c in chunks for i in range(64))
    epochs = [windows.take(epoch * len(windows), len(windows)) for epoch in (0, 1)]
    for batch in (*epochs, windows.in_order(0, len(windows))):
        assert sorted(rows_of(batch)) == whole
    assert not np.array_equal(epochs[0].tokens, epochs[1].tokens)
    assert (epochs[0].document >= 0).mean() > 0.9
    again = Windows(chunks, 32, 0).take(len(windows) + 3, 2)
    np.testing.assert_array_equal(again.tokens, epochs[1].tokens[3:5])
    assert (windows.in_order(len(windows), 2).document == -1).all()


def test_long_rows_are_cut_and_long_prompts_refused():
    chunk = toys.toy_chunk(16, 3, width=20)
    batch = Windows([chunk], 8, 0).in_order(0, 16)
    cut = {tuple(chunk.tokens[i, : min(8, chunk.start[i] + chunk.length[i])].tolist()) for i in range(16)}
    assert {tokens for tokens, _, _ in rows_of(batch)} == cut
    with pytest.raises(ValueError, match="longest prompt has 3 tokens.*raise `length` to 6"):
        Windows([chunk], 4, 0)


def test_rows_of_a_window_do_not_see_each_other(target):
    tokens, document = jnp.array([[0, 5, 6, 9, 7, 8, 0, 0]]), jnp.array([[0, 0, 0, 1, 1, 1, -1, -1]])
    together = target.model.apply(target.params, tokens, None, packed_attend(document)).logits
    for part in (slice(0, 3), slice(3, 6)):
        alone = target.model.apply(target.params, tokens[:, part], None, packed_attend(document[:, part] * 0)).logits
        np.testing.assert_allclose(together[:, part], alone, atol=1e-5)


def test_what_is_scored(studied):
    *_, lesson = studied("medusa")
    batch = jax.device_get(lesson.batch)
    for distance in (1, 3):
        found = np.asarray(lesson.scored(distance))
        for window, place in np.ndindex(found.shape):
            there = place + distance
            want = there < found.shape[1] and batch.answer[window, there] and (
                batch.document[window, there] == batch.document[window, place] >= 0)
            assert found[window, place] == bool(want)


def test_a_feature_that_is_not_offered_is_named(target, chunk):
    batch = Windows([chunk], 24, 0).take(0, 1)
    with pytest.raises(ValueError, match="reads the features layer_9; its target offers hidden, layer_0"):
        teach(target.model, target.params, batch, frozenset({"layer_9", "hidden"}))


def test_what_is_kept_on_disk_is_what_the_target_says(target, tmp_path):
    chunks, needs = [toys.toy_chunk(20, seed) for seed in (1, 2)], frozenset({"layer_1", "hidden"})
    told = []
    folder = write_taught(tmp_path, chunks, target, needs, lambda name, total: told.append(total) or (lambda: None))
    before = (folder / "00000" / "ids.npy").stat().st_mtime_ns
    (folder / "00001").rename(folder / "00001.incomplete")  # as a kill leaves it
    write_taught(tmp_path, chunks, target, needs, lambda name, total: told.append(total) or (lambda: None))
    assert told == [2, 1] and (folder / "00000" / "ids.npy").stat().st_mtime_ns == before
    windows = Windows(chunks, 24, 0)
    taught = TaughtWindows(windows, folder, target, needs).take(1, 3)
    fresh = teach(target.model, target.params, windows.take(1, 3), needs)
    lesson = taught.lesson()
    inside = np.asarray(fresh.batch.document >= 0)
    np.testing.assert_array_equal(lesson.batch.tokens, fresh.batch.tokens)
    for name in needs:
        found, want = (np.asarray(x.features[name], np.float32)[inside] for x in (lesson, fresh))
        np.testing.assert_allclose(found, want, rtol=1e-2, atol=1e-3)
    laws = [np.asarray(jax.nn.softmax(x.logits))[inside] for x in (lesson, fresh)]
    np.testing.assert_allclose(*laws, atol=2e-3)  # all 24 tokens are among the 64 likeliest


def test_unlikely_tokens_have_no_mass_and_no_infinity(target, chunk, tmp_path, monkeypatch):
    monkeypatch.setattr("specjax.training.taught.CANDIDATES", 5)
    folder = write_taught(tmp_path, [chunk], target, frozenset(), lambda name, total: lambda: None)
    lesson = TaughtWindows(Windows([chunk], 24, 0), folder, target, frozenset()).take(0, 2).lesson()
    inside = np.asarray(lesson.batch.document >= 0)
    logits = np.asarray(lesson.logits)[inside]
    assert ((logits > NEVER).sum(axis=-1) == 5).all() and np.isfinite(logits).all() and not lesson.features
