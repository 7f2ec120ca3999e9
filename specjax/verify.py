"""Verifiers: what is kept. All but `typical` leave the target's law as it is."""

from specjax._src.verify.block import block as block
from specjax._src.verify.hybrid import hybrid as hybrid
from specjax._src.verify.law import Plan as Plan
from specjax._src.verify.match import match as match
from specjax._src.verify.rejection import rejection as rejection
from specjax._src.verify.specinfer import specinfer as specinfer
from specjax._src.verify.traversal import traversal as traversal
from specjax._src.verify.typical import typical as typical
from specjax._src.verify.without_replacement import without_replacement as without_replacement

__all__ = [
    "Plan",
    "block",
    "hybrid",
    "match",
    "rejection",
    "specinfer",
    "traversal",
    "typical",
    "without_replacement",
]
