"""Reading a checkpoint folder, after every tensor has been compared with what the model expects."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from tokenizers import Tokenizer

from specjax._src.sharding import RULES, Rules
from specjax._src.types import Model
from specjax.checkpoints import importing, staging, streaming
from specjax.checkpoints.chat import ChatTemplates, Messages
from specjax.checkpoints.embedded import embedded_names, embedded_path
from specjax.checkpoints.folder import CONFIG, read_folder
from specjax.checkpoints.hub import PREFIX
from specjax.checkpoints.layout import HEADS, MANIFEST, PARAMS, SOURCE, TOKENIZER, Manifest, misfits, refuse_misfits
from specjax.checkpoints.places import Places
from specjax.checkpoints.vocabulary import read_tokenizer
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


def load(
    path_or_name: str | os.PathLike[str], dtype: Any = None, *, mesh: Mesh | None = None, rules: Rules = RULES
) -> LoadedModel:
    """Load a checkpoint folder, an embedded checkpoint by its name, or a folder of safetensors.

    Args:
      path_or_name: one of `embedded_names()`, or a folder that `save` made (`./tiny-python` for a folder of that name);
        or a Hugging Face folder as it is, which is read anew each time (`specjax convert` keeps what it found out).
      dtype: of weights, arithmetic and cache. None keeps the stored dtype, except that bfloat16 becomes float32 on CPU,
        where bfloat16 products are an order of magnitude slower and float32 holds every bfloat16 value exactly.
        A narrower dtype than the stored one rounds, and is refused where a weight would become infinite.
      mesh: devices to lay the model out over, see `specjax.sharding.shard`. Each device is given its part straight from
        the files, and each process reads what its own devices need; no process ever holds the whole.
      rules: logical axis to mesh axis.

    Returns:
      `LoadedModel`.

    Raises:
      ValueError: if there is no such name or folder, a file is damaged, `dtype` holds no fractions, or tensors are
        missing, unknown or of another shape or dtype than the config says; each is named. Nothing is ever filled in.
    """
    folder = find(path_or_name)
    if dtype is not None and not jnp.issubdtype(jnp.dtype(dtype), jnp.floating):
        raise ValueError(f"dtype {jnp.dtype(dtype).name} holds no fractions; choose float32, bfloat16 or float16")
    if is_huggingface(folder):
        return _load_safetensors(folder, dtype, mesh, rules)
    manifest = Manifest.read(folder)
    if manifest.family in HEADS:
        raise ValueError(
            f"{folder} is a draft head ({manifest.family}), no model of its own: load its target, then "
            f"specjax.load_head({os.fspath(path_or_name)!r}, target)")
    config = DecoderConfig.from_dict(manifest.config)
    dtype = usual_dtype(jnp.dtype(manifest.dtype)) if dtype is None else jnp.dtype(dtype)
    module = nnx.eval_shape(lambda: Decoder(config, rngs=nnx.Rngs(0), dtype=dtype))
    places = Places.of(*from_nnx(module), mesh, rules)
    found = streaming.stored(folder / PARAMS)
    compare(folder, places.shapes, found, manifest, axis_names(module))
    tokenizer = read_tokenizer(folder / TOKENIZER, "convert or save the model again")
    templates = ChatTemplates.read(folder / SOURCE, str(folder))
    params = streaming.restore(folder / PARAMS, found, places.read)
    refuse_overflow(folder, params, dtype, manifest)
    return LoadedModel(
        places.model, places.finish(params), tokenizer, config, manifest.eos_ids, manifest.metadata, templates)


def _load_safetensors(folder: pathlib.Path, dtype: Any, mesh: Mesh | None, rules: Rules) -> LoadedModel:
    """A Hugging Face folder, each piece read from its file when the device that needs it is served."""
    found = importing.opened(read_folder(folder))
    dtype = usual_dtype(jnp.dtype(found.dtype)) if dtype is None else jnp.dtype(dtype)
    module = nnx.eval_shape(lambda: Decoder(found.config, rngs=nnx.Rngs(0), dtype=dtype))
    places = Places.of(*from_nnx(module), mesh, rules)
    params = streaming.placed(found.weights, places.read)
    return LoadedModel(places.model, places.finish(params), found.tokenizer, found.config, found.eos_ids,
                       found.metadata, ChatTemplates.read(folder, str(folder)))


def usual_dtype(stored: Any) -> Any:
    """The dtype to compute in, unless told otherwise: bfloat16 products are slow on CPUs."""
    return jnp.dtype(jnp.float32) if stored == jnp.bfloat16 and jax.default_backend() == "cpu" else stored


def find(path_or_name: str | os.PathLike[str]) -> pathlib.Path:
    """The folder of a checkpoint, or of an embedded one by its name. Raises ValueError if there is none."""
    if path_or_name in embedded_names():
        return embedded_path(str(path_or_name))
    folder = pathlib.Path(path_or_name)
    if not folder.is_dir():
        aside = staging.aside(folder) if folder.name else folder
        if folder.name and (aside / MANIFEST).is_file():
            raise ValueError(
                f"no checkpoint {os.fspath(path_or_name)!r}: a run was killed while it replaced it, the old one stands "
                f"in {aside}; rename that, or run again"
            )
        if str(path_or_name).startswith(PREFIX) or folder.suffix.lower() == ".gguf":
            raise ValueError(f"{path_or_name} must be converted first: specjax convert {path_or_name} DEST")
        raise ValueError(
            f"no checkpoint {os.fspath(path_or_name)!r}: it is neither a folder nor one of the embedded models "
            f"({', '.join(embedded_names())})"
        )
    return folder.absolute()


def is_huggingface(folder: pathlib.Path) -> bool:
    """Whether a folder is a Hugging Face model as it is, and no checkpoint made of one."""
    return not (folder / MANIFEST).is_file() and (folder / CONFIG).is_file()


def flat(tree: Any, prefix: Path = ()) -> dict[Path, Any]:
    """The leaves of nested dicts by their paths."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    return {path: leaf for key, value in tree.items() for path, leaf in flat(value, (*prefix, str(key))).items()}


