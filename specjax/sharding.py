"""Weights, caches and rows over many devices: `shard` lays a model out over a mesh by the names of its axes."""

from specjax._src.sharding import REPLICATED as REPLICATED
from specjax._src.sharding import RULES as RULES
from specjax._src.sharding import shard as shard

__all__ = ["REPLICATED", "RULES", "shard"]
