"""The tokenizer that a GGUF file describes: a vocabulary, merges or scores, and the name of a way to cut text."""

from __future__ import annotations

from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

Values = dict[str, Any]

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
MARKED = (UNKNOWN, CONTROL, USER_DEFINED)  # found in a text before anything is cut
SPACE = "\u2581"  # what SentencePiece writes for a blank

WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER, LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
CUTS = {
    "qwen2": rf"{ENDINGS}|{WORD}|\p{{N}}|{REST}",
    "llama-bpe": rf"{ENDINGS}|{WORD}|\p{{N}}{{1,3}}|{REST}",
    "tekken": (
        rf"[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]*[{LOWER}]+|[^\r\n\p{{L}}\p{{N}}]?[{UPPER}]+[{LOWER}]*|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
"""How byte-level vocabularies of some families cut text before they merge; `smollm` and `gpt-2` are built below."""
WHOLE = ("llama-bpe", "llama3", "llama-v3", "tekken")
"""These take a word of their vocabulary whole, whatever their merges would make of it, and begin a text with a mark."""
SAME_CUTS = {"llama3": "llama-bpe", "llama-v3": "llama-bpe", "deepseek-r1-qwen": "qwen2"}


def build(metadata: Values) -> Tokenizer:
    """A tokenizer from the fields `tokenizer.ggml.*`.

    Unused ids at the end, which pad the embedding to a round number of rows, are left out.

    Raises:
      ValueError: for a kind of vocabulary, or a way to cut text, that is not known here, or fields that are not there
        or do not fit together.
    """
    own = {name.removeprefix("tokenizer.ggml."): value for name, value in metadata.items()}
    makers = {"gpt2": (_byte_level, "merges"), "llama": (_sentencepiece, "scores")}
    _require(own, "model", "tokens", "token_type")
    if own["model"] not in makers:
        raise ValueError(f"tokenizer.ggml.model is {own['model']!r}; {' and '.join(makers)} are known, for others give "
                         "the model's tokenizer.json (--tokenizer)")  # fmt: skip
    maker, needed = makers[own["model"]]
    _require(own, needed)
    for name in {"token_type", needed} - {"merges"}:
        if len(own[name]) != len(own["tokens"]):
            raise ValueError(f"there are {len(own['tokens'])} tokens and {len(own[name])} of tokenizer.ggml.{name}")
    real = len(own["tokens"])
    while real and own["token_type"][real - 1] == UNUSED:
        real -= 1
    own |= {name: own[name][:real] for name in ("tokens", "token_type")}
    begin = _begin(own)
    try:
        tokenizer: Tokenizer = maker(own)
    except ValueError:
        raise
    except Exception as error:  # the library has no class of its own for what it raises
        raise ValueError(f"the fields tokenizer.ggml.* do not make a tokenizer: {error}") from None
    marked = [(token, kind) for token, kind in zip(own["tokens"], own["token_type"], strict=True) if kind in MARKED]
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=kind != USER_DEFINED) for t, kind in marked])
    if begin is not None:
        text = own["tokens"][begin]
        tokenizer.post_processor = processors.TemplateProcessing(
            f"{text} $A", f"{text} $A {text} $B", [(text, begin)])  # fmt: skip
    return tokenizer


def _require(own: Values, *names: str) -> None:
    missing = [name for name in names if name not in own]
    if missing:
        raise ValueError(f"the file has no tokenizer.ggml.{missing[0]}; give the model's tokenizer.json (--tokenizer)")


def _begin(own: Values) -> int | None:
    """The id that begins every text; where a file does not say whether one does, llama.cpp knows its kinds."""
    if not own.get("add_bos_token", own["model"] == "llama" or own.get("pre") in WHOLE):
        return None
    begin = own.get("bos_token_id")
    if begin is None or not 0 <= begin < len(own["tokens"]):
        raise ValueError(f"every text is to begin with tokenizer.ggml.bos_token_id, and that is {begin}")
    return int(begin)


def _byte_level(own: Values) -> Tokenizer:
    vocabulary = {token: i for i, token in enumerate(own["tokens"])}
    merges = [tuple(merge.split(" ")) for merge in own["merges"]]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=own.get("pre") in WHOLE))
    tokenizer.pre_tokenizer = _cut(own.get("pre", "default"))
    tokenizer.normalizer = normalizers.NFC() if own.get("pre") in ("qwen2", "deepseek-r1-qwen") else None
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def _cut(name: str) -> pre_tokenizers.PreTokenizer:
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if name in ("gpt-2", "gpt2"):
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    name = SAME_CUTS.get(name, name)
    if name not in CUTS:
        raise ValueError(f"tokenizer.ggml.pre is {name!r}, and how it cuts text is not known here ({', '.join(CUTS)}, "
                         "smollm and gpt-2 are): give the model's tokenizer.json (--tokenizer)")  # fmt: skip
    split = pre_tokenizers.Split(Regex(CUTS[name]), behavior="isolated")
    return pre_tokenizers.Sequence([split, bytes_only])


def _sentencepiece(own: Values) -> Tokenizer:
    vocabulary = {token: i for i, token in enumerate(own["tokens"])}
    unknown = own["tokens"][own.get("unknown_token_id", 0)]
    tokenizer = Tokenizer(models.BPE(
        vocabulary, _merges(own, vocabulary), unk_token=unknown, fuse_unk=True, byte_fallback=True))  # fmt: skip
    prefixed = own.get("add_space_prefix", True)
    # Not `Metaspace`, which leaves out the prefix of a text that begins with a blank, so that the blank is lost.
    visible = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), visible]) if prefixed else visible
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if prefixed else []))
    return tokenizer


def _merges(own: Values, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """Every way to put a piece together from two others, the best piece first: SentencePiece joins by score alone."""
    pieces = [i for i, kind in enumerate(own["token_type"]) if kind == NORMAL]
    pieces.sort(key=lambda i: (-own["scores"][i], i))
    found = []
    for i in pieces:
        text = own["tokens"][i]
        halves = ((text[:at], text[at:]) for at in range(1, len(text)))
        found += [(a, b) for a, b in halves if a in vocabulary and b in vocabulary]
    return found