def compare(folder: pathlib.Path, wanted: Any, found: Any, manifest: Manifest, names: Any) -> None:
    """Refuse a folder whose tensors are not those of the module.

    Args:
      folder: for the message.
      wanted: shapes, nested as the params.
      found: shapes and dtypes in the folder, nested so too.
      manifest: of the folder.
      names: of each axis; one called `vocab` may be longer in the folder.

    Raises:
      ValueError: naming each tensor that is missing, unknown, or of another shape or dtype.
    """
    expected: dict[Path, Shape] = {path: leaf.shape for path, leaf in flat(wanted).items()}
    padded = {path: axes.index("vocab") for path, axes in flat(names).items() if "vocab" in axes}
    there = flat(found)
    shapes = {path: list(leaf.shape) for path, leaf in there.items()}
    for path in padded.keys() & expected.keys() & there.keys():  # rows past the vocabulary count as not there
        axis = padded[path]
        if len(shapes[path]) > axis:
            shapes[path][axis] = min(shapes[path][axis], expected[path][axis])
    problems = misfits(
        {".".join(path): shape for path, shape in expected.items()},
        {".".join(path): tuple(shape) for path, shape in shapes.items()})
    for path in sorted(expected.keys() & there.keys()):
        said = jnp.dtype(manifest.dtype_of(path))
        if there[path].dtype != said:
            problems.append(f"{'.'.join(path)} is {there[path].dtype}, the manifest says {said}")
    refuse_misfits(folder, problems)


def refuse_overflow(folder: pathlib.Path, params: Any, dtype: Any, manifest: Manifest) -> None:
    """ValueError, naming them, where weights became infinite because `dtype` is narrower than the stored one."""
    stored = jnp.dtype(manifest.dtype)
    kinds = [jnp.dtype(kind) for kind in {manifest.dtype, *manifest.dtypes.values()}]
    if jnp.finfo(dtype).max >= max(jnp.finfo(kind).max for kind in kinds if jnp.issubdtype(kind, jnp.floating)):
        return
    beyond = [".".join(path) for path, leaf in flat(params).items() if bool(jnp.isinf(leaf).any())]
    if beyond:
        raise ValueError(
            f"{folder}: weights of {', '.join(beyond)} are beyond what {dtype} holds ({jnp.finfo(dtype).max:g}); load "
            f"it as {stored} or float32"
        )
