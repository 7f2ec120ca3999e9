"""Faults that users of other libraries reported, each as a test named by its row in the bug log.

The log is `reference/peers.md` 4.1 (letters) and 4.2 (X). Rows that need a whole file of their own are tested there:
B1, B3, B11, B17, J1, A11, A13 in test_endings.py, C9, C11, C13, C17 in test_sampling.py, A1, A7, X4, X5 also in
test_controls.py, D7 and J9 in test_invariants.py. Rows that do not apply to the core, and why:

* A23, G9, G13, I1-I19, F15 (rope tables), H1-H9: models, tokenizers, checkpoints and meshes; tested with those.
* E11 (prompt embeddings), F13 (pages), F7 (layers sharing a cache): the core has no such thing.
* B13 (text of a stop), K7, K9, G7 (token strings): above token ids.
* K11, X12 (no default key: it is an error, test_errors.py), X7 (padding of a request axis): no counterpart.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scenarios
from scenarios import BAD, BUDGET, PROMPTS, ROWS, TARGET, K, V, assert_same_text, generate, plain_greedy, texts

import specjax
from specjax import FinishReason, Sampling, draft, testing, verify
from specjax._src import rows
from specjax._src.noise import Noise
from specjax._src.tree import chain
from specjax._src.verify import law as laws
from specjax.testing import exact

RULES = {"match": verify.match(), "rejection": verify.rejection(), "block": verify.block()}


class Fixed(Noise):
    """Noise with the uniform number of one's choice, and no other noise at all: the likeliest token wins."""

    uniform = 0.0

    def accept(self):
        return jnp.full(self.length.shape, type(self).uniform, jnp.float32)

    def draw_next(self, law):
        return rows.argmax(law)

    def draw_target(self, node, log_law):
        return rows.argmax(log_law)


class Never(Fixed):
    uniform = 1.0 - 2.0**-24  # the largest float32 below 1


def verdict(rule, p, q, drafted, noise=Fixed):
    """What `rule` makes of the chain `drafted` for laws `p` [k + 1, V] and `q` [k, V] (None: one-hot), as ints."""
    with np.errstate(divide="ignore"):
        p = jnp.asarray(np.log(np.asarray(p, np.float64)), jnp.float32)[None]
        q = None if q is None else jnp.asarray(np.log(np.asarray(q, np.float64)), jnp.float32)[None]
    one = jnp.ones(1, jnp.int32)
    tree = chain(one, jnp.asarray([drafted]), one * len(drafted), one > 0, q)
    out = RULES[rule].draw(noise(jax.random.split(jax.random.key(0), 1), one, False), RULES[rule].plan(tree, p))
    return int(out.num_accepted[0]), int(out.next_token[0])


# A. The accept rule and the distribution


def one_token(p, q, rule="rejection", drawn_from=None):
    tables = exact.Tables(*([np.broadcast_to(np.log(np.float32(law)), (2,) * (i + 1)) for i in range(2)]
                            for law in (p, q)))
    return exact.round_text_laws(RULES[rule], tables, 1, drawn_from=drawn_from)[1].sum(axis=1)


@pytest.mark.parametrize("rule", RULES)
def test_A1_argmax_draft_is_one_hot(rule):
    """Target [.6, .4], draft always 0: a one-hot block gives [.6, .4], never [.75, .25]."""
    tables = exact.Tables(*([np.broadcast_to(np.log(np.float32(law)), (2,) * (i + 1)) for i in range(2)]
                            for law in ([0.6, 0.4], [0.8, 0.2])))
    for law in exact.round_text_laws(RULES[rule], tables, 1, blocks=[(0,)]):
        np.testing.assert_allclose(law.sum(axis=1), [0.6, 0.4], atol=1e-6)


