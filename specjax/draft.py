"""Drafters: who proposes. Each factory is cached by value: equal settings give one object, and one compiled program."""

from specjax._src.draft.model import from_model as from_model
from specjax._src.draft.ngram import ngram as ngram
from specjax._src.draft.null import null as null

__all__ = ["from_model", "ngram", "null"]
