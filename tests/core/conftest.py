"""The tests of the core share `scenarios.py`; under `--import-mode=importlib` its folder is on no path by itself."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
