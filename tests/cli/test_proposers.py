"""What is asked of a drafter on the command line is what it does, or it is refused."""

import types

import jax.numpy as jnp
import pytest

from specjax._src.types import DraftHead, MedusaHeads
from specjax.checkpoints import LoadedHead
from specjax.cli.options import DrafterName as Name
from specjax.cli.proposers import Wanted, fitting, make_drafter

NEEDS = frozenset({"hidden"})
HEADS = {
    "medusa": MedusaHeads("medusa", NEEDS, 4, print),
    "eagle3": DraftHead("eagle3", NEEDS, 8, jnp.float32, print, print, print, print, print),
    "eagle": DraftHead("eagle", NEEDS, 8, jnp.float32, print, print, print, print, print),
}


def shape(name, k=None, nodes=None, siblings="", rates=None, heads=HEADS):
    family = "eagle" if name == Name.EAGLE2 else name.value
    metadata = {} if rates is None else {"held_out": {"ranks": rates}}
    loaded = LoadedHead(heads[family], {}, types.SimpleNamespace(family=family), metadata)
    return make_drafter(Wanted(name, k, nodes, siblings), None, loaded)[0].shape


@pytest.mark.parametrize(("name", "k", "nodes", "want"), [
    (Name.MEDUSA, None, None, (64, 4)), (Name.MEDUSA, 2, None, None), (Name.MEDUSA, None, 10, None),
    (Name.EAGLE, None, None, (26, 5)), (Name.EAGLE, 3, 20, (20, 3)), (Name.EAGLE2, None, 32, (32, 6)),
    (Name.EAGLE3, None, None, (32, 8)), (Name.EAGLE2, 1, None, (9, 1)), (Name.EAGLE3, None, 4, (4, 3)),
    (Name.EAGLE2, 1, 40, (40, 1))])
def test_trees_have_the_size_that_is_asked_for(name, k, nodes, want):
    got = shape(name, k, nodes)
    assert want is None or (got.num_nodes, got.depth) == want
    assert nodes in (None, got.num_nodes) and k in (None, got.depth)


def test_hybrid_trees_have_a_chosen_node():
    assert shape(Name.EAGLE2, None, 3, "hybrid").num_nodes == 3
    with pytest.raises(ValueError, match="--num-nodes 3 at least, not 2"):
        shape(Name.EAGLE2, None, 2, "hybrid")


def test_small_trees_look_at_little():
    widths = [shape(Name.EAGLE3, None, nodes).branching - 1 for nodes in (4, 8, 16, 32, 64)]
    assert widths == [2, 2, 4, 8, 8]


def test_measured_rates_make_the_tree():
    rates = [[0.5, 0.2, 0.1]] * 4
    assert shape(Name.MEDUSA, nodes=80, rates=rates).num_nodes == 80
    assert shape(Name.MEDUSA, k=1, rates=rates).num_nodes == 4, "all there is, where no number is asked for"


@pytest.mark.parametrize(("name", "k", "nodes", "words"), [
    (Name.MEDUSA, None, 200, "64 nodes .* 200 nodes"), (Name.EAGLE, None, 32, "26 nodes .* 32 nodes"),
    (Name.EAGLE, 8, None, "depth 5 .* k=8"), (Name.MEDUSA, 7, None, "depth 4 .* k=7")])
def test_no_smaller_tree_in_silence(name, k, nodes, words):
    with pytest.raises(ValueError, match=words):
        shape(name, k, nodes)


@pytest.mark.parametrize(("name", "nodes", "siblings", "words"), [
    (Name.MODEL, None, "hybrid", "ask for a tree with --num-nodes"), (Name.MODEL, 6, "hybrid", "a chain of 5, which"),
    (Name.MODEL, 12, "hybird", "knows no siblings that are hybird"), (Name.MEDUSA, None, "hybrid", "they are chosen"),
    (Name.EAGLE, None, "hybird", "knows no siblings"), (Name.NGRAM, 8, "", "proposes a chain")])
def test_siblings_that_mean_nothing(name, nodes, siblings, words):
    with pytest.raises(ValueError, match=words):
        Wanted(name, None, nodes, siblings)


def test_nodes_reach_those_that_grow():
    wanted = {"num_speculative_tokens": 5, "num_nodes": 12}
    assert fitting(Name.MODEL, "hybrid", wanted) == fitting(Name.EAGLE, "", wanted) == wanted
    assert "num_nodes" not in fitting(Name.MODEL, "", wanted) and "num_nodes" not in fitting(Name.NGRAM, "", wanted)


def test_more_heads_than_the_published_tree_is_deep():
    five = {"medusa": HEADS["medusa"]._replace(num_heads=5)}
    assert shape(Name.MEDUSA, heads=five).depth == 4
    assert shape(Name.MEDUSA, rates=[[0.9, 0.1]] * 5, heads=five).depth == 5
