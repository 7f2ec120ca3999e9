"""Chat templates: where they stand, what they may do, what is refused. `tests/parity` sets them beside transformers."""

import dataclasses
import datetime
import fnmatch
import json

import hugging
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from specjax import checkpoints
from specjax.checkpoints import ChatTemplates, LoadedModel, hub

TURNS = """{{ bos_token }}{% for message in messages %}
<|{{ message.role }}|> {{ message.content }} {{ eos_token }}
{% endfor %}
  {% if add_generation_prompt %}
<|assistant|>
  {% endif %}
"""
USER = [{"role": "user", "content": "hi"}]


def chat(template=TURNS, **tokens):
    """A model with this template and no weights; its tokenizer puts `<s>` in front."""
    words = ["<s>", "</s>", "<|user|>", "<|assistant|>", "hi", "?"]
    tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens(words[:4])
    tokenizer.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    texts = {} if template is None else {"default": template}
    return LoadedModel(None, None, tokenizer, None, (), {}, ChatTemplates("the/folder", texts, tokens))


def test_text_and_ids():
    model = chat(bos_token="<s>", eos_token="</s>")
    assert model.chat_text(USER) == model.chat_text("hi") == "<s><|user|> hi </s>\n<|assistant|>\n"
    assert model.chat_ids("hi") == [0, 2, 4, 1, 3]
    # The template writes <s>, and the tokenizer, which would, not another.
    assert model.tokenizer.encode(model.chat_text("hi")).ids == [0, 0, 2, 4, 1, 3]
    assert model.chat_ids(USER, add_generation_prompt=False) == [0, 2, 4, 1]
    both = [*USER, {"role": "assistant", "content": "hi", "tool_calls": None}]
    assert model.chat_ids(both) == [0, 2, 4, 1, 3, 4, 1, 3]


def test_what_templates_are_given():
    model = chat("{{ tools | tojson }} {{ documents is none }} {{ add_generation_prompt }} {{ bos_token is defined }}")
    assert model.chat_text("", tools=[{"a": "<ü>"}]) == '[{"a": "<ü>"}] True True False'
    assert chat("{{ messages[0] | tojson(indent=1) }}").chat_text("'<") == (
        '{\n "role": "user",\n "content": "\'<"\n}')
    assert chat("{{ depth + 1 }}").chat_text("", variables={"depth": 1}) == "2"
    before = datetime.date.today()
    year = chat("{{ strftime_now('%d.%m.%Y') }}").chat_text("")
    assert year in {f"{day:%d.%m.%Y}" for day in (before, datetime.date.today())}
    loop = "{% for m in messages %}{% if m.content == 'b' %}{% continue %}{% endif %}{{ m.content }}{% endfor %}"
    assert chat(loop).chat_text([{"role": "user", "content": word} for word in "abc"]) == "ac"
    assert chat("a{% generation %}{% set x = 1 %}b{{ x }}{% endgeneration %}c{{ x }}").chat_text("") == "ab1c"


@pytest.mark.parametrize("escape", [
    "{{ ''.__class__.__mro__ }}", "{{ messages.__class__ }}{{ messages.__class__.__base__.__subclasses__() }}",
    "{{ raise_exception.__globals__['json'] }}", "{{ '{0.__class__.__mro__}'.format(1) }}",
    "{{ ('{0.__class__.__mro__}' | attr('format'))(1) }}", "{{ self.__init__.__globals__.os }}",
    "{% set _ = messages.append(1) %}", "{% set _ = messages[0].update(role='x') %}{{ 1 }}",
    "{{ messages.clear() }}", "{% for i in range(10 ** 9) %}{% endfor %}", "{% include 'x' %}",
    "{% import 'os' as os %}",
])
def test_the_sandbox_holds(escape):
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(ValueError, match="the chat template of the/folder failed: "):
        chat(escape).chat_text(messages)
    assert messages == USER


def test_no_object_of_python_reaches_a_template():
    class Door(str):
        def open(self):
            return "opened"

    shown = "{{ messages[0].content.open is defined }} {{ x.open is defined }}"
    assert chat(shown).chat_text([{"role": "user", "content": Door("hi")}], variables={"x": Door()}) == "False False"
    for options in ({"variables": {"x": object()}}, {"tools": [print]}):
        with pytest.raises(ValueError, match="must be JSON values"):
            chat(shown).chat_text(USER, **options)


@pytest.mark.parametrize("messages, words", [
    ([], "messages is empty"),
    ({"role": "user", "content": "hi"}, "a sequence of messages, got dict"),
    (3, "got int"),
    (["hi"], "message 0 must be a mapping .* got str"),
    ([*USER, {"content": "hi"}], r"message 1 has no role.*it has .'content'."),
    ([{"role": 1, "content": "hi"}], "message 0 has no role"),
    ([{"role": "user"}], "message 0 has no content"),
    ([{"role": "user", "content": None}], "message 0 has no content"),
    ([{"role": "user", "content": 3}], "message 0 has no content that is a text"),
    ([{"role": "user", "content": [object()]}], "must be JSON values: Object of type object"),
])
def test_bad_messages(messages, words):
    with pytest.raises(ValueError, match=words):
        chat().chat_ids(messages)


