"""The two kinds of vocabulary that GGUF files of language models hold, small."""

from tokenizers.pre_tokenizers import ByteLevel

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
FREQUENT = ["hello", "help", "llo", "the", " the", " hello", " he", "ing", "don", "'t", "  ", "    ", "\n\n", "\u00e9",
            "12", "123"]  # fmt: skip
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def _visible(text):
    """As byte-level vocabularies write it."""
    return ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][0]


def _grown(pieces):
    """Each piece letter by letter: `(what there is, one letter more)` pairs, and no piece twice."""
    steps = [(piece[:at], piece[at]) for piece in pieces for at in range(1, len(piece))]
    return list(dict.fromkeys(steps))


def _fields(model, tokens, kinds, **more):
    said = {"model": model, "tokens": tokens, "token_type": kinds, **more}
    return {f"tokenizer.ggml.{key}": value for key, value in said.items()} | {"tokenizer.chat_template": TEMPLATE}


def byte_level(pre="qwen2", unused=4, **more):
    """256 bytes, merges, one word that no merge makes, control and user-defined tokens, and ids that pad."""
    merges = _grown([_visible(piece) for piece in FREQUENT])
    normal = sorted(ByteLevel.alphabet()) + [a + b for a, b in merges] + [_visible(" whole")]
    control, user = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], ["<tool_call>"]
    tokens = normal + control + user
    tokens += [f"[PAD{len(tokens) + i}]" for i in range(unused)]
    kinds = [NORMAL] * len(normal) + [CONTROL] * len(control) + [USER] * len(user) + [UNUSED] * unused
    end = len(normal)
    return _fields("gpt2", tokens, kinds, pre=pre, merges=[f"{a} {b}" for a, b in merges], bos_token_id=end,
                   eos_token_id=end + 2, padding_token_id=end, **more)  # fmt: skip


def sentencepiece(unused=4, **more):
    """The unknown, control tokens, bytes, pieces by falling score with the letters last, user-defined, and padding."""
    pieces = [piece.replace(" ", "\u2581") for piece in FREQUENT if "\n" not in piece]
    grown = [a + b for a, b in _grown(pieces)]
    letters = sorted(set("".join(pieces)) | set("abcdefghijklmnopqrstuvwxyzABC.,!'0123456789"))
    normal = grown + letters
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *normal, "<tool>"]
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(normal), USER]
    scores = [0.0] * 259 + [-float(i) for i in range(len(normal))] + [-1000.0]
    tokens += [f"[PAD{len(tokens) + i}]" for i in range(unused)]
    return _fields("llama", tokens, kinds + [UNUSED] * unused, scores=scores + [-10000.0] * unused, pre="default",
                   bos_token_id=1, eos_token_id=2, unknown_token_id=0, padding_token_id=0, **more)  # fmt: skip


def count(words):
    """Ids with padding, and without."""
    kinds = words["tokenizer.ggml.token_type"]
    return len(kinds), len(kinds) - kinds.count(UNUSED)


BYTES, PIECES = byte_level(), sentencepiece()
