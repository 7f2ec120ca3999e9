"""The sampling transforms against the numpy reference, their order, and their edges (bug log, part C)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from specjax import Sampling
from specjax._src import truncate
from specjax._src.sampling import History, adjust, by_row, chain_prefix, log_law, tree_prefix
from specjax._src.tree import TokenTree, paths_shape
from specjax.testing import reference

ROWS, V, LENGTH = 256, 12, 10
EOS = (3, 5)


@jax.jit
def _law(logits, history):
    nothing = chain_prefix(jnp.zeros((logits.shape[0], 0), jnp.int32), 0, logits.shape[1])
    return log_law(adjust(logits, history, nothing), history.sampling)


def law(logits, sampling, prompts=None, outputs=None, eos=EOS):
    """The library's law [B, V] of one token; one row of `logits` [B, V] each. Shapes are always the same."""
    logits = np.asarray(logits, np.float32)
    rows, vocab = logits.shape
    batch = max(rows, ROWS)
    prompts = [[0]] * rows if prompts is None else prompts
    outputs = [[]] * rows if outputs is None else outputs
    tokens, length, start = np.zeros((batch, LENGTH), np.int32), np.ones(batch, np.int32), np.ones(batch, np.int32)
    for row, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        line = [*prompt, *output]
        tokens[row, : len(line)], length[row], start[row] = line, len(line), len(prompt)
    padded = np.zeros((batch, vocab), np.float32)
    padded[:rows] = logits
    spread = Sampling(**{name: _pad(value, batch, rows) for name, value in vars(sampling).items()})
    history = History(jnp.asarray(tokens), jnp.asarray(length), jnp.asarray(start),
                      jnp.broadcast_to(jnp.asarray([*eos, -1, -1], jnp.int32)[:4], (batch, 4)), by_row(spread, batch))
    return np.exp(np.asarray(_law(jnp.asarray(padded)[:, None], history)))[:rows, 0]


def _pad(value, batch, rows):
    """[rows] to [batch] by repeating the last entry; scalars, vocabularies and None stay."""
    if value is None or np.ndim(value) != 1 or np.shape(value)[0] != rows or rows == V:
        return value
    return np.concatenate([value, np.repeat(value[-1:], batch - rows)])


def one(logits, **settings):
    return law([logits], Sampling(**{"temperature": 1.0, **settings}))[0]


def test_random_settings_equal_the_reference():
    """256 rows, each with all its settings random; prompts, outputs, EOS withheld or not."""
    random = np.random.default_rng(0)
    pick = lambda *choices: random.choice(choices, ROWS)  # noqa: E731
    sampling = Sampling(
        temperature=pick(0.0, 0.3, 1.0, 2.5), top_k=pick(0, 1, 3, 7, 50), top_p=pick(1.0, 0.9, 0.5, 0.0),
        min_p=pick(0.0, 0.05, 0.4), repetition_penalty=pick(1.0, 1.4, 0.7), presence_penalty=pick(0.0, 0.8, -0.5),
        frequency_penalty=pick(0.0, 0.5), min_new_tokens=pick(0, 2, 4))
    prompts = [random.integers(0, V, random.integers(1, 6)).tolist() for _ in range(ROWS)]
    outputs = [random.integers(0, V, random.integers(0, 5)).tolist() for _ in range(ROWS)]
    logits = random.normal(scale=2.0, size=(ROWS, V)).astype(np.float32)
    got = law(logits, sampling, prompts, outputs)
    for row in range(ROWS):
        settings = Sampling(**{name: None if value is None else value if np.ndim(value) == 0 else value[row]
                               for name, value in vars(sampling).items()})
        want = reference.target_law(logits[row], settings, prompts[row], outputs[row], EOS)
        np.testing.assert_allclose(got[row], want, atol=2e-6, err_msg=str(settings))


