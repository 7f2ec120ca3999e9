"""Drafters: who proposes. Each factory is cached by value: equal settings give one object, and one compiled program.

`chain`, `chain_shape` and `root` are what a drafter of one's own builds its proposal from.
"""

from specjax._src.draft.model import from_model as from_model
from specjax._src.draft.ngram import ngram as ngram
from specjax._src.draft.null import null as null
from specjax._src.draft.null import root as root
from specjax._src.tree import chain as chain
from specjax._src.tree import chain_shape as chain_shape

__all__ = ["chain", "chain_shape", "from_model", "ngram", "null", "root"]
