"""A tiny pair of random weights with a tokenizer of bytes, in place of the checkpoints that `specjax.load` reads."""

import pytest
from flax import nnx
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import specjax
from specjax.checkpoints import LoadedModel
from specjax.cli import programs
from specjax.models import Decoder, DecoderConfig, from_nnx

END = "<|endoftext|>"


def byte_tokenizer(extra=()):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=257 + len(extra), special_tokens=[END, *extra], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{END} $A", special_tokens=[(END, 0)])
    return tokenizer


def loaded(seed, layers, tokenizer):
    config = DecoderConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=16, num_layers=layers, num_heads=2, num_kv_heads=1,
        head_dim=8, intermediate_size=32, max_position=512)
    model, params = from_nnx(Decoder(config, rngs=nnx.Rngs(params=seed)))
    return LoadedModel(model, params, tokenizer, config, (0,), {})


@pytest.fixture(autouse=True)
def no_programs_kept(monkeypatch):
    """A test leaves nothing in the user's cache folder."""
    monkeypatch.setattr(programs, "keep_programs", lambda: None)


@pytest.fixture(scope="session")
def shelf():
    tokenizer = byte_tokenizer()
    return {
        "tiny-python": loaded(0, 1, tokenizer),
        "tiny-python-draft": loaded(1, 1, tokenizer),
        "twin": loaded(0, 1, tokenizer),
        "stranger": loaded(2, 1, byte_tokenizer(extra=["<other>"])),
    }


@pytest.fixture
def checkpoints(shelf, monkeypatch):
    """`specjax.load` from the shelf above."""

    def load(name):
        if name not in shelf:
            raise FileNotFoundError(f"no checkpoint {name}; embedded are {', '.join(shelf)}")
        return shelf[name]

    monkeypatch.setattr(specjax, "load", load, raising=False)
    return shelf