def test_bias_and_mask_by_row_and_for_all():
    random = np.random.default_rng(1)
    logits = random.normal(size=(ROWS, V))
    for shape in ((V,), (ROWS, V)):
        bias, allowed = random.normal(size=shape), random.random(shape) < 0.6
        allowed[..., 2] = True
        got = law(logits, Sampling(temperature=1.0, logit_bias=bias, allowed=allowed))
        for row in range(0, ROWS, 16):
            settings = Sampling(temperature=1.0, logit_bias=np.broadcast_to(bias, (ROWS, V))[row],
                                allowed=np.broadcast_to(allowed, (ROWS, V))[row])
            np.testing.assert_allclose(got[row], reference.target_law(logits[row], settings), atol=1e-6)
            assert np.all(got[row][~np.broadcast_to(allowed, (ROWS, V))[row]] == 0)


def test_order_temperature_before_truncation():
    """X2: T=4, top_p=.9, logits 4 .. -3: the hot law keeps 7 tokens; truncating first would keep 3."""
    logits = np.concatenate([np.arange(4, -4, -1.0), np.full(V - 8, -np.inf)])
    assert np.sum(one(logits, temperature=4.0, top_p=0.9) > 0) == 7


def test_order_penalties_before_temperature():
    """A penalty is a difference of logits: temperature divides it."""
    got = law([np.zeros(V)], Sampling(temperature=0.5, presence_penalty=1.0), outputs=[[4]])[0]
    assert got[0] / got[4] == pytest.approx(np.exp(2.0), rel=1e-5)


def test_order_bias_before_repetition_penalty():
    """The repetition penalty looks at the sign of the biased logit."""
    bias = np.zeros(V)
    bias[0] = -2.0
    got = law([np.ones(V)], Sampling(temperature=1.0, repetition_penalty=2.0, logit_bias=bias), prompts=[[0]])[0]
    assert got[1] / got[0] == pytest.approx(np.exp(1.0 + 2.0), rel=1e-5)


def test_order_top_k_top_p_min_p():
    """Each acts on what the one before left, renormalised: top-p .5 of the two best keeps one of [.4, .35, .25]."""
    logits = np.log(np.array([0.40, 0.35, 0.25] + [1e-9] * (V - 3)))
    np.testing.assert_allclose(one(logits, top_k=2, top_p=0.5)[:3], [1, 0, 0], atol=1e-6)
    np.testing.assert_allclose(one(logits, top_p=0.5)[:3], [0.4 / 0.75, 0.35 / 0.75, 0], atol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_C17_temperature_1e_6_is_greedy(dtype):
    logits = np.asarray(jnp.asarray(np.linspace(-50, 50, V)[::-1], dtype), np.float32)
    for temperature in (1e-6, 1e-20, 1e-38):
        np.testing.assert_array_equal(one(logits, temperature=temperature), np.eye(V)[0])


def test_tiny_temperature_with_masked_tokens():
    allowed = np.arange(V) > 3
    np.testing.assert_array_equal(one(np.arange(V)[::-1], temperature=1e-6, allowed=allowed), np.eye(V)[4])


def test_greedy_takes_the_lowest_of_equals():
    logits = np.zeros(V)
    logits[[4, 7]] = 2.0
    np.testing.assert_array_equal(one(logits, temperature=0.0), np.eye(V)[4])
    np.testing.assert_array_equal(one(logits, temperature=0.0, top_k=1, top_p=0.1, min_p=1.0), np.eye(V)[4])


def test_C9_defaults_are_random_at_temperature_1():
    logits = np.random.default_rng(0).normal(size=V)
    np.testing.assert_allclose(one(logits), np.exp(logits) / np.exp(logits).sum(), rtol=1e-5)


def test_C11_top_k_is_not_off_by_one():
    logits = np.concatenate([[3.0, 2, 1, 0], np.full(V - 4, -9.0)])
    for k in (1, 2, 3):
        assert np.nonzero(one(logits, top_k=k))[0].tolist() == list(range(k))
    assert np.all(one(logits, top_k=0) > 0) and np.all(one(logits, top_k=V + 5) > 0)


def test_top_k_keeps_ties_with_the_last():
    logits = np.array([2.0, 1.0, 1.0, 1.0] + [0.0] * (V - 4))
    assert np.nonzero(one(logits, top_k=2))[0].tolist() == [0, 1, 2, 3]


def test_C13_top_p_keeps_the_token_that_crosses_and_no_more():
    logits = np.log(np.array([0.6, 0.3, 0.1] + [1e-30] * (V - 3)))
    for p, kept in ((0.0, 1), (0.5, 1), (0.59, 1), (0.61, 2), (0.89, 2), (0.91, 3)):
        assert np.sum(one(logits, top_p=p) > 0) == kept, p


def test_top_p_just_below_1_and_ties():
    assert np.all(one(np.zeros(V), top_p=0.5) > 0), "all are equal: none may be cut"
    assert np.all(one(np.zeros(V), top_p=0.0) > 0)
    assert np.sum(one(np.linspace(0, 1, V), top_p=np.float32(0.99999994)) > 0) >= V - 1


def test_min_p_edges():
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05] + [1e-30] * (V - 4)))
    assert np.sum(one(logits, min_p=0.4) > 0) == 2, "C1: token 3 never appears"
    assert np.sum(one(logits, min_p=1.0) > 0) == 1
    allowed = np.arange(V) < 2
    assert np.sum(one(logits, min_p=0.0, allowed=allowed) > 0) == 2


