"""The pair that comes with the package, and the draft heads of its target."""

import ast
import pathlib

import jax
import jax.numpy as jnp
import pytest

import specjax
from specjax import checkpoints
from specjax.checkpoints.embedded import embedded_path

PAIR = ("tiny-python", "tiny-python-draft")
HEADS = {
    "medusa": lambda loaded: specjax.draft.medusa(loaded.head, list(specjax.draft.best_paths(rates(loaded), 32))),
    "eagle": lambda loaded: specjax.draft.eagle(loaded.head, list(specjax.draft.best_paths(rates(loaded), 32))),
    "eagle2": lambda loaded: specjax.draft.eagle2(loaded.head, num_nodes=32),
    "eagle3": lambda loaded: specjax.draft.eagle3(loaded.head, num_nodes=32),
}
FOLDERS = {name: f"tiny-python-{name.replace('2', '')}" for name in HEADS}
HEADER = "def read_lines(path):"


@pytest.fixture(scope="module")
def pair():
    return [specjax.load(name) for name in PAIR]


def test_sizes(pair):
    target, draft = (sum(leaf.size for leaf in jax.tree.leaves(m.params)) for m in pair)
    assert 6e6 <= target <= 8e6
    assert 5e5 <= draft <= 1e6
    heads = sorted(set(FOLDERS.values()))
    for names in (PAIR, heads):
        files = [p for name in names for p in pathlib.Path(embedded_path(name)).rglob("*") if p.is_file()]
        assert sum(p.stat().st_size for p in files) <= 24e6
    assert checkpoints.embedded_names() == tuple(sorted([*PAIR, *heads]))


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


def test_a_head_needs_its_target_loaded():
    with pytest.raises(TypeError, match=r"load_head needs the target .* got a str: pass specjax.load"):
        specjax.load_head(FOLDERS["eagle3"], "tiny-python")


def rates(loaded):
    """How often the target's choice is the guess of each rank at each depth, as training measured it."""
    return loaded.metadata["held_out"]["ranks"]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", HEADS)
def test_a_head_drafts_the_text_of_its_target(pair, name, temperature):
    target = pair[0]
    head = specjax.load_head(FOLDERS[name], target)
    arguments = {
        "max_new_tokens": 48, "eos_ids": target.eos_ids, "sampling": specjax.Sampling(temperature=temperature, seed=1)}
    prompts = [target.tokenizer.encode(text).ids for text in (HEADER, "def add(self, item):", "class Stack:")]
    plain = specjax.generate(target.model, target.params, prompts, **arguments)
    fast = specjax.generate(
        target.model, target.params, prompts, drafter=HEADS[name](head), draft_params=head.params,
        **arguments)
    if temperature == 0.0 or name != "eagle":  # siblings that are drawn keep the law, not the text
        assert fast.tokens.tolist() == plain.tokens.tolist()
    assert float(fast.stats.mean_accepted_length.mean()) > 1.5
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(head.params) if jnp.issubdtype(leaf.dtype, jnp.floating)}
    assert dtypes == {leaf.dtype for leaf in jax.tree.leaves(target.params)}


def test_a_head_says_how_it_was_trained(pair):
    for folder in set(FOLDERS.values()):
        said = specjax.load_head(folder, pair[0]).metadata
        assert said["training"]["target"] == "tiny-python" and said["held_out"]["places"] > 10_000
        assert said["held_out"]["accepted_length"] > 1.5
