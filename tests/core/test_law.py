"""The exact law of a round, by enumeration: every verifier, with every transform, for every k of a row."""

import functools
import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from specjax import Constraint, Sampling, verify
from specjax.testing import exact

V, K = 3, 3
VERIFIERS = {"match": verify.match(), "rejection": verify.rejection(), "block": verify.block()}


@functools.cache
def no_repeats(vocab_size: int = V) -> Constraint:
    """No token twice in a row: the mask depends on what was drafted just before."""
    return Constraint(
        init=lambda batch: jnp.full(batch, -1, jnp.int32),
        advance=lambda state, token: token,
        mask=lambda state: jnp.arange(vocab_size) != state,
        done=lambda state: jnp.bool_(False))


SETTINGS = {
    "plain": exact.Setting(),
    "hot": exact.Setting(Sampling(temperature=2.5)),
    "cold": exact.Setting(Sampling(temperature=0.3)),
    "greedy": exact.Setting(Sampling(temperature=0.0)),
    "top-k": exact.Setting(Sampling(temperature=1.0, top_k=2)),
    "top-p": exact.Setting(Sampling(temperature=0.8, top_p=0.7)),
    "min-p": exact.Setting(Sampling(temperature=1.0, min_p=0.3)),
    "all three": exact.Setting(Sampling(temperature=1.3, top_k=2, top_p=0.8, min_p=0.1)),
    "penalties": exact.Setting(
        Sampling(temperature=1.0, repetition_penalty=1.7, presence_penalty=0.4, frequency_penalty=0.6),
        prompt=(0, 1, 1, 2, 1), output=3),
    "bias and mask": exact.Setting(
        Sampling(temperature=1.0, logit_bias=np.array([0.5, -1.0, 0.2], np.float32),
                 allowed=np.array([1, 0, 1], bool))),
    "min new tokens": exact.Setting(Sampling(temperature=1.0, min_new_tokens=3), prompt=(0, 1), output=1, eos=(2,)),
    "constraint": exact.Setting(prompt=(0, 1), output=1, constraint=no_repeats()),
    "everything": exact.Setting(
        Sampling(temperature=0.9, top_k=2, top_p=0.9, repetition_penalty=1.3, frequency_penalty=0.5, min_new_tokens=2,
                 logit_bias=np.array([0.3, 0.0, -0.3], np.float32)),
        prompt=(2, 0, 1), output=2, eos=(0,), constraint=no_repeats()),
}


@functools.cache
def expected(name: str, seed: int) -> np.ndarray:
    return exact.target_text_law(exact.random_tables(seed, V, K + 1), SETTINGS[name])


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_drawn_drafts(verifier, name):
    """Blocks drawn from the draft's law; k of the row in 0..K, in a tree that always has room for K."""
    for seed in range(2):
        laws = exact.round_text_laws(VERIFIERS[verifier], exact.random_tables(seed, V, K + 1), K, SETTINGS[name])
        assert len(laws) == K + 1
        for law in laws:
            exact.assert_same_law(law, expected(name, seed))


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_chosen_drafts(verifier, name):
    """A one-hot draft is exact whatever the block, not just on the average over blocks."""
    blocks = list(itertools.product(range(V), repeat=K))
    laws = exact.round_text_laws(
        VERIFIERS[verifier], exact.random_tables(0, V, K + 1), K, SETTINGS[name], blocks=blocks)
    assert len(laws) == len(blocks) * (K + 1)
    for law in laws:
        exact.assert_same_law(law, expected(name, 0))


def extreme(tables, pair):
    """Target and draft that are equal, nearly so, or share no token, or a draft whose best token has nearly all of its
    mass; as they are under any other name."""
    if pair == "equal":
        return tables._replace(draft=tables.target)
    if pair == "nearly equal":
        return tables._replace(draft=[logits + np.float32(1e-6) * logits[..., ::-1] for logits in tables.target])
    if pair.startswith("sure by "):
        gap = np.float32(pair.removeprefix("sure by "))
        return tables._replace(draft=[one + gap * (one == one.max(-1, keepdims=True)) for one in tables.draft])
    if pair == "disjoint":
        far = np.array([0, 0, -200, -200], np.float32)
        return exact.Tables([one + far for one in tables.target], [one + far[::-1] for one in tables.draft])
    return tables


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("pair", ["random", "equal", "sharp", "disjoint", "nearly equal"])
def test_extreme_pairs(verifier, pair):
    """Residuals of mass 0 or nearly so, acceptance 0 and 1, four tokens."""
    tables = exact.random_tables(11, 4, K + 1, scale={"sharp": 12.0}.get(pair, 1.5))
    tables = extreme(tables, pair)
    want = exact.target_text_law(tables)
    for law in exact.round_text_laws(VERIFIERS[verifier], tables, K):
        exact.assert_same_law(law, want)


def test_block_keeps_more_than_rejection_and_both_beat_match():
    """The order that the default verifier rests on: for each pair of models, and by a margin on the average."""
    kept = {name: np.array([exact.mean_accepted(verifier, exact.random_tables(seed, V, K + 1), K) for seed in range(6)])
            for name, verifier in VERIFIERS.items()}
    assert np.all(kept["block"] >= kept["rejection"] - 1e-6)
    assert kept["block"].mean() > kept["rejection"].mean() + 0.01
    assert kept["rejection"].mean() > kept["match"].mean() + 0.01


def test_example_of_the_block_verification_paper():
    """arXiv:2403.10444: target (1/3, 2/3), draft (2/3, 1/3), two tokens: 10/9 are kept by token, 11/9 by block."""
    target, draft = (np.log(np.array(law, np.float32)) for law in ([1 / 3, 2 / 3], [2 / 3, 1 / 3]))
    tables = exact.Tables(*([np.broadcast_to(law, (2,) * (i + 1)) for i in range(3)] for law in (target, draft)))
    assert exact.mean_accepted(verify.rejection(), tables, 2) == pytest.approx(10 / 9, abs=1e-6)
    assert exact.mean_accepted(verify.block(), tables, 2) == pytest.approx(11 / 9, abs=1e-6)
