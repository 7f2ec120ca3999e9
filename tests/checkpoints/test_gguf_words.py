"""The tokenizer that a GGUF file describes."""

import itertools
import unicodedata

import gguf_files
import gguf_words
import pytest
from gguf_files import IDS, tensors, values_of
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from specjax.checkpoints import gguf
from specjax.checkpoints.gguf import tokenizer

TEXTS = [
    "hello the whole", " hello", "  hello  the\n\n  help", "don't I'LL", "1234567 12 a1b2", "tabs\tand\r\nlines \r\n",
    "caf\u00e9 cafe\u0301", "\U0001f600\U0001f469\u200d\U0001f680 \u00fc\u0308", "x = {\n    'a': 1,\n}\n", " ",
    "\n", "",
]  # fmt: skip


def pieces(words, text):
    made = tokenizer.build(words)
    return [made.id_to_token(i) for i in made.encode(text, add_special_tokens=False).ids]


@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe", "tekken", "smollm", "gpt-2"])
def test_byte_level_text_comes_back(pre):
    made = tokenizer.build(gguf_words.byte_level(pre))
    for text in TEXTS:
        want = unicodedata.normalize("NFC", text) if pre == "qwen2" else text
        assert made.decode(made.encode(text, add_special_tokens=False).ids) == want


def test_each_way_to_cut_is_its_own():
    def cut(pre, text):
        return pieces(gguf_words.byte_level(pre), text)

    digits = {pre: cut(pre, "123") for pre in ("qwen2", "llama-bpe", "tekken", "smollm", "gpt-2")}
    assert {pre: len(found) for pre, found in digits.items()} == {
        "qwen2": 3, "llama-bpe": 1, "tekken": 3, "smollm": 3, "gpt-2": 1}  # fmt: skip
    # Whatever the merges make of it, some take a word of the vocabulary whole.
    assert cut("llama-bpe", " whole") == cut("tekken", " whole") == ["\u0120whole"]
    assert len(cut("qwen2", " whole")) == len(cut("gpt-2", " whole")) == 6
    assert cut("qwen2", "\n\n") == ["\u010a\u010a"] and cut("llama3", "hello") == ["hello"]


def test_special_tokens_inside_text():
    words = gguf_words.byte_level()
    assert pieces(words, "hello<|im_end|>the")[:2] == ["hello", "<|im_end|>"]
    made = tokenizer.build(words)
    ids = made.encode("hello<|im_end|><tool_call>", add_special_tokens=False).ids
    assert made.decode(ids) == "hello<tool_call>"  # a control token is no text, a user's is
    assert pieces(gguf_words.PIECES, "hello</s><unk><tool>") == ["\u2581hello", "</s>", "<unk>", "<tool>"]


def slow_sentencepiece(words, text):
    """By the definition: of all neighbours that make a piece, join the pair of the best score, the first of equals."""
    scores = {token: score for token, score, kind in zip(
        words["tokenizer.ggml.tokens"], words["tokenizer.ggml.scores"], words["tokenizer.ggml.token_type"], strict=True)
        if kind == gguf_words.NORMAL}
    parts = list(text)
    while True:
        joined = [(-scores[a + b], i) for i, (a, b) in enumerate(itertools.pairwise(parts)) if a + b in scores]
        if not joined:
            break
        at = min(joined)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [piece for part in parts for piece in (
        [part] if part in scores else [f"<0x{byte:02X}>" for byte in part.encode()])]


@pytest.mark.parametrize("prefixed", [True, False])
def test_sentencepiece_joins_by_score(prefixed):
    words = gguf_words.sentencepiece(add_space_prefix=prefixed)
    made = tokenizer.build(words)
    for text in TEXTS:
        shown = text.replace(" ", "\u2581")
        assert pieces(words, text) == slow_sentencepiece(words, "\u2581" * (prefixed and text != "") + shown), text
        assert made.decode(made.encode(text, add_special_tokens=False).ids) == text
        assert made.decode(made.encode(text).ids) == text