def test_A3_draft_in_bfloat16_is_cast_once():
    """Half-precision logits 1e-3 apart: sampled and scored from one array, so the law stays the target's."""
    half = jnp.asarray([0.0, 1e-3, -0.3, 0.2], jnp.bfloat16)
    target = testing.table(np.full(4, 0.25))
    drafter = draft.from_model(target[0], 2)
    out = specjax.generate(
        *target, np.zeros((20000, 1), np.int32), drafter=drafter, draft_params={"logits": half},
        sampling=Sampling(temperature=1.0), key=jax.random.key(0), max_new_tokens=3)
    scenarios.check(out)
    testing.statistics.assert_from_law(np.asarray(out.tokens), np.full((4, 4, 4), 1 / 64))
    law = np.exp(np.asarray(jax.nn.log_softmax(half.astype(jnp.float32)), np.float64))
    sure = np.minimum(law, 0.25).sum()
    assert np.mean(np.asarray(out.stats.accepted_per_round)[:, 0] > 0) == pytest.approx(sure, abs=0.02)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("one_hot", [False, True])
def test_A5_zero_probability_token_never_accepted(rule, one_hot):
    """X3 too: p = [1, 0], the draft proposes 1, the uniform is exactly 0."""
    q = None if one_hot else [[0.5, 0.5]]
    assert verdict(rule, [[1.0, 0.0], [1.0, 0.0]], q, [1]) == (0, 0)


def test_A5_whole_loop():
    """A target that forbids what the draft loves: never emitted, in 60 000 tokens."""
    target, other = testing.table([0.5, 0.4, 0.1, 0.0]), testing.table([0.05, 0.05, 0.1, 0.8])
    out = specjax.generate(
        *target, np.zeros((20000, 1), np.int32), drafter=draft.from_model(target[0], 2), draft_params=other[1],
        sampling=Sampling(temperature=1.0), key=jax.random.key(1), max_new_tokens=3)
    assert np.asarray(out.tokens).max() == 2 and np.asarray(out.stats.recovered).sum() > 10000


@pytest.mark.parametrize("rule", RULES)
def test_A9_residual_of_equal_laws(rule):
    """p == q, uniform just below 1: kept; and where rounding refuses after all, the fallback is p, never NaN."""
    p = [0.3, 0.5, 0.2]
    if rule != "match":
        assert verdict(rule, [p, p], [p], [2], Never) == (1, 1)
    tree = chain(jnp.ones(1, jnp.int32), jnp.asarray([[2]]), jnp.ones(1, jnp.int32), jnp.ones(1, bool),
                 jnp.log(jnp.asarray([[p]])))
    plan = RULES["rejection"].plan(tree, jnp.log(jnp.asarray([[p, p]])))
    np.testing.assert_allclose(laws.outcomes(plan)[1][0, 0], p, rtol=1e-6)
    np.testing.assert_allclose(laws.residual(plan, jnp.zeros(1, jnp.int32))[0], p, rtol=1e-6)


def test_A15_sampled_draft_carries_its_law():
    """A drawn draft reports q to every rule that needs it; without q the rule would take it for one-hot."""
    drafter = draft.from_model(TARGET[0], K)
    assert not drafter.one_hot and verify.block().needs_draft_logits and verify.rejection().needs_draft_logits
    assert one_token([0.6, 0.4], [0.8, 0.2]) == pytest.approx(np.array([0.6, 0.4]), abs=1e-6)


def test_A17_match_is_exact_and_accepts_less():
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.3, 0.5])
    tables = exact.Tables(*([np.broadcast_to(np.log(np.float32(law)), (3,) * (i + 1)) for i in range(2)]
                            for law in (p, q)))
    assert exact.mean_accepted(verify.match(), tables, 1) == pytest.approx(np.sum(p * q), abs=1e-6)
    assert exact.mean_accepted(verify.rejection(), tables, 1) == pytest.approx(np.minimum(p, q).sum(), abs=1e-6)


def test_A21_any_draft_leaves_greedy_text_alone():
    assert texts(generate("model-block", draft_params=BAD[1])) == plain_greedy(TARGET, PROMPTS)


# B. EOS, stops, budgets


def test_B5_no_draft_past_the_budget():
    """Capacity prompt + 1: k shrinks to 0, one token comes out."""
    out = generate("ngram-match", prompts=[[1, 2, 1, 2, 1, 2, 1]] * ROWS, capacity=8)
    assert np.all(out.lengths == 1) and np.all(out.stats.drafted == 0)


def test_B7_prompts_of_several_lengths_in_turn():
    for length in (3, 9, 15, 2):
        prompts = [[(row + i) % V for i in range(length)] for row in range(ROWS)]
        assert texts(generate("model-block", prompts=prompts)) == plain_greedy(TARGET, prompts)


