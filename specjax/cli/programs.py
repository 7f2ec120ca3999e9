"""Compiled programs kept between starts: a second `specjax generate` need not compile again."""

from __future__ import annotations

import os
import pathlib

import jax


def keep_programs() -> None:
    """Let JAX keep compiled programs in the user's cache folder, if that can be written and no other was chosen.

    `JAX_COMPILATION_CACHE_DIR` chooses another folder, `JAX_ENABLE_COMPILATION_CACHE=false` keeps nothing.
    """
    if jax.config.jax_compilation_cache_dir is not None:
        return
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    folder = cache / "specjax" / "programs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
