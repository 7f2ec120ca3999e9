"""The exact law of a round on trees, by enumeration: every verifier, every kind of siblings, every number of levels."""

import functools

import jax
import numpy as np
import pytest
from test_law import SETTINGS, extreme

from specjax import verify
from specjax._src.tree import SIBLINGS, chain_shape, full_paths, paths_shape
from specjax.testing import exact, trees

SHAPES = {
    "two chains": paths_shape(full_paths(2, 1)),
    "(2, 2)": paths_shape(full_paths(2, 2)),
    "(3, 2)": paths_shape(full_paths(3, 2)),
    "ragged": paths_shape([(0,), (1,), (0, 0)]),
    "late": paths_shape([(0,), (1,), (2,), (1, 0), (2, 0), (2, 1), (2, 1, 0)]),
    "chain": chain_shape(3),
}
VERIFIERS = {
    "match": verify.match(), "specinfer": verify.specinfer(), "without_replacement": verify.without_replacement(),
    "hybrid": verify.hybrid(), "traversal": verify.traversal()}
WIDE = {"(3, 2)", "late"}
"""Shapes of many trees: three tokens are enough of them."""


def cases():
    """A chain where there is one child at most, wider shapes for the other kinds; match needs no law of the draft."""
    return [pytest.param(name, siblings, shape, id=f"{name}-{siblings}-{shape}")
            for name, verifier in VERIFIERS.items() for siblings in SIBLINGS for shape in SHAPES
            if siblings in verifier.siblings and (siblings == "one") == (shape == "chain")
            and (name != "match" or siblings in ("one", "chosen", "independent"))]


@functools.cache
def tables(shape, vocab_size, seed=0, scale=1.5):
    return exact.random_tables(seed, vocab_size, SHAPES[shape].depth + 1, scale)


@functools.cache
def expected(shape, vocab_size, setting="plain", seed=0):
    return exact.target_text_law(tables(shape, vocab_size, seed), SETTINGS[setting])


@pytest.mark.parametrize(("verifier", "siblings", "shape"), cases())
def test_law_of_a_tree(verifier, siblings, shape):
    size = 3 if shape in WIDE else 4
    laws = trees.tree_text_laws(VERIFIERS[verifier], tables(shape, size), SHAPES[shape], siblings)
    assert len(laws) == SHAPES[shape].depth + 1
    for law in laws:
        exact.assert_same_law(law, expected(shape, size))


@pytest.mark.parametrize("setting", ["hot", "greedy", "top-k", "penalties", "everything"])
@pytest.mark.parametrize(("verifier", "siblings"), [
    ("specinfer", "independent"), ("without_replacement", "without_replacement"), ("traversal", "without_replacement"),
    ("hybrid", "hybrid")])
def test_transforms(verifier, siblings, setting):
    """Also laws with fewer tokens than the tree has children: what is left to draw is nothing."""
    for law in trees.tree_text_laws(VERIFIERS[verifier], tables("(2, 2)", 3), SHAPES["(2, 2)"], siblings,
                                    SETTINGS[setting]):
        exact.assert_same_law(law, expected("(2, 2)", 3, setting))


@pytest.mark.parametrize("pair", ["equal", "sharp", "disjoint", "nearly equal", "sure by 20", "sure by 80"])
@pytest.mark.parametrize(("verifier", "siblings"), [
    ("specinfer", "independent"), ("without_replacement", "without_replacement"), ("traversal", "without_replacement"),
    ("hybrid", "hybrid")])
def test_extreme_pairs(verifier, siblings, pair):
    """Residuals of mass 0 or nearly so, acceptance 0 and 1, second children drawn from next to nothing."""
    both = tables("(2, 2)", 4, 11, 12.0 if pair == "sharp" else 1.5)
    both = extreme(both, pair)
    for law in trees.tree_text_laws(VERIFIERS[verifier], both, SHAPES["(2, 2)"], siblings):
        exact.assert_same_law(law, exact.target_text_law(both))


@pytest.mark.parametrize(("verifier", "siblings"), [
    ("match", "chosen"), ("specinfer", "independent"), ("without_replacement", "without_replacement"),
    ("hybrid", "hybrid")])
