"""Weights on disk: save and load of models with their config and tokenizer, and of draft heads; the way from Hugging
Face folders and GGUF files and back; and what comes with specjax."""

from specjax.checkpoints.chat import ChatTemplates as ChatTemplates
from specjax.checkpoints.embedded import embedded_names as embedded_names
from specjax.checkpoints.exporting import to_huggingface as to_huggingface
from specjax.checkpoints.head_exporting import to_published_head as to_published_head
from specjax.checkpoints.head_importing import from_published_head as from_published_head
from specjax.checkpoints.heads import LoadedHead as LoadedHead
from specjax.checkpoints.heads import load_head as load_head
from specjax.checkpoints.heads import save_head as save_head
from specjax.checkpoints.importing import from_gguf as from_gguf
from specjax.checkpoints.importing import from_huggingface as from_huggingface
from specjax.checkpoints.loading import LoadedModel as LoadedModel
from specjax.checkpoints.loading import load as load
from specjax.checkpoints.saving import save as save
from specjax.checkpoints.vocabulary import check_same_tokenizer as check_same_tokenizer

__all__ = [
    "ChatTemplates",
    "LoadedHead",
    "LoadedModel",
    "check_same_tokenizer",
    "embedded_names",
    "from_gguf",
    "from_huggingface",
    "from_published_head",
    "load",
    "load_head",
    "save",
    "save_head",
    "to_huggingface",
    "to_published_head",
]
