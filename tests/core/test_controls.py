"""The suite must fail the mistakes of others: each negative control is refused, by enumeration or by chi-square."""

import functools

import jax
import numpy as np
import pytest

import specjax
from specjax import Sampling, testing, verify
from specjax._src.tree import paths_shape
from specjax.testing import controls, exact, statistics, trees

pytestmark = pytest.mark.slow

V, K, ROWS = 3, 2, 100_000
TARGET, DRAFT = testing.random_trigram(0, V, 1.0), testing.random_trigram(3, V, 1.5)
WARM = Sampling(temperature=0.6)


@functools.cache
def expected():
    return exact.target_text_law(exact.trigram_tables(TARGET[1]["logits"], [0], 4), exact.Setting(WARM))


def judge(drafter, verifier):
    """The chi-square of the loop test, on one prompt; half of the rows draft one token, half two."""
    out = specjax.generate(
        *TARGET, np.zeros((ROWS, 1), np.int32), drafter=drafter, verifier=verifier, draft_params=DRAFT[1],
        sampling=WARM, max_new_tokens=5, num_speculative_tokens=1 + np.arange(ROWS) % 2, key=jax.random.key(1))
    tests = len(controls.CONTROLS) + len(controls.TREE_CONTROLS)
    return statistics.assert_from_law(np.asarray(out.tokens)[:, :4], expected(), tests)


@pytest.mark.parametrize("name", controls.CONTROLS)
def test_the_loop_test_refuses(name):
    with pytest.raises(AssertionError, match="do not come from this law"):
        judge(*controls.CONTROLS[name](DRAFT[0], K))


def test_the_loop_test_accepts_what_the_controls_are_made_of():
    """The same drafter and draws, without a mistake."""
    judge(specjax.draft.from_model(DRAFT[0], K), verify.block())


PATHS = tuple(specjax.draft.full_paths(2, 2))
TREE_RIGHT = {"hybrid": verify.hybrid(), "without_replacement": verify.without_replacement(),
              "independent": verify.specinfer()}


@pytest.mark.parametrize("name", controls.TREE_CONTROLS)
def test_the_loop_test_refuses_trees(name):
    with pytest.raises(AssertionError, match="do not come from this law"):
        judge(*controls.TREE_CONTROLS[name](DRAFT[0], PATHS))


@pytest.mark.parametrize("siblings", TREE_RIGHT)
def test_the_loop_test_accepts_right_trees(siblings):
    judge(specjax.draft.model_tree(DRAFT[0], PATHS, siblings=siblings), TREE_RIGHT[siblings])


def chosen_in_q(tables, setting):
    """The law that is reported of a drawn child has the chosen ones in it."""
    draft = exact.log_laws(tables.draft, setting)

    def change(drafts):
        laws = drafts.laws.copy()
        for node, text in enumerate(trees.path_texts(TREE, drafts.tokens)[:3]):
            laws[:, node] = np.exp(draft[len(text)][None][(np.zeros(len(laws), int), *text)])
        return drafts._replace(laws=laws)

    return change


def pruned(drafts):
    """A drawn child is dropped where its own law gave it less than .7, and all below it."""
    valid, tokens, row = drafts.valid.copy(), drafts.tokens, np.arange(len(drafts.tokens))
    for node, parent in enumerate(TREE.parents[1:], 1):
        bad = drafts.sampled[:, node] & (drafts.laws[row, parent, tokens[:, node]] < 0.7)
        valid[:, node] &= valid[:, parent] & ~bad
    return drafts._replace(valid=valid)


TREE = paths_shape(PATHS)
TREE_MISTAKES = {
    "chosen in q": (verify.hybrid(), "hybrid", chosen_in_q),
    "chosen in q, traversal": (verify.traversal(), "hybrid", chosen_in_q),
    "pruned": (verify.hybrid(), "hybrid", lambda *_: pruned),
    "pruned, traversal": (verify.traversal(), "hybrid", lambda *_: pruned),
    **{name: (controls.TREE_CONTROLS[name](DRAFT[0], PATHS)[1], siblings, lambda *_: None) for name, siblings in [
        ("forgotten_replacement", "without_replacement"), ("twins_counted_twice", "independent"),
        ("replacement_drawn_from_p", "independent")]},
}


@pytest.mark.parametrize("name", TREE_MISTAKES)
def test_enumeration_refuses_trees(name):
    verifier, siblings, change = TREE_MISTAKES[name]
    setting, tables = exact.Setting(WARM), exact.random_tables(4, V, K + 1)
    laws = trees.tree_text_laws(verifier, tables, TREE, siblings, setting, change=change(tables, setting))
    with pytest.raises(AssertionError, match="total variation"):
        for law in laws:
            exact.assert_same_law(law, exact.target_text_law(tables, setting), tolerance=0.003)


def argmax(laws):
    return np.eye(laws.shape[-1])[np.argmax(laws, axis=-1)]


def unwarped(laws):
    """What temperature 1 would draw from, where the reported law is at 0.6."""
    warmer = laws ** 0.6
    return warmer / warmer.sum(-1, keepdims=True)


@pytest.mark.parametrize(("verifier", "drawn_from"), [
    (verify.rejection(), argmax), (verify.block(), argmax), (verify.rejection(), unwarped), (verify.block(), unwarped),
    (controls.resample_from_p(DRAFT[0], K)[1], None), (controls.stale_q(DRAFT[0], K)[1], None),
], ids=["argmax-rejection", "argmax-block", "unwarped-rejection", "unwarped-block", "resample from p", "stale q"])
def test_enumeration_refuses(verifier, drawn_from):
    setting = exact.Setting(WARM)
    tables = exact.random_tables(4, V, K + 1)
    laws = exact.round_text_laws(verifier, tables, K, setting, drawn_from=drawn_from)
    distances = [exact.total_variation(law, exact.target_text_law(tables, setting)) for law in laws]
    assert max(distances) > 0.01
    with pytest.raises(AssertionError, match="total variation"):
        for law in laws:
            exact.assert_same_law(law, exact.target_text_law(tables, setting))


def test_size_of_published_mistakes():
    """Bug log A1: target [.6, .4], draft [.8, .2] by argmax tested against its softmax gives [.75, .25]."""
    target, draft = ([np.broadcast_to(np.log(np.float32(law)), (2,) * (i + 1)) for i in range(2)]
                     for law in ([0.6, 0.4], [0.8, 0.2]))
    _, law = exact.round_text_laws(verify.rejection(), exact.Tables(target, draft), 1, drawn_from=argmax)
    np.testing.assert_allclose(law.sum(axis=1), [0.75, 0.25], atol=1e-6)