@pytest.mark.parametrize("template, words", [
    (None, "the/folder has no chat template: give the text as a plain prompt"),
    ("{{ raise_exception('only users') }}", "the chat template of the/folder failed: only users"),
    ("a\n{% if x %}\nb", "the chat template of the/folder failed: line 3: Unexpected end of template"),
    ("{{ messages[0].content + 1 }}", "the/folder failed: TypeError: can only concatenate str"),
    ("{{ nothing.at.all }}", "the/folder failed: 'nothing' is undefined"),
])
def test_templates_that_fail(template, words):
    with pytest.raises(ValueError) as error:
        chat(template).chat_ids("hi")
    assert words in str(error.value)


def test_templates_by_name():
    texts = {"default": "plain", "tool_use": "tools", "rag": "{{ 1 }}"}
    model = dataclasses.replace(chat(), chat=ChatTemplates("m", texts))
    assert [model.chat_text("x"), model.chat_text("x", template="rag")] == ["plain", "1"]
    assert [model.chat_text("x", tools=[]), model.chat_text("x", tools=[], template="default")] == ["tools", "plain"]
    assert chat(None).chat_text("x", template="own {{ messages[0].content }}") == "own x"
    with pytest.raises(ValueError, match="m has no chat template 'rga'; .*: default, rag, tool_use"):
        model.chat_text("x", template="rga")
    no_default = dataclasses.replace(model, chat=ChatTemplates("m", {"rag": "1"}))
    with pytest.raises(ValueError, match="'default'; choose one that it has with template=: rag"):
        no_default.chat_text("x")


CONFIG = {"tokenizer_config.json": '{"chat_template": "c"}'}
NAMED = '{"chat_template": [{"name": "a", "template": "x"}, {"name": "default", "template": "d"}]}'


@pytest.mark.parametrize("files, texts", [
    ({}, {}),
    ({"tokenizer_config.json": "{}"}, {}),
    ({"chat_template.json": '{"chat_template": "p"}'}, {"default": "p"}),
    ({"chat_template.json": '{"chat_template": "p"}', **CONFIG}, {"default": "c"}),
    ({"chat_template.jinja": "j\n", **CONFIG}, {"default": "j\n"}),
    ({"additional_chat_templates/rag.jinja": "r", **CONFIG}, {"default": "c", "rag": "r"}),
    ({"additional_chat_templates/rag.jinja": "r", "additional_chat_templates/readme.md": "m"}, {"rag": "r"}),
    ({"tokenizer_config.json": NAMED}, {"default": "d", "a": "x"}),
])
def test_where_templates_stand(tmp_path, files, texts):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert ChatTemplates.read(tmp_path, "m").texts == texts


@pytest.mark.parametrize("name, text, words", [
    ("tokenizer_config.json", "{", "tokenizer_config.json is damaged: it is no JSON"),
    ("special_tokens_map.json", "[]", "special_tokens_map.json is damaged: it is no JSON object"),
    ("tokenizer_config.json", '{"chat_template": 3}', "tokenizer_config.json: chat_template is neither"),
    ("tokenizer_config.json", '{"chat_template": ["a"]}', "tokenizer_config.json: chat_template is neither"),
    ("chat_template.json", '{"chat_template": [{"template": "a"}]}', "chat_template.json: chat_template is neither"),
])
def test_damaged_files_are_named(tmp_path, name, text, words):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=words):
        ChatTemplates.read(tmp_path, "m")


def test_there_and_back_with_a_conversion(tmp_path):
    source = hugging.write(tmp_path / "hf", hugging.tensors("f32"))
    config = {"bos_token": {"content": "1"}, "eos_token": "2", "pad_token": None, "add_bos_token": True}
    (source / "tokenizer_config.json").write_text(json.dumps(config))
    others = source / "additional_chat_templates"
    others.mkdir()
    names = {"chat_template.jinja": "{{ bos_token }}", "additional_chat_templates/rag.jinja": "{{ eos_token }}"}
    for name, text in names.items():
        (source / name).write_text(text)
    (others / "notes.txt").write_text("not kept")
    checkpoints.from_huggingface(source, tmp_path / "ours")
    model = checkpoints.load(tmp_path / "ours")
    assert [model.chat_ids("x"), model.chat_ids("x", template="rag")] == [[1], [2]]
    assert model.chat.tokens == {"bos_token": "1", "eos_token": "2"}
    for path in (tmp_path / "ours" / "huggingface").rglob("*"):
        path.chmod(0o555)
    checkpoints.to_huggingface(tmp_path / "ours", tmp_path / "back")
    assert all(path.stat().st_mode & 0o200 for path in (tmp_path / "back").rglob("*"))
    for name, text in names.items():
        assert (tmp_path / "back" / name).read_text() == text
    assert not (tmp_path / "back" / others.name / "notes.txt").exists()
    kept = tmp_path / "ours" / "huggingface" / "chat_template.jinja"
    kept.chmod(0o644)
    kept.write_text("{{ raise_exception('no') }}")
    with pytest.raises(ValueError, match=f"the chat template of {tmp_path / 'ours'} failed: no"):
        checkpoints.load(tmp_path / "ours").chat_ids("x")


def test_models_without_templates(saved):
    for name in (saved, "tiny-python"):
        with pytest.raises(ValueError, match="has no chat template: give the text as a plain prompt"):
            checkpoints.load(name).chat_ids("hi")


def test_templates_are_fetched():
    for name in ("chat_template.jinja", "additional_chat_templates/rag.jinja", "tokenizer_config.json"):
        assert any(fnmatch.fnmatch(name, pattern) for pattern in hub.FILES)
