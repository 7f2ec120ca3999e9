"""`specjax train`: from a config to a folder that loads, and what it says of mistakes."""

import json

import pytest
from typer.testing import CliRunner

import specjax
from specjax.checkpoints import load_head
from specjax.cli.app import app
from specjax.training import run

call = CliRunner().invoke

CONFIG = """
target = "tiny-python"
[answers]
prompts = "{prompts}"
chunks = 1
rows = 8
prompt_tokens = 8
new_tokens = 12
[run]
steps = 2
batch = 2
length = 32
depth = 2
[head]
{head}
"""


@pytest.fixture
def config(checkpoints, monkeypatch, tmp_path):
    """Writes a config; `load` and `save_head` know the shelf."""
    monkeypatch.setattr(run, "load", specjax.load)
    (tmp_path / "prompts.txt").write_text("\n".join(f"d f{i}" for i in range(400)))

    def make(head):
        path = tmp_path / "config.toml"
        path.write_text(CONFIG.format(prompts=tmp_path / "prompts.txt", head=head))
        return str(path)

    return make


def test_a_head_is_trained_stored_and_loaded(config, checkpoints, tmp_path):
    out = tmp_path / "run"
    result = call(app, ["train", "medusa", config("num_heads = 2"), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert f"{out / 'medusa'} is complete" in result.output
    figures = json.loads((out / "figures.json").read_text())
    loaded = load_head(out / "medusa", checkpoints["tiny-python"])
    assert loaded.head.num_heads == 2 and loaded.metadata["held_out"] == figures
    assert loaded.metadata["training"]["run"]["steps"] == 2
    again = call(app, ["train", "medusa", config("num_heads = 2"), "--out", str(out)])
    assert again.exit_code == 0 and "resumed at step 2" in again.output
    assert json.loads((out / "figures.json").read_text()) == figures


@pytest.mark.parametrize(("arguments", "message"), [
    (["medusa", "nowhere", "--out", "x"], "no config nowhere"),
    (["hydra", "tiny-python-medusa", "--out", "x"], "'hydra' is not one of"),
    (["medusa", "tiny-python-medusa"], "Missing option '--out'"),
])  # fmt: skip
def test_mistakes_are_told_in_a_line(arguments, message, checkpoints):
    result = call(app, ["train", *arguments])
    assert result.exit_code == 2 and message in result.output and "Traceback" not in result.output


def test_without_optax_the_remedy_is_told(monkeypatch, checkpoints):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = call(app, ["train", "medusa", "tiny-python-medusa", "--out", "x"])
    assert result.exit_code == 2 and "pip install 'specjax[train]'" in result.output
