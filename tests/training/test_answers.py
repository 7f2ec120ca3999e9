"""A target's answers on disk: what is written, that a killed run leaves whole chunks and goes on, what is refused."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import toys

from specjax import Attend
from specjax.training import corpus, prompts
from specjax.training.answers import HELD_OUT, TRAINING, AnswerSettings, fingerprint, read_answers, write_answers
from specjax.training.instructions import drawn


class Letters:
    """One token a character: the text side of the toy target."""

    def encode(self, text):
        return type("Encoding", (), {"ids": [1 + ord(letter) % (toys.VOCAB - 1) for letter in text]})


@pytest.fixture
def writer(target):
    return dataclasses.replace(target, tokenizer=Letters())


@pytest.fixture
def settings(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(["xx" * 40, *(f"p{i:03d}" for i in range(300))]))
    return AnswerSettings(str(path), chunks=3, rows=6, prompt_tokens=8, new_tokens=7, temperatures=(0.0, 1.5))


def write(folder, settings, target):
    told = []
    write_answers(folder, settings, target, lambda name, total: told.append(total) or (lambda: None))
    return told


def test_answers_are_the_targets_own(writer, settings, tmp_path):
    write(tmp_path / "a", settings, writer)
    chunks = read_answers(tmp_path / "a", TRAINING, 3)
    assert len(chunks) == 3 and len(read_answers(tmp_path / "a", TRAINING, 2)) == 2
    seen = set()
    for chunk in chunks:
        assert chunk.temperature.tolist() == [0.0, 1.5] * 3 and (chunk.start == 4).all()
        attend = Attend(jnp.zeros(6, jnp.int32), jnp.broadcast_to(jnp.arange(15), (6, 15)), jnp.ones((6, 15), bool))
        choice = np.argmax(writer.model.apply(writer.params, chunk.tokens, None, attend).logits, -1)
        for row in range(0, 6, 2):
            answer = slice(chunk.start[row], chunk.start[row] + chunk.length[row])
            np.testing.assert_array_equal(chunk.tokens[row, answer], choice[row, answer.start - 1 : answer.stop - 1])
            ended = chunk.tokens[row, answer][-1] == 0
            assert chunk.length[row] == 7 or ended
            assert (chunk.tokens[row, answer.stop :] == 0).all()
        seen |= {tuple(row[:4]) for row in chunk.tokens.tolist()}
    held_out = {tuple(row[:4]) for row in read_answers(tmp_path / "a", HELD_OUT, 1)[0].tokens.tolist()}
    assert len(seen) > 10 and not held_out & seen


def test_a_killed_run_goes_on(writer, settings, tmp_path):
    folder = tmp_path / "a"
    assert write(folder, settings, writer) == [1, 3]
    whole = {path.name: path.read_bytes() for path in (folder / TRAINING).iterdir()}
    (folder / TRAINING / "00001.npz").unlink()
    (folder / TRAINING / "00001.tmp").write_bytes(whole["00001.npz"][:50])  # as a kill leaves it
    assert write(folder, settings, writer) == [1]
    for name, content in whole.items():
        with np.load(folder / TRAINING / name) as again:
            assert set(again) == {"tokens", "start", "length", "temperature"}
        assert (folder / TRAINING / name).stat().st_size == len(content)
    one, two = (read_answers(folder, TRAINING, 2)[1] for _ in range(2))
    np.testing.assert_array_equal(one.tokens, two.tokens)


def test_other_settings_and_other_targets_are_refused(writer, settings, tmp_path):
    write(tmp_path / "a", settings, writer)
    with pytest.raises(ValueError, match=r"other settings: temperatures \[0.0, 1.5\] \(now \[0.0, 1.0\]\)"):
        write(tmp_path / "a", dataclasses.replace(settings, temperatures=(0.0, 1.0)), writer)
    other = dataclasses.replace(toys.toy_target(width=24), tokenizer=Letters())
    with pytest.raises(ValueError, match="target"):
        write(tmp_path / "a", settings, other)
    assert fingerprint(writer.params) == fingerprint(toys.toy_target().params)
    rounded = jax.tree.map(lambda x: x.astype(jnp.bfloat16), writer.params)
    assert fingerprint(rounded) == fingerprint(jax.tree.map(lambda x: x.astype(jnp.float32), rounded))
    assert fingerprint(rounded) != fingerprint(writer.params)


def test_too_few_prompts_are_counted(writer, settings, tmp_path):
    with pytest.raises(ValueError, match="chunk 0 .* needs 400 prompts of at most 8 tokens, but only .* are: ask for"):
        write(tmp_path / "a", dataclasses.replace(settings, rows=400), writer)


def test_what_is_no_chunk_is_named(writer, settings, tmp_path):
    with pytest.raises(ValueError, match="holds 0 of 3 chunks"):
        read_answers(tmp_path, TRAINING, 3)
    write(tmp_path / "a", settings, writer)
    path = tmp_path / "a" / TRAINING / "00002.npz"
    for content in (b"", path.read_bytes()[:100]):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"00002.npz is no whole chunk .*delete it"):
            read_answers(tmp_path / "a", TRAINING, 3)


def test_a_draft_model_may_help_and_greedy_text_stays(writer, settings, tmp_path, monkeypatch):
    import specjax

    monkeypatch.setattr(specjax, "load", lambda name: dataclasses.replace(
        toys.toy_target(width=8, layers=1), tokenizer=writer.tokenizer), raising=False)
    monkeypatch.setattr("specjax.training.answers.check_same_tokenizer", lambda *pair: None)
    settings = dataclasses.replace(settings, chunks=1)
    write(tmp_path / "plain", settings, writer)
    write(tmp_path / "fast", dataclasses.replace(settings, draft="small"), writer)
    plain, fast = (read_answers(tmp_path / name, TRAINING, 1)[0].tokens[::2] for name in ("plain", "fast"))
    np.testing.assert_array_equal(plain, fast)


def test_sources_of_prompts(tmp_path):
    lines = tmp_path / "p.jsonl"
    lines.write_text("\n".join(json.dumps(entry) for entry in [{"prompt": "a"}, {"turns": ["b", "c"]}] * 2))
    source = prompts.source(str(lines), chat=True, seed=0)
    found = {kept: sorted(getattr(source, kept)(0, 1)) for kept in ("training", "held_out")}
    assert sorted(found["training"] + found["held_out"]) == ["a", "b"] and source.chat
    lines.write_text('{"prompt": "a"}\n{"text": "b"}')
    with pytest.raises(ValueError, match="p.jsonl, line 2: expected"):
        prompts.source(str(lines), chat=False, seed=0)
    with pytest.raises(ValueError, match="'nowhere': there is no such file"):
        prompts.source("nowhere", chat=False, seed=0)
    with pytest.raises(ValueError, match="set chat to false"):
        prompts.source("headers", chat=True, seed=0)


def test_instructions_differ_and_are_kept_apart():
    source = prompts.source("instructions", chat=False, seed=0)
    assert source.chat
    training, held_out = ({text for text, _ in zip(part(0, 1), range(200), strict=False)}
                          for part in (source.training, source.held_out))
    assert len(training) > 180 and len(held_out) > 150 and not training & held_out
    assert not any("{" in text for text in training)
    again = prompts.source("instructions", chat=True, seed=0).training(0, 1)
    assert next(again) in training and next(drawn((0, 0, 1))) != next(drawn((0, 0, 0)))


def test_headers_are_invented_and_some_never(monkeypatch):
    source = "def read_{0}(path):\n    pass\ndef f(a_{0}, b):\n    pass"
    modules = [corpus.Module(f"m{i}.py", source.format(i)) for i in range(500)]
    monkeypatch.setattr(corpus, "standard_library", lambda: modules)
    headers = ["def read(path):", "def close(self):", "def merge(a, b):"]
    made = prompts.invented_headers(headers, 200, np.random.default_rng(0))
    assert {"def read(self):", "def merge(path):", "def close(a, b):"} <= set(made)
    assert all(header.endswith("):") for header in made)
    source = prompts.source("headers", chat=False, seed=3)
    held_out = set(source.held_out(0, 1))
    training = {text for text, _ in zip(source.training(0, 1), range(4000), strict=False)}
    assert len(held_out) > 20 and not held_out & training
    shares = [set(source.held_out(number, 2)) for number in (0, 1)]
    assert not shares[0] & shares[1] and shares[0] | shares[1] == held_out
