"""Tiny random models of `transformers`, saved as their users find them; skipped where the extra `parity` is absent."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))  # for what the tests of this folder share
sys.path.insert(1, str(pathlib.Path(__file__).parents[1] / "checkpoints"))  # for the writers of GGUF files and of heads
sys.path.insert(2, str(pathlib.Path(__file__).parents[1] / "models"))

from hf_families import SIZES
from hf_pairs import randomise


@pytest.fixture(scope="session")
def torch():
    torch = pytest.importorskip("torch", reason="parity needs the extra 'parity' (torch)")
    torch.set_num_threads(1)
    return torch


@pytest.fixture(scope="session")
def transformers(torch):
    return pytest.importorskip("transformers", reason="parity needs the extra 'parity' (transformers)")


@pytest.fixture(scope="session")
def make(torch, transformers, tmp_path_factory):
    """`make(model_type, **settings)`: the module in evaluation mode, and the folder it was saved to."""

    def made(model_type, **settings):
        config = transformers.AutoConfig.for_model(model_type, **{**SIZES, **settings})
        module = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval().float()
        randomise(torch, module)
        folder = tmp_path_factory.mktemp(model_type)
        module.save_pretrained(folder)
        return module, folder

    return made
