"""Weights on disk: save and load of models with their config and tokenizer, the way from Hugging Face folders
and GGUF files and back, and the pair that comes with specjax."""

from specjax.checkpoints.chat import ChatTemplates as ChatTemplates
from specjax.checkpoints.embedded import embedded_names as embedded_names
from specjax.checkpoints.exporting import to_huggingface as to_huggingface
from specjax.checkpoints.importing import from_gguf as from_gguf
from specjax.checkpoints.importing import from_huggingface as from_huggingface
from specjax.checkpoints.loading import LoadedModel as LoadedModel
from specjax.checkpoints.loading import load as load
from specjax.checkpoints.saving import save as save
from specjax.checkpoints.vocabulary import check_same_tokenizer as check_same_tokenizer

__all__ = [
    "ChatTemplates",
    "LoadedModel",
    "check_same_tokenizer",
    "embedded_names",
    "from_gguf",
    "from_huggingface",
    "load",
    "save",
    "to_huggingface",
]
