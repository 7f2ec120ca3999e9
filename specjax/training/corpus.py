"""Text for a small model of Python: the standard library's own source, which every Python has on disk.

Two kinds of document come from it: whole modules, and single functions (methods dedented), so that a model given a bare
`def` line writes that function and stops. Modules are held out by a hash of their name.
"""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import pathlib
import sysconfig
import textwrap
from collections.abc import Iterator

HELD_OUT_ONE_IN = 25
# Tests repeat themselves, and the others are tables rather than programs.
SKIPPED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "encodings", "pydoc_data"}
)
MAX_DIGIT_SHARE = 0.12


@dataclasses.dataclass(frozen=True)
class Module:
    """One source file: its path below the library's root, and its text."""

    name: str
    text: str

    @property
    def held_out(self) -> bool:
        """Whether the file is kept from tokenizer and training; depends on the name alone."""
        digest = hashlib.sha256(self.name.encode()).digest()
        return int.from_bytes(digest[:8], "big") % HELD_OUT_ONE_IN == 0


@dataclasses.dataclass(frozen=True)
class Function:
    """A function dedented to column 0, without decorators.

    Attributes:
      header: from `def` to the colon, as written (it may span lines).
      text: header and body, no newline at the end.
    """

    header: str
    text: str


def standard_library(root: pathlib.Path | None = None) -> list[Module]:
    """Every usable module of the running Python's standard library, ordered by name."""
    root = root or pathlib.Path(sysconfig.get_path("stdlib"))
    modules = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if SKIPPED_FOLDERS.intersection(name.parts[:-1]) or name.parts[0].startswith(("config-", "_sysconfigdata")):
            continue
        text = path.read_text(encoding="utf-8", errors="ignore").replace("\r\n", "\n").expandtabs(8).strip()
        if len(text) > 200 and sum(c.isdigit() for c in text) < MAX_DIGIT_SHARE * len(text):
            modules.append(Module(name.as_posix(), text))
    return modules


def functions(module: Module) -> Iterator[Function]:
    """Functions and methods of a module, nested ones included; none if the file does not parse."""
    try:
        tree = ast.parse(module.text)
    except SyntaxError:
        return
    lines = module.text.split("\n")
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.end_lineno is None:
            continue
        text = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno])).rstrip()
        header_lines = node.body[0].lineno - node.lineno
        header = "\n".join(text.split("\n")[:header_lines]).rstrip()
        # A docstring's own indentation can defeat the dedent, a comment can follow the colon: leave those out.
        if text.startswith("def ") and header.endswith(":") and parses(text):
            yield Function(header, text)


def parses(text: str) -> bool:
    """Whether `ast.parse` takes the text."""
    try:
        ast.parse(text)
    except (SyntaxError, ValueError):
        return False
    return True


def held_out_headers(modules: list[Module], count: int) -> list[Function]:
    """`count` functions of held-out modules whose headers stand nowhere in the training modules.

    Headers are single lines, distinct, and chosen by a hash, so the choice does not lean to any module.
    """
    seen = {f.header for m in modules if not m.held_out for f in functions(m)}
    found = {f.header: f for m in modules if m.held_out for f in functions(m)}
    fresh = [f for h, f in found.items() if h not in seen and "\n" not in h]
    return sorted(fresh, key=lambda f: hashlib.sha256(f.header.encode()).digest())[:count]
