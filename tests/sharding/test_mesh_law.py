"""The target's law on a mesh where rows and the vocabulary are split: by enumeration, and of whole loops."""

import functools

import jax
import numpy as np
import pytest
import test_loop_law as loops
from meshes import mesh_of

from specjax import Sampling, draft, verify
from specjax._src.sharding import Layout, keep_logits
from specjax.sharding import RULES, shard
from specjax.testing import exact

MESH = mesh_of((4, 2))
LAYOUT = Layout(MESH, tuple(RULES.items()))


def spread(verifier):
    """The rule on laws of the target that are split over the mesh; the draft's own are where the partitioner wants."""
    return verifier._replace(plan=jax.jit(lambda tree, target: verifier.plan(tree, keep_logits(LAYOUT, target))))


@pytest.mark.parametrize("verifier", [verify.match(), verify.rejection(), verify.block()], ids=lambda rule: rule.name)
def test_the_law_of_a_round(verifier):
    for setting in (exact.Setting(), exact.Setting(Sampling(temperature=0.8, top_k=3, top_p=0.9, min_p=0.05))):
        tables = exact.random_tables(0, 4, 3)
        law = exact.target_text_law(tables, setting)
        for found in exact.round_text_laws(spread(verifier), tables, 2, setting):
            exact.assert_same_law(found, law)


@functools.cache
def target():
    return shard(*loops.TARGET, MESH)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rejection", "block", "tree"])
def test_whole_loops(name, monkeypatch):
    """As in the core's suite: 200 000 rows, chi-square, and greedy rows that must be exactly greedy."""
    model, params = target()
    assert params["logits"].sharding.spec[-1] == "model" and params["logits"].shape[-1] == 4, "three tokens, padded"
    rule = {"rejection": verify.rejection(), "block": verify.block(), "tree": verify.hybrid()}[name]
    drafter = draft.from_model(model, loops.K)
    if name == "tree":
        drafter = draft.model_tree(model, loops.PATHS, siblings="hybrid")
    monkeypatch.setattr(loops, "DRAFT", (model, shard(*loops.DRAFT, MESH)[1]))
    monkeypatch.setattr(loops, "WORSE", (model, shard(*loops.WORSE, MESH)[1]))
    monkeypatch.setattr(loops, "sample", functools.partial(loops.sample, target=target()))
    loops.whole_loop(drafter, rule, "plain")


@pytest.mark.slow
def test_a_law_that_is_off_is_seen(monkeypatch):
    """The same with a fault: each device draws from the part of the vocabulary that it holds, as if that were all."""
    model, params = target()
    logits = np.asarray(params["logits"]).copy()
    logits[..., 2] = -1e9
    params = {"logits": jax.device_put(logits, params["logits"].sharding)}
    out = loops.sample(draft.from_model(model, loops.K), verify.block(), Sampling(temperature=1.0),
                       target=(model, params))
    with pytest.raises(AssertionError, match="not the target's law"):
        loops.judge(out, "plain")