def test_topology_hidden_from_the_compiler(verifier, siblings):
    """A dynamic tree is judged as the static one is, a chain too."""
    for shape in ("late", "chain"):
        want = trees.judged(VERIFIERS[verifier], tables(shape, 3), SHAPES[shape], siblings)
        got = trees.judged(VERIFIERS[verifier], tables(shape, 3), SHAPES[shape], siblings, dynamic=True)
        for one, other in zip(got, want, strict=True):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), one, other)


@pytest.mark.parametrize(("verifier", "chain_rule"), [
    ("without_replacement", verify.rejection()), ("specinfer", verify.rejection()), ("hybrid", verify.rejection()),
    ("traversal", verify.block())])
def test_on_a_chain_it_is_the_chain_rule(verifier, chain_rule):
    """arXiv:2505.12398: traversal of one path is block verification; the rules of a node are plain rejection."""
    for siblings in ("one", "chosen"):
        _, ends, following = trees.judged(VERIFIERS[verifier], tables("chain", 3), SHAPES["chain"], siblings)
        _, want, after = trees.judged(chain_rule, tables("chain", 3), SHAPES["chain"], siblings)
        np.testing.assert_allclose(ends, want, atol=2e-6)
        reached = want > 1e-4  # a residual that is hardly ever drawn from is mostly rounding
        np.testing.assert_allclose(following[reached], after[reached], atol=2e-3)


def test_a_dynamic_tree_is_refused_where_the_topology_must_be_known():
    with pytest.raises(ValueError, match="tree is dynamic: use verify.hybrid"):
        trees.judged(verify.traversal(), tables("(2, 2)", 3), SHAPES["(2, 2)"], "hybrid", dynamic=True)


def test_hybrid_keeps_the_most_that_its_candidates_allow():
    """arXiv:2502.18779, one node: p(S) + sum over the rest of min(p, Q)."""
    shape = paths_shape(full_paths(3))
    for seed in range(4):
        both = exact.random_tables(seed, 5, 2)
        p, q = (np.exp(np.asarray(exact.log_laws(one)[0], np.float64)) for one in both)
        chosen = np.argsort(-q, kind="stable")[:2]
        rest = np.where(np.isin(np.arange(5), chosen), 0.0, q)
        want = p[chosen].sum() + np.minimum(np.delete(p, chosen), np.delete(rest / rest.sum(), chosen)).sum()
        assert trees.mean_kept(verify.hybrid(), both, shape, "hybrid") == pytest.approx(want, abs=1e-6)


def test_order_of_the_rules():
    """What is kept of two children at two depths, six pairs of models: what the choice of a default rests on."""
    def kept(rule, siblings):
        return np.array([trees.mean_kept(VERIFIERS[rule], tables("(2, 2)", 4, seed), SHAPES["(2, 2)"], siblings)
                         for seed in range(6)])

    one_by_one, hybrid = kept("without_replacement", "without_replacement"), kept("hybrid", "hybrid")
    again = kept("specinfer", "independent")
    assert np.all(again >= kept("without_replacement", "independent") - 1e-6), "right, but not made for them"
    np.testing.assert_allclose(kept("without_replacement", "hybrid"), hybrid, atol=1e-6)  # drawn ones are asked first
    assert np.all(kept("traversal", "without_replacement") >= one_by_one - 1e-6)
    assert np.all(kept("traversal", "hybrid") >= hybrid - 1e-6)
    assert kept("traversal", "hybrid").mean() > hybrid.mean() + 0.01
    assert kept("traversal", "without_replacement").mean() > one_by_one.mean() + 0.01
    assert one_by_one.mean() > again.mean() + 0.01


def test_typical_acceptance_changes_the_law():
    """It is not offered as exact, and it is not: by a total variation that no rounding makes."""
    shape, siblings = SHAPES["(2, 2)"], "without_replacement"
    laws = trees.tree_text_laws(verify.typical(0.09, 0.3), tables("(2, 2)", 4), shape, siblings)
    exact.assert_same_law(laws[0], expected("(2, 2)", 4))
    for law in laws[1:]:
        assert abs(law.sum() - 1.0) < 1e-6 and exact.total_variation(law, expected("(2, 2)", 4)) > 0.05
    greedy = trees.tree_text_laws(verify.typical(0.09, 0.3), tables("(2, 2)", 3), shape, siblings, SETTINGS["greedy"])
    for law in greedy:
        exact.assert_same_law(law, expected("(2, 2)", 3, "greedy"))
