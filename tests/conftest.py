"""Settings for every test: exact float32 products, and no 64-bit types.

`jax_numpy_rank_promotion` stays at "allow": the library broadcasts [B, 1] against [T] throughout.
"""

import jax

jax.config.update("jax_default_matmul_precision", "highest")
