"""What the core tests share: a few toys, drafters and one call of `generate` with always the same shapes.

Compiling is most of what these tests cost, so they agree on 8 rows, prompts of at most 16 tokens and 16 new ones.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from toy_heads import coarse, medusa_heads, trigram_head

import specjax
from specjax import draft, testing, verify
from specjax._src.types import Attend

ROWS, BUDGET, V = 8, 16, 8
PROMPTS = [[1], [3, 4], [5, 1, 5, 1, 5], [2, 2, 2, 2], [7, 6, 5, 4, 3, 2, 1, 0], [0], [6, 1, 2, 6, 1, 2, 6], [4] * 16]

TARGET = testing.random_trigram(0, V, 2.0)
GOOD = testing.blend(TARGET, testing.random_trigram(1, V, 2.0), 0.3)
BAD = testing.random_trigram(2, V, 2.0)
"""A draft that knows nothing of the target."""

K, PATHS = 3, draft.full_paths(2, 2, 1)
TREE = draft.model_tree(TARGET[0], PATHS, siblings="hybrid")
NGRAM, MODEL = draft.ngram(K), draft.from_model(TARGET[0], K)
HEAD = trigram_head(V)
DRAFTERS = {
    "tree": TREE,
    "independent": draft.model_tree(TARGET[0], PATHS, siblings="independent"),
    "chosen": draft.model_tree(TARGET[0], [(0,), (1,), (0, 0), (1, 0), (0, 0, 0)], siblings="chosen"),
    "dynamic": draft.dynamic_model_tree(TARGET[0], 10, K, 3, drawn=3),
    "eagle": draft.eagle(HEAD, PATHS),
    "eagle-chain": draft.eagle(HEAD, K),
    "eagle2": draft.eagle2(HEAD, 7, K, 3, drawn=2),
    "medusa": draft.medusa(medusa_heads(V, K), PATHS),
    "self": draft.self_model(coarse(TARGET[0]), K),
    "fallback": draft.fallback(NGRAM, MODEL),
    "fallback-tree": draft.fallback(NGRAM, draft.eagle(HEAD, PATHS)),
    "union": draft.union(NGRAM, MODEL),
    "union-tree": draft.union(NGRAM, draft.eagle2(HEAD, 7, K, 3, drawn=2)),
}
"""Drafters of trees, heads, the target's own parts, and combinations. A row here is all that the battery in
`test_drafters.py` needs: each is judged by `match`, and by what `auto` takes."""

PAIRS = {
    "plain": (None, None),
    "ngram-match": (NGRAM, None),
    "ngram-block": (NGRAM, verify.block()),
    "ngram-rejection": (NGRAM, verify.rejection()),
    "model-match": (MODEL, verify.match()),
    "model-block": (MODEL, None),
    "model-rejection": (MODEL, verify.rejection()),
    "tree-match": (TREE, verify.match()),
    "tree-hybrid": (TREE, verify.hybrid()),
    "tree-traversal": (TREE, verify.traversal()),
    "tree-replaced": (draft.model_tree(TARGET[0], PATHS, siblings="without_replacement"), verify.without_replacement()),
    "grown-match": (draft.dynamic_model_tree(TARGET[0], 10, K, 3), None),
    "grown-hybrid": (draft.dynamic_model_tree(TARGET[0], 10, K, 3, drawn=3), verify.hybrid()),
}
"""Drafter and verifier; None chooses."""
SPECULATIVE = [name for name in PAIRS if name != "plain"]
TREES = [name for name in PAIRS if name.startswith(("tree", "grown"))]
MATCHED = {f"{name}-match": (drafter, verify.match()) for name, drafter in DRAFTERS.items()}
DRAWN = {f"{name}-auto": (drafter, None) for name, drafter in DRAFTERS.items() if not drafter.one_hot}
PAIRS = MATCHED | DRAWN | PAIRS


def generate(pair="plain", prompts=PROMPTS, target=TARGET, draft_params=GOOD[1], **arguments):
    """`specjax.generate` on the toys, checked for everything that must hold of every generation."""
    drafter, verifier = PAIRS[pair] if isinstance(pair, str) else pair
    arguments.setdefault("max_new_tokens", BUDGET)
    own = drafter is not None and drafter.needs_params and not drafter.own_target
    params = draft_params if own else None
    out = specjax.generate(*target, prompts, drafter=drafter, verifier=verifier, draft_params=params, **arguments)
    check(out, 1 if drafter is None else drafter.shape.branching)
    return jax.tree.map(np.asarray, out)


def check(out, branching=1):
    """Holds in every scenario: the counters add up, nothing stands past the end, the shapes are those documented.

    `branching`: most children of a node; a chain counts its tokens and the rounds of each depth alike.
    """
    batch, budget = out.tokens.shape
    stats = out.stats
    names = ("rounds", "drafted", "accepted", "recovered", "bonus")
    rounds, drafted, accepted, recovered, bonus = (np.asarray(getattr(stats, name)) for name in names)
    lengths, tokens = np.asarray(out.lengths), np.asarray(out.tokens)
    np.testing.assert_array_equal(accepted + recovered + bonus, lengths)
    past = np.arange(budget) >= lengths[:, None]
    assert np.all(tokens[past] == 0) and np.all((tokens >= 0) & (tokens < 2**20))
    assert np.all(accepted <= drafted) and np.all(lengths <= budget)
    assert np.all(np.isin(out.finish_reason, [0, 1, 2, 3, 4]))
    assert stats.drafted_per_round.shape == stats.accepted_per_round.shape == (batch, budget)
    drafted_by_round, accepted_by_round = np.asarray(stats.drafted_per_round), np.asarray(stats.accepted_per_round)
    np.testing.assert_array_equal(drafted_by_round.sum(1), drafted)
    np.testing.assert_array_equal(accepted_by_round.sum(1), accepted)
    assert np.all(accepted_by_round <= drafted_by_round)
    assert np.all(drafted_by_round[np.arange(budget) >= rounds[:, None]] == 0)
    by_position = np.asarray(stats.accepted_per_position)
    np.testing.assert_array_equal(by_position.sum(1), accepted)
    proposed, reached = np.asarray(stats.drafted_per_position), np.asarray(stats.reached_per_position)
    assert np.all(proposed.sum(1) <= drafted) and (branching > 1 or np.all(proposed.sum(1) == drafted))
    assert np.all(by_position <= reached) and np.all(reached <= proposed) and np.all(proposed <= rounds[:, None])
    assert np.all(np.diff(by_position, axis=1) <= 0), "a later position is never kept more often than an earlier one"
    mean = np.where(rounds > 0, lengths / np.maximum(rounds, 1), 0)
    np.testing.assert_allclose(stats.mean_accepted_length, mean, rtol=1e-6)


def texts(out):
    """The generated tokens as lists."""
    return [row[:length].tolist() for row, length in zip(np.asarray(out.tokens), np.asarray(out.lengths), strict=True)]


def assert_same_text(one, other, rows=slice(None)):
    np.testing.assert_array_equal(np.asarray(one.tokens)[rows], np.asarray(other.tokens)[rows])
    np.testing.assert_array_equal(np.asarray(one.lengths)[rows], np.asarray(other.lengths)[rows])
    np.testing.assert_array_equal(np.asarray(one.finish_reason)[rows], np.asarray(other.finish_reason)[rows])


def plain_greedy(target, prompts, new_tokens=BUDGET):
    """Greedy text without a cache: the whole sequence through the model for every token, in one fixed shape."""
    model, params = target
    width = max(map(len, prompts)) + new_tokens
    tokens = np.zeros((len(prompts), width), np.int32)
    lengths = np.array([len(prompt) for prompt in prompts])
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = prompt
    score = _scorer(model, len(prompts), width)
    for _ in range(new_tokens):
        logits = np.asarray(score(params, jnp.asarray(tokens), jnp.asarray(lengths, jnp.int32)))
        tokens[np.arange(len(prompts)), lengths] = np.argmax(logits, axis=-1)
        lengths = lengths + 1
    return [row[length - new_tokens : length].tolist() for row, length in zip(tokens, lengths, strict=True)]


@functools.cache
def _scorer(model, batch, width):
    def score(params, tokens, lengths):
        place = jnp.broadcast_to(jnp.arange(width), (batch, width))
        attend = Attend(jnp.zeros(batch, jnp.int32), place, place < lengths[:, None])
        logits = model.apply(params, tokens, model.init_cache(batch, width), attend).logits
        return logits[jnp.arange(batch), lengths - 1]

    return jax.jit(score)


def script_with(eos_at, budget=BUDGET, first=0, eos=7):
    """A script for the prompt `[0]` that counts 1, 2, 3 .. 6 over and over, with `eos` as generated token `eos_at`."""
    tokens = [first] + [1 + i % 6 for i in range(budget + 4)]
    if eos_at is not None:
        tokens[eos_at] = eos
    return testing.script(tokens, V)
