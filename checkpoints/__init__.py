"""Weights on disk: save and load of models with their config and tokenizer, and the pair that comes with specjax."""

from specjax.checkpoints.embedded import embedded_names as embedded_names
from specjax.checkpoints.loading import LoadedModel as LoadedModel
from specjax.checkpoints.loading import check_same_tokenizer as check_same_tokenizer
from specjax.checkpoints.loading import load as load
from specjax.checkpoints.saving import save as save

__all__ = ["LoadedModel", "check_same_tokenizer", "embedded_names", "load", "save"]
