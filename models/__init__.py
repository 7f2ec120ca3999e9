"""Model definitions in flax.nnx, and adapters from flax modules to `specjax.Model`."""

from specjax.models.adapters import axis_names as axis_names
from specjax.models.adapters import from_linen as from_linen
from specjax.models.adapters import from_nnx as from_nnx
from specjax.models.adapters import with_vocabulary as with_vocabulary
from specjax.models.config import DecoderConfig as DecoderConfig
from specjax.models.decoder import Decoder as Decoder
from specjax.models.partial import some_layers as some_layers

__all__ = ["Decoder", "DecoderConfig", "axis_names", "from_linen", "from_nnx", "some_layers", "with_vocabulary"]
