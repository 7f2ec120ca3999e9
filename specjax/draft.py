"""Drafters: who proposes. Each factory is cached by value: equal settings give one object, and one compiled program.

Trees are given as paths of ranks: `(0, 2)` is the third best child of the best child of the root. `siblings` says how
the children of a node come about when a row samples (a greedy row always gets the likeliest ones):

* "without_replacement" (of static trees the default): each is drawn from the draft's law without those before it;
* "hybrid": all but the last are the likeliest tokens, the last is drawn from the draft's law without them;
* "independent": each is drawn from the draft's law;
* "chosen": all are the likeliest.

`chain`, `chain_shape`, `paths_shape`, `static_parents` and `root` are what a drafter of one's own builds its proposal
from.
"""

from specjax._src.draft.choices import EAGLE_PATHS as EAGLE_PATHS
from specjax._src.draft.choices import MEDUSA_PATHS as MEDUSA_PATHS
from specjax._src.draft.choices import best_paths as best_paths
from specjax._src.draft.choices import sequoia_paths as sequoia_paths
from specjax._src.draft.eagle import eagle as eagle
from specjax._src.draft.eagle import eagle2 as eagle2
from specjax._src.draft.eagle import eagle3 as eagle3
from specjax._src.draft.fallback import fallback as fallback
from specjax._src.draft.medusa import medusa as medusa
from specjax._src.draft.model import from_model as from_model
from specjax._src.draft.model_tree import dynamic_model_tree as dynamic_model_tree
from specjax._src.draft.model_tree import model_tree as model_tree
from specjax._src.draft.ngram import ngram as ngram
from specjax._src.draft.null import null as null
from specjax._src.draft.null import root as root
from specjax._src.draft.self_model import self_model as self_model
from specjax._src.draft.union import union as union
from specjax._src.tree import chain as chain
from specjax._src.tree import chain_shape as chain_shape
from specjax._src.tree import full_paths as full_paths
from specjax._src.tree import paths_shape as paths_shape
from specjax._src.tree import static_parents as static_parents

__all__ = [
    "EAGLE_PATHS", "MEDUSA_PATHS", "best_paths", "chain", "chain_shape", "dynamic_model_tree", "eagle", "eagle2",
    "eagle3", "fallback", "from_model", "full_paths", "medusa", "model_tree", "ngram", "null", "paths_shape", "root",
    "self_model", "sequoia_paths", "static_parents", "union",
]  # fmt: skip
