"""Chips by their data sheets, and meshes of chips that are not there.

`libtpu` compiles for a topology by its name. Nothing runs; that the real compiler takes the program, what memory it
needs and how it speaks between chips is proved.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh


class Chip(NamedTuple):
    """What one chip can do at best.

    Attributes:
      memory: bytes of HBM.
      bandwidth: bytes a second, from HBM.
      flops: a second, bfloat16.
      links: bytes a second to other chips, all links together.
    """

    memory: float
    bandwidth: float
    flops: float
    links: float


CHIPS = {
    "v5e": Chip(16 * 2**30, 819e9, 197e12, 200e9),
    "v6e": Chip(32 * 2**30, 1640e9, 918e12, 448e9),
    "v5p": Chip(95 * 2**30, 2765e9, 459e12, 600e9),
    "h200": Chip(141e9, 4800e9, 989e12, 900e9),
}
"""Figures that the makers publish (cloud.google.com/tpu/docs, nvidia.com)."""


def tpu_mesh(topology: str, shape: tuple[int, int]) -> Mesh:
    """Axes `data` and `model` over the chips of a topology such as `v5e:2x4` or `v5p:2x2x2`.

    Raises:
      ValueError: if the shape has another number of devices.
    """
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # else libtpu waits for a cloud that is not there
    devices = topologies.get_topology_desc(platform="tpu", topology_name=topology).devices
    if shape[0] * shape[1] != len(devices):
        raise ValueError(f"{topology} has {len(devices)} devices, the mesh {shape[0]} x {shape[1]}")
    kinds = (jax.sharding.AxisType.Auto,) * 2
    return Mesh(np.array(devices).reshape(shape), ("data", "model"), axis_types=kinds)
