"""`check_model` passes right models, fails wrong ones, and says what is wrong with them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import testing
from specjax.testing import broken, statistics

TRIGRAM, TRANSFORMER = testing.random_trigram(0, 6), testing.tiny_transformer(0, 16)
RIGHT = {
    "table": (testing.table([0.2, 0.5, 0.3]), True),
    "bigram": (testing.bigram(np.full((3, 3), 1 / 3)), True),
    "script": (testing.script([1, 2, 3, 0, 2], 4), True),
    "trigram": (TRIGRAM, True),
    "transformer": (TRANSFORMER, True),
    "ring": (testing.ring(), False),
    "recurrent": (testing.recurrent(), False),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_models_pass(name):
    toy, trees = RIGHT[name]
    report = testing.check_model(*toy, trees=trees)
    expected = {"token by token", "in chunks", "ragged rows", "after a rollback", "other invalid tokens"}
    assert set(report.differences) >= expected and (len(report.differences) > len(expected)) == trees
    assert max(report.differences.values()) < 1e-4 * max(1.0, report.scale)


@pytest.mark.parametrize(("mistake", "toy", "trees", "message"), [
    (broken.ignores_ancestors, TRIGRAM, True, "a tree by its paths.*attend.ancestors"),
    (broken.ignores_valid, TRANSFORMER, True, "invalid tokens of a block.*attend.valid"),
    (broken.ignores_positions, TRANSFORMER, True, "a tree by its paths.*attend.positions"),
    (broken.ignores_lengths, TRIGRAM, True, "ragged rows.*own length"),
    (broken.commits_in_order, TRIGRAM, True, "after a path of a tree.*commit"),
    (broken.commits_everything, testing.ring(), False, "ragged rows"),
    (broken.commits_everything, testing.recurrent(), False, "ragged rows"),
])
def test_wrong_models_fail(mistake, toy, trees, message):
    with pytest.raises(AssertionError, match=f"(?s){message}"):
        testing.check_model(mistake(toy[0]), toy[1], trees=trees)


def other(**functions):
    return TRIGRAM[0]._replace(**functions)


@pytest.mark.parametrize(("model", "message"), [
    (other(init_cache=lambda batch, capacity: jnp.zeros((capacity, batch), jnp.int32)), "leading row axis"),
    (other(commit=lambda pending, path, base, num: pending[:, 1:]), "another form"),
    (other(commit=lambda pending, path, base, num: pending.astype(jnp.float32)), "another form"),
    (other(apply=lambda *args: TRIGRAM[0].apply(*args).logits), "specjax.Output"),
], ids=["rows", "shape", "dtype", "output"])
def test_wrong_forms_fail(model, message):
    with pytest.raises(AssertionError, match=message):
        testing.check_model(model, TRIGRAM[1])


def test_a_last_position_only_model_fails():
    """One that returns logits for the last token alone can not verify a block."""

    def last(*args):
        out = TRIGRAM[0].apply(*args)
        return specjax.Output(out.logits[:, -1:], out.features, out.pending)

    with pytest.raises(AssertionError, match=r"logits must be \[B, T, V\]"):
        testing.check_model(other(apply=last), TRIGRAM[1])


def test_nan_fails():
    with pytest.raises(AssertionError, match="not finite"):
        testing.check_model(TRIGRAM[0], jax.tree.map(lambda leaf: leaf * jnp.nan, TRIGRAM[1]))


def test_statistics_helpers():
    law = np.array([0.5, 0.3, 0.2, 0.0])
    assert statistics.chi_square([50, 30, 20, 0], law) > 0.99
    assert statistics.chi_square([50, 30, 20, 1], law) == 0.0, "an impossible event happened"
    assert statistics.chi_square([500, 300, 100, 0], law) < 1e-6
    assert statistics.bonferroni([0.5, 0.01, 0.2]) == pytest.approx(0.03)
    with pytest.raises(ValueError, match="3 cells and the law 4"):
        statistics.chi_square([1, 2, 3], law)
    assert statistics.histogram(np.array([[0, 1], [1, 1], [0, 1]]), 2).tolist() == [[0, 2], [0, 1]]
