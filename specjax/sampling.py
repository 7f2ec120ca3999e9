"""The sampling law, for those who write a drafter: the transforms it should draw through, in their fixed order."""

from specjax._src.sampling import History as History
from specjax._src.sampling import Prefix as Prefix
from specjax._src.sampling import Sampling as Sampling
from specjax._src.sampling import adjust as adjust
from specjax._src.sampling import any_sampled as any_sampled
from specjax._src.sampling import chain_prefix as chain_prefix
from specjax._src.sampling import log_law as log_law

__all__ = ["History", "Prefix", "Sampling", "adjust", "any_sampled", "chain_prefix", "log_law"]
