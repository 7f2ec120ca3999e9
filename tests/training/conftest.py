"""The toys of `toys.py` as fixtures."""

import functools
import pathlib
import sys

import jax
import jax.numpy as jnp
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))  # for toys.py: tests are no package

import toys

from specjax.training.config import make_config
from specjax.training.learners import make_learner
from specjax.training.lesson import Windows, teach


@pytest.fixture(scope="session")
def target():
    return toys.toy_target()


@pytest.fixture(scope="session")
def chunk():
    return toys.toy_chunk()


@pytest.fixture(scope="session")
def studied(target, chunk):
    """By kind: the config, the learner with random parameters (whole), and a lesson of two windows."""

    @functools.cache
    def make(kind, **loss):
        table = toys.tables(kind)
        table["loss"] |= loss
        config = make_config(kind, table, "test")
        learner = make_learner(config, target, [chunk])
        params = {**learner.frozen, **toys.shaken(learner.trained)}
        batch = jax.tree.map(jnp.asarray, Windows([chunk], 24, 0).take(0, 2))
        lesson = jax.jit(lambda batch: teach(target.model, target.params, batch, learner.needs))(batch)
        return config, learner, params, lesson

    return make
