"""Meshes of the eight devices that tests/conftest.py simulates."""

import jax
from jax.sharding import AxisType

SHAPES = ((8, 1), (4, 2), (2, 4), (1, 8))


def mesh_of(shape, names=("data", "model")):
    return jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(shape))
