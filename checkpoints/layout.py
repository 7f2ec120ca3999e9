"""What a checkpoint folder holds.

    NAME/params/          Orbax (StandardCheckpointer): nested dicts with string keys
    NAME/tokenizer.json   as `tokenizers.Tokenizer.save` writes it; a draft head has none
    NAME/huggingface/     of a converted model: config.json and the small files beside it, byte for byte (GGUF: made)
    NAME/specjax.json     format, version, family, resolved config, dtype, eos ids, free metadata; written last

A folder without `specjax.json` is no checkpoint. Folders are made under another name and renamed when complete.
"""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

PARAMS, TOKENIZER, MANIFEST = "params", "tokenizer.json", "specjax.json"
SOURCE = "huggingface"
FORMAT, VERSION = "specjax", 1
HEADS = ("medusa", "eagle", "eagle3")
FAMILIES = ("decoder", *HEADS)

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The JSON beside the weights.

    Attributes:
      family: which module the config belongs to; one of `FAMILIES`.
      config: every resolved switch of that module.
      dtype: name of the dtype of the stored weights.
      eos_ids: ids that end a text.
      metadata: whatever the writer wants to keep (training figures, sources).
      dtypes: of weights that are stored in another dtype, by their dotted path (`layers.0.mlp_norm.scale`).
      target: of a draft head, the fingerprint of its target (`targets.Target.fingerprint`).
    """

    family: str
    config: dict[str, Any]
    dtype: str
    eos_ids: tuple[int, ...] = ()
    metadata: dict[str, Any] = dataclasses.field(default_factory=dict)
    dtypes: dict[str, str] = dataclasses.field(default_factory=dict)
    target: dict[str, Any] = dataclasses.field(default_factory=dict)

    def dtype_of(self, path: tuple[str, ...]) -> str:
        """Name of the dtype in which the weight at `path` is stored."""
        return self.dtypes.get(".".join(path), self.dtype)

    def write(self, folder: pathlib.Path) -> None:
        """Write `specjax.json`."""
        body = {"format": FORMAT, "version": VERSION, **dataclasses.asdict(self)}
        if not self.target:
            del body["target"]
        (folder / MANIFEST).write_text(json.dumps(body, indent=1) + "\n")

    @classmethod
    def read(cls, folder: pathlib.Path) -> Manifest:
        """Read `specjax.json`. Raises ValueError if it is missing, damaged, or of another format, version or family."""
        path = folder / MANIFEST
        if not path.is_file():
            raise ValueError(
                f"{folder} is no specjax checkpoint: it has no {MANIFEST} (an unfinished save has none)")
        body = read_json(path)
        if (body.pop("format", None), body.pop("version", None)) != (FORMAT, VERSION):
            raise ValueError(f"{path} is not of format {FORMAT!r} version {VERSION}")
        unknown = sorted(body.keys() - {field.name for field in dataclasses.fields(cls)})
        missing = sorted(n for n in ("family", "config", "dtype", "eos_ids") if body.get(n) is None)
        if unknown or missing:
            raise ValueError(f"{path} is damaged: unknown fields {unknown}, missing fields {missing}")
        if body["family"] not in FAMILIES:
            raise ValueError(f"{path} names the family {body['family']!r}; this version knows {', '.join(FAMILIES)}")
        return cls(**{**body, "eos_ids": tuple(body["eos_ids"])})


def read_json(path: pathlib.Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ValueError, naming the file, if it holds something else."""
    try:
        values = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: it is no JSON ({error})") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} is damaged: it is no JSON object")
    return values


def misfits(expected: Mapping[str, Shape], found: Mapping[str, Shape]) -> list[str]:
    """A line for each tensor that is missing, unexpected, or of another shape than expected."""
    lines = [f"missing {name} {expected[name]}" for name in sorted(expected.keys() - found.keys())]
    lines += [f"unexpected {name} {found[name]}" for name in sorted(found.keys() - expected.keys())]
    return lines + [
        f"{name} has shape {found[name]}, the config says {expected[name]}"
        for name in sorted(expected.keys() & found.keys()) if found[name] != expected[name]]


def refuse_misfits(label: object, problems: list[str]) -> None:
    """ValueError with a line for each problem, if there are any."""
    if problems:
        raise ValueError(f"{label} does not hold the model its config describes:\n  " + "\n  ".join(problems))