def test_a_neighbours_truncation_changes_nothing():
    """A row without top-k beside one with it: the very same numbers as without that neighbour."""
    logits = np.random.default_rng(3).normal(size=(2, V))
    alone = law(logits, Sampling(temperature=np.array([0.7, 0.7])))
    beside = law(logits, Sampling(temperature=np.array([0.7, 0.7]), top_k=np.array([0, 2]), top_p=np.array([1.0, 0.5]),
                                  min_p=np.array([0.0, 0.5]), frequency_penalty=np.array([0.0, 1.0])))
    np.testing.assert_array_equal(beside[0], alone[0])
    assert np.sum(beside[1] > 0) < V


def test_penalties_see_the_drafted_prefix():
    """Row `t` of a block counts the `t` drafted tokens before it, and only them (bug log C5)."""
    drafted = np.array([[2, 2, 5]])
    sampling = Sampling(temperature=1.0, repetition_penalty=1.5, presence_penalty=0.3, frequency_penalty=0.7)
    history = History(jnp.asarray([[1, 2, 0, 0]]), jnp.asarray([2]), jnp.asarray([1]), jnp.full((1, 4), -1),
                      by_row(sampling, 1))
    logits = np.random.default_rng(0).normal(size=(1, 4, V)).astype(np.float32)
    prefix = chain_prefix(jnp.asarray(drafted), 0, logits.shape[1])
    got = np.exp(np.asarray(log_law(adjust(jnp.asarray(logits), history, prefix), history.sampling)))
    for depth in range(4):
        want = reference.target_law(logits[0, depth], sampling, [1], [2, *drafted[0, :depth]])
        np.testing.assert_allclose(got[0, depth], want, atol=1e-6)


def test_penalties_and_patience_see_the_own_path_of_a_node():
    """On a tree: the tokens of the ancestors and of the node itself; siblings and cousins are not there."""
    shape = paths_shape([(0,), (1,), (0, 0), (1, 0), (1, 1)])
    tokens, parents = np.array([[2, 5, 2, 7, 5, 4]]), np.asarray(shape.parents)
    tree = TokenTree(jnp.asarray(tokens), jnp.asarray(parents)[None], jnp.ones((1, 6), bool), shape)
    sampling = Sampling(temperature=1.0, repetition_penalty=1.5, presence_penalty=0.3, frequency_penalty=0.7,
                        min_new_tokens=3)
    history = History(jnp.asarray([[1, 2, 0, 0]]), jnp.asarray([2]), jnp.asarray([1]), jnp.asarray([[*EOS, -1, -1]]),
                      by_row(sampling, 1))
    logits = np.random.default_rng(0).normal(size=(1, 6, V)).astype(np.float32)
    for one in (tree, TokenTree(tree.tokens, tree.parents, tree.valid, shape._replace(parents=None, ranks=None))):
        got = np.exp(np.asarray(log_law(adjust(jnp.asarray(logits), history, tree_prefix(one)), history.sampling)))
        for node, path in enumerate([[], [5], [2], [5, 7], [2, 5], [2, 4]]):
            want = reference.target_law(logits[0, node], sampling, [1], [2, *path], EOS)
            np.testing.assert_allclose(got[0, node], want, atol=1e-6)


