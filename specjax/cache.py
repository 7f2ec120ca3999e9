"""A dense key-value cache for models of one's own: `init`, `write`, `visible`, `commit`.

Written so that XLA updates the cache in place in a decode loop, and with masks for chains and trees alike. Layers that
see a window may keep a ring (`rings`, `ring` and `window` of these functions).
"""

from specjax._src.cache import Cache as Cache
from specjax._src.cache import Layer as Layer
from specjax._src.cache import capacity as capacity
from specjax._src.cache import commit as commit
from specjax._src.cache import init as init
from specjax._src.cache import visible as visible
from specjax._src.cache import write as write

__all__ = ["Cache", "Layer", "capacity", "commit", "init", "visible", "write"]
