"""Every drafter and verifier on every mesh writes what it writes on one device, greedy and sampled, in float32.

A program takes seconds to compile, so `pytest` tries each kind of drafter on one mesh, and each mesh with some; all of
them: `pytest -m matrix tests/sharding`.
"""

import functools

import drafting
import jax
import numpy as np
import pytest
from meshes import SHAPES, mesh_of

import specjax
from specjax import Sampling, draft, verify
from specjax.models import DecoderConfig, some_layers
from specjax.sharding import REPLICATED, RULES, shard

V, K, BUDGET = 11, 3, 10
CONFIG = DecoderConfig(
    vocab_size=V, hidden_size=16, num_layers=3, num_heads=8, num_kv_heads=2, head_dim=4, intermediate_size=24,
    max_position=64, rope_theta=100.0, tie_embeddings=False)  # fmt: skip
PROMPTS = [[3], [1, 5], [2, 2, 0, 4], [5, 4, 3, 2, 1, 0, 5, 4, 3], [10], [7, 7, 8], [0, 1, 1, 0, 2, 2, 0, 3], [9, 6]]
MIXED = Sampling(temperature=np.array([0, 1.0, 0, 0.7, 0, 1.3, 0, 1.0]), top_p=np.where(np.arange(8) == 3, 0.8, 1.0),
                 frequency_penalty=np.where(np.arange(8) == 2, 0.3, 0.0), seed=np.arange(8) + 3)
PATHS = [(0,), (1,), (0, 0), (1, 0), (0, 0, 0)]

DRAFTERS = {
    "plain": lambda m: None,
    "ngram": lambda m: draft.ngram(K),
    "model": lambda m: draft.from_model(m["target"], K),
    "self": lambda m: draft.self_model(m["part"], K),
    "tree": lambda m: draft.model_tree(m["target"], PATHS),
    "hybrid tree": lambda m: draft.model_tree(m["target"], PATHS, siblings="hybrid"),
    "independent tree": lambda m: draft.model_tree(m["target"], PATHS, siblings="independent"),
    "grown": lambda m: draft.dynamic_model_tree(m["target"], 8, K, 2, drawn=2),
    "medusa": lambda m: draft.medusa(m["medusa"], PATHS),
    "eagle": lambda m: draft.eagle(m["eagle"], K),
    "eagle2": lambda m: draft.eagle2(m["eagle"], 8, K, 2, drawn=2),
    "eagle3": lambda m: draft.eagle3(m["eagle3"], 8, K, 2),
    "fallback": lambda m: draft.fallback(draft.ngram(K), draft.from_model(m["target"], K)),
    "union": lambda m: draft.union(draft.ngram(K), draft.eagle2(m["eagle"], 8, K, 2, drawn=2)),
}
PAIRS = [
    ("plain", None), ("ngram", verify.match()), ("model", verify.match()), ("model", verify.block()),
    ("model", verify.rejection()), ("self", verify.block()), ("tree", verify.traversal()),
    ("tree", verify.without_replacement()), ("hybrid tree", verify.hybrid()),
    ("independent tree", verify.specinfer()), ("grown", verify.hybrid()), ("medusa", verify.match()),
    ("medusa", verify.typical(0.3, 0.1)), ("eagle", verify.block()), ("eagle2", verify.hybrid()),
    ("eagle3", verify.match()), ("fallback", verify.block()), ("union", verify.hybrid())]  # fmt: skip
NAMES = [f"{drafter}-{verifier.name if verifier else 'match'}" for drafter, verifier in PAIRS]


@functools.cache
def networks(shape=None, draft_rules=None):
    """Target, its part and heads by name, each a pair of functions and weights; laid out on a mesh if there is one."""
    made = {"target": drafting.target(CONFIG)} | {
        family: drafting.head(family, CONFIG) for family in ("eagle", "eagle3", "medusa")}
    made["part"] = (some_layers(CONFIG, 2), made["target"][1])
    made["draft"] = made["target"]
    if shape is None:
        return made
    mesh = mesh_of(shape)
    return {name: shard(*pair, mesh, RULES if name in ("target", "part") else dict(draft_rules or RULES))
            for name, pair in made.items()}


@functools.cache
def written(drafter, verifier, shape=None, draft_rules=None):
    made = networks(shape, draft_rules)
    functions = {name: pair[0] for name, pair in made.items()}
    functions["target"] = made["draft"][0] if drafter in ("model", "tree") else functions["target"]
    made_drafter = DRAFTERS[drafter](functions)
    weights = {"eagle": "eagle", "eagle2": "eagle", "union": "eagle", "eagle3": "eagle3", "medusa": "medusa"}
    own = None
    if made_drafter is not None and made_drafter.needs_params and not made_drafter.own_target:
        own = made[weights.get(drafter, "draft")][1]
    out = specjax.generate(
        *made["target"], PROMPTS, drafter=made_drafter, draft_params=own, verifier=verifier, sampling=MIXED,
        max_new_tokens=BUDGET)
    return jax.tree.map(np.asarray, out)


def same(drafter, verifier, shape, draft_rules=None):
    alone, spread = written(drafter, verifier), written(drafter, verifier, shape, draft_rules)
    np.testing.assert_array_equal(spread.tokens, alone.tokens)
    np.testing.assert_array_equal(spread.stats.accepted, alone.stats.accepted)
    if drafter != "plain":
        assert alone.stats.accepted.sum() > 3, "too little is kept to prove anything"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "shape"), [
    ("model-block", (2, 4)), ("self-block", (1, 8)), ("tree-traversal", (4, 2)), ("hybrid tree-hybrid", (8, 1)),
    ("medusa-match", (1, 8)), ("eagle-block", (4, 2)), ("eagle3-match", (2, 4)), ("union-hybrid", (1, 8))], ids=str)
def test_text_is_that_of_one_device(name, shape):
    same(*PAIRS[NAMES.index(name)], shape)


@pytest.mark.matrix
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("index", range(len(PAIRS)), ids=NAMES)
def test_all_of_them(index, shape):
    same(*PAIRS[index], shape)


@pytest.mark.slow
def test_a_replicated_draft():
    same("model", verify.block(), (2, 4), tuple(REPLICATED.items()))


def test_a_stream_keeps_its_layout_and_compiles_nothing_again(caplog):
    made = networks((2, 4))
    drafter = draft.from_model(made["draft"][0], K)
    arguments = {"drafter": drafter, "draft_params": made["draft"][1], "max_new_tokens": BUDGET}
    for _ in specjax.stream(*made["target"], PROMPTS, sampling=MIXED, **arguments):
        pass
    with jax.log_compiles():
        rounds = list(specjax.stream(*made["target"], [p[::-1] for p in PROMPTS], sampling=MIXED, **arguments))
    assert len(rounds) > 2 and not [line for line in caplog.messages if "Compiling" in line]
    alone = networks()
    tokens = [np.concatenate([np.asarray(t)[row, : int(c[row])] for t, c in rounds]) for row in range(8)]
    out = specjax.generate(*alone["target"], [p[::-1] for p in PROMPTS], sampling=MIXED, max_new_tokens=BUDGET,
                           drafter=draft.from_model(alone["draft"][0], K), draft_params=alone["draft"][1])
    for row in range(8):
        np.testing.assert_array_equal(tokens[row], np.asarray(out.tokens)[row, : int(out.lengths[row])])
