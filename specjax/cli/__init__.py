"""The command line: `specjax generate` writes, `specjax bench` measures."""

from specjax.cli.app import main as main

__all__ = ["main"]