def test_B21_constraint_done_in_mid_block():
    """The automaton ends at the second of three accepted tokens, and allows nothing afterwards."""
    rule = specjax.Constraint(
        init=lambda batch: jnp.zeros(batch, jnp.int32), advance=lambda state, token: state + 1,
        mask=lambda state: jnp.broadcast_to(state < 2, (V,)), done=lambda state: state >= 2)
    script = scenarios.script_with(None)
    for temperature in (0.0, 1.0):
        out = generate((draft.from_model(script[0], K), None), prompts=[[0]] * ROWS, target=script,
                       draft_params=script[1], constraint=rule, sampling=Sampling(temperature=temperature, seed=1))
        assert texts(out) == [[1, 2]] * ROWS
        assert np.all(out.finish_reason == FinishReason.STOP)


# C. Sampling parameters at every position


def test_C1_C3_min_p_and_bias_at_every_position():
    """p = [.5, .3, .15, .05], min_p = .4: tokens 2 and 3 never appear, drafted or not; bias moves all positions."""
    target = testing.table([0.5, 0.3, 0.15, 0.05])
    prompts = np.tile(np.array([[3, 2, 3, 2, 3, 2]], np.int32), (2000, 1))
    bias = np.zeros((2000, 4), np.float32)
    bias[1000:] = [-9, 0, 0, 9]
    out = specjax.generate(*target, prompts, drafter=draft.ngram(3), key=jax.random.key(0), max_new_tokens=8,
                           sampling=Sampling(temperature=1.0, min_p=0.4, logit_bias=bias))
    tokens = np.asarray(out.tokens)
    assert tokens[:1000].max() == 1 and tokens[:1000].min() == 0
    assert np.all(tokens[1000:] == 3) and np.all(np.asarray(out.stats.accepted)[1000:] > 0)


def test_C5_penalties_inside_a_block():
    """Uniform target, frequency penalty 2, greedy, drafts that repeat: 0 1 2 3 in turn, as in plain decoding."""
    target = testing.table(np.full(V, 1 / V))
    sampling = Sampling(frequency_penalty=2.0)
    want = [[i % V for i in range(BUDGET)]] * ROWS
    prompts = [[0, 0, 0, 0]] * ROWS
    drafter = draft.from_model(target[0], K)
    other = {"logits": jnp.asarray(np.eye(V)[0], jnp.float32)}
    for params in (target[1], other):
        out = generate((drafter, None), prompts=prompts, target=target, draft_params=params, sampling=sampling)
        assert texts(out) == want
        assert out.stats.accepted.sum() > 0


def test_C7_the_targets_temperature_counts():
    sampling = Sampling(temperature=np.full(ROWS, 0.05), seed=np.arange(ROWS))
    cold, hot = (generate("model-block", sampling=Sampling(**{**vars(sampling), "temperature": np.full(ROWS, t)}))
                 for t in (1e-6, 3.0))
    assert texts(cold) == texts(generate()) != texts(hot)


@pytest.mark.parametrize("temperature", [-1.0, np.nan])
def test_C15_negative_temperature(temperature):
    with pytest.raises(ValueError, match="temperature"):
        generate(sampling=Sampling(temperature=temperature), key=jax.random.key(0))


def test_C19_allowed_ids_with_drafts():
    """Sampled rows keep to the allowed ids; greedy ones take the likeliest of them, drafted or not."""
    allowed, logits = np.isin(np.arange(V), [1, 4, 6]), np.asarray(TARGET[1]["logits"])
    sampling = Sampling(temperature=np.array([0.0, 1.0] * 4), seed=np.arange(ROWS), allowed=allowed,
                        logit_bias=np.zeros(V, np.float32))
    out = generate("model-block", sampling=sampling)
    assert np.all(np.isin(out.tokens, [1, 4, 6])) and out.stats.accepted.sum() > 0
    for row in range(0, ROWS, 2):
        text = []
        for _ in range(BUDGET):
            line = [-1, *PROMPTS[row], *text]
            text.append(int(np.argmax(np.where(allowed, logits[line[-2] + 1, line[-1]], -np.inf))))
        assert texts(out)[row] == text


