"""Chat templates: from messages to the text that a chat model was trained to answer.

Here is where a model's templates stand and what they are given; how they run is in `sandbox.py`.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from specjax.checkpoints import sandbox
from specjax.checkpoints.layout import read_json

Messages = str | Sequence[Mapping[str, Any]]
DEFAULT, TOOLS = "default", "tool_use"
FILE, FOLDER = "chat_template.jinja", "additional_chat_templates"
KEY = "chat_template"
CONFIG, PROCESSOR, SPECIAL = "tokenizer_config.json", "chat_template.json", "special_tokens_map.json"


@dataclasses.dataclass(frozen=True)
class ChatTemplates:
    """The chat templates of one model; most have one, or none.

    Attributes:
      model: whose they are, for messages.
      texts: Jinja by name; what is used when none is asked for has the name `default`.
      tokens: the special tokens that a template may write, `bos_token` and others.
    """

    model: str = "this model"
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tokens: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, folder: pathlib.Path, model: str) -> ChatTemplates:
        """What the files of a Hugging Face folder say: nothing if they name no template, or there is no such folder.

        Files of templates come before `tokenizer_config.json`, and that before `chat_template.json`; reading ends with
        the first that has a default. An old `special_tokens_map.json` goes over the config, a new one only repeats it.

        Raises:
          ValueError: naming a file that is no JSON object, or holds a template that is no text.
        """
        texts = {path.stem: path.read_text("utf-8") for path in sorted((folder / FOLDER).glob("*.jinja"))}
        if (folder / FILE).is_file():
            texts[DEFAULT] = (folder / FILE).read_text("utf-8")
        for name in (CONFIG, PROCESSOR):
            if DEFAULT not in texts:
                texts = _named(folder / name, _object(folder / name).get(KEY)) | texts
        config = _object(folder / CONFIG)
        special = {} if "added_tokens_decoder" in config else _object(folder / SPECIAL)
        return cls(model, texts, _tokens(config) | _tokens(special))

    def render(
        self, messages: Messages, *, add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None, template: str | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:  # fmt: skip
        """The conversation as one text, begin-of-text token included; the arguments are those of `chat_text`."""
        values = _plain({
            "messages": _checked(messages), "tools": tools, "documents": None,
            "add_generation_prompt": add_generation_prompt, **self.tokens, **(variables or {}),
        })  # fmt: skip
        text = self.choose(template, tools is not None)
        try:
            return sandbox.render(text, values)
        except ValueError as error:
            raise ValueError(f"the chat template of {self.model} failed: {error}") from error

    def choose(self, template: str | None, with_tools: bool) -> str:
        """The text of a template: of the one named, else the model's own for tools, else its default.

        Raises:
          ValueError: if there is none, or none of that name.
        """
        if template is not None and ("{{" in template or "{%" in template):
            return template
        if not self.texts:
            raise ValueError(
                f"{self.model} has no chat template: give the text as a plain prompt, without --chat or chat_ids"
            )
        if template is None:
            template = TOOLS if with_tools and TOOLS in self.texts else DEFAULT
        if template not in self.texts:
            raise ValueError(
                f"{self.model} has no chat template {template!r}; choose one that it has with template=: "
                f"{', '.join(sorted(self.texts))}"
            )
        return self.texts[template]


def _object(path: pathlib.Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _named(path: pathlib.Path, said: Any) -> dict[str, str]:
    """One template, or a list of them with names."""
    if isinstance(said, list) and all(isinstance(one, dict) for one in said):
        said = {one.get("name"): one.get("template") for one in said}
    elif not isinstance(said, dict):
        said = {} if said is None else {DEFAULT: said}
    if not all(isinstance(value, str) for pair in said.items() for value in pair):
        raise ValueError(f"{path}: {KEY} is neither a text nor a list of texts with names")
    return said


def _tokens(values: dict[str, Any]) -> dict[str, str]:
    """`"bos_token": "<s>"` or `{"content": "<s>", ..}`; a token that is null is left undefined."""
    found = {name: value.get("content") if isinstance(value, dict) else value for name, value in values.items()}
    return {name: value for name, value in found.items() if name.endswith("_token") and isinstance(value, str)}


def _checked(messages: Messages) -> list[dict[str, Any]]:
    """Messages as templates expect them: fields that are None count as absent."""
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if isinstance(messages, Mapping) or not isinstance(messages, Sequence):
        raise ValueError(f"messages must be a text or a sequence of messages, got {type(messages).__name__}")
    if not messages:
        raise ValueError("messages is empty: a conversation has at least one message")
    kept = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ValueError(
                f'message {i} must be a mapping such as {{"role": "user", "content": "..."}}, got '
                f"{type(message).__name__}"
            )
        present = {name: value for name, value in message.items() if value is not None}
        if not isinstance(present.get("role"), str):
            raise ValueError(f"message {i} has no role, such as 'user'; it has {sorted(map(str, present))}")
        if not isinstance(present.get("content", [] if "tool_calls" in present else None), str | list):
            raise ValueError(f"message {i} has no content that is a text or a list of parts, nor tool calls")
        kept.append(present)
    return kept


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """A copy that holds nothing but JSON values, so that no template can reach what belongs to the caller."""
    try:
        return json.loads(json.dumps(values))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"messages, tools and variables of a chat must be JSON values: {error}") from error
