"""Reading a checkpoint folder, after every tensor has been compared with what the model expects."""

from __future__ import annotations

import dataclasses
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from flax import nnx
from jax.sharding import SingleDeviceSharding
from tokenizers import Tokenizer

from specjax._src.types import Model
from specjax.checkpoints.chat import ChatTemplates, Messages
from specjax.checkpoints.embedded import embedded_names, embedded_path
from specjax.checkpoints.layout import PARAMS, SOURCE, TOKENIZER, Manifest
from specjax.models import Decoder, DecoderConfig, axis_names, from_nnx

Path = tuple[str, ...]
Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class LoadedModel:
    """A model ready to run.

    Attributes:
      model: the three functions that `specjax.generate` takes.
      params: its weights, nested dicts of arrays.
      tokenizer: text to ids and back; it puts the begin-of-text id in front if the model wants one.
      config: of the decoder.
      eos_ids: ids that end a text.
      metadata: what was saved beside the weights.
      chat: the chat templates that came with a converted model.
    """

    model: Model
    params: Any
    tokenizer: Tokenizer
    config: DecoderConfig
    eos_ids: tuple[int, ...]
    metadata: dict[str, Any]
    chat: ChatTemplates = ChatTemplates()

    def chat_text(
        self, messages: Messages, *, add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None, template: str | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:  # fmt: skip
        """A conversation as the text that the model was trained on, special tokens written out.

        Args:
          messages: `{"role": .., "content": ..}` in their order, or a text: one message of the user.
          add_generation_prompt: end with the head of the model's answer.
          tools: JSON schemas of functions that the model may call; a model's template for tools is used if it has one.
          template: the name of another template of the model, or the text of your own.
          variables: what else this template reads, such as `{"enable_thinking": False}`.

        Raises:
          ValueError: if the model has no template, or none of that name; if a message has no role or no content; and,
            naming the model, if the template refuses the messages or is damaged.
        """
        return self.chat.render(
            messages, add_generation_prompt=add_generation_prompt, tools=tools, template=template, variables=variables)

    def chat_ids(self, messages: Messages, **options: Any) -> list[int]:
        """The token ids of `chat_text`, a prompt for `specjax.generate`; same arguments, same errors.

        The tokenizer adds no begin-of-text token of its own, since the template writes it. Special tokens spelled out
        in a message become such tokens too, as with `transformers`: take them out of text that you do not trust.
        """
        return self.tokenizer.encode(self.chat_text(messages, **options), add_special_tokens=False).ids


def load(path_or_name: str | os.PathLike[str], dtype: Any = None) -> LoadedModel:
    """Load a checkpoint folder, or an embedded checkpoint by its name.

    Args:
      path_or_name: one of `embedded_names()`, or a folder that `save` made (`./tiny-python` for a folder of that name).
      dtype: of weights, arithmetic and cache. None keeps the stored dtype, except that bfloat16 becomes float32 on CPU,
        where bfloat16 products are an order of magnitude slower and float32 holds every bfloat16 value exactly.

    Returns:
      `LoadedModel`.

    Raises:
      ValueError: if there is no such name or folder, or tensors are missing, unknown or of another shape or dtype than
        the config says; each is named. Nothing is ever filled in.
    """
    folder = _find(path_or_name)
    manifest = Manifest.read(folder)
    config = DecoderConfig.from_dict(manifest.config)
    stored = jnp.dtype(manifest.dtype)
    if dtype is None:
        dtype = jnp.float32 if stored == jnp.bfloat16 and jax.default_backend() == "cpu" else stored
    module = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0), dtype=jnp.dtype(dtype)))
    model, expected = from_nnx(module)
    found = _stored_tensors(folder)
    shapes = _flat(expected)
    padded = {path: names.index("vocab") for path, names in _flat(axis_names(module)).items() if "vocab" in names}
    _compare(folder, {path: leaf.shape for path, leaf in shapes.items()}, found, manifest, padded)
    params = _restore(folder, expected, jnp.dtype(dtype))
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    templates = ChatTemplates.read(folder / SOURCE, str(folder))
    return LoadedModel(model, params, tokenizer, config, manifest.eos_ids, manifest.metadata, templates)