def test_min_new_tokens_withholds_eos_along_the_block():
    sampling = Sampling(temperature=1.0, min_new_tokens=3)
    history = History(jnp.asarray([[1, 2, 0, 0]]), jnp.asarray([2]), jnp.asarray([1]), jnp.asarray([[4, 6, -1, -1]]),
                      by_row(sampling, 1))
    got = np.asarray(adjust(jnp.zeros((1, 4, V)), history, chain_prefix(jnp.zeros((1, 3), jnp.int32), 0, 4)))[0]
    assert np.all(np.isinf(got[:2][:, [4, 6]])), "the second and third generated token may not be EOS"
    assert np.all(np.isfinite(got[2:])) and np.all(np.isfinite(got[:, [0, 1, 2, 3, 5, 7]]))


@pytest.mark.parametrize("size", [1, 2, 1000])
def test_thresholds_equal_a_sort(size):
    """Bisection on the bits of float32: every k and p, with ties, signed zeros and -inf."""
    random = np.random.default_rng(size)
    logits = np.round(random.normal(scale=3, size=(64, size)), 1).astype(np.float32)
    logits[random.random(logits.shape) < 0.1] = -np.inf
    logits[random.random(logits.shape) < 0.1] = -0.0
    logits[:, 0] = 0.0
    k = random.integers(0, size + 2, 64).astype(np.int32)
    kept = np.asarray(jax.jit(truncate.keep_top_k)(logits, k))
    for row in range(64):
        floor = -np.inf if k[row] == 0 else np.sort(logits[row])[::-1][min(k[row], size) - 1]
        np.testing.assert_array_equal(kept[row], logits[row] >= floor)
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    p = random.random(64).astype(np.float32)
    kept = np.asarray(jax.jit(truncate.keep_top_p)(probs, p))
    for row in range(64):
        # Float32 sums may differ in the last bit, so the set may be one tie class larger or smaller, no more.
        mass, least = probs[row][kept[row]].sum(), probs[row][kept[row]].min()
        assert mass >= p[row] - 1e-5 and kept[row].tolist() == (probs[row] >= least).tolist()
        assert probs[row][probs[row] > least].sum() < p[row] + 1e-5


def test_a_draft_may_keep_a_little_more():
    """Without `exactly`, top-p keeps all of the set and besides it only tokens up to a tenth less likely."""
    random = np.random.default_rng(7)
    probs = random.dirichlet(np.full(4000, 0.1), size=32).astype(np.float32)
    p = random.uniform(0.5, 0.999, 32).astype(np.float32)
    exact, more = (np.asarray(truncate.keep_top_p(probs, p, exactly)) for exactly in (True, False))
    assert np.all(more >= exact)
    for row in range(32):
        assert probs[row][more[row]].min() >= 0.9 * probs[row][exact[row]].min()


def test_thresholds_among_denormal_numbers_are_found():
    """A processor may take them for 0: the search must end all the same."""
    tiny = np.array([[1.0, 1e-39, 2e-39, 3e-39, 0.0, -0.0, -1e-39]], np.float32)
    for k in range(1, 8):
        assert np.asarray(jax.jit(truncate.keep_top_k)(tiny, np.array([k], np.int32)))[0].sum() >= k
    kept = np.asarray(jax.jit(truncate.keep_top_p)(np.abs(tiny), np.array([0.9999], np.float32)))
    assert kept[0].tolist() == [True] + 6 * [False]
