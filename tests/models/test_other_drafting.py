"""Drafting with Medusa heads, with a target's own layers, and for targets with sliding windows."""

import dataclasses

import jax
import numpy as np
import pytest
from drafting import BUDGET, CONFIG, DEPTH, MIXED, PATHS, PROMPTS, ROWS, Begun, head, proposed
from drafting import target as make_target

import specjax
from specjax import Params, Sampling, draft, verify
from specjax.models import some_layers
from specjax.testing import check_model

pytestmark = pytest.mark.slow


def write(toy, drafter=None, draft_params=None, verifier=None, sampling=Sampling(), **arguments):
    arguments = {"max_new_tokens": BUDGET, "prompts": PROMPTS, **arguments}
    out = specjax.generate(*toy, drafter=drafter, draft_params=draft_params, verifier=verifier, sampling=sampling,
                           **arguments)
    return [row[:length].tolist() for row, length in zip(np.asarray(out.tokens), out.lengths, strict=True)], out


def test_a_medusa_tree_holds_the_ranks_of_its_heads():
    """Node (i, j, ..) is token number i of the first head, then number j of the second, and so on."""
    toy, (heads, params) = make_target(), head("medusa")
    drafter = draft.medusa(heads, PATHS)
    decoder = specjax.speculative(toy[0], drafter)
    both = Params(toy[1], params)
    state = decoder.init(both, PROMPTS, max_new_tokens=BUDGET, num_speculative_tokens=np.array([3, 3, 2, 1, 3]))
    state = jax.jit(decoder.run)(both, state, 4)
    tree = proposed(Begun(decoder, both, state), drafter)
    logits = np.asarray(heads.apply(params, state.features))
    ranked = np.argsort(-logits, axis=-1, kind="stable")
    depths = [0, 1, 1, 2, 2, 2, 3]
    seen = set()
    for row in range(ROWS):
        for node, path in enumerate([(), *sorted(PATHS, key=lambda path: (len(path), path))]):
            there = depths[node] <= int(state.drafts[row])
            assert bool(tree.valid[row, node]) == there
            seen.add(there)
            if there and path:
                assert int(tree.tokens[row, node]) == ranked[row, len(path) - 1, path[-1]]
    assert seen == {True, False}
    want, _ = write(toy)
    text, out = write(toy, drafter, params)
    assert text == want and out.stats.accepted.sum() > 0
    assert write(toy, drafter, params, sampling=MIXED)[0] == write(toy, sampling=MIXED)[0]
    lone, out = write(toy, drafter, params, prompts=[[3]])
    assert int(out.stats.drafted_per_round[0, 0]) == 0, "a prompt of one token has no feature"


def test_medusa_needs_a_head_for_each_depth():
    heads, _ = head("medusa")
    with pytest.raises(ValueError, match="depth 4, but medusa has 3 heads: take a tree that is no deeper"):
        draft.medusa(heads, 4)
    assert draft.medusa(heads).shape.depth == DEPTH, "of the published tree what there are heads for"
    with pytest.raises(ValueError, match="10 likeliest tokens does not fit a target of 6"):
        write(make_target(), draft.medusa(heads), head("medusa")[1])


def weighed(params, layer, factor):
    """The same weights with a layer that changes the residual stream so many times as much."""
    part = params["layers"][layer]
    part = {**part, "attention": {**part["attention"], "out": factor * part["attention"]["out"]},
            "mlp": {**part["mlp"], "down": factor * part["mlp"]["down"]}}
    return {**params, "layers": {**params["layers"], layer: part}}


@pytest.mark.parametrize("layers", [2, (0, 2)])
def test_a_targets_own_layers_draft(layers):
    """No weights, no cache of its own: text is that of plain decoding, and so is what the target's cache holds behind
    any round; a part that lacks no more than a layer that does nothing is always right."""
    model, params = make_target()
    missing = "2" if layers == 2 else "1"
    drafter = draft.self_model(some_layers(CONFIG, layers), DEPTH)
    want, _ = write((model, params))
    text, out = write((model, params), drafter)
    assert text == want and 0 < out.stats.accepted.sum() < out.stats.drafted.sum()
    sampled, _ = write((model, params), drafter, verifier=verify.match(), sampling=MIXED)
    assert sampled == write((model, params), sampling=MIXED)[0]

    same = weighed(params, missing, 0.0)
    text, out = write((model, same), drafter)
    assert text == write((model, same))[0]
    np.testing.assert_array_equal(out.stats.accepted, out.stats.drafted)

    states = []
    for one in (drafter, None):
        decoder = specjax.speculative(model, one, verify.match())
        state = decoder.init(Params(params), PROMPTS, max_new_tokens=BUDGET, sampling=MIXED, capacity=40)
        states.append(jax.jit(decoder.run)(Params(params), state, 6))
    np.testing.assert_array_equal(states[0].length, states[1].length)
    assert len(jax.tree.leaves(states[0].draft)) == 0, "it has a state of its own"
    entries = np.asarray(states[0].length)[:, None, None, None] - 1
    for one, other in zip(jax.tree.leaves(states[0].cache), jax.tree.leaves(states[1].cache), strict=True):
        kept = np.arange(one.shape[2])[None, None, :, None] < entries
        np.testing.assert_allclose(np.where(kept, one, 0), np.where(kept, other[:, :, : one.shape[2]], 0), atol=1e-4)


@pytest.mark.parametrize(("layers", "words"), [
    (0, "layers=0 is no part"), (3, "name some of 0 .. 2, but not all"), ((), "is no part"), ((0, 5), "is no part"),
    ((-1,), "is no part")])
def test_no_such_layers(layers, words):
    with pytest.raises(ValueError, match=words):
        some_layers(CONFIG, layers)


SLIDING = dataclasses.replace(CONFIG, sliding_window=3, sliding_layers=(0, 2), sliding_rope_theta=30.0)


@pytest.mark.parametrize("window", [2])
def test_a_window_over_a_tree_that_grows_level_by_level(window):
    """What a node of an earlier level is away from a token is told by positions, which are not those of the slots."""
    check_model(*make_target(dataclasses.replace(SLIDING, sliding_window=window)))


@pytest.mark.parametrize("name", ["static", "dynamic"])
def test_trees_for_a_target_with_a_window(name):
    """The accepted path is moved to where a window by positions finds it: tree text is plain text, prompts longer and
    shorter than the window, drafts right and wrong; and the cache is that of plain decoding."""
    model, params = make_target(SLIDING)
    drafter = {"static": draft.model_tree(model, PATHS, siblings="chosen"),
               "dynamic": draft.dynamic_model_tree(model, 8, DEPTH, 3)}[name]
    for seed in (1, 9):
        weights = jax.tree.map(
            lambda a, b, share=float(seed == 9): (1 - 0.2 * share) * a + 0.2 * share * b, params,
            make_target(SLIDING, 9)[1])
        for sampling in (Sampling(), MIXED):
            text, out = write((model, params), drafter, weights, sampling=sampling, max_new_tokens=16)
            assert text == write((model, params), sampling=sampling, max_new_tokens=16)[0]
            assert out.stats.accepted.sum() > 0
            # A dynamic tree keeps the likeliest paths, of which the greedy one need not be.
            if name == "static" and seed == 1 and not np.any(sampling.temperature):
                np.testing.assert_array_equal(out.stats.rounds, 16 // (DEPTH + 1))
            if seed == 9:
                assert out.stats.recovered.sum() > 0
