"""The law of whole generations: chi-square of the first four tokens over 200 000 sampled rows, across rounds.

Every case mixes prompts of different lengths, rows that draft fewer tokens than others, and greedy rows, which must be
exactly greedy. The exact law comes from the numpy reference.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scenarios import check
from toy_heads import coarse, trigram_head

import specjax
from specjax import Constraint, Sampling, draft, testing, verify
from specjax.testing import exact, reference, statistics

pytestmark = pytest.mark.slow

V, K, HORIZON, BUDGET = 3, 3, 4, 6
PROMPTS = [[1], [2, 0], [0, 1, 2, 0, 1, 2], [2, 2, 0]]
SAMPLED, GREEDY = 200_000, 10_000
ROWS = SAMPLED + GREEDY
TARGET = testing.random_trigram(0, V, 1.0)
DRAFT = testing.blend(TARGET, testing.random_trigram(1, V, 1.5), 0.6)
WORSE = testing.blend(TARGET, testing.random_trigram(1, V, 1.5), 0.8)
"""The draft of trees, which keep more."""

DRAFTERS = {"ngram": draft.ngram(K), "model": draft.from_model(TARGET[0], K)}
VERIFIERS = {"match": verify.match(), "rejection": verify.rejection(), "block": verify.block()}
NO_REPEATS = Constraint(
    init=lambda batch: jnp.full(batch, -1, jnp.int32),
    advance=lambda state, token: token,
    mask=lambda state: jnp.arange(V) != state,
    done=lambda state: jnp.bool_(False))
SETTINGS = {
    "plain": (Sampling(temperature=1.0), None),
    "top-p": (Sampling(temperature=0.9, top_p=0.8), None),
    "penalties": (Sampling(temperature=1.0, repetition_penalty=1.3, presence_penalty=0.3, frequency_penalty=0.4), None),
    "constraint": (Sampling(temperature=1.0), NO_REPEATS),
}
PATHS = draft.full_paths(2, 2, 1)
HYBRID = draft.model_tree(TARGET[0], PATHS, siblings="hybrid")
TREES = {
    "match": (draft.model_tree(TARGET[0], PATHS), verify.match()),
    "specinfer": (draft.model_tree(TARGET[0], PATHS, siblings="independent"), verify.specinfer()),
    "without_replacement": (
        draft.model_tree(TARGET[0], PATHS, siblings="without_replacement"), verify.without_replacement()),
    "replaced": (draft.model_tree(TARGET[0], PATHS, siblings="independent"), verify.without_replacement()),
    "hybrid": (HYBRID, verify.hybrid()),
    "traversal": (draft.model_tree(TARGET[0], PATHS, siblings="without_replacement"), verify.traversal()),
    "hybrid, traversal": (HYBRID, verify.traversal()),
    "grown": (draft.dynamic_model_tree(TARGET[0], 8, K, 2), verify.match()),
    "grown, hybrid": (draft.dynamic_model_tree(TARGET[0], 8, K, 2, drawn=3), verify.hybrid()),
    "union": (draft.union(draft.ngram(K), draft.from_model(TARGET[0], K)), verify.hybrid()),
    "fallback": (draft.fallback(draft.ngram(K), HYBRID), verify.hybrid()),
    "chains": (draft.fallback(draft.ngram(K), draft.from_model(TARGET[0], K)), verify.block()),
    "self": (draft.self_model(coarse(TARGET[0]), K), verify.block()),
    "head": (draft.union(draft.ngram(K), draft.eagle2(trigram_head(V), 8, K, 2, drawn=3)), verify.hybrid()),
}
"""Drafter and verifier: trees, a head, combinations, the target's own part."""
ON_TREES = [*((name, "plain") for name in TREES), ("hybrid, traversal", "constraint"), ("grown, hybrid", "penalties")]
TESTS = len(DRAFTERS) * len(VERIFIERS) * len(SETTINGS) + len(ON_TREES)


@functools.cache
def expected(name, index):
    """The exact law of the first four tokens after one prompt, and its greedy text."""
    sampling, rule = SETTINGS[name]
    logits, prompt = np.asarray(TARGET[1]["logits"]), PROMPTS[index]
    law = exact.target_text_law(
        exact.trigram_tables(logits, prompt, HORIZON), exact.Setting(sampling, prompt, constraint=rule))
    greedy, settings = [], Sampling(**{**vars(sampling), "temperature": 0.0})
    for _ in range(BUDGET):
        line = [-1, *prompt, *greedy]
        mask = None if rule is None else np.arange(V) != (greedy[-1] if greedy else -1)
        one = reference.target_law(logits[line[-2] + 1, line[-1]], settings, prompt, greedy, mask=mask)
        greedy.append(int(np.argmax(one)))
    return law, greedy


