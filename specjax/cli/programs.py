"""Compiled programs kept between starts: a second `specjax generate` need not compile again."""

from __future__ import annotations

import os
import pathlib

import jax


def keep_programs() -> None:
    """Let JAX keep compiled programs in the user's cache folder, if that can be written and no other was chosen.

    `JAX_COMPILATION_CACHE_DIR` chooses another folder, `JAX_ENABLE_COMPILATION_CACHE=false` keeps nothing.
    """
    if jax.config.jax_compilation_cache_dir is not None:  # type: ignore[attr-defined]
        return
    chosen = pathlib.Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        folder = (chosen if chosen.is_absolute() else pathlib.Path.home() / ".cache") / "specjax" / "programs"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # nowhere to write, or nobody's home
        return
    if os.access(folder, os.W_OK | os.X_OK):
        jax.config.update("jax_compilation_cache_dir", str(folder))
        if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
            jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
