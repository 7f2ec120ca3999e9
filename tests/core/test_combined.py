"""Two drafters in one: which of them a row hears, what a union of trees is, whose parameters are whose."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scenarios import (
    BAD,
    BUDGET,
    DRAFTERS,
    GOOD,
    HEAD,
    MODEL,
    NGRAM,
    PATHS,
    PROMPTS,
    ROWS,
    TARGET,
    K,
    V,
    assert_same_text,
    generate,
)

import specjax
from specjax import Params, Sampling, TokenTree, draft, verify
from specjax._src import decode
from specjax._src.draft.union import merge
from specjax._src.noise import Noise
from specjax._src.tree import Shape

APART = draft.model_tree(TARGET[0], PATHS, siblings="without_replacement")
SAMPLED = Sampling(temperature=np.array([1.0, 0.0] * 4), seed=np.arange(ROWS))


def random_tree(random, nodes, drawn):
    """A tree of random topology and few tokens, siblings that are chosen all different; some nodes not there."""
    parents = [-1, *(int(random.integers(0, node)) for node in range(1, nodes))]
    sampled = [bool(node and random.random() < drawn) for node in range(nodes)]
    tokens, valid = [0], [True]
    for node in range(1, nodes):
        taken = {tokens[other] for other in range(1, node) if parents[other] == parents[node] and not sampled[other]}
        tokens.append(int(random.choice(sorted(set(range(6)) - taken))))
        valid.append(valid[parents[node]] and random.random() < 0.9)
    return parents, tokens, valid, sampled


def stacked(trees):
    parents, tokens, valid, sampled = (jnp.asarray(np.array(part)) for part in zip(*trees, strict=True))
    nodes = tokens.shape[1]
    laws = jax.nn.log_softmax(jax.random.normal(jax.random.key(0), (*tokens.shape, 6)))
    return TokenTree(jnp.where(valid, tokens, 0), parents, valid, Shape(nodes, nodes - 1, nodes), laws, sampled)


def line(parents, tokens, node):
    return () if node == 0 else (*line(parents, tokens, parents[node]), int(tokens[node]))


def above_are_chosen(parents, sampled, node):
    return node == 0 or (not sampled[node] and above_are_chosen(parents, sampled, parents[node]))


def test_union_of_random_trees():
    """The chosen texts of both, each once; the drawn nodes as they were; equal siblings merged, drawn ones never."""
    random = np.random.default_rng(0)
    firsts, seconds = ([random_tree(random, nodes, drawn) for _ in range(60)] for nodes, drawn in ((5, 0.0), (7, 0.3)))
    one = replace(stacked(firsts), draft_logits=None, sampled=None)
    other = stacked(seconds)
    both = jax.jit(merge, static_argnums=(2, 3))(one, other, Shape(11, 6, 11), 6)
    merged = 0
    for row in range(60):
        parents, tokens, valid, sampled = (np.asarray(part[row]) for part in (
            both.parents, both.tokens, both.valid, both.drawn))
        np.testing.assert_array_equal(tokens[:7], other.tokens[row])
        np.testing.assert_array_equal(valid[:7], other.valid[row])
        assert all(valid[parents[node]] and parents[node] < node for node in range(1, 11) if valid[node])
        texts = [line(parents, tokens, node) for node in range(11)
                 if valid[node] and above_are_chosen(parents, sampled, node)]
        assert len(set(texts)) == len(texts), "an equal sibling was not merged"
        want = set()
        for tree, (above, _, there, drawn) in ((one, firsts[row]), (other, seconds[row])):
            want |= {line(above, tree.tokens[row], node) for node in range(len(above))
                     if there[node] and above_are_chosen(above, drawn, node)}
        assert set(texts) == want
        merged += int(one.valid[row].sum() + other.valid[row].sum() - 1 > valid.sum())
        np.testing.assert_array_equal(both.draft_logits[row, :7], other.draft_logits[row])
        assert np.all(np.isneginf(both.draft_logits[row, 7:])) and not np.any(sampled[7:])
    assert 20 < merged < 60
    moved = replace(other, tokens=jnp.where(other.drawn & other.valid, (other.tokens + 1) % 6, other.tokens))
    again = jax.jit(merge, static_argnums=(2, 3))(one, moved, Shape(11, 6, 11), 6)
    np.testing.assert_array_equal(again.parents, both.parents)
    np.testing.assert_array_equal(again.valid, both.valid)


@functools.cache
def opened(drafter, params):
    decoder = specjax.speculative(TARGET[0], drafter)
    weights = {"good": GOOD[1], "pair": (GOOD[1], BAD[1])}[params]
    both = Params(TARGET[1], weights)
    state = decoder.init(both, PROMPTS, max_new_tokens=9, sampling=SAMPLED)
    return decoder, both, jax.jit(decoder.step)(both, state)[0]


def proposed(drafter, params="good", state=None, rows=None):
    """What a drafter proposes in the second round of `PROMPTS`, and its state behind it."""
    decoder, both, first = opened(drafter, params)
    state = first if state is None else state

    @jax.jit
    def propose(state):
        context = decode._context(decoder.rules, both, state)
        noise = Noise(state.key, state.length, decoder.rules.verifier.shared_noise)
        return drafter.propose(both.draft, noise, state.draft, context)

    return propose(state), state


def test_fallback_takes_the_first_where_it_has_something():
    """Row by row; the numbers of the second are those it would draw alone."""
    tree_of = draft.fallback(NGRAM, DRAFTERS["eagle"])
    (tree, _), state = proposed(tree_of)
    context = decode._context(opened(tree_of, "good")[0].rules, Params(TARGET[1], GOOD[1]), state)
    has = np.asarray(NGRAM.available(state.draft[0], context)) > 0
    drafts = np.asarray(state.drafts)
    assert 0 < has.sum() < ROWS
    chain, _ = NGRAM.propose(None, None, state.draft[0], replace(context, drafts=jnp.minimum(state.drafts, K)))
    eagle, _ = DRAFTERS["eagle"].propose(GOOD[1], Noise(state.key, state.length, False), state.draft[1], context)
    for row in range(ROWS):
        want = chain if has[row] else eagle
        nodes = want.tokens.shape[1]
        room = tree.tokens.shape[1] - nodes
        assert tree.valid[row].tolist() == want.valid[row].tolist() + [False] * room
        assert tree.tokens[row].tolist() == want.tokens[row].tolist() + [0] * room
        there = np.asarray(want.valid[row])
        np.testing.assert_array_equal(tree.parents[row, :nodes][there], want.parents[row][there])
        assert not has[row] or not np.any(tree.drawn[row])
        assert has[row] or tree.drawn[row, : nodes].tolist() == want.drawn[row].tolist()
    assert np.all(drafts <= K)


def test_fallback_leaves_the_second_alone_where_nobody_needs_it():
    """A round in which every live row has a match costs no pass of the draft model, whose cache stays as it is."""
    drafter = draft.fallback(NGRAM, MODEL)
    decoder = specjax.speculative(TARGET[0], drafter)
    both = Params(TARGET[1], GOOD[1])
    for prompts, touched in (([[1, 2, 1, 2, 1]] * ROWS, False), ([[1, 2, 1, 2, 1]] * 7 + [[1, 2, 3]], True)):
        state = decoder.init(both, prompts, max_new_tokens=9, sampling=SAMPLED)
        context = decode._context(decoder.rules, both, state)
        _, (_, after) = drafter.propose(both.draft, Noise(state.key, state.length, False), state.draft, context)
        assert np.any(after.length > 0) == touched


def test_parameters_of_both():
    """A pair where both have some, in the order of the drafters; and each hears its own."""
    first, second = DRAFTERS["chosen"], MODEL
    drafter = draft.union(first, second)
    (tree, _), state = proposed(drafter, "pair")
    decoder, both, _ = opened(drafter, "pair")
    context = decode._context(decoder.rules, both, state)
    noise = Noise(state.key, state.length, False)
    alone, _ = second.propose(BAD[1], noise, state.draft[1], context)
    np.testing.assert_array_equal(tree.tokens[:, : K + 1], alone.tokens)
    chosen, _ = first.propose(GOOD[1], noise, state.draft[0], context)
    fresh = np.asarray(tree.valid[:, K + 1 :])
    np.testing.assert_array_equal(tree.tokens[:, K + 1 :][fresh], chosen.tokens[:, 1:][fresh])
    want = generate()
    for verifier in (None, verify.match()):
        out = generate((drafter, verifier), draft_params=(GOOD[1], BAD[1]))
        assert_same_text(out, want)
    for bad in (GOOD[1], (GOOD[1],)):
        with pytest.raises(ValueError, match=r"both have parameters, so draft_params must be a pair"):
            generate((drafter, None), draft_params=bad)


@pytest.mark.parametrize("combine", [draft.union, draft.fallback])
def test_drawn_tokens_without_their_law(combine):
    """As chosen ones they would pass, and bias the text."""

    def propose(params, noise, state, context):
        tree, state = MODEL.propose(params, noise, state, context)
        return replace(tree, draft_logits=None), state

    silent = MODEL._replace(name="silent", propose=propose, narrow=None)
    with pytest.raises(ValueError, match="silent draws its tokens and gives no draft_logits"):
        generate((combine(NGRAM, silent), None))


@pytest.mark.parametrize(("bad", "error", "words"), [
    (lambda: draft.union(NGRAM, "eagle"), TypeError, "second argument of union must be a drafter, got 'eagle'"),
    (lambda: draft.fallback(draft.ngram, MODEL), TypeError, "first argument of fallback must be a drafter"),
    (lambda: draft.union(MODEL, NGRAM), ValueError, "must choose its tokens, but from_model draws them"),
    (lambda: draft.fallback(draft.eagle(HEAD, PATHS), NGRAM), ValueError, "must choose its tokens, but eagle draws"),
    (lambda: draft.fallback(DRAFTERS["chosen"], NGRAM), ValueError, "never reaches its second drafter"),
    (lambda: draft.union(NGRAM, DRAFTERS["self"]), ValueError, "writes the target's cache: use it alone"),
    (lambda: draft.fallback(DRAFTERS["self"], NGRAM), ValueError, "writes the target's cache: use it alone"),
])
def test_refusals(bad, error, words):
    with pytest.raises(error, match=words):
        bad()


@pytest.mark.parametrize(("drafter", "verifier", "words"), [
    (DRAFTERS["tree"], verify.block(), r"block\(\) judges one path, but drafter model_tree .* verify.traversal\(\)"),
    (APART, verify.specinfer(), r"but those of drafter model_tree are without_replacement"),
    (APART, verify.hybrid(), r"are without_replacement: leave verifier out for verify.traversal"),
    (DRAFTERS["dynamic"], verify.traversal(), r"topology of the tree when it is compiled, but drafter model_tree gr"),
    (draft.union(NGRAM, MODEL), verify.rejection(), r"judges one path, but drafter union of ngram and from_model"),
])
def test_verifiers_that_do_not_fit(drafter, verifier, words):
    with pytest.raises(ValueError, match=words):
        specjax.speculative(TARGET[0], drafter, verifier)


def test_what_auto_takes():
    wanted = {"tree": "traversal", "eagle": "traversal", "independent": "specinfer", "chosen": "match",
              "dynamic": "hybrid", "eagle-chain": "block", "medusa": "match", "self": "block", "fallback": "block",
              "fallback-tree": "without_replacement", "union": "hybrid", "union-tree": "hybrid"}
    assert {name: specjax.speculative(TARGET[0], DRAFTERS[name]).rules.verifier.name for name in wanted} == wanted
    assert V > 5 and draft.union(NGRAM, MODEL) is draft.union(first=NGRAM, second=MODEL)


@pytest.mark.parametrize("combine", [draft.fallback, draft.union])
def test_the_second_stays_in_step_with_the_text(combine):
    """A draft model that was asked beside a look-up must not take its own tokens for those that were kept."""
    drafter = combine(NGRAM, MODEL)
    decoder, both = specjax.speculative(TARGET[0], drafter), Params(TARGET[1], BAD[1])
    state = decoder.init(both, PROMPTS, max_new_tokens=BUDGET)
    step, read = jax.jit(decoder.step), 0
    for _ in range(5):
        state, _ = step(both, state)
        second = state.draft[1]
        good = np.arange(state.tokens.shape[1]) < np.asarray(second.length)[:, None]
        held = np.asarray(second.cache)[:, : good.shape[1]]
        np.testing.assert_array_equal(np.where(good, held, 0), np.where(good, state.tokens, 0))
        read += good.sum()
    assert read > 0
