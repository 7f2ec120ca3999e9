"""How fast this device reads memory, measured beside everything else."""

from __future__ import annotations

import jax.numpy as jnp

from specjax.benchmarks.timing import Repeated

SIDE = 8192  # of a square float32 matrix: 256 MiB, larger than the caches
BYTES = 4 * SIDE * SIDE


class Bandwidth:
    """Three ways to walk through a large buffer; the fastest counts."""

    def __init__(self) -> None:
        """Make the buffer and compile the three loops."""
        matrix = jnp.full((SIDE, SIDE), 1.0 / SIDE, jnp.float32)
        row = jnp.ones((1, SIDE), jnp.float32)
        self.things = {
            "bandwidth/product": Repeated(lambda matrix, row: jnp.tanh(row @ matrix), matrix, row),
            "bandwidth/sum": Repeated(lambda matrix, total: jnp.sum(matrix * (1.0 + 1e-9 * total)), matrix, row[0, 0]),
            "bandwidth/copy": Repeated(lambda _, buffer: buffer + 1.0, row[0, 0], matrix),
        }

    @staticmethod
    def rates(medians: dict[str, float]) -> dict[str, float]:
        """Bytes a second of each way: one reading of the buffer, or one reading and one writing for the copy."""
        moved = {"product": BYTES, "sum": BYTES, "copy": 2 * BYTES}
        return {name: size / medians[f"bandwidth/{name}"] for name, size in moved.items()}