def test_C21_penalties_with_drafts_and_ragged_rows():
    sampling = Sampling(repetition_penalty=1.8, presence_penalty=0.7, frequency_penalty=0.9)
    want = generate(sampling=sampling)
    for pair in scenarios.SPECULATIVE:
        assert_same_text(generate(pair, sampling=sampling), want)
    assert texts(want) != texts(generate())


def test_C23_rejected_drafts_do_not_advance_the_grammar():
    """The automaton counts tokens; after every generation it has counted those that were emitted."""
    rule = specjax.Constraint(
        init=lambda batch: jnp.zeros(batch, jnp.int32), advance=lambda state, token: state + 1,
        mask=lambda state: jnp.ones(V, bool), done=lambda state: jnp.bool_(False))
    decoder = specjax.speculative(TARGET[0], scenarios.MODEL, constraint=rule)
    params = specjax.Params(TARGET[1], BAD[1])
    state = decoder.init(params, PROMPTS, max_new_tokens=BUDGET)
    run = jax.jit(decoder.run)
    for total in (5, 10, 15):
        state = run(params, state, 5)
        np.testing.assert_array_equal(state.rule_state, total)
    assert np.all(np.asarray(state.stats.recovered) > 0)


# D. Keys


def test_D1_the_same_seed_gives_the_same_text():
    sampling = Sampling(temperature=np.full(ROWS, 1.0), seed=np.full(ROWS, 3))
    for pair in ("model-block", "ngram-match"):
        one, two = (generate(pair, prompts=[[1, 2]] * ROWS, sampling=sampling, key=jax.random.key(i)) for i in (0, 1))
        assert texts(one) == texts(two) == [texts(one)[0]] * ROWS
    other = generate("model-block", prompts=[[1, 2]] * ROWS, key=jax.random.key(0),
                     sampling=Sampling(temperature=np.full(ROWS, 1.0), seed=np.arange(ROWS)))
    assert len({tuple(text) for text in texts(other)}) > ROWS // 2


def test_D5_nothing_is_left_behind_by_another_batch():
    want = generate("model-block")
    generate("model-block", prompts=PROMPTS[:3])
    assert_same_text(generate("model-block"), want)


# E. Prompts and padding


def test_E1_prompt_of_one_token():
    prompts = [[token] for token in range(V)]
    for pair in ("ngram-match", "model-block"):
        assert texts(generate(pair, prompts=prompts)) == plain_greedy(TARGET, prompts)


def test_E7_E9_padding_gets_no_weight():
    """The transformer: ragged rows in one padded batch equal each row alone, unpadded, without a cache."""
    target = testing.tiny_transformer(0, V)
    assert texts(generate("ngram-match", target=target)) == [plain_greedy(target, [one])[0] for one in PROMPTS[:3]] + \
        plain_greedy(target, PROMPTS)[3:]


# F. Rollback; G. vocabularies; J. records; K. validation


def test_F1_F3_F11_ring_and_dense_caches_roll_back():
    for target in (testing.ring(0, V), TARGET):
        assert texts(generate("ngram-match", target=target)) == plain_greedy(target, PROMPTS)


def test_F5_a_perfect_draft_is_kept_whole():
    out = generate("model-block", draft_params=TARGET[1])
    np.testing.assert_array_equal(out.stats.accepted, out.stats.drafted)


@pytest.mark.parametrize("size", [V - 1, V + 1, 2 * V])
def test_G1_G3_G5_other_vocabulary(size):
    other = testing.random_trigram(0, size)
    with pytest.raises(ValueError, match=f"scores {size} tokens and the target {V}"):
        generate("model-block", draft_params=other[1])


def test_G11_padding_is_never_an_index():
    """Rows that draft less pad with token 0 and `valid` False; no id -1 reaches the embedding."""
    seen = []

    def apply(params, tokens, cache, attend):
        jax.debug.callback(lambda ids: seen.append((ids.min(), ids.max())), tokens)
        return TARGET[0].apply(params, tokens, cache, attend)

    spy = specjax.Model(TARGET[0].init_cache, apply, TARGET[0].commit)
    out = generate((draft.ngram(2), None), target=(spy, TARGET[1]), eos_ids=[6])
    jax.effects_barrier()
    assert texts(out) == texts(generate(eos_ids=[6]))
    assert min(low for low, _ in seen) >= 0 and max(high for _, high in seen) < V


