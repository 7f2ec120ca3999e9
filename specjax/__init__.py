"""specjax: exact speculative decoding in JAX.

A cheap drafter proposes tokens, the target checks them all in one pass, and a verifier keeps exactly what the
target's own sampling law allows. Everything public is named here; `specjax._src` is private and may change.
"""

import importlib as _importlib
import pathlib as _pathlib
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from specjax import cache as cache
from specjax import draft as draft
from specjax import sampling as sampling
from specjax import sharding as sharding
from specjax import verify as verify
from specjax._src.generate import generate as generate
from specjax._src.generate import stream as stream
from specjax._src.sampling import Sampling as Sampling
from specjax._src.speculative import Decoder as Decoder
from specjax._src.speculative import speculative as speculative
from specjax._src.state import FinishReason as FinishReason
from specjax._src.state import Generation as Generation
from specjax._src.state import Info as Info
from specjax._src.state import State as State
from specjax._src.state import Stats as Stats
from specjax._src.tree import TokenTree as TokenTree
from specjax._src.types import Attend as Attend
from specjax._src.types import Constraint as Constraint
from specjax._src.types import Context as Context
from specjax._src.types import Drafter as Drafter
from specjax._src.types import Feedback as Feedback
from specjax._src.types import Model as Model
from specjax._src.types import Output as Output
from specjax._src.types import Params as Params
from specjax._src.types import Verdict as Verdict
from specjax._src.types import Verifier as Verifier

if _TYPE_CHECKING:
    from specjax.checkpoints import load as load
    from specjax.checkpoints import load_head as load_head

__version__ = "0.1.0"

__all__ = [
    "Attend",
    "Constraint",
    "Context",
    "Decoder",
    "Drafter",
    "Feedback",
    "FinishReason",
    "Generation",
    "Info",
    "Model",
    "Output",
    "Params",
    "Sampling",
    "State",
    "Stats",
    "TokenTree",
    "Verdict",
    "Verifier",
    "cache",
    "draft",
    "generate",
    "load",
    "load_head",
    "sampling",
    "sharding",
    "speculative",
    "stream",
    "verify",
]

# In a source tree `specjax.models` and `specjax.checkpoints` stand one level up (see pyproject.toml).
_root = _pathlib.Path(__file__).resolve().parent.parent
if (_root / "pyproject.toml").exists() and (_root / "models" / "__init__.py").exists():
    __path__.append(str(_root))


def __getattr__(name: str) -> _Any:
    """What needs flax or orbax is imported when it is first asked for, so that `import specjax` stays light."""
    if name in ("load", "load_head"):
        return getattr(_importlib.import_module("specjax.checkpoints"), name)
    if name in ("models", "checkpoints", "serving", "testing", "training"):
        return _importlib.import_module(f"specjax.{name}")
    raise AttributeError(f"module 'specjax' has no attribute {name!r}")