@functools.cache
def batch():
    """Prompts, lengths, which rows are greedy, and k of each row."""
    row = np.arange(ROWS)
    prompts = np.zeros((len(PROMPTS), max(map(len, PROMPTS))), np.int32)
    for index, prompt in enumerate(PROMPTS):
        prompts[index, : len(prompt)] = prompt
    lengths = np.array([len(prompt) for prompt in PROMPTS])
    greedy = row % (ROWS // GREEDY) == 0
    k = np.where(row % 3 == 0, 1 + row // 3 % 2, K)
    return prompts[row % len(PROMPTS)], lengths[row % len(PROMPTS)], greedy, k


def sample(drafter, verifier, sampling, rule=None, key=0, target=TARGET):
    prompts, lengths, greedy, k = batch()
    settings = Sampling(**{**vars(sampling), "temperature": np.where(greedy, 0.0, sampling.temperature)})
    own = drafter.needs_params and not drafter.own_target
    weights = (DRAFT if drafter.shape.branching <= 1 else WORSE)[1] if own else None
    return specjax.generate(
        *target, prompts, lengths=lengths, drafter=drafter, verifier=verifier, constraint=rule, sampling=settings,
        draft_params=weights, num_speculative_tokens=k, max_new_tokens=BUDGET, key=jax.random.key(key))


def judge(out, name, tests=TESTS):
    """The sampled rows of all prompts in one chi-square: the law of (prompt, four tokens)."""
    tokens, greedy = np.asarray(out.tokens), batch()[2]
    index = np.arange(ROWS) % len(PROMPTS)
    counts = [statistics.histogram(tokens[~greedy & (index == i), :HORIZON], V) for i in range(len(PROMPTS))]
    laws = [expected(name, i)[0] * np.sum(counts[i]) for i in range(len(PROMPTS))]
    p_value = statistics.chi_square(np.stack(counts), np.stack(laws))
    assert p_value * tests > statistics.LEVEL, f"not the target's law: p = {p_value:.3g} in each of {tests} tests"


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_whole_loop(drafter, verifier, name):
    whole_loop(DRAFTERS[drafter], VERIFIERS[verifier], name)


@pytest.mark.parametrize(("tree", "name"), ON_TREES)
def test_whole_loop_on_trees(tree, name):
    whole_loop(*TREES[tree], name)


def whole_loop(drafter, verifier, name):
    out = sample(drafter, verifier, *SETTINGS[name])
    check(out, drafter.shape.branching)
    tokens, greedy = np.asarray(out.tokens), batch()[2]
    assert np.sum(~greedy) >= 200_000
    crossing = np.asarray(out.stats.accepted_per_round)[:, 0] + 1 < HORIZON
    assert crossing.mean() >= 0.5, "too few rows need a second round for their first four tokens"
    assert np.mean(np.asarray(out.stats.accepted) > 0) > 0.2, "too little is drafted to prove anything"
    for index in range(len(PROMPTS)):
        rows = greedy & (np.arange(ROWS) % len(PROMPTS) == index)
        np.testing.assert_array_equal(tokens[rows], np.broadcast_to(expected(name, index)[1], (rows.sum(), BUDGET)))
    judge(out, name)


def test_power_of_the_whole_loop():
    """The same test of a target that differs by a total variation of .02 in four tokens fails, by far."""
    law, other = expected("plain", 2)[0], testing.random_trigram(7, V, 1.0)

    def distance(share):
        logits = testing.blend(TARGET, other, share)[1]["logits"]
        setting = exact.Setting(Sampling(temperature=1.0), PROMPTS[2])
        return exact.total_variation(law, exact.target_text_law(
            exact.trigram_tables(logits, PROMPTS[2], HORIZON), setting))

    shares = np.linspace(0.0, 0.1, 21)
    share = shares[int(np.argmin([abs(distance(share) - 0.02) for share in shares]))]
    assert distance(0.0) < 1e-12 and distance(share) == pytest.approx(0.02, abs=0.004)
    out = sample(DRAFTERS["model"], VERIFIERS["block"], Sampling(temperature=1.0),
                 target=testing.blend(TARGET, other, share))
    with pytest.raises(AssertionError, match="not the target's law"):
        judge(out, "plain")


def test_power_of_the_statistics():
    """As many draws from laws at a planted distance of .02 are refused, draws from the laws themselves are not."""
    generator = np.random.default_rng(0)
    law = np.stack([expected("plain", i)[0] for i in range(len(PROMPTS))]) / len(PROMPTS)
    planted = statistics.plant(law, 0.02)
    assert exact.total_variation(law, planted) == pytest.approx(0.02, abs=1e-9)
    right = [statistics.chi_square(generator.multinomial(SAMPLED, law.ravel()), law) for _ in range(40)]
    wrong = [statistics.chi_square(generator.multinomial(SAMPLED, planted.ravel()), law) for _ in range(40)]
    assert statistics.bonferroni(right) > 1e-3 and np.mean(np.array(right) > 0.5) > 0.2
    assert max(wrong) * TESTS < statistics.LEVEL
