"""Settings for every test: exact float32 products, no 64-bit types, no more compiled programs than fit, eight devices.

`jax_numpy_rank_promotion` stays at "allow": the library broadcasts [B, 1] against [T] throughout.
"""

import pathlib

import jax
import pytest

jax.config.update("jax_default_matmul_precision", "highest")
jax.config.update("jax_num_cpu_devices", 8)  # simulated; all but tests/sharding use the first alone

# Linux allows a process 65530 memory maps. XLA's CPU programs take about 800 each for a whole generation, and the
# compiler dies of a segmentation fault when there are no more.
MAPS, ENOUGH = pathlib.Path("/proc/self/maps"), 48_000


@pytest.fixture(autouse=True)
def room_for_programs():
    """Forget compiled programs between tests when many have gathered."""
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > ENOUGH:
        jax.clear_caches()