def check_same_tokenizer(target: LoadedModel, draft: LoadedModel) -> None:
    """Refuse a draft that reads ids otherwise than its target.

    Raises:
      ValueError: naming the first id that the two tokenizers give to different texts, or, where all ids agree, saying
        that they cut text differently.
    """
    first, second = (
        {i: token for token, i in m.tokenizer.get_vocab(with_added_tokens=True).items()} for m in (target, draft)
    )
    for i in sorted(first.keys() | second.keys()):
        if first.get(i) != second.get(i):
            raise ValueError(
                f"target and draft have different tokenizers: id {i} is {first.get(i)!r} for the target and "
                f"{second.get(i)!r} for the draft; choose a draft trained with the target's tokenizer"
            )
    if target.tokenizer.to_str() != draft.tokenizer.to_str():
        raise ValueError("target and draft share a vocabulary but cut text differently (merges or pre-tokenizer)")


def _find(path_or_name: str | os.PathLike[str]) -> pathlib.Path:
    if path_or_name in embedded_names():
        return embedded_path(str(path_or_name))
    folder = pathlib.Path(path_or_name)
    if not folder.is_dir():
        raise ValueError(
            f"no checkpoint {os.fspath(path_or_name)!r}: it is neither a folder nor one of the embedded models "
            f"({', '.join(embedded_names())})"
        )
    return folder.absolute()


def _flat(tree: Any, prefix: Path = ()) -> dict[Path, Any]:
    if not isinstance(tree, dict):
        return {prefix: tree}
    return {path: leaf for key, value in tree.items() for path, leaf in _flat(value, (*prefix, str(key))).items()}


def _stored_tensors(folder: pathlib.Path) -> Any:
    with ocp.StandardCheckpointer() as reader:
        tree = reader.metadata(folder / PARAMS).item_metadata.tree
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def _compare(
    folder: pathlib.Path, expected: dict[Path, Shape], found: Any, manifest: Manifest, padded: dict[Path, int]
) -> None:
    flat = _flat(found)
    problems = [f"missing {'.'.join(p)} {expected[p]}" for p in sorted(expected.keys() - flat.keys())]
    problems += [f"unexpected {'.'.join(p)} {flat[p].shape}" for p in sorted(flat.keys() - expected.keys())]
    for path in sorted(expected.keys() & flat.keys()):
        want, got = list(expected[path]), list(flat[path].shape)
        if path in padded and len(got) == len(want) and got[padded[path]] > want[padded[path]]:
            got[padded[path]] = want[padded[path]]
        if got != want:
            problems.append(f"{'.'.join(path)} has shape {flat[path].shape}, the config says {expected[path]}")
        elif flat[path].dtype != (dtype := jnp.dtype(manifest.dtypes.get(".".join(path), manifest.dtype))):
            problems.append(f"{'.'.join(path)} is {flat[path].dtype}, the manifest says {dtype}")
    if problems:
        raise ValueError(f"{folder} does not hold the model its config describes:\n  " + "\n  ".join(problems))


def _restore(folder: pathlib.Path, expected: Any, dtype: Any) -> Any:
    """The weights in `dtype`, cast while they are read, and one layer after another: of what Orbax holds beside the
    weights while it reads, only a layer's share is there at a time.

    Rows past the real vocabulary are padding for alignment, and are left out: no token may come from them.
    """
    place = SingleDeviceSharding(jax.devices()[0])
    largest = max(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(expected))
    limit = 1 + largest // 10**9  # GB on their way at any time
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(restore_concurrent_gb=limit)) as reader:

        def read(part: Any) -> Any:
            wanted = jax.tree.map(
                lambda leaf: ocp.ArrayRestoreArgs(sharding=place, global_shape=leaf.shape, dtype=dtype, strict=False),
                part)
            args = ocp.args.PyTreeRestore(item=part, restore_args=wanted, partial_restore=True)
            return jax.block_until_ready(reader.restore(folder / PARAMS, args=args))

        first = read({name: part for name, part in expected.items() if name != "layers"})
        layers = {i: read({"layers": {i: layer}})["layers"][i] for i, layer in expected["layers"].items()}
    return first | {"layers": layers}
