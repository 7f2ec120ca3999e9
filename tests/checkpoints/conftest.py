"""A saved checkpoint of a very small decoder."""

import pathlib
import sys

import pytest
from flax import nnx
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from specjax import checkpoints
from specjax.models import Decoder, DecoderConfig, from_nnx

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "models")]  # for what some tests share: `hugging.py`, `head_cases.py`

CONFIG = DecoderConfig(
    vocab_size=7, hidden_size=8, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=4, intermediate_size=12,
    max_position=32, tie_embeddings=False,
)  # fmt: skip


def word_tokenizer(words="abcdefg"):
    return Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))


@pytest.fixture
def tokenizer():
    return word_tokenizer()


@pytest.fixture
def make_tokenizer():
    return word_tokenizer


@pytest.fixture
def config():
    return CONFIG


@pytest.fixture
def params():
    return from_nnx(Decoder(CONFIG, rngs=nnx.Rngs(0)))[1]


@pytest.fixture
def saved(tmp_path, params, tokenizer):
    checkpoints.save(tmp_path / "model", params, CONFIG, tokenizer, {"steps": 3}, eos_ids=(6,))
    return tmp_path / "model"
