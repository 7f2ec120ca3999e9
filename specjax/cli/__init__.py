"""The command line: `specjax generate` writes, `specjax bench` measures, `specjax convert` takes weights in and out."""

from specjax.cli.app import main as main

__all__ = ["main"]
