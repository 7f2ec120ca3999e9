"""GGUF files read by `transformers` and by us: the same logits, the same ids for the same text."""

import gguf_files
import gguf_words
import jax
import numpy as np
import pytest
from hf_families import SIZES, WINDOW
from test_logits import TOLERANCE, feed, theirs

from specjax import checkpoints
from specjax.checkpoints import dialects, gguf, names

PREFIXED = gguf_words.sentencepiece()
BARE = gguf_words.sentencepiece(add_space_prefix=False)
SHARED = {**SIZES, "head_dim": 12, "rope_theta": 1e4, "rms_norm_eps": 1e-5}
WIDE = {"num_attention_heads": 2, "num_key_value_heads": 1}
FAMILIES = {
    "llama": ({"model_type": "llama", "tie_word_embeddings": True}, PREFIXED),
    "llama-bpe": ({"model_type": "llama", "rope_theta": 5e5}, gguf_words.byte_level("llama-bpe", add_bos_token=False)),
    "qwen2": ({"model_type": "qwen2"}, gguf_words.BYTES),
    # Of these `transformers` takes the width of a head, and the scale that follows from it, for granted.
    "qwen3": ({"model_type": "qwen3", "tie_word_embeddings": True, "head_dim": 128, **WIDE}, gguf_words.BYTES),
    "gemma3": ({"model_type": "gemma3_text", "num_hidden_layers": 7, "sliding_window": WINDOW, "head_dim": 256, **WIDE,
                "query_pre_attn_scalar": 256, "rope_theta": 1e6, "tie_word_embeddings": True}, BARE),
}  # fmt: skip
TEXTS = [
    "hello the whole help", "don't I'LL we'Re", "1 12 123 1234567 a1b2", "a  b   c    d", "the\n\n\n the \n  hello",
    "tabs\tand\r\nlines\r\n\r\n x", "caf\u00e9 \u00fc", "\U0001f600 \U0001f469\u200d\U0001f680", "x = {'a': [1, 2]}\n",
    "the ", "\n",
]  # fmt: skip


@pytest.fixture(scope="module", params=FAMILIES)
def file(request, tmp_path_factory):
    """Weights of a size at which an error shows, as in `hf_pairs.randomise`."""
    changes, words = FAMILIES[request.param]
    values = {**SHARED, **changes, "vocab_size": gguf_words.count(words)[0]}
    rng, made = np.random.default_rng(0), {}
    for tensor in names.tensors(dialects.decoder_config(values)):
        noise = rng.standard_normal(tensor.theirs, np.float32)
        if noise.ndim == 1:
            made[tensor.name] = 0.2 * noise + (0 if "bias" in tensor.name or "gemma" in request.param else 1)
        else:
            made[tensor.name] = noise * np.float32(0.5 if "embed" in tensor.name else 0.6 * noise.shape[1] ** -0.5)
    made = {name: array.astype(np.float32) for name, array in made.items()}
    return gguf_files.write(tmp_path_factory.mktemp("gguf") / "x.gguf", values, made, words=words)


def test_the_same_logits(file, torch, transformers, tmp_path):
    pytest.importorskip("accelerate", reason="transformers needs it to read GGUF files")
    module = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, attn_implementation="eager").eval()
    checkpoints.from_gguf(file, tmp_path / "ours")
    loaded = checkpoints.load(tmp_path / "ours")
    tokens = np.random.default_rng(0).integers(3, loaded.config.vocab_size, 40)
    want = theirs(torch, module, tokens, [len(tokens)])[:, : loaded.config.vocab_size]
    assert 0.3 < np.abs(want).mean() < 6
    params = jax.tree.map(np.asarray, loaded.params)
    np.testing.assert_allclose(feed(loaded.config, params, tokens, [len(tokens)]), want, rtol=0, atol=TOLERANCE)


def test_the_same_ids(file, transformers):
    """Where `transformers` reads a file otherwise than llama.cpp and the published tokenizer do, that is left out here
    and stands in `tests/checkpoints/test_gguf_words.py`: it puts no blank before a SentencePiece text that begins with
    one, nor behind special tokens; it does not compose letters and marks for Qwen; and merges what Llama 3 takes whole.
    """
    want = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    made = gguf.read(file).tokenizer
    want.backend_tokenizer.model.ignore_merges = getattr(made.model, "ignore_merges", False)
    inside = "hello<|im_end|>\nthe<tool_call> the" if made.token_to_id("<|im_end|>") else "hello</s>"
    for text in [*TEXTS, inside]:
        ours = made.encode(text, add_special_tokens=False).ids
        assert ours == want.encode(text, add_special_tokens=False), text
        assert text == inside or made.decode(ours) == text
