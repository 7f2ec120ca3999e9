"""Chats beside `transformers`: the same text, the same ids, and the same refusals."""

import itertools
import json

import jinja2
import pytest
from hf_chats import CONVERSATIONS, TEMPLATES, TOOLS
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from specjax.checkpoints import ChatTemplates, LoadedModel

MARKS = ["<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
         "<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]"]


def tokenizer():
    """Bytes and special tokens, with a begin-of-text token in front of what is encoded as it is."""
    words = {word: i for i, word in enumerate([*MARKS, *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    made = Tokenizer(models.BPE(words, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(MARKS)
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return made


CONFIG = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": {
    "__type": "AddedToken", "content": "</s>", "lstrip": False, "normalized": False, "rstrip": False,
    "single_word": False}, "pad_token": "<pad>", "unk_token": None}


@pytest.fixture
def both(transformers, tmp_path):
    """`both(files)`: theirs and ours for a folder with these files beside the tokenizer."""

    def read(files=(), **config):
        tokenizer().save(str(tmp_path / "tokenizer.json"))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(CONFIG | config))
        for name, text in dict(files).items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")
        ours = LoadedModel(None, None, tokenizer(), None, (), {}, ChatTemplates.read(tmp_path, "ours"))
        return transformers.AutoTokenizer.from_pretrained(tmp_path), ours

    return read


@pytest.mark.parametrize("name", TEMPLATES)
def test_texts_ids_and_refusals(name, both):
    theirs, ours = both({"chat_template.jinja": TEMPLATES[name]})
    written = set()
    for conversation, tools, prompt in itertools.product(CONVERSATIONS, [None, TOOLS], [True, False]):
        messages, options = CONVERSATIONS[conversation], {"tools": tools, "add_generation_prompt": prompt}
        try:
            text = theirs.apply_chat_template(messages, tokenize=False, **options)
        except (jinja2.TemplateError, TypeError) as error:
            with pytest.raises(ValueError, match="the chat template of ours failed") as refused:
                ours.chat_ids(messages, **options)
            assert str(error) in str(refused.value)
            continue
        assert ours.chat_text(messages, **options) == text
        ids = theirs.apply_chat_template(messages, return_dict=False, **options)
        assert ours.chat_ids(messages, **options) == ids
        assert ids.count(0) == text.count("<s>") <= 1
        written.add(conversation)
    # Templates take what they are made for, and say no to the rest: neither branch above is idle.
    assert {"user", "turns"} <= written
    assert ("twice" in written) == (name not in ("gemma", "mistral"))


def test_variables(both):
    theirs, ours = both({"chat_template.jinja": TEMPLATES["hermes"]})
    messages = CONVERSATIONS["turns"]
    values = {"enable_thinking": False, "documents": [{"title": "ä", "text": "<b>"}]}
    text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **values)
    assert ours.chat_text(messages, variables=values) == text
    assert "<think></think>" in text and "<b>" in text and ours.chat_text(messages) != text


NAMES = {"tool_use": "tools", "rag": "rag", "default": "plain"}
NAMED = [{"name": name, "template": text} for name, text in NAMES.items()]
OTHERS = {"additional_chat_templates/tool_use.jinja": "tools", "additional_chat_templates/rag.jinja": "rag"}
SOURCES = {
    "config": ({}, {"chat_template": "config"}),
    "file over config": ({"chat_template.jinja": "file"}, {"chat_template": "config"}),
    "names": ({}, {"chat_template": NAMED}),
    "folder": ({"chat_template.jinja": "file", **OTHERS}, {"chat_template": "config"}),
    "file over names": ({"chat_template.jinja": "file"}, {"chat_template": NAMED}),
}


@pytest.mark.parametrize("source", SOURCES)
def test_where_templates_stand(source, both):
    files, config = SOURCES[source]
    theirs, ours = both(files, **config)
    messages = CONVERSATIONS["user"]
    for tools in (None, TOOLS):
        text = theirs.apply_chat_template(messages, tools=tools, tokenize=False)
        assert ours.chat_text(messages, tools=tools) == text
    if "rag" in ours.chat.texts:
        rag = theirs.apply_chat_template(messages, chat_template="rag", tokenize=False)
        assert ours.chat_text(messages, template="rag") == rag == "rag"


@pytest.mark.parametrize("old", [True, False])
def test_where_special_tokens_stand(old, both):
    """A map of special tokens goes over the config of an old folder, and is not looked at in a new one."""
    decoder = {"0": {"content": "<s>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                     "special": True}}
    theirs, ours = both(
        {"special_tokens_map.json": json.dumps({"bos_token": {"content": "<pad>"}, "cls_token": "</s>"}),
         "chat_template.jinja": "{{ bos_token }}{{ cls_token }}"}, **({} if old else {"added_tokens_decoder": decoder}))
    text = theirs.apply_chat_template(CONVERSATIONS["user"], tokenize=False)
    assert ours.chat_text("x") == text == ("<pad></s>" if old else "<s>")
