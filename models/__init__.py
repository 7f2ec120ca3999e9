"""Model definitions and draft heads in flax.nnx, and adapters from flax modules to `specjax.Model`."""

from specjax.models.adapters import axis_names as axis_names
from specjax.models.adapters import from_linen as from_linen
from specjax.models.adapters import from_nnx as from_nnx
from specjax.models.adapters import with_vocabulary as with_vocabulary
from specjax.models.config import DecoderConfig as DecoderConfig
from specjax.models.decoder import Decoder as Decoder
from specjax.models.eagle import Eagle as Eagle
from specjax.models.eagle import EagleConfig as EagleConfig
from specjax.models.eagle3 import Eagle3 as Eagle3
from specjax.models.eagle3 import Eagle3Config as Eagle3Config
from specjax.models.heads import head_from_nnx as head_from_nnx
from specjax.models.medusa import Medusa as Medusa
from specjax.models.medusa import MedusaConfig as MedusaConfig
from specjax.models.partial import some_layers as some_layers

__all__ = [
    "Decoder",
    "DecoderConfig",
    "Eagle",
    "Eagle3",
    "Eagle3Config",
    "EagleConfig",
    "Medusa",
    "MedusaConfig",
    "axis_names",
    "from_linen",
    "from_nnx",
    "head_from_nnx",
    "some_layers",
    "with_vocabulary",
]
