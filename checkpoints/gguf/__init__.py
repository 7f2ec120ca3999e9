"""GGUF files, the format of llama.cpp, read through the `gguf` package."""

from specjax.checkpoints.gguf.reading import read as read
