"""The same weights, prompts and budgets in `transformers`: its plain and its assisted generation, timed beside ours.

Needs torch and transformers, which nothing else here does. Whatever else a `generation_config.json` asks for
(penalties, top-k) is left out, and the assistant drafts k tokens in every round: constant schedule, no threshold.
"""

from __future__ import annotations

import dataclasses
import pathlib
import tempfile
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from specjax.benchmarks.progress import Tell
from specjax.benchmarks.settings import Settings
from specjax.benchmarks.subject import Subject
from specjax.benchmarks.texts import Writes, Written
from specjax.checkpoints import to_huggingface
from specjax.checkpoints.layout import Manifest

NAME = "transformers"


class Peer(NamedTuple):
    """Who writes the texts in the other library, plain first, and its versions."""

    writers: Sequence[Writes]
    environment: dict[str, Any]


@dataclasses.dataclass
class PeerWriter:
    """`generate` of `transformers`, plain (k = 0) or with an assistant that drafts k tokens: see `texts.Writes`.

    Attributes:
      k, written: see `texts.Writes`.
      model: the target.
      assistant: the draft; plain generation does not use it.
      inputs: the prompts as arguments of `generate`.
      max_new_tokens: budget of a text.
      passes: of the target in the running call.
    """

    k: int
    model: Any
    assistant: Any
    inputs: list[dict[str, Any]]
    max_new_tokens: int
    written: dict[int, Written] = dataclasses.field(default_factory=dict)
    passes: int = 0

    @property
    def name(self) -> str:
        """`transformers/K`."""
        return f"{NAME}/{self.k}"

    def __call__(self, index: int) -> float:
        """Write the text of prompt `index`; the seconds it took."""
        help_of = {"assistant_model": self.assistant} if self.k else {}
        if self.k:  # read from there at the start of each call
            self.assistant.generation_config.num_assistant_tokens = self.k
        self.passes = 0
        counter = self.model.register_forward_pre_hook(self._count)
        began = time.perf_counter()
        out = self.model.generate(
            **self.inputs[index], **help_of, do_sample=False, max_new_tokens=self.max_new_tokens)
        seconds = time.perf_counter() - began
        counter.remove()
        prompt = self.inputs[index]["input_ids"].shape[1]
        self.written[index] = Written(tuple(out[0, prompt:].tolist()), self.passes)
        return seconds

    def _count(self, *_: Any) -> None:
        self.passes += 1


def opened(subject: Subject, settings: Settings, tell: Tell = lambda: None) -> Peer:
    """Load the subject's two checkpoints into `transformers`.

    They are written as Hugging Face folders and read one after the other; the files are gone afterwards.

    Raises:
      ValueError: if torch or transformers is missing, or the texts asked for could not be compared: random weights,
        texts that are drawn, another device than the CPU, weights that are not float32, a checkpoint that did not
        come from Hugging Face.
    """
    _check(subject, settings)
    torch, transformers = _libraries()
    models = []
    for name in (subject.name, subject.draft_name):
        models.append(_load(name, subject.eos_ids, torch, transformers))
        tell()
    inputs = [_inputs(torch, prompt) for prompt in subject.prompts]
    target, draft = models
    writers = [PeerWriter(k, target, draft, inputs, settings.max_new_tokens) for k in (0, *settings.depths)]
    return Peer(writers, {
        "name": NAME, NAME: transformers.__version__, "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(), "attention": target.config._attn_implementation})


def _check(subject: Subject, settings: Settings) -> None:
    if not subject.writes:
        raise ValueError("--peer compares texts, which random weights have none of: name checkpoints with --target "
                         "and --draft")
    if settings.temperature > 0:
        raise ValueError(f"--peer compares greedy texts, got --temperature {settings.temperature:g}: two libraries "
                         "draw different random numbers")
    if jax.default_backend() != "cpu":
        raise ValueError(f"--peer compares on the CPU, but JAX runs on {jax.default_backend()}: set JAX_PLATFORMS=cpu")
    kinds = {str(leaf.dtype) for leaf in jax.tree.leaves((subject.params, subject.draft_params))}
    if kinds != {"float32"}:
        raise ValueError(f"--peer compares in float32, but the weights are {', '.join(sorted(kinds))}: convert with "
                         "--dtype float32")
    for name in (subject.name, subject.draft_name):
        if not pathlib.Path(name).is_dir():
            raise ValueError(f"--peer transformers: {name} did not come from Hugging Face, so there is no model of "
                             "transformers to compare with; name converted checkpoints with --target and --draft")


def _libraries() -> tuple[Any, Any]:
    try:
        import torch
        import transformers
    except ImportError as error:
        raise ValueError(f"--peer transformers needs torch and transformers ({error}): pip install 'specjax[parity]'"
                         ) from None
    transformers.utils.logging.disable_progress_bar()  # there is a bar already
    return torch, transformers


def _inputs(torch: Any, prompt: list[int]) -> dict[str, Any]:
    ids = torch.tensor([prompt])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def _load(name: str, eos_ids: Sequence[int], torch: Any, transformers: Any) -> Any:
    """A checkpoint of ours as a module of `transformers`, in float32."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch) / "model"
        to_huggingface(name, folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        for tensor in (*model.parameters(), *model.buffers()):  # they may be pages of the file that goes now
            tensor.data = tensor.data.clone()
    vocab_size = Manifest.read(pathlib.Path(name)).config["vocab_size"]
    if model.config.vocab_size != vocab_size:  # rows that pad the vocabulary are no tokens; ours drops them too
        model.resize_token_embeddings(vocab_size)
    model.generation_config = transformers.GenerationConfig(
        eos_token_id=list(eos_ids) or None, pad_token_id=eos_ids[0] if eos_ids else None,
        num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0)
    return model
