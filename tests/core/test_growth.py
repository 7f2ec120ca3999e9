"""Grown trees against slow Python on the same random numbers: every kind of siblings, each node behind its own path."""

import functools
from dataclasses import replace

import growth_reference as slow
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import specjax
from specjax import Constraint, Sampling, draft, testing
from specjax._src import sampling as samplings
from specjax._src.noise import DRAFT, Noise
from specjax._src.sampling import History
from specjax._src.tree import full_paths, paths_shape
from specjax._src.types import Context

V, ROWS, ROOM = 6, 48, 48
SHAPES = {
    "ragged": [(0,), (1,), (0, 0), (1, 0), (1, 1), (0, 0, 0)],
    "full": full_paths(3, 2),
    "skipping": [(1,), (3,), (3, 2), (3, 4), (3, 4, 0)],
    "one level": full_paths(3),
}
KINDS = ("hybrid", "without_replacement", "independent", "chosen")
MODEL, PARAMS = testing.random_trigram(5, V, 1.5)
BROKEN = (4, 2)
"""The draft says nan behind these two tokens."""

ODD = Constraint(
    init=lambda batch: jnp.zeros((batch, 2), jnp.int32),
    advance=lambda state, token: jnp.stack([token, state[1] + (token == 3)]),
    mask=lambda state: (jnp.arange(V) != state[0]) & ((jnp.arange(V) != 3) | (state[1] < 1)),
    done=lambda state: jnp.bool_(False))
"""No token twice in a row, and token 3 at most once: a node's mask depends on the whole of its path."""


def odd(output):
    state = output[-1] if output else 0
    return np.array([token != state and (token != 3 or output.count(3) < 1) for token in range(V)])


