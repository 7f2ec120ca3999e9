"""The tests of the engine share `fleet.py`, and the toys of the core."""

import pathlib
import sys

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "core")]
