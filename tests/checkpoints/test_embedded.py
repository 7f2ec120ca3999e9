"""The pair that comes with the package."""

import ast
import pathlib

import jax
import jax.numpy as jnp
import pytest

import specjax
from specjax import checkpoints
from specjax.checkpoints.embedded import embedded_path

PAIR = ("tiny-python", "tiny-python-draft")
HEADER = "def read_lines(path):"


@pytest.fixture(scope="module")
def pair():
    return [specjax.load(name) for name in PAIR]


def test_sizes(pair):
    target, draft = (sum(leaf.size for leaf in jax.tree.leaves(m.params)) for m in pair)
    assert 6e6 <= target <= 8e6
    assert 5e5 <= draft <= 1e6
    files = [p for name in PAIR for p in pathlib.Path(embedded_path(name)).rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in files) <= 24e6
    assert checkpoints.embedded_names() == PAIR


def test_one_tokenizer_and_float32_on_cpu(pair):
    checkpoints.check_same_tokenizer(*pair)
    if jax.default_backend() == "cpu":
        assert {leaf.dtype for m in pair for leaf in jax.tree.leaves(m.params)} == {jnp.dtype("float32")}
    tokenizer = pair[0].tokenizer
    assert tokenizer.get_vocab_size() == pair[0].config.vocab_size == pair[1].config.vocab_size
    text = "def f(x):\n    if x:\n\n        return 'é'\n"
    ids = tokenizer.encode(text).ids
    assert ids[0] == 0
    assert tokenizer.decode(ids) == text


def test_the_pair_writes_a_function_and_stops(pair):
    target, draft = pair
    prompt = target.tokenizer.encode(HEADER).ids
    arguments = {"max_new_tokens": 96, "eos_ids": target.eos_ids}
    plain = specjax.generate(target.model, target.params, [prompt], **arguments)
    fast = specjax.generate(
        target.model, target.params, [prompt], drafter=specjax.draft.from_model(draft.model, 5),
        draft_params=draft.params, **arguments,
    )  # fmt: skip
    assert fast.tokens.tolist() == plain.tokens.tolist()
    assert plain.finish_reason.tolist() == [int(specjax.FinishReason.EOS)]
    text = target.tokenizer.decode([*prompt, *plain.tokens[0, : int(plain.lengths[0])].tolist()])
    (function,) = ast.parse(text).body
    assert isinstance(function, ast.FunctionDef)
    assert function.name == "read_lines"
    assert float(fast.stats.mean_accepted_length[0]) > 2.0
