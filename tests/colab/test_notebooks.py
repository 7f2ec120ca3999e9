"""Every notebook runs top to bottom; what its cells claim is asserted on their variables."""

import json
import pathlib

import jax.numpy as jnp
import pytest

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "colab"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def run(path: pathlib.Path) -> dict:
    names: dict = {"__name__": path.stem}
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and not source.startswith("%pip"):  # the package under test is installed
            exec(compile(source, path.name, "exec"), names)
    return names


@pytest.mark.skipif(not NOTEBOOKS, reason="the tests run without the source tree, where no notebooks are")
def test_quickstart():
    names = run(FOLDER / "quickstart.ipynb")
    assert bool(jnp.all(names["fast"].stats.rounds <= names["fast"].lengths))
    assert float(names["fast"].stats.mean_accepted_length.mean()) > 1.5
