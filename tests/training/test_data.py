"""Corpus, windows and tokenizer."""

import ast

import numpy as np
import pytest

from specjax.training import corpus
from specjax.training.data import Windows, ragged
from specjax.training.tokenizer import train_tokenizer

SOURCE = '''"""A module."""
import os


class Reader:
    @property
    def path(self) -> str:
        """Where it reads."""
        return os.fspath(self._path)

    def read(self,
             size=-1):
        def inner():
            return size
        return inner()


def top(x): return x
'''


@pytest.fixture
def library(tmp_path):
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_a.py").write_text(SOURCE)
    for i in range(120):
        (tmp_path / f"module{i}.py").write_text(f"# {'x' * i}\n" + SOURCE.replace("top", f"top_{chr(97 + i % 26)}"))
    (tmp_path / "table.py").write_text("TABLE = [" + "1234567, " * 100 + "]")
    return tmp_path


def test_modules_are_split_by_name_alone(library):
    modules = corpus.standard_library(library)
    assert len(modules) == 120
    held_out = {m.name for m in modules if m.held_out}
    assert 1 <= len(held_out) <= 15
    (library / sorted(held_out)[0]).write_text(SOURCE * 3)
    assert {m.name for m in corpus.standard_library(library) if m.held_out} == held_out


def test_functions_are_dedented_and_parse():
    found = {f.header.split("(")[0]: f for f in corpus.functions(corpus.Module("m.py", SOURCE))}
    assert set(found) == {"def path", "def read", "def inner"}
    assert found["def path"].header == "def path(self) -> str:"
    assert found["def read"].header == "def read(self,\n         size=-1):"
    for function in found.values():
        assert function.text.startswith(function.header + "\n")
        ast.parse(function.text)
    assert list(corpus.functions(corpus.Module("bad.py", "def f(:"))) == []


def test_held_out_headers_are_new_and_single_lines():
    def named(name):
        return SOURCE.replace("path(", name + "(").replace("inner()", name + "_in()")

    modules = [corpus.Module(f"m{i}.py", named(f"p{i % 60}")) for i in range(200)]
    trained = {f.header for m in modules if not m.held_out for f in corpus.functions(m)}
    chosen = corpus.held_out_headers(modules, 10)
    assert all(f.header not in trained and "\n" not in f.header for f in chosen)
    assert chosen == corpus.held_out_headers(list(reversed(modules)), 10)


def test_windows_cover_every_token_once_per_epoch():
    documents = [np.arange(1, n) for n in (5, 9, 2, 14)]
    windows = Windows(documents, length=4, seed=0)
    first = windows.take(0, windows.per_epoch)
    assert first.shape == (7, 5)
    stream = np.concatenate([first[0], *first[1:, 1:]])
    np.testing.assert_array_equal(first[1:, 0], first[:-1, -1])
    total = np.concatenate([[0, *d] for d in documents])
    missing = len(total) - len(stream)
    assert 0 <= missing < 4
    assert sum(stream) <= sum(total)
    again = Windows(documents, length=4, seed=0)
    np.testing.assert_array_equal(again.take(9, 3), windows.take(9, 3))
    assert not np.array_equal(windows.take(7, 7), first)
    with pytest.raises(ValueError, match="fewer than 65 tokens"):
        Windows(documents, length=64, seed=0)


def test_ragged_pads_and_cuts():
    rows, lengths = ragged([[1, 2], [3, 4, 5, 6]], 3)
    assert rows.tolist() == [[1, 2, 0], [3, 4, 5]]
    assert lengths.tolist() == [2, 3]


def test_tokenizer_keeps_layout_together_and_loses_nothing():
    tokenizer = train_tokenizer([SOURCE] * 3, 330)
    encoded = tokenizer.encode("def f(x):\n\n        return 'é…'\n")
    assert encoded.ids[0] == 0
    assert encoded.tokens[0] == "<|endoftext|>"
    assert tokenizer.decode(encoded.ids) == "def f(x):\n\n        return 'é…'\n"
    broken = tokenizer.encode("x\n        return")
    assert broken.tokens[2] == "Ċ" + "Ġ" * 8
    with pytest.raises(ValueError, match="tokens, 4000 were asked for"):
        train_tokenizer([SOURCE], 4000)