def test_the_beginning_is_marked_where_the_file_or_its_kind_says():
    def begins(words):
        made = tokenizer.build(words)
        return made.encode("the").ids[0] == words["tokenizer.ggml.bos_token_id"]

    assert begins(gguf_words.sentencepiece()) and not begins(gguf_words.sentencepiece(add_bos_token=False))
    assert not begins(gguf_words.byte_level()) and begins(gguf_words.byte_level(add_bos_token=True))
    # Converters leave the flag out of Llama 3 and Mistral files, and llama.cpp knows better by their way to cut.
    assert begins(gguf_words.byte_level("llama-bpe")) and begins(gguf_words.byte_level("tekken"))
    assert not begins(gguf_words.byte_level("llama-bpe", add_bos_token=False))


def test_padding_is_no_word():
    for words in (gguf_words.BYTES, gguf_words.PIECES):
        rows, ids = gguf_words.count(words)
        vocabulary = tokenizer.build(words).get_vocab(with_added_tokens=True)
        assert rows > ids == len(vocabulary) == 1 + max(vocabulary.values())


def test_ends(tmp_path):
    def ends(words=gguf_words.BYTES, **fields):
        fields = {f"tokenizer.ggml.{name}": value for name, value in fields.items()}
        values = values_of(vocab_size=gguf_words.count(words)[0])
        file = gguf_files.write(tmp_path / "x.gguf", values, tensors(**values), words=words, fields=fields)
        return gguf.read(file).generation["eos_token_id"]

    text, end = IDS - 4, IDS - 2  # <|endoftext|> and <|im_end|>
    assert ends() == [end, text]
    assert ends(eos_token_id=text, eot_token_id=3) == [text, 3, end]
    assert ends(eos_token_id=10**6, eot_token_id=-1, eom_token_id=4) == [4, text, end]
    assert ends(gguf_words.PIECES) == [2]


def test_another_tokenizer_instead(tmp_path):
    words = gguf_words.byte_level("some-new-cut")
    file = gguf_files.write(tmp_path / "x.gguf", values_of(), tensors(), words=words)
    with pytest.raises(ValueError, match=r"x.gguf: tokenizer.ggml.pre is 'some-new-cut'.*\(--tokenizer\)"):
        gguf.read(file)
    given = tmp_path / "tokenizer.json"
    Tokenizer(WordLevel({"a": 0, "b": 1}, unk_token="a")).save(str(given))
    assert gguf.read(file, given).tokenizer.encode("b").ids == [1]
    bare = gguf_files.write(tmp_path / "x.gguf", values_of(), tensors(), words={}, fields={
        "tokenizer.ggml.eos_token_id": 1})
    with pytest.raises(ValueError, match=r"no tokenizer.ggml.model; give the model's tokenizer.json \(--tokenizer\)"):
        gguf.read(bare)
    assert gguf.read(bare, given).generation == {"eos_token_id": [1]}
    for damage in (given.unlink, lambda: given.write_text("{")):
        damage()
        with pytest.raises(ValueError, match=r"x.gguf: .*tokenizer.json is missing or damaged .*; give another"):
            gguf.read(file, given)


@pytest.mark.parametrize(("words", "changes", "message"), [
    (gguf_words.BYTES, {"model": "bert"}, "tokenizer.ggml.model is 'bert'; gpt2 and llama are known"),
    (gguf_words.BYTES, {"merges": None}, "no tokenizer.ggml.merges"),
    (gguf_words.BYTES, {"merges": ["h zz"]}, "do not make a tokenizer"),
    (gguf_words.BYTES, {"merges": ["nothing"]}, "do not make a tokenizer"),
    (gguf_words.BYTES, {"token_type": [1, 2]}, "294 tokens and 2 of tokenizer.ggml.token_type"),
    (gguf_words.BYTES, {"add_bos_token": True, "bos_token_id": None}, "bos"),
    (gguf_words.BYTES, {"add_bos_token": True, "bos_token_id": 999}, "bos"),
    (gguf_words.BYTES, {"add_bos_token": True, "bos_token_id": -1}, "bos"),
    (gguf_words.PIECES, {"scores": None}, "no tokenizer.ggml.scores"),
    (gguf_words.PIECES, {"scores": [1.0]}, "336 tokens and 1 of tokenizer.ggml.scores"),
])  # fmt: skip
def test_vocabularies_that_do_not_fit_together(words, changes, message):
    fields = {f"tokenizer.ggml.{name}": value for name, value in changes.items()}
    said = {name: value for name, value in {**words, **fields}.items() if value is not None}
    with pytest.raises(ValueError, match=message):
        tokenizer.build(said)