@functools.cache
def batch(depth, constrained):
    """Texts, settings by row, k of each row from 0 to `depth`, and the context of all rows."""
    random = np.random.default_rng(8)
    texts = [random.integers(0, V, random.integers(3, 9)).tolist() for _ in range(ROWS)]
    starts = np.array([random.integers(1, len(text)) for text in texts])
    index = np.arange(ROWS)
    settings = Sampling(
        temperature=np.array([1.0, 0.0, 0.6, 1.5])[index % 4], top_k=np.where(index % 8 == 2, 2, 0),
        min_p=np.where(index % 8 == 4, 0.2, 0.0), repetition_penalty=np.where(index % 3 == 0, 1.4, 1.0),
        frequency_penalty=np.where(index % 5 == 0, 0.8, 0.0), presence_penalty=np.where(index % 7 == 0, 0.5, 0.0),
        min_new_tokens=np.where(index % 6 == 0, 4, 0))
    drafts = np.where(index % 5 == 4, index // 5 % (depth + 1), depth)
    lengths = np.array([len(text) for text in texts])
    tokens = np.zeros((ROWS, ROOM), np.int32)
    for row, text in enumerate(texts):
        tokens[row, : len(text)] = text
    rule_state = ODD.init(ROWS)
    for row, text in enumerate(texts):
        for token in text[starts[row] :]:
            rule_state = rule_state.at[row].set(ODD.advance(rule_state[row], token))
    history = History(jnp.asarray(tokens), jnp.asarray(lengths, jnp.int32), jnp.asarray(starts, jnp.int32),
                      jnp.full((ROWS, 1), 1, jnp.int32), samplings.by_row(settings, ROWS))
    context = Context(history.tokens, history.length, jnp.asarray(index != 7), jnp.asarray(drafts * (index != 7)),
                      history, rule_state if constrained else None, {}, None, ODD if constrained else None, V)
    return texts, starts, settings, context


def params(broken):
    logits = np.array(PARAMS["logits"])
    if broken:
        logits[BROKEN[0] + 1, BROKEN[1]] = np.nan
    return {"logits": jnp.asarray(logits)}


@functools.cache
def proposer(drafter):
    def propose(weights, noise, context):
        state = drafter.init(weights, ROWS, ROOM)
        return drafter.propose(weights, noise, state, context)[0]

    return jax.jit(propose)


def rows_of(depth, constrained, noise, weights):
    """What `growth_reference` needs to know of each live row; None for the others."""
    texts, starts, settings, context = batch(depth, constrained)
    uniforms = np.asarray(jax.vmap(lambda node: noise._uniforms(DRAFT, node), out_axes=1)(jnp.arange(16)), np.float64)
    gumbels = np.stack([np.asarray(noise.gumbel(at, V)) for at in range(depth + 1)], 1) if noise.shared else None
    logits = np.asarray(weights["logits"])
    for row in range(ROWS):
        if not context.live[row]:
            yield None
            continue
        one = Sampling(**{name: value if value is None or np.ndim(value) == 0 else value[row]
                          for name, value in vars(settings).items()})
        yield slow.Row(
            texts[row][: starts[row]], texts[row][starts[row] :], one, int(context.drafts[row]), (1,),
            lambda text: logits[text[-2] + 1, text[-1]], odd if constrained else None,
            lambda node, row=row: tuple(uniforms[row, node - 1]),
            None if gumbels is None else lambda at, row=row: gumbels[row, at])


def noise_of(shared, length, prepared):
    noise = Noise(jax.vmap(jax.random.key)(jnp.arange(ROWS) + 11), length, shared)
    return noise.prepared(prepared, jnp.bool_(True))


@pytest.mark.parametrize(("name", "kind", "shared", "constrained"), [
    *(("ragged", kind, False, kind == "hybrid") for kind in KINDS), ("ragged", "hybrid", True, True),
    *(("full", kind, False, False) for kind in KINDS[:3]), ("full", "independent", True, False),
    ("skipping", "hybrid", False, False), ("skipping", "hybrid", True, False), ("one level", "hybrid", False, False)])
def test_static_trees(name, kind, shared, constrained):
    shape = paths_shape(SHAPES[name])
    context = batch(shape.depth, constrained)[3]
    noise = noise_of(shared, context.length, shape.num_nodes)
    tree = proposer(draft.model_tree(MODEL, SHAPES[name], siblings=kind))(params(True), noise, context)
    seen = np.zeros(3, int)
    for row, one in enumerate(rows_of(shape.depth, constrained, noise, params(True))):
        if one is None:
            assert not np.any(tree.valid[row]) and not np.any(tree.tokens[row])
            continue
        want = slow.static_tree(one, kind, shape.parents, shape.ranks)
        assert tree.valid[row].tolist() == want.valid, row
        assert tree.tokens[row].tolist() == want.tokens, row
        seen += [sum(want.valid) > 1, not all(want.valid), one.sampling.temperature > 0]
        for node, law in want.laws.items():
            if law is not None:
                np.testing.assert_allclose(np.exp(tree.draft_logits[row, node]), law, atol=2e-6)
    assert tree.parents.tolist() == [list(shape.parents)] * ROWS
    assert np.all(seen > 5), "the cases are too alike"
    assert (tree.draft_logits is None) == (shared or kind == "chosen")
    if kind == "hybrid" and not shared:
        last = [node > 0 and shape.parents[node] not in shape.parents[node + 1 :] for node in range(shape.num_nodes)]
        assert tree.sampled.tolist() == [last] * ROWS


def test_a_batch_of_greedy_rows_gets_the_likeliest():
    """Alone, where nothing is drawn, as beside sampled rows: the same tree, whatever the kind."""
    for name, kind in (("ragged", "independent"), ("full", "hybrid")):
        shape = paths_shape(SHAPES[name])
        context = batch(shape.depth, False)[3]
        cold = replace(context.history.sampling, temperature=jnp.zeros(ROWS))
        greedy = replace(context, history=replace(context.history, sampling=cold))
        grow = proposer(draft.model_tree(MODEL, SHAPES[name], siblings=kind))
        noise = noise_of(False, context.length, shape.num_nodes)
        alone, mixed = grow(params(True), noise, greedy), grow(params(True), noise, context)
        rows = np.asarray(context.history.sampling.temperature) == 0
        np.testing.assert_array_equal(alone.tokens[rows], mixed.tokens[rows])
        np.testing.assert_array_equal(alone.valid[rows], mixed.valid[rows])
        chosen = proposer(draft.model_tree(MODEL, SHAPES[name], siblings="chosen"))(params(True), noise, context)
        np.testing.assert_array_equal(alone.tokens[rows], chosen.tokens[rows])


def lines(tree, row):
    """The tokens on the way to each valid node of a row, and the node."""
    parents, tokens, valid = (np.asarray(values[row]) for values in (tree.parents, tree.tokens, tree.valid))
    paths = {0: ()}
    for node in range(1, len(tokens)):
        if valid[node]:
            assert parents[node] in paths, "the parent of a node that is there stands before it"
            paths[node] = (*paths[int(parents[node])], int(tokens[node]))
    return paths


SIZES = {"small": (9, 3, 3, 3), "narrow": (6, 4, 2, 2), "flat": (4, 1, 3, 1), "chosen": (10, 3, 3, 0)}


@pytest.mark.parametrize(("name", "shared", "constrained"), [
    *((name, False, False) for name in SIZES), ("small", True, False), ("small", False, True)])
def test_dynamic_trees(name, shared, constrained):
    nodes, depth, width, drawn = SIZES[name]
    context = batch(depth, constrained)[3]
    noise = noise_of(shared, context.length, nodes)
    drafter = draft.dynamic_model_tree(MODEL, nodes, depth, width, drawn=drawn)
    grow = proposer(drafter)
    tree = grow(params(True), noise, context)
    count, kinds = 0, set()
    for row, one in enumerate(rows_of(depth, constrained, noise, params(True))):
        if one is None:
            assert not np.any(tree.valid[row])
            continue
        want, paths = slow.dynamic_tree(one, *SIZES[name]), lines(tree, row)
        was_drawn = np.asarray(tree.drawn[row]) if tree.draft_logits is not None else np.zeros(nodes, bool)
        assert {path for node, path in paths.items() if node and not was_drawn[node]} == want.chosen, row
        own = {path[:-1]: path[-1] for node, path in paths.items() if was_drawn[node]}
        assert own == {path: token for path, (token, _) in want.drawn.items()}, row
        for node, path in paths.items():
            if path in want.drawn and not was_drawn[node]:
                np.testing.assert_allclose(np.exp(tree.draft_logits[row, node]), want.drawn[path][1], atol=2e-6)
        assert all(len(path) <= one.drafts for path in paths.values())
        count += len(own)
        kinds.add((len(want.chosen), len(own), one.drafts))
    assert len(kinds) > 2 and (count > 20) == (drawn > 0 and not shared)
    assert drafter.one_hot == (drawn == 0)
    if count:  # no drawn token is looked at: with other numbers the same nodes stand in the same places
        other = grow(params(True), noise_of(shared, context.length + 1, nodes), context)
        np.testing.assert_array_equal(tree.parents, other.parents)
        np.testing.assert_array_equal(tree.valid, other.valid)
        np.testing.assert_array_equal(tree.draft_logits, other.draft_logits)
        np.testing.assert_array_equal(np.where(tree.drawn, 0, tree.tokens), np.where(other.drawn, 0, other.tokens))
        assert np.any(tree.tokens != other.tokens)


@pytest.mark.parametrize(("bad", "words"), [
    (lambda: draft.model_tree(MODEL, [(0,), (1,)], siblings="twins"), "siblings='twins'; they are chosen, one"),
    (lambda: draft.model_tree(MODEL, [(0,), (1,)], siblings="one"), "up to 2 children"),
    (lambda: draft.model_tree(MODEL, [(1, 0)]), "hangs in the air"),
    (lambda: draft.model_tree(MODEL, 0), "at least 1"),
    (lambda: draft.dynamic_model_tree(MODEL, 1, 2, 2), "at least 2"),
    (lambda: draft.dynamic_model_tree(MODEL, 5, 0, 2), "at least 1"),
    (lambda: draft.dynamic_model_tree(MODEL, 5, 2, 2.5), "whole number"),
    (lambda: draft.dynamic_model_tree(MODEL, 8, 2, 2), "looks at 6 nodes .* fewer than the 7"),
    (lambda: draft.dynamic_model_tree(MODEL, 6, 2, 3, drawn=5), "below 4 nodes at most, drawn=5"),
    (lambda: draft.dynamic_model_tree(MODEL, 6, 2, 3, drawn=-1), "at least 0"),
])
def test_refusals(bad, words):
    with pytest.raises(ValueError, match=words):
        bad()


@pytest.mark.parametrize(("drafter", "words"), [
    (draft.model_tree(MODEL, full_paths(V + 1)), f"{V + 1} likeliest tokens does not fit a target of {V}"),
    (draft.dynamic_model_tree(MODEL, 5, 2, V + 1), f"width {V + 1} .* of {V} tokens"),
])
def test_more_children_than_tokens(drafter, words):
    context = batch(2, False)[3]
    with pytest.raises(ValueError, match=words):
        proposer(drafter)(params(False), noise_of(False, context.length, 9), context)


def test_no_deeper_than_its_nodes_reach():
    """Windows of a round are as wide as the tree is deep, and buffers have room for its nodes."""
    deep = draft.dynamic_model_tree(MODEL, 3, 8, 2)
    assert deep.shape.depth == 2 and deep is draft.dynamic_model_tree(MODEL, 3, 2, 2)
    wrong = deep._replace(shape=deep.shape._replace(depth=3))
    with pytest.raises(ValueError, match="3 nodes, the root included, is 3 deep; it can be 2 deep"):
        specjax.speculative(MODEL, wrong)
    arguments = {"max_new_tokens": 12, "draft_params": PARAMS, "logprobs": True}
    plain = specjax.generate(MODEL, PARAMS, [[1, 2, 3]], max_new_tokens=12, logprobs=True)
    for nodes, depth in ((3, 8), (8, 40)):
        made = specjax.generate(
            MODEL, PARAMS, [[1, 2, 3]], drafter=draft.dynamic_model_tree(MODEL, nodes, depth, 2), **arguments)
        np.testing.assert_array_equal(made.tokens, plain.tokens)
        np.testing.assert_allclose(made.logprobs, plain.logprobs, atol=1e-5)


def test_equal_factories_give_one_object():
    same = draft.model_tree(MODEL, tree=((0,), (1,)), siblings="without_replacement")
    assert draft.model_tree(MODEL, [(1,), (0,)]) is same
    assert draft.dynamic_model_tree(MODEL, 5, 2, 2) is draft.dynamic_model_tree(MODEL, 5, width=2, depth=2, drawn=0)
    assert draft.model_tree(MODEL, 3).siblings == "one" and draft.model_tree(MODEL, 3).shape.is_chain
