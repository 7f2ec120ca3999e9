"""The memory that is told before anything is loaded is what the arrays take on each device afterwards."""

import hugging
import jax
import pytest
from meshes import mesh_of
from typer.testing import CliRunner

from specjax.checkpoints import load, load_head
from specjax.checkpoints.footprint import SLACK, footprint
from specjax.cli import app
from specjax.models.heads import own

FEW = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 2, "intermediate_size": 24}


def on_one_device(tree):
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("shape", [(1, 8), (4, 2), (1, 1)], ids=str)
def test_weights_and_caches(shape, tmp_path):
    folder = hugging.write(tmp_path / "hf", hugging.tensors(**FEW), **FEW)
    told = footprint(folder, mesh=shape, batch=8, context=100, dtype="float32")
    mesh = mesh_of(shape) if shape != (1, 1) else jax.make_mesh(
        (1, 1), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2, devices=jax.devices()[:1])
    found = load(folder, "float32", mesh=mesh)
    assert told.weights == on_one_device(found.params)
    assert told.cache == on_one_device(jax.jit(lambda: found.model.init_cache(8, 100 + SLACK))())
    assert told.temporary > 0 and told.total == sum(told)


def test_a_head_beside_its_target():
    told = footprint("tiny-python", "tiny-python-eagle3", mesh=(1, 8), batch=2, context=64, dtype="float32")
    target = load("tiny-python", "float32", mesh=mesh_of((1, 8)))
    head = load_head("tiny-python-eagle3", target)
    places = head.params["places"].nbytes  # follow from the draft vocabulary, and are not stored
    assert told.draft_weights == on_one_device(own(head.params)) + places
    assert told.draft_cache == on_one_device(jax.jit(lambda: head.head.init_cache(2, 64 + SLACK))())
    medusa = footprint("tiny-python", "tiny-python-medusa", mesh=(1, 8))
    assert medusa.draft_weights > 0 == medusa.draft_cache


@pytest.fixture
def told():
    def run(*arguments):
        return CliRunner().invoke(app.app, ["info", "tiny-python", "--batch", "64", *arguments], env={"COLUMNS": "120"})

    return run


def test_the_command_says_and_refuses(told):
    fits = told("--mesh", "1x8", "--chip", "v5e", "--draft", "tiny-python-draft")
    assert fits.exit_code == 0 and "draft weights" in fits.output and "16.000" in fits.output
    over = told("--mesh", "1x2", "--memory", "0.5", "--context", "65536")
    assert over.exit_code == 2
    assert "this does not fit" in over.output and "and it has 0.50" in over.output


@pytest.mark.parametrize(("arguments", "message"), [
    (("--mesh", "two"), "--mesh two is no mesh"), (("--mesh", "0x2"), "--mesh 0x2 is no mesh"),
    (("--chip", "v1"), "--chip v1 is not one of v5e"), (("--chip", "v5e", "--memory", "4"), "say the same twice"),
    (("--draft", "nowhere"), "no checkpoint 'nowhere'")])  # fmt: skip
def test_mistakes(told, arguments, message):
    out = told(*arguments)
    assert out.exit_code == 2 and message in out.output
