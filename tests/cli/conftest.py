"""A tiny pair of random weights with a tokenizer of bytes, in place of the checkpoints that `specjax.load` reads."""

import dataclasses

import jax.numpy as jnp
import pytest
from flax import nnx
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

import specjax
from specjax.checkpoints import ChatTemplates, LoadedModel
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


def loaded(seed, layers, tokenizer, **settings):
    config = DecoderConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=16, num_layers=layers, num_heads=2, num_kv_heads=1,
        head_dim=8, intermediate_size=32, max_position=512, **settings)
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


TURNS = """{{ bos_token }}{% for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@pytest.fixture
def chat_pair(checkpoints, monkeypatch):
    """The pair as chat models; to "hello", the target answers two tokens and <|im_end|>."""
    tokenizer = byte_tokenizer(extra=["<|im_start|>", "<|im_end|>"])
    end = tokenizer.token_to_id("<|im_end|>")
    templates = ChatTemplates("a chat model", {"default": TURNS}, {"bos_token": END})
    pair = {
        name: dataclasses.replace(loaded(seed, 1, tokenizer, tie_embeddings=False), eos_ids=(0, end), chat=templates)
        for seed, name in enumerate(["tiny-python", "tiny-python-draft"])}
    target = pair["tiny-python"]
    out = specjax.generate(target.model, target.params, [target.chat_ids("hello")], max_new_tokens=3)
    said = out.tokens[0].tolist()
    assert said[2] not in said[:2] and not set(said) & set(target.eos_ids)
    head = target.params["head"]  # of its own: what is read does not change with what is written
    swapped = head.at[:, jnp.array([end, said[2]])].set(head[:, jnp.array([said[2], end])])
    pair["tiny-python"] = dataclasses.replace(target, params=target.params | {"head": swapped})
    for name, model in pair.items():
        monkeypatch.setitem(checkpoints, name, model)
    return pair
