"""What these tests share stands beside them and in the folders of the core and the models."""

import pathlib
import sys

here = pathlib.Path(__file__).parent
for folder in (here, here.parent / "core", here.parent / "models", here.parent / "checkpoints"):
    sys.path.insert(0, str(folder))
