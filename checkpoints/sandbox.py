"""Running the Jinja of a chat template, which came with somebody's weights: it reaches nothing of Python.

Settings, functions and filters are those that templates are written for, which is what `transformers` gives them.
"""

from __future__ import annotations

import datetime
import functools
import json
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment


def render(text: str, values: dict[str, Any]) -> str:
    """The template `text` with these values, which must be plain JSON: of other objects, methods could be called.

    Raises:
      ValueError: if the template is damaged, asks for what it may not have, or fails on these values.
    """
    try:
        return _compiled(text).render(values)
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(f"line {error.lineno}: {error.message}") from error
    except jinja2.TemplateError as error:  # its own `raise_exception` among them
        raise ValueError(str(error)) from error
    except Exception as error:  # it is a program, and may fail in any way on values it does not expect
        raise ValueError(f"{type(error).__name__}: {error}") from error


@functools.lru_cache(16)
def _compiled(text: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    return environment.from_string(text)


class _Generation(Extension):
    """`{% generation %}`, which marks the model's own words for trainers, is a block like any other here."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        """The body, in a scope of its own."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None,
    separators: tuple[str, str] | None = None, sort_keys: bool = False,
) -> str:  # fmt: skip
    """Jinja's own filter of this name writes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