def test_J3_nothing_is_counted_behind_the_first_refusal():
    """Greedy choices [1, 2, 3, ..], draft [1, 0, 3]: one accepted, though the third would have matched."""
    p = np.eye(4)[[1, 2, 3, 0]]
    for rule in RULES:
        assert verdict(rule, p, None, [1, 0, 3]) == (1, 2)


def test_J7_tokens_and_cache_agree():
    """The target's cache holds exactly the committed tokens but the last (the toy's cache is the tokens)."""
    decoder = specjax.speculative(TARGET[0], scenarios.MODEL)
    params = specjax.Params(TARGET[1], BAD[1])
    state = decoder.init(params, PROMPTS, max_new_tokens=BUDGET, eos_ids=[6])
    run = jax.jit(decoder.run)
    for n in (3, 1, 7):
        state = run(params, state, n)
        for row in range(ROWS):
            kept = int(state.length[row]) - 1
            np.testing.assert_array_equal(state.cache[row, :kept], state.tokens[row, :kept])
            drafted = int(state.draft.length[row])
            assert drafted <= kept + 1
            np.testing.assert_array_equal(state.draft.cache[row, : min(drafted, kept)],
                                          state.tokens[row, : min(drafted, kept)])


def test_K1_drafting_nothing_is_seen_in_the_stats():
    """k = 0 is plain decoding and says so; a drafter of k = 0 is refused, not ignored."""
    out = generate("model-block", num_speculative_tokens=0)
    assert np.all(out.stats.drafted == 0) and np.all(out.stats.bonus == out.lengths)
    for factory in (draft.ngram, lambda k: draft.from_model(TARGET[0], k)):
        with pytest.raises(ValueError, match="at least 1, got 0"):
            factory(0)


def test_K3_k_of_1():
    assert texts(generate((draft.ngram(1), None))) == texts(generate())


def test_K5_defaults():
    """What a plain call means is pinned: greedy, no truncation, no penalty, block or match by the draft."""
    assert vars(Sampling()) == {
        "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0,
        "frequency_penalty": 0.0, "logit_bias": None, "allowed": None, "min_new_tokens": 0, "seed": None}
    assert specjax.speculative(TARGET[0], scenarios.MODEL).rules.verifier is verify.block()
    assert specjax.speculative(TARGET[0], scenarios.NGRAM).rules.verifier is verify.match()
    assert draft.ngram(3) is draft.ngram(num_speculative_tokens=3, max_ngram=3, min_ngram=1)


def test_X1_greedy_rows_beside_sampled_ones():
    """Greedy rows keep their argmax in a batch that samples, for every rule and draft."""
    sampling = Sampling(temperature=np.array([0.0, 1.0] * 4), seed=np.arange(ROWS))
    for pair in scenarios.SPECULATIVE:
        assert_same_text(generate(pair, sampling=sampling), generate(), np.arange(0, ROWS, 2))


def test_X6_bias_of_minus_infinity_is_never_drawn():
    bias = np.zeros(V, np.float32)
    bias[[2, 3]] = -np.inf
    sampling = Sampling(temperature=np.full(ROWS, 1.5), seed=np.arange(ROWS), logit_bias=bias,
                        allowed=np.ones(V, bool))
    assert not np.any(np.isin(np.concatenate(texts(generate("model-block", sampling=sampling))), [2, 3]))


@pytest.mark.parametrize("budget", [-1, 0])
def test_X9_budget_must_be_positive(budget):
    with pytest.raises(ValueError, match="max_new_tokens"):
        specjax.generate(*TARGET, PROMPTS, max_new_tokens=budget)


def test_X10_a_draft_without_rollback_stays_exact():
    """A recurrent draft remembers refused tokens; it is accepted less, and the text is the target's."""
    target, other = testing.recurrent(0, V), testing.recurrent(0, V)
    out = generate((draft.from_model(other[0], K), None), target=target, draft_params=other[1])
    assert texts(out) == plain_greedy(target, PROMPTS)


def test_X13_a_full_cache_says_so_row_by_row():
    out = generate("ngram-match", prompts=[[1] * (1 + row) for row in range(ROWS)], capacity=8)
    np.testing.assert_array_equal(out.lengths, 8 - 1 - np.arange(ROWS))
    assert np.all(out.finish_reason == FinishReason.CAPACITY)
