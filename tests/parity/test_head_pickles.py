"""Heads in the files that torch writes: read with `weights_only`, the same as from safetensors."""

import pathlib
import sys

import head_cases as cases
import jax
import numpy as np
import published
import pytest

import specjax
from specjax import checkpoints
from specjax.checkpoints import shards
from specjax.checkpoints.pickles import read_pickle


def pickled(torch, folder, found, values, file):
    published.write(folder, {}, values)
    (folder / shards.SINGLE).unlink()
    torch.save({name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in found.items()}, folder / file)
    return folder


@pytest.mark.parametrize("name, file", [("medusa", "medusa_lm_head.pt"), ("eagle", "pytorch_model.bin"),
                                        ("eagle3", "pytorch_model.bin")])
def test_pickles(torch, tmp_path, name, file):
    path = published.target(tmp_path / "target")
    found = published.tensors(name)
    source = pickled(torch, tmp_path / "hf", found, published.values(cases.CASES[name]), file)
    checkpoints.from_published_head(source, tmp_path / "ours", path, tap_convention="boundary")
    loaded = specjax.load_head(tmp_path / "ours", checkpoints.load(path))
    jax.tree.map(np.testing.assert_array_equal, loaded.params, cases.made(name)[2])
    checkpoints.to_published_head(tmp_path / "ours", tmp_path / "back")
    assert published.same_bytes(tmp_path / "back", found)


def test_bfloat16_and_what_is_no_state_dict(torch, tmp_path):
    numbers = torch.tensor([[1.5, -2.0], [3.25, 0.1]]).bfloat16().T
    torch.save({"a": numbers}, tmp_path / "half.bin")
    (entry,) = read_pickle(tmp_path / "half.bin").values()
    np.testing.assert_array_equal(entry.view().astype(np.float32), numbers.float().numpy())
    assert entry.num_bytes == 8
    torch.save({"a": torch.zeros(2, dtype=torch.int8)}, tmp_path / "int8.bin")
    with pytest.raises(ValueError, match=r"a is torch.int8, which is not read"):
        read_pickle(tmp_path / "int8.bin")
    torch.save([numbers], tmp_path / "list.bin")
    with pytest.raises(ValueError, match="is no dictionary of tensors"):
        read_pickle(tmp_path / "list.bin")
    torch.save({"a": pathlib.Path("x")}, tmp_path / "code.bin")
    with pytest.raises(ValueError, match="is damaged, or holds more than tensors"):
        read_pickle(tmp_path / "code.bin")


def test_without_torch_the_remedy_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ValueError, match="is a pickle, which only torch reads safely: pip install torch"):
        read_pickle(tmp_path / "x.bin")
